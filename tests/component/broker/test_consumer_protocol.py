"""librdkafka consumers with `group.protocol=consumer` (KIP-848) against a running and a killed broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from support.broker.broker_restarts import serve, start_again
from support.broker.protocol_client import fresh
from support.free_ports import free_port

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
QUICK = {"consumer_heartbeat_interval": "200ms", "consumer_session_timeout": "3s"}
PATIENT = {**QUICK, "consumer_session_timeout": "30s"}
"""For tests that do not wait for a session to expire: a pause of the machine must not end one."""


class Member:
    """A consumer that stores what it reads, and whether partitions were revoked."""

    def __init__(self, address: str, group: str, topics: Sequence[str], **settings: Any) -> None:
        self.values: list[int] = []
        self.revoked: list[int] = []
        self.errors: list[KafkaError] = []
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
                **settings,
            }
        )
        self.consumer.subscribe(list(topics), on_revoke=self._revoked)

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self.revoked += [topic_partition.partition for topic_partition in partitions]

    def poll(self) -> None:
        for message in self.consumer.consume(500, 0.05):
            error = message.error()
            if error is None:
                self.values.append(int(message.value()))
            elif error.fatal():
                self.errors.append(error)

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(topic_partition.topic, topic_partition.partition) for topic_partition in self.consumer.assignment()}


def poll_until(members: Sequence[Member], condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, (description, [(each.partitions, len(each.values)) for each in members])
        for member in members:
            member.poll()
            assert not member.errors


@contextmanager
def member(address: str, group: str, topics: Sequence[str], **settings: Any) -> Iterator[Member]:
    one = Member(address, group, topics, **settings)
    try:
        yield one
    finally:
        one.consumer.close()


def create(address: str, topic: str, partitions: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(TIMEOUT_S)
    return admin


def produce(address: str, topic: str, values: range, partitions: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(topic, b"%d" % value, partition=value % partitions)
    assert producer.flush(TIMEOUT_S) == 0


def shares(members: Sequence[Member]) -> list[int]:
    return sorted(len(each.partitions) for each in members)


@pytest.fixture
def quick_broker(start_service: Any, tmp_path: Path) -> str:
    """A broker with short heartbeat intervals, whose members learn of changes soon."""
    return str(serve(start_service, tmp_path, **QUICK).addresses["broker"])


def test_members_share_partitions_across_a_kill_and_a_leave(start_service: Any, tmp_path: Path) -> None:
    """Committed messages are not read again, and surviving members are not reassigned."""
    port = free_port()
    service = serve(start_service, tmp_path, port, **PATIENT)
    address = service.addresses["broker"]
    create(address, "t", 4)
    with member(address, "g", ["t"]) as first, ExitStack() as second_alone:
        second = second_alone.enter_context(member(address, "g", ["t"]))
        both = (first, second)
        poll_until(both, lambda: shares(both) == [2, 2], "the members do not share")
        # Wait for both: one member alone could read everything, and the other would have nothing to commit.
        produce(address, "t", range(400), 4)
        poll_until(both, lambda: [len(each.values) for each in both] == [200, 200], "not all messages were read")
        assert {*first.values, *second.values} == set(range(400))
        for one in both:
            one.consumer.commit(asynchronous=False)
        before = [each.partitions for each in both]
        first.revoked.clear()
        second.revoked.clear()
        start_again(service, "kill", start_service, tmp_path, port, **PATIENT)
        produce(address, "t", range(400, 800), 4)
        poll_until(
            both, lambda: {*first.values, *second.values} == set(range(800)), "reading did not continue after the kill"
        )
        assert [len(each.values) for each in both] == [400, 400], "each once"
        assert [each.partitions for each in both] == before
        assert not first.revoked + second.revoked
        second.consumer.commit(asynchronous=False)
        second_alone.close()
        poll_until([first], lambda: shares([first]) == [4], "no member has the remaining partitions")
        first.consumer.commit(asynchronous=False)
    produce(address, "t", range(800, 900), 4)
    with member(address, "g", ["t"]) as third:
        poll_until([third], lambda: len(third.values) >= 100, "nothing is read")
        assert sorted(third.values) == list(range(800, 900))


def test_rebalance_does_not_interrupt_unaffected_members(quick_broker: str) -> None:
    create(quick_broker, "t", 6)
    with member(quick_broker, "g", ["t"]) as first, member(quick_broker, "g", ["t"]) as second:
        poll_until([first, second], lambda: shares([first, second]) == [3, 3], "the members do not share")
        first.revoked.clear()
        second.revoked.clear()
        with member(quick_broker, "g", ["t"]) as third:
            everybody = [first, second, third]
            poll_until(everybody, lambda: shares(everybody) == [2, 2, 2], "the members do not share")
            assert len(first.revoked) == len(second.revoked) == 1


def test_new_topics_and_partitions_are_read(quick_broker: str) -> None:
    create(quick_broker, "shop.a", 1)
    with member(quick_broker, "g", [r"^shop\..*"]) as one:
        poll_until([one], lambda: one.partitions == {("shop.a", 0)}, "the pattern matches nothing")
        admin = create(quick_broker, "shop.b", 1)
        poll_until([one], lambda: one.partitions == {("shop.a", 0), ("shop.b", 0)}, "the new topic is not read")
        admin.create_partitions([NewPartitions("shop.b", 2)])["shop.b"].result(TIMEOUT_S)
        produce(quick_broker, "shop.b", range(4), 2)
        poll_until([one], lambda: sorted(one.values) == [0, 1, 2, 3], "the new partition is not read")
        admin.delete_topics(["shop.a"])["shop.a"].result(TIMEOUT_S)
        poll_until([one], lambda: one.partitions == {("shop.b", 0), ("shop.b", 1)}, "the deleted topic is still there")


def test_restarted_static_member_gets_its_partitions_back(quick_broker: str) -> None:
    create(quick_broker, "t", 4)
    with member(quick_broker, "g", ["t"]) as other:
        with member(quick_broker, "g", ["t"], **{"group.instance.id": "i"}) as static:
            poll_until([other, static], lambda: shares([other, static]) == [2, 2], "the members do not share")
            before = static.partitions
            other.revoked.clear()
        with member(quick_broker, "g", ["t"], **{"group.instance.id": "i"}) as restarted:
            poll_until(
                [other, restarted],
                lambda: restarted.partitions == before,
                "the static member does not get its partitions back",
            )
            assert not other.revoked
        poll_until([other], lambda: shares([other]) == [4], "the session does not expire")


def test_silent_member_is_removed(quick_broker: str) -> None:
    create(quick_broker, "t", 2)
    silent = Member(quick_broker, "g", ["t"], **{"max.poll.interval.ms": 6000})
    with member(quick_broker, "g", ["t"]) as other:
        poll_until([silent, other], lambda: shares([silent, other]) == [1, 1], "the members do not share")
        poll_until([other], lambda: shares([other]) == [2], "the silent member still has its partition")
    silent.consumer.close()


def test_admin_tools_see_the_group(quick_broker: str) -> None:
    group = fresh("g")
    admin = create(quick_broker, "t", 2)
    with member(quick_broker, group, ["t"], **{"client.id": "one", "group.remote.assignor": "range"}) as one:
        poll_until([one], lambda: shares([one]) == [2], "the member has no partitions")
        (listed,) = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(TIMEOUT_S).valid
        assert (listed.group_id, listed.type, listed.state) == (
            group,
            ConsumerGroupType.CONSUMER,
            ConsumerGroupState.STABLE,
        )
        assert not admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(TIMEOUT_S).valid
        result = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert (result.type, result.state, result.partition_assignor) == (listed.type, listed.state, "range")
        (described,) = result.members
        assert described.client_id == "one"
        for assignment in (described.assignment, described.target_assignment):
            assert {
                (topic_partition.topic, topic_partition.partition) for topic_partition in assignment.topic_partitions
            } == {("t", 0), ("t", 1)}
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
        classic = Member(quick_broker, group, ["t"], **{"group.protocol": "classic"})
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            message = classic.consumer.poll(0.2)
            one.poll()
            if message is not None and message.error() is not None:
                assert message.error().code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
                break
            assert time.monotonic() < deadline
        classic.consumer.close()
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert not admin.list_consumer_groups().result(TIMEOUT_S).valid
