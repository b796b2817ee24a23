"""What clients may send: OpenAI's chat completions and completions, with llama-server's extras.

Types are strict, as OpenAI's are: ``"max_tokens": "5"`` is an error. Fields that are unknown are
ignored, but for those that begin with ``cache_``, which decide over privacy; fields that are known
but not offered are refused unless they say nothing, because an answer that ignores them would be a
wrong answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, RootModel

from spillcache.chain import as_tokens
from spillcache.config import RequestDefaults
from spillcache.engine.base import SamplingParams
from spillcache.errors import NotOffered, RequestError, Unsupported
from spillcache.serve.job import GenerationRequest
from spillcache.serve.sampling import sampling_params
from spillcache.serve.sampling_fields import SamplingFields, StrictBody, expected
from spillcache.serve.tool_fields import ToolChoice, Tools, chosen_name, schemas_of
from spillcache.serve.tool_prompt import call_schema

STOP_STRINGS_MAX = 32
STOP_CHARACTERS_MAX = 1024
_TOP_LOGPROBS_MAX = 20
_CHOICES_MAX = 32
"""OpenAI's own limit."""
_CHUNKS_MAX = 256

_CACHE_FIELDS = ("cache_prompt", "cache_store", "cache_salt")
_NAME_SHOWN = 64
_NAMES_SHOWN = 8

_MEDIA = frozenset({"audio", "image_data", "modalities", "multimodal_data"})

_NO_DEFAULTS = RequestDefaults()
Prompt = Annotated[
    str
    | Annotated[list[int], Field(fail_fast=True)]
    | Annotated[list[str], Field(fail_fast=True)]
    | Annotated[list[Annotated[list[int], Field(fail_fast=True)]], Field(fail_fast=True)],
    expected("a text, a list of token ids, or a list of one of these"),
]
_Piece = int | str
_Pieces = Annotated[list[_Piece], Field(fail_fast=True)]
NativePrompt = Annotated[
    str | Annotated[list[_Piece | _Pieces], Field(fail_fast=True)],
    expected("a text, a list of texts and token ids, or a list of one of these"),
]
Content = Annotated[
    str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None,
    expected("a text, a list of parts, or null"),
]
Stop = Annotated[
    Annotated[str, Field(max_length=STOP_CHARACTERS_MAX)]
    | Annotated[
        list[Annotated[str, Field(max_length=STOP_CHARACTERS_MAX)]],
        Field(max_length=STOP_STRINGS_MAX, fail_fast=True),
    ]
    | None,
    expected(
        f"a text or a list of at most {STOP_STRINGS_MAX} texts, "
        f"each of at most {STOP_CHARACTERS_MAX} characters"
    ),
]


class LoraScale(StrictBody):
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


class StreamOptions(StrictBody):
    """``stream_options``."""

    include_usage: bool | None = None


