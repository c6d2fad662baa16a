"""Sets the table property `headrace.complete_until`: the time up to which the table is complete.

The property is an instant in UTC: a whole hour, or midnight if the table is partitioned by day. Every message that the
brokers had before that instant has been read, and its row can be queried (or it is counted as quarantined, as a
tombstone, in a gap, or as skipped). The instant comes from the loader's clock, not from the messages: a message that is
sent later may have an earlier event time, and still goes to the time partition of its event time. The property moves
back only if it lies in the future, because then the clock was wrong.

A load notes the time and fetches the high watermarks of the partitions. Once all offsets before these are committed and
applied, the table is complete up to that time. If this takes more than one load (a backlog, a failing partition, an
open transaction), the end offsets are stored until they are reached. Newer ones replace them only if they are reached
first.

    complete.json   by topic: the instant reached, the instant in the table, and the offsets to reach. If the file is
                    lost, the next load of each topic restores it, and the table keeps its property.

Setting the property is not a commit, so it also advances while no messages arrive. A table is altered at most once for
each whole hour or day. The catalogue and `headrace load status` show the instant reached, a whole hour for all tables.

A new table gets its first value when that costs little: after the tables with a value, for a shorter time, and only if
the connection to the metastore is open.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.hive_ddl.errors import MetastoreUnavailable, SessionFailed, StaleRevision
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.ops import SetProperties
from headrace.hive_ddl.table import COMPLETE_UNTIL, REVISION
from headrace.loader.apply.schema import commit_number_of
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.errors import StorageUnavailable
from headrace.loader.plan.discover import DiscoveredTopic
from headrace.loader.storage.protocols import CommitStorage

logger = logging.getLogger(__name__)

COMPLETE_PATH: Final = "complete.json"
STEP_MS: Final = 3_600_000
"""The instant reached is a multiple of this, because an hour is the smallest time partition."""

PROPERTY_STEPS_MS: Final[Mapping[str, int]] = {"hour": STEP_MS, "day": 24 * STEP_MS}
"""`headrace.complete_until` is a multiple of this, by the partitioning of the table: each change of the property costs
a metastore call per table, and readers of a table wait for the end of a time partition."""

ALTER_S_MAX: Final = 5.0
"""Time per run after which the remaining tables are left to later runs, so that a load without new messages is short.
The bundled metastore alters some 50 tables per second: with ten minutes between loads, 1,500 per hour."""

FIRST_VALUE_S_MAX: Final = 0.5
"""Time per run after which tables without a value are left to later runs."""


@dataclass(frozen=True, slots=True)
class TopicCompleteness:
    """Up to which time the table of one topic is complete: the loader has read every message that the brokers had at
    that time. Times are in ms since 1970, 0 for none.

    The table is complete up to `until_ms`. Its property `headrace.complete_until` was last found to be `property_ms` or
    later, or set to it; `failed_ms` is a later value that could not be set. `revision` is the revision that the table
    then had, "" if unknown: a table that still has it is changed without being read first.

    `ends` are the high watermarks of the partitions with messages, fetched after `discovery_start_ms`. They are stored
    until loads have reached all of them; the table is then complete up to `discovery_start_ms`.
    """

    topic_id: str
    until_ms: int = 0
    property_ms: int = 0
    failed_ms: int = 0
    discovery_start_ms: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Completeness:
    topics: Mapping[str, TopicCompleteness] = field(default_factory=dict)


def next_completeness(
    before: TopicCompleteness | None,
    state: TopicState,
    discovered: DiscoveredTopic | None,
    discovery_start_ms: int,
    *,
    is_applied: bool,
) -> TopicCompleteness:
    """Returns the `TopicCompleteness` of a topic after a run: up to which time its table is complete. A pure function.

    Args:
        before: the result for the previous run, None if unknown.
        state: the topic's state after the run.
        discovered: the topic's offsets on the brokers, fetched after `discovery_start_ms`; None if not fetched.
        is_applied: whether all committed rows of the topic can be queried.
    """
    current = before or TopicCompleteness(state.topic_id)
    if max(current.until_ms, current.property_ms, current.discovery_start_ms) > discovery_start_ms:
        current = TopicCompleteness(current.topic_id)
    if current.topic_id != state.topic_id:
        current = TopicCompleteness(state.topic_id, current.until_ms, current.property_ms, current.failed_ms)
    if discovered is not None and discovered.topic_id not in ("", state.topic_id):
        return current
    ends = _ends(discovered)
    if is_applied and ends is not None and _has_reached(state, ends):
        return _with_until(current, discovery_start_ms)
    if is_applied and current.discovery_start_ms and _has_reached(state, current.ends):
        current = _with_until(current, current.discovery_start_ms)
    if not current.discovery_start_ms and ends is not None:
        return dataclasses.replace(current, discovery_start_ms=discovery_start_ms, ends=ends)
    return current


def _ends(discovered: DiscoveredTopic | None) -> Mapping[int, int] | None:
    """Returns the high watermark of each partition that has messages. Returns None if any offset could not be fetched.

    Args:
        discovered: the topic on the brokers, None if its offsets were not fetched.
    """
    if discovered is None or discovered.errors:
        return None
    # Up to the high watermark: messages of an open transaction are not readable yet, but they count as present.
    ends = {one.partition: max(one.high_watermark, one.start) for one in discovered.partitions}
    return {one.partition: ends[one.partition] for one in discovered.partitions if ends[one.partition] > one.start}


def _has_reached(state: TopicState, ends: Mapping[int, int]) -> bool:
    return all(
        number in state.partitions and state.partitions[number].next_offset >= end for number, end in ends.items()
    )


def _with_until(current: TopicCompleteness, instant_ms: int) -> TopicCompleteness:
    until_ms = max(current.until_ms, instant_ms - instant_ms % STEP_MS)
    return TopicCompleteness(
        current.topic_id, until_ms, current.property_ms, current.failed_ms, revision=current.revision
    )


def _step_ms(state: TopicState) -> int:
    return PROPERTY_STEPS_MS.get(state.partition_by, STEP_MS)


def instant_text(instant_ms: int) -> str:
    """Formats a time (in ms since 1970) as in the table property `headrace.complete_until`: `2026-01-31T07:00:00Z`. The
    texts sort by time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(instant_ms / 1000))


