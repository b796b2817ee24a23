"""Damaged, missing and unreadable bytes; and how a stream is planned, bounded and ended."""

import errno
import os
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from store_tools import (
    NAMESPACE,
    check_all,
    config,
    entries,
    flip,
    objects,
    overwrite,
    read_all,
    segment_files,
)
from test_rows import ENTRY

from spillcache import processors
from spillcache.config import KIB, MIB
from spillcache.errors import CorruptBlock, ObjectMissing, StoreIOError
from spillcache.metrics import Metrics
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.files import Files
from spillcache.store.format import RecordHeader, payload_digest
from spillcache.store.reader import ReadAhead, plan_runs

REGIONS = [
    *range(0, 192, 8),  # every field of the header
    192,  # the payload's first byte
    192 + 1500,
    192 + 2999,  # its last
]


class FaultyFiles(Files):
    """Real files whose reads fail or fall short when told to."""

    def __init__(self, *, direct: bool = True) -> None:
        super().__init__(direct=direct)
        self.read_error: int | None = None
        self.open_error: int | None = None
        self.bug: Exception | None = None
        self.most_bytes: int | None = None
        self.reads: list[int] = []
        self.gate: threading.Event | None = None

    def open(self, path, *, write=False):
        if self.open_error is not None:
            raise OSError(self.open_error, os.strerror(self.open_error))
        return super().open(path, write=write)

    def pread(self, fd, buffer, offset):
        if self.gate is not None:
            self.gate.wait(10)
        if self.bug is not None:
            raise self.bug
        if self.read_error is not None:
            raise OSError(self.read_error, os.strerror(self.read_error))
        self.reads.append(len(buffer))
        return super().pread(fd, buffer[: self.most_bytes], offset)


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
def faulty(tmp_path, files):
    with BlockStore.open(config(tmp_path / "cache"), files=files) as store:
        yield store


def quarantined(store):
    return sorted((store.path / "quarantine").iterdir())


@pytest.mark.parametrize("at", REGIONS)
def test_damage_anywhere_in_a_record_is_found_and_quarantined(tmp_path, at):
    metrics = Metrics()
    wanted = objects(1, 3)
    with BlockStore.open(config(tmp_path), metrics) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
        flip(segment_files(tmp_path)[0], found[1].offset + at)
        stream = store.read(found)
        first = next(stream)
        assert first.view == wanted[0].payload
        first.release()
        with pytest.raises(CorruptBlock, match="quarantine"):
            next(stream)
        (record,) = quarantined(store)
        assert record.stat().st_size == 4096
        assert record.stat().st_mode & 0o777 == 0o600
        assert metrics.registry.get_sample_value("spillcache_corrupt_objects_total") == 1
        # The chain is shorter; reading the stale entry again is a miss, not another corruption.
        there = store.find(NAMESPACE.id, [o.block for o in wanted], [Part.KV])
        assert [bool(each) for each in there] == [True, False, True]
        with pytest.raises(ObjectMissing):
            read_all(store, [found[1]])
        # It is computed and put again, and the block that follows it is whole.
        assert store.put(NAMESPACE, wanted).written == 1
        check_all(store, wanted)


def test_damage_in_the_padding_harms_nobody(store):
    wanted = objects(1, 2)
    store.put(NAMESPACE, wanted)
    found = entries(store, wanted)
    flip(segment_files(store.path)[0], found[0].offset + 4095)
    check_all(store, wanted)


LIES = [
    {"block": bytes(32)},
    {"parent": bytes(32)},
    {"namespace_id": bytes(8)},
    {"part": Part.WINDOW},
    {"record_class": 2},
    {"token_count": 5},
    {"block_index": 7},
    {"codec": 9},
    {"codec": 1, "raw_bytes": 2999},
    {"codec": 1, "raw_bytes": 1 << 35},
    {"codec": 1, "stored_bytes": 1 << 35},
    {"tail_tokens": 1},
]


@pytest.mark.parametrize("lie", LIES, ids="-".join)
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_damage_with_a_right_checksum_is_found_too(tmp_path, codec, lie):
    """A header that is whole but says something else: a misdirected write, or malice."""
    wanted = [replace(o, payload=bytes(o.payload[:50]) * 60) for o in objects(1, 3)]
    with BlockStore.open(config(tmp_path, codec=codec)) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
        segment = segment_files(tmp_path)[0]
        with open(segment, "rb", buffering=0) as file:
            file.seek(found[1].offset)
            header = RecordHeader.parse(file.read(192))
        overwrite(segment, found[1].offset, replace(header, **lie).encode())
        with pytest.raises(CorruptBlock, match=r"another object|in the index"):
            read_all(store, found[1:2])
        assert read_all(store, [found[0], found[2]]) == [wanted[0].payload, wanted[2].payload]


