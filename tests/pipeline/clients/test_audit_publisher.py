"""Rows of the audit are published by a thread that the application must never wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from headrace.audit.row import AuditRow
from headrace.pipeline.clients.audit_publisher import AuditPublisher


def test_who_is_called_back_while_rows_are_collected_may_publish() -> None:
    """`on_delivery` is, in this thread, and may flush."""
    found: list[bool] = []
    came = threading.Event()

    def rows() -> Iterable[AuditRow]:
        if not found:
            publisher.offer([])
            found.append(publisher.wait(60))
            came.set()
        return ()

    publisher = AuditPublisher(None, lambda timeout_s: None, None, "audit", "audit-value", rows=rows)  # type: ignore[arg-type]
    publisher.offer([])
    assert came.wait(30)
    publisher.end(30)
    assert found == [True]
