"""The engine's one thread: admission, restores in slices, chunked prefill, continuous batching over
the slots.

Every step gives each kind of work its turn: new requests take idle slots; restoring slots import
for a few milliseconds; one prefilling slot computes one call, if it is its turn (pace); all
answering slots compute one token in one call. Prefill calls hold whole blocks of one prompt only
(prompt_plan), so that a prompt's bits do not depend on its neighbours' lengths.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.engine.base import Chunk, Engine
from spillcache.errors import (
    ContextFullError,
    DecodeError,
    EngineError,
    NotReady,
    RequestError,
    SpillcacheError,
    StateRejected,
)
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.serve.adapters import Adapters, Namespaces, by_adapters
from spillcache.serve.admission import Admission
from spillcache.serve.answer_text import AnswerText
from spillcache.serve.context_room import fits, gives_way, to_clear
from spillcache.serve.embeddings import Embeddings
from spillcache.serve.errands import Errands
from spillcache.serve.job import (
    ErrorEvent,
    FinishReason,
    GenerationRequest,
    Listener,
    TextEvent,
    Ticket,
    check_request,
)
from spillcache.serve.job_queue import JobQueue
from spillcache.serve.keeper import Keeper
from spillcache.serve.pace import PrefillPace, RestorePace
from spillcache.serve.prompt_plan import gives_logits, next_stop
from spillcache.serve.restorer import Restorer
from spillcache.serve.slot_actions import SlotActions
from spillcache.serve.slot_facts import Glance
from spillcache.serve.slots import Job, Phase, Slot
from spillcache.serve.tally import Tally
from spillcache.serve.trial import Trials

log = logging.getLogger("spillcache.serve")

ACTION_S = 0.1
"""While slot actions are at work, the engine's thread looks up so often."""


