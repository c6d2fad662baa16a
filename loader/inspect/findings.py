"""Contradictions between a topic's commits, its files and its log on the brokers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.loader.work_unit import FileKind


class ConsistencyCheck(StrEnum):
    """The checks of `headrace verify`, one per value."""

    COMMITS = "commits"  # offsets without holes, every offset accounted for
    INDEX = "index"  # the index of files agrees with the commits
    LISTING = "listing"  # the directories of published files can be listed
    PLACE = "place"  # committed files are published, so that queries read them
    LENGTH = "length"
    CHECKSUM = "checksum"
    ROWS = "rows"  # the file can be read, and has the committed number of rows
    FOREIGN = "foreign"  # queries read no file that is in no commit
    TABLE = "table"  # the topic's tables exist, are Headrace's and have the files' location
    OFFSETS = "offsets"  # next offsets agree with the brokers


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """A contradiction between commits, files, tables and brokers that `headrace verify` or a load found. `where` is a
    file below the warehouse, a partition or a table, "" for the whole topic; `message` is a sentence for the user.
    `time_partition` has the file, "" if it concerns no file; `kind` is whether it is a data or a quarantine file."""

    topic: str
    check: ConsistencyCheck
    where: str
    message: str
    kind: FileKind = FileKind.DATA
    time_partition: str = ""


@dataclass(frozen=True, slots=True)
class VerifiedTopic:
    """The result of `verify_topic` for one topic. `files`, `rows` and `bytes` count published files, `rows` only data
    files. `waiting` counts committed files that the next load will publish."""

    topic: str
    commits: int
    files: int
    rows: int
    bytes: int
    waiting: int
    findings: tuple[VerifyFinding, ...]
