"""The configuration of topics: which keys there are, what they may hold, what they default to."""

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
"""What `max.message.bytes` may be raised to: a batch is held in memory while it is handled."""


CLEANUP_POLICY, COMPACT = "cleanup.policy", "compact"
TIMESTAMP_TYPE, LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"
TIMESTAMP_AFTER_MS, TIMESTAMP_BEFORE_MS = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"


class ConfigType(IntEnum):
    """DescribeConfigs' numbers for the type of a value."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """DescribeConfigs' numbers for where a value comes from."""

    TOPIC = 1
    BROKER_FILE = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One key. Numbers lie in [least, most]; a text is one of `choices`, the only behaviours this broker has."""

    name: str
    type: ConfigType
    default: Callable[[BrokerConfig], str]
    documentation: str
    least: int = 0
    most: int = (1 << 63) - 1
    choices: tuple[str, ...] = ()


ROWS = (
    ConfigRow(
        "retention.ms",
        ConfigType.LONG,
        lambda config: str(config.retention_ms),
        "Segments whose largest record timestamp is older are deleted; -1 keeps them.",
        least=-1,
    ),
    ConfigRow(
        "retention.bytes",
        ConfigType.LONG,
        lambda config: "-1",
        "The oldest segments of a partition are deleted as long as this much remains; -1 keeps them.",
        least=-1,
    ),
    ConfigRow(
        "segment.bytes",
        ConfigType.INT,
        lambda config: str(config.segment_bytes_max),
        "Largest size of a segment file.",
        least=1024,
        most=(1 << 31) - 1,
    ),
    ConfigRow(
        "segment.ms",
        ConfigType.LONG,
        lambda config: str(7 * 86_400_000),
        "A segment is closed at this age even when it is not full.",
        least=1,
    ),
    ConfigRow(
        "max.message.bytes",
        ConfigType.INT,
        lambda config: str(config.message_bytes_max),
        "Largest record batch that is accepted, compressed.",
        most=MESSAGE_BYTES_LIMIT,
    ),
    ConfigRow(
        CLEANUP_POLICY,
        ConfigType.LIST,
        lambda config: "delete",
        "What happens to old segments: they are deleted, or of each key only the newest record is kept, or both.",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    ),
    ConfigRow(
        "delete.retention.ms",
        ConfigType.LONG,
        lambda config: str(86_400_000),
        "How long compaction keeps a record without a value.",
    ),
    ConfigRow(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        lambda config: "0.5",
        "A log is compacted when this share of its closed segments is new since the last time.",
        most=1,
    ),
    ConfigRow(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        lambda config: "0",
        "Segments with younger records are not compacted.",
    ),
    ConfigRow(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        lambda config: str((1 << 63) - 1),
        "What is older is compacted whatever its share; the segment that is written to is closed for it.",
        least=1,
    ),
    ConfigRow(
        "compression.type",
        ConfigType.STRING,
        lambda config: "producer",
        "Batches are stored as the producer compressed them.",
        choices=("producer",),
    ),
    ConfigRow(
        TIMESTAMP_TYPE,
        ConfigType.STRING,
        lambda config: "CreateTime",
        "Record timestamps are the producer's, or when the broker took the batch.",
        choices=("CreateTime", LOG_APPEND_TIME),
    ),
    ConfigRow(
        TIMESTAMP_AFTER_MS,
        ConfigType.LONG,
        lambda config: "3600000",
        "How far ahead of the broker's clock a record's time may be, where it is the producer's.",
    ),
    ConfigRow(
        TIMESTAMP_BEFORE_MS,
        ConfigType.LONG,
        lambda config: str((1 << 63) - 1),
        "How far behind the broker's clock a record's time may be, where it is the producer's.",
    ),
    ConfigRow(
        "min.insync.replicas", ConfigType.INT, lambda config: "1", "A single node keeps one replica.", choices=("1",)
    ),
)

BY_NAME: Mapping[str, ConfigRow] = {row.name: row for row in ROWS}

# Python reads more: digits of all scripts, and "_" between them.
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BETWEEN_ITEMS = re.compile(r"\s*,\s*")


def check_config(name: str, value: str | None) -> str:
    """Returns the value, as it is kept, if the topic configuration may hold it.

    White space around a value and around the items of a list is left out, as by Kafka's ConfigDef.

    Raises:
        RequestRefused: unknown key, or a value outside what the row allows.
    """
    row = BY_NAME.get(name)
    if row is None:
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG, f"unknown topic configuration {name!r}; known: {', '.join(BY_NAME)}"
        )
    if value is None:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, f"{name}: null is not a value")
    trimmed = value.strip()
    if row.choices:
        choice = _BETWEEN_ITEMS.sub(",", trimmed) if row.type is ConfigType.LIST else trimmed
        if choice not in row.choices:
            raise RequestRefused(
                ErrorCode.INVALID_CONFIG, f"{name}: this broker only does {', '.join(row.choices)}, found {value!r}"
            )
        return choice
    if row.type is ConfigType.DOUBLE:
        return _share(row, trimmed)
    number = int(trimmed) if _WHOLE.fullmatch(trimmed) else row.least - 1
    if not row.least <= number <= row.most:
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG,
            f"{name}: expected a whole number between {row.least} and {row.most}, found {value!r}",
        )
    return str(number)


def _share(row: ConfigRow, value: str) -> str:
    share = float(value) if _DECIMAL.fullmatch(value) else -1.0
    if not row.least <= share <= row.most:
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG,
            f"{row.name}: expected a number between {row.least} and {row.most}, found {value!r}",
        )
    return str(share)


def is_compacted(configs: Mapping[str, str]) -> bool:
    return COMPACT in configs.get(CLEANUP_POLICY, "")


def has_append_time(configs: Mapping[str, str]) -> bool:
    """Are records of the time at which the broker takes them?"""
    return configs.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME


def is_deleted(configs: Mapping[str, str]) -> bool:
    """Does retention by age and size let segments go?"""
    return configs.get(CLEANUP_POLICY) != COMPACT


def effective_number(configs: Mapping[str, str], name: str, broker: BrokerConfig) -> int:
    """The number in force: the topic's own, else the broker's default."""
    return int(configs.get(name) or BY_NAME[name].default(broker))


def log_limits(configs: Mapping[str, str], broker: BrokerConfig) -> LogLimits:
    """What the configuration of a topic, and of the broker, says of its logs."""
    return LogLimits(
        effective_number(configs, "segment.bytes", broker),
        effective_number(configs, "segment.ms", broker),
        broker.fsync is FsyncMode.ALWAYS,
    )