class Message(BaseModel):
    """One message; more fields (``name``, ``tool_calls``…) go to the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: str
    content: Content = None


class GenerationBody(SamplingFields):
    """What both kinds of completion share. Null means the default, everywhere."""

    # Unknown fields are kept, so that ``check_offered`` can see their names.
    model_config = ConfigDict(extra="allow")

    prompt_field: ClassVar[str]
    """The field that the prompt comes from."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=-1)] | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = None
    stop: Stop = None
    return_tokens: bool | None = None
    """Token ids beside the text, as llama-server's: ``tokens`` in each chunk, or in the answer."""

    cache_prompt: bool | None = None
    cache_store: bool | None = None
    cache_salt: str | None = None

    id_slot: Annotated[int, Field(ge=-1)] | None = None
    """The slot to take, if it is idle; -1: whichever."""
    lora: list[LoraScale] | None = None

    n: Annotated[int, Field(ge=1, le=_CHOICES_MAX)] | None = None

    chat_template_kwargs: dict[str, Any] | None = None
    """More variables for the chat template."""

    # Known, not offered: see _NEUTRAL.
    adaptive_target: Any = None
    best_of: Any = None

    offers: ClassVar[frozenset[str]] = frozenset()
    """Fields of _NEUTRAL that are offered all the same."""
    lacks: ClassVar[type[Unsupported]] = Unsupported
    """The error for what is not offered."""

    @property
    def salt(self) -> bytes:
        """What keeps this request's state and texts apart from others'."""
        return (self.cache_salt or "").encode()

    @property
    def reads(self) -> bool:
        """Whether anything that is known may be used."""
        return self.cache_prompt is not False

    @property
    def stores(self) -> bool:
        """Whether anything of it may be kept."""
        return self.reads and self.cache_store is not False

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
            if value is not None and name not in self.offers and not says_nothing(value):
                why = "only text is served" if name in _MEDIA else "this server has not that"
                raise self.lacks(f"{name} is not supported: {why}; leave it out", name)

    def to_request(
        self,
        tokens: list[int],
        defaults: RequestDefaults = _NO_DEFAULTS,
        sampling: SamplingParams | None = None,
    ) -> GenerationRequest:
        """The request for the scheduler, for a prompt of these token ids (of the vocabulary).

        ``defaults`` stand for what the client left out; ``sampling``: what ``sampling_for`` made of
        both. Raises RequestError for a limit of 0.
        """
        return GenerationRequest(
            tokens=as_tokens(tokens),
            max_tokens=self._limit(defaults),
            sampling=sampling or sampling_params(self, defaults),
            stop=self._stop_strings(),
            salt=self.salt,
            cache_prompt=self.reads,
            cache_store=self.cache_store is not False,
            slot=None if self.id_slot in (None, -1) else self.id_slot,
            lora=None if self.lora is None else tuple((a.id, a.scale) for a in self.lora),
        )

    def _limit(self, defaults: RequestDefaults) -> int | None:
        for name in ("max_completion_tokens", "max_tokens", "n_predict"):
            limit = getattr(self, name)
            if limit is not None:
                if limit == 0:
                    raise RequestError(f"{name} must be at least 1, or -1: no limit", name)
                return None if limit == -1 else int(limit)
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


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    prompt_field = "messages"
    offers = frozenset({"n"})

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_TOP_LOGPROBS_MAX)] | None = None

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
        if not self.tools:
            raise RequestError(
                "tool_choice: a call is asked for, and there are no tools; send tools, or leave "
                "tool_choice out",
                "tool_choice",
            )
        known = schemas_of(self.tools)
        if name not in {None, *known}:
            raise RequestError(
                f"tool_choice: {name} is none of the request's tools: {_listed(known)}",
                "tool_choice",
            )
        return call_schema(self.tools, name)

    def held(self) -> "ChatBody":
        """The same request, its answer held to a call where it must be one, whatever form it should
        have otherwise; raises RequestError.
        """
        schema = self.call_schema
        if schema is None:
            return self
        return self.model_copy(update={"json_schema": schema, "response_format": None})

    @property
    def shares_wanted(self) -> int | None:
        """See SamplingFields."""
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        return self.top_logprobs or 0 if self.logprobs else super().shares_wanted

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages for ``Engine.chat_prompt``."""
        return _plain(self.messages)


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt_field = "prompt"
    offers = frozenset({"n"})

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=_TOP_LOGPROBS_MAX)] | bool | None = None

    echo: Any = None
    suffix: Any = None

    @property
    def shares_wanted(self) -> int | None:
        """See SamplingFields."""
        if self.logprobs is None or self.logprobs is False:
            return super().shares_wanted
        return int(self.logprobs)

    def one_prompt(self) -> str | list[int]:
        """The prompt: its text or its token ids.

        Raises RequestError when it is empty, Unsupported when there are several.
        """
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise _several(self.lacks)
            prompt = prompt[0]
        if not prompt:
            raise _nothing()
        return prompt  # type: ignore[return-value]  # a list of lists was unpacked above


class InfillChunk(StrictBody):
    """One of ``input_extra``: a text from another file."""

    text: str
    filename: str = "tmp"


class NativeBody(GenerationBody):
    """POST /completion, as llama-server has it."""

    prompt_field = "prompt"
    lacks = NotOffered

    prompt: NativePrompt
    n_keep: Annotated[int, Field(ge=-1)] | None = None
    """What stays when a context is shifted, which never happens here."""
    response_fields: Annotated[list[str], Field(max_length=100, fail_fast=True)] | None = None
    """Which fields of the answer are wanted; ``a/b`` is b within a."""

    image_data: Any = None
    multimodal_data: Any = None
    n_indent: Any = None
    t_max_predict_ms: Any = None

    def one_prompt(self) -> list[int | str]:
        """The prompt's pieces: texts, and token ids between them.

        Raises RequestError when it is empty, Unsupported when there are several.
        """
        pieces: list[Any] = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if pieces and not any(isinstance(piece, int) for piece in pieces):
            # Without token ids between them, texts are prompts of their own, as lists are.
            if len(pieces) > 1:
                raise _several(self.lacks)
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


class InfillBody(NativeBody):
    """POST /infill."""

    prompt: NativePrompt = ""
    """What has been typed between prefix and suffix."""
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[InfillChunk], Field(max_length=_CHUNKS_MAX)] | None = None

    def one_prompt(self) -> list[int | str]:
        """See NativeBody; it may be empty."""
        return [] if self.prompt in ("", []) else super().one_prompt()


class TemplateBody(StrictBody):
    """POST /apply-template."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools = None

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages for ``Engine.chat_prompt``."""
        return _plain(self.messages)


def _plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.model_dump() for message in messages]


def _several(error: type[Unsupported]) -> Unsupported:
    what = "prompt: several prompts in one request are not supported; send one each"
    return error(what, "prompt")


def _nothing() -> RequestError:
    return RequestError("the prompt is empty: there is nothing to complete", "prompt")


def _listed(names: Iterable[str]) -> str:
    """A few of them."""
    listed = list(names)
    more = ", …" if len(listed) > _NAMES_SHOWN else ""
    return ", ".join(listed[:_NAMES_SHOWN]) + more


def _empty(value: Any) -> bool:
    return value in ("", [], {}, False, 0)


def _is(*neutral: Any) -> Callable[[Any], bool]:
    # Types are compared too: ``logprobs: 0`` asks for something, ``logprobs: false`` does not.
    return lambda value: any(type(value) is type(one) and value == one for one in neutral)


_NEUTRAL: Mapping[str, Callable[[Any], bool]] = {
    "n": _is(1),
    "adaptive_target": lambda value: type(value) in {int, float} and value < 0,
    "best_of": _is(1),
    "functions": _empty,
    "function_call": _is("none", "auto"),
    "suffix": _empty,
    "echo": _is(False),
    "audio": _empty,
    "modalities": _is(["text"], []),
    "image_data": _empty,
    "multimodal_data": _empty,
    "n_indent": _is(0),
    "t_max_predict_ms": lambda value: type(value) in {int, float} and value <= 0,
}
"""Fields that are known but not offered, and the values with which they ask for nothing."""


class TokenizeBody(StrictBody):
    """POST /tokenize, as llama-server has it."""

    content: Annotated[str | _Pieces, expected("a text, or a list of texts and token ids")] = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(StrictBody):
    """POST /detokenize."""

    tokens: Annotated[list[int], Field(fail_fast=True, default_factory=list)]
