"""Brings audit rows to the audit topic, at its own pace: an audit that cannot be written stops no application."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace.audit.emit import RowEncoder
from headrace.audit.row import AuditRow
from headrace.audit.schema import AUDIT_SCHEMA
from headrace.registry.client import RegistryClient
from headrace.registry.errors import RegistryError

logger = logging.getLogger(__name__)

WAITING_ROWS_MAX: Final = 100_000
"""Rows kept while registry or broker are away; beyond it the oldest are dropped and the loss is logged."""


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    row: AuditRow
    future: Any


class AuditPublisher:
    """Publishes rows through a Kafka producer; `when_safe` is told the id of each row that a broker has. Their schema
    is registered under `subject`."""

    def __init__(
        self, kafka_producer: Any, registry: RegistryClient, topic: str, subject: str, when_safe: Callable[[str], None]
    ) -> None:
        self._kafka_producer = kafka_producer
        self._registry = registry
        self._topic = topic
        self._subject = subject
        self._when_safe = when_safe
        self._encoder: RowEncoder | None = None
        self._waiting: deque[AuditRow] = deque()
        self._on_their_way: deque[_OnItsWay] = deque()
        self._lock = threading.Lock()

    @property
    def unpublished(self) -> int:
        """Rows that no broker has acknowledged yet."""
        return len(self._waiting) + len(self._on_their_way)

    def publish(self, rows: Iterable[AuditRow]) -> None:
        """Sends the rows and those that waited, without awaiting their acknowledgement."""
        with self._lock:
            self._waiting.extend(rows)
            if not self._waiting:
                return
            encoder = self._find_encoder()
            while encoder is not None and self._waiting:
                if not self._send(encoder, self._waiting[0]):
                    break
                self._waiting.popleft()
            dropped = len(self._waiting) - WAITING_ROWS_MAX
            for _ in range(dropped):
                self._waiting.popleft()
            if dropped > 0:
                logger.warning("audit rows dropped topic=%s rows=%d", self._topic, dropped)

    def settle(self) -> None:
        """Looks which rows have been acknowledged; those that failed wait for the next `publish`."""
        with self._lock:
            undecided: deque[_OnItsWay] = deque()
            failed = 0
            for item in self._on_their_way:
                if not item.future.is_done:
                    undecided.append(item)
                elif item.future.failed():
                    failed += 1
                    self._waiting.append(item.row)
                else:
                    self._when_safe(item.row.id)
            self._on_their_way = undecided
            if failed:
                logger.warning("audit rows not acknowledged topic=%s rows=%d", self._topic, failed)

    def _send(self, encoder: RowEncoder, row: AuditRow) -> bool:
        try:
            future = self._kafka_producer.send(self._topic, encoder.encode(row), key=row.id.encode())
        except Exception as error:  # of whatever kind: the application's own messages are not to suffer from it
            logger.warning("audit row not sent topic=%s error=%s", self._topic, error)
            return False
        self._on_their_way.append(_OnItsWay(row, future))
        return True

    def _find_encoder(self) -> RowEncoder | None:
        if self._encoder is None:
            try:
                self._encoder = RowEncoder(self._registry.register(self._subject, AUDIT_SCHEMA).schema_id)
            except RegistryError as error:
                logger.warning("audit schema not registered subject=%s error=%s", self._subject, error)
        return self._encoder
