"""The status of the loader, from the commit log, with the lag if the brokers are available."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.loader.apply.base import AppliedCommit
from headrace.loader.apply.complete import instant_text, read_completeness
from headrace.loader.apply.engine import cursor_of, read_cursor
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.prepare import HOURLY_BYTES_MIN
from headrace.loader.commit.state import TopicState
from headrace.loader.load_schema import LoadState
from headrace.loader.plan.discover import Discovery
from headrace.loader.plan.schema_cache import SchemaCache
from headrace.loader.plan.time_fields import time_field_note
from headrace.loader.policy import AUTO, DAY, TopicPolicy
from headrace.loader.run_log import RunLine
from headrace.loader.work_unit import FileKind

AUDIT = "audit"
APPLIERS = ("index", "schema", "files", "partitions", AUDIT, "group_offsets")
"""Names of the appliers, in the order in which they run."""

ADVISORY = frozenset({"group_offsets"})
NEWEST_DAYS = 3  # the newest one has only begun, or has rows with times in the future
LEFT_BEHIND_LOADS = 3  # loads with commits; a topic may get its first messages just before this is checked


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """Status of one topic.

    `lag` is in offsets, None if the brokers are unavailable, or lack the topic, or the settings exclude it. `files` and
    `rows` do not include the quarantine. `file_bytes_mean` is None without files. `complete_until` is the
    whole hour up to which the table is complete, "" if unknown. `pending` names the appliers that have not
    applied the topic's newest commit. `time_note` is the reason why the rows are not filed by the expected time field,
    "" if they are. `partition_note` advises partitions of hours, "" if those of days suffice or the settings demand
    them.
    """

    topic: str
    table: str
    next_offsets: Mapping[int, int]
    lag: int | None
    commit_number: int
    files: int
    file_bytes_mean: int | None
    rows: int
    quarantined: int
    schema_version: int
    complete_until: str
    pending: tuple[str, ...]
    time_note: str = ""
    partition_note: str = ""


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """Status of the loader. `cursors` has, by applier, the number up to which the applier has applied all commits of
    all topics. `waiting` are topics that exist on the brokers, are to be loaded and have no commit. `note` is the
    reason why the lags of the topics are unknown, "" if they are known. `runs` are the newest lines of the run log,
    oldest first. `notes` are remarks about this installation, such as a missing C core."""

    commit_number: int
    committed_at_ms: int
    topics: tuple[TopicStatus, ...]
    cursors: Mapping[str, int]
    waiting: tuple[str, ...]
    note: str = ""
    runs: tuple[RunLine, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_pending(self) -> bool:
        """Whether an applier has not applied a commit yet. Pending group offsets, which only lag tools show, do not
        count."""
        return any(map(self.is_pending, self.topics))

    def is_pending(self, topic: TopicStatus) -> bool:
        return bool(set(topic.pending) - ADVISORY)

    def is_left_behind(self, topic: TopicStatus) -> bool:
        """Whether the topic has messages, and the newest loads committed others but nothing of it."""
        committed = [run.commit_number for run in self.runs if run.outcome == "committed"][-LEFT_BEHIND_LOADS:]
        return bool(topic.lag) and len(committed) == LEFT_BEHIND_LOADS and topic.commit_number < committed[0]

    def of_topics(self, topics: Collection[str]) -> LoadStatus:
        """Returns the status with these topics only."""
        selected = set(topics)
        return dataclasses.replace(
            self,
            topics=tuple(one for one in self.topics if one.topic in selected),
            waiting=tuple(topic for topic in self.waiting if topic in selected),
        )


def load_status(
    log: CommitLog,
    discovery: Discovery | None,
    counted: Mapping[str, AppliedCommit],
    note: str = "",
    runs: tuple[RunLine, ...] = (),
    notes: tuple[str, ...] = (),
    policy_of: Callable[[str], TopicPolicy] | None = None,
) -> LoadStatus:
    """Collects the status of the loader.

    Args:
        discovery: the topics on the brokers, None if the brokers are unavailable; `note` then has the reason.
        counted: by topic, the newest commit with counts in the audit's database.
        runs: the newest lines of the run log.
        notes: remarks about this installation.
        policy_of: returns the settings of a topic, for its `time_note` and `partition_note`; None to leave these out.

    Raises:
        CommitLogError: the commits cannot be read.
    """
    state = log.read_state()
    cursors = {name: read_cursor(log.storage, name) for name in APPLIERS if name != AUDIT}
    cursors[AUDIT] = cursor_of(counted, state.topics)
    complete_until = {
        topic: instant_text(one.until_ms)
        for topic, one in read_completeness(log.storage).topics.items()
        if one.until_ms
    }
    cache, index = SchemaCache(log.storage, writable=False), FileIndex(log)
    topics = tuple(
        _topic_status(
            topic,
            topic_state,
            state.starts.get(topic, {}),
            discovery,
            complete_until.get(topic, ""),
            tuple(name for name in APPLIERS if cursors[name].position(topic) < topic_state.commit_number),
            "" if policy_of is None else _time_note(topic_state, cache, policy_of(topic)),
            "" if policy_of is None else _partition_note(topic, topic_state, index, policy_of(topic)),
        )
        for topic, topic_state in sorted(state.topics.items())
    )
    waiting = tuple(sorted(set(discovery.topics) - set(state.topics))) if discovery else ()
    positions = {name: cursors[name].oldest for name in APPLIERS}
    # A topic's position is at most the number of the topic's newest commit.
    positions[AUDIT] = min(
        (cursors[AUDIT].position(one.topic) for one in topics if AUDIT in one.pending), default=state.commit_number
    )
    return LoadStatus(state.commit_number, state.committed_at_ms, topics, positions, waiting, note, runs, notes)


def _topic_status(
    topic: str,
    topic_state: TopicState,
    starts: Mapping[int, int],
    discovery: Discovery | None,
    complete_until: str,
    pending: Sequence[str],
    time_note: str,
    partition_note: str,
) -> TopicStatus:
    discovered = discovery.topics.get(topic) if discovery else None
    next_offsets = {number: partition.next_offset for number, partition in sorted(topic_state.partitions.items())}
    lag = None
    if discovered is not None:
        start_offsets = (
            {offsets.partition: offsets.start for offsets in discovered.partitions} | dict(starts) | next_offsets
        )
        lag = sum(max(0, offsets.end - start_offsets[offsets.partition]) for offsets in discovered.partitions)
    return TopicStatus(
        topic=topic,
        table=topic_state.table,
        next_offsets=next_offsets,
        lag=lag,
        commit_number=topic_state.commit_number,
        files=topic_state.data.files,
        file_bytes_mean=topic_state.data.bytes // topic_state.data.files if topic_state.data.files else None,
        rows=topic_state.data.records,
        quarantined=topic_state.quarantine.records,
        schema_version=topic_state.load_schema.version,
        complete_until=complete_until,
        pending=tuple(pending),
        time_note=time_note,
        partition_note=partition_note,
    )


def _time_note(topic_state: TopicState, cache: SchemaCache, policy: TopicPolicy) -> str:
    """Returns the note about the topic's time field, from the cached schema of its subject's newest version; "" if that
    is not cached."""
    load_schema = topic_state.load_schema
    newest_id = LoadState.from_json(json.loads(load_schema.fold)).newest
    text = cache.text(newest_id) if newest_id is not None else None
    texts = {} if newest_id is None or text is None else {newest_id: text}
    return time_field_note(texts, newest_id, load_schema.time_property, policy)


def _partition_note(topic: str, topic_state: TopicState, index: FileIndex, policy: TopicPolicy) -> str:
    """Returns the advice to partition a topic's table by hour, if the first load chose days and one of the newest days
    has as many bytes as make the first load choose hours; otherwise ""."""
    bytes_min = 24 * HOURLY_BYTES_MIN
    if policy.partition_by != AUTO or topic_state.partition_by != DAY or topic_state.data.bytes < bytes_min:
        return ""
    days = index.days(topic, FileKind.DATA)[-NEWEST_DAYS:]
    length, day = max((_bytes_of_day(index, topic, day), day) for day in days)
    if length < bytes_min:
        return ""
    return (
        f"{day} has {length / 1e9:.1f} GB in one partition; if queries read single hours, partition the table by hour: "
        f"headrace hive repartition {topic} --by hour"
    )


def _bytes_of_day(index: FileIndex, topic: str, day: str) -> int:
    time_partitions = index.day(topic, FileKind.DATA, day).time_partitions
    return sum(file.length for one in time_partitions for file in index.live(topic, FileKind.DATA, one))
