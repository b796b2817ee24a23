import os
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from spillcache.namespace import (
    MAGIC,
    FieldValue,
    Namespace,
    file_digest,
    file_identity,
    remembered_digest,
)

FIELDS: dict[str, FieldValue] = {
    "rope_base": 10000.0,
    "engine": "llama.cpp",
    "model": bytes(range(4)),
    "block_tokens": 64,
    "flash_attention": True,
}
# magic, count, then per field in order of names: length, name, kind, length, value.
GOLDEN = bytes.fromhex(
    "7370696c6c6361636865206e616d6573706163652076310a"
    "05000000"
    "0c000000 626c6f636b5f746f6b656e73 69 08000000 4000000000000000"
    "06000000 656e67696e65 73 09000000 6c6c616d612e637070"
    "0f000000 666c6173685f617474656e74696f6e 62 01000000 01"
    "05000000 6d6f64656c 78 04000000 00010203"
    "09000000 726f70655f62617365 66 08000000 000000000088c340"
)
GOLDEN_DIGEST = "bcaa4e957dfefb0498fb42f23e3b65c28c8eca7de072f803e51b4eedd0683ac2"

values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)
namespaces = st.dictionaries(st.text(max_size=10), values, max_size=6).map(Namespace.of)


def test_encoding_is_golden() -> None:
    namespace = Namespace.of(FIELDS)
    assert GOLDEN.startswith(MAGIC)
    assert namespace.encode() == GOLDEN
    assert namespace.digest.hex() == GOLDEN_DIGEST == blake3(GOLDEN).hexdigest()
    assert namespace.id.hex() == GOLDEN_DIGEST[:16]
    assert Namespace.decode(GOLDEN) == namespace


def test_order_does_not_matter_but_every_value_and_type_does() -> None:
    base = Namespace.of(FIELDS)
    assert Namespace.of(dict(reversed(FIELDS.items()))) == base
    variants = [
        {**FIELDS, "block_tokens": 32},
        {**FIELDS, "block_tokens": 64.0},
        {**FIELDS, "block_tokens": "64"},
        {**FIELDS, "flash_attention": 1},
        {**FIELDS, "tag": ""},
        {name: value for name, value in FIELDS.items() if name != "model"},
    ]
    digests = {Namespace.of(fields).digest for fields in variants} | {base.digest}
    assert len(digests) == len(variants) + 1


@given(namespaces)
def test_decode_returns_what_encode_wrote(namespace: Namespace) -> None:
    again = Namespace.decode(namespace.encode())
    assert again.encode() == namespace.encode()
    assert [type(value) for _, value in again.fields] == [
        type(value) for _, value in namespace.fields
    ]
    assert again.digest == namespace.digest


@given(namespaces, st.data())
def test_a_mutation_is_refused_or_is_another_namespace(
    namespace: Namespace, data: st.DataObject
) -> None:
    raw = bytearray(namespace.encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        other = Namespace.decode(bytes(raw))
    except ValueError:
        return
    assert other.encode() == bytes(raw)
    assert other.digest != namespace.digest


@given(namespaces, st.data())
def test_a_truncated_or_longer_encoding_is_refused(
    namespace: Namespace, data: st.DataObject
) -> None:
    raw = namespace.encode()
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    for bad in (cut, raw + b"\0", raw + raw):
        with pytest.raises(ValueError, match="not a namespace"):
            Namespace.decode(bad)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"spillcache namespace v1", b"spillcache namespace v2"),
        (bytes.fromhex("6d6f64656c78"), bytes.fromhex("6d6f64656c7a")),  # an unknown kind
        (bytes.fromhex("6201000000 01"), bytes.fromhex("6201000000 02")),  # neither true nor false
        (b"llama.cpp", b"llama.cp\xff"),  # not UTF-8
    ],
)
def test_bytes_that_mean_nothing_are_refused(old: bytes, new: bytes) -> None:
    assert GOLDEN.count(old) == 1
    with pytest.raises(ValueError, match="namespace"):
        Namespace.decode(GOLDEN.replace(old, new))


def test_file_digest_is_of_the_content(tmp_path: Path) -> None:
    content = os.urandom(8 << 20) + b"a second chunk"
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert file_digest(path) == blake3(content).digest()
    (tmp_path / "empty").touch()
    assert file_digest(tmp_path / "empty") == blake3().digest()
    with pytest.raises(FileNotFoundError):
        file_digest(tmp_path / "missing")


def test_hashing_stops_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes((8 << 20) + 1))
    asked = []

    def stop() -> bool:
        asked.append(len(asked))
        return len(asked) == 2

    notes: dict[str, bytes] = {}
    with pytest.raises(InterruptedError):
        remembered_digest(path, notes.get, notes.__setitem__, stop)
    assert asked == [0, 1]
    assert not notes


def test_a_digest_is_remembered_until_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"first")
    notes: dict[str, bytes] = {}
    first = remembered_digest(path, notes.get, notes.__setitem__)
    assert first == blake3(b"first").digest()
    assert notes == {f"digest:{file_identity(path)}": first}

    notes[f"digest:{file_identity(path)}"] = bytes(32)  # a hit is not computed again
    assert remembered_digest(path, notes.get, notes.__setitem__) == bytes(32)

    new = tmp_path / "new"
    new.write_bytes(b"other")
    new.replace(path)
    assert remembered_digest(path, notes.get, notes.__setitem__) == blake3(b"other").digest()


def test_a_note_of_another_length_is_not_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"first")
    notes = {f"digest:{file_identity(path)}": b"short"}
    assert remembered_digest(path, notes.get, notes.__setitem__) == blake3(b"first").digest()


def test_a_file_that_changes_while_it_is_read_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"first")
    notes: dict[str, bytes] = {}
    changes = [b"second one"]

    def stop() -> bool:
        if changes:
            path.write_bytes(changes.pop())
        return False

    assert remembered_digest(path, notes.get, notes.__setitem__, stop) == file_digest(path)
    assert list(notes) == [f"digest:{file_identity(path)}"]


def test_a_file_that_never_rests_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x")
    replaced = []

    def stop() -> bool:
        new = tmp_path / "new"
        new.write_bytes(b"y")
        new.replace(path)
        replaced.append(path)
        return False

    notes: dict[str, bytes] = {}
    with pytest.raises(OSError, match="changes while it is read"):
        remembered_digest(path, notes.get, notes.__setitem__, stop)
    assert len(replaced) == 3
    assert not notes


def test_fields_out_of_order_or_twice_are_refused() -> None:
    swapped = Namespace((("b", 1), ("a", 2))).encode()
    twice = Namespace((("a", 1), ("a", 1))).encode()
    for data in (swapped, twice):
        with pytest.raises(ValueError, match="canonical"):
            Namespace.decode(data)
