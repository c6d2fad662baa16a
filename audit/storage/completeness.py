"""Counts the times to completeness, for monitoring: by tier, how many windows had 99.9 % of their messages within some
bounds. Each window is counted once, when it is complete after its end. The counts never decrease, unlike the
distribution of stored windows, which retention deletes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.storage.rows import insert_new
from headrace.audit.storage.tables import COMPLETENESS
from headrace.audit.stored import COMPLETENESS_BOUNDS_MS, CompletenessTotals

_C = COMPLETENESS.c


def count_reached(connection: Connection, reached: Iterable[tuple[str, int | None]]) -> None:
    """Counts times to completeness.

    Args:
        reached: tiers, and the times from the ends of windows until 99.9 % of their messages, in milliseconds; None for
            a tier without counts.
    """
    windows: Counter[tuple[str, int]] = Counter()
    sums: Counter[tuple[str, int]] = Counter()
    for tier, time_ms in reached:
        if time_ms is None:
            continue
        key = (tier, bisect_left(COMPLETENESS_BOUNDS_MS, time_ms))
        windows[key] += 1
        sums[key] += time_ms
    keys = sorted(windows)
    insert_new(
        connection, COMPLETENESS, [{"tier": tier, "place": place, "windows": 0, "sum_ms": 0} for tier, place in keys]
    )
    for tier, place in keys:
        connection.execute(
            sa.update(COMPLETENESS)
            .where(_C.tier == tier, _C.place == place)
            .values(windows=_C.windows + windows[tier, place], sum_ms=_C.sum_ms + sums[tier, place])
        )


def read_totals(connection: Connection) -> dict[str, CompletenessTotals]:
    """Returns the counts by tier."""
    windows: dict[str, list[int]] = {}
    sums: Counter[str] = Counter()
    for tier, place, number, sum_ms in connection.execute(sa.select(COMPLETENESS)):
        windows.setdefault(tier, [0] * (len(COMPLETENESS_BOUNDS_MS) + 1))[place] = number
        sums[tier] += sum_ms
    return {tier: CompletenessTotals(tuple(windows[tier]), sums[tier]) for tier in sorted(windows)}
