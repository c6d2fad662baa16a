"""Hands the counts of decided work to the audit, once the rows they count can be queried.

How far it has got stands in the audit's own database and changes in the transaction that adds the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.audit.row import AuditRow, Outcome, Tier, range_row_id
from headrace.audit.store import AuditStore, Counted
from headrace.audit.window import known_window, window_start
from headrace.loader.apply.base import Position, Step
from headrace.loader.commit.decision import CountSeries, DecidedRange, Decision, TopicDecision, WindowCount
from headrace.loader.work_unit import PassedOver

APPLICATION = "headrace-load"

OUTCOMES = {"": Outcome.STORED, "written": Outcome.WRITTEN, "quarantined": Outcome.QUARANTINED}
"""What a count is a count of; "" is the broker's, which counts what its log holds."""


@dataclass(frozen=True, slots=True)
class AuditFollower:
    """`store` opens the audit's database; `sha256` is that of the decision in a slot. `unaudited`
    are topics that are not counted: the audit's own would count itself for ever."""

    store: Callable[[], AuditStore]
    sha256: Callable[[int], str]
    unaudited: frozenset[str]
    host: str
    name: str = "audit"
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        slot = step.decisions[-1].slot if step.decisions else step.state.slot
        upto = Counted(slot, self.sha256(slot))
        counted = step.decisions if step.topic not in self.unaudited else ()
        rows = (row for decision in counted for row in audit_rows(step.topic, decision, self.host))
        with self.store() as store:
            store.add_decided(step.topic, step.since, upto, rows)

    def positions(self) -> Mapping[str, Position]:
        with self.store() as store:
            return positions_in(store)

    def forget(self) -> None:
        with self.store() as store:
            store.forget_counted()


def positions_in(store: AuditStore) -> dict[str, Position]:
    return {topic: Position(*counted) for topic, counted in store.counted().items()}


def audit_rows(topic: str, decision: Decision, host: str) -> Iterator[AuditRow]:
    """The rows of one decision; the same decision always gives the same ids."""
    decided = decision.topics[topic]
    ranges = {offsets.partition: offsets for offsets in decided.ranges}
    for offsets in decided.ranges:
        for passed in offsets.passed_over:
            yield _passed_over_row(topic, decision, decided, offsets, passed, host)
    for series in decided.audit:
        for window in series.windows:
            yield _row(topic, decision, decided, series, window, ranges[series.partition], host)


def _passed_over_row(
    topic: str, decision: Decision, decided: TopicDecision, offsets: DecidedRange, passed: PassedOver, host: str
) -> AuditRow:
    """Counts offsets under the time of the decision: of the messages in them, if any, nothing is known."""
    start_ms = window_start(decision.decided_at_ms)
    tier, outcome, partition, log_id = Tier.LOADER, Outcome.PASSED_OVER, offsets.partition, _log_id(decided, offsets)
    return AuditRow(
        id=range_row_id(tier, outcome, topic, partition, passed.start, passed.end, start_ms, topic_id=log_id),
        tier=tier,
        outcome=outcome,
        topic=topic,
        window_start_ms=start_ms,
        count=passed.end - passed.start,
        bytes=0,
        fingerprint=0,
        application=APPLICATION,
        host=host,
        instance=decision.work_id,
        emitted_at_ms=decision.decided_at_ms,
        partition=partition,
        start=passed.start,
        end=passed.end,
    )


def _log_id(decided: TopicDecision, offsets: DecidedRange) -> str:
    """Offsets that are read again from a log which was cut back and grew are counted again: they are other messages."""
    return f"{decided.topic_id}/{offsets.incarnation}" if offsets.incarnation else decided.topic_id


def _row(
    topic: str,
    decision: Decision,
    decided: TopicDecision,
    series: CountSeries,
    window: WindowCount,
    offsets: DecidedRange,
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
            topic_id=_log_id(decided, offsets),
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
        instance=decision.work_id,
        emitted_at_ms=decision.decided_at_ms,
        partition=series.partition,
        start=offsets.start,
        end=offsets.end,
        hash=series.hash,
    )
