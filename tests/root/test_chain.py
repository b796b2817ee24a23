import struct

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spillcache import chain as chain_module
from spillcache.chain import BlockHash, Chain, as_tokens, block_hash, chain_hashes, chain_root
from spillcache.namespace import Namespace

DIGEST = bytes(range(32))
SALT = b"tenant-7"

# Computed once; a change of any of them makes every stored cache unreachable.
GOLDEN_ROOT = "1aa5d81fd601d7fdf244168788464153d95e50ebfd9fcbcd3c1eb4c65e57022a"
GOLDEN_SALTED_ROOT = "6536bd40fdaf3719b816730b72f8cf8d69070b4a72eaf1e825ead742e5be42f4"
GOLDEN_CHAIN = [
    "97789dea3f0104d3a7428f9e527046c088efa8dcf9a5e786f0a51eaa899e011b",
    "97789deacde00c9119705ccdefc8600c90d4d3fe360069fd90927e43ba3c367b",
    "97789deaf51f9a59cd0e28e726ff969421e31ba6786c8d582354be160690e79b",
]
GOLDEN_MEDIA_CHAIN = [
    "97789dea3f0104d3a7428f9e527046c088efa8dcf9a5e786f0a51eaa899e011b",
    "97789deae585d6492edabf066aace9528d82d52137ed9bc2c4adc736559ae4a4",
    "97789dea55ada971752793e388a109513a174cc9b523f9cd5212747db33062fa",
]


def spelled_out(root: bytes, blocks: list[tuple[list[int], bytes]]) -> list[bytes]:
    """The formula of docs/format.md, one step at a time, sharing nothing with the package."""
    hashes = []
    before = root
    for index, (tokens, extra) in enumerate(blocks):
        hasher = blake3()
        hasher.update(before)
        for token in tokens:
            hasher.update(struct.pack("<I", token))
        hasher.update(struct.pack("<I", len(extra)))
        hasher.update(extra)
        digest = hasher.digest()
        before = digest if index % 64 == 0 else before[:4] + digest[4:]
        hashes.append(before)
    return hashes


def test_roots_are_golden() -> None:
    assert chain_root(DIGEST).hex() == GOLDEN_ROOT
    assert chain_root(DIGEST, SALT).hex() == GOLDEN_SALTED_ROOT
    keyed = blake3(derive_key_context="spillcache v1 chain root")
    keyed.update(DIGEST)
    keyed.update(SALT)
    assert keyed.hexdigest() == GOLDEN_SALTED_ROOT


def test_chain_is_golden() -> None:
    tokens = [*range(6), 2**32 - 1, 262143, 0, 0, 7, 8]
    root = chain_root(DIGEST)
    hashes = chain_hashes(root, tokens, 4)
    assert [digest.hex() for digest in hashes] == GOLDEN_CHAIN
    assert hashes == spelled_out(root, [(tokens[i : i + 4], b"") for i in (0, 4, 8)])


def test_media_change_their_block_and_all_after() -> None:
    tokens = [*range(6), 2**32 - 1, 262143, 0, 0, 7, 8]
    root = chain_root(DIGEST)
    hashes = chain_hashes(root, tokens, 4, {1: b"image digest"})
    assert [digest.hex() for digest in hashes] == GOLDEN_MEDIA_CHAIN
    blocks = [(tokens[:4], b""), (tokens[4:8], b"image digest"), (tokens[8:], b"")]
    assert hashes == spelled_out(root, blocks)


def test_an_extra_is_not_a_token() -> None:
    root = chain_root(DIGEST)
    as_extra = chain_hashes(root, [1], 1, {0: struct.pack("<I", 2)})
    assert as_extra != chain_hashes(root, [1, 2], 2)


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
    st.integers(1, 9),
    st.binary(max_size=9),
)
def test_chain_equals_the_formula(tokens: list[int], block_tokens: int, salt: bytes) -> None:
    root = chain_root(DIGEST, salt)
    whole = len(tokens) // block_tokens
    blocks = [
        (tokens[index * block_tokens : (index + 1) * block_tokens], b"") for index in range(whole)
    ]
    assert chain_hashes(root, tokens, block_tokens) == spelled_out(root, blocks)


@pytest.mark.parametrize(
    ("count", "blocks"), [(0, 0), (1, 0), (63, 0), (64, 1), (65, 1), (127, 1), (128, 2)]
)
def test_only_whole_blocks_have_a_hash(count: int, blocks: int) -> None:
    assert len(chain_hashes(chain_root(DIGEST), list(range(count)), 64)) == blocks


