from pathlib import Path

import pytest
from store_tools import NAMESPACE, config, entries, flip, objects, segment_files
from test_rows import ENTRY

from spillcache.config import GIB, MIB
from spillcache.errors import CorruptBlock
from spillcache.store.block_store import BlockStore
from spillcache.store.quarantine import MAX_RECORDS, Quarantine, quarantine_bytes


def test_bounded_in_number(tmp_path):
    quarantine = Quarantine(tmp_path, MIB)
    for n in range(MAX_RECORDS + 5):
        quarantine.keep(ENTRY._replace(offset=n), memoryview(b"record %d" % n))
    records = quarantine.records()
    assert len(records) == MAX_RECORDS
    assert records[0].read_bytes() == b"record 5"
    assert quarantine.allocated_bytes() == MAX_RECORDS * 4096


def test_bounded_in_bytes(tmp_path):
    quarantine = Quarantine(tmp_path, 100_000)
    for n in range(8):
        quarantine.keep(ENTRY._replace(offset=n), memoryview(bytes((n,)) * 30_000))
    assert [p.read_bytes()[0] for p in quarantine.records()] == [5, 6, 7]
    quarantine.keep(ENTRY, memoryview(bytes(100_001)))
    assert [p for p in quarantine.records() if p.stat().st_size > 30_000] == []


def test_what_can_not_be_kept_is_no_harm(tmp_path):
    quarantine = Quarantine(tmp_path / "missing", MIB)
    assert quarantine.keep(ENTRY, memoryview(b"x")) == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("not ours")
    assert Quarantine(other, MIB).records() == []


def test_its_limit_scales_with_the_quota():
    assert quarantine_bytes(64 * MIB) == 2 * MIB
    assert quarantine_bytes(100 * GIB) == 64 * MIB


def test_it_counts_against_the_quota(tmp_path):
    wanted = objects(1, 4, 100_000)
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
        flip(segment_files(tmp_path)[0], found[3].offset + 1000)
        with pytest.raises(CorruptBlock):
            list(store.read(found[3:]))
        with store._opened.index.read() as catalog:
            kept = catalog.meta.quarantined
    assert kept == sum(p.stat().st_blocks * 512 for p in Path(tmp_path, "quarantine").iterdir())
    assert kept >= 100_000