def test_another_whole_record_in_its_place(store):
    wanted = objects(1, 3)
    store.put(NAMESPACE, wanted)
    found = entries(store, wanted)
    segment = segment_files(store.path)[0]
    with open(segment, "rb", buffering=0) as file:
        file.seek(found[0].offset)
        record = file.read(4096)
    overwrite(segment, found[1].offset, record)
    with pytest.raises(CorruptBlock, match="another object"):
        read_all(store, found)
    assert read_all(store, [found[0], found[2]]) == [wanted[0].payload, wanted[2].payload]


def test_a_zstd_frame_that_lies_about_its_length(tmp_path):
    wanted = [replace(o, payload=b"abc" * 1000) for o in objects(1, 2)]
    with BlockStore.open(config(tmp_path, codec="zstd")) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
        segment = segment_files(tmp_path)[0]
        with open(segment, "rb", buffering=0) as file:
            file.seek(found[0].offset)
            record = file.read(4096)
        header = RecordHeader.parse(record)
        body = bytearray(record[192 : 192 + header.stored_bytes])
        body[5] ^= 1  # the frame's content size
        digest = payload_digest(b"", body)
        overwrite(segment, found[0].offset, replace(header, digest=digest).encode() + body)
        with pytest.raises(CorruptBlock, match="length"):
            read_all(store, found)
        assert read_all(store, found[1:]) == [b"abc" * 1000]


def test_a_truncated_segment(store):
    wanted = objects(1, 3, 10_000)
    store.put(NAMESPACE, wanted)
    found = entries(store, wanted)
    os.truncate(segment_files(store.path)[0], found[1].offset + 5000)
    stream = store.read(found)
    next(stream).release()
    with pytest.raises(CorruptBlock):
        next(stream)
    with pytest.raises(ObjectMissing):  # read along, and quarantined with the first
        read_all(store, found[2:])
    assert read_all(store, found[:1]) == [wanted[0].payload]


def test_a_vanished_segment_is_a_miss(tmp_path):
    wanted = objects(1, 3)
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
        segment_files(tmp_path)[0].unlink()
        for entry in reversed(found):
            with pytest.raises(ObjectMissing, match="gone"):
                read_all(store, [entry])
        assert entries(store, wanted) == []
        assert list((tmp_path / "quarantine").iterdir()) == []
    with BlockStore.open(config(tmp_path)) as store:
        assert entries(store, wanted) == []
        assert store.put(NAMESPACE, wanted).written == 3
        check_all(store, wanted)


def test_a_vanished_directory_forgets_nothing(tmp_path):
    """A filesystem that is gone may come back."""
    wanted = objects(1, 3)
    with BlockStore.open(config(tmp_path / "cache")) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
        (tmp_path / "cache" / "segments").rename(tmp_path / "away")
        with pytest.raises(StoreIOError):
            read_all(store, found)
        (tmp_path / "away").rename(tmp_path / "cache" / "segments")
        check_all(store, wanted)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("where", ["open_error", "read_error"])
def test_an_io_error_deletes_nothing(faulty, files, code, where):
    wanted = objects(1, 5)
    faulty.put(NAMESPACE, wanted)
    found = entries(faulty, wanted)
    setattr(files, where, code)
    with pytest.raises(StoreIOError):
        read_all(faulty, found)
    assert quarantined(faulty) == []
    setattr(files, where, None)
    check_all(faulty, wanted)


def test_a_bug_in_a_reader_thread_is_reported(faulty, files):
    wanted = objects(1, 5)
    faulty.put(NAMESPACE, wanted)
    files.bug = RuntimeError("unexpected")
    with pytest.raises(StoreIOError, match="unexpected"):
        read_all(faulty, entries(faulty, wanted))
    files.bug = None
    check_all(faulty, wanted)


@pytest.mark.parametrize("direct", [True, False])
def test_short_reads_are_completed(tmp_path, direct):
    files = FaultyFiles(direct=direct)
    wanted = objects(1, 30, 20_000)
    with BlockStore.open(config(tmp_path, direct_io=direct), files=files) as store:
        store.put(NAMESPACE, wanted)
        files.most_bytes = 4096
        check_all(store, wanted)


def test_neighbours_are_read_together(faulty, files):
    wanted = objects(1, 64, 60_000)
    faulty.put(NAMESPACE, wanted)
    files.reads.clear()
    check_all(faulty, wanted)
    assert len(files.reads) <= 6


def test_runs():
    with_gap = []
    at = 4096
    template = entries_of_size(100_000)
    for index in range(200):
        at += 50_000 // 4096 * 4096 if index % 10 == 0 else 0
        with_gap.append(template._replace(offset=at))
        at += template.record_bytes
    runs = plan_runs(with_gap)
    assert [e for run in runs for e in run.entries] == with_gap
    assert all(run.end - run.start <= 9 * MIB for run in runs)
    assert runs[0].end - runs[0].start <= 2 * MIB
    assert len(runs) < 20
    # Another segment, going back, or a gap that is too wide begin another run.
    for other in (
        template._replace(segment=2, offset=4096 + template.record_bytes),
        template._replace(offset=0),
        template._replace(offset=MIB),
    ):
        assert len(plan_runs([template._replace(offset=4096), other])) == 2
    huge = entries_of_size(100 * MIB)
    assert [len(run.entries) for run in plan_runs([huge, template, template])] == [1, 1, 1]
    assert plan_runs([]) == []


