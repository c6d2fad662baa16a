"""Delivers the messages of a webhook's topics, as a task of the gateway's event loop.

A consumer group, named after the webhook, gives each gateway its partitions. The position of a partition is committed
after the receiver responded 2xx, or after the message is stored as a dead letter: a gateway that dies delivers the same
messages again, and none is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.clients.kafka_client import create_client, error_text
from headrace.gateway.decoding import content_bytes, headers_of
from headrace.gateway.errors import GatewayError
from headrace.gateway.sender import OutgoingRecord, RecordSender
from headrace.gateway.webhooks.metrics import WebhookCounts
from headrace.gateway.webhooks.outcome import Outcome, Verdict, pause_s
from headrace.gateway.webhooks.webhook import Webhook

logger = logging.getLogger(__name__)

GROUP_PREFIX: Final = "headrace-webhook-"
POLL_S: Final = 0.05
REBALANCE_POLL_S: Final = 0.5
CLOSE_S: Final = 10.0

Post = Callable[[str, bytes], Outcome]
Encode = Callable[[Message], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class WebhookBatch:
    """Messages for one request, in the order of each partition.

    `generation` is the number of assignments that the consumer has lost before: a batch of an earlier assignment is
    dropped, because the next owners of its partitions read the messages again.
    """

    messages: tuple[Message, ...]
    generation: int

    @property
    def message_id(self) -> str:
        """The same for the same messages, also after a restart of the gateway."""
        first, last = self.messages[0], self.messages[-1]
        return f"{position_text(first)}_{position_text(last)}_{len(self.messages)}"

    def halves(self) -> tuple[WebhookBatch, WebhookBatch]:
        middle = len(self.messages) // 2
        return WebhookBatch(self.messages[:middle], self.generation), WebhookBatch(
            self.messages[middle:], self.generation
        )

    def next_positions(self) -> list[TopicPartition]:
        """The offset after the last message of each partition."""
        found = {(str(one.topic()), int(one.partition() or 0)): int(one.offset() or 0) for one in self.messages}
        return [TopicPartition(topic, partition, offset + 1) for (topic, partition), offset in found.items()]


def _assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """Takes partitions of the group. A partition that was taken away while it was paused is still paused."""
    consumer.assign(partitions)
    consumer.resume(partitions)


def position_text(message: Message) -> str:
    return f"{message.topic()}-{message.partition()}-{message.offset()}"


class WebhookDelivery:
    """The delivery of one webhook by this gateway.

    Args:
        webhook: its settings.
        options: librdkafka's options: addresses and security.
        post: posts a body; it may block.
        encode: writes a message as an item of a body.
        sender: stores dead letters.
        counts: its metrics.
    """

    def __init__(
        self,
        webhook: Webhook,
        options: Mapping[str, Any],
        post: Post,
        encode: Encode,
        sender: RecordSender,
        counts: WebhookCounts,
    ) -> None:
        self._webhook = webhook
        self._options = {
            "client.id": "headrace-gateway",
            **options,
            "group.id": GROUP_PREFIX + webhook.name,
            "session.timeout.ms": 10_000,  # the partitions of a dead gateway are delivered by another one after it
            "partition.assignment.strategy": "roundrobin",  # takes away all partitions before it assigns new ones
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": webhook.start,
            "queued.max.messages.kbytes": 8_192,
        }
        self._post = post
        self._encode = encode
        self._sender = sender
        self._counts = counts
        self._generation = 0
        self._early: deque[Message] = deque()
        """Messages of a new assignment that came while a batch of the previous one waited."""

    async def run(self) -> None:
        """Delivers until the task is cancelled."""
        consumer = create_client(Consumer, self._options)
        consumer.subscribe(
            list(self._webhook.topics), on_assign=_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        try:
            while True:
                batch = await self._read(consumer)
                await self._deliver(consumer, batch)
        finally:
            with contextlib.suppress(KafkaException, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.to_thread(consumer.close)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._generation += 1
        self._early.clear()

    async def _read(self, consumer: Consumer) -> WebhookBatch:
        """Reads the messages of a batch. A batch has at least one message, also if that is larger than the limit."""
        webhook, loop = self._webhook, asyncio.get_running_loop()
        found: list[Message] = []
        size, deadline, generation = 0, 0.0, self._generation
        while True:
            message = self._early.popleft() if self._early else consumer.poll(0)
            if generation != self._generation:
                found, size, generation = [], 0, self._generation
            if message is None:
                if found and loop.time() >= deadline:
                    return WebhookBatch(tuple(found), generation)
                await asyncio.sleep(POLL_S)
                continue
            if self._is_error(message):
                continue
            deadline = deadline if found else loop.time() + webhook.batch_wait.seconds
            found.append(message)
            size += content_bytes(message)
            if len(found) >= webhook.batch_records or size >= webhook.batch_bytes:
                return WebhookBatch(tuple(found), generation)

    def _is_error(self, message: Message) -> bool:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            logger.warning("webhook_read_failed webhook=%s cause=%s", self._webhook.name, error_text(error))
        return error is not None

    async def _deliver(self, consumer: Consumer, batch: WebhookBatch) -> None:
        """Delivers a batch. If the receiver refuses it, its halves are delivered instead, until the message that is
        refused is found."""
        left, attempt = deque([batch]), 0
        while left and left[0].generation == self._generation:
            part = left[0]
            outcome = await self._attempt(part)
            if outcome.verdict is Verdict.REFUSED and len(part.messages) > 1:
                left.popleft()
                left.extendleft(reversed(part.halves()))
                continue
            attempt += 1
            if await self._is_finished(part, outcome, attempt):
                await self._commit(consumer, part)
                left.popleft()
                attempt = 0
            else:
                await self._pause(consumer, part, outcome, attempt)

    async def _is_finished(self, part: WebhookBatch, outcome: Outcome, attempt: int) -> bool:
        """Returns whether the receiver has the messages, or a dead letter has the one that it refuses."""
        if outcome.verdict is Verdict.DELIVERED:
            self._counts.count_delivered(len(part.messages))
            return True
        if outcome.verdict is Verdict.TRY_AGAIN or attempt < self._webhook.attempts:
            return False
        if not await self._store_dead_letter(part.messages[0], outcome):
            return False
        self._counts.count_dead_letter()
        return True

    async def _attempt(self, part: WebhookBatch) -> Outcome:
        try:
            items = [await self._encode(message) for message in part.messages]
        except GatewayError as error:  # the registry does not respond
            return Outcome(0, error.message)
        body = b"[" + b",".join(items) + b"]"
        return await asyncio.to_thread(self._post, part.message_id, body)

    async def _store_dead_letter(self, message: Message, outcome: Outcome) -> bool:
        topic = self._webhook.dead_letter_topic or f"{message.topic()}.dead-letter"
        (result,) = await self._sender.send(topic, [dead_letter(message, self._webhook.name, outcome)])
        cause = outcome.reason if result.error is None else error_text(result.error)
        logger.error(
            "%s webhook=%s message=%s topic=%s cause=%s",
            "dead_letter_stored" if result.error is None else "dead_letter_not_stored",
            self._webhook.name,
            position_text(message),
            topic,
            cause,
        )
        return result.error is None

    async def _commit(self, consumer: Consumer, part: WebhookBatch) -> None:
        commit = functools.partial(consumer.commit, offsets=part.next_positions(), asynchronous=False)
        try:
            await asyncio.to_thread(commit)
        except KafkaException as error:  # the next commit includes it
            logger.warning("webhook_commit_failed webhook=%s cause=%s", self._webhook.name, error_text(error.args[0]))

    async def _pause(self, consumer: Consumer, part: WebhookBatch, outcome: Outcome, attempt: int) -> None:
        """Waits before the next attempt, or until the group takes the partitions away. It does so in a poll; the
        partitions are paused, so that nothing is fetched."""
        self._counts.count_failure()
        pause = pause_s(attempt, outcome.retry_after_s, random.random())  # noqa: S311  (not for security)
        logger.warning(
            "webhook_failed webhook=%s first=%s messages=%d attempt=%d pause_s=%.1f cause=%s",
            self._webhook.name,
            position_text(part.messages[0]),
            len(part.messages),
            attempt,
            pause,
            outcome.reason,
        )
        loop = asyncio.get_running_loop()
        end = loop.time() + pause
        consumer.pause(consumer.assignment())
        while (rest := end - loop.time()) > 0 and part.generation == self._generation:
            await asyncio.sleep(min(rest, REBALANCE_POLL_S))
            message = consumer.poll(0)
            if message is not None and not self._is_error(message):
                self._early.append(message)
        consumer.resume(consumer.assignment())


def dead_letter(message: Message, webhook: str, outcome: Outcome) -> OutgoingRecord:
    """Returns the record that keeps a refused message: its key, value and headers as they are, and headers with its
    position and the response."""
    added: Sequence[tuple[str, str]] = (
        ("hr.webhook", webhook),
        ("hr.position", position_text(message)),
        ("hr.reason", outcome.reason),
    )
    headers = (*headers_of(message), *((name, text.encode()) for name, text in added))
    return OutgoingRecord(message.value(), message.key(), None, headers, message.timestamp()[1])
