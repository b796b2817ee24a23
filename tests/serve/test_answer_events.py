import asyncio

import pytest
from fake_service import FakeService

from spillcache.chain import as_tokens
from spillcache.serve.answer_events import AnswerEvents, ClientGone
from spillcache.serve.job import GenerationRequest, TextEvent

REQUEST = GenerationRequest(as_tokens([1]))


class Connection:
    """The receiving half of a client; ``leave`` is its going."""

    def __init__(self):
        self.messages = asyncio.Queue()

    async def receive(self):
        return await self.messages.get()

    def leave(self):
        self.messages.put_nowait({"type": "http.disconnect"})


def test_events_come_in_order_and_together():
    async def run():
        service, connection = FakeService(), Connection()
        events = AnswerEvents(connection.receive)
        events.submit(service, REQUEST)
        seen = await events.next_events()
        while len(seen) < 5:
            seen += await events.next_events()
        assert [event.text for event in seen] == ["Hel", "", "lo", " wörld", "!"]
        events.close()
        events.close()

    asyncio.run(run())


def test_a_client_that_has_left_is_not_served():
    async def run():
        service, connection = FakeService(), Connection()
        events = AnswerEvents(connection.receive)
        connection.messages.put_nowait({"type": "http.request"})  # as after a pipelined byte
        connection.leave()
        await asyncio.sleep(0.01)
        with pytest.raises(ClientGone):
            events.submit(service, REQUEST)
        assert service.requests == []
        with pytest.raises(ClientGone):
            await events.next_events()
        events.close()

    asyncio.run(run())


def test_leaving_cancels_at_once():
    async def run():
        service, connection = FakeService(), Connection()
        service.script.hold_at = 1
        events = AnswerEvents(connection.receive)
        events.submit(service, REQUEST)
        assert [event.text for event in await events.next_events()] == ["Hel"]
        connection.leave()
        with pytest.raises(ClientGone):
            await events.next_events()
        assert service.last().ticket.cancelled
        events.close()
        service.stop(print)

    asyncio.run(run())


def test_events_after_the_loop_has_ended_go_nowhere():
    async def run():
        events = AnswerEvents(Connection().receive)
        events.close()
        return events

    events = asyncio.run(run())
    events._listen(TextEvent("late", 1))
    assert events._queue.empty()
