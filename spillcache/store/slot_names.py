"""Names of slot files: what every system takes for one plain file. Pure functions."""

import re
import unicodedata

from spillcache.errors import SlotFileInvalid
from spillcache.store.small_files import TEMPORARY

MOST_BYTES = 255

_SPECIAL = frozenset('/\\:*?"<>|')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|clock\$|(com|lpt)[0-9¹²³]) *(\..*)?", re.I)
"""Names that Windows gives to devices, whatever follows a dot. Source: Microsoft, "Naming Files,
Paths, and Namespaces".
"""


def check_name(name: str) -> str:
    """``name``, if it is one plain file's on any system; raises SlotFileInvalid."""
    problem = _problem(name)
    if problem:
        raise SlotFileInvalid(
            f"filename: {problem}; give a plain name, as chat-1.slot", param="filename"
        )
    return name


def _problem(name: str) -> str:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it is not Unicode"
    special = sorted(_SPECIAL.intersection(name))
    problems = (
        (not name, "it is empty"),
        (size > MOST_BYTES, f"it has more than {MOST_BYTES} bytes"),
        (any(unicodedata.category(c) == "Cc" for c in name), "it has a control character"),
        (
            bool(special),
            f"it has {''.join(special[:1])}, which not every system takes",
        ),
        (name[-1:] in (".", " "), "it ends with a dot or a space, which some systems take away"),
        (_DEVICE.fullmatch(name) is not None, "Windows has a device of that name"),
        (name.startswith(TEMPORARY), f"names that begin with {TEMPORARY} are the server's own"),
    )
    return next((problem for is_so, problem in problems if is_so), "")
