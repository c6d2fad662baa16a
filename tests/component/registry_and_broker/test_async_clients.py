"""Producer and consumer from asyncio."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import AsyncConsumer, AsyncProducer, Consumer, Settings, UndecodableMessage, ValueRefused
from headrace.clients import aio
from headrace.clients.consumer import Nothing
from headrace.clients.delivery import Delivery

pytestmark = pytest.mark.servers

PATIENCE_S = 30
SCHEMA = json.dumps({"type": "record", "name": "Tick", "fields": [{"name": "n", "type": "int"}]})


def test_events_are_sent_and_read_in_an_event_loop(settings: Settings) -> None:
    topic = f"async-{uuid.uuid4().hex[:8]}"
    told: list[Delivery] = []

    async def run() -> list[int]:
        async with AsyncProducer(settings, app="clock", on_delivery=told.append) as producer:
            first = await producer.send(topic, {"n": 0}, key="k", schema=SCHEMA)
            landed = await asyncio.gather(
                *(producer.send(topic, {"n": n}, key="k", schema=SCHEMA) for n in range(1, 50))
            )
            assert [place.offset for place in (first, *landed)] == list(range(50))
            with pytest.raises(ValueRefused) as refused:
                await producer.send(topic, {"n": "x"}, schema=SCHEMA)
            assert refused.value.field == "n"
            await producer.flush()
        async with AsyncConsumer(settings, topics=[topic], until_end=True) as consumer:
            return [message.value["n"] async for message in consumer]

    assert asyncio.run(run()) == list(range(50))
    assert len(told) == 50


@pytest.mark.parametrize(("name", "client"), [("Consumer", AsyncConsumer), ("Producer", AsyncProducer)])
def test_who_is_cancelled_while_it_opens_leaves_nothing_open(
    name: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_open, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def __init__(self, *_: object, **__: object) -> None:
            begun.set()
            assert may_open.wait(PATIENCE_S)

        def close(self) -> None:
            closed.set()

    async def run() -> None:
        opening = asyncio.ensure_future(client(app="clock").__aenter__())
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        may_open.set()
        assert await asyncio.to_thread(closed.wait, PATIENCE_S)

    monkeypatch.setattr(aio, name, Slow)
    asyncio.run(run())


def test_what_was_not_dealt_with_is_not_committed(settings: Settings) -> None:
    topic = f"async-{uuid.uuid4().hex[:8]}"

    async def fail_at(number: int) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic, auto_commit=True) as consumer:
            async for message in consumer:
                if message.value["n"] == number:
                    raise RuntimeError("cannot deal with it")

    async def be_cancelled(first: int, asks_again: bool) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic, auto_commit=True) as consumer:
            assert (await anext(consumer)).value["n"] == first
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            if asks_again:
                assert (await anext(consumer)).value["n"] == first + 1

    async def produce() -> None:
        async with AsyncProducer(settings, app="clock") as producer:
            for n in range(6):
                await producer.send(topic, {"n": n}, key="k", schema=SCHEMA)

    asyncio.run(produce())
    with pytest.raises(RuntimeError, match="cannot deal with it"):
        asyncio.run(fail_at(2))
    asyncio.run(be_cancelled(2, asks_again=False))
    asyncio.run(be_cancelled(3, asks_again=True))
    with Consumer(settings, topics=[topic], group=topic) as consumer:
        assert next(consumer).value["n"] == 5


def test_a_client_that_was_not_opened_says_so(settings: Settings) -> None:
    async def run() -> None:
        with pytest.raises(RuntimeError, match="async with"):
            await AsyncProducer(settings, app="clock").send("t", None, "k")
        with pytest.raises(RuntimeError, match="async with"):
            await anext(AsyncConsumer(settings, topics=["t"]))

    asyncio.run(run())


async def produce(settings: Settings, topic: str, count: int) -> None:
    async with AsyncProducer(settings, app="clock") as producer:
        for n in range(count):
            await producer.send(topic, {"n": n}, partition=0, schema=SCHEMA)


def told(settings: Settings, use: Callable[[str], Awaitable[None]]) -> None:
    """Runs it with the name of a topic of one partition and three messages; what hangs fails."""
    topic = f"async-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)

    async def run() -> None:
        await produce(settings, topic, 3)
        await asyncio.wait_for(use(topic), PATIENCE_S)

    asyncio.run(run())


async def cancelled_ask(consumer: AsyncConsumer) -> None:
    """Asks for somebody who is cancelled just before what he waited for comes."""
    waiting = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(0)
    asked = consumer._asked
    assert asked is not None
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait([asked])
    if asked.exception() is None and asked.result() is Nothing.YET:
        await cancelled_ask(consumer)


def test_who_is_cancelled_on_a_quiet_topic_ends(settings: Settings) -> None:
    async def use(topic: str) -> None:
        given: list[int] = []

        async def read() -> None:
            async with AsyncConsumer(settings, topics=[topic], group=topic, auto_commit=True) as consumer:
                async for message in consumer:
                    given.append(message.value["n"])

        reading = asyncio.ensure_future(read())
        while len(given) < 3:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # until it waits
        reading.cancel()
        assert await asyncio.wait([reading], timeout=PATIENCE_S / 2) == ({reading}, set())
        assert reading.cancelled()

    told(settings, use)


def test_nothing_else_waits_for_a_message_that_does_not_come(settings: Settings) -> None:
    async def use(topic: str) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic) as consumer:
            for n in range(3):
                assert (await anext(consumer)).value["n"] == n
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0.5)
            await consumer.commit()
            await consumer.pause()
            await consumer.resume()
            await consumer.let_go()
            assert not waiting.done()
            await produce(settings, topic, 1)
            assert (await waiting).offset == 3
        with Consumer(settings, topics=[topic], group=topic) as again:
            assert next(again).offset == 3

    told(settings, use)


def test_what_nobody_was_given_yet_is_not_committed(settings: Settings) -> None:
    async def use(topic: str) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic) as consumer:
            assert (await anext(consumer)).offset == 0
            await cancelled_ask(consumer)
            await consumer.commit()
        async with AsyncConsumer(settings, topics=[topic], group=topic) as consumer:
            assert (await anext(consumer)).offset == 1
            await cancelled_ask(consumer)
            assert (await anext(consumer)).offset == 2
            await consumer.commit()
        with Consumer(settings, topics=[topic], group=topic, idle_timeout_s=3) as again:
            assert next(again, None) is None

    told(settings, use)


def test_two_who_ask_are_given_two_messages(settings: Settings) -> None:
    async def use(topic: str) -> None:
        async with AsyncConsumer(settings, topics=[topic]) as consumer:
            found = await asyncio.gather(*(anext(consumer) for _ in range(3)))
        assert [message.offset for message in found] == [0, 1, 2]

    told(settings, use)


def test_partitions_are_held_back_and_gone_to_from_an_event_loop(settings: Settings) -> None:
    async def use(topic: str) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic, idle_timeout_s=4) as consumer:
            assert (await anext(consumer)).offset == 0
            assert consumer.assignment() == {(topic, 0)}
            await consumer.pause()
            assert [message.offset async for message in consumer] == []
            await consumer.resume([(topic, 0)])
            assert (await anext(consumer)).offset == 1
            await consumer.let_go()
            await consumer.commit()
            await consumer.seek(topic, 0, 0)
            assert [message.offset async for message in consumer] == [0, 1, 2]
        with Consumer(settings, topics=[topic], group=topic) as again:
            assert next(again).offset == 1

    told(settings, use)


def test_what_came_for_somebody_who_was_cancelled_is_not_given_after_a_seek(settings: Settings) -> None:
    async def use(topic: str) -> None:
        raw = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
        raw.produce(topic, b"text", partition=0)
        raw.flush(30)
        async with AsyncConsumer(settings, topics=[topic]) as consumer:
            assert (await anext(consumer)).offset == 0
            await cancelled_ask(consumer)
            await consumer.seek(topic, 0, 0)
            assert [(await anext(consumer)).offset for _ in range(3)] == [0, 1, 2]
            await cancelled_ask(consumer)
            await consumer.seek(topic, 0, 2)
            assert (await anext(consumer)).offset == 2
            with pytest.raises(UndecodableMessage):
                await anext(consumer)

    told(settings, use)
