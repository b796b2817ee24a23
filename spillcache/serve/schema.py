"""What clients may send: OpenAI's chat completions and completions, with llama-server's extras.

Types are strict, as OpenAI's are: ``"max_tokens": "5"`` is an error. Fields that are unknown are
ignored, but for those that begin with ``cache_``, which decide over privacy; fields that are known
but not offered are refused unless they say nothing, because an answer that ignores them would be a
wrong answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from spillcache.chain import as_tokens
from spillcache.config import RequestDefaults
from spillcache.engine.base import SamplingParams
from spillcache.errors import RequestError, Unsupported
from spillcache.serve.job import GenerationRequest
from spillcache.serve.tool_fields import ToolChoice, Tools, chosen_name, schemas_of
from spillcache.serve.tool_prompt import call_schema

STOP_STRINGS_MAX = 32
STOP_CHARACTERS_MAX = 1024

_CACHE_FIELDS = ("cache_prompt", "cache_store", "cache_salt")
_NAME_SHOWN = 64

_NO_DEFAULTS = RequestDefaults()
_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
)
"""Fields that a body and SamplingParams call by the same name."""

_SEEDS = 2**32 - 1
"""llama.cpp's seeds are u32, and the last one means "a random one": it is left out."""


def _expected(text: str) -> WrapValidator:
    """One sentence instead of one complaint for each member of a union."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise PydanticCustomError("expected", "must be " + text) from error

    return WrapValidator(validate)


Prompt = Annotated[
    str
    | Annotated[list[int], Field(fail_fast=True)]
    | Annotated[list[str], Field(fail_fast=True)]
    | Annotated[list[Annotated[list[int], Field(fail_fast=True)]], Field(fail_fast=True)],
    _expected("a text, a list of token ids, or a list of one of these"),
]
_Piece = int | str
_Pieces = Annotated[list[_Piece], Field(fail_fast=True)]
NativePrompt = Annotated[
    str | Annotated[list[_Piece | _Pieces], Field(fail_fast=True)],
    _expected("a text, a list of texts and token ids, or a list of one of these"),
]
Content = Annotated[
    str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None,
    _expected("a text, a list of parts, or null"),
]
Stop = Annotated[
    Annotated[str, Field(max_length=STOP_CHARACTERS_MAX)]
    | Annotated[
        list[Annotated[str, Field(max_length=STOP_CHARACTERS_MAX)]],
        Field(max_length=STOP_STRINGS_MAX, fail_fast=True),
    ]
    | None,
    _expected(
        f"a text or a list of at most {STOP_STRINGS_MAX} texts, "
        f"each of at most {STOP_CHARACTERS_MAX} characters"
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class LoraScale(_Body):
    """One of ``lora``, and of what POST /lora-adapters takes."""

    id: Annotated[int, Field(ge=0)]
    scale: float


class LoraBody(RootModel[list[LoraScale]]):
    """POST /lora-adapters, as llama-server has it."""

    model_config = ConfigDict(strict=True, frozen=True)

    @property
    def pairs(self) -> tuple[tuple[int, float], ...]:
        """Ids and scales."""
        return tuple((each.id, each.scale) for each in self.root)


class StreamOptions(_Body):
    """``stream_options``."""

    include_usage: bool | None = None


class Message(BaseModel):
    """One message; more fields (``name``, ``tool_calls``…) go to the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: str
    content: Content = None


