"""Counts the messages of a producer, with any Kafka client: those handed to the client and those acknowledged.

The difference is an upper bound of the messages that a crash loses. The running counts of a process are its open rows,
one per topic and window. They are stored in its spool file (`spool`), where a later process finds them after a crash.
Messages without a value (tombstones) must not be counted. With confluent-kafka:

    counter = ProducerCounter("shop", spool_dir=Path("/var/lib/shop/audit"))
    counter.count_sent(topic, time_ms, key, value)
    producer.produce(topic, value, key, on_delivery=counter.on_delivery(time_ms))
    …
    for row in counter.take_rows(now_ms, RowSelection.UNCHANGED):  # periodically; ALL at the end
        publish(row, then=partial(counter.mark_published, row.id))
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from headrace.audit.count import FINGERPRINT_MASK
from headrace.audit.open_row import DIGEST, OpenRow, RowType, Ticket, message_digest
from headrace.audit.row import AuditOutcome, AuditRow, Tier, counted_row_id
from headrace.audit.spool import SLOTS, Spool
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS, counted_window

logger = logging.getLogger(__name__)


class RowSelection(Enum):
    """Selects the running counts that `ProducerCounter.take_rows` removes and returns as rows for publication."""

    UNCHANGED = "unchanged"  # rows of ended windows that did not change since the last call; for periodic calls
    ENDED = "ended"  # rows of ended windows; for calls after a flush
    ALL = "all"  # all rows; for the last call


OPEN_ROWS_MAX: Final = SLOTS // 2
"""With this many open rows, `take_rows` returns all of them. The spool has twice as many slots, so that slots remain
for rows which are being published and for new rows."""

LATE_AFTER_MS: Final = 1_800_000
"""The default of the setting `audit.grace`."""

WINDOWS_RETENTION_MS: Final = 3_600_000
"""Interval at which windows without an open row stop counting towards `WINDOWS_MAX`.

