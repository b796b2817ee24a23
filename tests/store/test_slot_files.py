"""Slot files on a real filesystem: what is written comes back, and nothing else is believed."""

import errno
import os
import random
import shutil
import stat
import threading
from collections import deque
from pathlib import Path

import pytest
from slot_tools import (
    PART_BYTES,
    SIZE,
    Fails,
    State,
    conversation,
    front_of,
    load,
    names,
    plain,
    read,
    read_plain,
    state_of,
    write,
    writer_of,
)

from spillcache.chain import Chain
from spillcache.errors import (
    ConfigError,
    SlotFileInvalid,
    SlotFileIOError,
    SlotFileMissing,
    SlotFileNoRoom,
)
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store import slot_blocks, slot_format, slot_reader, slot_stretch, slot_writer
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.cipher import Cipher
from spillcache.store.files import Files
from spillcache.store.slot_folder import open_slot_folder
from spillcache.store.slot_format import PRIVATE, RUN_BYTES_MAX, SALTED
from spillcache.store.slot_reader import SlotFileReader
from spillcache.store.slot_state import Run, SlotState
from spillcache.store.slot_writer import Piece
from spillcache.store.steps import Steps

PLACES = 200


@pytest.mark.parametrize("tokens", [0, 1, 16, 33, 160])
@pytest.mark.parametrize("direct", [True, False])
def test_what_was_saved_comes_back(tmp_path: Path, tokens: int, direct: bool) -> None:
    chain = conversation(tokens)
    state = state_of(chain)
    size = write(tmp_path / "a", chain, state, files=Files(direct=direct))
    assert size == (tmp_path / "a").stat().st_size
    assert read_plain(tmp_path / "a", files=Files(direct=direct)) == state
    found = read(tmp_path / "a", files=Files(direct=direct))
    assert (found.tokens, found.private, found.file_bytes) == (tokens, False, size)
    assert found.chain.tokens.tolist() == chain.tokens.tolist()
    assert (found.chain.root, found.chain.hashes) == (chain.root, chain.hashes)
    assert names(tmp_path) == ["a"]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "a", conversation(16), state_of(conversation(16)))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_large_records_are_written_and_read_in_small_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Watched(Files):
        def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
            sizes.append(len(buffer))
            return super().pwrite(fd, buffer, offset)

        def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
            sizes.append(len(buffer))
            return super().pread(fd, buffer, offset)

    monkeypatch.setattr(slot_writer, "CALL_BYTES", 8192)
    monkeypatch.setattr(slot_stretch, "READ_BYTES", 8192)
    chain = conversation(64)
    state = [{Part.KV: os.urandom(30_000)} for _ in range(4)]
    write(tmp_path / "a", chain, state, files=Watched())
    assert max(sizes) == 8192
    sizes.clear()
    with SlotFileReader(Watched(), tmp_path / "a", Steps) as file:
        sizes.clear()
        memory = AlignedBuffer(file.memory_bytes({Part.KV: 30_000}))
        assert plain(file.state({Part.KV: 30_000}, memory)) == state
    assert max(sizes) == 8192


# What is not believed.


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    chain = conversation(70)
    write(tmp_path / "whole", chain, state_of(chain))
    return tmp_path / "whole"


def test_a_flipped_bit_anywhere_is_noticed(whole: Path, tmp_path: Path) -> None:
    data, places = whole.read_bytes(), random.Random(1)
    for _ in range(PLACES):
        changed = bytearray(data)
        changed[places.randrange(len(data))] ^= 1 << places.randrange(8)
        (tmp_path / "a").write_bytes(changed)
        with pytest.raises(SlotFileInvalid, match="the slot is as it was"):
            read(tmp_path / "a")


