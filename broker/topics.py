"""Which topics there are: names, ids, partition counts and configurations, in one file that is replaced whole.

A topic exists as soon as it is in the file, and no longer when it is not: directories are made before the file has the
topic and removed after it has not. So a crash in between leaves directories that no topic has, which the next start
removes or puts aside, and never a topic with half its data.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.broker.data_directory import partition_directories
from headrace.broker.errors import CorruptFile, RequestRefused
from headrace.broker.log.files import write_atomically
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import check_config

FILE_NAME = "topics.json"
FORMAT, FORMAT_WITH_TRANSACTIONS = 2, 3
"""From 2 on there are leader epochs; a release that
knows none would take batches that have one for damaged. 3 is written once there are transactions; a release that
knows none would show what was aborted."""
FORMATS_READ = (1, FORMAT, FORMAT_WITH_TRANSACTIONS)
EPOCH_CLOCK_FROM_S = 1_577_836_800
EPOCH_CLOCK_MAX = 1 << 30
"""A leader epoch is the seconds since 2020, as long as a wrong clock leaves room in 32 bits to count on by ones. So a
data directory that was put back from a copy, which takes longer than a second, never comes to an epoch again that it
had before."""
EPOCH_ON_FILE_MAX = (1 << 31) - 2
"""There is still one after it, for the start that reads it."""
NAME_CHARS_MAX = 249
"""Kafka's limit: with a dash and the partition's number it is a directory name, and file systems take 255
characters."""
PARTITIONS_MAX = 10_000
"""Of one topic: more is a slip of the finger on a single node."""
NO_TOPIC_ID = uuid.UUID(int=0)
"""No topic has it. kafka-python reads it as None."""
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Topic:
    """`topic_id` is new for every incarnation, so a deleted and re-created topic can be told from the old one."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """Raises:
    RequestRefused: INVALID_TOPIC, saying what is wrong.
    """
    if not name or name in (".", ".."):
        raise RequestRefused(ErrorCode.INVALID_TOPIC, f"{name!r} cannot be a topic name")
    if len(name) > NAME_CHARS_MAX:
        raise RequestRefused(
            ErrorCode.INVALID_TOPIC,
            f"a topic name of {len(name)} characters; at most {NAME_CHARS_MAX} are allowed",
        )
    if _NAME.fullmatch(name) is None:
        raise RequestRefused(
            ErrorCode.INVALID_TOPIC, f"topic name {name!r}: only letters, digits, '.', '_' and '-' are allowed"
        )


def check_partition_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise RequestRefused(
            ErrorCode.INVALID_PARTITIONS, f"{count} partitions; expected between 1 and {PARTITIONS_MAX}"
        )


TopicsByName = Mapping[str, Topic]


class TopicStore:
    """The topics, the cluster's id, the leader epoch of this start. A change is written first, and then taken."""

    def __init__(self, path: Path, cluster_id: str, topics: Iterable[Topic], leader_epoch: int = 0) -> None:
        self._path = path
        self.cluster_id = cluster_id
        self.leader_epoch = leader_epoch
        self.had_epochs = leader_epoch > 0
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self.changes = 0  # how often topics came, grew, went or were configured since the start

    @classmethod
    def load(cls, directory: Path, new_cluster_id: str) -> TopicStore:
        """Reads the store of a data directory, or makes an empty one.

        Raises:
            CorruptFile: the file cannot be read, or it is missing beside partitions, which would be lost with it.
        """
        path = directory / FILE_NAME
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            orphans = sorted(entry.name for entry in partition_directories(directory))
            if orphans:
                raise CorruptFile(path, f"it is missing, but there are partitions such as {orphans[0]}") from None
            return cls(path, new_cluster_id, ())
        except (ValueError, RecursionError) as error:
            raise CorruptFile(path, f"it is not JSON: {error}") from error
        return cls(path, *_parse(path, document))

    def begin_leader_epoch(self, now_ms: int) -> None:
        """Goes on to an epoch that no batch is of, neither here nor in a directory that this one may be an older copy
        of.

        Raises:
            OSError: it could not be written down.
        """
        clock = now_ms // 1000 - EPOCH_CLOCK_FROM_S
        self.leader_epoch = max(self.leader_epoch + 1, clock if clock < EPOCH_CLOCK_MAX else 0)
        self._write(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def existing(self, name: str) -> Topic:
        """Raises:
        RequestRefused: there is no such topic.
        """
        topic = self._by_name.get(name)
        if topic is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def names(self) -> Iterator[str]:
        """Of the topics that are not the broker's own."""
        return (name for name in self._by_name if name not in INTERNAL_TOPICS)

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def with_topics(self, topics: Iterable[Topic]) -> TopicsByName:
        """All topics as they are with these added, or in place of those of the same names."""
        return self._by_name | {topic.name: topic for topic in topics}

    def without(self, name: str) -> TopicsByName:
        """All topics but one."""
        return {topic.name: topic for topic in self if topic.name != name}

    def write(self, changed: TopicsByName) -> None:
        """Forces to disk what the topics are to be. A thread may do it, one change after the other.

        Raises:
            RequestRefused: the disk refused it.
        """
        try:
            self._write(changed)
        except OSError as error:
            raise RequestRefused(ErrorCode.STORAGE_ERROR, f"{self._path.name}: {error.strerror or error}") from error

    def take(self, changed: TopicsByName) -> None:
        """Has the topics be what was written."""
        self._by_name = dict(changed)
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self.changes += 1

    def _write(self, by_name: TopicsByName) -> None:
        document = {
            "format": FORMAT_WITH_TRANSACTIONS if TRANSACTIONS_TOPIC in by_name else FORMAT,
            "cluster_id": self.cluster_id,
            "leader_epoch": self.leader_epoch,
            "topics": [
                {
                    "name": topic.name,
                    "id": str(topic.topic_id),
                    "partitions": topic.partitions,
                    "configs": dict(topic.configs),
                }
                for topic in by_name.values()
            ],
        }
        write_atomically(self._path, json.dumps(document, separators=(",", ":")).encode() + b"\n")


def _parse(path: Path, document: Any) -> tuple[str, list[Topic], int]:
    try:
        if document["format"] not in FORMATS_READ:
            raise CorruptFile(path, f"format {document['format']}; this version reads up to {FORMAT_WITH_TRANSACTIONS}")
        epoch = int(document.get("leader_epoch", 0))
        if not 0 <= epoch <= EPOCH_ON_FILE_MAX:
            raise CorruptFile(path, f"leader epoch {epoch}; expected between 0 and {EPOCH_ON_FILE_MAX}")
        topics = [_topic(path, row) for row in document["topics"]]
        for what, values in (
            ("name", (topic.name for topic in topics)),
            ("id", (str(topic.topic_id) for topic in topics)),
        ):
            value, count = max(Counter(values).items(), key=itemgetter(1), default=("", 0))
            if count > 1:
                raise CorruptFile(path, f"two topics have the {what} {value}")
        return str(document["cluster_id"]), topics, epoch
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptFile(path, f"a topic cannot be read: {error!r}") from error


def _topic(path: Path, row: Mapping[str, Any]) -> Topic:
    """
    Raises:
        CorruptFile: no request could have made it. Its directories would lie elsewhere, or those of partitions that it
            does not count would be taken for strays.
    """
    topic = Topic(
        str(row["name"]),
        uuid.UUID(row["id"]),
        int(row["partitions"]),
        MappingProxyType(_configs(path, str(row["name"]), row["configs"])),
    )
    try:
        check_topic_name(topic.name)
        check_partition_count(topic.partitions)
    except RequestRefused as refused:
        raise CorruptFile(path, f"topic {topic.name!r}: {refused.message}") from refused
    return topic


def _configs(path: Path, topic: str, configs: Mapping[str, Any]) -> dict[str, str]:
    """
    Raises:
        CorruptFile: what no request could have set, which would be met in the midst of the work of all topics.
    """
    try:
        return {str(key): check_config(str(key), str(value)) for key, value in configs.items()}
    except RequestRefused as refused:
        raise CorruptFile(path, f"topic {topic!r}: {refused.message}") from refused