def entries_of_size(size):
    return ENTRY._replace(
        stored_bytes=size, raw_bytes=size, codec=0, tail_tokens=0, segment=1, offset=4096
    )


def test_payloads_that_are_kept_do_not_stop_the_stream(store):
    wanted = objects(1, 40, 500_000)
    store.put(NAMESPACE, wanted)
    kept = list(store.read(entries(store, wanted), memory_bytes=2 * MIB))
    assert [bytes(p.view) for p in kept] == [o.payload for o in wanted]
    for each in kept:
        each.release()
        each.release()


def test_memory_is_bounded_while_the_consumer_is_slow(faulty, files):
    wanted = objects(1, 40, 500_000)
    faulty.put(NAMESPACE, wanted)
    files.reads.clear()
    stream = faulty.read(entries(faulty, wanted), memory_bytes=6 * MIB)
    first = next(stream)
    time.sleep(0.2)
    assert sum(files.reads) <= 8 * MIB
    first.release()
    for each in stream:
        each.release()
    assert sum(files.reads) >= 20_000_000


def test_a_view_made_of_a_payload_outlives_it(store):
    wanted = objects(1, 20, 300_000)
    store.put(NAMESPACE, wanted)
    found = entries(store, wanted)
    kept = []
    for each in store.read(found):
        kept.append(each.view[:])
        each.release()
        with pytest.raises(ValueError):
            len(each.view)
    # Its memory is not used again.
    read_all(store, found)
    assert [bytes(view) for view in kept] == [o.payload for o in wanted]


def test_an_exported_view_outlives_its_payload(store):
    wanted = objects(1, 3, 300_000)
    store.put(NAMESPACE, wanted)
    found = entries(store, wanted)
    kept = []
    for each in store.read(found):
        kept.append(np.frombuffer(each.view, np.uint8))
        each.release()
    read_all(store, found)
    assert [array.tobytes() for array in kept] == [o.payload for o in wanted]


def test_closing_early_ends_the_threads(store):
    wanted = objects(1, 40, 500_000)
    store.put(NAMESPACE, wanted)
    before = threading.active_count()
    stream = store.read(entries(store, wanted))
    next(stream).release()
    stream.close()
    assert threading.active_count() == before
    # Never started: nothing to end.
    store.read(entries(store, wanted)).close()
    assert threading.active_count() == before
    check_all(store, wanted)


def test_stop_ends_a_stream_between_payloads_and_while_it_waits(faulty, files):
    wanted = objects(1, 10, 100_000)
    faulty.put(NAMESPACE, wanted)
    found = entries(faulty, wanted)
    seen = []
    for each in faulty.read(found, stop=lambda: len(seen) == 3):
        seen.append(bytes(each.view))
        each.release()
    assert seen == [o.payload for o in wanted[:3]]
    files.gate = threading.Event()
    asked = []

    def stop() -> bool:
        asked.append(1)
        if len(asked) == 3:
            files.gate.set()
        return len(asked) >= 3

    assert list(faulty.read(found, stop=stop)) == []
    files.gate = None
    check_all(faulty, wanted)


@pytest.mark.skipif(sys.platform != "linux", reason="threads choose processors only on Linux")
@pytest.mark.parametrize(
    ("size", "count", "verifiers"), [(MIB, 12, 2), (MIB, 1, 1), (64 * KIB, 12, 1)]
)
def test_threads_that_verify_long_records_have_a_processor_each(
    tmp_path, monkeypatch, size, count, verifiers
):
    free, used, verified = sorted(os.sched_getaffinity(0)), {}, ReadAhead._verified
    all_there = threading.Barrier(verifiers)
    monkeypatch.setattr(processors, "_MOST", 1 << 20)

    def watched(self, *args):
        name = threading.current_thread().name
        if name not in used:
            used[name] = os.sched_getaffinity(0)
            all_there.wait(10)
        return verified(self, *args)

    monkeypatch.setattr(ReadAhead, "_verified", watched)
    with BlockStore.open(config(tmp_path / "cache")) as store:
        store.put(NAMESPACE, items := objects(1, count, size))
        assert read_all(store, entries(store, items)) == [item.payload for item in items]
    shares = min(verifiers, len(free))
    assert [set(free[n % shares :: shares]) for n in range(verifiers)] == [
        used[f"spillcache-verify-{n}"] for n in range(verifiers)
    ]
    assert sorted(os.sched_getaffinity(0)) == free


def test_reading_nothing(store):
    assert list(store.read([])) == []
