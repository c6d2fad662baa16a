"""Topic configurations: the supported keys, their permitted values and defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.errors import RequestRefused
from headrace.broker.log.partition_log import LogLimits
from headrace.broker.protocol.error_codes import ErrorCode

MESSAGE_BYTES_LIMIT = 64 * 1024 * 1024
"""Highest permitted value of `max.message.bytes`: a batch is held in memory while it is processed."""


CLEANUP_POLICY, COMPACT = "cleanup.policy", "compact"
TIMESTAMP_TYPE, LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"
TIMESTAMP_AFTER_MS, TIMESTAMP_BEFORE_MS = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"


class ConfigType(IntEnum):
    """Data types of configuration values, with Kafka's numbers in DescribeConfigs responses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Sources of configuration values, with Kafka's numbers in DescribeConfigs responses."""

    TOPIC = 1
    BROKER_FILE = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class TopicConfigKey:
    """One configuration key of topics. With `choices`, which lists only values that this broker supports, a value must
    be one of them. Otherwise it must be a number in [minimum, maximum]."""

    name: str
    type: ConfigType
    default: Callable[[BrokerConfig], str]
    documentation: str
    minimum: int = 0
    maximum: int = (1 << 63) - 1
    choices: tuple[str, ...] = ()


ROWS = (
    TopicConfigKey(
        "retention.ms",
        ConfigType.LONG,
        lambda config: str(config.retention_ms),
        "Segments are deleted when their largest record timestamp is older; -1 disables the limit.",
        minimum=-1,
    ),
    TopicConfigKey(
        "retention.bytes",
        ConfigType.LONG,
        lambda config: "-1",
        "The oldest segments of a partition are deleted while at least this many bytes remain; -1 disables the limit.",
        minimum=-1,
    ),
    TopicConfigKey(
        "segment.bytes",
        ConfigType.INT,
        lambda config: str(config.segment_bytes_max),
        "Maximum size of a segment file.",
        minimum=1024,
        maximum=(1 << 31) - 1,
    ),
    TopicConfigKey(
        "segment.ms",
        ConfigType.LONG,
        lambda config: str(7 * 86_400_000),
        "Age at which a segment is closed even if it is not full.",
        minimum=1,
    ),
    TopicConfigKey(
        "max.message.bytes",
        ConfigType.INT,
        lambda config: str(config.message_bytes_max),
        "Maximum size of a record batch, as compressed by the producer.",
        maximum=MESSAGE_BYTES_LIMIT,
    ),
    TopicConfigKey(
        CLEANUP_POLICY,
        ConfigType.LIST,
        lambda config: "delete",
        "delete removes segments by age and size; compact retains the newest record of each key; both are possible.",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    ),
    TopicConfigKey(
        "delete.retention.ms",
        ConfigType.LONG,
        lambda config: str(86_400_000),
        "How long compaction retains a record without a value.",
    ),
    TopicConfigKey(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        lambda config: "0.5",
        "A log is compacted when this share of its closed segments has been added since the last compaction.",
        maximum=1,
    ),
    TopicConfigKey(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        lambda config: "0",
        "Segments with records younger than this are not compacted.",
    ),
    TopicConfigKey(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        lambda config: str((1 << 63) - 1),
        "Segments with records older than this are compacted at any dirty ratio; an active segment is closed for it.",
        minimum=1,
    ),
    TopicConfigKey(
        "compression.type",
        ConfigType.STRING,
        lambda config: "producer",
        "Batches are stored as the producer compressed them.",
        choices=("producer",),
    ),
    TopicConfigKey(
        TIMESTAMP_TYPE,
        ConfigType.STRING,
        lambda config: "CreateTime",
        "Record timestamps are set by the producer (CreateTime) or the broker (LogAppendTime).",
        choices=("CreateTime", LOG_APPEND_TIME),
    ),
    TopicConfigKey(
        TIMESTAMP_AFTER_MS,
        ConfigType.LONG,
        lambda config: "3600000",
        "How far a producer's record timestamp may be ahead of the broker's clock.",
    ),
    TopicConfigKey(
        TIMESTAMP_BEFORE_MS,
        ConfigType.LONG,
        lambda config: str((1 << 63) - 1),
        "How far a producer's record timestamp may be behind the broker's clock.",
    ),
    TopicConfigKey(
        "min.insync.replicas", ConfigType.INT, lambda config: "1", "A single node has one replica.", choices=("1",)
    ),
)

BY_NAME: Mapping[str, TopicConfigKey] = {row.name: row for row in ROWS}

# Python's int and float also accept digits of other scripts and "_" between digits.
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_ITEM_SEPARATOR = re.compile(r"\s*,\s*")


def check_config(name: str, value: str | None) -> str:
    """Validates the value for the topic configuration key `name`, and returns it in normalized form.

    White space around a value and around the items of a list is removed, as Kafka's ConfigDef does.

    Raises:
        RequestRefused: the key is unknown, or the value is not permitted.
    """
    row = BY_NAME.get(name)
    if row is None:
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG, f"unknown topic configuration {name!r}; known: {', '.join(BY_NAME)}"
        )
    if value is None:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, f"{name}: null is not a permitted value")
    trimmed = value.strip()
    if row.choices:
        choice = _ITEM_SEPARATOR.sub(",", trimmed) if row.type is ConfigType.LIST else trimmed
        if choice not in row.choices:
            raise RequestRefused(
                ErrorCode.INVALID_CONFIG, f"{name}: this broker supports {', '.join(row.choices)}; found {value!r}"
            )
        return choice
    if row.type is ConfigType.DOUBLE:
        return _parse_ratio(row, trimmed)
    number = int(trimmed) if _INTEGER.fullmatch(trimmed) else row.minimum - 1
    if not row.minimum <= number <= row.maximum:
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG,
            f"{name}: expected a whole number between {row.minimum} and {row.maximum}, found {value!r}",
        )
    return str(number)


def _parse_ratio(row: TopicConfigKey, value: str) -> str:
    ratio = float(value) if _DECIMAL.fullmatch(value) else -1.0
    if not row.minimum <= ratio <= row.maximum:
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG,
            f"{row.name}: expected a number between {row.minimum} and {row.maximum}, found {value!r}",
        )
    return str(ratio)


def is_compacted(configs: Mapping[str, str]) -> bool:
    return COMPACT in configs.get(CLEANUP_POLICY, "")


def uses_append_time(configs: Mapping[str, str]) -> bool:
    """Whether the broker sets the timestamps of a topic's records. `configs` is the topic's configuration."""
    return configs.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME


def has_delete_policy(configs: Mapping[str, str]) -> bool:
    """Whether a topic's `cleanup.policy` includes `delete`, so that segments expire by age and size. `configs` is the
    topic's configuration."""
    return configs.get(CLEANUP_POLICY) != COMPACT


def effective_int(configs: Mapping[str, str], name: str, broker: BrokerConfig) -> int:
    """Returns the number that applies to a topic for the configuration key `name`: the topic's own value in `configs`,
    or the key's default if the topic has none. Some defaults come from the broker's configuration, `broker`."""
    return int(configs.get(name) or BY_NAME[name].default(broker))


def log_limits(configs: Mapping[str, str], broker: BrokerConfig) -> LogLimits:
    """Returns the limits for the logs of a topic: size and age of the active segment, and whether consumers read only
    fsynced batches. `configs` is the topic's configuration; `broker` gives defaults and the fsync mode."""
    return LogLimits(
        effective_int(configs, "segment.bytes", broker),
        effective_int(configs, "segment.ms", broker),
        broker.fsync is FsyncMode.ALWAYS,
    )
