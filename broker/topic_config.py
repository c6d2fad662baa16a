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
FLUSH_MESSAGES, FLUSH_MS = "flush.messages", "flush.ms"
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
BOOLEANS = ("false", "true")


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
    be one of them; with `item`, a list of texts that match it. Otherwise it must be a number in [minimum, maximum]."""

    name: str
    type: ConfigType
    default: Callable[[BrokerConfig], str]
    documentation: str
    minimum: int = 0
    maximum: int = LONG_MAX
    choices: tuple[str, ...] = ()
    item: re.Pattern[str] | None = None


_REPLICA = re.compile(r"\*|[0-9]+:[0-9]+")

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
        maximum=INT_MAX,
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
        "Accepted without effect: batches are stored as the producer compressed them. Set compression.type there.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    TopicConfigKey(
        "compression.gzip.level",
        ConfigType.INT,
        lambda config: "-1",
        "Accepted without effect: batches are stored as the producer compressed them.",
        choices=("-1", *(str(level) for level in range(1, 10))),
    ),
    TopicConfigKey(
        "compression.lz4.level",
        ConfigType.INT,
        lambda config: "9",
        "Accepted without effect: batches are stored as the producer compressed them.",
        minimum=1,
        maximum=17,
    ),
    TopicConfigKey(
        "compression.zstd.level",
        ConfigType.INT,
        lambda config: "3",
        "Accepted without effect: batches are stored as the producer compressed them.",
        minimum=-131_072,
        maximum=22,
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
        "min.insync.replicas",
        ConfigType.INT,
        lambda config: "1",
        "Accepted without effect: there is one replica, and Kafka requires at most as many as a partition has.",
        minimum=1,
        maximum=INT_MAX,
    ),
    TopicConfigKey(
        FLUSH_MESSAGES,
        ConfigType.LONG,
        lambda config: str(LONG_MAX),
        "With any lower value than the default, batches are fsynced before they are acknowledged.",
        minimum=1,
    ),
    TopicConfigKey(
        FLUSH_MS,
        ConfigType.LONG,
        lambda config: str(LONG_MAX),
        "Batches are fsynced before they are acknowledged if the broker would otherwise fsync them later than this.",
    ),
    TopicConfigKey(
        "file.delete.delay.ms",
        ConfigType.LONG,
        lambda config: "60000",
        "Accepted without effect: files are deleted at once; responses being sent from them are completed.",
    ),
    TopicConfigKey(
        "segment.jitter.ms",
        ConfigType.LONG,
        lambda config: "0",
        "Accepted without effect: segments are closed at the age segment.ms.",
    ),
    TopicConfigKey(
        "index.interval.bytes",
        ConfigType.INT,
        lambda config: "4096",
        "Accepted without effect: an index has an entry for each 4,096 bytes.",
        maximum=INT_MAX,
    ),
    TopicConfigKey(
        "segment.index.bytes",
        ConfigType.INT,
        lambda config: "10485760",
        "Accepted without effect: the size of an index is limited by that of its segment.",
        minimum=4,
        maximum=INT_MAX,
    ),
    TopicConfigKey(
        "preallocate",
        ConfigType.BOOLEAN,
        lambda config: "false",
        "Accepted without effect: segment files grow as they are written.",
        choices=BOOLEANS,
    ),
    TopicConfigKey(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        lambda config: "false",
        "Accepted without effect: the only replica is always the leader.",
        choices=BOOLEANS,
    ),
    TopicConfigKey(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        lambda config: "",
        "Accepted without effect: there is no replication.",
        item=_REPLICA,
    ),
    TopicConfigKey(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        lambda config: "",
        "Accepted without effect: there is no replication.",
        item=_REPLICA,
    ),
    TopicConfigKey(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        lambda config: "false",
        "There is no tiered storage.",
        choices=("false",),
    ),
    TopicConfigKey(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        lambda config: "false",
        "Accepted without effect: there is no tiered storage.",
        choices=BOOLEANS,
    ),
    TopicConfigKey(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        lambda config: "false",
        "Accepted without effect: there is no tiered storage.",
        choices=BOOLEANS,
    ),
    TopicConfigKey(
        "local.retention.ms",
        ConfigType.LONG,
        lambda config: "-2",
        "Accepted without effect: there is no tiered storage.",
        minimum=-2,
    ),
    TopicConfigKey(
        "local.retention.bytes",
        ConfigType.LONG,
        lambda config: "-2",
        "Accepted without effect: there is no tiered storage.",
        minimum=-2,
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
        return _parse_choice(row, trimmed)
    if row.item is not None:
        return _parse_items(row, row.item, trimmed)
    if row.type is ConfigType.DOUBLE:
        return _parse_ratio(row, trimmed)
    number = int(trimmed) if _INTEGER.fullmatch(trimmed) else row.minimum - 1
    if not row.minimum <= number <= row.maximum:
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG,
            f"{name}: expected a whole number between {row.minimum} and {row.maximum}, found {value!r}",
        )
    return str(number)


def _parse_choice(row: TopicConfigKey, value: str) -> str:
    choice = value.lower() if row.type is ConfigType.BOOLEAN else value
    if row.type is ConfigType.LIST:
        choice = ",".join(_items(value))
    if choice not in row.choices:
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG,
            f"{row.name}: this broker supports {', '.join(row.choices)}; found {value!r}. {row.documentation}",
        )
    return choice


def _parse_items(row: TopicConfigKey, item: re.Pattern[str], value: str) -> str:
    items = _items(value) if value else ()
    if not all(map(item.fullmatch, items)):
        raise RequestRefused(
            ErrorCode.INVALID_CONFIG,
            f"{row.name}: expected a list of items that match {item.pattern}, separated by commas; found {value!r}",
        )
    return ",".join(items)


def _items(value: str) -> tuple[str, ...]:
    """Returns the items of a list; an item that is listed again is omitted."""
    return tuple(dict.fromkeys(_ITEM_SEPARATOR.split(value)))


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


def fsyncs_before_response(configs: Mapping[str, str], broker: BrokerConfig) -> bool:
    """Whether a batch of a topic must be on disk before its producer gets a response: with fsync `always`, and if the
    topic's configuration `configs` requires earlier fsyncs than the broker's configuration `broker` provides."""
    if broker.fsync is FsyncMode.ALWAYS:
        return True
    interval_ms = broker.flush_interval_ms if broker.fsync is FsyncMode.INTERVAL else LONG_MAX
    return int(configs.get(FLUSH_MESSAGES, LONG_MAX)) < LONG_MAX or int(configs.get(FLUSH_MS, LONG_MAX)) < interval_ms


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
