"""AsyncProducer and AsyncConsumer against a real registry and broker."""

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
from headrace.clients.consumer import NoMessage
from headrace.clients.delivery import Delivery

pytestmark = pytest.mark.servers

TIMEOUT_S = 30
SCHEMA = json.dumps({"type": "record", "name": "Tick", "fields": [{"name": "n", "type": "int"}]})


def test_async_clients_send_and_read_events(settings: Settings) -> None:
    topic = f"async-{uuid.uuid4().hex[:8]}"
    deliveries: list[Delivery] = []

    async def run() -> list[int]:
        async with AsyncProducer(settings, app="clock", on_delivery=deliveries.append) as producer:
            first = await producer.send(topic, {"n": 0}, key="k", schema=SCHEMA)
            landed = await asyncio.gather(
                *(producer.send(topic, {"n": n}, key="k", schema=SCHEMA) for n in range(1, 50))
            )
            assert [delivered.offset for delivered in (first, *landed)] == list(range(50))
            with pytest.raises(ValueRefused) as refused:
                await producer.send(topic, {"n": "x"}, schema=SCHEMA)
            assert refused.value.field == "n"
            await producer.flush()
        async with AsyncConsumer(settings, topics=[topic], until_end=True) as consumer:
            return [message.value["n"] async for message in consumer]

    assert asyncio.run(run()) == list(range(50))
    assert len(deliveries) == 50


@pytest.mark.parametrize(("name", "client"), [("Consumer", AsyncConsumer), ("Producer", AsyncProducer)])
def test_cancelled_open_closes_everything(name: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    is_opening, may_open, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def __init__(self, *_: object, **__: object) -> None:
            is_opening.set()
            assert may_open.wait(TIMEOUT_S)

        def close(self) -> None:
            closed.set()

    async def run() -> None:
        opening = asyncio.ensure_future(client(app="clock").__aenter__())
        await asyncio.to_thread(is_opening.wait, TIMEOUT_S)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        may_open.set()
        assert await asyncio.to_thread(closed.wait, TIMEOUT_S)

    monkeypatch.setattr(aio, name, Slow)
    asyncio.run(run())


def test_unprocessed_message_is_not_committed(settings: Settings) -> None:
    topic = f"async-{uuid.uuid4().hex[:8]}"

    async def fail_at(number: int) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic, auto_commit=True) as consumer:
            async for message in consumer:
                if message.value["n"] == number:
                    raise RuntimeError("processing failed")

    async def be_cancelled(first: int, retry: bool) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic, auto_commit=True) as consumer:
            assert (await anext(consumer)).value["n"] == first
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            if retry:
                assert (await anext(consumer)).value["n"] == first + 1

    async def produce() -> None:
        async with AsyncProducer(settings, app="clock") as producer:
            for n in range(6):
                await producer.send(topic, {"n": n}, key="k", schema=SCHEMA)

    asyncio.run(produce())
    with pytest.raises(RuntimeError, match="processing failed"):
        asyncio.run(fail_at(2))
    asyncio.run(be_cancelled(2, retry=False))
    asyncio.run(be_cancelled(3, retry=True))
    with Consumer(settings, topics=[topic], group=topic) as consumer:
        assert next(consumer).value["n"] == 5


def test_unopened_async_client_raises(settings: Settings) -> None:
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


def run_with_topic(settings: Settings, use: Callable[[str], Awaitable[None]]) -> None:
    """Runs `use` with a topic that has one partition and three messages; fails after TIMEOUT_S."""
    topic = f"async-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)

    async def run() -> None:
        await produce(settings, topic, 3)
        await asyncio.wait_for(use(topic), TIMEOUT_S)

    asyncio.run(run())


async def cancelled_read(consumer: AsyncConsumer) -> None:
    """Starts a read and cancels it just before its message arrives."""
    waiting = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(0)
    pending_read = consumer._request
    assert pending_read is not None
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait([pending_read])
    if pending_read.exception() is None and pending_read.result() is NoMessage.TIMEOUT:
        await cancelled_read(consumer)


