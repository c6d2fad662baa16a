"""Errors of a load. Errors of the brokers are in `kafka_wire.errors`.

    LoaderError
    ├── StorageError                the file system of the warehouse
    │   ├── UnwritableWarehouse     the warehouse cannot be created or written
    │   └── NoPutIfAbsent           no put-if-absent, which the commit log needs
    │       └── NoHardLinks         a local file system without hard links
    ├── CommitLogError              the commits cannot be read
    │   ├── CorruptCommit           a commit that is missing, or has a wrong checksum or content
    │   ├── LogReplaced             the log is not the one that was read before
    │   └── UnsupportedFormat       written by a newer release
    ├── PublishedFileLost           a committed file is missing or has another length
    │   └── PublishedNameTaken      another file has the name of a committed file that is in staging
    ├── SchemaReplaced              the registry has another schema under an id than before
    ├── OffsetsRefused              next offsets that an operator may not set
    ├── NoSuchTopic                 a topic that the user named is not on the brokers, or is excluded
    ├── EarlierWarehouse            the load would read again the topics of another warehouse
    └── PoolFailed                  the tasks failed or could not run

The failure of one file system call is an `OSError`; its subclass `StorageUnavailable` means that every call fails.
"""

from __future__ import annotations

from collections.abc import Sequence


class LoaderError(Exception):
    """Root of the package's errors. The message is one line for the user."""


class StorageError(LoaderError):
    pass


class StorageUnavailable(OSError):
    """The storage as a whole is unavailable: its servers, or the JVM that connects to them, do not respond.

    Further calls would fail after the same timeouts, so callers stop. Constructed like an `OSError`, from number,
    reason and path.
    """


class UnwritableWarehouse(StorageError):
    """The warehouse cannot be created or written.

    Args:
        path: the warehouse.
        reason: the problem.
        is_full: whether the disk is full; selects the remedy.
        remedy: replaces that remedy; "" if the reason includes one.
    """

    def __init__(self, path: str, reason: str, *, is_full: bool = False, remedy: str | None = None) -> None:
        if remedy is None:
            remedy = "free space there" if is_full else "make the directory writable or set loader.warehouse"
        super().__init__(f"cannot write to the warehouse {path}: {reason}{f'; {remedy}' if remedy else ''}")
        self.path = path
        self.reason = reason


class NoPutIfAbsent(StorageError):
    """The storage has no put-if-absent: it cannot create a file only if no file of that name exists. Two loads could
    then write the same commit number, so loading would not be exactly-once."""

    def __init__(self, path: str, reason: str, message: str = "") -> None:
        super().__init__(
            message
            or f"the commit log cannot be in {path}: {reason}; it needs conditional create, so set loader.state to a "
            "directory on HDFS or on a local disk that every load can reach"
        )
        self.path = path
        self.reason = reason


class NoHardLinks(NoPutIfAbsent):
    """The warehouse is on a local file system without hard links, which put-if-absent needs there."""

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
    """A commit is missing, or a commit, an archive of commits or `format.json` has a wrong checksum or content. Later
    commits must not be read, so the run stops."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the commit {path} is damaged: {reason}; restore this file from a backup, then load again")
        self.path = path
        self.reason = reason


class LogReplaced(CommitLogError):
    """The commit log is not the one that was read before: a copy was restored in its place."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the commit {path} has changed since it was read: the log was replaced by another copy; load again"
        )
        self.path = path


class UnsupportedFormat(CommitLogError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} was written by a newer release: {reason}; use a newer headrace")
        self.path = path
        self.reason = reason


class PublishedFileLost(LoaderError):
    def __init__(self, topic: str, path: str, reason: str, message: str = "") -> None:
        super().__init__(
            message
            or f"the committed file {path} of topic {topic} is lost: {reason}; restore it from a backup, then load "
            "again"
        )
        self.topic = topic
        self.path = path
        self.reason = reason


class PublishedNameTaken(PublishedFileLost):
    """A committed file cannot be moved from staging to its partition, because another file there has its name."""

    def __init__(self, topic: str, path: str, staged: str) -> None:
        reason = "another file has this name"
        super().__init__(
            topic,
            path,
            reason,
            f"the committed file {path} of topic {topic} cannot be published: {reason}; move that file away, then load "
            f"again (the committed file is still at {staged})",
        )


class SchemaReplaced(LoaderError):
    """The registry has another schema under an id than before. `path` is the file with the earlier schema."""

    def __init__(self, schema_id: int, path: str) -> None:
        super().__init__(
            f"schema {schema_id} in the registry differs from {path}: the registry was created again or restored from "
            "an older copy, so it is unknown which of the two a message has; restore"
            " the registry that had it (headrace registry import keeps ids), or exclude the topic with "
            "loader.topics_exclude"
        )
        self.schema_id = schema_id
        self.path = path


class OffsetsRefused(LoaderError):
    pass


class PoolFailed(LoaderError):
    pass


class NoSuchTopic(LoaderError):
    """A topic that the user named is not on the brokers, or is excluded by the settings."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"the topic {topic} {reason}")
        self.topic = topic


class EarlierWarehouse(LoaderError):
    """The first load of a new warehouse would read topics again that another warehouse contains.

    Args:
        warehouse: the new warehouse.
        topics: the topics for which there is evidence.
        evidence: a clause that names the evidence: a table with files elsewhere, or offsets of the loader's consumer
            group.
        alternative: the remedy if the user wants a second warehouse.
    """

    def __init__(self, warehouse: str, topics: Sequence[str], *, evidence: str, alternative: str) -> None:
        super().__init__(
            f"nothing has been loaded into {warehouse} yet, but {evidence}; "
            f"set data_dir or loader.warehouse to the earlier one, or {alternative}"
        )
        self.topics = topics
