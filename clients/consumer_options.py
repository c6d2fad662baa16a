"""The arguments of a consumer, and the options of librdkafka that follow from them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Required, TypedDict

from headrace.avro_schema import Schema
from headrace.clients.errors import UndecodableMessage
from headrace.clients.kafka_client import Options, as_ms, as_seconds, merge_options
from headrace.clients.partitions import TopicAndPartition

PartitionsCallback = Callable[[frozenset[TopicAndPartition]], None]

SESSION_S: Final = 45.0
SESSION_S_MIN: Final = 6.0
"""Smallest session timeout, and so smallest `handling_timeout_s`, that brokers accept. The session timeout is the time
without a heartbeat after which the group removes a member. `SESSION_S` is its default."""
HANDLING_MS_MAX: Final = 86_400_000
"""librdkafka's maximum of `max.poll.interval.ms`."""

TOPICS_MAX: Final = 100_000
"""Maximum number of topics, or of partitions, that a consumer accepts as an argument."""

_COMMITS: Final = "it would commit unprocessed messages; pass auto_commit to the consumer, or call commit()"

REFUSED: Final = {
    "group.id": "pass group to the consumer",
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "enable.partition.eof": "the consumer detects the end of a partition with it; pass until_end to the consumer",
    "check.crcs": "without it messages of damaged batches would be delivered",
    "isolation.level": "messages of aborted transactions are never delivered",
    "allow.auto.create.topics": "a consumer creates no topics",
}
"""Options of librdkafka that a consumer does not accept, with the reason or the argument to use instead."""

CALLBACKS: Final = frozenset({"error_cb", "stats_cb", "throttle_cb", "on_commit"})
"""Options that are callbacks of the application; the Kafka client calls them while messages are fetched."""


class ConsumerArguments(TypedDict, total=False):
    """The keyword arguments of `Consumer`, described there; `ConsumerOptions` has their defaults."""

    topics: Required[Iterable[str]]
    group: str | None
    partitions: Sequence[int] | None
    auto_commit: bool
    from_end: bool
    start_at_ms: int | None
    until_end: bool
    idle_timeout_s: float | None
    reader_schema: str | Schema | None
    app: str | None
    handling_timeout_s: float
    member: str | None
    on_undecodable: Callable[[UndecodableMessage], None] | None
    on_assign: PartitionsCallback | None
    on_revoke: PartitionsCallback | None
    options: Options | None


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The arguments of one consumer, validated; `Consumer` describes them.

    Raises:
        ValueError: an argument is invalid or contradicts another one.
    """

    topics: Iterable[str]
    group: str | None = None
    partitions: Sequence[int] | None = None
    auto_commit: bool = False
    from_end: bool = False
    start_at_ms: int | None = None
    until_end: bool = False
    idle_timeout_s: float | None = None
    reader_schema: str | Schema | None = None
    app: str | None = None
    handling_timeout_s: float = 300.0
    member: str | None = None
    on_undecodable: Callable[[UndecodableMessage], None] | None = None
    on_assign: PartitionsCallback | None = None
    on_revoke: PartitionsCallback | None = None
    options: Options | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "topics", _topic_names(self.topics))
        if self.partitions is not None:
            object.__setattr__(self, "partitions", _partition_numbers(self.partitions))
        if self.group is None and (self.auto_commit or self.member is not None):
            raise ValueError("auto_commit and member need a group")
        if self.group is not None and (self.until_end or self.partitions is not None):
            raise ValueError("partitions and until_end are for reading without a group")
        if self.from_end and self.start_at_ms is not None:
            raise ValueError("from_end and start_at_ms contradict each other")
        if self.start_at_ms is not None:
            _check_start(self.start_at_ms)
        if self.idle_timeout_s is not None:
            as_seconds("idle_timeout_s", self.idle_timeout_s)

    @property
    def has_start(self) -> bool:
        """Whether partitions without a committed offset are read from another position than their beginning."""
        return self.from_end or self.start_at_ms is not None

    def librdkafka_options(self) -> dict[str, Any]:
        """Returns the options of librdkafka that follow from the arguments of the consumer.

        Raises:
            ValueError: a name is empty or no text, `handling_timeout_s` is outside its limits, or `options` contains an
                option that is not allowed.
        """
        for name, text in (("group", self.group), ("member", self.member), ("app", self.app)):
            # librdkafka ends the process over an empty group.
            if text is not None and not (isinstance(text, str) and text):
                raise ValueError(f"expected {name} to be a name or None, found {type(text).__name__} {text!r:.60}")
        timeout_s = self.handling_timeout_s
        max_poll_ms = as_ms("handling_timeout_s", timeout_s, HANDLING_MS_MAX)
        if timeout_s < SESSION_S_MIN:
            raise ValueError(f"handling_timeout_s={timeout_s:g}: brokers require at least {SESSION_S_MIN:g} s")
        defaults = {
            "client.id": f"headrace-{self.app or 'consumer'}",
            # The Kafka client requires a group; nothing is committed for this one.
            "group.id": f"headrace-{secrets.token_hex(8)}" if self.group is None else self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "auto.offset.reset": "latest" if self.from_end else "earliest",
            "allow.auto.create.topics": False,
            "max.poll.interval.ms": max_poll_ms,
            "session.timeout.ms": int(min(SESSION_S, timeout_s) * 1000),
        }
        if self.member is not None:
            defaults["group.instance.id"] = self.member
        return merge_options(defaults, self.options, REFUSED)


def is_cooperative(options: Options) -> bool:
    """Returns whether options of librdkafka select the cooperative protocol, in which members retain their partitions
    during a rebalance."""
    return "cooperative" in str(options.get("partition.assignment.strategy", ""))


def _topic_names(topics: object) -> tuple[str, ...]:
    """Returns the distinct topic names.

    Raises:
        ValueError: `topics` is a single text, is not iterable, is empty or has more than `TOPICS_MAX` items, or an item
            is not a name.
    """
    names = _items(topics)
    if not names or not all(isinstance(name, str) and name and "\0" not in name for name in names):
        found = f"{list(names)!r:.60}" if names else f"{type(topics).__name__} {topics!r:.60}"
        raise ValueError(f"expected topics to be a list of names, found {found}")
    if len(names) > TOPICS_MAX:
        raise ValueError(f"expected topics to be a list of at most {TOPICS_MAX} names")
    return tuple(dict.fromkeys(str(name) for name in names))


def _partition_numbers(partitions: object) -> tuple[int, ...]:
    numbers = _items(partitions)
    if not numbers or not all(type(number) is int for number in numbers):
        found = f"{list(numbers)!r:.60}" if numbers else f"{type(partitions).__name__} {partitions!r:.60}"
        raise ValueError(f"expected partitions to be a list of numbers or None, found {found}")
    return tuple(dict.fromkeys(number for number in numbers if isinstance(number, int)))


def _items(given: object) -> tuple[object, ...]:
    """Returns up to `TOPICS_MAX` + 1 items of an argument, which may be an endless iterator; none if it is a single
    text, or not iterable."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        return ()
    return tuple(islice(given, TOPICS_MAX + 1))


def _check_start(start_at_ms: object) -> None:
    """Raises ValueError if `start_at_ms` is not the milliseconds of a time since 1970. Brokers do not find records by
    earlier times, because negative numbers have other meanings there."""
    if type(start_at_ms) is not int or not 0 <= start_at_ms < 1 << 63:
        raise ValueError(
            f"expected start_at_ms to be an integer of milliseconds since 1970, found {type(start_at_ms).__name__} "
            f"{start_at_ms!r:.60}; leave it out to start at the beginning"
        )