def test_cancelled_read_on_idle_topic_ends(settings: Settings) -> None:
    async def use(topic: str) -> None:
        given: list[int] = []

        async def read() -> None:
            async with AsyncConsumer(settings, topics=[topic], group=topic, auto_commit=True) as consumer:
                async for message in consumer:
                    given.append(message.value["n"])

        reading = asyncio.ensure_future(read())
        while len(given) < 3:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # until the read waits
        reading.cancel()
        assert await asyncio.wait([reading], timeout=TIMEOUT_S / 2) == ({reading}, set())
        assert reading.cancelled()

    run_with_topic(settings, use)


def test_pending_read_does_not_block_other_calls(settings: Settings) -> None:
    async def use(topic: str) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic) as consumer:
            for n in range(3):
                assert (await anext(consumer)).value["n"] == n
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0.5)
            await consumer.commit()
            await consumer.pause()
            await consumer.resume()
            await consumer.mark_unfinished()
            assert not waiting.done()
            await produce(settings, topic, 1)
            assert (await waiting).offset == 3
        with Consumer(settings, topics=[topic], group=topic) as second:
            assert next(second).offset == 3

    run_with_topic(settings, use)


def test_undelivered_message_is_not_committed(settings: Settings) -> None:
    async def use(topic: str) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic) as consumer:
            assert (await anext(consumer)).offset == 0
            await cancelled_read(consumer)
            await consumer.commit()
        async with AsyncConsumer(settings, topics=[topic], group=topic) as consumer:
            assert (await anext(consumer)).offset == 1
            await cancelled_read(consumer)
            assert (await anext(consumer)).offset == 2
            await consumer.commit()
        with Consumer(settings, topics=[topic], group=topic, idle_timeout_s=3) as second:
            assert next(second, None) is None

    run_with_topic(settings, use)


def test_concurrent_readers_get_different_messages(settings: Settings) -> None:
    async def use(topic: str) -> None:
        async with AsyncConsumer(settings, topics=[topic]) as consumer:
            found = await asyncio.gather(*(anext(consumer) for _ in range(3)))
        assert [message.offset for message in found] == [0, 1, 2]

    run_with_topic(settings, use)


def test_async_pause_and_seek(settings: Settings) -> None:
    async def use(topic: str) -> None:
        async with AsyncConsumer(settings, topics=[topic], group=topic, idle_timeout_s=4) as consumer:
            assert (await anext(consumer)).offset == 0
            assert consumer.assignment() == {(topic, 0)}
            await consumer.pause()
            assert [message.offset async for message in consumer] == []
            await consumer.resume([(topic, 0)])
            assert (await anext(consumer)).offset == 1
            await consumer.mark_unfinished()
            await consumer.commit()
            await consumer.seek(topic, 0, 0)
            assert [message.offset async for message in consumer] == [0, 1, 2]
        with Consumer(settings, topics=[topic], group=topic) as second:
            assert next(second).offset == 1

    run_with_topic(settings, use)


def test_message_of_cancelled_read_is_dropped_after_seek(settings: Settings) -> None:
    async def use(topic: str) -> None:
        raw = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
        raw.produce(topic, b"text", partition=0)
        raw.flush(30)
        async with AsyncConsumer(settings, topics=[topic]) as consumer:
            assert (await anext(consumer)).offset == 0
            await cancelled_read(consumer)
            await consumer.seek(topic, 0, 0)
            assert [(await anext(consumer)).offset for _ in range(3)] == [0, 1, 2]
            await cancelled_read(consumer)
            await consumer.seek(topic, 0, 2)
            assert (await anext(consumer)).offset == 2
            with pytest.raises(UndecodableMessage):
                await anext(consumer)

    run_with_topic(settings, use)
