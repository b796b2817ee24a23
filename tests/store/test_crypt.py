"""Encrypted payloads: what lies on disk, what another key sees, and what damage does."""

import builtins
import logging
import shutil
from dataclasses import replace

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
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
from test_store_format import RECORD, RECORD_CHECK_HEX, RECORD_HEX

from spillcache.errors import ConfigError, CorruptBlock, ObjectMissing
from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.block_store import BlockStore
from spillcache.store.cipher import Cipher, CipherError, read_key
from spillcache.store.format import FormatError, RecordHeader, bound_bytes, payload_digest
from spillcache.store.record import verify

KEY = bytes(range(32))
KEY_ID_HEX = "5da3eedb3b5ba7e3"
CODECS = ["raw", "zstd", "byteplane"]


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


@pytest.fixture
def other_key(tmp_path):
    path = tmp_path / "other"
    path.write_text("ab" * 32 + "\n")
    path.chmod(0o600)
    return path


def words(seed, blocks=5):
    return [
        replace(o, payload=b"secret words %d, " % seed * (300 + i))
        for i, o in enumerate(objects(seed, blocks))
    ]


def header_at(store, entry):
    with open(segment_files(store.path)[0], "rb", buffering=0) as file:
        file.seek(entry.offset)
        return file.read(192), file.read(entry.stored_bytes)


def test_the_key_s_id_and_the_header_are_pinned():
    assert Cipher(KEY).key_id.hex() == KEY_ID_HEX
    derived = blake3(KEY, derive_key_context="spillcache v1 key id")
    assert derived.digest(length=8).hex() == KEY_ID_HEX
    header = replace(RECORD, key_id=bytes.fromhex(KEY_ID_HEX))
    data = header.encode()
    plain = bytes.fromhex(RECORD_HEX + RECORD_CHECK_HEX)
    assert data[:152] == plain[:152]
    assert data[152:176].hex() == KEY_ID_HEX + "00" * 16
    assert data[176:] == blake3(data[:176]).digest(length=16)
    assert RecordHeader.parse(data) == header
    assert header.is_encrypted
    assert not RECORD.is_encrypted
    assert bound_bytes(data) == data[:120] + bytes.fromhex(KEY_ID_HEX)
    # A tail's tokens lie within what is encrypted.
    tail = replace(header, tail_tokens=5)
    assert (tail.payload_offset, header.payload_offset) == (192, 192)
    entry = ENTRY._replace(encrypted=1)
    assert rows.pack_entry(entry)[91] == 1
    assert rows.pack_entry(entry)[:91] == rows.pack_entry(ENTRY)[:91]
    assert (entry.payload_offset, ENTRY.payload_offset) == (192, 212)


@pytest.mark.parametrize(
    ("raw", "stored", "tail_tokens"), [(100, 100, 0), (100, 129, 0), (100, 128, 1)]
)
def test_the_lengths_of_an_encrypted_record_must_fit(raw, stored, tail_tokens):
    header = replace(
        RECORD,
        codec=0,
        key_id=b"12345678",
        raw_bytes=raw,
        stored_bytes=stored,
        tail_tokens=tail_tokens,
    )
    with pytest.raises(FormatError, match="two lengths"):
        header.encode()
    replace(header, stored_bytes=raw + 28 + 4 * tail_tokens).encode()


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_of_a_payload_is_on_disk_and_all_comes_back(tmp_path, key_file, codec):
    wanted = words(1)
    settings = config(tmp_path / "cache", codec=codec, key_file=key_file)
    with BlockStore.open(settings) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
        assert [entry.encrypted for entry in found] == [1] * 5
        check_all(store, wanted)
        assert store.describe()["key_id"] == KEY_ID_HEX
        head, stored = header_at(store, found[2])
        plain = AESGCM(KEY).decrypt(stored[:12], stored[12:], head[:120] + head[152:160])
        assert (plain == wanted[2].payload) == (codec == "raw")
        nonces = {header_at(store, entry)[1][:12] for entry in found}
        assert len(nonces) == 5
    on_disk = b"".join(path.read_bytes() for path in segment_files(settings.path))
    assert b"secret" not in on_disk
    assert NAMESPACE.encode() in on_disk
    with BlockStore.open(replace(settings, codec="raw")) as store:
        check_all(store, wanted)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("key", ["other_key", None])
def test_another_key_or_none_is_a_miss(tmp_path, key_file, request, caplog, codec, key):
    wanted, plain = words(1), words(2)
    path = tmp_path / "cache"
    with BlockStore.open(config(path, codec=codec, key_file=key_file)) as store:
        store.put(NAMESPACE, wanted)
    wrong = None if key is None else request.getfixturevalue(key)
    with BlockStore.open(config(path, codec=codec, key_file=wrong)) as store:
        for entry in entries(store, wanted):
            with pytest.raises(ObjectMissing, match=KEY_ID_HEX):
                read_all(store, [entry])
        warned = [r.message for r in caplog.records if KEY_ID_HEX in r.message]
        assert len(warned) == 1
        assert list((path / "quarantine").iterdir()) == []
        assert store.verify(fix=True).damaged == 0
        store.put(NAMESPACE, plain)
        check_all(store, plain)
        assert len(entries(store, wanted)) == 5
    with BlockStore.open(config(path, key_file=key_file)) as store:
        check_all(store, wanted)
        if key is None:
            check_all(store, plain)


