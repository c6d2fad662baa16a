"""Says on each table up to when it is complete: the table property `headrace.complete_until`.

The property is an instant, a whole hour in UTC: every message that the brokers showed before it has been read, and
its rows can be queried (or it is counted as quarantined, as a tombstone, or as a gap). It is the clock of the machine
that loads, and not the time in the messages: one that is sent later may carry an earlier time, and goes to its own
time partition all the same. It goes back only where it is later than the clock, which was wrong then.

A load asks the brokers for the ends of the partitions at some instant. When everything before those ends is committed
and followed, the table is complete up to that instant. Where that takes more than one load (a backlog, a partition that
fails, a transaction that stays open) the ends are remembered, and no newer ones are looked at until they are reached.

    complete.json   by topic what was reached, what the table says, and the ends to be reached: a hint. Lost, it is
                    found again by the next load of each topic, and the table goes on saying what it said.

Nothing is committed here, so it also moves on while no message comes. The tables are opened for it at most once an
hour.
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
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.plan.discover import DiscoveredTopic
from headrace.loader.storage.protocols import CommitStorage

logger = logging.getLogger(__name__)

COMPLETE_PATH: Final = "complete.json"
STEP_MS: Final = 3_600_000
"""Of the property: an hour is the smallest time partition, and each step is a call of the metastore for each table."""

TABLES_PER_RUN_MAX: Final = 500
"""Some ten seconds of calls. Who has more tables sees the others of them change in the runs after."""


@dataclass(frozen=True, slots=True)
class TopicCompleteness:
    """Instants in ms since 1970, 0 for none. The table is complete up to `until_ms`, and says `told_ms`.

    `refused_ms` is what it was to say last, if it could not be told. `ends` are offsets after the last messages of the
    partitions at `asked_ms`, where these have not been reached yet.
    """

    topic_id: str
    until_ms: int = 0
    told_ms: int = 0
    refused_ms: int = 0
    asked_ms: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Completeness:
    topics: Mapping[str, TopicCompleteness] = field(default_factory=dict)


def advanced(
    before: TopicCompleteness | None,
    state: TopicState,
    found: DiscoveredTopic | None,
    asked_ms: int,
    *,
    is_followed: bool,
) -> TopicCompleteness:
    """How complete the topic is after a run. Pure.

    Args:
        found: what the brokers said after the instant `asked_ms`; None when they did not speak of the topic.
        is_followed: whether all that is committed of the topic can be queried.
    """
    known = before or TopicCompleteness(state.topic_id)
    if max(known.until_ms, known.told_ms, known.asked_ms) > asked_ms:
        known = TopicCompleteness(known.topic_id)
    if known.topic_id != state.topic_id:
        known = TopicCompleteness(state.topic_id, known.until_ms, known.told_ms, known.refused_ms)
    if found is not None and found.topic_id not in ("", state.topic_id):
        return known
    ends = _ends(found)
    if is_followed and ends is not None and _has_reached(state, ends):
        return _until(known, asked_ms)
    if is_followed and known.asked_ms and _has_reached(state, known.ends):
        known = _until(known, known.asked_ms)
    if not known.asked_ms and ends is not None:
        return dataclasses.replace(known, asked_ms=asked_ms, ends=ends)
    return known


def _ends(found: DiscoveredTopic | None) -> Mapping[int, int] | None:
    """Of the partitions that hold anything; None when not all could be asked."""
    if found is None or found.errors:
        return None
    # What an open transaction holds back can be seen by nobody yet, but it was there.
    ends = {one.partition: max(one.high_watermark, one.start) for one in found.partitions}
    return {one.partition: ends[one.partition] for one in found.partitions if ends[one.partition] > one.start}


def _has_reached(state: TopicState, ends: Mapping[int, int]) -> bool:
    return all(
        number in state.partitions and state.partitions[number].next_offset >= end for number, end in ends.items()
    )


def _until(known: TopicCompleteness, instant_ms: int) -> TopicCompleteness:
    until_ms = max(known.until_ms, instant_ms - instant_ms % STEP_MS)
    return TopicCompleteness(known.topic_id, until_ms, known.told_ms, known.refused_ms)


def instant_text(instant_ms: int) -> str:
    """As the property has it, such as `2026-01-31T07:00:00Z`: later instants are greater texts."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(instant_ms / 1000))


