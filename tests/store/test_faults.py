"""Every call of the file layer fails once, or from then on, in everything that a store does.

Never a wrong byte, nothing deleted because of it, no exception but a StoreError; and when the disk
works again, so does the store.
"""

import errno
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from store_tools import NAMESPACE, OTHER, check_all, config, entries, flip, objects
from test_store_processes import check_figures

from spillcache.config import MIB
from spillcache.errors import CorruptBlock, StoreError, StoreFullError, StoreIOError
from spillcache.state import Part
from spillcache.store import index_opening, probe
from spillcache.store.block_store import BlockStore
from spillcache.store.buffers import BufferPool
from spillcache.store.files import Files

CODES = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EACCES)
OTHER_CODES = tuple(code for code in CODES if code not in (errno.ENOSPC, errno.EDQUOT))
TRIES = 4
"""Of the calls of one method within one step, so many are failed, evenly over all."""
BEFORE, DURING, AFTER = objects(1, 6, 30_000, tuple(Part)), objects(2, 6, 20_000), objects(3, 4)


class Faults(Files):
    """Real files; ``fail`` says which call of which method fails, and with what."""

    def __init__(self, *, direct: bool = True) -> None:
        super().__init__(direct=direct)
        self.calls: Counter[str] = Counter()
        self.fail: tuple[str, int, int] | None = None
        self.lasting = False
        self.most_bytes: int | None = None

    def check(self, method: str) -> None:
        self.calls[method] += 1
        if self.fail is None:
            return
        failing, number, code = self.fail
        count = self.calls[method] - 1
        if method == failing and (count >= number if self.lasting else count == number):
            raise OSError(code, os.strerror(code))

    def arm(self, method: str, number: int, code: int, *, lasting: bool) -> None:
        self.calls.clear()
        self.fail, self.lasting = (method, number, code), lasting

    def heal(self) -> None:
        self.fail = None


def intercepted(name):
    real = getattr(Files, name)

    def method(self, *args, **kwargs):
        if name == "close":
            # As the system does: the descriptor is gone, whatever close says.
            real(self, *args)
            self.check(name)
            return None
        self.check(name)
        if name in ("pread", "pwrite") and self.most_bytes is not None:
            fd, buffer, offset = args
            args = (fd, buffer[: self.most_bytes], offset)
        return real(self, *args, **kwargs)

    return method


METHODS = sorted(
    name for name, each in vars(Files).items() if callable(each) and not name.startswith("_")
)
for each in METHODS:
    setattr(Faults, each, intercepted(each))


# What a store does, each on an open store.


def put(store):
    store.put(NAMESPACE, DURING)


def put_each(store):
    """The second half is written while the first is committed."""
    store.put_each(NAMESPACE, [DURING[:2], DURING[2:]], lambda _: None)


def find_and_read(store):
    for wanted, namespace in ((BEFORE, NAMESPACE), (DURING, NAMESPACE)):
        right = {(o.block, o.part): o.payload for o in wanted}
        for payload in store.read(entries(store, wanted, namespace)):
            entry = payload.entry
            assert bytes(payload.view) == right[entry.block, entry.part]
            payload.release()


def evict(store):
    """Only what was last used before all else: the other namespace."""
    spared = {NAMESPACE.id + o.block for o in BEFORE + DURING}
    make_free(store, 100_000, spared.__contains__)


def make_free(store, need_bytes, is_spared):
    try:
        store._opened.room.make_free(need_bytes, is_spared)
    except OSError as error:
        raise StoreIOError(str(error)) from error


def grow_and_shrink(store):
    """New segments, and what makes them go, files and all."""
    large = objects(4, 2, 2_500_000)
    store.put(NAMESPACE, large)
    store._opened.writer.close()
    ours = {NAMESPACE.id + o.block for o in large}
    make_free(store, 5_000_000, lambda block: block not in ours)


def collect(store):
    with store._opened.index.read() as catalog:
        used = store._opened.room.used_bytes(catalog)
    store.gc(target_bytes=used - 100_000)


def verify(store):
    report = store.verify(fix=True)
    assert (report.damaged, report.missing) == (0, 0)


def repair(store):
    BlockStore.repair(store.path)


def close(store):
    put(store)
    store.close()


