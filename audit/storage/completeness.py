"""Counts the times to completeness, for monitoring: by tier, how many windows had 99, 99.9 and 100 % of their messages
within some bounds. Each window is counted once, when it is complete after its end. The counts never decrease, unlike
the distribution of stored windows, which retention deletes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.storage.rows import insert_new
from headrace.audit.storage.tables import COMPLETENESS
from headrace.audit.stored import COMPLETENESS_BOUNDS_MS, CompletenessTotals

_C = COMPLETENESS.c

COUNTED_FIRST: Final = "99.9"
"""The share whose rows have only the name of the tier."""


TierShare = tuple[str, str]
"""A tier, `log` or `loaded`, and a share of `SHARE_NAMES`."""


def count_reached(connection: Connection, reached: Mapping[TierShare, Iterable[int]]) -> None:
    """Counts times to completeness.

    Args:
        reached: by tier and share of `SHARE_NAMES`, the times from the ends of windows until the share of their
            messages had arrived, in milliseconds.
    """
    added: dict[tuple[str, int], tuple[int, int]] = {}
    for (tier, share), times in reached.items():
        ordered = sorted(times)
        start = 0
        for place, bound_ms in enumerate((*COMPLETENESS_BOUNDS_MS, None)):
            end = len(ordered) if bound_ms is None else bisect_right(ordered, bound_ms)
            if end > start:
                added[_stored_name(tier, share), place] = (end - start, sum(ordered[start:end]))
            start = end
    keys = sorted(added)
    insert_new(
        connection, COMPLETENESS, [{"tier": tier, "place": place, "windows": 0, "sum_ms": 0} for tier, place in keys]
    )
    for tier, place in keys:
        windows, sum_ms = added[tier, place]
        connection.execute(
            sa.update(COMPLETENESS)
            .where(_C.tier == tier, _C.place == place)
            .values(windows=_C.windows + windows, sum_ms=_C.sum_ms + sum_ms)
        )


def read_totals(connection: Connection) -> dict[TierShare, CompletenessTotals]:
    """Returns the counts by tier and share."""
    windows: dict[TierShare, list[int]] = {}
    sums: Counter[TierShare] = Counter()
    for name, place, number, sum_ms in connection.execute(sa.select(COMPLETENESS)):
        tier, _, share = name.partition(" ")
        key = (tier, share or COUNTED_FIRST)
        windows.setdefault(key, [0] * (len(COMPLETENESS_BOUNDS_MS) + 1))[place] = number
        sums[key] += sum_ms
    return {key: CompletenessTotals(tuple(windows[key]), sums[key]) for key in sorted(windows)}


def _stored_name(tier: str, share: str) -> str:
    return tier if share == COUNTED_FIRST else f"{tier} {share}"
