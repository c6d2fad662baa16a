"""Publishes audit rows to the audit topic in a separate thread, so that a failing audit does not stop the application.

For the audit, only that thread contacts the registry, which may respond after minutes or never. Meanwhile the rows of a
producer are in its spool, a file with the counts that are not published yet; the first directory of `spool_directories`
contains it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from headrace.audit.row import AuditRow
from headrace.audit.row_encoder import RowEncoder
from headrace.audit.schema import AUDIT_SCHEMA
from headrace.audit.spool import SPOOL_DIRECTORY
from headrace.registry.client import RegistryClient
from headrace.settings import Settings, user_state_directory

logger = logging.getLogger(__name__)

WAITING_ROWS_MAX: Final = 100_000
"""Maximum number of rows that wait to be sent, for example while the registry is not reachable.
`AuditPublisher.add_rows` drops the oldest ones above it, with a warning."""

RETRY_S: Final = 5.0
POLL_S: Final = 0.05
WAIT_S_MAX: Final = 30.0
"""Maximum time that an application waits for its audit rows to be acknowledged. After one timeout it no longer waits,
until rows are acknowledged again."""
BLOCKED_JOIN_S: Final = 0.5
"""Maximum wait for the end of the thread if publication is blocked, for example because the registry hangs."""


def spool_directories(settings: Settings) -> tuple[Path, ...]:
    """Returns the directories that may contain spools of producers with these settings, the one in use first.

    The spool is in the data directory if `data_dir` differs from its default or exists, or if there is no state
    directory of the user. Otherwise it is in the user's state directory, so that nothing is created in the working
    directory of an application.
    """
    in_data = settings.data_dir / SPOOL_DIRECTORY
    state = user_state_directory()
    if state is None:
        return (in_data,)
    in_home = state / "headrace" / SPOOL_DIRECTORY
    is_installed = settings.data_dir != Settings().data_dir or settings.data_dir.is_dir()
    return (in_data, in_home) if is_installed else (in_home, in_data)


class AuditPublisher:
    """Publishes audit rows with a producer of confluent-kafka.

    Args:
        poll: processes responses of the brokers to that producer; its argument is a timeout in seconds.
        topic: the audit topic.
        subject: subject under which the schema of the rows is registered.
        on_published: called with the id of each acknowledged row.
        rows: returns further rows to publish; called every `RETRY_S`, and after `add_rows`.
    """

    def __init__(
        self,
        kafka_producer: Any,
        poll: Callable[[float], object],
        registry: RegistryClient,
        topic: str,
        subject: str,
        on_published: Callable[[str], None] = lambda row_id: None,
        rows: Callable[[], Iterable[AuditRow]] = tuple,
    ) -> None:
        self._kafka_producer = kafka_producer
        self._poll = poll
        self._registry = registry
        self._topic = topic
        self._subject = subject
        self._on_published = on_published
        self._rows = rows
        self._encoder: RowEncoder | None = None
        self._waiting: deque[AuditRow] = deque()
        self._sending: dict[str, AuditRow] = {}
        self._failed: deque[AuditRow] = deque()
        self._is_blocked = False
        self._attempts = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="headrace-audit", daemon=True)
        self._thread.start()

    @property
    def unpublished(self) -> int:
        """The number of rows that the brokers have not acknowledged."""
        return len(self._waiting) + len(self._sending) + len(self._failed)

    def add_rows(self, rows: Iterable[AuditRow]) -> None:
        """Queues audit rows for publication, without waiting."""
        with self._lock:
            self._waiting.extend(rows)
            dropped = len(self._waiting) - WAITING_ROWS_MAX
            for _ in range(dropped):
                self._waiting.popleft()
        if dropped > 0:
            logger.warning(
                "audit rows dropped, too many wait for the registry or the brokers topic=%s rows=%d",
                self._topic,
                dropped,
            )
        self._wake.set()

    def wait(self, timeout_s: float) -> bool:
        """Waits until all queued audit rows are published, and returns whether they are. Returns False after
        `timeout_s` (at most `WAIT_S_MAX`), or when an attempt to publish fails. Returns False almost at once if the
        last attempt failed or the last wait timed out. In the publishing thread it does not wait."""
        if threading.current_thread() is self._thread:
            return not self.unpublished
        deadline = time.monotonic() + (0.0 if self._is_blocked else min(timeout_s, WAIT_S_MAX))
        attempts = self._attempts
        while self.unpublished:
            self._poll(POLL_S)
            if time.monotonic() >= deadline:
                self._is_blocked = True
                return False
            if self._is_blocked and self._attempts > attempts:
                return False
        return True

    def stop(self, timeout_s: float) -> None:
        """Ends the thread that publishes audit rows, and waits up to `timeout_s` for its end, or at most
        `BLOCKED_JOIN_S` if publication is blocked. Unpublished rows of a producer stay in its spool file; unpublished
        rows of a consumer are lost."""
        self._is_stopped = True
        self._wake.set()
        if threading.current_thread() is not self._thread:  # `on_delivery` may close the producer
            self._thread.join(min(timeout_s, BLOCKED_JOIN_S) if self._is_blocked else timeout_s)
        self._kafka_producer = None

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.wait(RETRY_S)
            self._wake.clear()
            if self._is_stopped:
                return
            try:
                rows = self._rows()  # runs callbacks, which may add rows or stop this
                if self._is_stopped:
                    return
                with self._lock:
                    while self._failed:
                        self._waiting.append(self._failed.popleft())
                    self._waiting.extend(rows)
                self._send_all()
            except Exception as error:  # no error of the audit may affect the application
                self._is_blocked = True
                logger.warning("audit rows not sent, retrying topic=%s error=%s", self._topic, error)
            self._attempts += 1

    def _send_all(self) -> None:
        if not self._waiting:
            return
        if self._encoder is None:
            self._encoder = RowEncoder(self._registry.register(self._subject, AUDIT_SCHEMA).schema_id)
        while self._waiting and not self._is_stopped:
            row = self._waiting[0]
            self._sending[row.id] = row
            try:
                self._kafka_producer.produce(
                    self._topic, self._encoder.encode(row), row.id.encode(), on_delivery=self._on_delivery
                )
            except BaseException:
                del self._sending[row.id]
                raise
            with self._lock:
                if self._waiting and self._waiting[0] is row:
                    self._waiting.popleft()

    def _on_delivery(self, error: Any, message: Any) -> None:
        row = self._sending.pop(message.key().decode(), None)
        if row is None:
            return
        if error is None:
            self._is_blocked = False
            self._on_published(row.id)
        else:
            self._is_blocked = True
            self._failed.append(row)
            logger.warning("audit row not acknowledged topic=%s error=%s", self._topic, error.str())
