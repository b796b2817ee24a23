"""Whether a restore goes on."""

from types import SimpleNamespace
from typing import Any

import pytest

from spillcache.cache.judge import Judge
from spillcache.config import MIB
from spillcache.state import Geometry
from spillcache.store.read_meter import Reading

NAMESPACE = bytes(8)
PLAIN = Geometry(
    block_tokens=64, has_kv=True, window_blocks=0, has_boundary=False, boundary_stride=0
)


def judge(reading: Reading) -> Judge:
    """Of a machine that computes 1,000 tokens a second."""
    store: Any = SimpleNamespace(
        note=lambda _: None, set_note=lambda *_: None, reading=lambda: reading
    )
    judge = Judge("auto", PLAIN, store)
    for start in range(0, 8192, 512):
        judge.speeds.prefilled(NAMESPACE, start, start + 512, 0.512)
    return judge


@pytest.mark.parametrize(
    ("read_bytes", "left_bytes", "gives_up"),
    [
        (MIB, 50 * MIB, True),
        (50 * MIB, 50 * MIB, False),  # all is there, and the engine has taken nothing yet
        (48 * MIB, 49 * MIB, False),
        (60 * MIB, 50 * MIB, False),  # with what lies between
    ],
)
def test_what_was_read_and_not_yet_taken_is_not_waited_for(
    read_bytes: int, left_bytes: int, gives_up: bool
) -> None:
    """The disk gives 5 MiB a second, and there are 50 MiB; computing would take 8 s."""
    reading = Reading(read_bytes, read_bytes / (5 * MIB), 0)
    stream: Any = SimpleNamespace(
        disk_bytes=50 * MIB, left_bytes=left_bytes, began=Reading(0, 0.0, 0)
    )
    assert judge(reading).gives_up(NAMESPACE, stream, 0, 128) is gives_up
