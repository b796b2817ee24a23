"""A stand-in for the service in tests of the HTTP side: scripted answers, no model.

Tokens are bytes, with two control tokens. Answers are what the test wrote down, sent from a thread
as the scheduler would send them.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from spillcache.cache.spill import Flushed
from spillcache.config import EngineConfig, ServeConfig, Settings
from spillcache.engine.base import Adapter, FimTokens, Guide, Limits, ModelInfo, TokenShares
from spillcache.engine.chat_template import ChatTemplate
from spillcache.engine.gbnf import lark_of
from spillcache.errors import NotReady, SpillcacheError
from spillcache.metrics import Metrics
from spillcache.serve.adapters import Adapters
from spillcache.serve.job import DoneEvent, ErrorEvent, TextEvent, Ticket, Timings, Usage
from spillcache.serve.overview import Overview
from spillcache.serve.recent_requests import RecentRequests
from spillcache.serve.slot_actions import SlotDone
from spillcache.serve.slot_facts import Glance
from spillcache.serve.slots import Slot
from spillcache.serve.token_memory import TokenMemory

BOS, EOS = 256, 257


@dataclass
class FakeGuide(Guide):
    kind: str
    text: str


TIMINGS = Timings(
    queue_ms=1.5,
    restore_ms=20.0,
    restored_bytes=4096,
    restored={"disk": 64},
    refused={"KV_STORE_IO": 60},
    prompt_ms=50.0,
    predicted_ms=40.0,
)


class FakeEngine:
    """The text side of an engine: bytes are tokens, ``<s>`` is BOS."""

    def __init__(self, template="chatml", bos="<s>"):
        self.template = ChatTemplate(template, bos, "</s>")
        self.limits = Limits(
            context_tokens=4096, train_tokens=8192, call_tokens=512, sequences=2, vocabulary=258
        )
        self.fim = FimTokens()
        self.info = ModelInfo(
            name="fake",
            description="a fake",
            size_bytes=1000,
            parameters=500,
            embedding=64,
            bos_token=bos,
            eos_token="</s>",
            chat_template=template,
        )

    def tokenize(self, text, *, add_special, parse_special):
        tokens = [BOS] if add_special else []
        pieces = text.split("<s>") if parse_special else [text]
        for index, piece in enumerate(pieces):
            tokens += [BOS] if index else []
            tokens += piece.encode()
        return tokens

    def least_tokens(self, text, most):
        return min(text.count("<s>"), most + 1)

    def token_bytes(self, token, *, special=False):
        if token < 256:
            return bytes([token])
        return {BOS: b"<s>", EOS: b"</s>"}[token] if special else b""

    def detokenize(self, tokens, *, special=False):
        names = {BOS: b"<s>", EOS: b"</s>"} if special else {}
        spelt = (names.get(token, self.token_bytes(token)) for token in tokens)
        return b"".join(spelt).decode(errors="replace")

    def chat_prompt(self, messages, *, add_generation_prompt=True, tools=None, variables=None):
        return self.template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables=variables,
        )

    def guide(self, kind, text):
        if kind == "gbnf":
            lark_of(text)
        return FakeGuide(kind, text)

    def is_end(self, token):
        return token == EOS


@dataclass
class Script:
    """What the next answers are."""

    texts: list[str] = field(default_factory=lambda: ["Hel", "", "lo", " wörld"])
    rest: str = "!"
    reason: str = "stop"
    stop_string: str | None = None
    generated: int | None = None
    """How many tokens the answer claims to have; None for its texts."""
    refuse: SpillcacheError | None = None
    """Raised by ``submit``."""
    fail_after: int | None = None
    """An ErrorEvent instead of the text of this index."""
    failure: SpillcacheError | None = None
    hold_at: int | None = None
    """Wait for ``go`` before the text of this index."""
    go: threading.Event = field(default_factory=threading.Event)
    queued: bool = False
    """Never gets a slot, as far as the ticket says."""
    cached: dict = field(default_factory=lambda: {"disk": 4})
    shares: TokenShares | None = None
    kept: int = 0

    def usage(self, request, generated):
        return Usage(len(request.tokens), generated, dict(self.cached), self.kept)


class FakeService:
    """See the module."""

    def __init__(self, settings=None, **serve):
        self.settings = settings or Settings(
            EngineConfig(model=Path("/models/tiny-fake.gguf")), ServeConfig(port=0, **serve)
        )
        self.metrics = Metrics()
        self.state = "ready"
        self.token_memory = TokenMemory()
        self.failure = None
        self.script = Script()
        self.requests = []
        self.tickets = []
        self.engine_in_use = FakeEngine()
        self.threads = []
        self.flushes = []
        self.asked = []
        self.actions = {}
        known = [Adapter(i, name, bytes([i] * 32), 1.0) for i, name in enumerate(("a", "b"))]
        self.known_adapters = Adapters(known)
        self.cache = None
        """What ``overview`` looks into."""
        self.flushed = Flushed(12, 3456, 0.25, 0, complete=True)

    @property
    def engine(self):
        if self.state != "ready":
            raise NotReady("the model is loading; ask again soon")
        return self.engine_in_use

    @property
    def adapters(self):
        if self.state != "ready":
            raise NotReady("the model is loading; ask again soon")
        return self.known_adapters

    def start(self):
        pass

    def health(self):
        return {"status": "ok", "cache": {"disk": {"on": False, "reason": "no --cache-disk"}}}

    def overview(self):
        glance = Glance([Slot(0), Slot(1)], RecentRequests())
        tiers = {"ram": {"on": False, "reason": "none"}, "disk": {"on": False, "reason": "none"}}
        return Overview(self.engine, glance, self.metrics).take(self.cache, tiers)

    def embed(self, tokens):
        if self.script.refuse is not None:
            raise self.script.refuse
        return np.array([len(tokens), tokens[0], -0.5], np.float32)

    def flush(self, timeout_s):
        self.flushes.append(timeout_s)
        return self.flushed

    def slots(self):
        return [True, False]

    def slots_total(self):
        return 2

    def slot_actions(self):
        return self.actions

    def slot_action(self, action, slot, name):
        self.asked.append((action, slot, name))
        if self.script.refuse is not None:
            raise self.script.refuse
        return SlotDone(84, 14309796, 0.0495)

    def submit(self, request, listener):
        if self.script.refuse is not None:
            raise self.script.refuse
        ticket = Ticket()
        ticket.started = not self.script.queued
        self.requests.append(request)
        self.tickets.append(ticket)
        thread = threading.Thread(
            target=self._play, args=(self.script, request, listener, ticket), daemon=True
        )
        self.threads.append(thread)
        thread.start()
        return ticket

    def stop(self, progress, drain_s=None):
        self.state = "stopped"
        for ticket in self.tickets:
            ticket.cancel()
        for thread in self.threads:
            thread.join(10)

    def last(self):
        return SimpleNamespace(request=self.requests[-1], ticket=self.tickets[-1])

    def _play(self, script, request, listener, ticket):
        for index, text in enumerate(script.texts):
            if script.fail_after == index:
                listener(ErrorEvent(script.failure))
                return
            while index == script.hold_at and not script.go.wait(0.01):
                if ticket.cancelled:
                    return
            if ticket.cancelled:
                return
            usage = None if index else script.usage(request, 1)
            listener(TextEvent(text, index, script.shares, usage))
        generated = len(script.texts) if script.generated is None else script.generated
        usage = script.usage(request, generated)
        listener(DoneEvent(script.rest, script.reason, script.stop_string, usage, TIMINGS))


def wait_until(condition, timeout_s=5.0):
    """Whether ``condition()`` became true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())


def says(service, text, size=4):
    """Have it answer ``text``, in pieces."""
    service.script.texts = [text[at : at + size] for at in range(0, len(text), size)] or [""]


def prompt_of(service):
    """The text of the last prompt, which began with BOS."""
    return bytes(service.last().request.tokens[1:].astype("u1")).decode()
