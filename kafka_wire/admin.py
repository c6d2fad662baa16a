"""What a broker tells of itself: groups with their members, where topics are configured otherwise, sizes of logs.

Each function is one request over one connection; `KafkaCluster.ask_all` and `ask_any` say to whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

from headrace.kafka_wire.connection import NONE, Connection, Message, error_name
from headrace.kafka_wire.errors import MalformedMessage, RequestRefused
from headrace.kafka_wire.primitives import Reader
from headrace.kafka_wire.requests import fetch_committed
from headrace.kafka_wire.topic_partition import TopicPartition

LIST_GROUPS_VERSION = 4
STATE_FROM = 4
DESCRIBE_GROUPS_VERSION = 5
INSTANCE_FROM = 4
DESCRIBE_CONFIGS_VERSION = 4
DESCRIBE_LOG_DIRS_VERSION = 2
"""The newest versions that bring something we use."""

TOPIC = 2  # a kind of resource
OF_TOPIC = 1  # a source of a configuration's value
RESOURCES_AT_ONCE = 500
"""Topics in one question for their configuration, and groups in one for their members: an answer has hundreds of times
their names."""


@dataclass(frozen=True, slots=True)
class Member:
    """`instance_id` is "" of one that is not static; `assigned` is empty where the group's protocol is another's."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`committed` are next offsets; `error` is "" or why the group could not be looked at whole."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: str
    members: tuple[Member, ...]
    committed: Mapping[TopicPartition, int]
    error: str = ""


def groups(connection: Connection, only: str | None = None) -> list[Group]:
    """The groups that a broker coordinates, or the one of this name if it is among them.

    Raises:
        RequestRefused: it lists none.
    """
    version = connection.version(ListGroupsRequest, LIST_GROUPS_VERSION)
    filters: dict[str, list[str]] = {"states_filter": []} if version >= STATE_FROM else {}
    response = connection.ask(ListGroupsRequest(version=version, **filters), ListGroupsResponse, version)
    _check(connection, "the list of groups", response.error_code)
    listed = {
        one.group_id: (one.group_state or "" if version >= STATE_FROM else "", one.protocol_type or "")
        for one in response.groups
        if only in (None, one.group_id)
    }
    described = _described(connection, list(listed))
    return [
        _group(connection, group_id, state, kind, described[group_id]) for group_id, (state, kind) in listed.items()
    ]


def _described(connection: Connection, group_ids: Sequence[str]) -> dict[str, Message]:
    version = connection.version(DescribeGroupsRequest, DESCRIBE_GROUPS_VERSION)
    found: dict[str, Message] = {}
    for asked in _portions(group_ids):
        request = DescribeGroupsRequest(version=version, groups=asked)
        response = connection.ask(request, DescribeGroupsResponse, version)
        found.update({one.group_id: one for one in response.groups})
    return found


def _group(connection: Connection, group_id: str, state: str, kind: str, described: Message) -> Group:
    code = described.error_code
    error = "" if code == NONE else f"{error_name(code)} (error {code})"
    committed: Mapping[TopicPartition, int] = {}
    try:
        committed = fetch_committed(connection, group_id)
    except RequestRefused as refused:
        error = error or str(refused)
    return Group(
        group_id,
        # A group of another protocol (KIP-848) is listed with its state, and described as one that is not there.
        state or described.group_state or "",
        kind or described.protocol_type or "",
        described.protocol_data or "",
        connection.name,
        tuple(_member(one) for one in described.members or ()),
        committed,
        error,
    )


def _member(member: Message) -> Member:
    return Member(
        member.member_id,
        getattr(member, "group_instance_id", None) or "",
        member.client_id or "",
        member.client_host or "",
        _assigned(bytes(member.member_assignment or b"")),
    )


def _assigned(raw: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a consumer's assignment: version i16, then topics and their partitions."""
    reader = Reader(memoryview(raw), 0, flexible=False)
    found: list[TopicPartition] = []
    try:
        reader.i16()
        for _ in range(reader.array_size()):
            topic = reader.string()
            found += [TopicPartition(topic, reader.i32()) for _ in range(reader.array_size())]
    except MalformedMessage:
        return ()
    return tuple(found)


def own_configs(connection: Connection, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """By topic the configuration that was given for it; topics that may not be asked for are left out."""
    version = connection.version(DescribeConfigsRequest, DESCRIBE_CONFIGS_VERSION)
    resource = DescribeConfigsRequest.DescribeConfigsResource
    found: dict[str, dict[str, str]] = {}
    for asked in _portions(topics):
        resources = [
            resource(version=version, resource_type=TOPIC, resource_name=name, configuration_keys=None)
            for name in asked
        ]
        request = DescribeConfigsRequest(version=version, resources=resources)
        response = connection.ask(request, DescribeConfigsResponse, version)
        for result in response.results:
            if result.error_code == NONE:
                found[result.resource_name] = {
                    config.name: config.value or "" for config in result.configs if config.config_source == OF_TOPIC
                }
    return found


def log_sizes(connection: Connection) -> dict[TopicPartition, int]:
    """Bytes of the logs that a broker keeps, leader or not.

    Raises:
        RequestRefused: it does not tell us.
    """
    version = connection.version(DescribeLogDirsRequest, DESCRIBE_LOG_DIRS_VERSION)
    request = DescribeLogDirsRequest(version=version, topics=None)
    response = connection.ask(request, DescribeLogDirsResponse, version)
    if not response.results:
        # Kafka's way to refuse, before version 3: no folder at all.
        raise RequestRefused(connection.name, "the sizes of logs", 31, error_name(31))
    sizes: dict[TopicPartition, int] = {}
    for folder in response.results:
        for topic in folder.topics or ():
            for one in topic.partitions:
                place = TopicPartition(topic.name, one.partition_index)
                if not one.is_future_key:
                    sizes[place] = one.partition_size
    return sizes


def _portions(names: Sequence[str]) -> Iterable[list[str]]:
    return (list(names[at : at + RESOURCES_AT_ONCE]) for at in range(0, len(names), RESOURCES_AT_ONCE))


def _check(connection: Connection, what: str, code: int) -> None:
    if code != NONE:
        raise RequestRefused(connection.name, what, code, error_name(code))
