import logging
from pathlib import Path

import pytest

from spillcache.cache.memory import SHARE, clamp_ram
from spillcache.config import NO_LIMIT_BYTES, CacheConfig

GIB = 1 << 30


def machine(root: Path, available: int) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB\n"
    )
    (root / "proc/self/cgroup").write_text("")


def group(root: Path, text: str, files: dict[str, str]) -> None:
    (root / "proc/self/cgroup").write_text(text)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_what_fits_is_granted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine(tmp_path, 10 * GIB)
    assert clamp_ram(2 * GIB, tmp_path) == 2 * GIB
    assert not caplog.records


def test_the_machine_bounds_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine(tmp_path, 10 * GIB)
    with caplog.at_level(logging.WARNING):
        assert clamp_ram(64 * GIB, tmp_path) == int(10 * GIB * SHARE)
    assert "--cache-ram 65536 MiB is more than" in caplog.text


def test_cgroup_v2_bounds_it_at_every_level(tmp_path: Path) -> None:
    machine(tmp_path, 10 * GIB)
    group(
        tmp_path,
        "0::/a/b\n",
        {
            "a/b/memory.max": "max\n",
            "a/b/memory.current": "5\n",
            "a/memory.max": f"{3 * GIB}\n",
            "a/memory.current": f"{GIB}\n",
        },
    )
    assert clamp_ram(64 * GIB, tmp_path) == int(2 * GIB * SHARE)


def test_a_group_is_slowed_down_at_memory_high(tmp_path: Path) -> None:
    machine(tmp_path, 10 * GIB)
    files = {
        "a/memory.max": f"{4 * GIB}\n",
        "a/memory.high": f"{2 * GIB}\n",
        "a/memory.current": "0\n",
    }
    group(tmp_path, "0::/a\n", files)
    assert clamp_ram(64 * GIB, tmp_path) == int(2 * GIB * SHARE)


@pytest.mark.parametrize(
    ("line", "base", "limit", "used", "reclaimable"),
    [
        ("0::/a\n", "a", "memory.max", "memory.current", "inactive_file"),
        (
            "4:memory:/a\n",
            "memory/a",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_pages_of_files_that_nobody_uses_are_not_in_the_way(
    tmp_path: Path, line: str, base: str, limit: str, used: str, reclaimable: str
) -> None:
    """A container that has read much is "full" of page cache, which gives way."""
    machine(tmp_path, 10 * GIB)
    files = {
        f"{base}/{limit}": f"{4 * GIB}\n",
        f"{base}/{used}": f"{4 * GIB}\n",
        f"{base}/memory.stat": f"anon {GIB}\n{reclaimable} {3 * GIB}\nworkingset 1 2\n",
    }
    group(tmp_path, line, files)
    assert clamp_ram(64 * GIB, tmp_path) == int(3 * GIB * SHARE)


def test_in_a_container_the_limit_lies_at_the_root_of_what_it_sees(tmp_path: Path) -> None:
    """/proc names the host's path, which is not mounted in it."""
    machine(tmp_path, 10 * GIB)
    files = {
        "memory/memory.limit_in_bytes": f"{GIB}\n",
        "memory/memory.usage_in_bytes": "0\n",
        "memory/memory.soft_limit_in_bytes": f"{(1 << 63) - 4096}\n",
    }
    group(tmp_path, "4:memory:/docker/0123abcd\n", files)
    assert clamp_ram(64 * GIB, tmp_path) == int(GIB * SHARE)


def test_cgroup_v1_bounds_it(tmp_path: Path) -> None:
    machine(tmp_path, 10 * GIB)
    group(
        tmp_path,
        "5:cpu,memory:/box\n3:pids:/box\n",
        {
            "memory/box/memory.limit_in_bytes": f"{GIB}\n",
            "memory/box/memory.usage_in_bytes": "0\n",
        },
    )
    assert clamp_ram(64 * GIB, tmp_path) == int(GIB * SHARE)


def test_where_nothing_is_known_it_is_granted(tmp_path: Path) -> None:
    assert clamp_ram(64 * GIB, tmp_path) == 64 * GIB


def test_on_this_machine_a_little_is_granted() -> None:
    assert clamp_ram(1 << 20) == 1 << 20


def test_no_limit_is_the_machines_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine(tmp_path, 10 * GIB)
    assert clamp_ram(NO_LIMIT_BYTES, tmp_path) == int(10 * GIB * SHARE)
    assert clamp_ram(NO_LIMIT_BYTES, tmp_path / "nowhere") == CacheConfig().ram_bytes
    assert not caplog.records
