"""What can go wrong in a load, besides what the brokers do (`kafka_wire.errors`).

LoaderError
├── StorageError                the file system of the warehouse
│   ├── UnwritableWarehouse     it cannot be made or written to
│   └── NoPutIfAbsent           it cannot do that, which the commit log rests on
│       └── NoHardLinks         nor can a local one without hard links
├── CommitLogError            what has been committed cannot be read
│   ├── CorruptCommit             a commit number whose checksum or content is wrong
│   ├── LogReplaced             another log stands where the one was that was read before
│   └── UnsupportedFormat       written by a newer release
├── PublishedFileLost           a committed file is neither in staging nor where it belongs
├── SchemaReplaced              the registry holds another schema under an id than before
├── OffsetsRefused              an operator's word on next offsets that would lose or double rows
├── EarlierWarehouse            a load would begin anew what another warehouse has been given
└── PoolFailed                  the tasks could not be run

What one call of a file system cannot do is an `OSError`, as Python's own are; `StorageUnavailable`, where no call can.
"""

from __future__ import annotations

from collections.abc import Sequence


class LoaderError(Exception):
    """Root of the package's errors; the message is one line for people."""


class StorageError(LoaderError):
    pass


class StorageUnavailable(OSError):
    """The storage as a whole cannot be used: its servers, or the JVM on the way to them, do not answer or take nothing.

    Whatever else it is asked fails likewise, and mostly after as long a wait, so whoever has more to ask leaves it. It
    is made as an `OSError` is, of number, reason and path.
    """


class UnwritableWarehouse(StorageError):
    """`cure` says what to do, where that is known better than here; "" where the reason says it."""

    def __init__(self, path: str, reason: str, *, is_full: bool = False, cure: str | None = None) -> None:
        if cure is None:
            cure = "make room there" if is_full else "make the directory writable or set loader.warehouse"
        super().__init__(f"cannot write to the warehouse {path}: {reason}{f'; {cure}' if cure else ''}")
        self.path = path
        self.reason = reason


class NoPutIfAbsent(StorageError):
    """Without it two loads could both decide, and so no exactly-once."""

    def __init__(self, path: str, reason: str, message: str = "") -> None:
        super().__init__(
            message
            or f"the commit log cannot be in {path}: {reason}; it needs conditional create, so set loader.state to a "
            "directory on HDFS or on a local disk that every load can reach"
        )
        self.path = path
        self.reason = reason


class NoHardLinks(NoPutIfAbsent):
    """Without hard links there is no atomic put-if-absent on a local file system."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            path,
            reason,
            f"the file system of {path} cannot make hard links ({reason}), which the commit log needs; "
            "set loader.warehouse to a directory on one that can (ext4, xfs, btrfs, zfs, apfs, nfs)",
        )


class CommitLogError(LoaderError):
    pass


class CorruptCommit(CommitLogError):
    """A commit number that cannot be trusted. Nothing after it may be read, so the run stops."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the commit {path} is damaged: {reason}; restore this file from a backup, then load again")
        self.path = path
        self.reason = reason


class LogReplaced(CommitLogError):
    """The log is not the one that was read before: somebody put another copy in its place."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the commit {path} is not the one that was read before: the log was replaced; load again")
        self.path = path


class UnsupportedFormat(CommitLogError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} was written by a newer release: {reason}; use a newer headrace")
        self.path = path
        self.reason = reason


class PublishedFileLost(LoaderError):
    def __init__(self, topic: str, path: str, reason: str) -> None:
        super().__init__(
            f"the committed file {path} of topic {topic} is lost: {reason}; restore it from a backup, then load again"
        )
        self.topic = topic
        self.path = path
        self.reason = reason


class SchemaReplaced(LoaderError):
    """`path` keeps what the id stood for."""

    def __init__(self, schema_id: int, path: str) -> None:
        super().__init__(
            f"schema {schema_id} is another one in the registry than the one kept in {path}: the registry was made "
            "anew or put back from an older copy, and which of the two a message was written with cannot be told; bring"
            " back the registry that had it (headrace registry import keeps ids), or leave the topic out with "
            "loader.topics_exclude"
        )
        self.schema_id = schema_id
        self.path = path


class OffsetsRefused(LoaderError):
    pass


class PoolFailed(LoaderError):
    pass


class NoSuchTopic(LoaderError):
    """A topic that was asked for by name cannot be loaded."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"the topic {topic} {reason}")
        self.topic = topic


class EarlierWarehouse(LoaderError):
    """
    Args:
        topics: that it has been given.
        known: a clause that says from where that is known.
        otherwise: what to do where there is to be another warehouse.
    """

    def __init__(self, warehouse: str, topics: Sequence[str], *, known: str, otherwise: str) -> None:
        super().__init__(
            f"nothing has been loaded into {warehouse} yet, but {known}; "
            f"set data_dir or loader.warehouse to that one, or {otherwise}"
        )
        self.topics = topics
