"""A store driven at random beside a dict that says what must be there."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_tools import NAMESPACE, OTHER, chain, config, flip, payload, read_all

from spillcache.errors import CorruptBlock
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, StoreObject

SEEDS = st.integers(0, 3)
INDEXES = st.integers(0, 5)
PARTS = st.sampled_from(list(Part))
NAMESPACES = st.sampled_from([NAMESPACE, OTHER])


class StoreMachine(RuleBasedStateMachine):
    """Few enough objects that nothing is evicted; eviction has its own tests."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="spillcache-test-"))
        self.model: dict = {}
        self.corrupted = 0

    @initialize(codec=st.sampled_from(["raw", "zstd"]), direct=st.booleans())
    def make(self, codec, direct):
        self.codec, self.direct = codec, direct
        self.open()

    def open(self):
        self.store = BlockStore.open(config(self.path, codec=self.codec, direct_io=self.direct))

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
        result = self.store.put(namespace, group)
        assert (result.written, result.present, result.dropped) == (written, present, dropped)

    @rule(namespace=NAMESPACES, seed=SEEDS)
    def find_and_read(self, namespace, seed):
        _, hashes = chain(seed, 6, namespace)
        found = self.store.find(namespace.id, hashes, list(Part))
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

    @rule(namespace=NAMESPACES, seed=SEEDS, index=INDEXES, at=st.integers(0, 150))
    def damage(self, namespace, seed, index, at):
        block = chain(seed, 6, namespace)[1][index]
        entry = self.store.find(namespace.id, [block], [Part.KV])[0].get(Part.KV)
        if entry is None:
            return
        flip(self.store._opened.segments.path(entry.segment), entry.offset + at)
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
        shutil.rmtree(self.path)


StoreMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStoreMachine = StoreMachine.TestCase
