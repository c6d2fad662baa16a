"""Sets the table property `headrace.complete_until`: the time up to which the table is complete.

The property is an instant, a whole hour in UTC. Every message that the brokers had before it has been read, and its row
can be queried (or it is counted as quarantined, as a tombstone, or in a gap). The instant comes from the loader's
clock, not from the messages: a message that is sent later may have an earlier time, and goes to that time partition.
The property only moves back if it is in the future, because then the clock was wrong.

A load fetches the log end offsets of the partitions at some instant. Once everything before these offsets is committed
and applied, the table is complete up to that instant. If that takes more than one load (a backlog, a failing partition,
an open transaction), the offsets are stored and no newer ones are fetched until they are reached.

    complete.json   by topic: the instant reached, the instant in the table, and the offsets to reach. A hint: if it is
                    lost, the next load of each topic restores it, and the table keeps its property.

Nothing is committed here, so the property also advances while no messages arrive. Tables are altered at most once an
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
"""Some ten seconds of calls. Further tables are altered by the next runs."""


@dataclass(frozen=True, slots=True)
class TopicCompleteness:
    """Instants in ms since 1970, 0 for none. The table is complete up to `until_ms`; its property says `told_ms`.

    `refused_ms` is the last value that could not be set. `ends` are the log end offsets at `asked_ms`, if they have not
    been reached yet.
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
    """Returns the time up to which the table of a topic is complete after a run. Pure.

    Args:
        found: the topic's offsets on the brokers, fetched after `asked_ms`; None if they were not fetched.
        is_followed: whether all committed rows of the topic can be queried.
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
    """Returns the log end offsets of the partitions with messages, None if not all were fetched."""
    if found is None or found.errors:
        return None
    # Messages of an open transaction are not visible yet, but they were there.
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
    """Formats the property, such as `2026-01-31T07:00:00Z`. Later instants compare greater as text."""
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
    """Maintains the property of the tables in `database`; `head` returns the newest commit number."""

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
        """Advances the completeness of each topic and alters the tables.

        Args:
            failed: topics with committed rows that cannot be queried yet.
            run_id: of this run.

        Returns:
            Warnings. Nothing depends on the property, and the next run tries again.
        """
        before = read_completeness(self.storage)
        topics = {
            topic: advanced(
                before.topics.get(topic), known, found.get(topic), asked_ms, is_followed=topic not in failed
            )
            for topic, known in state.topics.items()
        }
        # Tables that could not be altered come after the others, so that they do not delay them.
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
                    raise  # every further table would wait for as long
                except Exception as error:
                    logger.debug("complete_until_failed topic=%s", topic, exc_info=True)
                    refused.append(f"topic {topic}: {error}")  # concerns this table only
                told_ms, refused_ms = (known.until_ms, 0) if is_told else (known.told_ms, known.until_ms)
                topics[topic] = dataclasses.replace(known, told_ms=told_ms, refused_ms=refused_ms)
        # The files are published, so any failure here is only a warning.
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
        """Whether the table has the property now, or another process set a newer one."""
        executor = self.executor()
        table = executor.table(self.database, state.table)
        if table is None or table.topic != topic:
            return False
        text = instant_text(until_ms)
        if text <= table.properties.get(COMPLETE_UNTIL, "") <= instant_text(now_ms):
            return True
        if state.commit_number < _slot(table.revision) <= self.head():
            return False  # set by a later load of this log
        # Two changes must not have the same revision, and the schema's change has the run id alone.
        changes = ((COMPLETE_UNTIL, text), (REVISION, f"{state.commit_number}-{run_id}-complete"))
        try:
            executor.execute(SetProperties(self.database, state.table, table.revision, changes, (), ()))
        except StaleRevision:
            return False
        return True


def _slot(revision: str | None) -> int:
    text = (revision or "").partition("-")[0]
    return int(text) if text.isdecimal() else 0
