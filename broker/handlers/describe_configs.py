"""DescribeConfigs, versions 1 to 4, for topics, this broker and groups. Version 1 adds synonyms, version 3 types and
documentation."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeConfigsResponse

from headrace.broker.coordinator.group import SESSION_TIMEOUT_MS_MAX
from headrace.broker.coordinator.offsets import RETENTION_MS
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import ROWS, ConfigSource, ConfigType

TOPIC, BROKER, GROUP = 2, 4, 32
"""Kafka's numbers of the resource types."""

_Result = DescribeConfigsResponse.DescribeConfigsResult
_Row = tuple[str, str, ConfigSource, ConfigType, str, str]


async def handle(context: RequestContext, request: Any) -> Any:
    # A resource that is named twice is described once: a response is about a hundred times as long as the request.
    resources = {(requested.resource_type, requested.resource_name): requested for requested in request.resources or ()}
    yielder, results = LoopYielder(), []
    for requested in resources.values():
        results.append(_result(context, request, requested))
        await yielder.yield_if_due()
    return DescribeConfigsResponse(version=context.version, results=results)


def _result(context: RequestContext, request: Any, requested: Any) -> Any:
    code, message, configs = ErrorCode.NONE, None, []
    try:
        keys = requested.configuration_keys
        for row in _rows(context, requested.resource_type, requested.resource_name or ""):
            if not keys or row[0] in keys:
                configs.append(_config(row, request, context.version))
    except RequestRefused as refused:
        code, message = refused.code, refused.message
    return _Result(
        version=context.version,
        error_code=code,
        error_message=message,
        resource_type=requested.resource_type,
        resource_name=requested.resource_name or "",
        configs=configs,
    )


def _rows(context: RequestContext, resource_type: int, name: str) -> list[_Row]:
    config = context.node.config
    if resource_type == TOPIC:
        context.check_topic(name)
        topic = context.node.topic(name)
        return [
            (
                row.name,
                topic.configs.get(row.name) or row.default(config),
                ConfigSource.TOPIC if row.name in topic.configs else ConfigSource.DEFAULT,
                row.type,
                row.documentation,
                row.default(config),
            )
            for row in ROWS
        ]
    if resource_type == BROKER:
        context.permissions.check_admin()
        if name not in ("", str(config.node_id)):
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST, f"broker {name!r} does not exist; the id of this broker is {config.node_id}"
            )
        return _broker_rows(context)
    if resource_type == GROUP:
        return _group_rows(context, name)
    raise RequestRefused(
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource_type} has no configuration; use {TOPIC} (topic), {BROKER} (broker), {GROUP} (group)",
    )


def _group_rows(context: RequestContext, group_id: str) -> list[_Row]:
    """Returns the configuration of a group of the consumer protocol, which is the same for all groups."""
    if not group_id:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "the group id is empty; name a group")
    context.check_group(group_id)
    config = context.node.config
    values = (
        (
            "consumer.heartbeat.interval.ms",
            str(config.consumer_heartbeat_interval_ms),
            "Interval of the members' heartbeats: the setting broker.consumer_heartbeat_interval.",
        ),
        (
            "consumer.session.timeout.ms",
            str(config.consumer_session_timeout_ms),
            "A member without heartbeats for this time is removed: the setting broker.consumer_session_timeout.",
        ),
    )
    return [(name, value, ConfigSource.BROKER_FILE, ConfigType.INT, text, value) for name, value, text in values]


