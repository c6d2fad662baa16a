"""Records implausible times, so that the report can name the wrong field. No I/O.

The usual cause is a unit: nanoseconds in a plain long count as milliseconds and lie 40,000 millennia ahead, seconds lie
in January 1970. The size of a number shows its unit, because event times are close to the present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS
from headrace.avro_schema.message_time import TimeUnit
from headrace.loader.work_unit import ImplausibleTimeCount, ImplausibleTimeKind

PLAUSIBLE_S = range(946_684_800, 4_102_444_800)
"""Plausible times of an event in seconds since 1970: the years 2000 to 2099. The same times in another unit are numbers
outside this range, so the unit of a number can be recognized."""

UNITS_PER_SECOND = {"seconds": 1, "millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
"""Units of times, as a number per second. Units of Avro's logical types have the names of
`avro_schema.message_time.TimeUnit`."""

NO_TIMESTAMP = -1
"""The timestamp of a record that has none."""


def likely_unit(value: int) -> str:
    """Returns the name of the unit in which a number is a plausible time, such as `millis`; "" if there is none."""
    return next((unit for unit, number in UNITS_PER_SECOND.items() if value // number in PLAUSIBLE_S), "")


class ImplausibleTimes:
    """Collects the implausible times of one range. `note` is called for the first message of each window, and for each
    message in a special window, but not for messages without any time."""

    def __init__(self) -> None:
        self._notes: dict[tuple[ImplausibleTimeKind, str, str], list[int]] = {}
        self._unread: dict[str, int] = {}
        self._old_days = 0
        self._wrong_unit_windows: dict[int, tuple[tuple[ImplausibleTimeKind, str, str], int]] = {}

    def note_unread(self, source: str, messages: int) -> None:
        """Records messages whose time field `source` has a text that is not a time."""
        self._unread[source] = self._unread.get(source, 0) + messages

    def note_old_days(self, messages: int) -> None:
        """Records rows with a date or timestamp before 1582-10-15, in any column."""
        self._old_days += messages

    def note(self, start_ms: int, source: str, unit: str, value: int, time_ms: int) -> None:
        """Records the time of a message if it is implausible.

        Args:
            start_ms: start of the window in which the message is counted.
            source: the field with the time, or the record's timestamp.
            unit: the unit that the schema states or implies.
            value: the number in the field.
            time_ms: the message time that was derived from the number.
        """
        if start_ms == OUT_OF_RANGE_MS:
            self._add((ImplausibleTimeKind.OUT_OF_RANGE, source, unit), 1, value)
        elif start_ms == SCATTERED_MS:
            self._add((ImplausibleTimeKind.SCATTERED, source, ""), 1, time_ms)
        elif unit != TimeUnit.TEXT and likely_unit(value) not in ("", unit):
            self._wrong_unit_windows[start_ms] = (ImplausibleTimeKind.WRONG_UNIT, source, unit), value

    def counts(self, windows: Mapping[int, Sequence[int]]) -> tuple[ImplausibleTimeCount, ...]:
        """Returns the implausible times of the range. Call it after the last message of the range.

        A number that is plausible only in another unit is checked in the first message of each window only. All
        messages of such a window are reported, with the time source of that first message.

        Args:
            windows: the counters of each window, by its start in milliseconds. The first counter of a window is its
                number of messages.
        """
        for start_ms, (key, value) in self._wrong_unit_windows.items():
            self._add(key, windows[start_ms][0], value)
        self._wrong_unit_windows.clear()
        unread = (
            ImplausibleTimeCount(ImplausibleTimeKind.NO_TIME, source, "", messages, 0)
            for source, messages in sorted(self._unread.items())
        )
        old_days = ImplausibleTimeCount(ImplausibleTimeKind.OLD_DAY, "", "", self._old_days, 0)
        return (
            *(ImplausibleTimeCount(*key, messages, value) for key, (messages, value) in sorted(self._notes.items())),
            *unread,
            *((old_days,) if self._old_days else ()),
        )

    def _add(self, key: tuple[ImplausibleTimeKind, str, str], messages: int, value: int) -> None:
        self._notes.setdefault(key, [0, value])[0] += messages
