"""What the kernel says of a process."""

import os
import subprocess
import sys

from process import ResidentSize, descriptors, resident_bytes, threads, written_bytes


def test_our_own_process_is_counted():
    assert resident_bytes(os.getpid()) > 1 << 20
    assert threads(os.getpid()) >= 1
    before = descriptors(os.getpid())
    with open(os.devnull) as _:
        assert descriptors(os.getpid()) == before + 1


def test_the_most_memory_is_seen_until_it_is_stopped():
    size = ResidentSize(os.getpid())
    held = bytes(1 << 20)
    while size.max_bytes < len(held):
        pass
    size.stop()


def test_what_an_ended_child_wrote_is_counted(tmp_path):
    before = written_bytes()
    script = "import os, sys; f = open(sys.argv[1], 'wb', 0); f.write(bytes(1 << 20)); os.fsync(f)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "f")], check=True)
    assert 1 << 20 <= written_bytes() - before < 2 << 20
