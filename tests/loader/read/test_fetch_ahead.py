"""What is asked ahead of its time, and that nothing but time depends on it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.read.fetch_ahead import FetchAhead, FetchQuestion, question_after
from headrace.loader.work_unit import OffsetRange
from record_batches import make_batch

FIRST = FetchQuestion.first_of(OffsetRange(TopicPartition("orders", 0), 5, 100, "id", 7), 1000)
OTHER = FetchQuestion.first_of(OffsetRange(TopicPartition("orders", 1), 0, 9, "id", 3), 1000)
EMPTY = FetchSlice(b"", 100, 100, 0, (), "b:1")
BATCH = make_batch(range(5, 20))


def test_behind_an_answer_comes_the_rest_of_the_range_then_the_next_range() -> None:
    piece = replace(EMPTY, records=BATCH)
    assert question_after(FIRST, piece, 100, OTHER) == replace(FIRST, offset=20)
    assert question_after(FIRST, piece, 20, OTHER) == OTHER
    assert question_after(FIRST, piece, 12, OTHER) == OTHER
    assert question_after(FIRST, piece, 20, None) is None


def test_nobody_waits_for_what_is_not_there_yet() -> None:
    assert question_after(FIRST, EMPTY, 100, OTHER) is None
    assert question_after(FIRST, replace(EMPTY, records=BATCH[:-1]), 100, OTHER) is None
    assert question_after(FIRST, replace(EMPTY, records=BATCH, high_watermark=20), 100, OTHER) is None
    assert question_after(FIRST, replace(EMPTY, records=BATCH, last_stable_offset=20), 100, OTHER) is None


class Log:
    """Answers with the offset that was asked for, in the thread that asks; notes who asks at the same time."""

    def __init__(self) -> None:
        self.asked: list[FetchQuestion] = []
        self.threads: set[int] = set()
        self._asking = threading.Lock()

    def ask(self, question: FetchQuestion) -> FetchSlice:
        assert self._asking.acquire(blocking=False), "two questions at once"
        try:
            self.asked.append(question)
            self.threads.add(threading.get_ident())
            if question.offset == 13:
                raise KafkaUnavailable("gone")
            return replace(EMPTY, broker=f"{question.topic_partition.partition}:{question.offset}")
        finally:
            self._asking.release()


def test_what_was_prepared_is_not_asked_again() -> None:
    log = Log()
    ahead = FetchAhead(log.ask)
    assert ahead.fetch(FIRST).broker == "0:5"
    ahead.prepare(replace(FIRST, offset=20))
    assert ahead.fetch(replace(FIRST, offset=20)).broker == "0:20"
    assert [question.offset for question in log.asked] == [5, 20]
    # Whoever asks once more wants to know what is so now.
    ahead.fetch(replace(FIRST, offset=20))
    assert [question.offset for question in log.asked] == [5, 20, 20]
    ahead.close()
    assert len(log.threads) == 2


@pytest.mark.parametrize(
    "meant",
    [
        OTHER,
        replace(FIRST, offset=21),
        replace(FIRST, offset=20, bytes_max=1),
        replace(FIRST, offset=20, topic_id="of another"),
        replace(FIRST, offset=20, leader_epoch=8),
    ],
)
def test_a_wrong_guess_costs_a_fetch_and_no_more(meant: FetchQuestion) -> None:
    log = Log()
    ahead = FetchAhead(log.ask)
    for _ in range(20):  # one after the other, whatever the threads do
        ahead.prepare(replace(FIRST, offset=20))
        assert ahead.fetch(meant).broker == f"{meant.topic_partition.partition}:{meant.offset}"
        ahead.prepare(replace(FIRST, offset=20))
        ahead.prepare(OTHER)
        assert ahead.fetch(OTHER).broker == "1:0"
    ahead.close()


def test_an_error_is_that_of_the_fetch_which_it_came_of() -> None:
    log = Log()
    ahead = FetchAhead(log.ask)
    ahead.prepare(replace(FIRST, offset=13))
    assert ahead.fetch(OTHER).broker == "1:0"  # which is none of its business
    ahead.prepare(replace(FIRST, offset=13))
    with pytest.raises(KafkaUnavailable, match="gone"):
        ahead.fetch(replace(FIRST, offset=13))
    assert ahead.fetch(FIRST).broker == "0:5"
    ahead.close()


def test_the_end_waits_for_what_is_under_way() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def ask(question: FetchQuestion) -> FetchSlice:
        begun.set()
        assert may_end.wait(30)
        return EMPTY

    ahead = FetchAhead(ask)
    ahead.prepare(FIRST)
    assert begun.wait(30)
    ending = threading.Thread(target=ahead.close)
    ending.start()
    ending.join(0.05)
    assert ending.is_alive()
    may_end.set()
    ending.join(30)
    assert not ending.is_alive()
