"""POST /v1/chat/completions, POST /v1/completions, GET /v1/models, with and without ``/v1``."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from spillcache.config import RequestDefaults, Settings
from spillcache.engine.base import Engine
from spillcache.errors import NotReady, RequestError
from spillcache.serve.answer_events import AnswerEvents
from spillcache.serve.answer_format import AnswerForm, CompletionFormat
from spillcache.serve.anthropic_format import model_facts, page_facts
from spillcache.serve.call_texts import CallTexts
from spillcache.serve.chat_format import ChatFormat
from spillcache.serve.chat_reader import ChatForm, ChatReader
from spillcache.serve.choices import Choices, forms_of, requests_of
from spillcache.serve.conversation import Conversation
from spillcache.serve.door import Door
from spillcache.serve.error_shapes import ErrorResponse
from spillcache.serve.event_stream import EventStream
from spillcache.serve.http_errors import error_object
from spillcache.serve.job import DoneEvent, ErrorEvent, Event, GenerationRequest, TextEvent
from spillcache.serve.prompt_checks import check_count, check_length, check_token_ids
from spillcache.serve.request_body import read_body
from spillcache.serve.sampling import sampling_for
from spillcache.serve.schema import ChatBody, CompletionBody, GenerationBody
from spillcache.serve.session import session_of
from spillcache.serve.tenant import tenant_salt
from spillcache.serve.text_thread import in_text_thread
from spillcache.serve.turn import Turn


def model_name(settings: Settings) -> str:
    """The name under which the model is served: ``--alias``, or its file's without the ending."""
    name = settings.serve.alias or settings.engine.model.stem
    # A file's name need not be Unicode; JSON must be.
    return name.encode(errors="replace").decode()


def openai_router(service: Door, started_s: int) -> APIRouter:
    """The routes over ``service``; ``started_s``: the server's start, in seconds since 1970."""
    router = APIRouter()
    name = model_name(service.settings)

    @router.post("/v1/chat/completions")
    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        check_ready(service)
        body = await read_body(request, ChatBody)
        form = Choices([
            ChatFormat(
                name,
                service.engine.token_bytes,
                include_usage=body.include_usage,
                return_tokens=bool(body.return_tokens),
            )
            for _ in range(body.n or 1)
        ])  # fmt: skip
        return await chat_answer(service, request, body, form)

    @router.post("/v1/completions")
    @router.post("/completions")
    async def completions(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, CompletionBody)
        form = Choices([
            CompletionFormat(
                name,
                engine.token_bytes,
                include_usage=body.include_usage,
                return_tokens=bool(body.return_tokens),
            )
            for _ in range(body.n or 1)
        ])  # fmt: skip
        turn = begin_turn(service, request, body)
        return await answer(
            service, request, body, form, lambda: prompt_tokens(engine, body, turn), turn=turn
        )

    @router.get("/v1/models")
    @router.get("/models")
    async def models() -> Response:
        data = [_model_object(service, name, started_s)]
        return JSONResponse({"object": "list", "data": data, **page_facts(name)})

    @router.get("/v1/models/{model:path}")
    async def model_by_name(model: str) -> Response:
        if model != name:
            message = f"the model {model!r} does not exist; this server has {name!r}"
            content = error_object(message, "invalid_request_error", "model_not_found", "model")
            return ErrorResponse(content, 404)
        return JSONResponse(_model_object(service, name, started_s))

    return router


def check_ready(service: Door) -> None:
    """Raise NotReady until requests are answered: their bodies need not be read."""
    _ = service.engine


async def chat_answer(
    service: Door, request: Request, asked: ChatBody, form: ChatForm | Choices
) -> Response:
    """Answer a chat; ``asked`` is what the request comes to, in whichever API it was made."""
    engine, body = service.engine, asked.held()
    turn = begin_turn(service, request, body)
    variables = template_variables(body.chat_template_kwargs, service.settings.serve.defaults)

    def tokenize() -> list[int]:
        chat = conversation(service, request, body)
        tokens = chat_tokens(engine, chat, turn, variables)
        several = body.parallel_tool_calls is not False
        for one in forms_of(form):
            if isinstance(one, ChatReader):
                one.reads(chat.parser(), chat, several=several)
        return tokens

    return await answer(service, request, body, form, tokenize, turn=turn)


def begin_turn(service: Door, request: Request, body: GenerationBody) -> Turn:
    """The turn of a request, with what may be known of earlier ones."""
    return Turn(
        service.engine,
        service.token_memory,
        tenant_salt(request.scope, body.salt),
        reads=body.reads,
        stores=body.stores,
    )


