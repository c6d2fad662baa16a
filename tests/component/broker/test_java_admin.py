"""Kafka's own Admin, as web consoles for Kafka (AKHQ, kafka-ui) call it: `tests/support/java/AdminRound.java`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.java_oracle import compile_program
from support.servers.kafka_programs import JAVA, program_jars

pytestmark = pytest.mark.java

RUN_TIMEOUT_S = 180

# "…" matches any text in the broker's own messages.
RESPONSES = (
    (
        "describeCluster",
        "1 node 1 127.0.0.1, id 22 characters, "
        "may [CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE]",
    ),
    ("createTopics", "2 1 -1"),
    ("listTopics", "[__consumer_offsets internal, sales]"),
    (
        "describeTopics",
        "[0 on 1, 1 on 1] may [READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS]",
    ),
    ("describeTopics by id", "sales"),
    ("describeTopics by an id of none", "UnknownTopicIdException: TopicId AAAAAAAAAAcAAAAAAAAABw not found."),
    ("describeTopics of none", "UnknownTopicOrPartitionException: This server does not host this topic-partition."),
    ("createPartitions", "done"),
    ("createPartitions to fewer", "InvalidPartitionsException: …'sales'…3…2…"),
    ("listOffsets earliest", "0 of -1"),
    ("listOffsets latest", "3 of -1"),
    ("listOffsets max timestamp", "1 of 3000"),
    ("listOffsets at 2000", "1 of 3000"),
    ("listOffsets at 4000", "-1 of -1"),
    ("describeLogDirs", "[0 has bytes, 1 is empty, 2 is empty] of a disk"),
    ("listGroups", "[tills Classic Stable]"),
    ("listConsumerGroups", "[tills Stable]"),
    ("describeConsumerGroups", "Stable range 1 till /127.0.0.1 [0, 1, 2]"),
    (
        "alterConsumerGroupOffsets of a member's",
        "UnknownMemberIdException: Failed altering group offsets for the following partitions: [sales-0]",
    ),
    ("deleteConsumerGroups of members", "GroupNotEmptyException: The group is not empty."),
    ("listConsumerGroupOffsets", "{0=3, 1=0, 2=0}"),
    ("describeConsumerGroups without members", "Empty"),
    ("describeConsumerGroups of none", "Dead"),
    ("alterConsumerGroupOffsets", "{0=1, 1=0, 2=0}"),
    ("deleteConsumerGroupOffsets", "{1=0, 2=0}"),
    ("deleteConsumerGroups", "done"),
    ("describeConfigs of the topic", "{retention.ms=-1, segment.ms=999999}"),
    ("describeConfigs of the broker", "4 true STATIC_BROKER_CONFIG true"),
    ("incrementalAlterConfigs", "{cleanup.policy=delete,compact, max.message.bytes=2000, retention.ms=-1}"),
    (
        "incrementalAlterConfigs to what is not done",
        "InvalidConfigurationException: remote.storage.enable: …'true'…",
    ),
    ("incrementalAlterConfigs of the broker", "InvalidRequestException: …"),
    ("listTransactions", "[till-1 Ongoing]"),
    ("describeTransactions", "Ongoing [sales-1] 60000"),
    (
        "describeTransactions of none",
        "TransactionalIdNotFoundException: DescribeTransactions request for transactionalId `none` failed "
        "because the ID could not be found",
    ),
    ("describeProducers", "[open from 0]"),
    ("forceTerminateTransaction", "Empty"),
    ("deleteRecords", "2, earliest 2"),
    (
        "deleteRecords beyond the end",
        "OffsetOutOfRangeException: The requested offset is not within the range of offsets maintained by the server.",
    ),
    ("deleteTopics by id", "[]"),
    ("describeAcls", "SecurityDisabledException: …"),
    ("describeFeatures", "{} {}"),
    ("updateFeatures", "UnsupportedVersionException: The node does not support UPDATE_FEATURES"),
    ("describeMetadataQuorum", "UnsupportedVersionException: The node does not support DESCRIBE_QUORUM"),
    (
        "describeUserScramCredentials",
        "UnsupportedVersionException: The node does not support DESCRIBE_USER_SCRAM_CREDENTIALS",
    ),
    ("describeClientQuotas", "UnsupportedVersionException: The node does not support DESCRIBE_CLIENT_QUOTAS"),
    (
        "listPartitionReassignments",
        "UnsupportedVersionException: The node does not support LIST_PARTITION_REASSIGNMENTS",
    ),
    ("listConfigResources", "UnsupportedVersionException: The node does not support LIST_CONFIG_RESOURCES"),
    ("describeDelegationToken", "UnsupportedVersionException: The node does not support DESCRIBE_DELEGATION_TOKEN"),
    ("describeShareGroups", "UnsupportedVersionException: The node does not support SHARE_GROUP_DESCRIBE"),
)


def test_each_call_gets_the_expected_result_or_error(keeping_broker_address: str, tmp_path: Path) -> None:
    """The client rejects unsupported calls at once, because it knows ApiVersions; no call runs into its timeout."""
    classpath = program_jars()
    classes = compile_program("AdminRound", classpath, tmp_path / "classes")
    quiet = "-Dorg.apache.logging.log4j.level=OFF"
    command = [*JAVA, quiet, "-cp", f"{classes}:{classpath}", "AdminRound", keeping_broker_address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [tuple(line.split(": ", 1)) for line in done.stdout.splitlines()]
    assert [call for call, _ in found] == [call for call, _ in RESPONSES]
    patterns = [".*".join(map(re.escape, expected.split("…"))) for _, expected in RESPONSES]
    differing = [row for row, pattern in zip(found, patterns, strict=True) if not re.fullmatch(pattern, row[1])]
    assert differing == []
