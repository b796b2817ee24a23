"""The fields of a request that say how tokens are chosen, in llama-server's and OpenAI's words."""

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

BIASES_MAX = 1024
BIAS_MAX = 10_000.0
PROBS_MAX = 100
"""The most likeliest tokens that are told for each token of an answer."""
BREAKERS_MAX = 16
_BREAKER_CHARACTERS_MAX = 40
_INT_MAX = 2**31 - 1


def expected(text: str) -> WrapValidator:
    """One sentence instead of one complaint for each member of a union."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise PydanticCustomError("expected", "must be " + text) from error

    return WrapValidator(validate)


class StrictBody(BaseModel):
    """Types are strict; unknown fields are ignored, but for what subclasses make of them."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


_Bias = Annotated[float, Field(ge=-BIAS_MAX, le=BIAS_MAX)] | bool
_Pair = Annotated[tuple[int | str, _Bias], Field(strict=False)]  # JSON has lists only
LogitBias = Annotated[
    Annotated[dict[str, _Bias], Field(max_length=BIASES_MAX)]
    | Annotated[list[_Pair], Field(max_length=BIASES_MAX, fail_fast=True)],
    expected(
        "an object of token ids or texts and biases, or a list of such pairs; a bias lies in "
        f"{-BIAS_MAX:.0f} … {BIAS_MAX:.0f} or is false, which forbids the token; at most "
        f"{BIASES_MAX} of them"
    ),
]
SamplerNames = Annotated[
    str | Annotated[list[str], Field(max_length=32, fail_fast=True)],
    expected("a list of samplers' names, or a text of their letters"),
]
_Breakers = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=_BREAKER_CHARACTERS_MAX)]],
    Field(max_length=BREAKERS_MAX, fail_fast=True),
]
_Sane = Annotated[float, Field(ge=0, le=1000)]
_Share = Annotated[float, Field(ge=0, le=1)]
_LookBack = Annotated[int, Field(ge=-1, le=_INT_MAX)]


class SamplingFields(StrictBody):
    """Null means the default, everywhere."""

    ignore_eos: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: int | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: _Share | None = None
    seed: int | None = None
    repeat_penalty: Annotated[float, Field(gt=0)] | None = None
    repeat_last_n: _LookBack | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None

    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_n_sigma: Annotated[float, Field(le=1000)] | None = None
    min_keep: Annotated[int, Field(ge=0, le=_INT_MAX)] | None = None
    xtc_probability: _Share | None = None
    xtc_threshold: _Share | None = None
    dynatemp_range: _Sane | None = None
    dynatemp_exponent: _Sane | None = None
    dry_multiplier: _Sane | None = None
    dry_base: Annotated[float, Field(ge=1, le=1000)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=0, le=_INT_MAX)] | None = None
    dry_penalty_last_n: _LookBack | None = None
    dry_sequence_breakers: _Breakers | None = None
    mirostat: Annotated[int, Field(ge=0, le=2)] | None = None
    mirostat_tau: _Sane | None = None
    mirostat_eta: _Sane | None = None
    samplers: SamplerNames | None = None
    logit_bias: LogitBias | None = None

    n_probs: Annotated[int, Field(ge=0, le=PROBS_MAX)] | None = None
    post_sampling_probs: bool | None = None

    grammar: str | None = None
    """GBNF."""
    json_schema: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    """OpenAI's: text, json_object or json_schema."""

    @property
    def shares_wanted(self) -> int | None:
        """How many likeliest tokens are to be told with each token; None: not even its own
        share.
        """
        return self.n_probs or None
