"""The codec that pays is found by measuring, decided once, and remembered."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from store_tools import NAMESPACE, OTHER, check_all, config, entries, objects, payload

from spillcache.config import KIB, MIB
from spillcache.state import Part
from spillcache.store import codec as codecs
from spillcache.store.auto_codec import SAMPLE_BYTES, AutoCodec, note_key
from spillcache.store.block_store import BlockStore
from spillcache.store.buffers import BufferPool
from spillcache.store.codec import CodecId
from spillcache.store.disk_speed import read_speed
from spillcache.store.files import Files

NS = NAMESPACE.id
SLOW, FAST = 1e6, 1e13


def halves(seed, count=256 * KIB):
    return np.random.default_rng(seed).standard_normal(count).astype("<f2").tobytes()


class Notes(dict):
    def auto(self, speed=SLOW):
        self.asked = 0

        def read_speed():
            self.asked += 1
            return speed

        return AutoCodec(self.get, self.__setitem__, read_speed)


@pytest.fixture
def notes():
    return Notes()


def choices(auto, payloads, part=Part.KV, namespace_id=NS):
    return [auto.choose(namespace_id, part, each) for each in payloads]


def test_halves_are_stored_as_planes_where_the_disk_is_slower_than_decoding(notes):
    found = choices(notes.auto(), [halves(n) for n in range(20)])
    first = found.index("byteplane")
    assert found == ["raw"] * first + ["byteplane"] * (20 - first)
    assert first == SAMPLE_BYTES // (512 * KIB) - 1
    note = json.loads(notes[note_key(NS, Part.KV)])
    assert note["codec"] == "byteplane"
    assert note["byteplane"]["saving"] > 0.1 > note["zstd"]["saving"]
    assert note["byteplane"]["decode_mb_s"] > 1
    assert (note["read_mb_s"], note["sample_bytes"]) == (1, SAMPLE_BYTES)


def test_nothing_is_compressed_where_decoding_does_not_keep_up(notes):
    assert set(choices(notes.auto(FAST), [halves(n) for n in range(20)])) == {"raw"}
    assert json.loads(notes[note_key(NS, Part.KV)])["codec"] == "raw"


def test_nothing_is_compressed_where_it_saves_too_little(notes):
    assert set(choices(notes.auto(), [payload(n, MIB) for n in range(9)])) == {"raw"}


def test_text_is_for_zstd(notes):
    words = [b"%d and %d, " % (n, n * n) for n in range(200_000)]
    found = choices(notes.auto(), [b"".join(words)[:MIB]] * 9)
    assert found[-1] == "zstd"


def test_each_namespace_and_part_has_its_own(notes):
    auto = notes.auto()
    choices(auto, [halves(n) for n in range(9)])
    assert choices(auto, [payload(n, MIB) for n in range(6)], Part.WINDOW) == ["raw"] * 6
    assert auto.choose(OTHER.id, Part.KV, halves(1)) == "raw"
    assert auto.choose(NS, Part.KV, b"") == "byteplane"
    assert sorted(notes) == sorted([note_key(NS, Part.KV), note_key(NS, Part.WINDOW), "disk-read"])
    assert notes.asked == 1


def test_a_decision_is_remembered_and_the_disk_is_measured_once(notes):
    choices(notes.auto(), [halves(n) for n in range(9)])
    auto = notes.auto(FAST)
    assert auto.choose(NS, Part.KV, b"x") == "byteplane"
    assert set(choices(auto, [halves(n) for n in range(9)], Part.WINDOW)) == {"raw", "byteplane"}
    assert notes.asked == 0


@pytest.mark.parametrize("note", [b"", b"{}", b"[1]", b'{"codec": "lz4"}', b"\xff"])
def test_a_damaged_note_is_made_anew(notes, note):
    notes[note_key(NS, Part.KV)] = note
    notes["disk-read"] = b"quick"
    assert choices(notes.auto(), [halves(n) for n in range(9)])[-1] == "byteplane"
    assert json.loads(notes[note_key(NS, Part.KV)])["codec"] == "byteplane"
    assert float(notes["disk-read"]) == SLOW


def test_without_a_measurement_nothing_is_decided(notes):
    auto = notes.auto(None)
    assert set(choices(auto, [halves(n) for n in range(20)])) == {"raw"}
    assert not notes
    # The sample was taken once.
    assert auto._samples[NS, Part.KV].raw_bytes == SAMPLE_BYTES


def test_in_a_store(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("spillcache.store.opened.read_speed", lambda *_: SLOW)
    caplog.set_level(logging.INFO, "spillcache.store")
    wanted = [replace(o, payload=halves(i)) for i, o in enumerate(objects(1, 24))]
    with BlockStore.open(config(tmp_path, codec="auto")) as store:
        store.put(NAMESPACE, wanted[:12])
        store.put(NAMESPACE, wanted[12:])
        used = [entry.codec for entry in entries(store, wanted)]
        assert used == [CodecId.RAW] * 7 + [CodecId.PLANES] * 17
        check_all(store, wanted)
        assert store.describe()["codec"] == "auto"
        assert json.loads(store.note(note_key(NS, Part.KV)))["codec"] == "byteplane"
    assert [r.message for r in caplog.records if "codec chosen" in r.message]
    more = [replace(o, payload=halves(i)) for i, o in enumerate(objects(2, 2))]
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, more)
        assert {entry.codec for entry in entries(store, more)} == {CodecId.PLANES}


def test_the_disk_is_measured_on_the_store_s_own_bytes(tmp_path):
    files, pool = Files(), BufferPool(16 * MIB)
    assert read_speed(tmp_path, files, pool) is None
    (tmp_path / "1.seg").write_bytes(b"x" * MIB)
    assert read_speed(tmp_path, files, pool) is None
    (tmp_path / "2.seg").write_bytes(b"x" * 40 * MIB)
    assert 1e7 < read_speed(tmp_path, files, pool) < 1e12
    assert read_speed(tmp_path / "missing", files, pool) is None
    assert pool.kept_bytes == 4 * MIB


def test_a_sample_is_decoded_as_it_was_stored():
    for codec in ("raw", "zstd", "byteplane"):
        used, stored = codecs.encode(codec, halves(1, 1000))
        target = memoryview(bytearray(2000))
        codecs.decode_into(used, stored, target)
        assert target == halves(1, 1000)
