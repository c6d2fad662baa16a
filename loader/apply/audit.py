"""Adds the message counts of a commit to the audit, once the files and partitions of the commit are published.

The audit's database also stores the newest commit that this applier has applied to each topic. One transaction adds the
counts of commits and stores the new position, unless another process has moved the position.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.audit.errors import StoreUnavailable
from headrace.audit.latency import NO_LATENCY, WindowTimes, late_count
from headrace.audit.producer_counter import LATE_AFTER_MS
from headrace.audit.row import AuditOutcome, AuditRow, Tier, range_row_id
from headrace.audit.stored import CountedCommit
from headrace.audit.window import known_window, window_start
from headrace.loader.apply.base import AppliedCommit, Step
from headrace.loader.commit.commit import Commit, CommittedRange, CountSeries, TopicCommit, WindowCount
from headrace.loader.errors import LoaderError
from headrace.loader.work_unit import SkippedOffsets

if TYPE_CHECKING:
    from headrace.audit.storage.store import AuditStore

logger = logging.getLogger(__name__)

APPLICATION = "headrace-load"

OUTCOMES = {"": AuditOutcome.STORED, "written": AuditOutcome.WRITTEN, "quarantined": AuditOutcome.QUARANTINED}
"""The audit outcome by `CountSeries.outcome`; "" is the count of the messages in the broker's log."""


@dataclass(frozen=True, slots=True)
class AuditApplier:
    """Writes the message counts of commits to the audit's database.

    `store` opens the database. `sha256` returns the checksum of the commit with a number. `host` names this machine in
    the rows. Topics in `unaudited_topics` are not counted: counting the audit's own topic would create further messages
    in it forever. `update_verdicts` compares the windows of the new counts; if that fails, the next update does so.
    """

    store: Callable[[], AuditStore]
    sha256: Callable[[int], str]
    unaudited_topics: frozenset[str]
    host: str
    update_verdicts: Callable[[AuditStore], object] = lambda store: None
    datacenter: str = ""
    late_after_ms: int = LATE_AFTER_MS
    name: str = "audit"
    is_advisory: bool = False

    def apply_topics(self, steps: Sequence[Step]) -> Mapping[str, str]:
        errors: dict[str, str] = {}
        with self.store() as store:  # opening the database takes longer than the transaction of a topic
            for step in steps:
                try:
                    self._apply(store, step)
                except (StoreUnavailable, LoaderError) as error:
                    errors[step.topic] = str(error)
            try:
                self.update_verdicts(store)
            except StoreUnavailable as error:
                logger.warning("audit verdicts not updated reason=%s", error)
        return errors

    def _apply(self, store: AuditStore, step: Step) -> None:
        commit_number = step.commits[-1].commit_number if step.commits else step.state.commit_number
        last = CountedCommit(commit_number, self.sha256(commit_number))
        counted = step.commits if step.topic not in self.unaudited_topics else ()
        rows = (
            row
            for commit in counted
            for row in audit_rows(step.topic, commit, self.host, self.datacenter, self.late_after_ms)
        )
        store.add_committed(step.topic, step.since, last, rows)

    def positions(self) -> Mapping[str, AppliedCommit]:
        with self.store() as store:
            return positions_in(store)

    def delete_positions(self) -> None:
        with self.store() as store:
            store.reset_counted_commits()


def positions_in(store: AuditStore) -> dict[str, AppliedCommit]:
    return {topic: AppliedCommit(*counted) for topic, counted in store.counted_commits().items()}