def test_a_file_cut_anywhere_is_noticed(whole: Path, tmp_path: Path) -> None:
    data, places = whole.read_bytes(), random.Random(2)
    cuts = [0, 1, 4095, 4096, len(data) - 1, len(data) - 4096]
    for cut in [*cuts, *(places.randrange(len(data)) for _ in range(PLACES))]:
        (tmp_path / "a").write_bytes(data[:cut])
        with pytest.raises(SlotFileInvalid):
            read(tmp_path / "a")
    (tmp_path / "a").write_bytes(data + bytes(4096))
    with pytest.raises(SlotFileInvalid):
        read(tmp_path / "a")


def test_records_of_two_files_do_not_mix(tmp_path: Path) -> None:
    """Each is whole, and of the same block; but they were not written together."""
    chain = conversation(32)
    state = state_of(chain)
    write(tmp_path / "a", chain, state)
    write(tmp_path / "b", chain, [{Part.KV: bytes(5000)}, *state[1:]])
    a, b = (bytearray((tmp_path / name).read_bytes()) for name in "ab")
    a[3 * 4096 : 5 * 4096] = b[3 * 4096 : 5 * 4096]
    (tmp_path / "a").write_bytes(a)
    with pytest.raises(SlotFileInvalid, match="written together"):
        read(tmp_path / "a")


class Forger(slot_writer.SlotFileWriter):
    """Writes what the format allows and the conversation does not."""

    def forge(self, piece: Piece, **fields: object) -> None:
        header = piece.records[-1].header
        for name, value in fields.items():
            setattr(header, name, value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"block": bytes(32)}, "another block"),
        ({"parent": bytes(32)}, "another block"),
        ({"block_index": 5}, "does not belong"),
        ({"part": 2}, "does not belong"),
        ({"part": 9}, "does not belong"),
        ({"codec": 1}, "encoded"),
        ({"token_count": 3}, "another block"),
        ({"record_class": 2}, "another block"),
    ],
)
def test_a_record_that_is_another_blocks_is_refused(
    tmp_path: Path, fields: dict[str, object], problem: str
) -> None:
    chain = conversation(16)
    forger = Forger(Files(), tmp_path / "a", chain, 0)
    forger.begin()
    forger.write(front_of(forger))
    piece = Piece(1)
    forger.add(piece, 0, Part.KV, bytes(5000))
    forger.forge(piece, **fields)
    forger.seal(piece)
    forger.write(piece)
    forger.flush()
    forger.publish()
    with pytest.raises(SlotFileInvalid, match=problem):
        read(tmp_path / "a")


def test_a_part_may_not_come_twice_or_be_too_large(tmp_path: Path) -> None:
    chain = conversation(16)
    for count, size in ((2, 10), (1, 5001)):
        writer = writer_of(tmp_path / "a", chain)
        writer.begin()
        writer.write(front_of(writer))
        piece = Piece(1)
        for _ in range(count):
            writer.add(piece, 0, Part.KV, bytes(size))
        writer.seal(piece)
        writer.write(piece)
        writer.flush()
        writer.publish()
        with pytest.raises(SlotFileInvalid, match=r"belong|larger"):
            read(tmp_path / "a")


def test_a_root_that_is_not_the_namespaces_must_be_declared(tmp_path: Path) -> None:
    chain = conversation(16, salt=b"secret")
    write(tmp_path / "a", chain, state_of(chain))
    with pytest.raises(SlotFileInvalid, match="root"):
        read(tmp_path / "a")
    write(tmp_path / "a", chain, state_of(chain), flags=SALTED | PRIVATE)
    found = read(tmp_path / "a")
    assert (found.chain.root, found.private) == (chain.root, True)
    assert b"secret" not in (tmp_path / "a").read_bytes()


def test_the_first_record_must_be_the_namespaces_and_the_second_the_tokens(whole: Path) -> None:
    headless = writer_of(whole, conversation(16))
    headless.begin()
    piece = Piece(1)
    for _ in range(3):
        headless.add(piece, 0, Part.KV, bytes(5000))
    headless.seal(piece)
    headless.write(piece)
    headless.flush()
    headless.publish()
    with pytest.raises(SlotFileInvalid, match="the namespace is missing"):
        read(whole)


