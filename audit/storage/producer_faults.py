"""Queries faults of producers that are no difference between tiers: wrong clocks, and crashes with lost messages.

All tiers count a message in the window of its time, also if the producer's clock is wrong; and a message that was not
acknowledged may be in the log or not. So neither makes a window differ.

A clock that is ahead has windows in the future. A clock that is behind is found in the log, because the machine's own
counts have the same wrong times: in one partition, messages of an old window were counted after those of a newer one.
Counts that are late because loads stopped are in the order of the log. Producers with correct clocks that deliver old
messages also send newer ones, so only producers without counts in newer windows are at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.row import AuditOutcome, Tier
from headrace.audit.storage.tables import AUDIT_ROW, WINDOW_VERDICT
from headrace.audit.stored import ProducerFault, ProducerFaultKind
from headrace.audit.strip import DAY_MS
from headrace.audit.verdict import AuditVerdict
from headrace.audit.window import WINDOW_MS

AHEAD_MS: Final = 1_200_000
"""A window that starts later than this has messages with times in the future. Clocks that differ by less are usual."""
BEHIND_MS: Final = 1_800_000
"""Messages that come after others of the same partition and are older by more than this have times in the past."""
BEHIND_MS_MAX: Final = DAY_MS
"""Still older messages are no effect of a clock or a time zone, but sent again or held back."""
BEHIND_FOR_MS: Final = 6 * 3_600_000
"""Time for which the fault of a clock that is behind is returned after its last messages. It ends at once when the
producer counts in a newer window."""
TOPICS_MAX: Final = 100
"""Faults of each kind that are returned: those with the most messages."""

_V = WINDOW_VERDICT.c
_R = AUDIT_ROW.c
_TOPIC = _V.topic.concat(sa.literal_column("''"))
"""The topic. Grouped by the column itself, SQLite reads all verdicts in the order of their topics."""


def read_producer_faults(connection: Connection, now_ms: int) -> list[ProducerFault]:
    """See `AuditStore.producer_faults`."""
    stored = sa.func.coalesce(_V.stored, _V.acknowledged, 0)
    ahead = _V.window_start_ms > now_ms + AHEAD_MS
    is_lost = (_V.crashed == 1) & (_V.sent > stored) & (_V.verdict != AuditVerdict.PENDING.value)
    crashed = (_V.window_start_ms > now_ms - DAY_MS) & is_lost
    return [
        *_faults(connection, now_ms, ahead, stored, ProducerFaultKind.AHEAD),
        *_behind(connection, now_ms),
        *_faults(connection, now_ms, crashed, _V.sent - stored, ProducerFaultKind.CRASHED),
    ]


def _faults(
    connection: Connection, now_ms: int, condition: sa.ColumnElement[bool], messages: Any, kind: ProducerFaultKind
) -> Iterable[ProducerFault]:
    """Yields a fault for each topic with windows that meet a condition.

    Args:
        messages: expression for the affected messages of a window.
    """
    first_ms, last_ms = sa.func.min(_V.window_start_ms), sa.func.max(_V.window_start_ms)
    query = (
        sa.select(_TOPIC, first_ms, last_ms, sa.func.sum(messages))
        .where(_V.last_counted_ms > now_ms - DAY_MS, condition)  # the index of last_counted_ms
        .group_by(_TOPIC)
        .order_by(sa.func.sum(messages).desc(), _TOPIC)
        .limit(TOPICS_MAX)
    )
    for topic, start_ms, start_of_last_ms, count in connection.execute(query).all():
        producers = (
            sa.select(_R.application, _R.host)
            .where(_R.topic == topic, _R.window_start_ms >= start_ms, _R.window_start_ms <= start_of_last_ms)
            .where(_R.tier == Tier.PRODUCER.value, _R.crashed >= int(kind is ProducerFaultKind.CRASHED))
            .distinct()
            .order_by(_R.application, _R.host)
        )
        names = tuple((application, host) for application, host in connection.execute(producers))
        yield ProducerFault(topic, kind, start_ms, start_of_last_ms + WINDOW_MS, int(count), names)


def _behind(connection: Connection, now_ms: int) -> Iterator[ProducerFault]:
    """Yields a fault for each topic with messages of a producer whose clock is behind."""
    since_ms = now_ms - BEHIND_FOR_MS - BEHIND_MS_MAX
    counted_late = sa.func.count()
    query = (
        sa.select(_TOPIC)
        .where(_V.last_counted_ms > now_ms - BEHIND_FOR_MS)  # the index of last_counted_ms
        .where(_V.window_start_ms > since_ms, _V.last_counted_ms > _V.window_start_ms + WINDOW_MS + BEHIND_MS)
        .group_by(_TOPIC)
        .order_by(counted_late.desc(), _TOPIC)
        .limit(TOPICS_MAX)
    )
    for topic in connection.execute(query).scalars().all():
        late, behind_ms = _late_windows(connection, topic, since_ms, now_ms - BEHIND_FOR_MS)
        producers = _only_late(connection, topic, late) if late else ()
        if producers:
            start_ms, end_ms = min(late), max(late) + WINDOW_MS
            messages = sum(late.values())
            yield ProducerFault(
                topic, ProducerFaultKind.BEHIND, start_ms, end_ms, messages, producers, behind_ms=behind_ms
            )


def _late_windows(
    connection: Connection, topic: str, since_ms: int, counted_since_ms: int
) -> tuple[dict[int, int], int]:
    """Returns the windows of a topic whose messages came after much newer ones, with the number of these messages, and
    by how much the oldest of them is older.

    Args:
        since_ms: windows that start after this time.
        counted_since_ms: messages that were counted in the log after this time.
    """
    query = (
        sa.select(_R.application, _R.partition, _R.emitted_at_ms, _R.start, _R.window_start_ms, _R["count"])
        .where(_R.topic == topic, _R.window_start_ms > since_ms, _R.outcome == AuditOutcome.STORED.value)
        .order_by(_R.application, _R.partition, _R.emitted_at_ms, _R.start)
    )
    late: dict[int, dict[str, int]] = {}
    behind_ms_max = 0
    place: tuple[Any, ...] = ()
    newest_before_ms = newest_ms = 0
    for application, partition, emitted_at_ms, first_offset, start_ms, count in connection.execute(query):
        if place[:2] != (application, partition):
            newest_before_ms = newest_ms = 0
        elif place[2:] != (emitted_at_ms, first_offset):
            newest_before_ms = newest_ms  # messages of one range of offsets may have any order
        place = (application, partition, emitted_at_ms, first_offset)
        if start_ms <= emitted_at_ms:  # a clock that is ahead does not make the others late
            newest_ms = max(newest_ms, start_ms)
        behind_ms = newest_before_ms - start_ms
        if emitted_at_ms > counted_since_ms and BEHIND_MS < behind_ms <= BEHIND_MS_MAX:
            counts = late.setdefault(start_ms, {})
            counts[application] = counts.get(application, 0) + count
            behind_ms_max = max(behind_ms_max, behind_ms)
    # The auditor and the loads count the same messages.
    return {start_ms: max(counts.values()) for start_ms, counts in late.items()}, behind_ms_max


def _only_late(connection: Connection, topic: str, late: Mapping[int, int]) -> tuple[tuple[str, str], ...]:
    """Returns the producers without counts in windows after the late ones that counted in late windows with at least
    half of the late messages."""
    query = (
        sa.select(_R.application, _R.host, _R.window_start_ms)
        .where(_R.topic == topic, _R.window_start_ms >= min(late), _R.tier == Tier.PRODUCER.value)
        .distinct()
    )
    windows: dict[tuple[str, str], set[int]] = {}
    for application, host, start_ms in connection.execute(query):
        windows.setdefault((application, host), set()).add(start_ms)
    half = sum(late.values()) / 2
    return tuple(
        producer
        for producer, counted in sorted(windows.items())
        if max(counted) <= max(late) and sum(late.get(start_ms, 0) for start_ms in counted) >= half
    )
