"""What a body is made of, before anything is made of it.

JSON is parsed in one go, and nothing else runs meanwhile: no token of anybody's answer. So the
numbers of what would come of it are bounded first, by a look that takes milliseconds and stops
nobody.
"""

from dataclasses import dataclass

import numpy as np

from spillcache.errors import BodyTooLarge

CONTAINERS_MAX = 1 << 15
"""Objects and lists: about 2 µs each at worst, for a message."""
STRINGS_MAX = 1 << 18
"""Names of fields included: about 0.3 µs each."""
ITEMS_MAX = 1 << 21
"""Numbers, and whatever else has a comma after it: 0.03 µs each. A context of a million tokens, as
ids, is half of that.
"""

_STEP_BYTES = 1 << 20
_QUOTE, _COMMA, _LIST, _OBJECT = b'",[{'
_CONTAINER_BYTES, _STRING_BYTES, _ITEM_BYTES = 1024, 64, 40


@dataclass(frozen=True, slots=True)
class BodyShape:
    """How many objects and lists, strings, and commas between items there are."""

    containers: int
    strings: int
    items: int
    raw_bytes: int

    @property
    def parsed_bytes(self) -> int:
        """About what it takes in memory when it is parsed, besides the body itself."""
        return (
            self.raw_bytes
            + self.containers * _CONTAINER_BYTES
            + self.strings * _STRING_BYTES
            + self.items * _ITEM_BYTES
        )

    def check(self) -> None:
        """Raise BodyTooLarge for more than a request can be made of."""
        for count, most, what in (
            (self.containers, CONTAINERS_MAX, "objects and lists"),
            (self.strings, STRINGS_MAX, "texts and names"),
            (self.items, ITEMS_MAX, "items"),
        ):
            if count > most:
                raise BodyTooLarge(
                    f"the body has {count:,} {what}, and a request may have {most:,}; send less"
                )


def shape_of(raw: bytes) -> BodyShape:
    """Count what lies outside of strings in JSON; of what is no JSON, something. Any thread."""
    # Two steps, from left to right, leave no quote that is a part of a string.
    plain = raw.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    quotes = containers = items = 0
    for start in range(0, len(plain), _STEP_BYTES):
        size = min(_STEP_BYTES, len(plain) - start)
        part = np.frombuffer(plain, np.uint8, size, start)
        before = np.cumsum(part == _QUOTE) + quotes
        outside = part[before % 2 == 0]
        items += int(np.count_nonzero(outside == _COMMA))
        containers += int(np.count_nonzero((outside == _LIST) | (outside == _OBJECT)))
        quotes = int(before[-1])
    return BodyShape(containers, (quotes + 1) // 2, items, len(raw))
