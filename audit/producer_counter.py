"""Counting at the producer, for any Kafka client: what was handed to it, and what the brokers acknowledged.

The difference of the two is what a crash lost at most. Open rows live in the process's spool, so that they are
found when it dies. With confluent-kafka:

    counter = ProducerCounter("shop", spool_dir=Path("/var/lib/shop/audit"))
    counter.sent(topic, time_ms, key, value)
    producer.produce(topic, value, key, on_delivery=counter.on_delivery(time_ms))
    …
    for row in counter.take(now_ms, Taking.SETTLED):  # now and then, and EVERY at the end
        publish(row, then=lambda: counter.published(row.id))
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
from pathlib import Path
from typing import Any, Final

from headrace.audit.count import FINGERPRINT_MASK, message_hash
from headrace.audit.row import AuditRow, Outcome, Tier, counted_row_id
from headrace.audit.spool import SLOTS, Spool, sent_word
from headrace.audit.window import WINDOW_MS, counted_window

logger = logging.getLogger(__name__)


class Taking(Enum):
    """Which rows are to be published."""

    SETTLED = "settled"  # of ended windows, and standing still since the last look: now and then
    ENDED = "ended"  # of ended windows: everything was acknowledged just now
    EVERY = "every"  # also of windows still open: the end


OPEN_ROWS_MAX: Final = SLOTS // 2
"""From here on `take` gives rows of any window, so that slots do not run out while others are being published."""

WINDOWS_KEPT_MS: Final = 3_600_000
"""How long a window that was counted apart takes part in `WINDOWS_MAX` after its rows were published: an hour of random
times then gives as many rows as a year of events, and not one row for every message."""


class CountedRow:
    """A row that counts: one topic and window, until it is taken to be published."""

    __slots__ = (
        "bytes",
        "count",
        "end_ms",
        "fingerprint",
        "is_taken",
        "seen",
        "sent",
        "sent_word",
        "sequence",
        "slot",
        "start_ms",
        "topic",
    )

    def __init__(self, topic: str, start_ms: int, sequence: int, slot: int) -> None:
        self.topic = topic
        self.start_ms = start_ms
        self.end_ms = start_ms + WINDOW_MS if start_ms >= 0 else start_ms  # no time is in those that name none
        self.sequence = sequence
        self.slot = slot
        self.sent_word = sent_word(slot)
        self.sent = self.count = self.bytes = self.fingerprint = 0
        self.seen = -1  # sent + count at the last `take`: a row that stands still is ready to go
        self.is_taken = False


Ticket = tuple[CountedRow, int, int]
"""What `sent` returns and `acknowledge` takes: where one message is counted, its bytes and hash."""


class ProducerCounter:
    """Counts of one process. All methods may be called from any thread.

    A process that is forked off begins to count anew, as an instance of its own: what was counted before stays with
    its parent, or both would publish it.

    Args:
        application: the name of the application, as the audit shows it.
        spool_dir: the directory of spools, or None to keep none (a crash then goes unseen).
    """

    def __init__(self, application: str, *, spool_dir: Path | None, host: str = "", instance: str = "") -> None:
        self.application = application
        self.host = host or socket.gethostname()
        self.instance = instance or secrets.token_hex(8)
        self._spool: Spool | None = None
        self._begin(spool_dir)
        self._spool_dir = spool_dir
        _COUNTERS.add(self)

    def _begin(self, spool_dir: Path | None) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int], CountedRow] = {}
        self._latest: dict[str, CountedRow] = {}
        """Of each topic, the open row that was counted in last: most messages follow one of their window."""
        self._windows: dict[str, set[int]] = {}
        self._windows_since_ms: int | None = None
        self._publishing: dict[str, int] = {}
        self._sequence = 0
        self._unopened_spool_dir = spool_dir
        self._spool_is_full = False
        self._unlogged: list[tuple[str, object, object]] = []
        """What is to be logged once the lock is given back: a handler of the log may send, and be counted."""

    def _begin_anew(self) -> None:
        """In a process that was forked off the one that counted."""
        self.instance = secrets.token_hex(8)
        for row in self._rows.values():
            row.is_taken = True
        if self._spool is not None:
            self._spool.leave()
            self._spool = None
        self._begin(self._spool_dir)

    @property
    def open_rows(self) -> int:
        return len(self._rows)

    def sent(self, topic: str, time_ms: int, key: bytes | None, value: bytes) -> Ticket:
        """Counts a message that is about to be handed to the Kafka client; call it before."""
        size, fingerprint = len(value) if key is None else len(key) + len(value), message_hash(key, value)
        with self._lock:
            row = self._latest.get(topic)
            if row is None or not row.start_ms <= time_ms < row.end_ms:
                row = self._latest[topic] = self._row_of(topic, self._window(topic, time_ms))
            row.sent += 1
            spool = self._spool
            if spool is not None and row.slot >= 0:
                spool.words[row.sent_word] = row.sent
        if self._unlogged:
            self._log()
        return row, size, fingerprint

    def withdraw(self, ticket: Ticket) -> None:
        """Takes back a message that the Kafka client did not accept. One whose row was taken meanwhile stays
        counted as sent, which only makes the audit less sharp there."""
        row = ticket[0]
        with self._lock:
            if not row.is_taken:
                row.sent -= 1
                if row.slot >= 0 and self._spool is not None:
                    self._spool.words[row.sent_word] = row.sent

    def acknowledge(self, tickets: Iterable[Ticket]) -> None:
        """Counts messages that the brokers acknowledged."""
        with self._lock:
            touched: set[CountedRow] = set()
            for row, size, fingerprint in tickets:
                if row.is_taken:
                    row = self._row_of(row.topic, row.start_ms)
                touched.add(row)
                row.count += 1
                row.bytes += size
                row.fingerprint += fingerprint
            for row in touched:
                row.fingerprint &= FINGERPRINT_MASK
                if row.slot >= 0 and self._spool is not None:
                    self._spool.set_counts(row.slot, row.count, row.bytes, row.fingerprint)
        if self._unlogged:
            self._log()

    def acknowledged(self, topic: str, time_ms: int, key: bytes | None, value: bytes) -> None:
        """Counts one message that the brokers acknowledged, for callers that keep no ticket."""
        size = len(value) if key is None else len(key) + len(value)
        with self._lock:
            row = self._row_of(topic, self._window(topic, time_ms))
        self.acknowledge([(row, size, message_hash(key, value))])

    def on_delivery(self, time_ms: int) -> Callable[[Any, Any], None]:
        """The delivery callback `(error, message)` of confluent-kafka for a message of this time."""

        def count(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged(message.topic(), time_ms, message.key(), message.value())

        return count

    def take(self, now_ms: int, taking: Taking) -> list[AuditRow]:
        """Rows to publish now. They are out of the counting: what comes later of the same window is another row."""
        with self._lock:
            if len(self._rows) >= OPEN_ROWS_MAX:
                taking = Taking.EVERY
            ready = [row for row in self._rows.values() if _is_ready(row, now_ms, taking)]
            rows = []
            for row in ready:
                del self._rows[row.topic, row.start_ms]
                row.is_taken = True
                if self._latest.get(row.topic) is row:
                    del self._latest[row.topic]
                if row.slot >= 0 and self._spool is not None:
                    self._spool.set_final(row.slot)
                audit_row = self._audit_row(row, now_ms)
                self._publishing[audit_row.id] = row.slot
                rows.append(audit_row)
            self._forget_windows(now_ms)
            return rows

    def published(self, row_id: str) -> None:
        """The row is safe elsewhere, and need not be spooled any more."""
        with self._lock:
            slot = self._publishing.pop(row_id, -1)
            if slot >= 0 and self._spool is not None:
                self._spool.free_slot(slot)

    def close(self) -> None:
        """Gives up the spool. Rows that were not published stay in it for the next process to find."""
        with self._lock:
            if self._spool is not None:
                for row in self._rows.values():
                    if row.slot >= 0:
                        self._spool.set_final(row.slot)
                self._spool.close()
                self._spool = None
            self._spool_dir = self._unopened_spool_dir = None

    def _open_spool(self) -> None:
        """Opens the spool with the first row, so that a process that sends nothing leaves nothing."""
        directory, self._unopened_spool_dir = self._unopened_spool_dir, None
        if directory is None:
            return
        try:
            self._spool = Spool(directory, self.instance, self.application, self.host)
        except OSError as error:
            # Counting goes on: an application is not stopped because its audit could not see it die.
            self._unlogged.append(("audit spool unavailable directory=%s error=%s", directory, error))

    def _window(self, topic: str, time_ms: int) -> int:
        """Start of the window that a message is counted in."""
        windows = self._windows.setdefault(topic, set())
        start_ms = counted_window(time_ms, windows)
        if start_ms >= 0:
            windows.add(start_ms)
        return start_ms

    def _forget_windows(self, now_ms: int) -> None:
        """Now and then, forgets windows whose rows were taken."""
        since_ms = self._windows_since_ms
        if since_ms is not None and 0 <= now_ms - since_ms < WINDOWS_KEPT_MS:
            return
        self._windows_since_ms = now_ms
        self._windows = {}
        for topic, start_ms in self._rows:
            if start_ms >= 0:
                self._windows.setdefault(topic, set()).add(start_ms)

    def _row_of(self, topic: str, start_ms: int) -> CountedRow:
        """The open row of a window; a new one where there is none."""
        row = self._rows.get((topic, start_ms))
        if row is None:
            self._sequence += 1
            self._open_spool()
            slot = self._open_slot(topic, start_ms)
            row = self._rows[topic, start_ms] = CountedRow(topic, start_ms, self._sequence, slot)
        return row

    def _open_slot(self, topic: str, start_ms: int) -> int:
        """A slot of the spool, or -1 where there is none; that is said once."""
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
                ("audit spool full, further open windows would be lost by a crash spool=%s error=%s", path, problem)
            )
        return slot

    def _log(self) -> None:
        with self._lock:
            unlogged, self._unlogged = self._unlogged, []
        for text, *values in unlogged:
            logger.warning(text, *values)

    def _audit_row(self, row: CountedRow, now_ms: int) -> AuditRow:
        return AuditRow(
            id=counted_row_id(self.instance, row.sequence),
            tier=Tier.PRODUCER,
            outcome=Outcome.ACKNOWLEDGED,
            topic=row.topic,
            window_start_ms=row.start_ms,
            count=row.count,
            bytes=row.bytes,
            fingerprint=row.fingerprint,
            application=self.application,
            host=self.host,
            instance=self.instance,
            emitted_at_ms=now_ms,
            sent=row.sent,
        )


def _is_ready(row: CountedRow, now_ms: int, taking: Taking) -> bool:
    if taking is Taking.EVERY:
        return True
    stands_still = row.sent + row.count == row.seen
    row.seen = row.sent + row.count
    return (stands_still or taking is Taking.ENDED) and row.start_ms + WINDOW_MS <= now_ms


_COUNTERS: Final[weakref.WeakSet[ProducerCounter]] = weakref.WeakSet()


def _begin_anew_after_fork() -> None:
    for counter in list(_COUNTERS):
        counter._begin_anew()


os.register_at_fork(after_in_child=_begin_anew_after_fork)


def wall_clock_ms() -> int:
    """The present time, for callers at the edge."""
    return time.time_ns() // 1_000_000
