"""Rows of the audit are published by a thread that the application must never wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from headrace.clients.audit_publisher import AuditPublisher


def test_who_is_called_back_while_rows_are_collected_may_publish() -> None:
    """`on_delivery` is, in this thread, and may flush: it cannot wait for what only this thread does."""
    offered, collected = object(), object()
    polled: list[float] = []
    found: list[bool] = []
    came = threading.Event()

    def rows() -> Iterable[Any]:
        if found:
            return ()
        publisher.offer([])
        found.append(publisher.wait(60))
        came.set()
        return (collected,)

    publisher = AuditPublisher(None, polled.append, None, "audit", "audit-value", rows=rows)  # type: ignore[arg-type]
    publisher.offer([offered])  # type: ignore[list-item]
    assert came.wait(30)
    publisher.end(30)
    assert found == [False]
    assert polled == []
    assert publisher.unpublished == 2


def test_who_is_called_back_while_rows_are_collected_may_end_it() -> None:
    ended = threading.Event()

    def rows() -> Iterable[Any]:
        if not ended.is_set():
            publisher.end(30)
            ended.set()
        return (object(),)

    publisher = AuditPublisher(None, None, None, "audit", "audit-value", rows=rows)  # type: ignore[arg-type]
    publisher.offer([])
    assert ended.wait(30)
    publisher._thread.join(30)
    assert not publisher._thread.is_alive()
    assert publisher.unpublished == 0  # the rows are left where they were