def read_completeness(storage: CommitStorage) -> Completeness:
    content = storage.read(COMPLETE_PATH)
    try:
        return Completeness() if content is None else from_json(json.loads(content), Completeness)
    except ValueError as error:
        logger.warning("completeness_ignored reason=%s", error)
        return Completeness()


@dataclass(frozen=True, slots=True)
class CompleteUntil:
    """Keeps the property of the tables in `database`; `head` is the newest commit number."""

    executor: Callable[[], Executor]
    storage: CommitStorage
    database: str
    head: Callable[[], int]

    def note(
        self,
        state: LoaderState,
        found: Mapping[str, DiscoveredTopic],
        asked_ms: int,
        *,
        failed: frozenset[str],
        run_id: str,
    ) -> tuple[str, ...]:
        """Moves on what can be moved on, and tells the tables.

        Args:
            failed: topics of which something committed cannot be queried.
            run_id: of this run, which has no other.

        Returns:
            Sentences about what did not work; nothing depends on it, and the next run tries again.
        """
        before = read_completeness(self.storage)
        topics = {
            topic: advanced(
                before.topics.get(topic), known, found.get(topic), asked_ms, is_followed=topic not in failed
            )
            for topic, known in state.topics.items()
        }
        # Those that would not be told come behind those that wait for as long: others' trouble is not theirs.
        due = sorted(
            (max(one.told_ms, one.refused_ms), topic) for topic, one in topics.items() if one.until_ms > one.told_ms
        )
        if due:
            logger.info("phase_started phase=complete_until tables=%d", min(len(due), TABLES_PER_RUN_MAX))
        refused: list[str] = []
        warnings: tuple[str, ...] = ()
        try:
            for _, topic in due[:TABLES_PER_RUN_MAX]:
                known, is_told = topics[topic], False
                try:
                    is_told = self._tell(topic, state.topics[topic], known.until_ms, asked_ms, run_id)
                except (MetastoreUnavailable, SessionFailed):
                    raise  # every further table would wait for it as long
                except Exception as error:
                    logger.debug("complete_until_failed topic=%s", topic, exc_info=True)
                    refused.append(f"topic {topic}: {error}")  # its own trouble; the other tables are told
                told_ms, refused_ms = (known.until_ms, 0) if is_told else (known.told_ms, known.until_ms)
                topics[topic] = dataclasses.replace(known, told_ms=told_ms, refused_ms=refused_ms)
        # Whatever it is, the files are where they belong, and the sentence goes to the report.
        except Exception as error:
            logger.debug("complete_until_failed", exc_info=True)
            warnings = (f"headrace.complete_until of {len(due)} tables is not up to date: {error}",)
        else:
            if refused:
                warnings = (f"headrace.complete_until of {len(refused)} tables is not up to date: {refused[0]}",)
        after = Completeness(topics)
        if after != before:
            try:
                self.storage.replace(COMPLETE_PATH, canonical(to_json(after)) + b"\n")
            except OSError as error:
                logger.warning("completeness_not_written error=%s", error)
        return warnings

    def _tell(self, topic: str, state: TopicState, until_ms: int, now_ms: int, run_id: str) -> bool:
        """Whether the table says so now, or needs not: another process was faster, or knows better."""
        executor = self.executor()
        table = executor.table(self.database, state.table)
        if table is None or table.topic != topic:
            return False
        text = instant_text(until_ms)
        if text <= table.properties.get(COMPLETE_UNTIL, "") <= instant_text(now_ms):
            return True
        if state.commit_number < _slot(table.revision) <= self.head():
            return False  # of a later load of this log, which tells it
        # Two changes may not have one revision, and the schema's in this run has the work's.
        changes = ((COMPLETE_UNTIL, text), (REVISION, f"{state.commit_number}-{run_id}-complete"))
        try:
            executor.execute(SetProperties(self.database, state.table, table.revision, changes, (), ()))
        except StaleRevision:
            return False
        return True


def _slot(revision: str | None) -> int:
    text = (revision or "").partition("-")[0]
    return int(text) if text.isdecimal() else 0
