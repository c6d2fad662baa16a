"""What `headrace broker topics` and `groups` must tell of any broker, after clients were at work on it."""

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

PATIENCE_S = 60


def asked(capsys: pytest.CaptureFixture[str], address: str, *words: str) -> Any:
    assert main(["broker", *words, "--format", "json", "--bootstrap-servers", address]) == 0
    return json.loads(capsys.readouterr().out)


def shown(capsys: pytest.CaptureFixture[str], address: str, *words: str) -> list[list[str]]:
    assert main(["broker", *words, "--bootstrap-servers", address]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def make_topic(address: str, name: str, partitions: int, **config: str) -> None:
    topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin = AdminClient({"bootstrap.servers": address})  # it must live until its futures are done
    admin.create_topics([topic])[name].result(PATIENCE_S)


def produce(address: str, topic: str, counts: list[int]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for partition, count in enumerate(counts):
        for _ in range(count):
            producer.produce(topic, b"x" * 100, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def look_at_topics_and_groups(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What holds of the bundled broker and of an Apache Kafka alike."""
    name = f"shown-{uuid.uuid4().hex[:8]}"
    make_topic(address, name, 3, retention_ms="1234567")
    produce(address, name, [5, 0, 2])
    (topic,) = asked(capsys, address, "topics", name)["topics"]
    assert (topic["topic"], topic["configs"]) == (name, {"retention.ms": "1234567"})
    assert [(one["partition"], one["start"], one["end"]) for one in topic["partitions"]] == [
        (0, 0, 5),
        (1, 0, 0),
        (2, 0, 2),
    ]
    assert topic["partitions"][0]["bytes"] > 500 and topic["partitions"][1]["bytes"] == 0
    (row,) = [line for line in shown(capsys, address, "topics") if line[:1] == [name]]
    assert row == [name, "3", "7", "0.0", "retention.ms=1234567"]
    assert ["2", "1", "0", "2", "2", "0.0"] in shown(capsys, address, "topics", name)

    group = f"{name}-group"
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    consumer.assign([TopicPartition(name, 0), TopicPartition(name, 2)])
    consumer.commit({TopicPartition(name, 0): OffsetAndMetadata(3, "", -1)})
    consumer.commit({TopicPartition(name, 2): OffsetAndMetadata(2, "", -1)})
    consumer.close()
    (found,) = asked(capsys, address, "groups", group)["groups"]
    assert (found["state"], found["members"]) == ("Empty", [])
    assert [(one["partition"], one["committed"], one["end"], one["lag"]) for one in found["partitions"]] == [
        (0, 3, 5, 2),
        (2, 2, 2, 0),
    ]
    (line,) = [line for line in shown(capsys, address, "groups") if line[:1] == [group]]
    assert (line[1], line[-2:]) == ("Empty", ["2", "2"])

    member = KafkaConsumer(name, bootstrap_servers=address, group_id=f"{group}-live", enable_auto_commit=False)
    # kafka-python 3.0.12 that learns of the partitions after it joined can miss what it is then assigned: a second
    # round of joining that outlasts a poll is never taken up.
    member.partitions_for_topic(name)
    deadline = time.monotonic() + PATIENCE_S
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(timeout_ms=100)
    (found,) = asked(capsys, address, "groups", f"{group}-live")["groups"]
    assert found["state"] == "Stable"
    (member_id,) = (one["member_id"] for one in found["members"])
    assert [(one["partition"], one["lag"], one["member_id"]) for one in found["partitions"]] == [
        (index, None, member_id) for index in range(3)
    ]
    assert [name, "1", "-", "0", "-", member_id] in shown(capsys, address, "groups", f"{group}-live")
    member.close()
    look_at_members_by_heartbeats(address, name, capsys)

    assert main(["broker", "topics", f"{name}-none", "--bootstrap-servers", address]) == 2
    assert f"topic {name}-none: UNKNOWN_TOPIC_OR_PARTITION" in capsys.readouterr().err
    assert main(["broker", "groups", f"{name}-none", "--bootstrap-servers", address]) == 2
    assert "there is no consumer group" in capsys.readouterr().err


def look_at_members_by_heartbeats(address: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Groups of the consumer protocol (KIP-848), which are described by a request of their own."""
    group = f"{topic}-by-heartbeats"
    settings = {"bootstrap.servers": address, "group.id": group, "group.protocol": "consumer", "client.id": "shop"}
    member = confluent_kafka.Consumer({**settings, "group.instance.id": "till-1", "auto.offset.reset": "earliest"})
    member.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    while len(member.assignment()) < 3:
        assert time.monotonic() < deadline
        member.poll(0.1)
    member.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 4)], asynchronous=False)
    while True:  # the broker knows of an assignment once a heartbeat has said so
        (found,) = asked(capsys, address, "groups", group)["groups"]
        if len(found["members"][0]["partitions"]) == 3 and found["state"] == "Stable":
            break
        assert time.monotonic() < deadline
        member.poll(0.1)
    (told,) = found["members"]
    assert (told["instance_id"], told["client_id"], found["protocol"]) == ("till-1", "shop", "uniform")
    assert [(one["partition"], one["lag"], one["member_id"]) for one in found["partitions"]] == [
        (index, lag, told["member_id"]) for index, lag in ((0, 1), (1, None), (2, None))
    ]
    (line,) = [line for line in shown(capsys, address, "groups") if line[:1] == [group]]
    assert line == [group, "Stable", "uniform", "1", "3", "1"]
    member.close()
