"""Whether topics exist, cached: librdkafka would let a record for an unknown topic wait for its delivery timeout."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from headrace.clients.kafka_client import error_text
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.kafka_problems import problem_of

KNOWN_S: Final = 30.0
"""How long a topic counts as existing after a broker confirmed it."""
UNKNOWN_S: Final = 1.0
"""How long a topic counts as missing."""
TOPICS_MAX: Final = 20_000
LOOKUPS_MAX: Final = 256
"""Maximum number of topics that are looked up at the same time, in `THREADS` threads."""
THREADS: Final = 4
METADATA_S: Final = 3.0
RETRY_AFTER_S: Final = 2
PAUSES_S: Final = (0.0, 0.1, 0.2, 0.4)
"""Pauses before attempts: Apache Kafka reports a topic that it just creates as unknown."""
TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

ReadMetadata = Callable[[str, float], Any]
"""`Producer.list_topics`: returns the metadata of a topic, or of all for "", within a time limit in seconds. Creates a
missing topic if the brokers permit it."""


class ExistingTopics:
    """Checks for the coroutines of one event loop that topics exist."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, float] = {}
        """When the confirmation of each topic expires."""
        self._missing: dict[str, float] = {}
        self._lookups: dict[str, asyncio.Future[KafkaError | None]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "headrace-gateway-topics")

    def is_known(self, topic: str) -> bool:
        expires = self._known.get(topic)
        return expires is not None and self._clock() < expires

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)
        self._missing.pop(topic, None)

    async def require(self, topic: str, read: ReadMetadata) -> None:
        """Checks that a topic exists.

        Args:
            topic: its name.
            read: reads its metadata; called in a thread.

        Raises:
            GatewayError: the topic does not exist, or no broker responds and the topic was never confirmed.
        """
        if self.is_known(topic):
            return
        if not TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
            raise GatewayError(Kind.TOPIC_NOT_FOUND, f"{topic!r:.80} is not the name of a topic")
        if self._clock() < self._missing.get(topic, 0.0):
            raise _unknown(topic)
        error = await self._shared_lookup(topic, read)
        if error is None or (topic in self._known and error.code() not in _MISSING):
            _remember(self._known, topic, self._clock() + KNOWN_S)
        elif error.code() in _MISSING:
            self._known.pop(topic, None)
            _remember(self._missing, topic, self._clock() + UNKNOWN_S)
            raise _unknown(topic)
        else:
            raise _unavailable(error)

    async def broker_problem(self, read: ReadMetadata) -> str:
        """Returns why no broker responds; "" if one does."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, read, "", METADATA_S)
        except KafkaException as error:
            return f"no Kafka broker responds: {error_text(error)}"
        return ""

    async def _shared_lookup(self, topic: str, read: ReadMetadata) -> KafkaError | None:
        lookup = self._lookups.get(topic)
        if lookup is None:
            if len(self._lookups) >= LOOKUPS_MAX:
                raise GatewayError(
                    Kind.TOO_MANY_REQUESTS,
                    "too many topics are being looked up; try again",
                    retry_after_s=RETRY_AFTER_S,
                )
            lookup = asyncio.ensure_future(self._lookup(topic, read))
            self._lookups[topic] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(topic))
        return await asyncio.shield(lookup)

    async def _lookup(self, topic: str, read: ReadMetadata) -> KafkaError | None:
        """Returns None if the topic exists, otherwise the error."""
        error: KafkaError | None = None
        for pause_s in PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._threads, read, topic, METADATA_S)
                error = found.topics[topic].error
            except KafkaException as failure:
                return failure.args[0]  # type: ignore[no-any-return]
            if error is None or error.code() not in _PERHAPS_CREATED:
                return error
        return error

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


_MISSING: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION)
_PERHAPS_CREATED: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)


def _remember(times: dict[str, float], topic: str, expires: float) -> None:
    if len(times) >= TOPICS_MAX:
        times.clear()
    times[topic] = expires


def _unknown(topic: str) -> GatewayError:
    return GatewayError(Kind.TOPIC_NOT_FOUND, f"topic {topic} does not exist; create it")


def _unavailable(error: KafkaError) -> GatewayError:
    problem = problem_of(error)
    if problem.kind is Kind.NOT_AUTHORIZED:
        return problem
    return GatewayError(
        Kind.KAFKA_UNAVAILABLE, f"no Kafka broker responds: {problem.message}", retry_after_s=RETRY_AFTER_S
    )
