"""Two consumers of one group: every message is processed once, and commits never move backward."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from headrace import Consumer, Producer
from headrace.audit.row import Tier
from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.broker.audit_topic import audit_rows

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
SCHEMA = json.dumps({"type": "record", "name": "Tick", "fields": [{"name": "n", "type": "int"}]})


class Member(threading.Thread):
    """Reads for a group until `stop`; afterwards the test may use the consumer."""

    def __init__(self, settings: Settings, topic: str, auto_commit: bool) -> None:
        super().__init__()
        self.consumer = Consumer(
            settings, topics=[topic], group=topic, auto_commit=auto_commit, idle_timeout_s=0.3, app="wall"
        )
        self.seen: list[tuple[int, int]] = []
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.is_set():
            self.seen.extend((message.partition, message.offset) for message in self.consumer)

    def stop(self) -> None:
        self.ended.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()


def wait_until(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, description
        time.sleep(0.05)


@pytest.mark.parametrize("auto_commit", [False, True])
def test_first_member_does_not_commit_partition_taken_by_second(
    tmp_path: Path, registry_url: str, broker_address: str, auto_commit: bool
) -> None:
    settings = Settings(
        data_dir=tmp_path,
        registry=RegistrySettings(url=registry_url),
        kafka=KafkaSettings(bootstrap_servers=broker_address),
    )
    topic = f"ticks-{uuid.uuid4().hex[:8]}"
    makes_topics = AdminClient({"bootstrap.servers": broker_address})
    makes_topics.create_topics([NewTopic(topic, 2)])[topic].result(TIMEOUT_S)

    def produce(count: int) -> Counter[tuple[int, int]]:
        with Producer(settings, app="clock") as producer:
            sent = [producer.send(topic, {"n": n}, key=f"{n}", schema=SCHEMA) for n in range(count)]
        landed = [future.result() for future in sent]
        return Counter((each.partition, each.offset) for each in landed)

    expected = produce(40)
    first = Member(settings, topic, auto_commit)
    wait_until(lambda: len(first.seen) == 40, "the first member reads all messages")
    second = Member(settings, topic, auto_commit)
    with closing(KafkaAdminClient(bootstrap_servers=broker_address)) as admin:
        wait_until(lambda: len(first.consumer.assignment()) == len(second.consumer.assignment()) == 1, "they share")
        expected += produce(40)
        wait_until(lambda: set(first.seen) | set(second.seen) == set(expected), "together they read all new messages")
        for member in (second, first):
            member.stop()
        if auto_commit:
            assert Counter(first.seen) + Counter(second.seen) == expected
        else:
            second.consumer.commit()
            first.consumer.commit()
        for member in (second, first):
            member.consumer.close()
        ends = Counter(partition for partition, _ in expected)
        committed = admin.list_group_offsets([topic])[topic]
    assert {topic_partition: each.offset for topic_partition, each in committed.items()} == {
        TopicPartition(topic, partition): end for partition, end in ends.items()
    }
    rows = [row for row in audit_rows(settings, topic) if row.tier is Tier.CONSUMER]
    assert sum(row.count for row in rows) == len(first.seen) + len(second.seen)
    assert all(0 <= row.start < row.end <= ends[row.partition] for row in rows)