class GenerationBody(_Body):
    """What both kinds of completion share. Null means the default, everywhere."""

    # Unknown fields are kept, so that ``check_offered`` can see their names.
    model_config = ConfigDict(extra="allow")

    prompt_field: ClassVar[str]
    """The field that the prompt comes from."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = None
    stop: Stop = None
    ignore_eos: bool | None = None
    return_tokens: bool | None = None
    """Token ids beside the text, as llama-server's: ``tokens`` in each chunk, or in the answer."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: int | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    repeat_penalty: Annotated[float, Field(gt=0)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None

    cache_prompt: bool | None = None
    cache_store: bool | None = None
    cache_salt: str | None = None

    lora: list[LoraScale] | None = None

    n: Annotated[int, Field(ge=1)] | None = None

    # Known, not offered: see _NEUTRAL.
    best_of: Any = None
    chat_template_kwargs: Any = None
    dry_multiplier: Any = None
    dynatemp_range: Any = None
    grammar: Any = None
    json_schema: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    mirostat: Any = None
    n_probs: Any = None
    response_format: Any = None
    top_logprobs: Any = None
    typical_p: Any = None
    xtc_probability: Any = None

    @property
    def salt(self) -> bytes:
        """What keeps this request's state and texts apart from others'."""
        return (self.cache_salt or "").encode()

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_offered(self) -> None:
        """Raise Unsupported, naming the field, when a field asks for what this server can't do.

        RequestError for a misspelt ``cache_`` field: ``cache_stor: false`` must not be stored.
        """
        for name in self.model_extra or ():
            if name.lower().startswith("cache_"):
                raise RequestError(
                    f"{name[:_NAME_SHOWN]} is no field of this server, and a prompt should not be "
                    f"kept by mistake; there are {', '.join(_CACHE_FIELDS)}",
                    name[:_NAME_SHOWN],
                )
        for name, says_nothing in _NEUTRAL.items():
            value = getattr(self, name) if name in type(self).model_fields else None
            if value is not None and not says_nothing(value):
                raise Unsupported(f"{name} is not supported by this server", name)

    def to_request(
        self, tokens: list[int], defaults: RequestDefaults = _NO_DEFAULTS
    ) -> GenerationRequest:
        """The request for the scheduler, for a prompt of these token ids (of the vocabulary).

        ``defaults`` stand for what the client left out. Raises RequestError for a limit of 0.
        """
        return GenerationRequest(
            tokens=as_tokens(tokens),
            max_tokens=self._limit(defaults),
            sampling=sampling_params(self, defaults),
            stop=self._stop_strings(),
            salt=self.salt,
            cache_prompt=self.cache_prompt is not False,
            cache_store=self.cache_store is not False,
            lora=None if self.lora is None else tuple((a.id, a.scale) for a in self.lora),
        )

    def _limit(self, defaults: RequestDefaults) -> int | None:
        for limit in (self.max_completion_tokens, self.max_tokens, self.n_predict):
            if limit is not None:
                if limit == 0:
                    raise RequestError("n_predict must be at least 1, or -1", "n_predict")
                return None if limit == -1 else limit
        return defaults.max_tokens

    def _stop_strings(self) -> tuple[str, ...]:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in stop if text)


def shared_fields(body: GenerationBody) -> dict[str, Any]:
    """What was given of the fields that all bodies have, and unknown ones that ``check_offered``
    must see.
    """
    extra = {
        name: value
        for name, value in (body.model_extra or {}).items()
        if name.lower().startswith("cache_")
    }
    known = {name: getattr(body, name) for name in GenerationBody.model_fields}
    return extra | {name: value for name, value in known.items() if value is not None}


def sampling_params(body: GenerationBody | None, defaults: RequestDefaults) -> SamplingParams:
    """How tokens are chosen: as the body says, else as ``defaults`` do, else as the engine does."""

    def asked(name: str) -> Any:
        value = getattr(body, name, None)
        return getattr(defaults, name, None) if value is None else value

    seed = asked("seed")
    given: dict[str, Any] = {name: asked(name) for name in _SAMPLING_FIELDS} | {
        "seed": None if seed is None or seed == -1 else seed % _SEEDS,
        "penalty_last_n": asked("repeat_last_n"),
    }
    return SamplingParams(**{key: value for key, value in given.items() if value is not None})


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    prompt_field = "messages"

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]

    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    parallel_tool_calls: bool | None = None
    tool_choice: ToolChoice = None
    tools: Tools = None

    @property
    def call_schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must follow, where it must be a call.

        Raises RequestError for a choice that none of the tools can fulfil.
        """
        name = chosen_name(self.tool_choice)
        if name is None and self.tool_choice != "required":
            return None
        if not self.tools or name not in {None, *schemas_of(self.tools)}:
            raise RequestError("tool_choice: there is no such tool", "tool_choice")
        return call_schema(self.tools, name)

    def held(self) -> "ChatBody":
        """The same request, its answer held to a call where it must be one; raises RequestError."""
        schema = self.call_schema
        return self if schema is None else self.model_copy(update={"json_schema": schema})

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages for ``Engine.chat_prompt``."""
        return _plain(self.messages)


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt_field = "prompt"

    prompt: Prompt

    echo: Any = None
    suffix: Any = None

    def one_prompt(self) -> str | list[int]:
        """The prompt: its text or its token ids.

        Raises RequestError when it is empty, Unsupported when there are several.
        """
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise _several()
            prompt = prompt[0]
        if not prompt:
            raise _nothing()
        return prompt  # type: ignore[return-value]  # a list of lists was unpacked above