def test_a_prefix_has_a_prefix_of_the_chain() -> None:
    root = chain_root(DIGEST)
    long = chain_hashes(root, np.arange(640), 64)
    assert chain_hashes(root, np.arange(320), 64) == long[:5]
    changed = np.arange(640)
    changed[200] += 1
    branch = chain_hashes(root, changed, 64)
    assert branch[:3] == long[:3]
    assert not set(branch[3:]) & set(long)


def test_block_by_block_equals_the_chain() -> None:
    parent = chain_root(DIGEST)
    tokens = as_tokens(range(520))
    for index, expected in enumerate(chain_hashes(parent, tokens, 4, {2: b"x"})):
        extras = {0: b"x"} if index == 2 else None
        block = tokens[index * 4 : (index + 1) * 4]
        (parent,) = chain_hashes(parent, block, 4, extras, first=index)
        assert parent == expected


def test_64_blocks_in_a_row_have_names_that_begin_alike() -> None:
    hashes = chain_hashes(chain_root(DIGEST), range(200), 1)
    beginnings = [block[:4] for block in hashes]
    assert [beginnings.count(each) for each in dict.fromkeys(beginnings)] == [64, 64, 64, 8]
    assert len({block[4:] for block in hashes}) == 200
    branch = chain_hashes(chain_root(DIGEST), [*range(70), 0], 1)
    assert branch[70][:4] == hashes[70][:4]
    assert branch[70] != hashes[70]


def test_a_chain_that_grows_has_the_names_of_one_that_was_made_at_once() -> None:
    namespace = Namespace.of({"engine": "test"})
    at_once, grown = Chain(namespace, 4, range(600)), Chain(namespace, 4)
    for start in range(0, 600, 7):
        grown.extend(range(start, min(start + 7, 600)))
    assert grown.hashes == at_once.hashes


def test_namespaces_and_salts_share_nothing() -> None:
    other = DIGEST[:-1] + b"\0"
    roots = {
        chain_root(DIGEST),
        chain_root(other),
        chain_root(DIGEST, b"a"),
        chain_root(other, b"a"),
    }
    assert len(roots) == 4
    chains = [chain_hashes(root, range(64), 64)[0] for root in roots]
    assert len(set(chains)) == 4


@pytest.mark.parametrize("digest", [b"", bytes(31), bytes(33)])
def test_a_digest_of_another_length_is_refused(digest: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        chain_root(digest)


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_ids_outside_u32_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="token ids"):
        chain_hashes(chain_root(DIGEST), [1, bad], 1)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_any_integer_array_will_do(dtype: type) -> None:
    root = chain_root(DIGEST)
    assert chain_hashes(root, np.arange(128, dtype=dtype), 64) == chain_hashes(root, range(128), 64)
    assert as_tokens(np.arange(3, dtype=dtype)).dtype == np.uint32


# A chain that grows.

NAMESPACE = Namespace.of({"model": "x"})
SMALL_IDS = st.lists(st.integers(0, 3), max_size=30)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), SMALL_IDS),
        st.tuples(st.just("push"), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
        st.tuples(st.just("shared"), SMALL_IDS),
    ),
    max_size=12,
)


