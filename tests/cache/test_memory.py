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
