"""Findings where a topic's commits, its files and its log on the brokers disagree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConsistencyCheck(StrEnum):
    """The compared property."""

    COMMITS = "commits"  # offsets without holes, every offset accounted for
    INDEX = "index"  # the index of files agrees with the commits
    PLACE = "place"  # committed files are visible to readers
    LENGTH = "length"
    CHECKSUM = "checksum"
    ROWS = "rows"  # the file can be read, and has the committed number of rows
    FOREIGN = "foreign"  # files in no commit, visible to readers
    OFFSETS = "offsets"  # next offsets agree with the brokers


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """`where` is a file below the warehouse or a partition, "" for the whole topic; `message` is for the user."""

    topic: str
    check: ConsistencyCheck
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class TopicVerified:
    """The result for one topic; `waiting` files are committed and will be published by the next load."""

    topic: str
    commits: int
    files: int
    rows: int
    bytes: int
    waiting: int
    findings: tuple[VerifyFinding, ...]