def _broker_rows(context: RequestContext) -> list[_Row]:
    config = context.node.config
    host, port = context.node.address
    scheme = ("SASL_" if config.users else "") + ("SSL" if config.tls_certificate else "PLAINTEXT")
    values = (
        (
            "advertised.listeners",
            f"{scheme}://{host}:{port}",
            ConfigType.LIST,
            "Address that clients get: the settings broker.advertised_host and broker.advertised_port.",
        ),
        (
            "auto.create.topics.enable",
            str(config.auto_create_topics).lower(),
            ConfigType.BOOLEAN,
            "Whether metadata requests create topics: the setting broker.auto_create_topics.",
        ),
        ("broker.id", str(config.node_id), ConfigType.INT, "Id of this broker."),
        ("compression.type", "producer", ConfigType.STRING, "Batches are stored as the producer compressed them."),
        ("default.replication.factor", "1", ConfigType.INT, "A single node has one replica."),
        ("delete.topic.enable", "true", ConfigType.BOOLEAN, "Topics can be deleted."),
        (
            "group.consumer.heartbeat.interval.ms",
            str(config.consumer_heartbeat_interval_ms),
            ConfigType.INT,
            "Heartbeat interval of the consumer protocol: the setting broker.consumer_heartbeat_interval.",
        ),
        (
            "group.consumer.session.timeout.ms",
            str(config.consumer_session_timeout_ms),
            ConfigType.INT,
            "Session timeout of the consumer protocol: the setting broker.consumer_session_timeout.",
        ),
        (
            "group.initial.rebalance.delay.ms",
            str(config.rebalance_delay_ms),
            ConfigType.INT,
            "Wait for more members before the first rebalance: the setting broker.rebalance_delay.",
        ),
        (
            "group.max.session.timeout.ms",
            str(SESSION_TIMEOUT_MS_MAX),
            ConfigType.INT,
            "Longest session timeout of the classic protocol.",
        ),
        (
            "group.min.session.timeout.ms",
            str(config.session_timeout_ms_min),
            ConfigType.INT,
            "Shortest session timeout of the classic protocol.",
        ),
        (
            "listeners",
            f"{scheme}://{config.host}:{config.port}",
            ConfigType.LIST,
            "Address on which the broker listens: the setting broker.listen.",
        ),
        ("log.cleanup.policy", "delete", ConfigType.LIST, "Default of the topic configuration cleanup.policy."),
        ("log.dirs", str(config.data_dir), ConfigType.STRING, "The broker's directory in the data directory."),
        (
            "log.message.timestamp.type",
            "CreateTime",
            ConfigType.STRING,
            "Default of the topic configuration message.timestamp.type.",
        ),
        ("log.retention.bytes", "-1", ConfigType.LONG, "Default of the topic configuration retention.bytes."),
        (
            "log.retention.ms",
            str(config.retention_ms),
            ConfigType.LONG,
            "Default of the topic configuration retention.ms: the setting broker.retention.",
        ),
        (
            "log.segment.bytes",
            str(config.segment_bytes_max),
            ConfigType.INT,
            "Default of the topic configuration segment.bytes.",
        ),
        (
            "message.max.bytes",
            str(config.message_bytes_max),
            ConfigType.INT,
            "Default of the topic configuration max.message.bytes.",
        ),
        ("min.insync.replicas", "1", ConfigType.INT, "A single node has one replica."),
        ("node.id", str(config.node_id), ConfigType.INT, "Id of this broker."),
        (
            "num.partitions",
            str(config.partitions),
            ConfigType.INT,
            "Partitions of topics that are created without a number: the setting broker.partitions.",
        ),
        (
            "offsets.retention.minutes",
            str(RETENTION_MS // 60_000),
            ConfigType.INT,
            "Committed offsets of an unused group expire after this time.",
        ),
        (
            "offsets.topic.num.partitions",
            "1",
            ConfigType.INT,
            "The internal topic __consumer_offsets has one partition.",
        ),
        ("offsets.topic.replication.factor", "1", ConfigType.INT, "A single node has one replica."),
    )
    return [(name, value, ConfigSource.BROKER_FILE, kind, text, value) for name, value, kind, text in values]


def _config(row: _Row, request: Any, version: int) -> Any:
    name, value, source, kind, documentation, default = row
    synonyms = []
    if request.include_synonyms:
        layers = {source: value, ConfigSource.DEFAULT: default} if source is ConfigSource.TOPIC else {source: value}
        synonyms = [
            _Result.DescribeConfigsResourceResult.DescribeConfigsSynonym(
                version=version, name=name, value=layer_value, source=layer
            )
            for layer, layer_value in layers.items()
        ]
    return _Result.DescribeConfigsResourceResult(
        version=version,
        name=name,
        value=value,
        read_only=source is ConfigSource.BROKER_FILE,
        config_source=source,
        is_sensitive=False,
        synonyms=synonyms,
        config_type=kind,
        documentation=documentation if version >= 3 and request.include_documentation else None,
    )
