"""Answers that come back as text keep their tokens, and nothing else does."""

import random
import re

import pytest

from spillcache.serve.token_memory import TokenMemory
from spillcache.serve.turn import Turn

NAMES = {1: "<s>", 2: "<end>", 3: "<user>", 4: "<bot>", 5: "<hid>"}
PIECES = ["hello", "hell", "he", "llo", "lo", " w", "orld", "world", ".\n", "\n\n", "  "]
BYTE, PIECE = 10, 300


class Words:
    """A tokeniser that takes the longest piece it knows, with control tokens and BOS."""

    bos = True

    def __init__(self, prefix=""):
        self.prefix = prefix
        """What it puts before every text, as SentencePiece does a space."""

    def tokenize(self, text, *, add_special, parse_special):
        tokens = [1] if add_special else []
        names = "|".join(map(re.escape, NAMES.values()))
        for part in re.split(f"({names})", text) if parse_special else [text]:
            if part in NAMES.values() and parse_special:
                tokens += [token for token, name in NAMES.items() if name == part]
            elif part:
                tokens += self.cut(self.prefix + part)
        return tokens

    def cut(self, text):
        tokens = []
        while text:
            fits = [piece for piece in PIECES if text.startswith(piece)]
            if fits:
                piece = max(fits, key=len)
                tokens.append(PIECE + PIECES.index(piece))
                text = text[len(piece) :]
            else:
                tokens += [BYTE + byte for byte in text[0].encode()]
                text = text[1:]
        return tokens

    def token_bytes(self, token, *, special=False):
        if token in NAMES:
            return NAMES[token].encode() if special else b""
        return PIECES[token - PIECE].encode() if token >= PIECE else bytes([token - BYTE])

    def is_end(self, token):
        return token == 2


def spelled(text):
    """The text, byte by byte: tokens that the tokeniser would not choose."""
    return [BYTE + byte for byte in text.encode()]


@pytest.fixture
def words():
    return Words()


@pytest.fixture
def memory():
    return TokenMemory()


ASKED = "<user>hello<end><bot>"


def answered(words, memory, prompt=ASKED, answer=None, stop=None, **turn):
    """The tokens of a prompt and its answer."""
    one = Turn(words, memory, **turn)
    tokens = one.tokens(prompt, add_special=True)
    answer = spelled("hello world") if answer is None else answer
    one.learn(answer, stop)
    return tokens + answer


def prompt_of(words, memory, text, **turn):
    one = Turn(words, memory, **turn)
    return one.tokens(text, add_special=True), one.known


NEXT = ASKED + "hello world<end><user>hello<end><bot>"


def test_an_answer_keeps_its_tokens(words, memory):
    history = answered(words, memory)
    tokens, known = prompt_of(words, memory, NEXT)
    assert tokens[: len(history)] == history
    assert tokens[len(history) :] == words.tokenize(
        "<end><user>hello<end><bot>", add_special=False, parse_special=True
    )
    assert known == 1 + len("hello world")


def test_an_answer_as_the_tokeniser_would_have_it_is_not_remembered(words, memory):
    answered(words, memory, answer=words.cut("hello world"))
    assert memory.empty


@pytest.mark.parametrize(
    "text",
    [
        ASKED + "hello world!<end>",
        ASKED + "hello worl<end>",
        "<user>hell<end><bot>hello world<end>",
        "<user>hello<end><bot>hello world, hello world<end>",
        ASKED.replace("<bot>", "<user>") + "hello world<end>",
    ],
)
def test_other_texts_are_the_tokenisers(words, memory, text):
    answered(words, memory)
    assert prompt_of(words, memory, text) == (
        words.tokenize(text, add_special=True, parse_special=True),
        0,
    )


def test_texts_of_other_salts_are_not_found(words, memory):
    answered(words, memory, salt=b"a")
    assert prompt_of(words, memory, NEXT, salt=b"b")[1] == 0
    assert prompt_of(words, memory, NEXT)[1] == 0
    assert prompt_of(words, memory, NEXT, salt=b"a")[1] > 0


def test_requests_that_keep_or_take_nothing(words, memory):
    answered(words, memory, stores=False)
    assert memory.empty
    answered(words, memory)
    assert prompt_of(words, memory, NEXT, reads=False)[1] == 0


def test_many_turns(words, memory):
    text, history = "", []
    rng = random.Random(2)
    for turn in range(12):
        text += f"<user>hello {turn}<end><bot>"
        one = Turn(words, memory, b"salt")
        tokens = one.tokens(text, add_special=True)
        assert tokens[: len(history)] == history
        answer = "".join(rng.choice(["hello", " world", "lo", "é", "\n\n", "."]) for _ in range(9))
        written = spelled(answer) if turn % 3 else words.cut(answer)
        one.learn(written)
        text, history = text + answer + "<end>", tokens + written


def test_two_answers_to_one_prompt(words, memory):
    first = answered(words, memory)
    second = answered(words, memory, answer=spelled("hello he"))
    assert prompt_of(words, memory, NEXT)[0][: len(first)] == first
    other = NEXT.replace("hello world", "hello he")
    assert prompt_of(words, memory, other)[0][: len(second)] == second