def test_damage_is_damage_without_the_key_too(tmp_path, key_file):
    wanted = words(1)
    path = tmp_path / "cache"
    with BlockStore.open(config(path, key_file=key_file)) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
    for at, key in ((0, key_file), (1, None)):
        with BlockStore.open(config(path, key_file=key)) as store:
            flip(segment_files(path)[0], found[at].offset + 192 + 500)
            with pytest.raises(CorruptBlock, match="digest"):
                read_all(store, [found[at]])
    with BlockStore.open(config(path, key_file=key_file)) as store:
        assert len(entries(store, wanted)) == 3


@pytest.mark.parametrize("what", ["written_ns", "rank", "payload", "short"])
def test_a_forger_without_the_key_is_found_out(tmp_path, key_file, what):
    """All digests are right, but they are no secret."""
    wanted = words(1, 3)
    with BlockStore.open(config(tmp_path / "cache", key_file=key_file)) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
        head, stored = header_at(store, found[1])
        header = RecordHeader.parse(head)
        if what == "payload":
            stored = stored[:100] + bytes((stored[100] ^ 1,)) + stored[101:]
            header = replace(header, digest=payload_digest(b"", stored))
        elif what == "short":
            with pytest.raises(CipherError, match="shorter"):
                Cipher(KEY).decrypt(memoryview(b"x" * 27), b"")
            return
        else:
            header = replace(header, **{what: getattr(header, what) + 1})
        overwrite(segment_files(store.path)[0], found[1].offset, header.encode() + stored)
        with pytest.raises(CorruptBlock, match="not what was written"):
            read_all(store, [found[1]])
        assert read_all(store, [found[0]]) == [wanted[0].payload]


@pytest.mark.parametrize("encrypted", [0, 1])
def test_index_and_record_must_agree_on_it(tmp_path, key_file, encrypted):
    key = key_file if not encrypted else None
    with BlockStore.open(config(tmp_path / "cache", key_file=key, codec="raw")) as store:
        wanted = words(1, 1)
        store.put(NAMESPACE, wanted)
        (entry,) = entries(store, wanted)
        head, stored = header_at(store, entry)
        assert verify(memoryview(head + stored), entry) == stored
        with pytest.raises(FormatError, match="encrypted"):
            verify(memoryview(head + stored), entry._replace(encrypted=encrypted))


def test_a_rebuilt_index_knows_what_is_encrypted(tmp_path, key_file):
    wanted, plain = words(1), words(2)
    path = tmp_path / "cache"
    with BlockStore.open(config(path, key_file=key_file)) as store:
        store.put(NAMESPACE, wanted)
    with BlockStore.open(config(path)) as store:
        store.put(NAMESPACE, plain)
    for each in (path / "index").iterdir():
        each.unlink()
    with BlockStore.open(config(path, key_file=key_file)) as store:
        check_all(store, wanted + plain)
        assert {e.encrypted for e in entries(store, wanted)} == {1}
        assert {e.encrypted for e in entries(store, plain)} == {0}


def test_parts_and_plain_blocks_are_read_in_one_stream(tmp_path, key_file):
    path = tmp_path / "cache"
    locked = objects(1, 6, 5000, (Part.KV, Part.WINDOW))
    with BlockStore.open(config(path)) as store:
        store.put(NAMESPACE, locked[:6])
    with BlockStore.open(config(path, key_file=key_file)) as store:
        store.put(NAMESPACE, locked)
        check_all(store, locked)


@pytest.mark.parametrize("text", [KEY, KEY.hex(), f" {KEY.hex().upper()}\n"])
def test_a_key_is_bytes_or_digits(tmp_path, text):
    path = tmp_path / "key"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert read_key(path).key_id.hex() == KEY_ID_HEX


@pytest.mark.parametrize("data", [b"", KEY[:31], KEY + b"\n", KEY.hex().encode()[:-1], b"z" * 64])
def test_what_is_no_key_is_refused(tmp_path, data):
    path = tmp_path / "key"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"32 bytes or 64 hexadecimal digits.*urandom"):
        read_key(path)


def test_a_missing_key_is_told_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        BlockStore.open(config(tmp_path / "cache", key_file=tmp_path / "missing"))
    with BlockStore.open(config(tmp_path / "cache")) as store:
        assert store.usage().objects == 0


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o400, False), (0o640, True)])
def test_a_key_that_others_can_read_gets_a_warning(key_file, caplog, mode, warns):
    key_file.chmod(mode)
    caplog.set_level(logging.WARNING)
    read_key(key_file)
    assert ("chmod 600" in caplog.text) == warns


def test_without_the_package_it_says_what_to_install(key_file, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"spillcache\[crypto\]"):
        read_key(key_file)


def test_a_copy_of_the_directory_needs_the_key(tmp_path, key_file, other_key):
    wanted = words(1)
    with BlockStore.open(config(tmp_path / "cache", key_file=key_file)) as store:
        store.put(NAMESPACE, wanted)
    shutil.copytree(tmp_path / "cache", tmp_path / "stolen")
    with (
        BlockStore.open(config(tmp_path / "stolen", key_file=other_key)) as store,
        pytest.raises(ObjectMissing),
    ):
        read_all(store, entries(store, wanted))
