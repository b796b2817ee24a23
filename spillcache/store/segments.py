"""The segment files of a store: making them, giving their bytes back, and taking over what a dead
process left.

A segment's writer holds a lock on its file as long as it lives. Order: the index forgets before
bytes are freed, and remembers what is to be freed until it is.
"""

import errno
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from spillcache.config import GIB, MIB
from spillcache.store.catalog import Catalog, Place
from spillcache.store.files import Files
from spillcache.store.format import PAGE_BYTES
from spillcache.store.index import Index
from spillcache.store.rows import Entry, SegmentRow, SegmentState

_SUFFIX = ".seg"
_IDS = 1 << 63
_ID_DIGITS = 10

log = logging.getLogger("spillcache.store")


def segment_bytes(quota_bytes: int) -> int:
    """How large a segment grows before it is sealed: small stores must be able to free whole files,
    too.
    """
    return min(max(quota_bytes // 64, 4 * MIB), 8 * GIB)


def merged(places: Iterable[Place]) -> dict[int, list[tuple[int, int]]]:
    """By segment: (offset, length) of stretches, neighbours made one, so that they are freed by one
    call.
    """
    by_segment: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for place in sorted(places):
        stretches = by_segment[place.segment]
        if stretches and sum(stretches[-1]) >= place.offset:
            offset, length = stretches[-1]
            end = max(offset + length, place.offset + place.length)
            stretches[-1] = (offset, end - offset)
        else:
            stretches.append((place.offset, place.length))
    return dict(by_segment)


def _name(segment: int) -> str:
    return f"{segment:0{_ID_DIGITS}}{_SUFFIX}"


def segment_of(name: str) -> int | None:
    """The id in the name of a segment's file; None for a name that we would not write ourselves:
    it is somebody else's, whatever it looks like.
    """
    stem = name.removesuffix(_SUFFIX)
    segment = int(stem) if stem.isascii() and stem.isdecimal() else _IDS
    return segment if segment < _IDS and name == _name(segment) else None


def _has_room(row: SegmentRow, most_bytes: int) -> bool:
    # One without live objects may be removed at any moment.
    is_idle = row.state == SegmentState.SEALED and row.live_objects > 0
    return is_idle and PAGE_BYTES < row.committed_end < most_bytes


class Segments:
    """One store's segment files in this process; any thread."""

    def __init__(self, directory: Path, files: Files, index: Index) -> None:
        self.directory = directory
        self.can_punch = True
        """False once the filesystem has said that it cannot: then only whole files are freed."""
        self._files = files
        self._index = index
        self._has_failed = False

    def path(self, segment: int) -> Path:
        """The segment's file."""
        return self.directory / _name(segment)

    def create(self) -> tuple[int, int]:
        """A new, empty, locked segment: its id and a file descriptor, owned by the caller. Raises
        OSError.

        The file is made within the index's transaction, so that no other process ever sees a row
        without a locked file.
        """
        made: list[tuple[int, int]] = []

        def work(catalog: Catalog) -> tuple[int, int]:
            self._discard(made)
            segment = catalog.meta.next_segment
            while True:
                try:
                    fd = self._files.create(self.path(segment))
                    break
                except FileExistsError:
                    segment += 1
            made.append((segment, fd))
            self._files.lock(fd)
            row = SegmentRow(SegmentState.OPEN, os.getpid(), time.time_ns(), PAGE_BYTES, 0, 0, 0, 0)
            catalog.add_segment(segment, row)
            return segment, fd

        try:
            return self._index.write(work)
        except BaseException:
            self._discard(made)
            raise

    def reopen(self, most_bytes: int) -> tuple[int, int, int] | None:
        """A sealed segment that ends before ``most_bytes``, opened and locked to append more: its
        id, a file descriptor that the caller then owns, and where it ends. None if there is none.

        So a process that writes little adds no file of its own each time it runs.
        """
        with self._index.read() as catalog:
            candidates = [s for s, row in catalog.segments() if _has_room(row, most_bytes)]
        for segment in candidates:
            try:
                fd = self._files.open(self.path(segment), write=True)
            except OSError:
                continue
            end = self._reopen(segment, fd, most_bytes)
            if end is not None:
                return segment, fd, end
            self._files.close(fd)
        return None

    def _reopen(self, segment: int, fd: int, most_bytes: int) -> int | None:
        def work(catalog: Catalog) -> int | None:
            row = catalog.segment(segment)
            if row is None or not _has_room(row, most_bytes) or not self._files.lock(fd):
                return None
            size = self._files.size(fd)
            if size < row.committed_end:
                return None  # not the file that it was
            if size > row.committed_end:
                self._files.truncate(fd, row.committed_end)
            row.state, row.owner_pid = SegmentState.OPEN, os.getpid()
            return row.committed_end

        try:
            return self._index.write(work)
        except OSError:
            return None  # then it gets a new one
        except BaseException:
            self._files.close(fd)
            raise

    def _discard(self, made: list[tuple[int, int]]) -> None:
        """Undo; a file that stays is empty, and removed at the next open."""
        while made:
            segment, fd = made.pop()
            try:
                self._files.unlink(self.path(segment))
            except OSError as error:
                log.warning("segment %d was not discarded: %s", segment, error)
            self._close(fd)

    def _close(self, fd: int) -> None:
        """Close, whatever comes of it: what was written is either synced or named by nothing."""
        try:
            self._files.close(fd)
        except OSError as error:
            log.warning("a segment was not closed well: %s", error)

    def seal(self, segment: int, fd: int) -> None:
        """No more will be appended: cut off what was not committed and close ``fd``; the file goes
        if it is dead.
        """

        def work(catalog: Catalog) -> None:
            row = catalog.segment(segment)
            if row is not None:
                self._seal(catalog, segment, row)

        try:
            self._index.write(work)
        finally:
            self._close(fd)

    def _seal(self, catalog: Catalog, segment: int, row: SegmentRow) -> None:
        row.state = SegmentState.SEALED
        catalog.reserve(segment, -row.reserved)
        self._cut_off(segment, row.committed_end)
        self.settle(catalog, segment)

    def settle(self, catalog: Catalog, segment: int) -> OSError | None:
        """Measure a segment after bytes were freed; if it is sealed and nothing lives in it, remove
        it. The error that prevented it, if one did.
        """
        row = catalog.segment(segment)
        if row is None:
            return None
        try:
            if row.state == SegmentState.SEALED and not row.live_objects:
                # Before the index forgets the file: a crash between leaves a row, not an unknown
                # file.
                self._files.unlink(self.path(segment))
                catalog.drop_segment(segment)
            else:
                catalog.measure(segment, self._files.allocated_at(self.path(segment)))
        except FileNotFoundError:
            catalog.measure(segment, 0)
            if not row.live_objects:
                catalog.drop_segment(segment)
        except OSError as error:
            log.warning("segment %d was not measured: %s", segment, error)
            return error
        return None

    def free(self, places: Iterable[Place]) -> OSError | None:
        """Give bytes that nothing names back to the filesystem.

        Returns the first error, if something failed: it is logged, and tried again by ``retry`` and
        at the next open. Whoever evicts to make room must stop then, for evicting more would not
        help.
        """
        places = list(places)
        if not places:
            return None
        stretches = merged(places)
        done = {segment for segment in stretches if self._is_dead(segment)}
        errors: list[OSError] = []
        for segment in stretches.keys() - done:
            error = self._punch(segment, stretches[segment])
            if error is None:
                done.add(segment)
            else:
                errors.append(error)

        def work(catalog: Catalog) -> list[OSError]:
            for place in places:
                if place.segment in done:
                    catalog.freed(place)
            found = [self.settle(catalog, segment) for segment in stretches]
            return [error for error in found if error is not None]

        errors += self._index.write(work)
        self._has_failed = bool(errors)
        return errors[0] if errors else None

    def retry(self) -> OSError | None:
        """If the last ``free`` failed, free and measure what it could not; the error, if it fails
        again.
        """
        if not self._has_failed:
            return None
        with self._index.read() as catalog:
            places = catalog.freeing()
            segments = [segment for segment, _ in catalog.segments()]
        error = self.free(places)

        def settle_all(catalog: Catalog) -> list[OSError]:
            found = [self.settle(catalog, segment) for segment in segments]
            return [error for error in found if error is not None]

        errors = [error] if error is not None else self._index.write(settle_all)
        self._has_failed = bool(errors)
        return errors[0] if errors else None

    def _is_dead(self, segment: int) -> bool:
        with self._index.read() as catalog:
            row = catalog.segment(segment)
            return row is None or (row.state == SegmentState.SEALED and not row.live_objects)

    def _punch(self, segment: int, stretches: list[tuple[int, int]]) -> OSError | None:
        """None: there is nothing left to be done about these stretches."""
        if not self.can_punch:
            return None
        try:
            fd = self._files.open(self.path(segment), write=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("segment %d: bytes were not freed: %s", segment, error)
            # Not through another name of the file: its bytes go when all of it goes.
            return None if error.errno == errno.EMLINK else error
        try:
            for offset, length in stretches:
                if not self._files.punch(fd, offset, length):
                    self.can_punch = False
                    log.warning("holes are not supported here: only whole segments are freed")
                    return None
        except OSError as error:
            log.warning("segment %d: bytes were not freed: %s", segment, error)
            return error
        finally:
            self._close(fd)
        return None

    def recover(self) -> list[int]:
        """At open: take over segments whose writer died, and make the index's figures true.

        Returns segments with records that the index does not know at all, or not all. Raises
        OSError.
        """

        def work(catalog: Catalog) -> list[int]:
            on_disk = self._on_disk()
            for segment, row in catalog.segments():
                if segment not in on_disk:
                    self._lose(catalog, segment, row)
                elif row.state == SegmentState.OPEN:
                    self._adopt(catalog, segment, row)
                elif row.state == SegmentState.SEALED:
                    self.settle(catalog, segment)
            catalog.meta.next_segment = max([catalog.meta.next_segment, *(i + 1 for i in on_disk)])
            rows = dict(catalog.segments())
            found = {segment for segment, row in rows.items() if row.state == SegmentState.FOUND}
            unknown = [each for each in on_disk - rows.keys() if not self._remove_empty(each)]
            return sorted(found.union(unknown))

        found = self._index.write(work)
        with self._index.read() as catalog:
            places = catalog.freeing()
        self.free(places)
        return found

    def _on_disk(self) -> set[int]:
        """The segments there are; a link, a pipe or a directory of such a name is none."""
        ids = {segment_of(name) for name in self._files.names(self.directory)}
        return {s for s in ids if s is not None and self._files.is_file(self.path(s))}

    def _adopt(self, catalog: Catalog, segment: int, row: SegmentRow) -> None:
        fd = self._files.open(self.path(segment))
        try:
            if self._files.lock(fd):
                log.info(
                    "segment %d of process %d, which is gone, is sealed", segment, row.owner_pid
                )
                self._seal(catalog, segment, row)
        finally:
            self._close(fd)

    def _cut_off(self, segment: int, end: int) -> None:
        """Free what nothing names at the end of a segment; not through a second name of it."""
        try:
            fd = self._files.open(self.path(segment), write=True)
        except FileNotFoundError:
            return  # nothing lived in it
        except OSError as error:
            log.warning("segment %d was not cut off: %s", segment, error)
            return
        try:
            if self._files.size(fd) > end:
                self._files.truncate(fd, end)
        except OSError as error:
            log.warning("segment %d was not cut off: %s", segment, error)
        finally:
            self._close(fd)

    def lose(self, entry: Entry) -> bool:
        """Forget an object whose segment's file is gone; False if it is not, or if the object was
        gone already. Raises OSError, also when it is the directory that is gone: then the
        filesystem may come back.
        """

        def work(catalog: Catalog) -> bool:
            now = catalog.current(entry)
            if now is None or not now.same_place(entry):
                return False
            if entry.segment in self._on_disk():
                return False
            for place in catalog.remove(now):
                catalog.freed(place)
            self.settle(catalog, entry.segment)
            return True

        return self._index.write(work)

    def _lose(self, catalog: Catalog, segment: int, row: SegmentRow) -> None:
        """Somebody removed the file: its objects can never be read again."""
        if row.live_objects:
            log.warning("segment %d is gone, and %d objects with it", segment, row.live_objects)
        for entry in catalog.entries_in(segment):
            now = catalog.current(entry)
            if now is not None and now.same_place(entry):
                catalog.remove(now)
        catalog.drop_segment(segment)

    def _remove_empty(self, segment: int) -> bool:
        """Remove a file that its maker did not live to tell the index of; it holds no record."""
        path = self.path(segment)
        try:
            fd = self._files.open(path)
        except FileNotFoundError:
            return True  # it was in ``_on_disk`` and removed since
        try:
            if self._files.size(fd) > PAGE_BYTES:
                return False
        finally:
            self._close(fd)
        self._files.unlink(path)
        return True
