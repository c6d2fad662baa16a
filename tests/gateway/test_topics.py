"""The cache of existing topics, with metadata that tests control."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.topics import KNOWN_S, UNKNOWN_S, ExistingTopics

UNKNOWN = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class FakeBrokers:
    """Metadata by topic: errors in turn, the last one for ever."""

    def __init__(self, **errors: list[KafkaError | None]) -> None:
        self.errors = errors
        self.reads: Counter[str] = Counter()
        self.are_away = False

    def read(self, topic: str, timeout_s: float) -> Any:
        self.reads[topic] += 1
        if self.are_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        found = self.errors.get(topic, [UNKNOWN])
        return SimpleNamespace(topics={topic: SimpleNamespace(error=found.pop(0) if len(found) > 1 else found[0])})


class World:
    def __init__(self, brokers: FakeBrokers) -> None:
        self.brokers = brokers
        self.now_s = 100.0
        self.topics = ExistingTopics(lambda: self.now_s)

    async def kind(self, topic: str) -> Kind | None:
        """Returns the kind of the error, or None if the topic exists."""
        try:
            await self.topics.require(topic, self.brokers.read)
        except GatewayError as error:
            return error.kind
        return None


def run(brokers: FakeBrokers, test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World(brokers)
        try:
            await test(world)
        finally:
            world.topics.close()

    asyncio.run(main())


def test_existing_topic_is_looked_up_once_in_its_time() -> None:
    async def test(world: World) -> None:
        assert [await world.kind("a") for _ in range(3)] == [None] * 3
        assert world.brokers.reads["a"] == 1
        world.now_s += KNOWN_S
        assert await world.kind("a") is None
        assert world.brokers.reads["a"] == 2

    run(FakeBrokers(a=[None]), test)


def test_concurrent_requests_share_a_lookup() -> None:
    async def test(world: World) -> None:
        assert await asyncio.gather(*(world.kind("a") for _ in range(50))) == [None] * 50
        assert world.brokers.reads["a"] == 1

    run(FakeBrokers(a=[None]), test)


def test_topic_that_the_brokers_are_creating_exists() -> None:
    run(FakeBrokers(a=[UNKNOWN, KafkaError(KafkaError.LEADER_NOT_AVAILABLE), None]), _is_created)


async def _is_created(world: World) -> None:
    assert await world.kind("a") is None


def test_missing_topic_is_found_when_it_is_created_later() -> None:
    async def test(world: World) -> None:
        assert [await world.kind("a") for _ in range(3)] == [Kind.TOPIC_NOT_FOUND] * 3
        reads = world.brokers.reads["a"]
        world.brokers.errors["a"] = [None]
        assert await world.kind("a") is Kind.TOPIC_NOT_FOUND
        assert world.brokers.reads["a"] == reads
        world.now_s += UNKNOWN_S
        assert await world.kind("a") is None

    run(FakeBrokers(), test)


def test_deleted_topic_is_missing_after_its_time() -> None:
    async def test(world: World) -> None:
        assert await world.kind("a") is None
        world.brokers.errors["a"] = [UNKNOWN]
        world.now_s += KNOWN_S
        assert await world.kind("a") is Kind.TOPIC_NOT_FOUND

    run(FakeBrokers(a=[None]), test)


def test_without_brokers_known_topics_exist_and_others_get_503() -> None:
    async def test(world: World) -> None:
        assert await world.kind("a") is None
        world.brokers.are_away = True
        world.now_s += KNOWN_S
        assert [await world.kind("a"), await world.kind("b")] == [None, Kind.KAFKA_UNAVAILABLE]
        assert "no Kafka broker responds" in await world.topics.broker_problem(world.brokers.read)
        world.brokers.are_away = False
        assert await world.kind("b") is None

    run(FakeBrokers(a=[None], b=[None]), test)


def test_denied_topic_is_not_authorized() -> None:
    run(FakeBrokers(a=[DENIED]), _is_denied)


async def _is_denied(world: World) -> None:
    assert await world.kind("a") is Kind.NOT_AUTHORIZED


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a" * 250, "\N{SNOWMAN}", "a\n"])
def test_names_that_no_topic_can_have_are_not_looked_up(name: str) -> None:
    async def test(world: World) -> None:
        assert await world.kind(name) is Kind.TOPIC_NOT_FOUND
        assert not world.brokers.reads

    run(FakeBrokers(), test)
