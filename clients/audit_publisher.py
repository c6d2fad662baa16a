"""Brings audit rows to the audit topic, in a thread of its own: an audit that cannot be written stops no application.

Only that thread asks the registry, which may be away and answer after minutes or not at all. Rows of a producer are
meanwhile in its spool, whose place is said here too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from headrace.audit.emit import RowEncoder
from headrace.audit.row import AuditRow
from headrace.audit.schema import AUDIT_SCHEMA
from headrace.audit.spool import SPOOL_DIRECTORY
from headrace.registry.client import RegistryClient
from headrace.settings import Settings, state_directory

logger = logging.getLogger(__name__)

WAITING_ROWS_MAX: Final = 100_000
"""Rows kept while registry or broker are away; beyond it the oldest are dropped and the loss is logged."""

RETRY_S: Final = 5.0
POLL_S: Final = 0.05
WAIT_S_MAX: Final = 30.0
"""How long an application is kept waiting for its audit, once: until rows get through again it is not kept at all."""
HELD_UP_S: Final = 0.5
"""How long the end of a thread is waited for that waits for a registry itself."""


def spool_directories(settings: Settings) -> tuple[Path, ...]:
    """Where producers of these settings keep their counts, the one in use first.

    It is in the data directory, but nothing is made in the working directory of an application: where nobody has set
    `data_dir` and no installation is there, the user's directory for such things is taken.
    """
    in_data = settings.data_dir / SPOOL_DIRECTORY
    state = state_directory()
    if state is None:
        return (in_data,)
    in_home = state / "headrace" / SPOOL_DIRECTORY
    is_installed = settings.data_dir != Settings().data_dir or settings.data_dir.is_dir()
    return (in_data, in_home) if is_installed else (in_home, in_data)


class AuditPublisher:
    """Publishes rows through a Kafka producer of confluent-kafka.

    Args:
        poll: takes what the brokers have answered to that producer; its argument is in seconds.
        subject: their schema is registered under it.
        when_safe: is told the id of each row that a broker has.
        rows: more rows to publish, asked for every five seconds.
    """

    def __init__(
        self,
        kafka_producer: Any,
        poll: Callable[[float], object],
        registry: RegistryClient,
        topic: str,
        subject: str,
        when_safe: Callable[[str], None] = lambda row_id: None,
        rows: Callable[[], Iterable[AuditRow]] = tuple,
    ) -> None:
        self._kafka_producer = kafka_producer
        self._poll = poll
        self._registry = registry
        self._topic = topic
        self._subject = subject
        self._when_safe = when_safe
        self._rows = rows
        self._encoder: RowEncoder | None = None
        self._waiting: deque[AuditRow] = deque()
        self._sending: dict[str, AuditRow] = {}
        self._failed: deque[AuditRow] = deque()
        self._is_held_up = False
        self._attempts = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="headrace-audit", daemon=True)
        self._thread.start()

    @property
    def unpublished(self) -> int:
        """Rows that no broker has acknowledged yet."""
        return len(self._waiting) + len(self._sending) + len(self._failed)

    def offer(self, rows: Iterable[AuditRow]) -> None:
        """Rows to publish; returns at once."""
        with self._lock:
            self._waiting.extend(rows)
            dropped = len(self._waiting) - WAITING_ROWS_MAX
            for _ in range(dropped):
                self._waiting.popleft()
        if dropped > 0:
            logger.warning("audit rows dropped topic=%s rows=%d", self._topic, dropped)
        self._wake.set()

    def wait(self, timeout_s: float) -> bool:
        """Waits until all rows are published, and says whether they are. Ends early where they cannot be now."""
        if threading.current_thread() is self._thread:
            return not self.unpublished
        deadline = time.monotonic() + (0.0 if self._is_held_up else min(timeout_s, WAIT_S_MAX))
        attempts = self._attempts
        while self.unpublished:
            self._poll(POLL_S)
            if time.monotonic() >= deadline:
                self._is_held_up = True
                return False
            if self._is_held_up and self._attempts > attempts:
                return False
        return True

    def end(self, timeout_s: float) -> None:
        """Ends the thread; what is not published stays where it came from."""
        self._ended = True
        self._wake.set()
        if threading.current_thread() is not self._thread:  # which it is where `on_delivery` closes the producer
            self._thread.join(min(timeout_s, HELD_UP_S) if self._is_held_up else timeout_s)
        self._kafka_producer = None

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(RETRY_S)
            self._wake.clear()
            if self._ended:
                return
            try:
                rows = self._rows()  # which may call back applications, who may offer, or end this
                if self._ended:
                    return
                with self._lock:
                    while self._failed:
                        self._waiting.append(self._failed.popleft())
                    self._waiting.extend(rows)
                self._send_all()
            except Exception as error:  # of whatever kind: the application's own messages are not to suffer from it
                self._is_held_up = True
                logger.warning("audit rows not sent topic=%s error=%s", self._topic, error)
            self._attempts += 1

    def _send_all(self) -> None:
        if not self._waiting:
            return
        if self._encoder is None:
            self._encoder = RowEncoder(self._registry.register(self._subject, AUDIT_SCHEMA).schema_id)
        while self._waiting and not self._ended:
            row = self._waiting[0]
            self._sending[row.id] = row
            try:
                self._kafka_producer.produce(
                    self._topic, self._encoder.encode(row), row.id.encode(), on_delivery=self._decided
                )
            except BaseException:
                del self._sending[row.id]
                raise
            with self._lock:
                if self._waiting and self._waiting[0] is row:
                    self._waiting.popleft()

    def _decided(self, error: Any, message: Any) -> None:
        row = self._sending.pop(message.key().decode(), None)
        if row is None:
            return
        if error is None:
            self._is_held_up = False
            self._when_safe(row.id)
        else:
            self._is_held_up = True
            self._failed.append(row)
            logger.warning("audit row not acknowledged topic=%s error=%s", self._topic, error.str())
