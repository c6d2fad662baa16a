"""The findings of loads that compare files and tables with the commits, stored until a later comparison finds nothing.

    checks.json   hint: the open findings, and how far the rolling comparison has come

If the file is lost, the next loads compare everything again. Of concurrent writers the last one wins, which repeats or
postpones comparisons. Its size is bounded: of more than `OPEN_FINDINGS_MAX` findings, or more than
`TOPIC_FINDINGS_MAX` of a topic, only the number is stored.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.loader.commit.document import read_document, write_document
from headrace.loader.inspect.compare_files import ExpectedTimePartition, damaged_paths
from headrace.loader.inspect.findings import ConsistencyCheck, VerifiedTopic, VerifyFinding
from headrace.loader.storage.protocols import CommitStorage
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)

CHECKS_PATH: Final = "checks.json"
OPEN_FINDINGS_MAX: Final = 1_000
TOPIC_FINDINGS_MAX: Final = 100

LISTING_CHECKS: Final = frozenset(
    {ConsistencyCheck.LISTING, ConsistencyCheck.PLACE, ConsistencyCheck.LENGTH, ConsistencyCheck.FOREIGN}
)
"""Checks that a listing of a time partition's directory makes."""

CONTENT_CHECKS: Final = frozenset({ConsistencyCheck.CHECKSUM, ConsistencyCheck.ROWS})
"""Checks that read a file."""

FILE_CHECKS: Final = LISTING_CHECKS | CONTENT_CHECKS


class CheckPosition(NamedTuple):
    """A place in the order in which the rolling comparison visits all files. "" sorts before all names."""

    topic: str = ""
    kind: str = ""
    time_partition: str = ""
    file: str = ""


START: Final = CheckPosition()


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """How far a rolling comparison has come: everything up to `position` was compared since `round_started_ms`, and
    everything was compared at or after `complete_since_ms`. Times are in ms since 1970, 0 for never."""

    position: CheckPosition = START
    round_started_ms: int = 0
    complete_since_ms: int = 0


NOT_STARTED: Final = CheckProgress()


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """A finding and the time when a load found it first, in ms since 1970."""

    finding: VerifyFinding
    since_ms: int


@dataclass(frozen=True, slots=True)
class WarehouseChecks:
    """The content of `checks.json`.

    `checked_at_ms` is the time of the newest comparison, `commit_number` the newest commit whose time partitions were
    compared. `listed`, `read` and `partitions` are the progress of comparing names and lengths, contents, and
    partitions of tables. `tables_at_ms` is when a share of the tables was last compared, and `tables_after` the topic
    that ended this share. `more` has the number of further findings by topic.
    """

    checked_at_ms: int = 0
    commit_number: int = 0
    listed: CheckProgress = NOT_STARTED
    read: CheckProgress = NOT_STARTED
    partitions: CheckProgress = NOT_STARTED
    tables_at_ms: int = 0
    tables_after: str = ""
    open: tuple[OpenFinding, ...] = ()
    more: Mapping[str, int] = field(default_factory=dict)

    def topics(self) -> frozenset[str]:
        """The topics with open findings."""
        return frozenset(one.finding.topic for one in self.open) | frozenset(self.more)


def read_checks(storage: CommitStorage) -> WarehouseChecks:
    """Returns the content of `checks.json`, without findings if the file is missing or damaged.

    Raises:
        OSError: the storage failed.
    """
    content = storage.read(CHECKS_PATH)
    if content is None:
        return WarehouseChecks()
    try:
        return read_document(content, WarehouseChecks).value
    except ValueError as error:
        logger.warning("checks_ignored path=%s reason=%s", CHECKS_PATH, error)
        return WarehouseChecks()


def write_checks(storage: CommitStorage, checks: WarehouseChecks) -> None:
    """Replaces `checks.json`.

    Raises:
        OSError: the storage failed, or this user must not write.
    """
    storage.replace(CHECKS_PATH, write_document(checks), fsynced=False)


def store_verified(storage: CommitStorage, verified: Iterable[VerifiedTopic], now_ms: int, *, checksums: bool) -> None:
    """Replaces the open findings about the files of topics by those of `headrace verify`. Does nothing if this user
    must not write.

    Args:
        now_ms: the time, for new findings.
        checksums: whether every file was read. If not, open findings of that check stay.
    """
    try:
        before = read_checks(storage)
        found = FindingSet(before, now_ms)
        checks = FILE_CHECKS if checksums else FILE_CHECKS - {ConsistencyCheck.CHECKSUM}
        for one in verified:
            found.replace_topic(one.topic, checks, [finding for finding in one.findings if finding.check in checks])
        after = dataclasses.replace(before, open=tuple(found), more=found.more)
        if after != before:
            write_checks(storage, after)
    except OSError as error:
        logger.debug("verified_findings_not_stored reason=%s", error)