STEPS = (put, put_each, find_and_read, evict, grow_and_shrink, collect, verify, repair, close)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Hundreds of opens: without a child that looks through the index, and without warm buffers."""
    monkeypatch.setattr(
        index_opening, "health", lambda index, limit_s=9.0: probe.walk(index, limit_s)
    )
    monkeypatch.setattr(BufferPool, "warm", lambda *_: None)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A store with two namespaces, whose last process was killed: it left bytes to be cut off."""
    path = tmp_path_factory.mktemp("faults") / "cache"
    with BlockStore.open(config(path)) as store:
        store.put(OTHER, objects(9, 8, 40_000, namespace=OTHER))
        store.put(NAMESPACE, BEFORE)
        killed = path.with_name("killed")
        shutil.copytree(path, killed)
    with open(killed / "segments" / "0000000001.seg", "ab") as file:
        file.write(bytes(100_000))
    return killed


@pytest.fixture
def copy(template, tmp_path):
    def make() -> Path:
        path = tmp_path / "cache"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(template, path)
        return path

    return make


def attempt(work, *args):
    """Nothing but a StoreError may come of it."""
    try:
        work(*args)
    except CorruptBlock:
        raise AssertionError("a failing disk was taken for damage") from None
    except StoreError:
        return


def check_afterwards(path, *, evicted=False):
    """Everything is there, the figures are true, and it goes on."""
    with BlockStore.open(config(path)) as store:
        check_all(store, BEFORE)
        other = entries(store, objects(9, 8, 40_000, namespace=OTHER), OTHER)
        assert evicted or len(other) == 8
        check_figures(store)
        store.put(NAMESPACE, DURING + AFTER)
        check_all(store, BEFORE + DURING + AFTER)
        assert store.verify().is_sound
    assert list((path / "quarantine").iterdir()) == []


