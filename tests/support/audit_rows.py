"""Audit rows for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.window import WINDOW_MS


def audit_row(identity: str, topic: str = "a", **values: Any) -> AuditRow:
    base = AuditRow(
        id=identity,
        tier=Tier.PRODUCER,
        outcome=AuditOutcome.ACKNOWLEDGED,
        topic=topic,
        window_start_ms=0,
        count=2,
        bytes=2,
        fingerprint=2,
        application="shop",
        host="web-1",
        instance="i",
        emitted_at_ms=WINDOW_MS,
    )
    return dataclasses.replace(base, **values)


def three_tiers(topic: str, number: int, lost: int = 0, **values: Any) -> list[AuditRow]:
    """Returns the rows of one window of ten messages, of which the log has `lost` fewer."""
    changes = {"window_start_ms": number * WINDOW_MS, "emitted_at_ms": (number + 1) * WINDOW_MS, **values}
    span = {"partition": 0, "start": number * 10, "end": number * 10 + 10, "count": 10 - lost, "fingerprint": 10 - lost}
    identity = f"{topic}-{number}"
    return [
        audit_row(f"{identity}-p", topic, count=10, fingerprint=10, sent=10, **changes),
        audit_row(f"{identity}-b", topic, tier=Tier.BROKER, outcome=AuditOutcome.STORED, **span, **changes),
        audit_row(f"{identity}-l", topic, tier=Tier.LOADER, outcome=AuditOutcome.WRITTEN, **span, **changes),
    ]
