"""Brokers that a console reads, replaced by values."""

from __future__ import annotations

import pytest

from headrace.console.broker_reader import BrokerReader, TopicTimes
from headrace.console.pages import messages
from headrace.kafka_wire.admin import GroupDescription
from headrace.kafka_wire.group_lag import GroupLag, GroupLags, PartitionLag
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.inspect.offsets import BrokerOffsets, TopicOffsets
from headrace.pipeline.message_sample import MessageSample, SampledMessage, SampleEnd
from support.console import NOW_MS

EVIL = "<script>alert(1)</script>\u202e"
LONG = '{"text": "' + "x" * 5_000 + '"}'
SAMPLE = MessageSample(
    5,
    99,
    40,
    44,
    SampleEnd.MESSAGES,
    (
        SampledMessage(
            40, NOW_MS, b"k1", b"\0value", (("trace", b"\xff"), (EVIL, None)), 7, '{"id": 9007199254740993}'
        ),
        SampledMessage(41, -1, None, None, ()),
        SampledMessage(42, NOW_MS, EVIL.encode(), b"\0\0\0\0\x09" + b"z" * 900, (), 9, "", None, f"schema 9: {EVIL}"),
        SampledMessage(43, NOW_MS, b"=cmd", LONG.encode(), (), 7, LONG, NOW_MS - 1000),
    ),
    0,
    (EVIL,),
)


def replace_brokers(patch: pytest.MonkeyPatch) -> None:
    """Replaces all reads of brokers: each topic has two partitions, one of which has lost messages, and a group."""

    def partitions(topic: str) -> dict[TopicPartition, BrokerOffsets]:
        return {
            TopicPartition(topic, 0): BrokerOffsets(1, 5, 99, 103, NOW_MS - 3_600_000),
            TopicPartition(topic, 1): BrokerOffsets(-1, problem=f"no leader {EVIL}"),
        }

    group = GroupDescription(EVIL, "Empty", "consumer", "", "b:1", (), {})
    lags = GroupLags((GroupLag(group, (PartitionLag("orders", 0, 7, 99, ""),)),), (EVIL,))
    times = TopicTimes((0, 1), {0: 40}, {1: EVIL}, 2_500_000)
    patch.setattr(BrokerReader, "all_partitions", lambda self: {**partitions("orders"), **partitions(EVIL)})
    patch.setattr(BrokerReader, "topic", lambda self, topic, _: TopicOffsets(partitions(topic), 86_400_000))
    patch.setattr(BrokerReader, "groups", lambda self, _: lags)
    patch.setattr(BrokerReader, "times", lambda self, *_: times)
    patch.setattr(BrokerReader, "between", lambda self, *_: times)
    patch.setattr(BrokerReader, "use", lambda self, read: SAMPLE)
    patch.setattr(messages, "decode_sample", lambda sample, *_: sample)
