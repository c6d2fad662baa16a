"""Apache Kafka's command line tools, started by their main classes: `kafka-topics` is TopicCommand, and so on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.servers.kafka_programs import WAIT_TIMEOUT_S, Tools, tools

pytestmark = pytest.mark.java

TOPICS, CONFIGS, GROUPS = "TopicCommand", "kafka.admin.ConfigCommand", "consumer.group.ConsumerGroupCommand"
PRODUCER, CONSUMER = "ConsoleProducer", "consumer.ConsoleConsumer"
LINES = "a:one\nb:two\nc:three\nd:four\na:five\n"


@pytest.fixture(scope="module")
def tool(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    with tools(broker_address, tmp_path_factory.mktemp("java")) as started:
        yield started


def new_topic(address: str, name: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": address})  # must live until the futures are done
    admin.create_topics([NewTopic(name, partitions)])[name].result(WAIT_TIMEOUT_S)


def five_lines(tool: Tools, topic: str) -> None:
    """Partitioned by key: the first three lines in partition 0, the fourth in 1, the fifth in 0."""
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    assert tool.run(PRODUCER, "--topic", topic, *keys, stdin=LINES).code == "0"


def read(tool: Tools, topic: str, group: str, count: int) -> list[str]:
    shown = [word for name in ("partition", "offset", "key") for word in ("--formatter-property", f"print.{name}=true")]
    requested = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(count))
    ran = tool.run(CONSUMER, *requested, *shown)
    assert ran.code == "0", ran
    assert f"Processed a total of {count} messages" in ran.stderr
    return sorted(ran.stdout.splitlines())


def test_topics(tool: Tools) -> None:
    made = tool.run(
        TOPICS, "--create", "--topic", "tt", "--partitions", "1", "--config", "cleanup.policy=compact,delete"
    )
    assert (made.code, made.rows) == ("0", [["Created", "topic", "tt."]])
    assert tool.run(TOPICS, "--alter", "--topic", "tt", "--partitions", "2").code == "0"
    described = tool.run(TOPICS, "--describe", "--topic", "tt")
    assert re.sub(r"TopicId: \S{22}\t", "", described.stdout) == (
        "Topic: tt\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: cleanup.policy=compact,delete\n"
        "\tTopic: tt\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: \n"
        "\tTopic: tt\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: \n"
    )
    assert ["tt"] in tool.run(TOPICS, "--list").rows
    assert tool.run(TOPICS, "--describe", "--under-replicated-partitions").rows == []
    assert tool.run(TOPICS, "--delete", "--topic", "tt").code == "0"
    assert ["tt"] not in tool.run(TOPICS, "--list").rows


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--replication-factor", "3"), "replication factor 3"),
        (("--config", "remote.storage.enable=true"), "remote.storage.enable"),
        (("--config", "min.insync.replicas=0"), "min.insync.replicas"),
        (("--partitions", "30000"), "30000"),
    ],
)
def test_a_topic_is_refused_with_the_reason(tool: Tools, arguments: tuple[str, ...], reason: str) -> None:
    refused = tool.run(TOPICS, "--create", "--topic", "refused", *arguments)
    assert refused.code == "1"
    assert reason in refused.stdout
    assert ["refused"] not in tool.run(TOPICS, "--list").rows


def test_lines_are_produced_and_read_and_the_group_is_described(tool: Tools, broker_address: str) -> None:
    new_topic(broker_address, "lines")
    five_lines(tool, "lines")
    assert read(tool, "lines", "tellers", 5) == [
        "Partition:0\tOffset:0\ta\tone",
        "Partition:0\tOffset:1\tb\ttwo",
        "Partition:0\tOffset:2\tc\tthree",
        "Partition:0\tOffset:3\ta\tfive",
        "Partition:1\tOffset:0\td\tfour",
    ]
    five_lines(tool, "lines")
    assert ["tellers"] in tool.run(GROUPS, "--list").rows
    described = tool.run(GROUPS, "--describe", "--group", "tellers")
    assert "Consumer group 'tellers' has no active members." in described.stderr
    assert described.rows[1:] == [
        ["tellers", "lines", "0", "4", "8", "4", "-", "-", "-"],
        ["tellers", "lines", "1", "1", "2", "1", "-", "-", "-"],
    ]
    state = tool.run(GROUPS, "--describe", "--group", "tellers", "--state").rows
    assert state[1:] == [["tellers", broker_address, "(1)", "-", "Empty", "0"]]


def test_offsets_of_a_group_are_set_and_deleted(tool: Tools, broker_address: str) -> None:
    new_topic(broker_address, "moved")
    five_lines(tool, "moved")
    read(tool, "moved", "movers", 5)

    def reset(topic: str, *options: str) -> list[list[str]]:
        ran = tool.run(GROUPS, "--reset-offsets", "--group", "movers", "--topic", topic, *options)
        assert ran.code == "0", ran
        return ran.rows[1:]

    def committed() -> list[tuple[str, str]]:
        rows = tool.run(GROUPS, "--describe", "--group", "movers").rows[1:]
        return [(row[2], row[3]) for row in rows]

    to_start = [["movers", "moved", "0", "0"], ["movers", "moved", "1", "0"]]
    assert reset("moved", "--to-earliest", "--dry-run") == to_start
    assert committed() == [("0", "4"), ("1", "1")]
    assert reset("moved", "--to-earliest", "--execute") == to_start
    assert committed() == [("0", "0"), ("1", "0")]
    assert reset("moved:0", "--shift-by", "3", "--execute") == [["movers", "moved", "0", "3"]]
    assert reset("moved:1", "--to-latest", "--execute") == [["movers", "moved", "1", "1"]]
    assert committed() == [("0", "3"), ("1", "1")]
    assert reset("moved", "--to-datetime", "2020-01-01T00:00:00.000", "--execute") == to_start
    deleted = tool.run(GROUPS, "--delete-offsets", "--group", "movers", "--topic", "moved:1")
    assert deleted.rows[-1] == ["moved", "1", "Successful"]
    assert committed() == [("0", "0")]
    assert tool.run(GROUPS, "--delete", "--group", "movers").code == "0"
    assert ["movers"] not in tool.run(GROUPS, "--list").rows


def test_a_group_that_has_a_member_keeps_its_offsets(tool: Tools, broker_address: str) -> None:
    new_topic(broker_address, "held")
    five_lines(tool, "held")
    settings = {"bootstrap.servers": broker_address, "group.id": "holders", "client.id": "holder"}
    member = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        member.subscribe(["held"])
        messages = member.consume(5, WAIT_TIMEOUT_S)
        assert len(messages) == 5
        member.commit(asynchronous=False)
        rows = tool.run(GROUPS, "--describe", "--group", "holders").rows[1:]
        assert [(*row[:6], row[7], row[8]) for row in rows] == [
            ("holders", "held", "0", "4", "4", "0", "/127.0.0.1", "holder"),
            ("holders", "held", "1", "1", "1", "0", "/127.0.0.1", "holder"),
        ]
        members = tool.run(GROUPS, "--describe", "--group", "holders", "--members", "--verbose").rows[1:]
        assert [(row[0], *row[3:6], row[6].partition(":")[2]) for row in members] == [
            ("holders", "holder", "2", "-", "0,1")
        ]
        refused = tool.run(
            GROUPS, "--reset-offsets", "--group", "holders", "--topic", "held", "--to-earliest", "--execute"
        )
        assert "can only be reset if the group 'holders' is inactive" in refused.stdout + refused.stderr
        remaining = tool.run(GROUPS, "--delete", "--group", "holders")
        assert "GroupNotEmptyException" in remaining.stdout + remaining.stderr
    finally:
        member.close()
    rows = tool.run(GROUPS, "--describe", "--group", "holders").rows[1:]
    assert [row[3] for row in rows] == ["4", "1"]


def test_configurations(tool: Tools, broker_address: str) -> None:
    new_topic(broker_address, "configured")
    own = ("--topic", "configured")

    def shown() -> list[str]:
        return sorted(row[0] for row in tool.run(CONFIGS, "--describe", *own).rows[1:])

    assert shown() == []
    altered = tool.run(CONFIGS, "--alter", *own, "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]")
    assert altered.stdout == "Completed updating config for topic configured.\n"
    assert shown() == ["cleanup.policy=compact,delete", "retention.ms=1000"]
    assert tool.run(CONFIGS, "--alter", *own, "--delete-config", "retention.ms").code == "0"
    assert shown() == ["cleanup.policy=compact,delete"]
    unknown = tool.run(CONFIGS, "--alter", *own, "--add-config", "retention.mss=1")
    assert (unknown.code, "'retention.mss'" in unknown.stderr) == ("1", True)
    broker = tool.run(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all").rows
    assert ["num.partitions=4", "sensitive=false", "synonyms={STATIC_BROKER_CONFIG:num.partitions=4}"] in broker
    running = ("--entity-type", "brokers", "--entity-name", "1", "--add-config", "log.retention.ms=1")
    refused = tool.run(CONFIGS, "--alter", *running)
    assert (refused.code, "InvalidRequestException" in refused.stderr) == ("1", True)


def test_offsets_and_bytes_of_partitions(tool: Tools, broker_address: str) -> None:
    new_topic(broker_address, "sized")
    five_lines(tool, "sized")

    def offsets(*time: str) -> list[list[str]]:
        return tool.run("GetOffsetShell", "--topic", "sized", *time).rows

    assert offsets() == [["sized:0:4"], ["sized:1:1"]]
    assert offsets("--time", "earliest") == [["sized:0:0"], ["sized:1:0"]]
    assert offsets("--time", "1000") == [["sized:0:0"], ["sized:1:0"]]
    newest = offsets("--time", "max-timestamp")
    assert [row[0].rpartition(":")[0] for row in newest] == ["sized:0", "sized:1"]

    described = tool.run("LogDirsCommand", "--describe", "--topic-list", "sized", "--broker-list", "1")
    (directory,) = json.loads(described.stdout.splitlines()[-1])["brokers"][0]["logDirs"]
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    on_disk = {
        name: (Path(directory["logDir"]) / name / f"{0:020d}.log").stat().st_size for name in ("sized-0", "sized-1")
    }
    assert sizes == on_disk
    assert min(sizes.values()) > 0


def test_records_are_deleted(tool: Tools, broker_address: str, tmp_path: Path) -> None:
    new_topic(broker_address, "cut")
    five_lines(tool, "cut")
    requested = tmp_path / "offsets.json"
    requested.write_text(json.dumps({"version": 1, "partitions": [{"topic": "cut", "partition": 0, "offset": 3}]}))
    assert tool.run("DeleteRecordsCommand", "--offset-json-file", str(requested)).rows[-1] == [
        *("partition:", "cut-0", "low_watermark:", "3")
    ]
    assert read(tool, "cut", "cutters", 2) == ["Partition:0\tOffset:3\ta\tfive", "Partition:1\tOffset:0\td\tfour"]


def test_transactions(tool: Tools, broker_address: str) -> None:
    new_topic(broker_address, "paid", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address, "transactional.id": "till"})
    producer.init_transactions(WAIT_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("paid", b"1")
    assert producer.flush(WAIT_TIMEOUT_S) == 0

    def requested_fields(*arguments: str) -> list[list[str]]:
        ran = tool.run("TransactionsCommand", *arguments)
        assert ran.code == "0", ran
        return ran.rows[1:]

    def state() -> str:
        return {row[0]: row[3] for row in requested_fields("list")}["till"]

    assert state() == "Ongoing"
    described = requested_fields("describe", "--transactional-id", "till")
    assert [(row[1], row[4], row[-1]) for row in described] == [("till", "Ongoing", "paid-0")]
    producers = requested_fields("describe-producers", "--topic", "paid", "--partition", "0")
    assert [row[-1] for row in producers] == ["0"]
    assert requested_fields("find-hanging", "--broker-id", "1") == []
    aborted = tool.run("TransactionsCommand", "abort", "--topic", "paid", "--partition", "0", "--start-offset", "0")
    assert (aborted.code, "does not support WRITE_TXN_MARKERS" in aborted.stdout + aborted.stderr) == ("1", True)
    assert state() == "Ongoing"
    requested_fields("forceTerminateTransaction", "--transactionalId", "till")
    assert state() != "Ongoing"
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        producer.commit_transaction(WAIT_TIMEOUT_S)
    assert fenced.value.args[0].fatal()


def test_other_tools(tool: Tools, broker_address: str, tmp_path: Path) -> None:
    new_topic(broker_address, "other", 1)
    five_lines(tool, "other")
    versions = tool.run("BrokerApiVersionsCommand").stdout
    assert "\tProduce(0): 0 to 12 [usable: 12],\n" in versions
    elected = tool.run("LeaderElectionCommand", "--election-type", "preferred", "--topic", "other", "--partition", "0")
    assert (elected.code, elected.stdout) == ("0", "Valid replica already elected for partitions other-0\n")
    read(tool, "other", "others", 5)
    assert ["others", "Classic", "consumer"] in tool.run("GroupsCommand", "--list").rows
    assert tool.run("FeatureCommand", "describe").rows == []
    numbers = ("--num-records", "1000", "--record-size", "100", "--throughput", "-1")
    sent = tool.run("ProducerPerformance", "--topic", "other", *numbers)
    assert (sent.code, sent.rows[-1][:3]) == ("0", ["1000", "records", "sent,"])
    assert tool.run("GetOffsetShell", "--topic", "other").rows == [["other:0:1005"]]


NO_LISTS = "SecurityDisabledException: "


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("AclCommand", "--list"), NO_LISTS),
        (("AclCommand", "--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", "t"), NO_LISTS),
        (("MetadataQuorumCommand", "describe", "--status"), "does not support DESCRIBE_QUORUM"),
        (("FeatureCommand", "upgrade", "--feature", "transaction.version=2"), "does not support UPDATE_FEATURES"),
        (("reassign.ReassignPartitionsCommand", "--list"), "does not support LIST_PARTITION_REASSIGNMENTS"),
        (("ClientMetricsCommand", "--list"), "does not support LIST_CONFIG_RESOURCES"),
        ((CONFIGS, "--describe", "--entity-type", "users"), "does not support DESCRIBE_CLIENT_QUOTAS"),
        (
            (
                CONFIGS,
                "--alter",
                "--entity-type",
                "users",
                "--entity-name",
                "a",
                "--add-config",
                "SCRAM-SHA-256=[password=x]",
            ),
            "does not support ALTER_USER_SCRAM_CREDENTIALS",
        ),
    ],
    ids=lambda value: value[0].rpartition(".")[2] if isinstance(value, tuple) else "",
)
def test_unsupported_request_fails_at_once(tool: Tools, command: tuple[str, ...], reason: str) -> None:
    refused = tool.run(*command)
    assert (refused.code, reason in refused.stdout + refused.stderr) == ("1", True), refused
