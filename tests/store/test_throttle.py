import threading
import time
from pathlib import Path

import pytest

from spillcache.store.throttle import ThrottledFiles


def test_reads_take_as_long_as_on_a_slow_disk(tmp_path: Path) -> None:
    path, slept, now = tmp_path / "f", [], [50.0]
    path.write_bytes(bytes(range(256)) * 16)
    files = ThrottledFiles(1024, direct=False, clock=lambda: now[0], sleep=slept.append)
    fd = files.open(path)
    buffer = memoryview(bytearray(2048))
    assert files.pread(fd, buffer, 0) == 2048
    assert slept == [2.0]
    assert files.pread(fd, buffer, 2048) == 2048
    assert slept == [2.0, 4.0], "both came at the same time, and wait for each other"
    now[0] += 10
    assert files.pread(fd, buffer[:1024], 0) == 1024
    assert slept == [2.0, 4.0, 1.0]
    assert bytes(buffer[:256]) == bytes(range(256))
    assert files.pread(fd, buffer, 4096) == 0
    assert slept[-1] == pytest.approx(1.0), "the end of a file is behind what is under way"
    files.close(fd)


def test_all_readers_share_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(4096))
    files = ThrottledFiles(50_000, direct=False)
    fd = files.open(path)
    buffers = [memoryview(bytearray(1250)) for _ in range(4)]
    began = time.monotonic()
    threads = [threading.Thread(target=files.pread, args=(fd, b, 0)) for b in buffers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.1
    files.close(fd)
