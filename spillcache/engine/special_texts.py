"""Cuts texts at special tokens as llama.cpp would, so that long ones take seconds and not hours.

llama.cpp looks for every special token of the vocabulary in every fragment that the earlier ones
left, and walks along all fragments at each find: with 6,000 special tokens that is 60 µs for each
"<" in a text, and 20,000 lines of code or 30,000 empty messages take minutes.

Its rule (llama-vocab.cpp, ``tokenizer_st_partition``): special tokens are found longest first, each
from the left within what is still text; what lies between them is tokenised piece by piece. Some
strip white space beside them. A special token is **clean** if no other, nor itself, can share a
part of its place in any text, but for lying within it. So it is found wherever it stands, and what
precedes it and what follows it do not depend on one another. Runs of one character that no other
special token holds are clean, too, if there is a token for each length up to the longest: a run is
then as many of the longest as fit, and one for the rest.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

PART_SPECIALS = 256
"""Special tokens in a part: few enough for llama.cpp, and enough that calls cost nothing."""
_TEXT_BYTES_MAX = 64
"""Longer special tokens are not cut at: the pattern would be nested too deep."""
_SPACE = b" \t\n\v\f\r"
"""What llama.cpp strips."""


@dataclass(frozen=True, slots=True)
class Special:
    """A special token: its text as the tokeniser looks for it, and what white space it takes.

    ``control``: it is looked for only if ``parse_special``.
    """

    token: int
    text: bytes
    control: bool = False
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a text, and whether control tokens may be in it."""

    raw: bytes
    parse_special: bool


class SpecialTexts:
    """The special tokens of a vocabulary; immutable, any thread."""

    def __init__(self, specials: Sequence[Special]) -> None:
        specials = [special for special in specials if special.text]
        counts = Counter(special.text for special in specials)
        strip = {special.text for special in specials if special.lstrip or special.rstrip}
        # Stripping by others ends at a character that is no white space.
        solid = {text for text in counts if text[0] not in _SPACE and text[-1] not in _SPACE}
        clean = _clean(solid - strip, set(counts))
        known = {special.text: special.token for special in specials if special.control}
        self._controls = {
            text: token for text, token in known.items() if text in clean and counts[text] == 1
        }
        self._unclean = [text for text in known if text not in self._controls]
        own = {special.text for special in specials if not special.control}
        runs = dict(_runs(own, set(counts), strip))
        words = {text for text in clean - known.keys() if text[:1] not in runs}
        self._plain = _compile(words, runs)
        self._all = _compile(words | self._controls.keys(), runs)

    def parts(self, raw: bytes, *, parse_special: bool) -> Iterator[int | Part]:
        """The tokens of ``raw`` that are certain, and the parts between them, in order: tokenised
        one by one they have the tokens that the whole has.
        """
        unclean = parse_special and any(text in raw for text in self._unclean)
        begin = count = 0
        for found in (self._all if parse_special else self._plain).finditer(raw):
            token, count = self._controls.get(found[0]), count + 1
            if token is None and count < PART_SPECIALS:
                continue
            if found.start() > begin:
                yield Part(raw[begin : found.start()], unclean)
            begin, count = found.start(), 0
            if token is not None:
                yield token
                begin = found.end()
        if begin < len(raw):
            yield Part(raw[begin:], unclean)

    def count(self, raw: bytes, most: int) -> int:
        """How many clean special tokens ``raw`` holds, so at least how many tokens; it is looked
        through no further than for one more than ``most``.
        """
        return sum(1 for _ in islice(self._all.finditer(raw), most + 1))


def _compile(words: set[bytes], runs: Mapping[bytes, tuple[int, int]]) -> re.Pattern[bytes]:
    patterns = [b"%b{%d,%d}" % (re.escape(char), *sizes) for char, sizes in runs.items()]
    patterns += [_pattern(sorted(words))] if words else []
    return re.compile(b"|".join(patterns or [b"(?!)"]))


def _runs(
    own: set[bytes], texts: set[bytes], strip: set[bytes]
) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Characters whose runs are clean, and their shortest and longest tokens, all of ``own``.

    ``strip``: those that strip; where there are any, white space may not be there to be found.
    """
    sizes: dict[int, set[int]] = defaultdict(set)
    mixed: set[int] = set(_SPACE) if strip else set()
    for text in texts:
        chars = set(text)
        if len(chars) > 1 or text in strip or text not in own:
            mixed |= chars
        else:
            sizes[text[0]].add(len(text))
    for char, known in sizes.items():
        low, high = min(known), max(known)
        if len(known) == high - low + 1 and char not in mixed:
            yield bytes([char]), (low, high)


def _clean(solid: set[bytes], texts: set[bytes]) -> set[bytes]:
    """Those of ``solid`` whose place no text can share, but within it."""
    begins = {text[:size] for text in texts for size in range(1, len(text))}
    ends = {text[size:] for text in texts for size in range(1, len(text))}
    clean = {
        text
        for text in solid
        if len(text) <= _TEXT_BYTES_MAX
        and not any(text[:size] in ends for size in range(1, len(text) + 1))
        and not any(text[size:] in begins for size in range(len(text)))
    }
    return clean - _within(clean, texts)


def _within(words: set[bytes], texts: set[bytes]) -> set[bytes]:
    """The words that lie in the middle of a text."""
    sizes: dict[int, set[int]] = defaultdict(set)
    for word in words:
        sizes[word[0]].add(len(word))
    return {
        text[at : at + size]
        for text in texts
        for at in range(1, len(text) - 1)
        for size in sizes.get(text[at], ())
        if at + size < len(text) and text[at : at + size] in words
    }


def _pattern(words: Sequence[bytes]) -> bytes:
    """A pattern of sorted words, none of which begins another; what they share is written once."""
    groups: dict[int, list[bytes]] = defaultdict(list)
    for word in words:
        groups[word[0]].append(word)
    found = []
    for group in groups.values():
        size = _shared(group[0], group[-1])
        rest = [word[size:] for word in group]
        found.append(re.escape(group[0][:size]) + (_pattern(rest) if len(group) > 1 else b""))
    return b"(?:" + b"|".join(found) + b")" if len(found) > 1 else found[0]


def _shared(first: bytes, last: bytes) -> int:
    """How many bytes two words share from the beginning."""
    pairs = enumerate(zip(first, last, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(last)))
