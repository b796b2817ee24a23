"""Which namespaces are hidden, written beside the index: one that is made anew from the segments
must not show again what somebody had a reason to hide.
"""

import json
import logging
from dataclasses import dataclass
from typing import Any

from spillcache.config import MIB
from spillcache.namespace import Namespace
from spillcache.store.catalog import Catalog
from spillcache.store.index import Index
from spillcache.store.location import Location
from spillcache.store.small_files import read_small, replace_file

HIDDEN = "hidden.json"
_MAX_BYTES = 64 * MIB
_LARGEST = 1 << 63
_NONSENSE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What comes of parsing a file that says anything."""

log = logging.getLogger("spillcache.store")


def write_hidden(catalog: Catalog, location: Location) -> None:
    """Write what ``catalog`` says; within its transaction, so that writers take turns. Raises
    OSError.
    """
    found = {
        namespace_id.hex(): {
            "hidden_ns": row.hidden_ns,
            "reason": row.reason,
            "fields": row.encoding.hex(),
        }
        for namespace_id, row in catalog.hidden().items()
    }
    replace_file(location.path / HIDDEN, json.dumps(found, indent=2).encode() + b"\n")


def hide_again(index: Index, location: Location) -> None:
    """Hide what the file says and the index does not: an index that is new, or about to be made
    from segments. Never raises for what the file says.
    """
    marks = _read_marks(location)
    with index.read() as catalog:
        lacking = [mark for mark in marks if not catalog.is_hidden(mark.namespace.id)]

    def work(catalog: Catalog) -> None:
        for mark in lacking:
            mark.apply(catalog)

    if lacking:
        index.write(work)


def _read_marks(location: Location) -> list["_Mark"]:
    """What the file says, as far as it can be understood."""
    marks = []
    try:
        found = json.loads(read_small(location.path / HIDDEN, _MAX_BYTES) or b"{}")
        for name, mark in found.items():
            try:
                marks.append(_Mark.parse(name, mark))
            except _NONSENSE as error:
                log.warning("whether namespace %.16s is to be hidden is not known: %s", name, error)
    except (OSError, *_NONSENSE) as error:
        log.warning("which namespaces were hidden is not known: %s", error)
    return marks


@dataclass(frozen=True, slots=True)
class _Mark:
    """What the file says of one namespace."""

    namespace: Namespace
    hidden_ns: int
    reason: str

    @classmethod
    def parse(cls, name: str, mark: dict[str, Any]) -> "_Mark":
        namespace = Namespace.decode(bytes.fromhex(mark["fields"]))
        if namespace.id.hex() != name:
            raise ValueError(f"{name} has the fields of {namespace.id.hex()}")
        hidden_ns = int(mark["hidden_ns"])
        if not 0 < hidden_ns < _LARGEST:
            raise ValueError("it was hidden at a time that can't be")
        return cls(namespace, hidden_ns, str(mark["reason"]))

    def apply(self, catalog: Catalog) -> None:
        # A row of its own, so that it is hidden even if it has no object left.
        catalog.use_namespace(self.namespace, self.hidden_ns)
        catalog.hide(self.namespace.id, self.reason, since=self.hidden_ns)