def agree(chain: Chain, model: list[int], salt: bytes) -> None:
    """All that a chain says is what a list of its tokens says."""
    size = chain.block_tokens
    root = chain_root(NAMESPACE.digest, salt)
    blocks = [(model[i * size : (i + 1) * size], b"") for i in range(len(model) // size)]
    assert chain.hashes == spelled_out(root, blocks)
    assert (len(chain), chain.blocks) == (len(model), len(blocks))
    assert chain.tokens.tolist() == model
    assert chain.tokens.dtype == np.uint32
    before = [root, *chain.hashes]
    assert [chain.parent(i) for i in range(chain.blocks + 1)] == before


@given(SMALL_IDS, OPERATIONS, st.integers(1, 7), st.binary(max_size=4))
def test_a_chain_is_a_list_of_tokens_with_hashes(
    first: list[int], operations: list, block_tokens: int, salt: bytes
) -> None:
    chain, model = Chain(NAMESPACE, block_tokens, first, salt), list(first)
    agree(chain, model, salt)
    for name, value in operations:
        if name == "extend":
            chain.extend(value)
            model += value
        elif name == "push":
            chain.push(value)
            model.append(value)
        elif name == "truncate":
            chain.truncate(value)
            del model[value:]
        else:
            same = [a == b for a, b in zip(model, value, strict=False)]
            expected = same.index(False) if False in same else len(same)
            assert chain.shared(as_tokens(value)) == expected
        agree(chain, model, salt)


def test_a_chain_outgrows_its_buffer() -> None:
    chain, model = Chain(NAMESPACE, 64), []
    for start in range(0, 3000, 100):
        chain.extend(range(start, start + 100))
        model += range(start, start + 100)
    agree(chain, model, b"")
    chain.extend(np.arange(10_000))
    agree(chain, [*model, *range(10_000)], b"")


def test_tokens_pushed_one_by_one_outgrow_the_buffer() -> None:
    chain = Chain(NAMESPACE, 64)
    for token in range(600):
        chain.push(token)
    agree(chain, list(range(600)), b"")


@given(SMALL_IDS, st.lists(SMALL_IDS, max_size=3), st.integers(1, 7))
def test_relatives_change_nothing_but_the_work(
    tokens: list[int], others: list[list[int]], block_tokens: int
) -> None:
    relatives = [Chain(NAMESPACE, block_tokens, other) for other in others]
    chain = Chain(NAMESPACE, block_tokens, tokens, relatives=relatives)
    agree(chain, tokens, b"")
    chain.extend([1, 2, 3])
    for other, relative in zip(others, relatives, strict=True):
        agree(relative, other, b"")


def test_what_a_relative_shares_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = Chain(NAMESPACE, 4, range(40)), Chain(NAMESPACE, 4, [*range(12), 99])
    strangers = [
        Chain(NAMESPACE, 4, range(40), b"salt"),
        Chain(Namespace.of({"model": "y"}), 4, range(40)),
        Chain(NAMESPACE, 8, range(40)),
    ]
    hashed: list[int] = []
    real = chain_module.chain_hashes

    def counted(
        root: BlockHash, tokens: NDArray[np.uint32], size: int, *, first: int
    ) -> list[BlockHash]:
        hashed.append(len(tokens) // size)
        return real(root, tokens, size, first=first)

    monkeypatch.setattr(chain_module, "chain_hashes", counted)
    prompt = [*range(38), 99, 99, 1, 2, 3, 4]  # nine blocks are near's, three are far's
    chain = Chain(NAMESPACE, 4, prompt, relatives=[far, near, *strangers])
    assert hashed == [2]
    monkeypatch.undo()
    agree(chain, prompt, b"")


def test_a_tails_name_is_that_of_its_tokens_whatever_was_named_before() -> None:
    chain = Chain(NAMESPACE, 4, [1, 2, 3, 4, 5, 6])

    def names() -> list[BlockHash]:
        return [chain.tail(1, count) for count in (1, 2, 4)]

    def fresh(*tail: int) -> list[BlockHash]:
        other = Chain(NAMESPACE, 4, [1, 2, 3, 4, *tail])
        return [block_hash(other.hashes[0], other.tail_tokens(1, n)) for n in (1, 2, 4)]

    assert names() == names() == fresh(5, 6)
    chain.push(7)
    assert names() == fresh(5, 6, 7)
    chain.extend([8, 9])
    assert names() == fresh(5, 6, 7, 8, 9)
    chain.truncate(5)
    assert names() == fresh(5)
    chain.push(10)
    assert names() == fresh(5, 10)


def test_a_token_that_completes_a_block_names_it() -> None:
    chain = Chain(NAMESPACE, 4, [1, 2, 3])
    assert chain.blocks == 0
    assert chain.parent(0) == chain.root
    chain.extend([4])
    assert chain.blocks == 1
    first = chain.hashes[0]
    chain.truncate(3)
    assert chain.blocks == 0
    chain.extend([5])
    assert chain.hashes[0] != first
    chain.truncate(3)
    chain.extend([4])
    assert chain.hashes == [first]


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_a_chain_refuses_ids_outside_u32_and_stays(bad: int) -> None:
    chain = Chain(NAMESPACE, 2, [1, 2, 3])
    with pytest.raises(ValueError, match="token ids"):
        chain.extend([4, bad])
    agree(chain, [1, 2, 3], b"")


def test_chains_of_other_namespaces_and_salts_share_nothing() -> None:
    other = Namespace.of({"model": "y"})
    chains = [Chain(n, 4, range(8), salt) for n in (NAMESPACE, other) for salt in (b"", b"s")]
    assert len({digest for chain in chains for digest in [chain.root, *chain.hashes]}) == 12
