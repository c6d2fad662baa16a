"""Checks of `headrace broker topics` and `headrace broker groups` against any broker."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from headrace.cli import main
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.group_lag import topic_group_lags
from headrace.loader.inspect.offsets import topic_offsets

TIMEOUT_S = 60


def run_json(capsys: pytest.CaptureFixture[str], address: str, *words: str) -> Any:
    assert main(["broker", *words, "--format", "json", "--bootstrap-servers", address]) == 0
    return json.loads(capsys.readouterr().out)


def run_table(capsys: pytest.CaptureFixture[str], address: str, *words: str) -> list[list[str]]:
    assert main(["broker", *words, "--bootstrap-servers", address]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def make_topic(address: str, name: str, partitions: int, **config: str) -> None:
    topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin = AdminClient({"bootstrap.servers": address})  # must live until the futures are done
    admin.create_topics([topic])[name].result(TIMEOUT_S)


def produce(address: str, topic: str, counts: list[int]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for partition, count in enumerate(counts):
        for _ in range(count):
            producer.produce(topic, b"x" * 100, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def check_topics_and_groups(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that hold for the bundled broker and for Apache Kafka."""
    name = f"shown-{uuid.uuid4().hex[:8]}"
    make_topic(address, name, 3, retention_ms="1234567")
    produce(address, name, [5, 0, 2])
    (topic,) = run_json(capsys, address, "topics", name)["topics"]
    assert (topic["topic"], topic["configs"]) == (name, {"retention.ms": "1234567"})
    assert [(one["partition"], one["start"], one["end"]) for one in topic["partitions"]] == [
        (0, 0, 5),
        (1, 0, 0),
        (2, 0, 2),
    ]
    assert topic["partitions"][0]["bytes"] > 500 and topic["partitions"][1]["bytes"] == 0
    (row,) = [line for line in run_table(capsys, address, "topics") if line[:1] == [name]]
    assert row == [name, "3", "7", "0.0", "retention.ms=1234567"]
    assert ["2", "1", "0", "2", "2", "0.0"] in run_table(capsys, address, "topics", name)

    group = f"{name}-group"
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    consumer.assign([TopicPartition(name, 0), TopicPartition(name, 2)])
    consumer.commit({TopicPartition(name, 0): OffsetAndMetadata(3, "", -1)})
    consumer.commit({TopicPartition(name, 2): OffsetAndMetadata(2, "", -1)})
    consumer.close()
    (found,) = run_json(capsys, address, "groups", group)["groups"]
    assert (found["state"], found["members"]) == ("Empty", [])
    assert [(one["partition"], one["committed"], one["end"], one["lag"]) for one in found["partitions"]] == [
        (0, 3, 5, 2),
        (2, 2, 2, 0),
    ]
    (line,) = [line for line in run_table(capsys, address, "groups") if line[:1] == [group]]
    assert (line[1], line[-2:]) == ("Empty", ["2", "2"])

    _check_offsets(address, name, group)
    member = KafkaConsumer(name, bootstrap_servers=address, group_id=f"{group}-live", enable_auto_commit=False)
    # If kafka-python 3.0.12 learns of the partitions after it joined, it can miss its assignment: it ignores a second
    # rejoin that takes longer than a poll.
    member.partitions_for_topic(name)
    deadline = time.monotonic() + TIMEOUT_S
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(timeout_ms=100)
    (found,) = run_json(capsys, address, "groups", f"{group}-live")["groups"]
    assert found["state"] == "Stable"
    (member_id,) = (one["member_id"] for one in found["members"])
    assert [(one["partition"], one["lag"], one["member_id"]) for one in found["partitions"]] == [
        (index, None, member_id) for index in range(3)
    ]
    assert [name, "1", "-", "0", "-", member_id] in run_table(capsys, address, "groups", f"{group}-live")
    member.close()
    check_consumer_protocol_members(address, name, capsys)

    assert main(["broker", "topics", f"{name}-none", "--bootstrap-servers", address]) == 2
    assert f"topic {name}-none: UNKNOWN_TOPIC_OR_PARTITION" in capsys.readouterr().err
    assert main(["broker", "groups", f"{name}-none", "--bootstrap-servers", address]) == 2
    assert f"consumer group '{name}-none' does not exist" in capsys.readouterr().err


def check_consumer_protocol_members(address: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks groups of the consumer protocol (KIP-848), which need a describe request of their own type."""
    group = f"{topic}-by-heartbeats"
    settings = {"bootstrap.servers": address, "group.id": group, "group.protocol": "consumer", "client.id": "shop"}
    member = confluent_kafka.Consumer({**settings, "group.instance.id": "till-1", "auto.offset.reset": "earliest"})
    member.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    while len(member.assignment()) < 3:
        assert time.monotonic() < deadline
        member.poll(0.1)
    member.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 4)], asynchronous=False)
    while True:  # a heartbeat must confirm an assignment before the broker reports it
        (found,) = run_json(capsys, address, "groups", group)["groups"]
        if len(found["members"][0]["partitions"]) == 3 and found["state"] == "Stable":
            break
        assert time.monotonic() < deadline
        member.poll(0.1)
    (member_row,) = found["members"]
    assert (member_row["instance_id"], member_row["client_id"], found["protocol"]) == ("till-1", "shop", "uniform")
    assert [(one["partition"], one["lag"], one["member_id"]) for one in found["partitions"]] == [
        (index, lag, member_row["member_id"]) for index, lag in ((0, 1), (1, None), (2, None))
    ]
    (line,) = [line for line in run_table(capsys, address, "groups") if line[:1] == [group]]
    assert line == [group, "Stable", "uniform", "1", "3", "1"]
    member.close()


def _check_offsets(address: str, topic: str, group: str) -> None:
    """Checks the offsets of a topic with 5, 0 and 2 messages, and of a group at 3 and 2."""
    now_ms = time.time_ns() // 1_000_000
    with KafkaCluster(address) as cluster:
        found = topic_offsets(cluster, topic, {0: 4, 1: 0, 2: 9})
        offsets = [(one.start, one.end, one.high_watermark) for one in found.partitions.values()]
        assert offsets == [(0, 5, 5), (0, 0, 0), (0, 2, 2)]
        times = [one.first_unread_ms for one in found.partitions.values()]
        assert times[1:] == [None, None]  # all are read; the next offset is beyond the end
        assert times[0] is not None and 0 <= now_ms - times[0] < TIMEOUT_S * 1000
        assert found.retention_ms == 1_234_567
        lags = topic_group_lags(cluster, {tp: one.high_watermark for tp, one in found.partitions.items()})
        (lag,) = [one for one in lags.groups if one.group.group_id == group]
        assert [(one.partition, one.committed, one.lag) for one in lag.partitions] == [(0, 3, 2), (2, 2, 0)]
        assert (lag.group.state, lag.lag, lags.notes) == ("Empty", 2, ())
        assert topic_offsets(cluster, f"no-{topic}", {}).problem
