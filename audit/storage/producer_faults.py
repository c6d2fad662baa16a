"""Queries faults of producers that are no difference between tiers: wrong clocks, and crashes with lost messages.

All tiers count a message in the window of its time, also if the producer's clock is wrong; and a message that was not
acknowledged may be in the log or not. So neither makes a window differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.row import Tier
from headrace.audit.storage.tables import AUDIT_ROW, WINDOW_VERDICT
from headrace.audit.stored import ProducerFault
from headrace.audit.strip import DAY_MS
from headrace.audit.verdict import AuditVerdict
from headrace.audit.window import WINDOW_MS

AHEAD_MS: Final = 1_200_000
"""A window that starts later than this has messages with times in the future. Clocks that differ by less are usual."""
TOPICS_MAX: Final = 100
"""Faults of each kind that are returned: those with the most messages."""

_V = WINDOW_VERDICT.c
_R = AUDIT_ROW.c


def read_producer_faults(connection: Connection, now_ms: int) -> list[ProducerFault]:
    """See `AuditStore.producer_faults`."""
    stored = sa.func.coalesce(_V.stored, _V.acknowledged, 0)
    ahead = _V.window_start_ms > now_ms + AHEAD_MS
    is_lost = (_V.crashed == 1) & (_V.sent > stored) & (_V.verdict != AuditVerdict.PENDING.value)
    crashed = (_V.window_start_ms > now_ms - DAY_MS) & is_lost
    return [
        *_faults(connection, now_ms, ahead, stored, is_crash=False),
        *_faults(connection, now_ms, crashed, _V.sent - stored, is_crash=True),
    ]


def _faults(
    connection: Connection, now_ms: int, condition: sa.ColumnElement[bool], messages: Any, *, is_crash: bool
) -> Iterable[ProducerFault]:
    """Yields a fault for each topic with windows that meet a condition.

    Args:
        messages: expression for the affected messages of a window.
    """
    first_ms, last_ms = sa.func.min(_V.window_start_ms), sa.func.max(_V.window_start_ms)
    query = (
        sa.select(_V.topic, first_ms, last_ms, sa.func.sum(messages))
        .where(_V.last_counted_ms > now_ms - DAY_MS, condition)  # the index of last_counted_ms
        .group_by(_V.topic)
        .order_by(sa.func.sum(messages).desc(), _V.topic)
        .limit(TOPICS_MAX)
    )
    for topic, start_ms, start_of_last_ms, count in connection.execute(query).all():
        producers = (
            sa.select(_R.application, _R.host)
            .where(_R.topic == topic, _R.window_start_ms >= start_ms, _R.window_start_ms <= start_of_last_ms)
            .where(_R.tier == Tier.PRODUCER.value, _R.crashed >= int(is_crash))
            .distinct()
            .order_by(_R.application, _R.host)
        )
        names = tuple((application, host) for application, host in connection.execute(producers))
        yield ProducerFault(topic, is_crash, start_ms, start_of_last_ms + WINDOW_MS, int(count), names)
