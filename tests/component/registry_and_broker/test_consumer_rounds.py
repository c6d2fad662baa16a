"""What a Kafka client may get wrong when a topic grows or is not there, and ours must not."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace import Consumer, SourceUnavailable
from headrace.settings import Settings

PATIENCE_S = 30  # below the session timeout of 45 s, after which the broker would put a silent member out


def test_a_member_takes_up_the_partitions_that_a_topic_has_got(settings: Settings) -> None:
    topic = f"grown-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    often = {"topic.metadata.refresh.interval.ms": 200}
    with Consumer(settings, topics=[topic], group=topic, idle_timeout_s=0.1, options=often) as consumer:

        def read_until_assigned(count: int) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while len(consumer.assignment()) != count:
                assert time.monotonic() < deadline, f"{len(consumer.assignment())} partitions, expected {count}"
                assert next(consumer, None) is None

        read_until_assigned(2)
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(60)
        read_until_assigned(8)


def test_a_topic_is_not_made_by_asking_for_it(settings: Settings) -> None:
    for group in ("g", None):
        with pytest.raises(SourceUnavailable, match="topic nowhere does not exist"):
            Consumer(settings, topics=["nowhere"], group=group)
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    assert "nowhere" not in admin.list_topics(timeout=30).topics