def read_completeness(storage: CommitStorage) -> Completeness:
    content = storage.read(COMPLETE_PATH)
    try:
        return Completeness() if content is None else from_json(json.loads(content), Completeness)
    except ValueError as error:
        logger.warning("complete_until_file_ignored path=%s reason=%s", COMPLETE_PATH, error)
        return Completeness()


@dataclass(frozen=True, slots=True)
class CompleteUntil:
    """Sets the property `headrace.complete_until` of the tables in `database` to a time: the table has all messages
    that the brokers had then. `head` returns the newest commit number, `is_open` whether `executor` returns without
    waiting for a JVM, `monotonic_s` the monotonic clock in seconds."""

    executor: Callable[[], Executor]
    storage: CommitStorage
    database: str
    head: Callable[[], int]
    is_open: Callable[[], bool]
    monotonic_s: Callable[[], float] = time.monotonic

    def update(
        self,
        state: LoaderState,
        discovered: Mapping[str, DiscoveredTopic],
        discovery_start_ms: int,
        *,
        failed: frozenset[str],
        run_id: str,
    ) -> tuple[str, ...]:
        """Determines up to which time the table of each topic is complete, and sets the table's property
        `headrace.complete_until` to that time.

        Args:
            state: state of the commit log after the run.
            discovered: by topic, the offsets on the brokers, fetched after `discovery_start_ms`.
            failed: topics with committed rows that cannot be queried yet.
            run_id: becomes part of the revision of the altered tables.

        Returns:
            Warnings. If a table cannot be altered or `complete.json` cannot be written, the next run tries again.

        Raises:
            OSError: `complete.json` cannot be read.
        """
        before = read_completeness(self.storage)
        topics = {
            topic: next_completeness(
                before.topics.get(topic),
                topic_state,
                discovered.get(topic),
                discovery_start_ms,
                is_applied=topic not in failed,
            )
            for topic, topic_state in state.topics.items()
        }
        due = self._due(topics, state)
        if due:
            logger.info("phase_started phase=complete_until tables=%d", len(due))
        failures: list[str] = []
        warnings: tuple[str, ...] = ()
        try:
            if due:
                self.executor()  # the start of Spark alone may take longer than the limit
            start_s = self.monotonic_s()
            for number, (topic, property_ms) in enumerate(due.items()):
                current, revision = topics[topic], None
                limit_s = ALTER_S_MAX if current.property_ms else FIRST_VALUE_S_MAX
                if number and self.monotonic_s() > start_s + limit_s:
                    break
                try:
                    revision = self._set_property(
                        topic, state.topics[topic], current.revision, property_ms, discovery_start_ms, run_id
                    )
                except (MetastoreUnavailable, SessionFailed):
                    raise  # the metastore is unavailable: each further table would wait for a timeout
                except Exception as error:
                    logger.debug("complete_until_failed topic=%s", topic, exc_info=True)
                    failures.append(f"topic {topic}: {error}")  # affects no other table
                topics[topic] = (
                    dataclasses.replace(current, failed_ms=property_ms, revision="")
                    if revision is None
                    else dataclasses.replace(current, property_ms=property_ms, failed_ms=0, revision=revision)
                )
        # The files are published, so any failure here is only a warning.
        except Exception as error:
            logger.debug("complete_until_failed", exc_info=True)
            warnings = (
                f"headrace.complete_until of {len(due)} tables was not set: {error}; the next load tries again",
            )
        else:
            if failures:
                warnings = (
                    f"headrace.complete_until of {len(failures)} tables was not set: {failures[0]}; "
                    "the next load tries again",
                )
        after = Completeness(topics)
        if after != before:
            try:
                self.storage.replace(COMPLETE_PATH, canonical(to_json(after)) + b"\n")
            except StorageUnavailable:
                raise  # each further call would wait for the same timeouts
            except OSError as error:
                logger.warning("complete_until_file_not_written path=%s error=%s", COMPLETE_PATH, error)
        return warnings

    def _due(self, topics: Mapping[str, TopicCompleteness], state: LoaderState) -> dict[str, int]:
        """Returns, by topic, the value to which `headrace.complete_until` of its table advances, in the order in which
        the tables are altered: tables without a value after the others, and tables that could not be altered in earlier
        runs last, so that they delay no other table. Empty if all these tables have no value and Spark would have to be
        started.

        Args:
            topics: up to which time each table is complete.
            state: the state after the run, with the partitioning of each table.
        """
        wanted = {topic: one.until_ms - one.until_ms % _step_ms(state.topics[topic]) for topic, one in topics.items()}
        due = sorted(
            (not one.property_ms, max(one.property_ms, one.failed_ms), topic)
            for topic, one in topics.items()
            if wanted[topic] > one.property_ms
        )
        are_all_first = all(is_first for is_first, _, _ in due)
        return {} if are_all_first and not self.is_open() else {topic: wanted[topic] for _, _, topic in due}

    def _set_property(
        self, topic: str, state: TopicState, known_revision: str, property_ms: int, now_ms: int, run_id: str
    ) -> str | None:
        """Sets `headrace.complete_until` of a topic's table to `property_ms`. Returns the revision of the table, which
        then has this value or a later one. Returns None if there is no table of this topic, or if another process or a
        later load has altered it meanwhile.

        Args:
            state: the topic's state, with the name of its table.
            known_revision: the revision that the table had, "" if unknown.
            now_ms: the time when the run was planned; a value of the table that is later than this is replaced.
            run_id: becomes part of the new revision of the table.
        """
        # Two changes must not have the same revision; the revision of a schema change ends with the run id.
        revision = f"{state.commit_number}-{run_id}-complete"
        text = instant_text(property_ms)
        if known_revision:  # refused if the table was altered, dropped or restored since
            try:
                self._change(state.table, known_revision, text, revision)
                return revision
            except StaleRevision:
                logger.debug("table_changed_since topic=%s revision=%s", topic, known_revision)
        table = self.executor().table(self.database, state.table)
        if table is None or table.topic != topic:
            return None
        if text <= table.properties.get(COMPLETE_UNTIL, "") <= instant_text(now_ms):
            return table.revision or ""
        if state.commit_number < commit_number_of(table.revision) <= self.head():
            return None  # a later load has altered the table
        try:
            self._change(state.table, table.revision, text, revision)
        except StaleRevision:
            return None
        return revision

    def _change(self, table: str, expected_revision: str | None, text: str, revision: str) -> None:
        changes = ((COMPLETE_UNTIL, text), (REVISION, revision))
        self.executor().execute(SetProperties(self.database, table, expected_revision, changes, (), ()))