def conversation(service: Door, request: Request, body: ChatBody) -> Conversation:
    """The chat of a request."""
    salt = tenant_salt(request.scope, body.salt)
    return Conversation(
        service.engine,
        body.plain_messages(),
        body.tools or (),
        calls=body.tool_choice != "none",
        held=body.call_schema is not None,
        texts=CallTexts(service.token_memory, salt, reads=body.reads, stores=body.stores),
    )


def chat_tokens(
    engine: Engine, chat: Conversation, turn: Turn, variables: Mapping[str, Any]
) -> list[int]:
    """The prompt's token ids; may take long: not on the event loop. Raises RequestError."""
    text = chat.prompt(variables=variables)
    check_length(engine, text, "messages")
    # Most templates write BOS themselves; a second one would make another, worse prompt.
    bos = engine.info.bos_token
    special = not (bos and text.startswith(bos))
    tokens = turn.tokens(text, add_special=special)
    if not tokens:
        raise RequestError("the messages make an empty prompt", "messages")
    turn.spelled, turn.stops = chat.spelled(), chat.stops
    return tokens


def template_variables(
    asked: Mapping[str, Any] | None, defaults: RequestDefaults
) -> Mapping[str, Any]:
    """What a chat template is given beside the messages."""
    return {**defaults.template_variables, **(asked or {})}


def prompt_tokens(engine: Engine, body: CompletionBody, turn: Turn) -> list[int]:
    """The prompt's token ids, as ``chat_tokens``; ids that the client sent stay as they are."""
    prompt = body.one_prompt()
    if isinstance(prompt, str):
        check_length(engine, prompt, "prompt")
        return turn.tokens(prompt, add_special=True)
    check_count(engine, prompt, "prompt")
    check_token_ids(engine, prompt, "prompt")
    return prompt


async def answer(
    service: Door,
    request: Request,
    body: GenerationBody,
    form: AnswerForm,
    tokenize: Callable[[], list[int]],
    *,
    turn: Turn,
) -> Response:
    """Generate; a stream begins only with the first event, so that errors before have a status."""
    body.check_offered()
    engine, defaults = service.engine, service.settings.serve.defaults

    def prepare() -> GenerationRequest:
        tokens = tokenize()
        sampling = sampling_for(engine, body, defaults)
        wanted = turn.request(body.to_request(tokens, defaults, sampling))
        form.about(wanted, engine)
        return wanted

    events = AnswerEvents(request.receive, turn)
    try:
        last = service.slots_total() - 1
        if body.id_slot is not None and body.id_slot > last:
            raise RequestError(f"id_slot {body.id_slot}: slots are 0 to {last}", "id_slot")
        wanted = await in_text_thread(prepare)
        try:
            wanted = replace(
                wanted,
                salt=tenant_salt(request.scope, wanted.salt),
                session=session_of(request.headers, service.settings.serve.session_headers),
            )
            events.submit(service, *requests_of(wanted, len(forms_of(form))))
        except RequestError as error:
            # The scheduler knows of prompts only; the client may have sent messages.
            if error.param == "prompt":
                error.param = body.prompt_field
            raise
        batch = await events.next_events()
        if isinstance(batch[0], ErrorEvent):
            raise batch[0].error
        if body.stream:
            return EventStream(events, batch, form)
        whole = await _whole_answer(events, batch, form)
    except BaseException:
        events.close()
        raise
    events.close()
    return JSONResponse(whole)


async def _whole_answer(
    events: AnswerEvents, batch: list[Event], form: AnswerForm
) -> dict[str, Any]:
    text: list[str] = []
    tokens: list[TextEvent] = []
    while True:
        for event in batch:
            if isinstance(event, ErrorEvent):
                raise event.error
            text.append(event.text)
            if isinstance(event, DoneEvent):
                whole = form.answer("".join(text), tokens, event)
                if event.is_last:
                    return whole
                text, tokens = [], []
            else:
                tokens.append(event)
        batch = await events.next_events()


def _model_object(service: Door, name: str, started_s: int) -> dict[str, Any]:
    """One model of ``/v1/models``; ``meta`` is null until it is loaded, as llama-server's."""
    one = {
        "id": name,
        "object": "model",
        "created": started_s,
        "owned_by": "spillcache",
        **model_facts(name, started_s),
    }
    try:
        engine = service.engine
    except NotReady:
        return {**one, "meta": None}
    meta = {
        "n_vocab": engine.limits.vocabulary,
        "n_ctx": engine.limits.context_tokens,
        "n_ctx_train": engine.limits.train_tokens,
        "n_embd": engine.info.embedding,
        "n_params": engine.info.parameters,
        "size": engine.info.size_bytes,
    }
    return {**one, "meta": meta}