def audit_rows(
    topic: str, commit: Commit, host: str, datacenter: str = "", late_after_ms: int = LATE_AFTER_MS
) -> Iterator[AuditRow]:
    """Returns the audit rows of a commit for one topic: a row per count of a window, and a row per range of skipped
    offsets. Every call returns rows with the same ids, so that a row is stored once.

    Args:
        host: the name of the loading machine, stored in the rows.
        datacenter: the name of its data centre, stored in the rows.
        late_after_ms: time after the end of a window after which its messages are late.
    """
    committed = commit.topics[topic]
    ranges = {offsets.partition: offsets for offsets in committed.ranges}
    for offsets in committed.ranges:
        for skipped in offsets.skipped:
            row = _skipped_row(topic, commit, committed, offsets, skipped, host)
            yield dataclasses.replace(row, datacenter=datacenter)
    times = _window_times(committed)
    quarantined = {
        (series.partition, window.window_start_ms): window.messages
        for series in committed.audit
        if OUTCOMES[series.outcome] is AuditOutcome.QUARANTINED
        for window in series.windows
    }
    for series in committed.audit:
        for window in series.windows:
            row = _count_row(topic, commit, committed, series, window, ranges[series.partition], host)
            key = series.partition, window.window_start_ms
            where = times.get(key, WindowTimes())
            latency = where.latency(row.window_start_ms, commit.committed_at_ms) if key in times else NO_LATENCY
            yield dataclasses.replace(
                row,
                datacenter=datacenter,
                late=late_count(row.window_start_ms, commit.committed_at_ms, late_after_ms, row.count),
                no_time=where.no_time if row.outcome is AuditOutcome.STORED else 0,
                errors=quarantined.get(key, 0) if row.outcome is AuditOutcome.STORED else 0,
                latency_mean_ms=latency.mean_ms,
                latency_p95_ms=latency.p95_ms,
                latency_p99_ms=latency.p99_ms,
                latency_max_ms=latency.max_ms,
            )


def _window_times(committed: TopicCommit) -> dict[tuple[int, int], WindowTimes]:
    """Returns by partition and window the message times that the series of the tier `broker` state."""
    return {
        (series.partition, window.window_start_ms): where
        for series in committed.audit
        for window, where in zip(series.windows, series.times, strict=False)
    }


def _skipped_row(
    topic: str, commit: Commit, committed: TopicCommit, offsets: CommittedRange, skipped: SkippedOffsets, host: str
) -> AuditRow:
    """Returns the audit row that counts the `skipped` offsets. Its window is that of the commit time, because
    the event times of unread messages are unknown.

    Args:
        committed: the part of the commit that concerns the topic.
        offsets: the committed range of the partition to which `skipped` belongs.
        host: the name of the loading machine.
    """
    start_ms = window_start(commit.committed_at_ms)
    tier, outcome, partition, log_id = Tier.LOADER, AuditOutcome.SKIPPED, offsets.partition, _log_id(committed, offsets)
    return AuditRow(
        id=range_row_id(tier, outcome, topic, partition, skipped.start, skipped.end, start_ms, topic_id=log_id),
        tier=tier,
        outcome=outcome,
        topic=topic,
        window_start_ms=start_ms,
        count=skipped.end - skipped.start,
        bytes=0,
        fingerprint=0,
        application=APPLICATION,
        host=host,
        instance=commit.run_id,
        emitted_at_ms=commit.committed_at_ms,
        partition=partition,
        start=skipped.start,
        end=skipped.end,
    )


def _log_id(committed: TopicCommit, offsets: CommittedRange) -> str:
    """Returns the id of a partition's log on the broker: the topic id, followed by the incarnation if that is not 0. If
    the log was truncated and grew again, its offsets hold other messages, which the audit counts under another id.

    Args:
        committed: the part of a commit that concerns the topic.
        offsets: the committed range of the partition.
    """
    return f"{committed.topic_id}/{offsets.incarnation}" if offsets.incarnation else committed.topic_id


def _count_row(
    topic: str,
    commit: Commit,
    committed: TopicCommit,
    series: CountSeries,
    window: WindowCount,
    offsets: CommittedRange,
    host: str,
) -> AuditRow:
    tier, outcome = Tier(series.tier), OUTCOMES[series.outcome]
    return AuditRow(
        id=range_row_id(
            tier,
            outcome,
            topic,
            series.partition,
            offsets.start,
            offsets.end,
            window.window_start_ms,
            topic_id=_log_id(committed, offsets),
        ),
        tier=tier,
        outcome=outcome,
        topic=topic,
        window_start_ms=known_window(window.window_start_ms),
        count=window.messages,
        bytes=window.bytes,
        fingerprint=window.fingerprint,
        application=APPLICATION,
        host=host,
        instance=commit.run_id,
        emitted_at_ms=commit.committed_at_ms,
        partition=series.partition,
        start=offsets.start,
        end=offsets.end,
        hash=series.hash,
    )
