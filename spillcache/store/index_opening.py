"""Opening a store's index: looked at first, and set aside if it is damaged; LMDB would not notice.

Only while no other process has the store open; beside others it is taken as it is.
"""

import logging
import stat
from dataclasses import dataclass

from spillcache.errors import StoreIndexError
from spillcache.store.index import DAMAGE, Index
from spillcache.store.index_sum import Verdict, check_sum, remove_sum
from spillcache.store.location import Location, set_aside_index
from spillcache.store.probe import AT_OPEN_S, LONGEST_S, Health, health
from spillcache.store.progress import Progress, no_progress
from spillcache.store.tenancy import Tenancy

log = logging.getLogger("spillcache.store")


@dataclass(slots=True)
class Care:
    """How an open looks after the index, and what it did."""

    thorough: bool = False
    """Look at all of the index, however long it takes and whatever its sum says."""
    anew: bool = False
    """Make the index anew even if it is sound."""
    progress: Progress = no_progress
    was_alone: bool = False
    set_aside: bool = False
    named: int = 0
    """Objects that were found in segments which the index did not know."""


def open_index(location: Location, tenancy: Tenancy, care: Care) -> Index:
    """The index; a damaged one is set aside, if nobody else uses it, and an empty one takes its
    place. Raises OSError and StoreIndexError.
    """
    care.was_alone = tenancy.is_alone
    if not tenancy.is_alone:
        if not _is_own(location):
            raise StoreIndexError(f"the index {location.index} is a link, and others have it open")
        return Index(location.index)
    if is_sound(location, care):
        remove_sum(location.path)
        try:
            return Index(location.index)
        except StoreIndexError as error:
            if not isinstance(error.__cause__, DAMAGE):
                raise
    if not care.anew:
        log.error("the index is damaged; it is set aside and made anew from the segments")
    set_aside_index(location)
    # Not before: a process that is killed in between must not take what is damaged for sound.
    remove_sum(location.path)
    care.set_aside = True
    return Index(location.index)


def is_sound(location: Location, care: Care | None = None) -> bool:
    """Whether the index is fit for use, as far as can be told in about two seconds, or as ``care``
    says; only while nobody has the store open. Raises OSError.
    """
    care = care or Care()
    if not _is_own(location):
        return False
    if care.anew:
        return False
    verdict = check_sum(location.path)
    if verdict is Verdict.DIFFERENT:
        return False
    if verdict is Verdict.UNKNOWN or care.thorough:
        limit_s = LONGEST_S if care.thorough else AT_OPEN_S
        return health(location.index, limit_s) is not Health.DAMAGED
    return True


def _is_own(location: Location) -> bool:
    """Whether the index's files are no links: LMDB would write through them."""
    for name in ("data.mdb", "lock.mdb"):
        try:
            found = (location.index / name).lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            log.error("the index's %s is a link, or has another name", name)
            return False
    return True
