"""Times that cannot be meant, noted on the way so that the report can say which field is wrong. No I/O.

The usual cause is a unit: nanoseconds in a plain long, which counts as milliseconds, lie 40,000 millennia ahead, and
seconds in January 1970. A number says by its size which unit it is in, since the times of events are close to ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS
from headrace.loader.work_unit import OddTimes, TimeOddity

PLAUSIBLE_S = range(946_684_800, 4_102_444_800)
"""Seconds since 1970 that a time of an event is likely to have: the years 2000 to 2099. Read as another unit, such a
number is a time outside of them."""

UNITS_PER_SECOND = {"seconds": 1, "millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
"""The units that times are written in; of those that Avro has, named as in `avro_schema.message_time.TimeUnit`."""

NO_TIMESTAMP = -1
"""The timestamp of a record that has none."""


def likely_unit(value: int) -> str:
    """The unit in which a number is a time of our days, "" when there is none."""
    return next((unit for unit, number in UNITS_PER_SECOND.items() if value // number in PLAUSIBLE_S), "")


class OddTimeNotes:
    """What is odd about the times of one range. Called for messages whose window is not open yet, which are few, and
    for those that have none."""

    def __init__(self) -> None:
        self._notes: dict[tuple[TimeOddity, str, str], list[int]] = {}
        self._suspect_windows: dict[int, tuple[tuple[TimeOddity, str, str], int]] = {}

    def note(self, start_ms: int, source: str, unit: str, value: int, time_ms: int) -> None:
        """Notes a message by the window that it is counted in.

        Args:
            source: the field that gave the time, or the record's timestamp.
            unit: the unit that it is taken for.
            value: the number there.
        """
        if start_ms == OUT_OF_RANGE_MS:
            self._add((TimeOddity.OUT_OF_RANGE, source, unit), 1, value)
        elif start_ms == SCATTERED_MS:
            self._add((TimeOddity.SCATTERED, source, ""), 1, time_ms)
        elif likely_unit(value) not in ("", unit):
            self._suspect_windows[start_ms] = (TimeOddity.WRONG_UNIT, source, unit), value

    def found(self, windows: Mapping[int, Sequence[int]]) -> tuple[OddTimes, ...]:
        """The notes, after all messages. Those of a suspect window count by what its first message says.

        Args:
            windows: by start, numbers of which the first is how many messages were counted there.
        """
        for start_ms, (key, value) in self._suspect_windows.items():
            self._add(key, windows[start_ms][0], value)
        self._suspect_windows.clear()
        return tuple(OddTimes(*key, messages, value) for key, (messages, value) in sorted(self._notes.items()))

    def _add(self, key: tuple[TimeOddity, str, str], messages: int, value: int) -> None:
        self._notes.setdefault(key, [0, value])[0] += messages
