"""Publication of audit rows in a thread that must never block the application."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from headrace.clients.audit_publisher import AuditPublisher


def test_callback_during_row_collection_may_publish() -> None:
    """`on_delivery` runs in this thread and may flush; a wait for this thread must return at once."""
    added, collected = object(), object()
    polled: list[float] = []
    found: list[bool] = []
    called = threading.Event()

    def rows() -> Iterable[Any]:
        if found:
            return ()
        publisher.add_rows([])
        found.append(publisher.wait(60))
        called.set()
        return (collected,)

    publisher = AuditPublisher(None, polled.append, None, "audit", "audit-value", rows=rows)  # type: ignore[arg-type]
    publisher.add_rows([added])  # type: ignore[list-item]
    assert called.wait(30)
    publisher.stop(30)
    assert found == [False]
    assert polled == []
    assert publisher.unpublished == 2


def test_callback_during_row_collection_may_stop_the_publisher() -> None:
    ended = threading.Event()

    def rows() -> Iterable[Any]:
        if not ended.is_set():
            publisher.stop(30)
            ended.set()
        return (object(),)

    publisher = AuditPublisher(None, None, None, "audit", "audit-value", rows=rows)  # type: ignore[arg-type]
    publisher.add_rows([])
    assert ended.wait(30)
    publisher._thread.join(30)
    assert not publisher._thread.is_alive()
    assert publisher.unpublished == 0  # the rows stay in their spool