def spread(count):
    """Up to ``TRIES`` numbers below ``count``, the first and the last among them."""
    return sorted({n * (count - 1) // max(1, TRIES - 1) for n in range(TRIES)})


def counted(path, step):
    """How often one step calls each method."""
    files = Faults()
    with BlockStore.open(config(path), files=files) as store:
        files.calls.clear()
        step(store)
        return Counter(files.calls)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_call_that_fails_in_an_open_store(copy, step):
    calls = counted(copy(), step)
    # A full filesystem is met by eviction: of what was used before all else.
    codes = OTHER_CODES if step is grow_and_shrink else CODES
    tried = 0
    for method in sorted(calls):
        for number in spread(calls[method]):
            path, files = copy(), Faults()
            code = codes[tried % len(codes)]
            with BlockStore.open(config(path), files=files) as store:
                files.arm(method, number, code, lasting=bool(tried % 2))
                attempt(step, store)
                files.heal()
                if step is not close:
                    attempt_again(store, step)
            full = code in (errno.ENOSPC, errno.EDQUOT)
            check_afterwards(path, evicted=full or step in (evict, collect))
            tried += 1
    assert tried >= 3


def attempt_again(store, step):
    """At once, in the same process, without a reopen."""
    step(store)
    check_all(store, BEFORE)


def test_a_call_that_fails_while_opening(copy):
    path, files = copy(), Faults()
    with BlockStore.open(config(path), files=files):
        calls = Counter(files.calls)
    assert {"names", "is_file", "open", "lock", "truncate", "pread"} <= calls.keys()
    tried = 0
    for method in sorted(calls):
        for number in spread(calls[method]):
            path, files = copy(), Faults()
            files.arm(method, number, CODES[tried % len(CODES)], lasting=bool(tried % 2))
            attempt(lambda p, f: BlockStore.open(config(p), files=f).close(), path, files)
            check_afterwards(path)
            tried += 1
    assert tried >= 15


def test_a_call_that_fails_while_an_index_is_rebuilt(copy):
    path, files = copy(), Faults()
    shutil.rmtree(path / "index")
    with BlockStore.open(config(path), files=files):
        calls = Counter(files.calls)
    assert {"next_data", "pread"} <= calls.keys()
    tried = 0
    for method in sorted(calls):
        for number in spread(calls[method]):
            path, files = copy(), Faults()
            shutil.rmtree(path / "index")
            files.arm(method, number, CODES[tried % len(CODES)], lasting=bool(tried % 2))
            attempt(lambda p, f: BlockStore.open(config(p), files=f).close(), path, files)
            check_afterwards(path)
            tried += 1


def test_all_methods_are_used_somewhere(copy):
    used = set()
    for step in STEPS:
        files = Faults(direct=step is not find_and_read)
        with BlockStore.open(config(copy()), files=files) as store:
            step(store)
        used |= files.calls.keys()
    files = Faults()
    path = copy()
    shutil.rmtree(path / "index")
    BlockStore.open(config(path), files=files).close()
    # ``allocated``: the speed of the disk is measured with it, only by an open that may compress.
    # ``rename``: slot files', with faults of their own.
    others = {"allocated", "rename"}
    assert set(METHODS) - others == (used | files.calls.keys()) - others


@pytest.mark.parametrize("method", ["punch", "allocated_at"])
def test_bytes_that_can_not_be_freed_end_the_eviction(copy, method):
    """Not one object after another goes because a disk does not take their bytes back."""
    path, files = copy(), Faults()
    with BlockStore.open(config(path), files=files) as store:
        before = store.usage().objects
        files.arm(method, 0, errno.EIO, lasting=True)
        for _ in range(3):
            with pytest.raises(StoreIOError):
                collect(store)
        left = store.usage().objects
        assert before - 12 < left < before
        files.heal()
        assert store._opened.segments.retry() is None
        with store._opened.index.read() as catalog:
            assert catalog.freeing() == []
        check_all(store, BEFORE)
    check_afterwards(path, evicted=True)


def test_a_full_store_that_can_not_free_bytes_says_so_and_evicts_no_more(copy):
    path, files = copy(), Faults()
    with BlockStore.open(config(path), files=files) as store:
        for seed in range(20, 50):
            before = store.usage().objects
            store.put(NAMESPACE, objects(seed, 4, MIB))
            if store.usage().objects < before + 4:
                break
        before = store.usage().objects
        files.arm("punch", 0, errno.EIO, lasting=True)
        failures = 0
        for seed in range(100, 110):
            try:
                store.put(NAMESPACE, objects(seed, 4, MIB))
            except StoreIOError:
                failures += 1
        assert failures > 3
        assert before - 12 < store.usage().objects
        files.heal()
        store.put(NAMESPACE, AFTER)
        check_all(store, AFTER)
        assert store.usage().allocated_bytes <= 64 * MIB


@pytest.mark.parametrize("most_bytes", [4096, 8192])
def test_short_reads_and_writes(copy, most_bytes):
    path, files = copy(), Faults()
    files.most_bytes = most_bytes
    with BlockStore.open(config(path), files=files) as store:
        put(store)
        find_and_read(store)
        check_all(store, BEFORE + DURING)
        assert store.verify().is_sound
        BlockStore.repair(path)
    check_afterwards(path)


def test_a_full_filesystem_evicts_then_says_so(copy):
    """ENOSPC and EDQUOT are met by eviction, and then by an error that pauses the tier."""
    for code in (errno.ENOSPC, errno.EDQUOT):
        path, files = copy(), Faults()
        with BlockStore.open(config(path), files=files) as store:
            files.arm("pwrite", 0, code, lasting=False)
            store.put(NAMESPACE, DURING)
            check_all(store, DURING)
            files.arm("pwrite", 0, code, lasting=True)
            with pytest.raises(StoreFullError):
                store.put(NAMESPACE, AFTER)
            files.heal()
            store.put(NAMESPACE, AFTER)
            check_all(store, AFTER)


def test_a_failing_quarantine_is_no_harm(copy, monkeypatch):
    path = copy()
    with BlockStore.open(config(path)) as store:
        (first, *_) = entries(store, BEFORE)
        flip(store._opened.segments.path(first.segment), first.offset + 1000)
        real = os.open

        def fail(name, *args, **kwargs):
            if "/quarantine/" in str(name):
                raise OSError(errno.EMFILE, "Too many open files")
            return real(name, *args, **kwargs)

        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(CorruptBlock):
            list(store.read([first]))
        monkeypatch.undo()
        assert len(entries(store, BEFORE)) == len(BEFORE) - 1
        assert store.usage().allocated_bytes < 64 * MIB


@pytest.mark.parametrize("code", CODES)
def test_a_lasting_failure_of_reads_is_said_each_time(copy, code):
    path, files = copy(), Faults()
    with BlockStore.open(config(path), files=files) as store:
        files.arm("pread", 0, code, lasting=True)
        expected = StoreFullError if code in (errno.ENOSPC, errno.EDQUOT) else StoreIOError
        for entry in entries(store, BEFORE)[:3]:
            with pytest.raises(expected, match="nothing was"):
                list(store.read([entry]))
        files.heal()
        check_all(store, BEFORE)
