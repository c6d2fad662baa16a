"""Producer and consumer from asyncio."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from headrace import AsyncConsumer, AsyncProducer, Consumer, Settings, ValueRefused

SCHEMA = json.dumps({"type": "record", "name": "Tick", "fields": [{"name": "n", "type": "int"}]})


def test_events_are_sent_and_read_in_an_event_loop(settings: Settings) -> None:
    topic = f"async-{uuid.uuid4().hex[:8]}"

    async def run() -> list[int]:
        async with AsyncProducer(settings, app="clock") as producer:
            first = await producer.send(topic, {"n": 0}, key="k", schema=SCHEMA)
            landed = await asyncio.gather(
                *(producer.send(topic, {"n": n}, key="k", schema=SCHEMA) for n in range(1, 50))
            )
            assert [place.offset for place in (first, *landed)] == list(range(50))
            with pytest.raises(ValueRefused, match="field n"):
                await producer.send(topic, {"n": "x"}, schema=SCHEMA)
            await producer.flush()
        async with AsyncConsumer(settings, topics=[topic], until_end=True) as consumer:
            return [message.value["n"] async for message in consumer]

    assert asyncio.run(run()) == list(range(50))


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
        with pytest.raises(RuntimeError, match="expected `async with`"):
            await AsyncProducer(settings, app="clock").send("t", None, "k")
        with pytest.raises(RuntimeError, match="expected `async with`"):
            await anext(AsyncConsumer(settings, topics=["t"]))

    asyncio.run(run())
