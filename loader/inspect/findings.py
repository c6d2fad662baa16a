"""What is found where a topic's commits, its files and its log on the brokers do not agree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Check(StrEnum):
    """What was compared."""

    COMMITS = "commits"  # with one another: offsets without holes, every offset accounted for
    INDEX = "index"  # of files, with the commits
    PLACE = "place"  # committed files are where readers look
    LENGTH = "length"
    CHECKSUM = "checksum"
    ROWS = "rows"  # the file can be read, and holds as many as committed
    FOREIGN = "foreign"  # files that nothing committed, where readers find them
    OFFSETS = "offsets"  # with the brokers


@dataclass(frozen=True, slots=True)
class Finding:
    """`where` is a file below the warehouse or a partition, "" for all of the topic; `message` what a person reads."""

    topic: str
    check: Check
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class TopicVerified:
    """What was looked at; `waiting` files are committed and will be brought to their places by the next load."""

    topic: str
    commits: int
    files: int
    rows: int
    bytes: int
    waiting: int
    findings: tuple[Finding, ...]
