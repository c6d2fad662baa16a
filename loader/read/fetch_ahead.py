"""What a task needs next is fetched while it works on what came last.

The next question is guessed: behind the last whole batch of an answer, or where the task's next range begins. A wrong
guess costs a fetch and nothing else. One question is under way at a time, since a task's connections are not shared.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.record_batch import offset_behind
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.work_unit import OffsetRange


@dataclass(frozen=True, slots=True)
class FetchQuestion:
    """See `KafkaCluster.fetch`."""

    topic_partition: TopicPartition
    offset: int
    bytes_max: int
    topic_id: str
    leader_epoch: int

    @classmethod
    def first_of(cls, offsets: OffsetRange, bytes_max: int) -> FetchQuestion:
        """The one that a range is begun with."""
        return cls(offsets.topic_partition, offsets.start, bytes_max, offsets.topic_id, offsets.leader_epoch)


def question_after(
    question: FetchQuestion, piece: FetchSlice, end: int, then: FetchQuestion | None
) -> FetchQuestion | None:
    """What is asked next if all is as usual; None where that cannot be told.

    Args:
        piece: the answer to `question`.
        end: of the range that is read.
        then: what comes behind it.
    """
    offset = offset_behind(piece.records)
    if offset is None:
        return None
    if offset >= end:
        return then
    # Beyond what can be read the broker would wait for more, and keep the task from asking otherwise.
    is_there = offset < min(piece.high_watermark, piece.last_stable_offset)
    return replace(question, offset=offset) if is_there else None


class FetchAhead:
    """Used by one thread; `ask` is called there or in another one, but never twice at once."""

    def __init__(self, ask: Callable[[FetchQuestion], FetchSlice]) -> None:
        self._ask = ask
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-fetch")
        self._under_way: tuple[FetchQuestion, Future[FetchSlice]] | None = None

    def fetch(self, question: FetchQuestion) -> FetchSlice:
        """The answer, which may have come already.

        Raises:
            KafkaError: whatever `ask` raises.
        """
        answer = self._taken(question)
        return self._ask(question) if answer is None else answer.result()

    def prepare(self, question: FetchQuestion) -> None:
        """Has a question asked that is likely to be the next."""
        self._taken(None)
        self._under_way = (question, self._thread.submit(self._ask, question))

    def close(self) -> None:
        """Waits for what is under way."""
        self._thread.shutdown()

    def _taken(self, question: FetchQuestion | None) -> Future[FetchSlice] | None:
        """The answer that was prepared if it is to this question; nothing is under way afterwards."""
        if self._under_way is None:
            return None
        (asked, answer), self._under_way = self._under_way, None
        if asked == question:
            return answer
        wait([answer])
        return None
