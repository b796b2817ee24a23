import pytest
from llguidance import LLMatcher

from spillcache.engine.gbnf import CHARACTERS_MAX, NESTING_MAX, lark_of
from spillcache.errors import RequestError

ANY = r"/[\u{0}-\u{10FFFF}]/"


@pytest.mark.parametrize(
    ("gbnf", "lark"),
    [
        ('root ::= "a"', r"start: /[\u{61}]/"),
        ('root ::= "ab"', r"start: (/[\u{61}]/ /[\u{62}]/)"),
        ('root ::= ""', 'start: ""'),
        ("root ::=", 'start: ""'),
        ('root ::= "a" | ', r'start: /[\u{61}]/ | ""'),
        ("root ::= [a-cx]", r"start: /[\u{61}-\u{63}\u{78}-\u{78}]/"),
        ("root ::= [^a-]", r"start: /[^\u{61}-\u{61}\u{2D}-\u{2D}]/"),
        (r'root ::= "\n\"\\"', r"start: (/[\u{A}]/ /[\u{22}]/ /[\u{5C}]/)"),
        (
            r"root ::= [\]\x41é\U0001F600]",
            r"start: /[\u{5D}-\u{5D}\u{41}-\u{41}\u{E9}-\u{E9}\u{1F600}-\u{1F600}]/",
        ),
        ("root ::= .", "start: " + ANY),
        ('root ::= x*\nx ::= "y"+ x?', "start: r1*\nr1: /[\\u{79}]/+ r1?"),
        ("root ::= x{2} x{2,} x{2,5}\nx::=.", "start: r1{2,2} r1{2,} r1{2,5}\nr1: " + ANY),
        ("root ::= (x | \n x) x # why\nx ::= .", "start: (r1 | r1) r1\nr1: " + ANY),
        ("# first\n\nroot ::=\n  x |\n  x\n  | x\r\nx ::= .", "start: r1 | r1 | r1\nr1: " + ANY),
        ("a-B_1 ::= .\nroot ::= a-B_1", f"r1: {ANY}\nstart: r1"),
    ],
)  # fmt: skip
def test_what_it_becomes(gbnf: str, lark: str) -> None:
    assert lark_of(gbnf) == lark


@pytest.mark.parametrize(
    ("gbnf", "says"),
    [
        ("", "there is no rule root"),
        ("x ::= .", "there is no rule root"),
        ("root ::= x", "there is no rule x"),
        ("root ::= .\nroot ::= .", "line 2: the rule root is there twice"),
        ("root = .", "::= should follow the name root"),
        ("::= .", "line 1: the name of a rule should be here"),
        ("root ::= .\n\n\nx", "line 4: ::= should follow"),
        ('root ::= "a', "it ends within a text"),
        ("root ::= [a", "it ends within a text or a [class]"),
        ("root ::= [a\\", "\\ stands for no character"),
        ("root ::= []", "[] holds no character"),
        ("root ::= [b-a]", "ends before it begins"),
        ("root ::= (x", "a ) is missing"),
        ("root ::= )", "the name of a rule"),
        (r'root ::= "\q"', r"\q stands for no character"),
        (r'root ::= "\x4"', r"\x4"),
        (r'root ::= "\x4g"', r"\x4g"),
        (r'root ::= "\uD800"', r"\uD800"),
        (r'root ::= "\U99999999"', r"\U99999999"),
        ("root ::= .**", "one repetition follows another"),
        ("root ::= .{", "a repetition is written"),
        ("root ::= .{}", "a repetition is written"),
        ("root ::= .{,3}", "a repetition is written"),
        ("root ::= .{1,2,3}", "a repetition is written"),
        ("root ::= .{-1}", "a repetition is written"),
        ("root ::= .{²}", "a repetition is written"),
        ("root ::= .{5,2}", "a repetition ends before it begins"),
        ("root ::= .{2001}", "more than 2000 repetitions"),
        ("root ::= .{1," + "9" * 5000 + "}", "more than 2000 repetitions"),
        ("root ::= <think>", "tokens in grammars"),
        ("root ::= !<x>", "tokens in grammars"),
        ("root ::= x ; y", "';' has no meaning here"),
        ("root ::= " + "(" * (NESTING_MAX + 1), "parentheses within each other"),
        ("root ::= " + "(" * 100_000, "more than 65536 characters"),
        ("#" * (CHARACTERS_MAX + 1), "more than 65536 characters"),
    ],
)
def test_what_is_wrong_is_said(gbnf: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        lark_of(gbnf)
    assert says in str(caught.value)
    assert caught.value.param == "grammar"


def test_as_deep_as_it_may_be() -> None:
    deep = "(" * NESTING_MAX + "." + ")" * NESTING_MAX
    assert lark_of(f"root ::= {deep}").startswith("start: ((")


def test_what_is_allowed_the_library_takes():
    """Its own limit is a little higher; its words for that are no user's."""
    deep = "root ::= " + "(" * NESTING_MAX + '"a" "b"' + "){2,3}" * NESTING_MAX
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark_of(deep))) == ""
