"""`WebhookDelivery` with a consumer in memory: batches, refused messages, dead letters, and lost assignments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.webhooks import delivery
from headrace.gateway.webhooks.delivery import WebhookDelivery
from headrace.gateway.webhooks.outcome import Outcome
from headrace.gateway.webhooks.webhook import Webhook
from headrace.settings.values import Duration


def message(offset: int, partition: int = 0) -> Message:
    return Message(
        topic="t", partition=partition, offset=offset, key=b"k", value=b"%d" % offset, headers=[], timestamp=(1, 5)
    )


class World:
    """A receiver, the consumer, and the sender of dead letters. `events` lists the calls in order."""

    def __init__(self) -> None:
        self.waiting: list[Message | Callable[[], None]] = []
        """Messages, and functions that are called in a poll, such as `revoke`."""
        self.events: list[tuple[str, Any]] = []
        self.respond: Callable[[list[int]], int] = lambda items: 204
        self.letters: list[Any] = []
        self.dead_letter_errors: list[KafkaError] = []
        self.encode_errors: list[GatewayError] = []
        self.attempts: list[int] = []
        counts: Any = SimpleNamespace(
            count_delivered=lambda messages: self.events.append(("delivered", messages)),
            count_dead_letter=lambda: self.events.append(("dead letter", 1)),
            count_failure=lambda: self.events.append(("failure", None)),
        )
        webhook = Webhook("w", ("t",), "http://x", batch_records=4, batch_wait=Duration(0), attempts=2)
        sender: Any = self
        self.delivery = WebhookDelivery(webhook, {}, self.post, self.encode, sender, counts)

    def post(self, message_id: str, body: bytes) -> Outcome:
        items = json.loads(body)
        status = self.respond(items)
        self.events.append(("post", items))
        return Outcome(status, f"status {status}")

    async def encode(self, one: Message) -> bytes:
        if self.encode_errors:
            raise self.encode_errors.pop()
        value = one.value()
        assert isinstance(value, bytes)
        return value

    async def send(self, topic: str, records: list[Any]) -> list[Any]:
        error = self.dead_letter_errors.pop() if self.dead_letter_errors else None
        self.letters += [] if error is not None else [(topic, *records)]
        return [SimpleNamespace(error=error)]

    def poll(self, timeout_s: float) -> Message | None:
        found = self.waiting.pop(0) if self.waiting else None
        if not callable(found):
            return found
        found()
        return None

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        assert not asynchronous
        self.events.append(("commit", [(one.partition, one.offset) for one in offsets]))

    def revoke(self) -> None:
        self.events.append(("revoked", None))
        self.on_revoke(self, [])

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.on_revoke = on_revoke
        on_assign(self, [TopicPartition("t", 0)])

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("assign", None))

    def assignment(self) -> list[TopicPartition]:
        return []

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("pause", None))

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("resume", None))

    def close(self) -> None:
        pass

    def run(self, *waiting: Message | Callable[[], None], until: tuple[str, Any]) -> list[tuple[str, Any]]:
        """Delivers until an event occurs. Returns the events that concern messages."""

        async def run() -> None:
            self.waiting += waiting
            running = asyncio.create_task(self.delivery.run())
            while until not in self.events and not running.done():
                await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.wait({running})

        asyncio.run(asyncio.wait_for(run(), 30))
        return [one for one in self.events if one[0] in ("post", "delivered", "dead letter", "commit")]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(delivery, "create_client", lambda kind, options: made)
    monkeypatch.setattr(delivery, "POLL_S", 0.0)
    monkeypatch.setattr(delivery, "REBALANCE_POLL_S", 0.001)

    def pause_s(attempt: int, retry_after_s: float, chance: float) -> float:
        made.attempts.append(attempt)
        return 0.005

    monkeypatch.setattr(delivery, "pause_s", pause_s)
    return made


def test_position_of_each_partition_is_committed_after_the_receiver_has_the_batch(world: World) -> None:
    found = world.run(
        *(message(offset, partition) for offset, partition in [(5, 0), (7, 1), (6, 0), (8, 1), (7, 0)]),
        until=("commit", [(0, 8)]),
    )
    assert found == [
        ("post", [5, 7, 6, 8]),
        ("delivered", 4),
        ("commit", [(0, 7), (1, 9)]),
        ("post", [7]),
        ("delivered", 1),
        ("commit", [(0, 8)]),
    ]


def test_refused_message_becomes_a_dead_letter_in_the_order_of_the_others(world: World) -> None:
    world.respond = lambda items: 422 if 2 in items else 204
    world.dead_letter_errors = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    found = world.run(*map(message, range(4)), until=("commit", [(0, 4)]))
    assert found == [
        ("post", [0, 1, 2, 3]),
        ("post", [0, 1]),
        ("delivered", 2),
        ("commit", [(0, 2)]),
        ("post", [2, 3]),
        ("post", [2]),
        ("post", [2]),
        ("post", [2]),
        ("dead letter", 1),
        ("commit", [(0, 3)]),
        ("post", [3]),
        ("delivered", 1),
        ("commit", [(0, 4)]),
    ]
    ((topic, letter),) = world.letters
    assert (topic, letter.value, letter.key, letter.timestamp_ms) == ("t.dead-letter", b"2", b"k", 5)
    assert dict(letter.headers)["hr.position"] == b"t-0-2"


def test_failing_receiver_gets_the_same_batch_however_often(world: World) -> None:
    statuses = [503, 404, 301, 204, 204]
    world.respond = lambda items: statuses.pop(0)
    world.encode_errors = [GatewayError(Kind.REGISTRY_UNAVAILABLE, "away")]
    found = world.run(message(0), message(1), until=("commit", [(0, 2)]))
    assert found == [*[("post", [0, 1])] * 4, ("delivered", 2), ("commit", [(0, 2)])]
    assert world.attempts == [1, 2, 3, 4] and not world.letters
    others = [one for one, _ in world.events if one not in ("post", "delivered", "commit")]
    assert others == ["assign", "resume", *["failure", "pause", "resume"] * 4]


def test_messages_of_a_lost_assignment_are_dropped(world: World) -> None:
    """The next owner reads them again; their positions must not be committed after it."""
    statuses = [503, 204]
    world.respond = lambda items: statuses.pop(0)
    world.run(
        *(message(0), message(1), message(2)),
        world.revoke,  # while the batch is read
        *(message(10), message(11), message(12), message(13)),
        message(14),  # during the pause
        world.revoke,
        message(20),  # of the next assignment, still during the pause
        until=("commit", [(0, 21)]),
    )
    found = [one for one in world.events if one[0] in ("post", "commit")]
    assert found == [("post", [10, 11, 12, 13]), ("post", [20]), ("commit", [(0, 21)])]


def test_messages_that_arrive_during_a_pause_are_delivered_after_the_batch(world: World) -> None:
    statuses = [503]
    world.respond = lambda items: statuses.pop() if statuses else 204
    error = Message(topic="t", partition=0, offset=0, error=KafkaError(KafkaError._TRANSPORT))
    found = world.run(*map(message, range(4)), error, message(4), until=("commit", [(0, 5)]))
    assert [one for one in found if one[0] == "post"] == [("post", [0, 1, 2, 3])] * 2 + [("post", [4])]
