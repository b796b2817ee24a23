"""Which namespaces are hidden, written beside the index: one that is made anew from the segments
must not show again what somebody had a reason to hide.
"""

import json
import logging
from typing import Any

from spillcache.namespace import ID_BYTES
from spillcache.store.catalog import Catalog
from spillcache.store.location import Location, read_small, replace_file

HIDDEN = "hidden.json"

log = logging.getLogger("spillcache.store")


def write_hidden(catalog: Catalog, location: Location) -> None:
    """Write what ``catalog`` says; within its transaction, so that writers take turns. Raises
    OSError.
    """
    found = {
        namespace_id.hex(): {"hidden_ns": row.hidden_ns, "reason": row.reason}
        for namespace_id, row in catalog.hidden().items()
    }
    replace_file(location.path / HIDDEN, json.dumps(found, indent=2).encode() + b"\n")


def hide_again(catalog: Catalog, location: Location) -> None:
    """Hide in a new index what was hidden in the old one, as far as it has objects. Never raises
    for what the file says.
    """
    try:
        found = json.loads(read_small(location.path / HIDDEN) or b"{}")
        for name, mark in found.items():
            _hide(catalog, bytes.fromhex(name), mark)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("which namespaces were hidden is not known: %s", error)


def _hide(catalog: Catalog, namespace_id: bytes, mark: dict[str, Any]) -> None:
    if len(namespace_id) == ID_BYTES:
        catalog.hide(namespace_id, str(mark["reason"]), since=int(mark["hidden_ns"]))