# More than memory is given for.


def streamed(path: Path, monkeypatch: pytest.MonkeyPatch) -> SlotFileReader:
    """Of a file that is larger than the memory that it needs."""
    monkeypatch.setattr(slot_stretch, "READ_BYTES", 16384)
    monkeypatch.setattr(slot_blocks, "RUN_BYTES", 32768)
    monkeypatch.setattr(slot_reader, "RUN_BYTES_MAX", 5000)
    return SlotFileReader(Files(), path, Steps, Cipher(b"k" * 32))


def state_in(file: SlotFileReader) -> SlotState:
    return file.state(PART_BYTES, AlignedBuffer(file.memory_bytes(PART_BYTES)))


@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_it_may_be_read_as_often_as_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes | None
) -> None:
    chain = conversation(SIZE * 500 + 3)
    state = state_of(chain)
    state[10] = state[11] = {}
    cipher = Cipher(key) if key else None
    write(tmp_path / "a", chain, state, cipher=cipher)
    with streamed(tmp_path / "a", monkeypatch) as file:
        assert file.memory_bytes(PART_BYTES) < 1 << 20 < file.header.file_bytes // 2
        found = state_in(file)
        for _ in range(3):
            assert plain(found) == state
        firsts = [run[0].block for run in found.runs()]
    assert len(firsts) > 50
    assert (firsts[0], sorted(firsts)) == (0, firsts)


def test_a_run_lasts_until_so_many_more_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = conversation(SIZE * 500)
    state = state_of(chain)
    write(tmp_path / "a", chain, state)
    with streamed(tmp_path / "a", monkeypatch) as file:
        held: deque[Run] = deque(maxlen=slot_blocks.HELD_RUNS)
        for run in state_in(file).runs():
            held.append(run)
            for record in (each for some in held for each in some):
                assert record.payload == state[record.block][record.part]


def read_into(seen: bytearray, reader: SlotFileReader, state: State) -> None:
    with reader as file:
        for run in state_in(file).runs():
            for record in run:
                assert record.payload == state[record.block][record.part]
                seen += record.payload


def test_what_is_handed_out_is_whole_before_the_rest_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped bit ends the runs where it is; those before it are what they should be."""
    chain, places = conversation(SIZE * 300), random.Random(5)
    state = state_of(chain)
    write(tmp_path / "whole", chain, state)
    data = (tmp_path / "whole").read_bytes()
    assert len(data) > 1 << 21
    for number in range(40):
        changed = bytearray(data)
        place = len(data) - 1 - number if number < 4 else places.randrange(len(data))
        changed[place] ^= 1 << places.randrange(8)
        (tmp_path / "a").write_bytes(changed)
        seen = bytearray()
        with pytest.raises(SlotFileInvalid, match="the slot is as it was"):
            read_into(seen, streamed(tmp_path / "a", monkeypatch), state)
        assert len(seen) <= place


def test_a_file_that_is_cut_or_longer_hands_out_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, places = conversation(SIZE * 300), random.Random(6)
    write(tmp_path / "whole", chain, state_of(chain))
    data = (tmp_path / "whole").read_bytes()
    for size in (*(places.randrange(len(data)) for _ in range(10)), len(data) + 4096):
        (tmp_path / "a").write_bytes(data[:size].ljust(size, b"\0"))
        with pytest.raises(SlotFileInvalid), streamed(tmp_path / "a", monkeypatch):
            pytest.fail("it was opened")


def test_what_changes_between_two_readings_is_not_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = conversation(SIZE * 300)
    state = state_of(chain)
    write(tmp_path / "a", chain, state)
    write(tmp_path / "b", chain, [{Part.KV: bytes(5000)}, *state[1:]])
    with streamed(tmp_path / "a", monkeypatch) as file:
        found = state_in(file)
        assert plain(found) == state
        # Another file's record, whole, and of the same block.
        data = (tmp_path / "b").read_bytes()
        with open(tmp_path / "a", "r+b") as changed:
            changed.write(data)
        with pytest.raises(SlotFileIOError, match="was changed while it was read"):
            next(found.runs())
        os.truncate(tmp_path / "a", 8192)
        with pytest.raises(SlotFileIOError, match="ended early while the slot file was read again"):
            list(found.runs())


def test_who_breaks_off_waits_for_the_reads_that_were_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pass goes through the same memory: a late read must not change what it verified."""
    begun, goes_on = threading.Event(), threading.Event()

    class Late(Files):
        def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
            if offset >= 192 << 10 and not goes_on.is_set():
                begun.set()
                assert goes_on.wait(20)
            return super().pread(fd, buffer, offset)

    chain = conversation(SIZE * 300)
    state = state_of(chain)
    write(tmp_path / "a", chain, state)
    with streamed(tmp_path / "a", monkeypatch) as file:
        file._files = Late()
        found = state_in(file)
        runs = found.runs()
        assert not begun.is_set()
        for _ in range(2):
            next(runs)
        assert begun.wait(20), "a few reads ahead of what was handed out"
        closing = threading.Thread(target=runs.close)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        goes_on.set()
        closing.join(20)
        assert not closing.is_alive()
        assert plain(found) == state


