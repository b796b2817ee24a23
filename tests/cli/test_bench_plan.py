from pathlib import Path
from typing import Any

import pytest

from spillcache.cli.bench_plan import Plan, break_even, server_flags


def rows(*pairs: tuple[int, float, float]) -> list[dict[str, Any]]:
    return [
        {"prompt_tokens": tokens, "cold_ttft_ms": cold, "disk_ttft_ms": disk}
        for tokens, cold, disk in pairs
    ]


@pytest.mark.parametrize(
    ("measured", "tokens", "how"),
    [
        (rows((512, 600.0, 40.0), (1024, 1200.0, 50.0)), 512, "at most"),
        (rows((512, 10.0, 40.0), (1024, 20.0, 50.0)), None, "more than the longest"),
        (rows((500, 10.0, 40.0), (1500, 60.0, 50.0)), 1250, "interpolated"),
        (rows((1500, 60.0, 50.0), (500, 10.0, 40.0)), 1250, "interpolated"),
        (rows((512, 40.0, 40.0), (1024, 50.0, 41.0)), 512, "interpolated"),
    ],
)
def test_where_disk_begins_to_pay(
    measured: list[dict[str, Any]], tokens: int | None, how: str
) -> None:
    assert break_even(measured) == {"tokens": tokens, "is": how}


def test_the_users_flags_come_last() -> None:
    plan = Plan(Path("m.gguf"), (128,), 1, None, ("-c", "9000"))
    flags = server_flags(plan, 4096, Path("d"), "tag")
    assert flags[-2:] == ["-c", "9000"]
    assert int(flags[flags.index("--ctx-size") + 1]) > 4096 + 32
    assert int(server_flags(plan, 128, Path("d"), "t")[5]) > 512, "a warm-up fits as well"
