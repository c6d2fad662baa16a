"""DescribeConfigs, versions 1 to 4, for topics and this broker. Version 1 adds synonyms, version 3 types and
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

TOPIC, BROKER = 2, 4
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
    raise RequestRefused(
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource_type} has no configuration; use {TOPIC} (topic) or {BROKER} (broker)",
    )


def _broker_rows(context: RequestContext) -> list[_Row]:
    config = context.node.config
    host, port = context.node.address
    scheme = ("SASL_" if config.users else "") + ("SSL" if config.tls_certificate else "PLAINTEXT")
    values = (
        ("advertised.listeners", f"{scheme}://{host}:{port}", ConfigType.LIST),
        ("auto.create.topics.enable", str(config.auto_create_topics).lower(), ConfigType.BOOLEAN),
        ("broker.id", str(config.node_id), ConfigType.INT),
        ("compression.type", "producer", ConfigType.STRING),
        ("default.replication.factor", "1", ConfigType.INT),
        ("delete.topic.enable", "true", ConfigType.BOOLEAN),
        ("group.consumer.heartbeat.interval.ms", str(config.consumer_heartbeat_interval_ms), ConfigType.INT),
        ("group.consumer.session.timeout.ms", str(config.consumer_session_timeout_ms), ConfigType.INT),
        ("group.initial.rebalance.delay.ms", str(config.rebalance_delay_ms), ConfigType.INT),
        ("group.max.session.timeout.ms", str(SESSION_TIMEOUT_MS_MAX), ConfigType.INT),
        ("group.min.session.timeout.ms", str(config.session_timeout_ms_min), ConfigType.INT),
        ("listeners", f"{scheme}://{config.host}:{config.port}", ConfigType.LIST),
        ("log.cleanup.policy", "delete", ConfigType.LIST),
        ("log.dirs", str(config.data_dir), ConfigType.STRING),
        ("log.message.timestamp.type", "CreateTime", ConfigType.STRING),
        ("log.retention.bytes", "-1", ConfigType.LONG),
        ("log.retention.ms", str(config.retention_ms), ConfigType.LONG),
        ("log.segment.bytes", str(config.segment_bytes_max), ConfigType.INT),
        ("message.max.bytes", str(config.message_bytes_max), ConfigType.INT),
        ("min.insync.replicas", "1", ConfigType.INT),
        ("node.id", str(config.node_id), ConfigType.INT),
        ("num.partitions", str(config.partitions), ConfigType.INT),
        ("offsets.retention.minutes", str(RETENTION_MS // 60_000), ConfigType.INT),
        ("offsets.topic.num.partitions", "1", ConfigType.INT),
        ("offsets.topic.replication.factor", "1", ConfigType.INT),
    )
    return [(name, value, ConfigSource.BROKER_FILE, kind, "", value) for name, value, kind in values]


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
