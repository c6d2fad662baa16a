"""Reads messages with many Kafka consumers, without a thread for each.

One task polls all consumers with waiting reads every `POLL_S`, without blocking. A poll without messages takes 2
microseconds; a blocking poll would need a thread for each read.

librdkafka passes rebalances of the group to the application during polls, and the other members wait for that. The task
therefore also polls consumers without a read, every `IDLE_POLL_S`. Their partitions are paused and not fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.clients.kafka_client import create_client, error_text
from headrace.gateway.cluster_admin import Partition
from headrace.gateway.decoding import content_bytes
from headrace.gateway.errors import RETRY_AFTER_S, GatewayError, Kind
from headrace.gateway.kafka_problems import problem_of

logger = logging.getLogger(__name__)

POLL_S: Final = 0.01
IDLE_POLL_S: Final = 0.5
FLOWING_S: Final = 3.0
"""Time after a read at which the partitions of its consumer are paused."""
MESSAGES_MAX: Final = 500
"""Maximum number of messages that one call takes from a consumer."""
GATHER_S: Final = 0.05
"""Time limit for gathering messages after the first one, while each poll returns more."""
ASSIGNMENT_S: Final = 10.0
"""Time limit of the wait for the first assignment of the group, for reads without an explicit time-out."""
BROKER_CHECK_S: Final = 2.0
CLOSE_S: Final = 10.0
BLOCKING_THREADS: Final = 16
CLOSING_THREADS: Final = 8

_CONSUMER_OPTIONS: Final[dict[str, Any]] = {
    "client.id": "headrace-gateway",
    "enable.auto.offset.store": False,  # stored when the message is delivered to the client
    "max.poll.interval.ms": 86_400_000,  # the task polls; instances have an idle time-out of their own
    "session.timeout.ms": 45_000,
    "queued.max.messages.kbytes": 2_048,
    "fetch.max.bytes": 2 * 2**20,
    "topic.metadata.refresh.interval.ms": 30_000,
}

_IGNORED_ERRORS: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
"""A topic that does not exist yet may be created while the consumer waits for it."""

_CONNECTION_ERRORS: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """When a read ends: with `bytes_min` of messages, before it exceeds `bytes_max`, or after `timeout_s`.

    A read has at least one message, even if it is larger than `bytes_max`. Without `is_timeout_explicit`, the time
    until the group assigns the first partitions does not count.
    """

    bytes_max: int
    timeout_s: float
    bytes_min: int = 1
    is_timeout_explicit: bool = True


@dataclass(slots=True)
class Read:
    """A read in progress, or its result: the messages in their order. Times are of the monotonic clock."""

    limits: ReadLimits
    started: float
    deadline: float
    done: asyncio.Future[None]
    messages: list[Message] = field(default_factory=list)
    size: int = 0
    first_at: float = 0.0

    def finish(self, error: GatewayError | None = None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class PolledConsumer:
    """A consumer that a `ConsumerPoller` polls.

    Args:
        poller: polls the consumer.
    """

    consumer: Consumer
    """Set before the first poll."""

    def __init__(self, poller: ConsumerPoller) -> None:
        self.poller = poller
        self.busy = asyncio.Lock()
        """Held during calls of the consumer in a thread."""
        self.reading = asyncio.Lock()
        """Held during a read; a second read waits."""
        self.read: Read | None = None
        self.held: deque[Message] = deque()
        """Messages that were taken from the consumer and not delivered."""
        self._is_allowed: Callable[[str], bool] = lambda topic: True
        self.was_assigned = False
        self.is_flowing = False
        self.is_closed = False
        self.last_read = 0.0
        self.lost_broker = False
        """Whether a broker did not respond since the last check that one does."""

    async def run(self, call: Callable[[Consumer], Result]) -> Result:
        """Calls a function, which may block, with the consumer.

        Raises:
            GatewayError: the call failed.
        """
        async with self.busy:
            if self.is_closed:
                raise problem_of(KafkaError(KafkaError._STATE))
            return await self.poller.call(call, self.consumer)

    def on_error(self, error: KafkaError) -> None:
        """Notes that a broker does not respond; called by the Kafka client."""
        if error.code() in _CONNECTION_ERRORS:
            self.lost_broker = True

    async def require_brokers(self) -> None:
        """Checks that a broker of the assigned partitions responds. Sends requests only after a connection failed.

        Raises:
            GatewayError: none responds.
        """
        if not self.lost_broker:
            return

        def call(consumer: Consumer) -> bool:
            found = consumer.list_topics(timeout=BROKER_CHECK_S)
            leaders = [
                found.topics[one.topic].partitions[one.partition].leader
                for one in consumer.assignment()
                if one.topic in found.topics and one.partition in found.topics[one.topic].partitions
            ]
            return not leaders or any(leader in found.brokers for leader in leaders)

        self.lost_broker = False  # an error during the check sets it again
        try:
            is_served = await self.run(call)
        except GatewayError as error:
            self.lost_broker = True
            raise _no_broker(error.message) from error
        if not is_served:
            self.lost_broker = True
            raise _no_broker("their partitions have no leader")

    async def subscribe(self, topics: list[str], is_allowed: Callable[[str], bool]) -> None:
        """Subscribes to topics, or a pattern. Assigned partitions of topics that are not allowed are not consumed."""
        self.held.clear()
        self._is_allowed = is_allowed
        self.was_assigned = False
        await self.run(
            lambda consumer: consumer.subscribe(
                topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        )

    async def unsubscribe(self) -> None:
        self.held.clear()

        def call(consumer: Consumer) -> None:
            consumer.unsubscribe()
            consumer.unassign()

        await self.run(call)

    async def assign(self, partitions: list[TopicPartition]) -> None:
        self.held.clear()
        self.was_assigned = self.is_flowing = True
        self.last_read = time.monotonic()
        await self.run(lambda consumer: consumer.assign(partitions))

    async def seek(self, targets: list[TopicPartition]) -> None:
        """Sets the next offset of assigned partitions."""
        partitions = {(one.topic, one.partition) for one in targets}

        def call(consumer: Consumer) -> None:
            for target in targets:
                _retry_state(lambda target=target: consumer.seek(target))  # type: ignore[misc]
            with contextlib.suppress(KafkaException):  # a commit without offsets commits these positions
                consumer.store_offsets(offsets=targets)

        await self.run(call)
        self._drop(partitions)

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        partitions = [one for one in assigned if self._is_allowed(one.topic)]
        consumer.assign(partitions)
        if partitions:
            self.was_assigned = True
            if not self.is_flowing:
                consumer.pause(partitions)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop({(one.topic, one.partition) for one in partitions})

    def _drop(self, partitions: set[Partition]) -> None:
        self.held = deque(one for one in self.held if (one.topic(), one.partition()) not in partitions)
        if self.read is not None:
            self.read.messages = [one for one in self.read.messages if (one.topic(), one.partition()) not in partitions]
            self.read.size = sum(map(content_bytes, self.read.messages))

    def set_flowing(self, is_flowing: bool) -> None:
        """Resumes or pauses all partitions."""
        self.is_flowing = is_flowing
        assigned = self.consumer.assignment()
        if assigned:
            (self.consumer.resume if is_flowing else self.consumer.pause)(assigned)

    def take(self, read: Read) -> int:
        """Takes messages for a read, and finishes it if the next message would exceed its size. Returns their number.

        Raises:
            KafkaException: the consumer cannot read.
        """
        before = len(read.messages)
        while self.held and self._add(read, self.held[0]):
            self.held.popleft()
        if not self.held:
            average = 1 + read.size // len(read.messages) if read.messages else 1_000
            count = min(MESSAGES_MAX, max(1, (read.limits.bytes_max - read.size) // average))
            taken = self.consumer.consume(count, timeout=0)
            good = [one for one in taken if one.error() is None]
            fitting = next((index for index, one in enumerate(good) if not self._add(read, one)), len(good))
            self.held.extend(good[fitting:])
            for error in (one.error() for one in taken):
                if error is not None and error.code() not in _IGNORED_ERRORS:
                    raise KafkaException(error)
        if self.held:
            read.finish()
        return len(read.messages) - before

    def _add(self, read: Read, message: Message) -> bool:
        size = content_bytes(message)
        if read.messages and read.size + size > read.limits.bytes_max:
            return False
        read.messages.append(message)
        read.size += size
        return True

    def give_back(self, messages: Iterable[Message]) -> None:
        """Returns messages that were not delivered, so that the next read has them."""
        self.held.extendleft(reversed(list(messages)))

    def deliver(self, messages: Iterable[Message]) -> None:
        """Sets the positions after messages that the client received; commits use them."""
        ends: dict[Partition, int] = {}
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None and partition is not None and offset is not None
            ends[topic, partition] = offset + 1
        for (topic, partition), offset in ends.items():
            # The group may have assigned the partition to another member, or the instance was deleted.
            with contextlib.suppress(KafkaException, RuntimeError):
                self.consumer.store_offsets(offsets=[TopicPartition(topic, partition, offset)])


def _no_broker(reason: str) -> GatewayError:
    return GatewayError(
        Kind.KAFKA_UNAVAILABLE,
        f"no broker of the instance's partitions responds: {reason}; read again when one does",
        retry_after_s=RETRY_AFTER_S,
    )


def _retry_state(call: Callable[[], None]) -> None:
    """Repeats a call while the consumer starts or stops to fetch the partition."""
    deadline = time.monotonic() + 5
    while True:
        try:
            return call()
        except KafkaException as error:
            code = error.args[0].code()
            if code not in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS) or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


class ConsumerPoller:
    """Polls consumers in the event loop, and runs their blocking calls in threads.

    Args:
        options: librdkafka's options: addresses and security.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._consumers: set[PolledConsumer] = set()
        self._readers: set[PolledConsumer] = set()
        self._wake = asyncio.Event()
        self._is_ending = False
        self._threads = ThreadPoolExecutor(BLOCKING_THREADS, "headrace-gateway-consumer")
        self._closing = ThreadPoolExecutor(CLOSING_THREADS, "headrace-gateway-close")
        self._task = asyncio.get_running_loop().create_task(self._poll())

    async def create(self, options: dict[str, Any]) -> PolledConsumer:
        """Creates a consumer.

        Args:
            options: librdkafka's options that differ between the gateway's consumers.
        """
        polled = PolledConsumer(self)
        merged = {**_CONSUMER_OPTIONS, **self._options, **options, "error_cb": polled.on_error}
        polled.consumer = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: create_client(Consumer, merged)
        )
        self._consumers.add(polled)
        return polled

    async def call(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Runs a call of the Kafka client in a thread.

        Raises:
            GatewayError: the call failed.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        except KafkaException as error:
            raise problem_of(error.args[0]) from error

    async def close(self, polled: PolledConsumer) -> None:
        """Ends the read and leaves the group. A consumer with automatic commits commits delivered positions first."""
        self._consumers.discard(polled)
        if polled.read is not None:
            polled.read.finish()
        async with polled.busy:
            if not polled.is_closed:
                polled.is_closed = True
                await asyncio.get_running_loop().run_in_executor(self._closing, _close, polled.consumer)

    def end_reads(self) -> None:
        """Ends all reads, and later ones at their first poll. They return the messages that they have."""
        self._is_ending = True
        self._wake.set()

    async def stop(self) -> None:
        self._task.cancel()
        closing = [asyncio.ensure_future(self.close(one)) for one in list(self._consumers)]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._closing.shutdown(wait=False, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def read(self, polled: PolledConsumer, limits: ReadLimits) -> AsyncIterator[Read]:
        """Yields a read that has begun; `Read.done` is the end. Messages go back if the block raises an error.

        The caller calls `PolledConsumer.deliver` when the client has the messages.
        """
        async with polled.reading:
            now = time.monotonic()
            read = Read(limits, now, now + limits.timeout_s, asyncio.get_running_loop().create_future())
            polled.read = read
            self._readers.add(polled)
            self._wake.set()
            try:
                yield read
            except BaseException:
                polled.give_back(read.messages)
                raise
            finally:
                polled.read = None
                polled.last_read = time.monotonic()
                self._readers.discard(polled)
                if read.done.done() and not read.done.cancelled():
                    read.done.exception()  # it was retrieved, or the client has disconnected

    async def _poll(self) -> None:
        idle_polled = 0.0
        while True:
            self._wake.clear()
            taken = [self._poll_reader(polled) for polled in list(self._readers)]
            now = time.monotonic()
            if now - idle_polled >= IDLE_POLL_S:
                idle_polled = now
                for polled in list(self._consumers - self._readers):
                    self._poll_idle(polled, now)
            if any(taken):
                await asyncio.sleep(0)
            elif any(polled.read is not None and not polled.read.done.done() for polled in self._readers):
                await asyncio.sleep(POLL_S)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), IDLE_POLL_S)

    def _poll_reader(self, polled: PolledConsumer) -> bool:
        """Polls a consumer for its read. Returns whether the read goes on, and more messages are likely to follow."""
        read = polled.read
        if read is None or read.done.done() or polled.busy.locked() or polled.is_closed:
            return False
        count = 0
        try:
            if not polled.is_flowing:
                polled.set_flowing(True)
            count = polled.take(read)
            now = time.monotonic()
            if count and not read.first_at:
                read.first_at = now
            if self._is_over(polled, read, now, is_quiet=not count):
                read.finish()
        except KafkaException as error:
            read.finish(problem_of(error.args[0]))
        except Exception as error:  # the task polls all consumers and must go on
            logger.exception("consumer_poll_failed")
            read.finish(GatewayError(Kind.KAFKA_FAILED, error_text(error)))
        return not read.done.done() and count >= MESSAGES_MAX

    def _is_over(self, polled: PolledConsumer, read: Read, now: float, *, is_quiet: bool) -> bool:
        if self._is_ending:
            return True
        if read.messages and read.size >= read.limits.bytes_min and (is_quiet or now - read.first_at > GATHER_S):
            return True
        if read.limits.is_timeout_explicit or polled.was_assigned:
            return now >= read.deadline
        read.deadline = now + read.limits.timeout_s
        if now - read.started > ASSIGNMENT_S:
            polled.was_assigned = True  # the group has more members than partitions
        return False

    def _poll_idle(self, polled: PolledConsumer, now: float) -> None:
        if polled.busy.locked() or polled.is_closed or now - polled.last_read < FLOWING_S:
            return
        try:
            if polled.is_flowing:
                polled.set_flowing(False)
            polled.held.extend(one for one in polled.consumer.consume(1, timeout=0) if one.error() is None)
        except KafkaException as error:
            logger.warning("consumer_poll_failed error=%s", error_text(error))


def _close(consumer: Consumer) -> None:
    try:
        consumer.close()
    except KafkaException as error:
        logger.warning("consumer_close_failed error=%s", error_text(error))