Random message times therefore open at most `WINDOWS_MAX` windows of a topic per hour, about as many as a year of events
has. Without the limit each message would open one.
"""


class ProducerCounter:
    """Counts the messages that a producer process sends, by topic and window, for the audit. Thread-safe.

    A forked child starts with empty counts and a new instance id. The parent publishes all earlier counts; otherwise
    both would publish them.

    Args:
        application: name of the application in the audit.
        spool_dir: directory of the spools, or None for no spool (a crash is then not detected). If the spool cannot be
            created, a warning is logged and counting continues without it.
        host: name of the machine; "" is the host name.
        instance: unique id of this process; "" is a random one.
        datacenter: name of the data centre, the setting `audit.datacenter`.
        late_after_ms: time after the end of a window after which messages of it count as late, the setting
            `audit.grace`.
        row_type: the class of running counts.
    """

    def __init__(
        self,
        application: str,
        *,
        spool_dir: Path | None,
        host: str = "",
        instance: str = "",
        datacenter: str = "",
        late_after_ms: int = LATE_AFTER_MS,
        row_type: RowType = OpenRow,
    ) -> None:
        self._row_type = row_type
        self.application = application
        self.datacenter = datacenter
        self._late_after_ms = late_after_ms
        self.host = host or socket.gethostname()
        self.instance = instance or secrets.token_hex(8)
        self._spool: Spool | None = None
        self._reset(spool_dir)
        self._spool_dir = spool_dir
        _COUNTERS.add(self)

    def _reset(self, spool_dir: Path | None) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int], OpenRow] = {}
        self._latest: dict[str, OpenRow] = {}
        """The row of each topic that was used last: the next message usually belongs to the same window."""
        self._windows: dict[str, set[int]] = {}
        self._windows_since_ms: int | None = None
        self._publishing: dict[str, int] = {}
        self._sequence = 0
        self._unopened_spool_dir = spool_dir
        self._spool_is_full = False
        self._unlogged: list[tuple[str, object, object]] = []
        """Warnings to log after the lock is released: a log handler may send messages, which are counted."""

    def _restart_after_fork(self) -> None:
        """Discards the counts of the parent process in a forked child."""
        self.instance = secrets.token_hex(8)
        for row in self._rows.values():
            row.abandon_after_fork()
        if self._spool is not None:
            self._spool.detach()
            self._spool = None
        self._reset(self._spool_dir)

    @property
    def open_rows(self) -> int:
        return len(self._rows)

    def count_sent(
        self, topic: str, time_ms: int, key: bytes | None, value: bytes | None, *, has_time: bool = True
    ) -> Ticket | None:
        """Counts a message before it is handed to the Kafka client. Returns its ticket, for `acknowledge` or
        `withdraw`; None for a tombstone, which the audit does not count.

        Args:
            time_ms: the message time, which determines the window.
            key, value: the bytes of the message, for its size and hash.
            has_time: False if the schema of the message has a time field, but the message no time in it.
        """
        if value is None:
            return None
        row = self._latest.get(topic)
        digest = row.count(time_ms, key, value) if row is not None and has_time else None
        if row is None or digest is None:
            row, digest = self.count(topic, time_ms, key, value, has_time=has_time)
        return Ticket(row, digest)

    def count(
        self, topic: str, time_ms: int, key: bytes | None, value: bytes, *, has_time: bool
    ) -> tuple[OpenRow, bytes]:
        """Counts a message like `count_sent`. Returns the running count of its window, and its digest. For later
        messages of the topic that have a time, the caller may call `OpenRow.count` of that running count instead."""
        with self._lock:
            row = self._latest[topic] = self._open_row(topic, self._window(topic, time_ms))
            digest = row.count(None, key, value)
            assert digest is not None  # a row is closed with the lock
            if not has_time:
                row.no_time += 1
        if self._unlogged:
            self._log()
        return row, digest

    def count_sent_together(
        self, topic: str, time_ms: int, count: int, size_bytes: int, fingerprint: int, *, has_time: bool = True
    ) -> Ticket:
        """Counts messages with the same message time like `count_sent`, from the sums of their sizes and of their
        hashes."""
        with self._lock:
            row = self._latest[topic] = self._open_row(topic, self._window(topic, time_ms))
            row.add_sent(count)
            if not has_time:
                row.no_time += count
        if self._unlogged:
            self._log()
        return Ticket(row, DIGEST.pack(fingerprint & FINGERPRINT_MASK, size_bytes), count)

    def withdraw(self, ticket: Ticket | None) -> None:
        """Uncounts a message that the Kafka client did not accept; `ticket` is the result of `count_sent`.

        If `take_rows` has already returned its row, the message stays counted as sent. The audit then treats it as one
        that may or may not be in the log.
        """
        if ticket is not None:
            self.withdraw_from(ticket.row, ticket.count)

    def withdraw_from(self, row: OpenRow, count: int = 1) -> None:
        """Uncounts messages like `withdraw`; `row` is the running count that contains them."""
        with self._lock:
            row.withdraw(count)

    def acknowledge(
        self,
        tickets: Iterable[Ticket | None],
        latencies_s: Iterable[float | None] = repeat(None),
        *,
        now_ms: float | None = None,
    ) -> None:
        """Counts messages that the brokers acknowledged.

        Args:
            tickets: the results of `count_sent`.
            latencies_s: seconds from sending to acknowledgement of each message; None if unknown.
            now_ms: the current time, which decides which messages are late; None for the clock of the machine.
        """
        now_ms = wall_clock_ms() if now_ms is None else now_ms
        for ticket, latency_s in zip(tickets, latencies_s, strict=False):
            if ticket is None:
                continue
            if ticket.count == 1:
                self.acknowledge_in(ticket.row, ticket.digest, latency_s, now_ms)
            else:
                self._acknowledge_together(ticket, latency_s, now_ms)

    def acknowledge_in(self, row: OpenRow, digest: bytes, latency_s: float | None, now_ms: float) -> None:
        """Counts an acknowledged message in `row`, or if that is closed in the open row of its topic and window. See
        `OpenRow.acknowledge` for the arguments."""
        while not row.acknowledge(digest, latency_s, now_ms):
            with self._lock:
                row = self._open_row(row.topic, row.start_ms)
        if self._unlogged:
            self._log()

    def _acknowledge_together(self, ticket: Ticket, latency_s: float | None, now_ms: float) -> None:
        row = ticket.row
        while not row.acknowledge_together(ticket.count, ticket.digest, latency_s, now_ms):
            with self._lock:
                row = self._open_row(row.topic, row.start_ms)
        if self._unlogged:
            self._log()

    def count_failed(self, ticket: Ticket | None) -> None:
        """Counts a message that was not acknowledged as an error; `ticket` is the result of `count_sent`."""
        if ticket is not None:
            self.count_failed_in(ticket.row, ticket.count)

    def count_failed_in(self, row: OpenRow, count: int = 1) -> None:
        """Counts errors like `count_failed`; `row` is the running count that contains the messages."""
        with self._lock:
            if not row.is_open:
                row = self._open_row(row.topic, row.start_ms)
            row.errors += count

    def count_acknowledged(
        self, topic: str, time_ms: int, key: bytes | None, value: bytes | None, latency_s: float | None = None
    ) -> None:
        """Counts one message that the brokers acknowledged, for callers without the ticket of `count_sent`. A tombstone
        is not counted.

        Args:
            time_ms: the message time, which determines the window.
            key, value: the bytes of the message, for its size and hash.
            latency_s: seconds from sending to acknowledgement; None if unknown.
        """
        if value is None:
            return
        with self._lock:
            row = self._open_row(topic, self._window(topic, time_ms))
        self.acknowledge_in(row, message_digest(key, value), latency_s, wall_clock_ms())

    def on_delivery(self, time_ms: int) -> Callable[[Any, Any], None]:
        """Returns a confluent-kafka delivery callback `(error, message)` for a message with this message time."""

        def count(error: Any, message: Any) -> None:
            if error is None:
                self.count_acknowledged(message.topic(), time_ms, message.key(), message.value(), message.latency())
            elif message.value() is not None:
                with self._lock:
                    self._open_row(message.topic(), self._window(message.topic(), time_ms)).errors += 1

        return count

    def take_rows(self, now_ms: int, selection: RowSelection) -> list[AuditRow]:
        """Removes and returns the rows to publish. Later messages of the same windows are counted in new rows.

        Args:
            now_ms: the current time, which decides whether a window has ended.
            selection: which rows are returned. If too many are open, all are returned anyway.
        """
        with self._lock:
            if len(self._rows) >= OPEN_ROWS_MAX:
                selection = RowSelection.ALL
            ready = [row for row in self._rows.values() if _is_ready(row, now_ms, selection)]
            rows = []
            for row in ready:
                row.close()  # before its sums are read, and before a forked child no longer finds it in `_rows`
                del self._rows[row.topic, row.start_ms]
                if self._latest.get(row.topic) is row:
                    del self._latest[row.topic]
                if row.slot >= 0 and self._spool is not None:
                    self._spool.set_final(row.slot)
                audit_row = self._audit_row(row, now_ms)
                self._publishing[audit_row.id] = row.slot
                rows.append(audit_row)
            self._prune_windows(now_ms)
            return rows

    def mark_published(self, row_id: str) -> None:
        """Removes a row from the spool after its publication."""
        with self._lock:
            slot = self._publishing.pop(row_id, -1)
            if slot >= 0 and self._spool is not None:
                self._spool.free_slot(slot)

    def close(self) -> None:
        """Closes the spool, which stores unpublished rows for the next process; without such rows it is deleted."""
        with self._lock:
            self._latest.clear()
            if self._spool is not None:
                for row in self._rows.values():
                    if row.slot >= 0:
                        self._spool.set_final(row.slot)
                    row.leave_spool()
                self._spool.close()
                self._spool = None
            self._spool_dir = self._unopened_spool_dir = None

    def _open_spool(self) -> None:
        """Opens the spool for the first row, so that a process that sends nothing creates no file."""
        directory, self._unopened_spool_dir = self._unopened_spool_dir, None
        if directory is None:
            return
        try:
            self._spool = Spool(directory, self.instance, self.application, self.host, self.datacenter)
        except OSError as error:
            # Counting continues without a spool: an audit problem must not stop the application.
            self._unlogged.append(("audit spool unavailable directory=%s error=%s", directory, error))

    def _window(self, topic: str, time_ms: int) -> int:
        """Returns the start of the window in which a message is counted; `time_ms` is the message time."""
        windows = self._windows.setdefault(topic, set())
        start_ms = counted_window(time_ms, windows)
        if start_ms >= 0:
            windows.add(start_ms)
        return start_ms

    def _prune_windows(self, now_ms: int) -> None:
        """Clears the set of windows that `WINDOWS_MAX` limits, except for windows with a running count. Does nothing if
        the set was cleared less than `WINDOWS_RETENTION_MS` before `now_ms`, the current time."""
        since_ms = self._windows_since_ms
        if since_ms is not None and 0 <= now_ms - since_ms < WINDOWS_RETENTION_MS:
            return
        self._windows_since_ms = now_ms
        self._windows = {}
        for topic, start_ms in self._rows:
            if start_ms >= 0:
                self._windows.setdefault(topic, set()).add(start_ms)

    def _open_row(self, topic: str, start_ms: int) -> OpenRow:
        """Returns the running count (`OpenRow`) of a topic in the window that begins at `start_ms`; starts one if
        necessary."""
        row = self._rows.get((topic, start_ms))
        if row is None:
            self._sequence += 1
            self._open_spool()
            slot = self._open_slot(topic, start_ms)
            late_from_ms = None if start_ms in SPECIAL_WINDOWS else start_ms + WINDOW_MS + self._late_after_ms
            row = self._row_type(topic, start_ms, late_from_ms, self._sequence, slot, self._spool)
            self._rows[topic, start_ms] = row
        return row

    def _open_slot(self, topic: str, start_ms: int) -> int:
        """Takes a slot of the spool file for a topic and the window that begins at `start_ms`. Returns the number of
        the slot, or -1 without a spool or a free slot; the first time that no slot is free is logged."""
        if self._spool is None:
            return -1
        path, problem = self._spool.path, f"all {SLOTS} slots are in use"
        try:
            slot = self._spool.open_slot(self._sequence, topic, start_ms)
        except OSError as error:
            slot, problem = -1, error.strerror or str(error)
        if slot < 0 and not self._spool_is_full:
            self._spool_is_full = True
            self._unlogged.append(
                (
                    "audit spool full, a crash would lose the counts of further open windows spool=%s error=%s",
                    path,
                    problem,
                )
            )
        return slot

    def _log(self) -> None:
        with self._lock:
            unlogged, self._unlogged = self._unlogged, []
        for text, *values in unlogged:
            logger.warning(text, *values)

    def _audit_row(self, row: OpenRow, now_ms: int) -> AuditRow:
        sent, count, size_bytes, fingerprint = row.sums()
        latency = row.latencies.latency()
        return AuditRow(
            id=counted_row_id(self.instance, row.sequence),
            tier=Tier.PRODUCER,
            outcome=AuditOutcome.ACKNOWLEDGED,
            topic=row.topic,
            window_start_ms=row.start_ms,
            count=count,
            bytes=size_bytes,
            fingerprint=fingerprint,
            application=self.application,
            host=self.host,
            instance=self.instance,
            emitted_at_ms=now_ms,
            sent=sent,
            datacenter=self.datacenter,
            late=row.late,
            no_time=row.no_time,
            errors=row.errors,
            latency_mean_ms=latency.mean_ms,
            latency_p95_ms=latency.p95_ms,
            latency_p99_ms=latency.p99_ms,
            latency_max_ms=latency.max_ms,
        )


def _is_ready(row: OpenRow, now_ms: int, selection: RowSelection) -> bool:
    if selection is RowSelection.ALL:
        return True
    sent, count, _, _ = row.sums()
    progress = sent + count + row.errors
    is_unchanged, row.progress = progress == row.progress, progress
    return (is_unchanged or selection is RowSelection.ENDED) and row.start_ms + WINDOW_MS <= now_ms


_COUNTERS: Final[weakref.WeakSet[ProducerCounter]] = weakref.WeakSet()


def _restart_counters_after_fork() -> None:
    for counter in list(_COUNTERS):
        counter._restart_after_fork()


os.register_at_fork(after_in_child=_restart_counters_after_fork)


def wall_clock_ms() -> int:
    """Returns the current time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
