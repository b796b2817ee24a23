"""How a prompt is cut into decode calls; pure functions.

The canonical split: whole blocks in calls that are multiples of a block, at block-aligned
positions, then the tail in a call of its own, cold or warm alike. A prompt that ends with a block
has no tail: there the last token is taken back and computed in a call of its own. Calls of whole
blocks give the same bits however many blocks they hold, so a restored prefix followed by the rest
of the plan gives the bits of a cold run.
"""

from spillcache.state import Geometry


def next_stop(start: int, total: int, call_tokens: int, geometry: Geometry) -> int:
    """Where the call that starts at position ``start`` of a prompt of ``total`` tokens ends.

    ``start`` is less than ``total``. ``call_tokens``: the most tokens in this call, at least one
    block. Calls also end where a boundary is to be taken.
    """
    size = geometry.block_tokens
    cut = geometry.blocks_reusable(total) * size
    if start >= cut:
        return min(total, start + call_tokens)
    if start % size:
        return min(start // size * size + size, cut)
    stop = min(start + call_tokens // size * size, cut)
    if geometry.boundary_stride:
        stride = geometry.boundary_stride * size
        stop = min(stop, (start // stride + 1) * stride)
    return stop


def gives_logits(start: int, stop: int, total: int, geometry: Geometry) -> bool:
    """Whether the call from ``start`` to ``stop`` is a prompt's last: the tail, or the last token
    alone.
    """
    has_tail = total > geometry.blocks_reusable(total) * geometry.block_tokens
    return stop == total and (has_tail or start == total - 1)


def takes_boundary(stop: int, total: int, geometry: Geometry) -> bool:
    """Whether a boundary is kept at position ``stop`` while a prompt of ``total`` tokens is
    prefilled.
    """
    size = geometry.block_tokens
    if not geometry.has_boundary or stop % size or not stop:
        return False
    if stop == geometry.blocks_reusable(total) * size:
        return True
    return bool(geometry.boundary_stride) and (stop // size) % geometry.boundary_stride == 0


def live_prefix(held: int, shared: int, total: int, geometry: Geometry) -> int:
    """How many tokens of a live sequence a prompt of ``total`` tokens goes on from.

    ``held``: the sequence's length; ``shared``: how many leading tokens are the prompt's. A
    sequence that is a prefix of the prompt goes on from its end; otherwise from a block boundary,
    so that what follows keeps the canonical split.
    """
    if shared == held and held < total:
        return held
    blocks = min(shared // geometry.block_tokens, geometry.blocks_reusable(total))
    return blocks * geometry.block_tokens
