"""Unmodified confluent-kafka's AdminClient against a running broker: each of its requests is served or rejected."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from support.broker.protocol_client import fresh

TIMEOUT_S = 60
T0_MS = time.time_ns() // 1_000_000 - 60_000


@pytest.fixture
def admin(broker_address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker_address})


@pytest.fixture
def topic(broker_address: str, admin: AdminClient) -> str:
    """A topic of two partitions, with ten messages in the first one, a second apart."""
    name = fresh("t")
    admin.create_topics([NewTopic(name, 2)])[name].result(TIMEOUT_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address})
    for number in range(10):
        producer.produce(name, b"%d" % number, partition=0, timestamp=T0_MS + number * 1000)
    assert producer.flush(TIMEOUT_S) == 0
    return name


@pytest.fixture
def member(broker_address: str, topic: str) -> Iterator[tuple[str, confluent_kafka.Consumer]]:
    """A group and its only member, which has all partitions of the topic and has committed its position."""
    group = fresh("g")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker_address,
            "group.id": group,
            "client.id": "the member",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    messages = consumer.consume(10, TIMEOUT_S)
    assert [message.value() for message in messages] == [b"%d" % number for number in range(10)]
    consumer.commit(asynchronous=False)
    yield group, consumer
    consumer.close()


def only(futures: dict[Any, Future[Any]]) -> Any:
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def refusal(future: Future[Any]) -> KafkaError:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        future.result(TIMEOUT_S)
    return refused.value.args[0]


def test_the_cluster_is_described(broker_address: str, admin: AdminClient) -> None:
    result = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert [(node.id, f"{node.host}:{node.port}") for node in result.nodes] == [(1, broker_address)]
    assert result.controller.id == 1
    assert result.cluster_id == admin.list_topics(timeout=TIMEOUT_S).cluster_id
    assert AclOperation.ALTER in result.authorized_operations


def test_groups_are_listed_and_described(
    broker_address: str, admin: AdminClient, topic: str, member: tuple[str, confluent_kafka.Consumer]
) -> None:
    group, consumer = member

    def listed(**options: Any) -> list[tuple[str, ConsumerGroupState, bool]]:
        result = admin.list_consumer_groups(**options).result(TIMEOUT_S)
        assert result.errors == []
        return [(each.group_id, each.state, each.is_simple_consumer_group) for each in result.valid]

    as_stable = (group, ConsumerGroupState.STABLE, False)
    assert as_stable in listed()
    assert as_stable in listed(states={ConsumerGroupState.STABLE})
    assert group not in [name for name, *_ in listed(states={ConsumerGroupState.EMPTY})]
    result = only(admin.describe_consumer_groups([group], include_authorized_operations=True))
    assert (result.state, result.partition_assignor, result.coordinator.id) == (ConsumerGroupState.STABLE, "range", 1)
    (only_member,) = result.members
    assert (only_member.client_id, only_member.group_instance_id) == ("the member", None)
    assert [(each.topic, each.partition) for each in only_member.assignment.topic_partitions] == [
        (topic, 0),
        (topic, 1),
    ]
    assert result.authorized_operations == [AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE]
    assert refusal(admin.delete_consumer_groups([group])[group]).code() == KafkaError.NON_EMPTY_GROUP
    consumer.close()
    assert (group, ConsumerGroupState.EMPTY, False) in listed()


def test_offsets_of_a_group_are_listed_and_altered(
    admin: AdminClient, topic: str, member: tuple[str, confluent_kafka.Consumer]
) -> None:
    group, consumer = member
    at = [TopicPartition(topic, 0, 3)]

    def altered() -> list[int | None]:
        result = only(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, at)]))
        return [each.error and each.error.code() for each in result.topic_partitions]

    def offsets() -> dict[int, int]:
        result = only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {each.partition: each.offset for each in result.topic_partitions}

    assert altered() == [KafkaError.UNKNOWN_MEMBER_ID]
    consumer.close()
    assert offsets() == {0: 10}
    assert altered() == [None]
    assert offsets() == {0: 3}
    only(admin.delete_consumer_groups([group]))
    assert offsets() == {}


def test_offsets_are_listed_by_spec_and_isolation_level(broker_address: str, admin: AdminClient, topic: str) -> None:
    def listed(spec: OffsetSpec, **options: Any) -> list[tuple[int, int]]:
        result = admin.list_offsets({TopicPartition(topic, index): spec for index in range(2)}, **options)
        found = {topic_partition.partition: future.result(TIMEOUT_S) for topic_partition, future in result.items()}
        return [(found[index].offset, found[index].timestamp) for index in range(2)]

    assert listed(OffsetSpec.earliest()) == [(0, -1), (0, -1)]
    assert listed(OffsetSpec.latest()) == [(10, -1), (0, -1)]
    assert listed(OffsetSpec.max_timestamp()) == [(9, T0_MS + 9000), (-1, -1)]
    assert listed(OffsetSpec.for_timestamp(T0_MS + 4001)) == [(5, T0_MS + 5000), (-1, -1)]
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address, "transactional.id": fresh("id")})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    assert listed(OffsetSpec.latest())[0] == (11, -1)
    assert listed(OffsetSpec.latest(), isolation_level=IsolationLevel.READ_COMMITTED)[0] == (10, -1)
    producer.abort_transaction(TIMEOUT_S)
    assert listed(OffsetSpec.latest(), isolation_level=IsolationLevel.READ_COMMITTED)[0] == (12, -1)
    (missing,) = admin.list_offsets({TopicPartition(fresh("none"), 0): OffsetSpec.latest()}).values()
    assert refusal(missing).code() == KafkaError._NOENT  # the client's own code for a topic without leaders


def test_configurations_are_described_and_altered(admin: AdminClient, topic: str) -> None:
    def described() -> dict[str, ConfigEntry]:
        return only(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]))

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> Future[Any]:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])[resource]

    before = described()["retention.ms"]
    assert (before.value, before.is_default, before.is_read_only) == ("604800000", True, False)
    alter("retention.ms", "60000", AlterConfigOpType.SET).result(TIMEOUT_S)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND).result(TIMEOUT_S)
    now = described()
    assert (now["retention.ms"].value, now["cleanup.policy"].value) == ("60000", "delete,compact")
    assert now["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    alter("retention.ms", None, AlterConfigOpType.DELETE).result(TIMEOUT_S)
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT).result(TIMEOUT_S)
    now = described()
    assert (now["retention.ms"].value, now["cleanup.policy"].value) == ("604800000", "compact")
    assert refusal(alter("retention.ms", "soon", AlterConfigOpType.SET)).code() == KafkaError.INVALID_CONFIG
    assert refusal(alter("no.such", "1", AlterConfigOpType.SET)).code() == KafkaError.INVALID_CONFIG
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    assert only(admin.describe_configs([broker]))["num.partitions"].value == "4"
    missing = ConfigResource(ConfigResource.Type.TOPIC, fresh("none"))
    assert refusal(admin.describe_configs([missing])[missing]).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_unsupported_request_fails_at_once(admin: AdminClient) -> None:
    """Requests fail before the client's timeout: it knows from ApiVersions, or gets an error."""
    users = admin.describe_user_scram_credentials(["somebody"])["somebody"]
    assert refusal(users).code() == KafkaError._UNSUPPORTED_FEATURE
    everybody = admin.describe_user_scram_credentials()
    assert refusal(everybody).code() == KafkaError._UNSUPPORTED_FEATURE
    mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    altered = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("somebody", mechanism, b"secret")])
    assert refusal(altered["somebody"]).code() == KafkaError._UNSUPPORTED_FEATURE
    pattern = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ)
    binding = AclBinding(*pattern, AclPermissionType.ALLOW)
    assert refusal(admin.create_acls([binding])[binding]).code() == KafkaError.SECURITY_DISABLED
    found = AclBindingFilter(*pattern, AclPermissionType.ALLOW)
    assert admin.describe_acls(found).result(TIMEOUT_S) == []  # the client hides the error of the whole request
    assert refusal(admin.delete_acls([found])[found]).code() == KafkaError.SECURITY_DISABLED
