"""GBNF, llama.cpp's grammars, as the Lark grammars that llguidance compiles.

GBNF describes characters, so every character becomes a terminal of its own: then it means the same
there, whatever a lexer would have made of longer ones. The notation: llama.cpp's
``grammars/README.md``.
"""

from collections.abc import Mapping
from typing import NoReturn

from spillcache.errors import RequestError

CHARACTERS_MAX = 1 << 16
NESTING_MAX = 25
REPETITIONS_MAX = 2000
"""Of one item; llama.cpp's own limit."""

_ESCAPES: Mapping[str, str] = {"n": "\n", "r": "\r", "t": "\t"} | {c: c for c in '\\"[]'}
_HEX_DIGITS: Mapping[str, int] = {"x": 2, "u": 4, "U": 8}
_REPEATS: Mapping[str, str] = {"*": "*", "+": "+", "?": "?"}
_ANY = r"/[\u{0}-\u{10FFFF}]/"


def lark_of(text: str) -> str:
    """The Lark grammar of a GBNF one, whose rule ``root`` is ``start``.

    Raises RequestError, with the line at fault.
    """
    if len(text) > CHARACTERS_MAX:
        raise RequestError(f"grammar: more than {CHARACTERS_MAX} characters", "grammar")
    return _Parser(text).lark()


class _Parser:
    """Recursive descent; ``_at`` is the place in the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {"root": "start"}
        """What rules are called in Lark, where names are lower case."""

    def lark(self) -> str:
        self._skip(newlines=True)
        while self._peek():
            self._rule()
            self._skip(newlines=True)
        if "root" not in self._rules:
            self._fail("there is no rule root")
        for name in self._names:
            if name not in self._rules:
                self._fail(f"there is no rule {name}")
        return "\n".join(f"{self._names[name]}: {rule}" for name, rule in self._rules.items())

    def _rule(self) -> None:
        name = self._name()
        self._skip(newlines=False)
        if not self._takes("::="):
            self._fail(f"::= should follow the name {name}")
        if name in self._rules:
            self._fail(f"the rule {name} is there twice")
        self._skip(newlines=True)
        self._called(name)
        self._rules[name] = self._alternatives()

    def _called(self, name: str) -> str:
        return self._names.setdefault(name, f"r{len(self._names)}")

    def _alternatives(self) -> str:
        found = [self._sequence()]
        while self._takes_bar():
            self._skip(newlines=True)
            found.append(self._sequence())
        return " | ".join(found)

    def _takes_bar(self) -> bool:
        """Whether another alternative follows, on this line or at the beginning of the next."""
        before = self._at
        self._skip(newlines=True)
        if self._takes("|"):
            return True
        self._at = before
        return False

    def _sequence(self) -> str:
        items: list[str] = []
        while (item := self._item()) is not None:
            self._skip(newlines=bool(self._depth))
            items.append(item + self._repetition())
            self._skip(newlines=bool(self._depth))
        return " ".join(items) or '""'

    def _item(self) -> str | None:
        character = self._peek()
        if character == '"':
            return self._literal()
        if character == "[":
            return self._class()
        if character == "(":
            return self._group()
        if character == ".":
            self._at += 1
            return _ANY
        if character in {"<", "!"}:
            self._fail("tokens in grammars are not supported, only characters")
        if _in_name(character):
            return self._called(self._name())
        if character not in {"", "|", ")", "\r", "\n"}:
            self._fail(f"{character!r} has no meaning here")
        return None

    def _group(self) -> str:
        self._at += 1
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._fail(f"more than {NESTING_MAX} parentheses within each other")
        self._skip(newlines=True)
        inner = self._alternatives()
        self._skip(newlines=True)
        if not self._takes(")"):
            self._fail("a ) is missing")
        self._depth -= 1
        return f"({inner})"

    def _literal(self) -> str:
        self._at += 1
        found: list[str] = []
        while not self._takes('"'):
            found.append(_terminal(self._character()))
        if len(found) == 1:
            return found[0]
        return f"({' '.join(found)})" if found else '""'

    def _class(self) -> str:
        self._at += 1
        negated = "^" if self._takes("^") else ""
        ranges: list[str] = []
        while not self._takes("]"):
            first = last = self._character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._character()
            if last < first:
                self._fail("a range of characters ends before it begins")
            ranges.append(f"{_code(first)}-{_code(last)}")
        if not ranges:
            self._fail("[] holds no character")
        return f"/[{negated}{''.join(ranges)}]/"

    def _repetition(self) -> str:
        found = ""
        while True:
            if (mark := _REPEATS.get(self._peek())) is not None:
                self._at += 1
            elif self._takes("{"):
                mark = self._bounds()
            else:
                return found
            if found:
                self._fail("one repetition follows another; put parentheses around the first")
            found = mark
            self._skip(newlines=bool(self._depth))

    def _bounds(self) -> str:
        end = self._text.find("}", self._at)
        words = self._text[self._at : end].split(",") if end >= 0 else []
        numbers = [word.strip() for word in words]
        self._at = end + 1 if end >= 0 else self._at
        open_end = len(numbers) == 2 and not numbers[1]
        given = numbers[:1] if open_end else numbers
        if len(numbers) not in {1, 2} or not all(n.isascii() and n.isdecimal() for n in given):
            self._fail("a repetition is written {3}, {3,} or {3,5}")
        counts = [int(number[:9]) for number in given]
        if max(counts) > REPETITIONS_MAX:
            self._fail(f"more than {REPETITIONS_MAX} repetitions")
        if counts[-1] < counts[0]:
            self._fail("a repetition ends before it begins")
        return f"{{{counts[0]},}}" if open_end else f"{{{counts[0]},{counts[-1]}}}"

    def _character(self) -> str:
        """The next one, which an escape may stand for."""
        character = self._peek()
        if not character:
            self._fail("it ends within a text or a [class]")
        self._at += 1
        if character != "\\":
            return character
        escape = self._peek()
        self._at += 1
        if escape in _ESCAPES:
            return _ESCAPES[escape]
        digits = _HEX_DIGITS.get(escape, 0)
        code = self._text[self._at : self._at + digits]
        self._at += digits
        try:
            found = chr(int(code, 16)) if len(code) == digits else ""
            found.encode()
        except (ValueError, OverflowError):
            found = ""
        return found or self._fail(f"\\{escape}{code} stands for no character")

    def _name(self) -> str:
        start = self._at
        while _in_name(self._peek()):
            self._at += 1
        return self._text[start : self._at] or self._fail("the name of a rule should be here")

    def _skip(self, *, newlines: bool) -> None:
        """White space and comments."""
        while character := self._peek():
            if character == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif character in " \t" or (newlines and character in "\r\n"):
                self._at += 1
            else:
                return

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _takes(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _fail(self, why: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise RequestError(f"grammar, line {line}: {why}", "grammar")


def _in_name(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in {"-", "_"})


def _terminal(character: str) -> str:
    return f"/[{_code(character)}]/"


def _code(character: str) -> str:
    return f"\\u{{{ord(character):X}}}"
