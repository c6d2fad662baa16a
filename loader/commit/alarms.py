"""Alarms: results of a load that an operator must know of, even if no later load reports them again. Pure.

A load reports an alarm once. The commit contains it too, and the loader's state adds up the alarms by topic and kind,
so that `headrace status` reports them until an operator accepts them (`headrace accept`) or, for quarantined messages,
until the quarantine is empty. The totals never decrease; an acceptance refers to a total. Their size is limited by the
number of topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

DAY_MS: Final = 86_400_000
DAYS_MAX: Final = 8
"""Days with alarms that the state stores per topic and kind: enough to compare with last week."""
NEWEST_MAX: Final = 4
"""Newest commits with alarms that the state stores per topic and kind: on the day of an acceptance, more of them seldom
follow it."""
TEXT_CHARS_MAX: Final = 500


class AlarmKind(StrEnum):
    """The kinds of alarms."""

    QUARANTINED = "quarantined"  # messages in the quarantine
    LOST = "lost"  # offsets that were removed before they were read; on_data_loss = skip
    REPLACED = "replaced"  # loaded offsets that have other messages now, or none; on_data_loss = skip
    RECREATED = "recreated"  # a new topic with the same name was loaded; on_data_loss = skip
    CORRUPT = "corrupt"  # offsets of corrupt batches that were skipped; corrupt_batches = skip or quarantine
    INCOMPATIBLE = "incompatible"  # columns of a version whose type the existing column cannot hold
    TIMES = "times"  # rows with implausible event times, more than quarantine_ratio_max


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm of one topic in a commit. `kind` is an `AlarmKind`, or a kind of a later release. `count` is a number of
    messages, offsets, rows, columns or re-creations, and `text` a sentence about it."""

    kind: str
    count: int
    text: str


class AlarmDay(NamedTuple):
    """The alarms up to the end of a day (UTC), or up to a commit. `first_ms` is the time of the day's first commit with
    such an alarm, in ms since 1970. `total` is the sum of all counts up to the end of the day."""

    first_ms: int
    total: int


@dataclass(frozen=True, slots=True)
class AlarmTotal:
    """All alarms of one topic and kind. `days` are the newest days with alarms, at most `DAYS_MAX`, oldest first.
    `newest` are the newest commits with alarms, at most `NEWEST_MAX`, oldest first: time in ms since 1970 and total.
    `text` is the newest alarm's sentence."""

    total: int
    days: tuple[AlarmDay, ...]
    text: str = ""
    newest: tuple[AlarmDay, ...] = ()

    def since_ms(self, total: int) -> int:
        """Returns the time of the first alarm after the first `total` ones, in ms since 1970. It is exact for the
        newest alarms, otherwise exact to a day, and later than the true time if the day is no longer stored."""
        later = [one for one in self.newest if one.total > total]
        if 0 < len(later) < len(self.newest):
            return later[0].first_ms
        return next((day.first_ms for day in self.days if day.total > total), self.days[-1].first_ms)

    def total_before(self, at_ms: int) -> int:
        """Returns the sum of the counts before a time, which is the start of a day. If no stored day is that old, the
        result is 0 or, once days were dropped, too high."""
        earlier = [day.total for day in self.days if day.first_ms < at_ms]
        return earlier[-1] if earlier else 0


def with_alarm(known: AlarmTotal | None, alarm: Alarm, at_ms: int) -> AlarmTotal:
    """Adds an alarm of the same topic and kind to the total.

    Args:
        known: the total before, None if there was no such alarm.
        at_ms: the time of its commit, in ms since 1970.
    """
    total = (known.total if known else 0) + alarm.count
    days = known.days if known else ()
    if days and at_ms // DAY_MS <= days[-1].first_ms // DAY_MS:
        days = (*days[:-1], days[-1]._replace(total=total))
    else:
        days = (*days, AlarmDay(at_ms, total))[-DAYS_MAX:]
    newest = (*(known.newest if known else ()), AlarmDay(at_ms, total))[-NEWEST_MAX:]
    return AlarmTotal(total, days, alarm.text[:TEXT_CHARS_MAX], newest)
