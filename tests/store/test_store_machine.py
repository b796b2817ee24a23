"""A store driven at random beside a dict that says what must be there."""

import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_tools import NAMESPACE, OTHER, chain, config, flip, payload, read_all

from spillcache.errors import CorruptBlock
from spillcache.state import Part
from spillcache.store import index_opening, probe
from spillcache.store.block_store import BlockStore, StoreObject
from spillcache.store.buffers import BufferPool
from spillcache.store.files import Files

SEEDS = st.integers(0, 3)
INDEXES = st.integers(0, 5)
PARTS = st.sampled_from(list(Part))
NAMESPACES = st.sampled_from([NAMESPACE, OTHER])


class Crashing(Files):
    """Real files; at one of its calls the directory is copied as a kill would leave it."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        super().__init__(direct=direct)
        self.path = path
        self.calls_left = -1
        self.wreck: Path | None = None

    def crash_after(self, calls: int, wreck: Path) -> None:
        self.calls_left, self.wreck = calls, wreck

    def call(self) -> None:
        if self.calls_left == 0:
            shutil.copytree(self.path, self.wreck)
        self.calls_left -= 1


def crashing(name):
    real = getattr(Files, name)

    def method(self, *args, **kwargs):
        self.call()
        return real(self, *args, **kwargs)

    return method


for each in ("create", "open", "pwrite", "sync", "sync_directory", "punch", "unlink", "truncate"):
    setattr(Crashing, each, crashing(each))


class StoreMachine(RuleBasedStateMachine):
    """Few enough objects that nothing is evicted unless a rule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="spillcache-test-"))
        self.path = self.root / "0"
        self.wrecks = 0
        self.model: dict = {}
        self.hidden: set = set()
        self.corrupted = 0
        # Many opens: without a child that looks through the index, and without warm buffers.
        self.patches = [
            patch.object(
                index_opening, "health", lambda index, limit_s=9.0: probe.walk(index, limit_s)
            ),
            patch.object(BufferPool, "warm", lambda *_: None),
        ]
        for each in self.patches:
            each.start()

    @initialize(codec=st.sampled_from(["raw", "zstd"]), direct=st.booleans())
    def make(self, codec, direct):
        self.codec, self.direct = codec, direct
        self.open()

    def open(self):
        self.files = Crashing(self.path, direct=self.direct)
        self.store = BlockStore.open(config(self.path, codec=self.codec), files=self.files)

    def go_on_with(self, wreck):
        """As after a kill: what the old process does from now on is not seen."""
        self.store.close()
        shutil.rmtree(self.path)
        self.path = wreck
        self.open()

    def next_wreck(self):
        self.wrecks += 1
        return self.root / str(self.wrecks)

    def entry(self, namespace, block, part):
        """What the index says, hidden or not."""
        with self.store._opened.index.read() as catalog:
            found = catalog.entry(namespace.id, block, part)
        return found if found is not None and found.is_present else None

    def there(self):
        return {key for key in self.model if self.entry(*key) is not None}

    def forget_orphans(self):
        """What a new index can't name: blocks after one that is gone."""
        for namespace in (NAMESPACE, OTHER):
            for seed in range(4):
                _, hashes = chain(seed, 6, namespace)
                for index, block in enumerate(hashes):
                    if index and not self.has_kv(namespace, hashes[index - 1]):
                        self.model.pop((namespace, block, Part.KV), None)

    def has_kv(self, namespace, block):
        return (namespace, block, Part.KV) in self.model

    @rule(
        namespace=NAMESPACES,
        seed=SEEDS,
        wanted=st.lists(st.tuples(INDEXES, PARTS, st.integers(0, 9000)), max_size=8),
    )
    def put(self, namespace, seed, wanted):
        root, hashes = chain(seed, 6, namespace)
        group, written, present, dropped, dropped_blocks = [], 0, 0, 0, set()
        before = dict(self.model)
        for index, part, size in sorted(wanted, key=lambda each: each[:2]):
            block = hashes[index]
            parent = hashes[index - 1] if index else root
            key = (namespace, block, part)
            data = payload((seed, index, part), size // 2) + bytes(size // 2)
            group.append(StoreObject(block, part, parent, index, 4, data, rank=part))
            orphan = part is Part.KV and index > 0 and not self.has_kv(namespace, parent)
            if key in self.model or key in before:
                present += 1
            elif orphan or (part is not Part.KV and block in dropped_blocks):
                # The same object twice in one put counts as present the second time.
                if (key, "dropped") in before:
                    present += 1
                    continue
                before[key, "dropped"] = b""
                dropped += 1
                dropped_blocks.update([block] if part is Part.KV else [])
            else:
                written += 1
                self.model[key] = (data, index)
        if namespace in self.hidden:
            self.model = {k: v for k, v in before.items() if k[0] in (NAMESPACE, OTHER)}
            assert self.store.put(namespace, group).written == 0
            return
        result = self.store.put(namespace, group)
        assert (result.written, result.present, result.dropped) == (written, present, dropped)

    @rule(namespace=NAMESPACES, seed=SEEDS)
    def find_and_read(self, namespace, seed):
        _, hashes = chain(seed, 6, namespace)
        found = self.store.find(namespace.id, hashes, list(Part))
        if namespace in self.hidden:
            assert [dict(at) for at in found] == [{}] * len(hashes)
            return
        expected = [
            (block, part)
            for block in hashes
            for part in Part
            if (namespace, block, part) in self.model
        ]
        got = [entry for each in found for entry in each.values()]
        assert [(e.block, e.part) for e in got] == expected
        data = read_all(self.store, got)
        assert data == [self.model[namespace, block, part][0] for block, part in expected]

    @rule(
        namespace=NAMESPACES,
        seed=SEEDS,
        index=INDEXES,
        at=st.integers(0, 150),
        scrubbed=st.booleans(),
    )
    def damage(self, namespace, seed, index, at, scrubbed):
        block = chain(seed, 6, namespace)[1][index]
        entry = self.entry(namespace, block, Part.KV)
        if entry is None:
            return
        flip(self.store._opened.segments.path(entry.segment), entry.offset + at)
        if scrubbed:
            report = self.store.verify(fix=True)
            assert (report.damaged, report.fixed, report.index) == (1, 1, [])
        else:
            try:
                read_all(self.store, [entry])
            except CorruptBlock:
                self.corrupted += 1
            else:
                raise AssertionError("damage was not seen")
        followed = any(
            name == namespace
            and part is Part.KV
            and e[1] == index + 1
            and other in chain(seed, 6, namespace)[1]
            for (name, other, part), e in self.model.items()
        )
        del self.model[namespace, block, Part.KV]
        if not followed and not self.ghost_children(namespace, seed, index):
            for part in (Part.WINDOW, Part.BOUNDARY):
                self.model.pop((namespace, block, part), None)

    def ghost_children(self, namespace, seed, index):
        """Whether a damaged block that others follow stands after this one."""
        hashes = chain(seed, 6, namespace)[1]
        return any(self.has_kv(namespace, block) for block in hashes[index + 1 :])

    @rule(namespace=NAMESPACES, seed=SEEDS, index=INDEXES)
    def touch(self, namespace, seed, index):
        self.store.touch(namespace.id, chain(seed, 6, namespace)[1][index], window_blocks=2)

    @rule()
    def reopen(self):
        self.store.close()
        self.open()

    @rule(need_bytes=st.integers(1, 60_000), collected=st.booleans())
    def evict(self, need_bytes, collected):
        """Never a block before those that follow it; what stays is whole."""
        if collected:
            with self.store._opened.index.read() as catalog:
                used = self.store._opened.room.used_bytes(catalog)
            self.store.gc(target_bytes=used - need_bytes)
        else:
            freed = self.store._opened.room.make_free(need_bytes, lambda _: False)
            assert freed >= need_bytes or not self.there()
        left = self.there()
        for namespace in (NAMESPACE, OTHER):
            for seed in range(4):
                _, hashes = chain(seed, 6, namespace)
                gone = [(namespace, b, Part.KV) in self.model.keys() - left for b in hashes]
                stays = [(namespace, b, Part.KV) in left for b in hashes]
                for index in range(5):
                    assert not (gone[index] and stays[index + 1])
        self.model = {key: value for key, value in self.model.items() if key in left}

    @rule()
    def crash(self):
        """All that was put is durable."""
        wreck = self.next_wreck()
        shutil.copytree(self.path, wreck)
        self.go_on_with(wreck)

    @rule(seed=SEEDS, namespace=NAMESPACES, blocks=st.integers(1, 6), calls=st.integers(0, 8))
    def crash_in_a_put(self, seed, namespace, blocks, calls):
        """What was there is there; what was being put is whole, or not there."""
        if namespace in self.hidden:
            return
        before, wreck = set(self.model), self.next_wreck()
        self.files.crash_after(calls, wreck)
        self.put_chain(namespace, seed, blocks)
        if not wreck.exists():
            self.files.crash_after(-1, wreck)
            return
        self.go_on_with(wreck)
        left = self.there()
        assert before <= left
        self.model = {key: value for key, value in self.model.items() if key in left}

    def put_chain(self, namespace, seed, blocks):
        root, hashes = chain(seed, 6, namespace)
        group = []
        for index, block in enumerate(hashes[:blocks]):
            parent = hashes[index - 1] if index else root
            for part in Part:
                data = payload((seed, index, part), 3000)
                group.append(StoreObject(block, part, parent, index, 4, data, rank=part))
                self.model.setdefault((namespace, block, part), (data, index))
        assert self.store.put(namespace, group).dropped == 0

    @rule(need_bytes=st.integers(1, 40_000), calls=st.integers(0, 6))
    def crash_while_evicting(self, need_bytes, calls):
        wreck = self.next_wreck()
        self.files.crash_after(calls, wreck)
        self.store._opened.room.make_free(need_bytes, lambda _: False)
        if wreck.exists():
            self.go_on_with(wreck)
        self.files.crash_after(-1, wreck)
        left = self.there()
        self.model = {key: value for key, value in self.model.items() if key in left}

    @rule(anew=st.booleans())
    def repair(self, anew):
        self.store.close()
        report = BlockStore.repair(self.path, anew=anew)
        assert report.rebuilt == anew
        if anew:
            self.forget_orphans()
        else:
            assert report.named == 0
        assert report.objects == len(self.model)
        self.open()

    @rule()
    def repair_while_open(self):
        assert BlockStore.repair(self.path).named == 0

    @rule(killed=st.booleans())
    def lose_the_index(self, killed):
        if killed:
            wreck = self.next_wreck()
            shutil.copytree(self.path, wreck)
            self.store.close()
            shutil.rmtree(self.path)
            self.path = wreck
        else:
            self.store.close()
        shutil.rmtree(self.path / "index")
        self.open()
        self.forget_orphans()

    @rule()
    def verify(self):
        report = self.store.verify()
        assert report.is_sound, report
        assert report.objects == len(self.model)

    @rule(namespace=NAMESPACES)
    def invalidate(self, namespace):
        known = {info.namespace for info in self.store.namespaces()}
        assert self.store.invalidate(namespace.id, "a reason") == (namespace in known)
        self.hidden |= {namespace} & known

    @rule(namespace=NAMESPACES)
    def reinstate(self, namespace):
        self.store.reinstate(namespace.id)
        self.hidden.discard(namespace)

    @invariant()
    def figures_are_true(self):
        if not hasattr(self, "store"):
            return
        infos = {info.namespace: info for info in self.store.namespaces()}
        for namespace in (NAMESPACE, OTHER):
            mine = {k: v for k, v in self.model.items() if k[0] == namespace}
            info = infos.get(namespace)
            assert (info.objects if info else 0) == len(mine)
            assert (info.raw_bytes if info else 0) == sum(len(v[0]) for v in mine.values())
        with self.store._opened.index.read() as catalog:
            live = sum(row.live_objects for _, row in catalog.segments())
        assert live == len(self.model)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
        for each in self.patches:
            each.stop()
        shutil.rmtree(self.root)


StoreMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=24,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStoreMachine = StoreMachine.TestCase