class NativeBody(GenerationBody):
    """POST /completion, as llama-server has it."""

    prompt_field = "prompt"

    prompt: NativePrompt
    id_slot: Annotated[int, Field(ge=-1)] | None = None
    """A hint that is not needed: the tokens find their slot."""

    image_data: Any = None
    min_keep: Any = None
    multimodal_data: Any = None
    n_indent: Any = None
    post_sampling_probs: Any = None
    samplers: Any = None
    t_max_predict_ms: Any = None
    top_n_sigma: Any = None

    def one_prompt(self) -> list[int | str]:
        """The prompt's pieces: texts, and token ids between them.

        Raises RequestError when it is empty, Unsupported when there are several.
        """
        pieces: list[Any] = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if pieces and not any(isinstance(piece, int) for piece in pieces):
            # Without token ids between them, texts are prompts of their own, as lists are.
            if len(pieces) > 1:
                raise _several()
            pieces = pieces[0] if isinstance(pieces[0], list) else pieces
        if any(isinstance(piece, list) for piece in pieces):
            raise RequestError("prompt: a list in a prompt with token ids", "prompt")
        if not any(piece != "" for piece in pieces):
            raise _nothing()
        return pieces

    def _limit(self, defaults: RequestDefaults) -> int | None:
        # llama-server computes the prompt, and gives a token all the same.
        if self.n_predict == 0 and self.max_tokens is None and self.max_completion_tokens is None:
            return 1
        return super()._limit(defaults)


class TemplateBody(_Body):
    """POST /apply-template."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    add_generation_prompt: bool = True
    tools: Tools = None

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages for ``Engine.chat_prompt``."""
        return _plain(self.messages)


def _plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.model_dump() for message in messages]


def _several() -> Unsupported:
    what = "prompt: several prompts in one request are not supported; send one each"
    return Unsupported(what, "prompt")


def _nothing() -> RequestError:
    return RequestError("the prompt is empty: there is nothing to complete", "prompt")


def _empty(value: Any) -> bool:
    return value in ("", [], {}, False, 0)


def _is(*neutral: Any) -> Callable[[Any], bool]:
    # Types are compared too: ``logprobs: 0`` asks for something, ``logprobs: false`` does not.
    return lambda value: any(type(value) is type(one) and value == one for one in neutral)


_NEUTRAL: Mapping[str, Callable[[Any], bool]] = {
    "n": _is(1),
    "best_of": _is(1),
    "functions": _empty,
    "function_call": _is("none", "auto"),
    "logprobs": _is(False),
    "top_logprobs": _is(0),
    "n_probs": _is(0),
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "json_schema": _empty,
    "grammar": _empty,
    "logit_bias": _empty,
    "suffix": _empty,
    "echo": _is(False),
    "audio": _empty,
    "modalities": _is(["text"], []),
    "chat_template_kwargs": _empty,
    "mirostat": _is(0),
    "typical_p": _is(1, 1.0),
    "dynatemp_range": _is(0, 0.0),
    "dry_multiplier": _is(0, 0.0),
    "xtc_probability": _is(0, 0.0),
    "image_data": _empty,
    "multimodal_data": _empty,
    "min_keep": _is(0),
    "n_indent": _is(0),
    "post_sampling_probs": _is(False),
    "samplers": _empty,
    "t_max_predict_ms": lambda value: type(value) in {int, float} and value <= 0,
    "top_n_sigma": lambda value: type(value) in {int, float} and value < 0,
}
"""Fields that are known but not offered, and the values with which they ask for nothing."""


class TokenizeBody(_Body):
    """POST /tokenize, as llama-server has it."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(_Body):
    """POST /detokenize."""

    tokens: Annotated[list[int], Field(fail_fast=True)]