Key = tuple[str, FileKind, str]
"""Topic, kind of files and time partition ("" for findings that concern no file)."""


class FindingSet:
    """The open findings during a comparison. Each method replaces the findings about one object by the new ones; a
    finding that was open before keeps its time. Findings beyond the limits are only counted, if `is_counted`."""

    def __init__(self, checks: WarehouseChecks, now_ms: int) -> None:
        self._now_ms = now_ms
        self._open: dict[Key, dict[tuple[ConsistencyCheck, str], OpenFinding]] = {}
        self._by_topic: Counter[str] = Counter()
        self._more = Counter(checks.more)
        for one in checks.open:
            self._insert(one)

    def __iter__(self) -> Iterator[OpenFinding]:
        return iter([one for found in self._open.values() for one in found.values()])

    @property
    def more(self) -> Mapping[str, int]:
        """The numbers of findings beyond the limits, by topic."""
        return {topic: number for topic, number in sorted(self._more.items()) if number > 0}

    def begin_topic(self, topic: str) -> None:
        """Forgets the number of findings beyond the limits, because the topic's files are now compared from the
        first."""
        self._more.pop(topic, None)

    def replace_listed(
        self, expected: ExpectedTimePartition, found: Collection[VerifyFinding], *, is_counted: bool
    ) -> None:
        """Replaces the findings of listing a time partition. Deletes those about the content of files that are missing
        or have another length, or that no longer belong to the topic."""
        intact = {expected.path(file.name) for file in expected.files} - damaged_paths(found)
        self._replace(
            (expected.topic, expected.kind, expected.time_partition),
            lambda old: old.check in LISTING_CHECKS or (old.check in CONTENT_CHECKS and old.where not in intact),
            found,
            is_counted=is_counted,
        )

    def replace_read(
        self, expected: ExpectedTimePartition, path: str, found: VerifyFinding | None, *, is_counted: bool
    ) -> None:
        """Replaces the finding about the content of one file, None if it is as committed."""
        self._replace(
            (expected.topic, expected.kind, expected.time_partition),
            lambda old: old.check in CONTENT_CHECKS and old.where == path,
            [] if found is None else [found],
            is_counted=is_counted,
        )

    def replace_topic(
        self, topic: str, checks: Collection[ConsistencyCheck], found: Iterable[VerifyFinding] = ()
    ) -> None:
        """Replaces all findings of a topic that any of these checks made."""
        found_by_key: dict[Key, list[VerifyFinding]] = defaultdict(list)
        for one in found:
            found_by_key[_key(one)].append(one)
        if LISTING_CHECKS.issubset(checks):
            self.begin_topic(topic)
        for key in {*(key for key in self._open if key[0] == topic), *found_by_key}:
            self._replace(key, lambda old: old.check in checks, found_by_key[key], is_counted=True)

    def _replace(
        self,
        key: Key,
        is_replaced: Callable[[VerifyFinding], bool],
        found: Iterable[VerifyFinding],
        *,
        is_counted: bool,
    ) -> None:
        before = self._open.pop(key, {})
        self._by_topic[key[0]] -= len(before)
        for one in before.values():
            if not is_replaced(one.finding):
                self._insert(one)
        for new in found:
            known = before.get((new.check, new.where))
            if known is not None or self._has_room(new.topic):
                self._insert(OpenFinding(new, self._now_ms if known is None else known.since_ms))
            elif is_counted:
                self._more[new.topic] += 1

    def _has_room(self, topic: str) -> bool:
        return self._by_topic[topic] < TOPIC_FINDINGS_MAX and self._by_topic.total() < OPEN_FINDINGS_MAX

    def _insert(self, one: OpenFinding) -> None:
        found = self._open.setdefault(_key(one.finding), {})
        key = (one.finding.check, one.finding.where)
        self._by_topic[one.finding.topic] += key not in found
        found[key] = one


def _key(finding: VerifyFinding) -> Key:
    return (finding.topic, finding.kind, finding.time_partition)
