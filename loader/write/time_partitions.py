"""Computes the time partition of a row from the row's time."""

from __future__ import annotations

import time

from headrace.audit.window import TIME_MS_MAX

PERIOD_MS = {"hour": 3_600_000, "day": 86_400_000}
"""Length of a time partition by the setting `loader.partition_by`."""


class TimePartitions:
    """Returns the time partition for a time in milliseconds, in UTC. Times before 1970 or after 9999 go to 1970-01-01.

    Args:
        partition_by: `hour` or `day`.
    """

    def __init__(self, partition_by: str) -> None:
        self._period_ms = PERIOD_MS[partition_by]
        self._is_hourly = partition_by == "hour"
        self._names: dict[int, str] = {}

    @property
    def period_ms(self) -> int:
        """The length of a time partition; periods are counted from 1970."""
        return self._period_ms

    def __call__(self, time_ms: int) -> str:
        period = time_ms // self._period_ms
        time_partition = self._names.get(period)
        if time_partition is None:
            time_partition = self._names[period] = self._name(period)
        return time_partition

    def _name(self, period: int) -> str:
        start_ms = period * self._period_ms
        if not 0 <= start_ms <= TIME_MS_MAX:
            start_ms = 0
        start = time.gmtime(start_ms // 1000)
        day = f"dt={start.tm_year:04d}-{start.tm_mon:02d}-{start.tm_mday:02d}"
        return f"{day}/hr={start.tm_hour:02d}" if self._is_hourly else day