def test_white_space_that_a_template_trims(words, memory):
    answer = [*spelled("hello world"), PIECE + PIECES.index(".\n"), *spelled("\n ")]
    history = answered(words, memory, answer=answer)
    tokens, _ = prompt_of(words, memory, ASKED + "hello world.<end>")
    assert tokens == [*history[:-3], BYTE + ord("."), 2]
    assert prompt_of(words, memory, ASKED + "hello world.\n\n <end>")[0] == [*history, 2]


def test_what_a_stop_string_cut_off(words, memory):
    answer = [*spelled("hello w"), PIECE + PIECES.index("orld")]
    history = answered(words, memory, answer=answer, stop="ld")
    tokens, _ = prompt_of(words, memory, ASKED + "hello wor<end>")
    assert tokens == [*history[:-1], *spelled("or"), 2]


def test_a_control_token_that_the_client_did_not_see(words, memory):
    """The client's text is another one: what the model saw is not what the client says."""
    answered(words, memory, answer=[*spelled("hello"), 5, *spelled(" world")])
    assert prompt_of(words, memory, NEXT)[1] == 0
    # One that it saw is part of the text.
    seen = ASKED + "hello<hid> world<end>"
    assert prompt_of(words, memory, seen)[1] > 0


def test_an_answer_that_writes_a_control_tokens_name(words, memory):
    history = answered(words, memory, answer=spelled("say <end> twice"))
    tokens, _ = prompt_of(words, memory, ASKED + "say <end> twice<end>")
    assert tokens == [*history, 2]


def test_an_answer_that_ends_within_a_character(words, memory):
    answered(words, memory, answer=[*spelled("hello"), BYTE + 0xC3])
    assert memory.empty


def test_an_answer_that_goes_on(words, memory):
    history = answered(words, memory)
    tokens, _ = prompt_of(words, memory, ASKED + "hello world")
    assert tokens == history
    one = Turn(words, memory)
    more = one.tokens(ASKED + "hello world", add_special=True) + spelled(" he")
    one.learn(spelled(" he"))
    assert prompt_of(words, memory, ASKED + "hello world he<end>")[0] == [*more, 2]


def test_a_prompt_without_control_tokens(words, memory):
    history = answered(words, memory, prompt="hello ")
    assert prompt_of(words, memory, "hello hello world")[0] == history
    assert prompt_of(words, memory, "hello hello world he")[1] == 0


def test_a_tokeniser_that_adds_spaces(memory):
    words = Words(prefix=" ")
    history = answered(words, memory)
    tokens, _ = prompt_of(words, memory, NEXT)
    assert tokens[: len(history)] == history
    # A rest can't be tokenised by itself there, so the trimmed text is not known.
    memory = TokenMemory()
    answered(words, memory, answer=[*spelled("hello"), PIECE + PIECES.index(".\n")])
    assert prompt_of(words, memory, ASKED + "hello.<end>")[1] == 0


class Ended(Words):
    """One that also puts a token at the end."""

    def tokenize(self, text, *, add_special, parse_special):
        tokens = super().tokenize(text, add_special=add_special, parse_special=parse_special)
        return [*tokens, 2] if add_special else tokens


class Dropping(Words):
    """One whose text is not what its tokens say."""

    def tokenize(self, text, *, add_special, parse_special):
        text = text.replace("<user>", "")
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


class Unknown(Words):
    """One with a token for what it does not know."""

    def cut(self, text):
        return [5 if token == BYTE + ord("!") else token for token in super().cut(text)]


@pytest.mark.parametrize("kind", [Ended, Unknown])
def test_tokens_that_are_not_in_the_text(kind, memory):
    words = kind()
    prompt = "<user>!<end><bot>"
    answered(words, memory, prompt=prompt)
    text = prompt + "hello world<end>"
    assert prompt_of(words, memory, text) == (
        words.tokenize(text, add_special=True, parse_special=True),
        0,
    )


def test_tokens_never_say_another_text(memory):
    """Whatever is known, what a prompt's tokens say is its text."""
    words = Words()
    rng = random.Random(4)
    scraps = [*NAMES.values(), "hello", "he", "llo", " world", "\n\n", ".", "é", "w", "<", "end>"]
    texts = ["<user>"]
    seen = 0
    for _ in range(3000):
        text = rng.choice(texts) + "".join(rng.choice(scraps) for _ in range(rng.randrange(4)))
        one = Turn(words, memory)
        tokens = one.tokens(text, add_special=True)
        said = b"".join(words.token_bytes(token, special=True) for token in tokens[1:])
        assert said == text.encode()
        answer = spelled("".join(rng.choice(scraps) for _ in range(rng.randrange(4))))
        one.learn(answer)
        seen += one.known
        written = b"".join(map(words.token_bytes, answer)).decode()
        if len(texts) < 500:
            texts.append(text + written + rng.choice(["", "<end>"]))
    assert seen > 1000


def test_a_tokeniser_that_changes_the_text_is_left_alone(memory):
    words = Dropping()
    answered(words, memory)
    tokens, _ = prompt_of(words, memory, NEXT)
    said = b"".join(words.token_bytes(token, special=True) for token in tokens[1:])
    assert said == NEXT.replace("<user>", "").encode()
