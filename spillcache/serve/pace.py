"""How the engine's time is shared while answers are being written: between them, restores, and the
prefill of other prompts.

An answer's reader sees every pause between two tokens, so restores and prefills are cut into
pieces; but they go on, whatever else is to be done. All times are seconds; engine's thread.
"""

RESTORE_SHARE = 0.25
"""Restores take this much of the time that everything else takes: so much longer is a step."""
PREFILL_SHARE = 2.0
"""Prefills take this much of the time that answers take: two thirds of the engine, then."""
CALL_S = 0.1
"""A prefill call while others answer or restore is to take no longer, if a block does not."""
_WEIGHT = 0.5
"""Of the latest measurement, in an average."""


class RestorePace:
    """Whether restores may import another block now; one budget for all of them."""

    def __init__(self) -> None:
        self._credit = 0.0
        self._block = 0.0
        """What a block takes."""
        self._rested = False

    def rests(self, wanted: bool) -> bool:
        """Whether a step goes without restores because it has another pause in it; never two steps
        in a row.
        """
        self._rested = wanted and not self._rested
        return self._rested

    def others_took(self, seconds: float) -> None:
        """The rest of a step is done. What is not used is not saved up, beyond one block."""
        earned = RESTORE_SHARE * seconds
        self._credit = min(self._credit + earned, max(earned, self._block))

    def took(self, seconds: float) -> None:
        """A block was imported."""
        self._credit -= seconds
        self._block += _WEIGHT * (seconds - self._block) if self._block else seconds

    def allows(self) -> bool:
        """Whether the next block's time is there. A block that takes longer than what one step
        allows comes every few steps.
        """
        return self._credit >= self._block


class PrefillPace:
    """Whether it is a prefill's turn, and how many tokens its call may have."""

    def __init__(self) -> None:
        self._debt = 0.0
        self._token = 0.0
        """What a token of a prefill call takes."""

    def answers_took(self, seconds: float) -> None:
        """All answers went on by a token; 0.0 when there are none, who then have no claim."""
        self._debt = self._debt - PREFILL_SHARE * seconds if seconds else 0.0

    def took(self, seconds: float, tokens: int) -> None:
        """A prefill call is done."""
        self._debt = max(self._debt, 0.0) + seconds
        per_token = seconds / tokens
        self._token += _WEIGHT * (per_token - self._token) if self._token else per_token

    def is_due(self) -> bool:
        """Whether the answers have had their share since the last call."""
        return self._debt <= 0.0

    def call_tokens(self, most: int, block: int) -> int:
        """How many tokens a call beside others may have: whole blocks, at least one."""
        if not self._token:
            return min(most, block)
        return max(block, min(most, int(CALL_S / self._token) // block * block))