class Scheduler:
    """Owns ``engine`` once ``start`` was called. ``submit``, ``attach``, ``stop``: any thread."""

    def __init__(self, engine: Engine, metrics: Metrics, queue_limit: int) -> None:
        self._engine = engine
        self._metrics = metrics
        self._wake = threading.Condition()
        self._queue = JobQueue(self._wake, metrics, queue_limit)
        self._slots = [Slot(i) for i in range(engine.limits.sequences)]
        self.adapters = Adapters(engine.adapters)
        self._admission = Admission(engine, self._slots)
        self._restorer: Restorer | None = None
        self._keeper: Keeper | None = None
        self._restore_pace = RestorePace()
        self._prefill_pace = PrefillPace()
        self._errands = Errands(self._wake, self._restore_pace)
        self.embeddings = Embeddings(engine, self._errands)
        self.actions = SlotActions(engine, self._slots, self._errands, self._forget)
        self._trials = Trials(engine)
        self._tally = Tally(metrics)
        self.glance = Glance(self._slots, self._tally.recent)
        self._attaching: Callable[[], None] | None = None
        self._stopping = False
        self._deadline = 0.0
        self._turn = 0
        self._thread = threading.Thread(target=self._run, name="spillcache-engine", daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def attach(self, namespace: Namespace, cache: PrefixCache | None) -> None:
        """Use ``cache``, if there is one, from the next request on; what the slots hold until then
        was never offered. ``namespace``: without adapters.
        """

        def attach() -> None:
            for slot in self._slots:
                if slot.job is None:
                    self._forget(slot)
            namespaces = Namespaces(namespace, self._engine.adapters)
            if cache is not None:
                self._restorer = Restorer(self._engine, cache)
                self._keeper = Keeper(self._engine, cache, namespaces)
            self._trials = Trials(self._engine, cache)
            self._admission.attach(namespaces, self._restorer, self._keeper)
            self.actions.attach(namespaces, cache)

        with self._wake:
            self._attaching = attach
            self._wake.notify()

    def submit(self, request: GenerationRequest, listener: Listener) -> Ticket:
        """Queue a request; ``listener`` is called on the engine's thread.

        Raises RequestError for an empty prompt, a token id outside the vocabulary or an adapter
        that there is not, PromptTooLong, Overloaded, NotReady.
        """
        check_request(request, self._engine.limits)
        text = AnswerText(self._engine.token_bytes, request.stop, request.spelled)
        job = Job(request, listener, Ticket(), text, self.adapters.chosen(request.lora))
        with self._wake:
            if self._stopping:
                raise NotReady("the server is stopping; ask again when it is back")
            self._queue.put(job)
            self._wake.notify()
        return job.ticket

    def stop(self, drain_s: float) -> None:
        """Refuse requests, let running answers go on for ``drain_s``, end the thread; blocks."""
        with self._wake:
            self._stopping = True
            self._deadline = time.monotonic() + drain_s
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def settle(self, timeout_s: float) -> None:
        """Have RAM keep what of idle conversations is in the engine only, by the end of the step
        that runs; waits for that, but for no longer than ``timeout_s``. Raises NotReady.
        """
        with contextlib.suppress(TimeoutError):
            self._errands.do(self._settle_all, timeout_s=timeout_s)

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    def busy(self) -> int:
        """How many slots work on a request."""
        return sum(slot.job is not None for slot in self._slots)

    def slots(self) -> list[bool]:
        """Which slots work on a request, or have an action at work, as they are now."""
        return [slot.phase is not Phase.IDLE for slot in self._slots]

    # The thread.

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._has_work, self._wait_s())
                attaching, self._attaching = self._attaching, None
                stop = self._may_stop()
            if self._stopping:
                self._fail_queued(NotReady("the server is stopping; ask again when it is back"))
            if stop:
                break
            try:
                if attaching is not None:
                    attaching()
                self._step()
            except Exception as error:  # a bug fails the requests at hand, not the server
                log.exception("the scheduler met a bug; running requests fail, the server goes on")
                self._fail_running(EngineError(f"internal error: {type(error).__name__}"))
        self._settle_all()
        self._admission.close()
        stopped = NotReady("the server stopped before the answer was complete")
        self._errands.close(stopped)
        self._fail_running(stopped)
        self._fail_queued(stopped)

    def _wait_s(self) -> float | None:
        waits = [ACTION_S] if self.actions.running() else []
        if self._keeper is not None and (tail_s := self._keeper.wait_s(self._slots)) is not None:
            waits.append(tail_s)
        return min(waits, default=None)

    def _settle_all(self) -> None:
        if self._keeper is not None:
            for slot in self._slots:
                self._keeper.settle(slot)

    def _has_work(self) -> bool:
        if self._attaching or self.busy() or self._errands.ready or self._may_stop():
            return True
        return bool(self._queue and self._in(Phase.IDLE))

    def _may_stop(self) -> bool:
        idle = not any(self.slots())
        return self._stopping and (idle or time.monotonic() >= self._deadline)

    def _step(self) -> None:
        self._drop_cancelled()
        self._errands.run(alone=not self.busy())
        self._admit()
        if self._keeper is not None:
            self._keeper.settle_due(self._slots)
        self._admission.read_ahead(self._queue.head)
        self._restore_all()
        started = time.monotonic()
        self._prefill_one()
        self._decode_all()
        self._restore_pace.others_took(time.monotonic() - started)

    def _in(self, phase: Phase) -> list[Slot]:
        return [slot for slot in self._slots if slot.phase is phase]

    def _fail_running(self, error: SpillcacheError) -> None:
        for slot in self._slots:
            if slot.job is not None:
                self._fail(slot, error)

    def _fail_queued(self, error: SpillcacheError) -> None:
        while (job := self._queue.pop()) is not None:
            self._refuse(job, error)

    def _refuse(self, job: Job, error: SpillcacheError) -> None:
        job.emit(ErrorEvent(error))
        self._end(job)
        self._metrics.requests.labels("error").inc()

    def _drop(self, job: Job) -> None:
        self._end(job)
        self._metrics.requests.labels("cancelled").inc()

    def _end(self, job: Job) -> None:
        job.close()
        self._tally.end(job)
        self._trials.end(job)

    def _drop_cancelled(self) -> None:
        for slot in self._slots:
            if slot.job is not None and slot.job.ticket.cancelled:
                self._metrics.requests.labels("cancelled").inc()
                self._release(slot)
        for job in self._queue.pop_cancelled():
            self._drop(job)

    # Admission.

    def _admit(self) -> None:
        while self._in(Phase.IDLE) and self._next_fits():
            job = self._queue.pop()
            if job is None:
                return
            if job.ticket.cancelled:
                self._drop(job)
                continue
            try:
                self._begin(job)
            except Exception as error:
                if all(slot.job is not job for slot in self._slots):
                    self._refuse(job, EngineError(f"internal error: {type(error).__name__}"))
                raise

    def _next_fits(self) -> bool:
        job = self._queue.head
        return job is None or fits(job, self._slots, self._engine)

    def _begin(self, job: Job) -> None:
        """Give ``job`` its slot."""
        job.started = job.started or time.monotonic()
        job.ticket.started = True
        self.actions.make_way()
        start = self._admission.begin(job)
        slot, restore = start.slot, start.restore
        if not job.answer:  # else it is taken up again, and this is no longer about the prompt
            job.decision, job.parted = start.decision, start.parted
            if restore is not None:
                restore.restored, restore.refused = job.restored, job.refused
        slot.begin(job, start.chain, restore)
        self._trials.inherit(slot, start.source, start.live)
        self._metrics.active.set(self.busy())
        for idle in to_clear(slot, len(start.chain), self._slots, self._engine):
            self._forget(idle)
        if self._keeper is not None:
            self._keeper.adopt(slot, start.live, unkept=start.source.unkept)
        if restore is None and not job.answer:
            job.count_cached({"live": start.live})

    # Restore.

    def _restore_all(self) -> None:
        restoring = self._in(Phase.RESTORE)
        if not restoring:
            return
        # To copy a block of an answer out is pause enough.
        copies_out = self._keeper is not None and self._keeper.copies_out(self._in(Phase.DECODE))
        if self._restore_pace.rests(copies_out):
            return
        alone = not self._in(Phase.PREFILL) and not self._in(Phase.DECODE)
        pace = None if alone else self._restore_pace
        # Who waited longest comes first, for the first may use up what all of them have.
        for slot in sorted(restoring, key=lambda s: s.restore.last_block if s.restore else 0.0):
            self._restore_slice(slot, pace)

    def _restore_slice(self, slot: Slot, pace: RestorePace | None) -> None:
        restore, job = slot.restore, slot.job
        if restore is None or job is None or self._restorer is None:
            return
        if not self._restorer.advance(slot.index, restore, pace):
            if restore.is_full:
                restore.is_full = False
                self._make_room()
            return
        slot.restore, slot.phase = None, Phase.PREFILL
        slot.on_trial, slot.tail_on_trial = restore.match.blocks, restore.match.tail
        if job.answer:  # taken up again after it gave way: what is reused is not the prompt's
            return
        self._restorer.report(restore, job, self._tally)

    # Prefill.

    def _prefill_one(self) -> None:
        waiting = self._in(Phase.PREFILL)
        if not waiting or not self._prefill_pace.is_due():
            return
        self._turn += 1
        slot = waiting[self._turn % len(waiting)]
        chain = slot.chain
        if chain is None:
            return
        geometry, total = self._engine.geometry, len(chain)
        if self._engine.length(slot.index) == total:
            self._take_back_one(slot, total)
        start = self._engine.length(slot.index)
        stop = next_stop(start, total, self._call_tokens(), geometry)
        last = gives_logits(start, stop, total, geometry)
        began = time.monotonic()
        if not self._decode([Chunk(slot.index, chain.tokens[start:stop], logits=last)], [slot]):
            return
        if self._keeper is not None:
            self._keeper.keep_prompt(slot, start, stop, last=last)
        self._prefill_pace.took(time.monotonic() - began, stop - start)
        if self._restorer is not None and not last:
            # With the export, without which a GPU may not have done it yet.
            self._restorer.prefilled(chain, start, stop, time.monotonic() - began)
        if last:
            self._prompt_done(slot)

    def _take_back_one(self, slot: Slot, total: int) -> None:
        """Have a prompt's last token computed again, for its logits."""
        try:
            self._engine.truncate(slot.index, total - 1)
        except StateRejected as error:
            log.warning("a prompt is computed from its beginning: %s", error)
            self._engine.clear(slot.index)
            if slot.job is not None:
                slot.job.cached = {}

    def _call_tokens(self) -> int:
        most = self._engine.limits.call_tokens
        if not self._in(Phase.DECODE) and not self._in(Phase.RESTORE):
            return most
        return self._prefill_pace.call_tokens(most, self._engine.geometry.block_tokens)

    def _prompt_done(self, slot: Slot) -> None:
        job = slot.job
        if job is None:
            return
        if not self._trials.verdict(slot):
            self._put_back(slot)
            return
        slot.phase = Phase.DECODE
        if not job.prompt_done:
            job.prompt_done = time.monotonic()
            self._tally.prompt(job)
        if job.sampler is None:
            job.sampler = self._engine.sampler(job.request.sampling, job.request.tokens)
        self._sample(slot, job)

    # Decode.

    def _decode_all(self) -> None:
        began = time.monotonic()
        groups = by_adapters(self._in(Phase.DECODE))
        for group in groups:
            self._decode_each(group)
        self._prefill_pace.answers_took(time.monotonic() - began if groups else 0.0)

    def _decode_each(self, group: list[Slot]) -> None:
        """A token for each slot of ``group``, but for those that gave way to an earlier one."""
        slots = [s for s in group if s.job is not None and s.job.answer]
        chunks = []
        for slot in slots:
            if slot.chain is None or slot.job is None:
                continue
            held = self._engine.length(slot.index)
            if len(slot.chain) == held:
                slot.chain.push(slot.job.answer[-1])
            chunks.append(Chunk(slot.index, slot.chain.tokens[held : held + 1], logits=True))
        if not chunks or not self._decode(chunks, slots):
            return
        size = self._engine.geometry.block_tokens
        for slot in slots:
            stop = self._engine.length(slot.index)
            if self._keeper is not None and not stop % size:
                self._keeper.keep(slot, stop - 1, stop, boundary=True)
            if slot.job is not None:
                self._sample(slot, slot.job)

    def _sample(self, slot: Slot, job: Job) -> None:
        """Choose the next token, tell the client, and see whether the answer is complete."""
        if job.sampler is None:
            return
        try:
            token = job.sampler.sample(slot.index)
        except RequestError as error:  # its grammar can't be followed any further
            self._fail(slot, error)
            return
        self._tally.token(job)
        if self._engine.is_end(token):
            self._finish(slot, job, "stop")
            return
        job.answer.append(token)
        self._metrics.generated_tokens.inc()
        job.emit(TextEvent(job.text.push_token(token), token, job.sampler.shares, job.first_usage))
        if job.text.stopped is not None or job.sampler.ended:
            self._finish(slot, job, "stop")
        elif self._full(slot, job):
            self._finish(slot, job, "length")

    def _full(self, slot: Slot, job: Job) -> bool:
        limit = job.request.max_tokens
        if limit is not None and len(job.answer) >= limit:
            return True
        return self._engine.length(slot.index) >= self._engine.limits.context_tokens

    def _decode(self, chunks: list[Chunk], slots: list[Slot]) -> bool:
        """One call, of slots with the same adapters; makes room when the context is full, fails the
        requests in it when it can't be done.
        """
        try:
            self._engine.use_adapters(slots[0].job.adapters if slots[0].job is not None else ())
            self._engine.decode(chunks)
        except ContextFullError as error:
            if not self._make_room():
                self._give_up(slots[-1], error)
            return False
        except DecodeError as error:
            self._metrics.errors.labels(error.code).inc()
            for slot in slots:
                if self._trials.failed(slot, error):
                    self._put_back(slot)
                else:
                    self._fail(slot, error)
            return False
        return True

    def _make_room(self) -> bool:
        """Clear an idle slot, or else preempt a request."""
        slot = gives_way(self._slots, self._engine)
        if slot is None:
            return False
        if slot.job is None:
            self._forget(slot)
        else:
            self._preempt(slot)
        return True

    def _preempt(self, slot: Slot) -> None:
        """Put a request back at the head of the queue; its blocks are in RAM."""
        log.info("the context is full: a request gives way and is taken up again")
        self._end_turn(slot, slot.job)
        self._put_back(slot)

    def _put_back(self, slot: Slot) -> None:
        """Empty the slot; its request is the next to be begun."""
        job, slot.job = slot.job, None
        self._forget(slot)
        if job is not None:
            self._queue.put_back(job)

    def _give_up(self, slot: Slot, error: ContextFullError) -> None:
        job = slot.job
        if job is not None and job.answer:
            self._finish(slot, job, "length")
        else:
            self._fail(slot, error)

    # The end of a turn.

    def _finish(self, slot: Slot, job: Job, reason: FinishReason) -> None:
        event = job.done(reason, slot.index)
        self._metrics.requests.labels(reason).inc()
        job.emit(event)
        self._release(slot)

    def _fail(self, slot: Slot, error: SpillcacheError) -> None:
        if slot.job is not None:
            slot.job.emit(ErrorEvent(error))
            self._metrics.requests.labels("error").inc()
        self._release(slot, failed=True)
        self._forget(slot)

    def _release(self, slot: Slot, *, failed: bool = False) -> None:
        """The request is over; the sequence stays live for its next turn."""
        if slot.phase is Phase.RESTORE:
            self._forget(slot)
        slot.phase, slot.last_use = Phase.IDLE, time.monotonic()
        job, slot.job = slot.job, None
        if job is not None:
            self._end(job)
        self._metrics.active.set(self.busy())
        self._end_turn(slot, None if failed else job)

    def _end_turn(self, slot: Slot, job: Job | None) -> None:
        if slot.chain is None:
            return
        slot.chain.truncate(self._engine.length(slot.index))
        if self._keeper is not None:
            self._keeper.end_turn(slot, job.request if job is not None else None)

    def _forget(self, slot: Slot) -> None:
        """Empty the slot; a restore into it ends."""
        if slot.restore is not None:
            slot.restore.close()
            if self._restorer is not None:
                self._restorer.count(slot.restore)
        if self._keeper is not None:
            self._keeper.settle(slot)
        self._engine.clear(slot.index)
        slot.chain, slot.boundary, slot.restore, slot.phase = None, None, None, Phase.IDLE
        slot.on_trial, slot.unverified = 0, False
