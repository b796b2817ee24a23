"""Blocks become runs: where they branch, what each tier has of them, and which come first."""

import random
from typing import Any

from spillcache.cache.held import HeldBlock
from spillcache.chain import BlockHash
from spillcache.serve.prefix_tree import listed, runs

NS = b"namespce"


def name(text: str) -> BlockHash:
    return BlockHash(text.encode().rjust(32, b"."))


def chain(text: str, *, last_use: float = 0.0, disk: int = 10, ram: int = 0) -> list[HeldBlock]:
    """A block for each letter; the root is what comes before all texts."""
    return [
        HeldBlock(NS, name(text[: i + 1]), name(text[:i] or "root"), i, 64, last_use, ram, disk)
        for i in range(len(text))
    ]


def rows(blocks: list[HeldBlock], live: set[BlockHash] | None = None) -> list[dict[str, Any]]:
    return listed(runs(blocks), 100, live or set(), 64, 1000.0)[0]


def test_nothing_is_no_tree() -> None:
    assert runs([]) == []
    assert listed([], 5, set(), 64, 0.0) == ([], True)


def test_a_chain_is_one_run() -> None:
    (row,) = rows(chain("abcd", last_use=990.0, ram=7))
    assert row == {
        "after": None, "name": name("a")[-4:].hex(), "namespace": NS[:4].hex(), "start": 0,
        "tokens": 256, "blocks": 4, "live_tokens": 0, "ram_tokens": 256, "disk_tokens": 256,
        "ram_bytes": 28, "disk_bytes": 40, "unsaved_blocks": 0, "used_s_ago": 10.0,
    }  # fmt: skip


def test_what_begins_alike_shares_a_run_and_the_latest_comes_first() -> None:
    blocks = [
        *chain("abcd", last_use=100.0), *chain("abxy", last_use=300.0), *chain("q", last_use=200.0),
    ]  # fmt: skip
    random.Random(0).shuffle(blocks)
    found = rows(blocks)
    assert [(row["after"], row["start"], row["tokens"]) for row in found] == [
        (None, 0, 128), (0, 128, 128), (0, 128, 128), (None, 0, 64),
    ]  # fmt: skip
    assert [row["used_s_ago"] for row in found] == [700.0, 700.0, 900.0, 800.0]


def test_what_tiers_have_of_a_run_is_told_by_tier() -> None:
    blocks = chain("abcd", ram=5)
    blocks[3].disk_bytes, blocks[3].tokens, blocks[3].unsaved = 0, 9, True
    blocks[0].ram_bytes = 0
    (row,) = rows(blocks, live={name("a"), name("ab"), name("elsewhere")})
    assert (row["tokens"], row["live_tokens"]) == (201, 128)
    assert (row["ram_tokens"], row["disk_tokens"]) == (137, 192)
    assert row["unsaved_blocks"] == 1


def test_a_run_may_begin_in_the_middle() -> None:
    (row,) = rows(chain("abcd")[2:])
    assert (row["after"], row["start"], row["tokens"]) == (None, 128, 128)


def test_namespaces_share_nothing() -> None:
    blocks = chain("ab")
    for each in chain("ab"):
        each.namespace_id = b"another!"
        blocks.append(each)
    assert [row["tokens"] for row in rows(blocks)] == [128, 128]


def test_a_list_is_cut_and_says_so() -> None:
    blocks = [each for letter in "abcdef" for each in chain(f"r{letter}")]
    found, whole = listed(runs(blocks), 4, set(), 64, 0.0)
    assert not whole
    assert [row["after"] for row in found] == [None, 0, 0, 0]
    assert len(listed(runs(blocks), 7, set(), 64, 0.0)[0]) == 7
    assert listed(runs(blocks), 7, set(), 64, 0.0)[1]


def test_a_tree_may_be_as_deep_as_it_likes() -> None:
    """One that branches at every block, deeper than Python calls itself."""
    text = "a" * 3000
    blocks = [*chain(text), *(chain(text[:i] + "b")[-1] for i in range(1, 3000, 2))]
    found, whole = listed(runs(blocks), 10_000, set(), 64, 0.0)
    assert whole
    assert sum(row["blocks"] for row in found) == len(blocks)
    assert all(row["after"] is None or row["after"] < at for at, row in enumerate(found))
