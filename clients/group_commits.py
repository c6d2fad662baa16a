"""What an application has finished of each partition, and what its group has been told of that."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.clients.bounded import Bounded
from headrace.clients.errors import SourceUnavailable
from headrace.clients.kafka_client import error_text
from headrace.clients.partitions import Place, missing, raise_first_error

logger = logging.getLogger(__name__)

COMMIT_EVERY_S: Final = 5.0
COMMIT_TIMEOUT_S: Final = 30.0


class GroupCommits:
    """Used by the thread of one consumer.

    The message at hand is the one that was given out last. It is finished when the next one is asked for
    (`note_given`), or never (`let_go`).
    """

    def __init__(self, group: str | None) -> None:
        self._group = group
        self._given: dict[Place, int] = {}
        self._at_hand: tuple[Place, int] | None = None
        self._committing: dict[Place, int] = {}
        self._committed_at = time.monotonic()
        self._may_be_gone = False
        """Whether the brokers do not know something of what was committed last."""
        self._bounded = Bounded()

    def give(self, place: Place, next_offset: int) -> None:
        """A message was given out; behind it is `next_offset`."""
        self._at_hand = (place, next_offset)

    def note_given(self) -> None:
        """Asking for the next message says that the one before was dealt with."""
        if self._at_hand is not None:
            place, next_offset = self._at_hand
            self._given[place] = next_offset
            self._at_hand = None

    def take_back(self, place: Place, next_offset: int) -> None:
        """The message given out last comes again, also where it was noted as dealt with meanwhile."""
        self.let_go()
        if self._given.get(place) == next_offset:
            self._given[place] = next_offset - 1

    def go_on_at(self, place: Place, offset: int) -> None:
        """Everything before an offset is finished, or is not to come again."""
        self._given[place] = offset

    def let_go(self) -> None:
        """The message at hand is not finished."""
        self._at_hand = None

    def forget(self, places: Iterable[Place]) -> None:
        """Of partitions that are read elsewhere, or from elsewhere, from now on."""
        for place in places:
            self._given.pop(place, None)
            if self._at_hand is not None and self._at_hand[0] == place:
                self._at_hand = None

    def commit(self, kafka: Any, places: frozenset[Place], timeout_s: float | None = COMMIT_TIMEOUT_S) -> None:
        """Waits until the group has been told of what was finished of these partitions.

        Args:
            timeout_s: None in a callback of the Kafka client about partitions. It takes a commit of another thread only
                when that has returned; and the brokers have just been heard of.

        Raises:
            SourceUnavailable: the brokers did not take it, or have not said so within `timeout_s`. Where a partition is
                gone, it is named once, and the offsets of others are committed.
        """
        offsets = [TopicPartition(*place, self._given[place]) for place in places if place in self._given]
        if not offsets:
            return

        def commit() -> list[TopicPartition]:
            found: list[TopicPartition] = kafka.commit(offsets=offsets, asynchronous=False)
            return found

        try:
            found = commit() if timeout_s is None else self._bounded.call(commit, timeout_s)
            raise_first_error(found, f"group {self._group}: offset not committed")
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                self._raise_gone(kafka, [(each.topic, each.partition) for each in offsets])
            raise SourceUnavailable(f"group {self._group}: offsets not committed: {error_text(error)}") from error
        except TimeoutError as error:
            raise SourceUnavailable(
                f"group {self._group}: no answer to a commit of offsets within {timeout_s:g} s; it may still be taken"
            ) from error
        for place in places:
            self._given.pop(place, None)

    def _raise_gone(self, kafka: Any, committed: list[Place]) -> None:
        """After a commit in which the brokers do not know something.

        They have taken the rest of it, although the Kafka client gives each partition the error of the one.

        Raises:
            SourceUnavailable: a partition is gone.
        """
        gone = missing(kafka, committed)
        if not gone:
            return
        for place in committed:
            self._given.pop(place, None)
        topic, partition = gone[0]
        names = ", ".join(f"{topic} partition {partition}" for topic, partition in gone)
        raise SourceUnavailable(
            f"group {self._group}: offsets not committed, of what is gone: {names}", topic=topic, partition=partition
        )

    @property
    def is_under_way(self) -> bool:
        """Whether a commit that was not waited for any more may still be answered."""
        return self._bounded.is_busy

    def close(self, kafka: Any) -> None:
        """Closes the Kafka client, now or as soon as such a commit was answered."""
        self._bounded.finally_call(kafka.close)

    def is_due(self) -> bool:
        return time.monotonic() - self._committed_at > COMMIT_EVERY_S

    def commit_meanwhile(self, kafka: Any, own: frozenset[Place]) -> None:
        """Without waiting for the answer: what was not taken is in the next one."""
        self._committed_at = time.monotonic()
        if self._may_be_gone:
            self._drop_gone(kafka, own)
        if self._given == self._committing:
            return
        self._committing = dict(self._given)
        offsets = [TopicPartition(*place, offset) for place, offset in self._given.items() if place in own]
        if offsets:
            try:
                kafka.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self.committed(error, [])

    def _drop_gone(self, kafka: Any, own: frozenset[Place]) -> None:
        """Says of each partition once that it is gone."""
        try:
            gone = missing(kafka, own & self._given.keys())
        except SourceUnavailable as error:
            logger.warning("offsets not committed, tried again group=%s error=%s", self._group, error)
            return
        self._may_be_gone = False
        for topic, partition in gone:
            del self._given[topic, partition]
            logger.warning(
                "offset not committed, its partition is gone group=%s topic=%s partition=%d",
                self._group,
                topic,
                partition,
            )

    def committed(self, error: Any, partitions: list[TopicPartition]) -> None:
        """The Kafka client's answer to `commit_meanwhile`."""
        if error is not None:
            self._committing = {}
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                self._may_be_gone = True
                return
            logger.warning("offsets not committed, tried again group=%s error=%s", self._group, error_text(error))
