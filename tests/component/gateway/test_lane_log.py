"""Takeovers of a lane against a broker: the state that the new owner finds, and rejected writes of the earlier one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.gateway.sessions import lane_log
from headrace.gateway.sessions.lane_log import CONFIRMED_S, RENEW_S, RETIRE_S, LaneLog
from headrace.gateway.sessions.sources import (
    SEQNO_HEADER,
    SOURCE_HEADER,
    SourceKey,
    SourceState,
    owner_record,
    producer_record,
    source_key,
)
from headrace.kafka_wire.batch_producer import BatchProducer, ProducerFenced, produce_as
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import ErrorResponse
from headrace.kafka_wire.record_batch import NO_HEADERS, batch_of_records, encode_headers
from headrace.kafka_wire.topic_partition import TopicPartition

pytestmark = pytest.mark.servers

LANE = 1
TIME_MS = 1_700_000_000_000


class Lanes:
    """Creates owners of one lane, each with connections of its own, and topics."""

    def __init__(self, address: str) -> None:
        self.state_topic = f"state-{uuid.uuid4().hex[:8]}"
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self._address = address
        self._clusters: list[KafkaCluster] = []
        self._admin = AdminClient({"bootstrap.servers": address})
        self.create(self.state_topic, LANE + 1, **{"cleanup.policy": "compact"})

    def create(self, topic: str, partitions: int = 1, **config: str) -> TopicPartition:
        self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
        return TopicPartition(topic, 0)

    def topic(self) -> TopicPartition:
        return self.create(f"data-{uuid.uuid4().hex[:8]}")

    def expire(self, partition: TopicPartition, offset: int) -> None:
        """Deletes the records before an offset."""
        where = KafkaPartition(partition.topic, partition.partition, offset)
        self._admin.delete_records([where])[where].result(30)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(30)

    def cluster(self) -> KafkaCluster:
        self._clusters.append(KafkaCluster(self._address))
        return self._clusters[-1]

    def owner(self) -> LaneLog:
        log = LaneLog(self.cluster(), self.state_topic, LANE, clock=lambda: self.now_s, sleep=self.slept_s.append)
        log.take_over()
        return log

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.close()


@pytest.fixture
def lanes(broker_address: str) -> Iterator[Lanes]:
    found = Lanes(broker_address)
    yield found
    found.close()


def record(source_id: str, seqno: int) -> tuple[None, bytes, bytes]:
    headers = encode_headers([(SOURCE_HEADER, source_id.encode()), (SEQNO_HEADER, seqno.to_bytes(8, "big"))])
    return None, b"value", headers


def write(log: LaneLog, partition: TopicPartition, source_id: str, *seqnos: int) -> None:
    """Writes records as a lane does."""
    log.prepare(partition)
    batch = batch_of_records([record(source_id, seqno) for seqno in seqnos], TIME_MS)
    base = log.write({partition: batch})[partition]
    assert isinstance(base, int)
    key = source_key(partition.topic, source_id)
    state = log.state.sources.setdefault(key, SourceState(partition.topic, source_id, partition.partition))
    state.last_seqno, state.offset = seqnos[-1], base + len(seqnos) - 1
    log.stored(partition, base + len(seqnos), [key])


def last_seqnos(log: LaneLog) -> dict[str, int]:
    return {source.source_id: source.last_seqno for source in log.state.sources.values()}


def test_new_owner_finds_what_the_checkpoint_has_and_what_was_written_after_it(lanes: Lanes) -> None:
    one, other = lanes.topic(), lanes.topic()
    owner = lanes.owner()
    write(owner, one, "a", 10, 20)
    write(owner, other, "b", 5)
    owner.checkpoint()
    assert not owner.has_changes
    write(owner, one, "a", 30, 40)
    write(owner, other, "c", 7)
    successor = lanes.owner()
    assert last_seqnos(successor) == {"a": 40, "b": 5, "c": 7} and successor.has_changes
    successor.checkpoint()
    assert lanes.owner().has_changes, "the fences move the offsets of the partitions"
    assert last_seqnos(lanes.owner()) == {"a": 40, "b": 5, "c": 7}, "after a takeover without a checkpoint"


def test_state_has_partition_offset_and_session_of_a_source(lanes: Lanes) -> None:
    partition = lanes.topic()
    owner = lanes.owner()
    source = SourceState(partition.topic, "a", 0, session=4, opened_ms=TIME_MS, host="h")
    owner.prepare(partition)
    owner.write_states([source.record()])
    owner.state.sources[source_key(partition.topic, "a")] = source
    write(owner, partition, "a", 10, 20)
    (found,) = lanes.owner().state.sources.values()
    assert found == source
    assert (found.last_seqno, found.offset) == (20, 1)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda log, used, unused: write(log, used, "a", 99),
        lambda log, used, unused: write(log, unused, "a", 99),
        lambda log, used, unused: log.checkpoint(),
    ],
    ids=["write", "use another partition", "checkpoint"],
)
def test_earlier_owner_can_write_nothing(
    lanes: Lanes, attempt: Callable[[LaneLog, TopicPartition, TopicPartition], None]
) -> None:
    used, unused = lanes.topic(), lanes.topic()
    earlier = lanes.owner()
    write(earlier, used, "a", 1)
    owner = lanes.owner()
    with pytest.raises(ProducerFenced):
        attempt(earlier, used, unused)
    write(owner, used, "a", 2)
    assert last_seqnos(lanes.owner()) == {"a": 2}


def test_records_of_other_producers_are_not_of_the_lane(lanes: Lanes) -> None:
    partition = lanes.topic()
    write(lanes.owner(), partition, "a", 1)
    foreign = BatchProducer(lanes.cluster(), f"foreign-{partition.topic}")
    foreign.start()
    foreign.produce({partition: batch_of_records([record("a", 1000), record("b", 1)], TIME_MS)})
    assert last_seqnos(lanes.owner()) == {"a": 1}


def test_open_transaction_of_another_producer_does_not_delay_a_takeover(lanes: Lanes) -> None:
    partition = lanes.topic()
    foreign = BatchProducer(lanes.cluster(), f"foreign-{partition.topic}")
    foreign.start()
    foreign.begin([partition])
    foreign.produce({partition: batch_of_records([record("b", 1)], TIME_MS)})
    write(lanes.owner(), partition, "a", 1)
    assert last_seqnos(lanes.owner()) == {"a": 1}
    foreign.end(is_commit=False)


def test_owner_with_another_producer_id_fences_the_earlier_ones_and_waits_for_them(lanes: Lanes) -> None:
    state = TopicPartition(lanes.state_topic, LANE)
    earlier = BatchProducer(lanes.cluster(), f"forgotten-{lanes.state_topic}")
    identity = earlier.start()

    def write_state(*records: tuple[bytes, bytes]) -> None:
        earlier.produce({state: batch_of_records([(*one, NO_HEADERS) for one in records], TIME_MS)})

    write_state(producer_record(*identity), owner_record(identity.producer_id))
    write_state(SourceState("t", "a", 0, 7).record())
    owner = lanes.owner()
    assert lanes.slept_s == [RETIRE_S]
    assert last_seqnos(owner) == {"a": 7}
    with pytest.raises(ProducerFenced):
        write_state(SourceState("t", "a", 0, 8).record())
    assert last_seqnos(lanes.owner()) == {"a": 7}
    assert lanes.slept_s == [RETIRE_S], "the next owner has the same producer id"


def test_owner_with_another_producer_id_loads_what_an_earlier_one_wrote_before_its_fence(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = TopicPartition(lanes.state_topic, LANE)
    earlier = BatchProducer(lanes.cluster(), f"forgotten-{lanes.state_topic}")
    identity = earlier.start()
    first = (producer_record(*identity), owner_record(identity.producer_id))
    earlier.produce({state: batch_of_records([(*one, NO_HEADERS) for one in first], TIME_MS)})

    def write_first(*arguments: Any) -> Any:
        late = SourceState("t", "a", 0, 9).record()
        earlier.produce({state: batch_of_records([(*late, NO_HEADERS)], TIME_MS)})
        return produce_as(*arguments)

    monkeypatch.setattr(lane_log, "produce_as", write_first)
    assert last_seqnos(lanes.owner()) == {"a": 9}


def test_partition_that_did_not_exist_at_the_takeover_is_fenced_before_its_use(lanes: Lanes) -> None:
    partition = lanes.topic()
    earlier = lanes.owner()
    write(earlier, partition, "a", 1)
    lanes.delete(partition.topic)
    owner = lanes.owner()
    lanes.create(partition.topic)
    write(earlier, partition, "a", 2)
    owner.prepare(partition)
    assert last_seqnos(owner) == {"a": 2}
    with pytest.raises(ProducerFenced):
        write(earlier, partition, "a", 3)


def test_owner_confirms_its_lane_before_it_writes_after_a_pause(lanes: Lanes) -> None:
    used = lanes.topic()
    earlier = lanes.owner()
    write(earlier, used, "a", 1)
    taker = BatchProducer(lanes.cluster(), f"{lanes.state_topic}-{LANE}")
    identity = taker.start()
    state = TopicPartition(lanes.state_topic, LANE)
    taker.produce({state: batch_of_records([(*producer_record(*identity), NO_HEADERS)], TIME_MS)})
    write(earlier, used, "a", 2)  # not fenced there yet
    lanes.now_s += CONFIRMED_S + 1
    with pytest.raises(ProducerFenced):
        write(earlier, used, "a", 3)
    assert last_seqnos(lanes.owner()) == {"a": 2}


def test_owner_renews_its_epoch_in_time(lanes: Lanes) -> None:
    owner = lanes.owner()
    assert not owner.must_renew
    lanes.now_s += RENEW_S + 1
    assert owner.must_renew
    owner.take_over()
    assert not owner.must_renew


def test_topic_that_was_created_again_is_scanned_from_its_start(lanes: Lanes) -> None:
    partition = lanes.topic()
    owner = lanes.owner()
    write(owner, partition, "a", *range(1, 51))
    owner.checkpoint()
    lanes.delete(partition.topic)
    assert last_seqnos(lanes.owner()) == {"a": 50}, "of a topic that does not exist"
    lanes.create(partition.topic)
    owner = lanes.owner()
    write(owner, partition, "a", 60)
    assert last_seqnos(lanes.owner()) == {"a": 60}


def test_expired_records_are_passed_over(lanes: Lanes) -> None:
    partition = lanes.topic()
    owner = lanes.owner()
    write(owner, partition, "a", 1, 2)
    owner.checkpoint()
    write(owner, partition, "a", 3, 4)
    write(owner, partition, "a", 5, 6)
    lanes.expire(partition, 4)
    assert last_seqnos(lanes.owner()) == {"a": 6}


def test_state_that_cannot_be_read_is_an_error_instead_of_lost_numbers(lanes: Lanes) -> None:
    foreign = BatchProducer(lanes.cluster(), f"foreign-{lanes.state_topic}")
    foreign.start()
    state = TopicPartition(lanes.state_topic, LANE)
    foreign.produce({state: batch_of_records([(b"key", b"value", NO_HEADERS)], TIME_MS)})
    with pytest.raises(ErrorResponse, match="state of lane"):
        lanes.owner()


def test_many_sources_load(lanes: Lanes) -> None:
    owner, partition = lanes.owner(), lanes.topic()
    owner.prepare(partition)
    states = [SourceState(partition.topic, f"host-{n}:/var/log/app.log", 0, n, n) for n in range(5_000)]
    owner.write_states([state.record() for state in states])
    loaded: dict[SourceKey, SourceState] = lanes.owner().state.sources
    assert list(loaded.values()) == states
