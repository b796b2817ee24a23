import os
import sys
import threading

import pytest
from cache_tools import WatchedStore, cache_config, chain, eventually, objects

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.cache.restore import RestoreStream, Step
from spillcache.processors import NICE
from spillcache.state import Geometry, Part

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has niceness per thread")


def niceness(thread: threading.Thread) -> int:
    assert thread.native_id is not None
    return os.getpriority(os.PRIO_PROCESS, thread.native_id)


@linux
def test_who_reads_and_who_writes_give_way(store: WatchedStore) -> None:
    c = chain(2)
    store.put(c.namespace, objects(c))
    found = store.find(c.namespace.id, c.hashes, (Part.KV,))
    gate = threading.Event()
    read = store.read
    store.read = lambda *a, **k: (gate.wait(10), read(*a, **k))[1]  # type: ignore[method-assign]
    steps = [Step(i, c.hashes[i], {}, found[i]) for i in range(2)]
    stream = RestoreStream(steps, store, lambda _: None)
    cache = PrefixCache(cache_config(), Geometry(), store)
    ours = [
        t for t in threading.enumerate() if t.name in ("spillcache-restore", "spillcache-spill")
    ]
    assert len(ours) == 2
    eventually(lambda: all(niceness(thread) == NICE for thread in ours))
    gate.set()
    stream.close()
    assert stream.join(10)
    cache.close()
