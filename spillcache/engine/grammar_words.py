"""What llguidance says of a grammar that it can't take, in words for who wrote the grammar."""

import json
import re
from collections.abc import Callable, Sequence

_CHARACTERS_MAX = 300

Words = Callable[[re.Match[str]], str]


def reason_of(words: str) -> str:
    """A sentence for the library's ``words``: its first line where no other is known, for what
    follows may quote the grammar, or what was answered.
    """
    text = words.strip()
    for pattern, sentence in _SENTENCES:
        if (match := pattern.search(text)) is not None:
            return _short(sentence(match))
    return _short(text.split("\n", 1)[0])


def _short(text: str) -> str:
    return " ".join(text.split())[:_CHARACTERS_MAX]


def _keywords(match: re.Match[str]) -> str:
    try:
        names = ", ".join(json.loads(match[1]))
    except ValueError:
        names = match[1]
    return f"these keywords can't be followed: {names}; leave them out"


def _pattern(match: re.Match[str]) -> str:
    """The last line of a regex parser's complaint says what it is about."""
    return (
        f"a pattern can't be followed: {match[1]}; write it without that, or leave it out "
        "(patterns are regular expressions without look-around and back-references)"
    )


_SENTENCES: Sequence[tuple[re.Pattern[str], Words]] = [
    (re.compile(r"^NoExtension"), lambda _: "no token of the model can go on from here"),
    (re.compile(r"^Unimplemented keys: (\[.*\])"), _keywords),
    (re.compile(r"regex parse error:.*?error: ([^\n]+)", re.DOTALL), _pattern),
    (
        re.compile(r"^Unknown format: (.*)"),
        lambda match: f"the format {match[1]!r} is not known; leave it out, or write a pattern",
    ),
    (
        re.compile(r"^Invalid type: (.*)"),
        lambda match: (
            f"{match[1]!r} is no type; there are object, array, string, number, integer, boolean "
            "and null"
        ),
    ),
    (
        re.compile(r"^Pointer '(.*)' does not exist"),
        lambda match: f"$ref: there is nothing at #{match[1]} in this schema",
    ),
    (
        re.compile(r"^Resource '(.*?)' is not present"),
        lambda match: (
            f"$ref: {match[1]} is not fetched; put what it names into $defs, and refer to that"
        ),
    ),
    (
        re.compile(r"schema too large|^panic: "),
        lambda _: "it is too large once its alternatives are worked out; make it smaller",
    ),
    (
        re.compile(r"^Unable to determine if regex is empty"),
        lambda _: "a pattern, format and length can't be followed together; leave one of them out",
    ),
]
"""The first that fits."""
