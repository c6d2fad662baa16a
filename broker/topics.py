"""The topics of the broker: names, ids, partition counts and configurations, stored in one file.

A topic exists exactly while it is in the file: directories are created before the topic is added and deleted after it
is removed. A crash in between leaves directories without a topic, which the next start deletes or renames, but never a
topic without its directories.
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
FORMAT = 1
EPOCH_CLOCK_FROM_S = 1_577_836_800
EPOCH_CLOCK_MAX = 1 << 30
"""Clock values from this limit on, in seconds since 2020, are ignored when a leader epoch is chosen, so that epochs fit
into 32 bits. The limit is reached in 2054; before that, such a clock is wrong.

A leader epoch is the number of seconds since 2020, or the previous epoch plus one if that is larger. Restoring a data
directory from a copy takes more than a second, so no epoch is used twice as long as the clock is right.
"""
STORED_EPOCH_MAX = (1 << 31) - 2
"""Highest epoch accepted in the topics file: the next one, which the start needs, still fits into 32 bits."""
NAME_CHARS_MAX = 249
"""Longest topic name, as in Kafka: a directory name adds a dash and the partition number, and file systems allow 255
characters."""
PARTITIONS_MAX = 10_000
"""Maximum number of partitions of one topic: on a single node a larger number is a typing mistake."""
NO_TOPIC_ID = uuid.UUID(int=0)
"""The nil UUID, which is no topic's id and stands for "no id" in requests and responses. kafka-python decodes it as
None."""
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Topic:
    """Name, id, number of partitions and configuration of a topic. A topic that was deleted and created again has
    another `topic_id`."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """Checks a topic name.

    Raises:
        RequestRefused: the name is not allowed; the message gives the reason.
    """
    if not name or name in (".", ".."):
        raise RequestRefused(ErrorCode.INVALID_TOPIC, f"topic name {name!r}: a name cannot be empty, '.' or '..'")
    if len(name) > NAME_CHARS_MAX:
        raise RequestRefused(
            ErrorCode.INVALID_TOPIC,
            f"the topic name has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed",
        )
    if _NAME.fullmatch(name) is None:
        raise RequestRefused(
            ErrorCode.INVALID_TOPIC, f"topic name {name!r}: only letters, digits, '.', '_' and '-' are allowed"
        )


def check_partition_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise RequestRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"the number of partitions is {count}; expected between 1 and {PARTITIONS_MAX}",
        )


TopicsByName = Mapping[str, Topic]


class TopicStore:
    """The topics, the cluster id and the leader epoch of this run of the broker. `write` writes a change of topics to
    the topics file, and `apply` then makes it visible."""

    def __init__(self, path: Path, cluster_id: str, topics: Iterable[Topic], leader_epoch: int = 0) -> None:
        self._path = path
        self.cluster_id = cluster_id
        self.leader_epoch = leader_epoch
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self.changes = 0  # number of changes to topics since the start

    @classmethod
    def load(cls, directory: Path, new_cluster_id: str) -> TopicStore:
        """Loads the topics of a data directory; returns an empty store with the new cluster id if the directory is new.

        Raises:
            CorruptFile: the topics file is corrupt or has the format of another version; or it is missing, but there
                are partitions, which an empty store would abandon.
        """
        path = directory / FILE_NAME
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            orphans = sorted(entry.name for entry in partition_directories(directory))
            if orphans:
                raise CorruptFile(
                    path, f"the file is missing, but there are partition directories such as {orphans[0]}"
                ) from None
            return cls(path, new_cluster_id, ())
        except (ValueError, RecursionError) as error:
            raise CorruptFile(path, f"the content is not JSON: {error}") from error
        return cls(path, *_parse(path, document))

    def begin_leader_epoch(self, now_ms: int) -> None:
        """Starts a leader epoch that no batch in this data directory has yet. The epoch is derived from the wall clock
        `now_ms`, and is larger than the previous one. If the clock is right and this is a restored copy, no batch in
        the original has this epoch either.

        Raises:
            OSError: the topics file could not be written.
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

    def require(self, name: str) -> Topic:
        """Returns the topic with this name.

        Raises:
            RequestRefused: the topic does not exist.
        """
        topic = self._by_name.get(name)
        if topic is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return topic

    def names(self) -> Iterator[str]:
        """Yields the names of the topics that are not internal."""
        return (name for name in self._by_name if name not in INTERNAL_TOPICS)

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def with_topics(self, topics: Iterable[Topic]) -> TopicsByName:
        """Returns all topics of the store, with `topics` added or in place of topics of the same name. The store does
        not change."""
        return self._by_name | {topic.name: topic for topic in topics}

    def without(self, name: str) -> TopicsByName:
        """Returns all topics of the store except the one with this name. The store does not change."""
        return {topic.name: topic for topic in self if topic.name != name}

    def write(self, changed: TopicsByName) -> None:
        """Writes `changed`, all topics as they are after a change, to the topics file and fsyncs it; `apply` makes them
        visible. May run in a thread; writes must not overlap.

        Raises:
            RequestRefused: the disk rejected the write.
        """
        try:
            self._write(changed)
        except OSError as error:
            raise RequestRefused(
                ErrorCode.STORAGE_ERROR,
                f"{self._path.name} cannot be written: {error.strerror or error}; check the disk of the data directory",
            ) from error

    def apply(self, changed: TopicsByName) -> None:
        """Makes `changed` visible to clients: all topics as they are after a change, already stored by `write`."""
        self._by_name = dict(changed)
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self.changes += 1

    def content(self) -> bytes:
        """Returns the content of the topics file for the topics that clients see now."""
        return self._content(self._by_name)

    def _write(self, by_name: TopicsByName) -> None:
        write_atomically(self._path, self._content(by_name))

    def _content(self, by_name: TopicsByName) -> bytes:
        document = {
            "format": FORMAT,
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
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _parse(path: Path, document: Any) -> tuple[str, list[Topic], int]:
    try:
        if document["format"] != FORMAT:
            raise CorruptFile(
                path,
                f"the file has format {document['format']}, and this version reads format {FORMAT}",
                "start the broker version that wrote the file",
            )
        epoch = int(document["leader_epoch"])
        if not 0 <= epoch <= STORED_EPOCH_MAX:
            raise CorruptFile(path, f"leader epoch {epoch} is not between 0 and {STORED_EPOCH_MAX}")
        topics = [_topic(path, row) for row in document["topics"]]
        for field_name, values in (
            ("name", (topic.name for topic in topics)),
            ("id", (str(topic.topic_id) for topic in topics)),
        ):
            value, count = max(Counter(values).items(), key=itemgetter(1), default=("", 0))
            if count > 1:
                raise CorruptFile(path, f"two topics have the {field_name} {value}")
        return str(document["cluster_id"]), topics, epoch
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptFile(path, f"a field is missing or invalid: {error!r}") from error


def _topic(path: Path, row: Mapping[str, Any]) -> Topic:
    """Parses `row`, a topic of the topics file, and applies the checks of a CreateTopics request to its name, its
    partition count and its configuration.

    Args:
        path: the topics file, for the error message.

    Raises:
        CorruptFile: a value that no request could have created. With such a name or count, the partitions' directories
            would lie outside of the data directory, or be mistaken for strays.
        KeyError, TypeError, ValueError: a field is missing or has another type.
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
    """Parses a topic's configuration in the topics file, with the checks of a request that sets it.

    Args:
        path: the topics file, for the error message.
        topic: name of the topic.
        configs: values by configuration key, as read from the file.

    Raises:
        CorruptFile: an entry that no request could have set. Otherwise it would fail later, at the start or in
            maintenance.
    """
    try:
        return {str(key): check_config(str(key), str(value)) for key, value in configs.items()}
    except RequestRefused as refused:
        raise CorruptFile(path, f"topic {topic!r}: {refused.message}") from refused