# Runs of blocks.


def with_run(
    path: Path, chain: Chain, *, run: tuple[int, int], size: int, **fields: object
) -> None:
    """A file whose blocks from ``run[0]`` on share a record of kv, so many of them."""
    forger = Forger(Files(), path, chain, 0)
    forger.begin()
    forger.write(front_of(forger))
    piece = Piece(RUN_BYTES_MAX + 8192)

    def fill(memory: memoryview) -> int:
        memory[8 : 8 + size] = bytes(range(256)) * (size // 256)
        return size

    for block in range(run[0]):
        forger.add(piece, block, Part.KV, bytes(5000))
    assert forger.add_run(piece, *run, fill)
    forger.forge(piece, **fields)
    for block in range(run[0] + (0 if fields else run[1]), chain.blocks):
        forger.add(piece, block, Part.KV, bytes(5000))
    forger.seal(piece)
    forger.write(piece)
    forger.flush()
    forger.publish()
    forger.abandon()


def test_blocks_may_share_a_record(tmp_path: Path) -> None:
    chain = conversation(SIZE * 6)
    with_run(tmp_path / "a", chain, run=(1, 3), size=4096 * 3)
    with SlotFileReader(Files(), tmp_path / "a", Steps) as file:
        [run] = list(load(file).runs())
        assert [(each.block, each.blocks) for each in run] == [(0, 1), (1, 3), (4, 1), (5, 1)]
        assert run[1].payload == bytes(range(256)) * 48


@pytest.mark.parametrize(
    ("run", "size", "fields"),
    [
        ((1, 3), 4096 * 4, {}),  # larger than three blocks
        ((1, 3), 4096, {"part": 3}),  # of another part
        ((4, 2), 4096, {"token_count": SIZE * 3}),  # beyond the end
        ((1, 3), 4096, {"token_count": SIZE * 2}),  # under another's name
        ((1, 3), 4096, {"token_count": SIZE * 3 + 1}),
        ((1, 3), 4096, {"rank": 0}),  # followed by blocks of its own
    ],
)
def test_a_run_that_can_not_be_is_refused(
    tmp_path: Path, run: tuple[int, int], size: int, fields: dict[str, object]
) -> None:
    with_run(tmp_path / "a", conversation(SIZE * 6), run=run, size=size, **fields)
    with pytest.raises(SlotFileInvalid, match=r"belong|larger|another block"):
        read(tmp_path / "a")


def test_a_run_has_a_largest_size(tmp_path: Path) -> None:
    chain = conversation(SIZE * 600)
    with_run(tmp_path / "a", chain, run=(0, 500), size=RUN_BYTES_MAX + 4096)
    with pytest.raises(SlotFileInvalid, match="larger than its part can be"):
        read(tmp_path / "a")


def test_files_of_version_1_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = conversation(70)
    monkeypatch.setattr(slot_format, "VERSION", 1)
    write(tmp_path / "a", chain, state_of(chain))
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes()[8] == 1
    assert read_plain(tmp_path / "a") == state_of(chain)


def test_a_record_that_says_it_is_larger_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = conversation(SIZE * 300)
    state = [{Part.KV: bytes(90_000)}, *state_of(chain)[1:]]
    writer = writer_of(tmp_path / "a", chain)
    writer.begin()
    writer.write(front_of(writer))
    for block, parts in enumerate(state):
        piece = Piece(1)
        writer.add(piece, block, Part.KV, parts[Part.KV])
        writer.seal(piece)
        writer.write(piece)
    writer.flush()
    writer.publish()
    writer.abandon()
    with (
        pytest.raises(SlotFileInvalid, match="larger than its part can be"),
        streamed(tmp_path / "a", monkeypatch) as file,
    ):
        load(file)


def test_blocks_must_ascend(tmp_path: Path) -> None:
    chain = conversation(32)
    writer = writer_of(tmp_path / "a", chain)
    writer.begin()
    writer.write(front_of(writer))
    piece = Piece(1)
    for block in (1, 0):
        writer.add(piece, block, Part.KV, bytes(10))
    writer.seal(piece)
    writer.write(piece)
    writer.flush()
    writer.publish()
    writer.abandon()
    with pytest.raises(SlotFileInvalid, match="does not belong"):
        read(tmp_path / "a")


# What is no plain file.


def test_links_pipes_and_directories_are_not_opened(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(whole)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("link", "pipe", "folder", "dangling"):
        with pytest.raises(SlotFileInvalid, match="regular file"):
            read(tmp_path / name)
    with pytest.raises(SlotFileMissing) as caught:
        read(tmp_path / "nothing")
    assert caught.value.status == 404
    os.link(whole, tmp_path / "second")
    with pytest.raises(SlotFileInvalid, match="another name"):
        read(whole)


def test_a_link_in_the_way_is_replaced_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "a").symlink_to(precious)
    write(tmp_path / "a", conversation(16), state_of(conversation(16)))
    assert precious.read_text() == "precious"
    assert not (tmp_path / "a").is_symlink()
    assert read(tmp_path / "a").tokens == 16


def test_what_is_no_file_is_not_saved_over(tmp_path: Path) -> None:
    folder = open_slot_folder(tmp_path, 0)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name, problem in (("folder", "a directory"), ("pipe", "no regular file")):
        with pytest.raises(SlotFileInvalid, match=f"{problem}; nothing was written") as caught:
            folder.check_target(tmp_path / name)
        assert (caught.value.status, caught.value.kind) == (400, "invalid")
    for name in ("file", "link", "new"):
        folder.check_target(tmp_path / name)


# Encryption.


def test_encrypted_files_hold_nothing_in_the_clear(tmp_path: Path) -> None:
    cipher, chain = Cipher(b"k" * 32), conversation(40)
    state = state_of(chain)
    write(tmp_path / "a", chain, state, cipher=cipher)
    data = (tmp_path / "a").read_bytes()
    assert chain.tokens.astype("<u4").tobytes()[:32] not in data
    assert chain.tail_tokens(2, 8).astype("<u4").tobytes() not in data
    assert state[0][Part.KV][:64] not in data
    assert read_plain(tmp_path / "a", cipher) == state
    for other in (None, Cipher(b"x" * 32)):
        with pytest.raises(SlotFileInvalid, match="encrypted"):
            read(tmp_path / "a", other)


def test_what_is_not_encrypted_is_read_with_a_key_too(whole: Path) -> None:
    assert read(whole, Cipher(b"k" * 32)).tokens == 70


# Failures.


@pytest.mark.parametrize("call", ["create", "pwrite", "sync", "rename"])
def test_a_failure_before_the_rename_keeps_the_old_file(tmp_path: Path, call: str) -> None:
    old, new = conversation(16), conversation(64)
    write(tmp_path / "a", old, state_of(old))
    with pytest.raises(OSError, match="no"):
        write(tmp_path / "a", new, state_of(new), files=Fails(call, OSError(errno.EIO, "no")))
    assert names(tmp_path) == ["a"]
    assert read(tmp_path / "a").tokens == 16


def test_a_failure_leaves_other_peoples_temporary_files(tmp_path: Path) -> None:
    other = tmp_path / ".spillcache-1-other"
    other.write_text("theirs")
    with pytest.raises(OSError, match="no"):
        write(
            tmp_path / "a",
            conversation(16),
            state_of(conversation(16)),
            files=Fails("sync", OSError(errno.EIO, "no")),
        )
    assert names(tmp_path) == [other.name]


def test_a_read_that_fails_is_no_damage(whole: Path) -> None:
    with pytest.raises(SlotFileIOError, match="no while") as caught:
        read(whole, files=Fails("pread", OSError(errno.EIO, "no")))
    assert (caught.value.status, caught.value.kind) == (500, "io")


def test_an_open_that_fails_is_no_damage(whole: Path) -> None:
    with pytest.raises(SlotFileIOError, match="many"):
        read(whole, files=Fails("open", OSError(errno.EMFILE, "too many")))


def test_a_read_that_hangs_is_not_waited_for(whole: Path) -> None:
    go = threading.Event()
    try:
        with (
            pytest.raises(SlotFileIOError, match=r"did not answer within 0.1 s"),
            SlotFileReader(Fails("pread", wait=go.wait), whole, lambda: Steps(0.1)) as file,
        ):
            load(file)
    finally:
        go.set()


def test_a_file_that_shrinks_while_it_is_read_is_an_error(whole: Path) -> None:
    with SlotFileReader(Files(), whole, Steps) as file:
        os.truncate(whole, 8192)
        with pytest.raises(SlotFileIOError, match="ended early"):
            load(file)


# The folder.


def test_the_folder_is_made_for_its_owner_and_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = open_slot_folder(Path("deep/slots"), 0)
    assert folder.path == tmp_path / "deep" / "slots"
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.path_of("a") == folder.path / "a"
    with pytest.raises(SlotFileInvalid):
        folder.path_of("../a")


def test_a_folder_that_is_none_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("a\0b")):
        with pytest.raises(ConfigError, match="--slot-save-path"):
            open_slot_folder(path, 0)


def test_what_is_to_stay_free_stays_free(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    folder = open_slot_folder(tmp_path, free * 2)
    with pytest.raises(SlotFileNoRoom, match="to stay free") as caught:
        folder.check_room(Files(), 4096)
    assert (caught.value.status, caught.value.kind) == (507, "storage")
    open_slot_folder(tmp_path, 0).check_room(Files(), 4096)
    with pytest.raises(SlotFileNoRoom, match="nothing was written"):
        open_slot_folder(tmp_path, 0).check_room(Files(), free * 2)


def test_another_namespace_is_read_and_left_to_the_caller_to_refuse(tmp_path: Path) -> None:
    other = Namespace.of({"library": "2", "type_k": "f16"})
    chain = Chain(other, 16, [1, 2, 3])
    write(tmp_path / "a", chain, [{Part.KV: b"x"}])
    with SlotFileReader(Files(), tmp_path / "a", Steps) as file:
        assert file.namespace == other
