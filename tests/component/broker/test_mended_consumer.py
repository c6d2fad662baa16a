"""What kafka-python's consumer does wrong and ours must not, against a running broker."""

from __future__ import annotations

import time
import uuid
from contextlib import closing

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace.pipeline.clients.mended_consumer import MendedConsumer

PATIENCE_S = 30  # below the session timeout of 45 s, after which the broker would put a silent member out


def poll_until_assigned(consumer: MendedConsumer, count: int) -> None:
    """Polls for a shorter time than a round of joining takes, so that each round outlasts the poll it began in."""
    deadline = time.monotonic() + PATIENCE_S
    while len(consumer.assignment()) != count:
        assert time.monotonic() < deadline, f"{len(consumer.assignment())} partitions, expected {count}"
        consumer.poll(timeout_ms=1)


def test_a_round_of_joining_that_outlasts_a_poll_is_taken_up_by_the_next(broker_address: str) -> None:
    topic = f"grown-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    with closing(MendedConsumer(bootstrap_servers=broker_address, group_id=topic)) as consumer:
        consumer.subscribe([topic])
        poll_until_assigned(consumer, 2)
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(60)
        consumer.topics()  # it learns of them now and not in five minutes
        poll_until_assigned(consumer, 8)


def test_a_topic_is_not_made_by_asking_for_it(broker_address: str) -> None:
    with closing(MendedConsumer(bootstrap_servers=broker_address, group_id="g", allow_auto_create_topics=False)) as one:
        one.subscribe(["nowhere"])
        one.poll(timeout_ms=1000)
        assert "nowhere" not in one.topics()
