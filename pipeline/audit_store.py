"""The audit's database by the settings: opens it, and updates its verdicts."""

from __future__ import annotations

import re
import time

from headrace.audit.storage.store import AuditStore, audit_address
from headrace.audit.storage.update import VerdictUpdate
from headrace.audit.verdict import FindingPolicy
from headrace.settings import Settings


def open_audit_store(settings: Settings) -> AuditStore:
    """Returns the audit's database, which is created if it does not exist.

    Raises:
        StoreUnavailable: it cannot be used.
    """
    return AuditStore(audit_address(settings.data_dir, settings.audit.database_url))


def has_audit_store(settings: Settings) -> bool:
    """Returns whether the audit's database may have counts. A database on a server always may."""
    address = audit_address(settings.data_dir, settings.audit.database_url)
    return isinstance(address, str) or address.exists()


def finding_policy(settings: Settings) -> FindingPolicy:
    """Returns the policy of the settings. Acceptances are in the audit's database."""
    patterns = [re.compile(pattern) for pattern in settings.audit.counted_topics]
    return FindingPolicy(
        all_producers_count=lambda topic: any(pattern.fullmatch(topic) for pattern in patterns),
        findings_ttl_ms=settings.audit.findings_ttl.ms,
    )


def update_stored_verdicts(store: AuditStore, settings: Settings, now_ms: int | None = None) -> VerdictUpdate:
    """Brings the stored verdicts, strips and events up to date with the stored counts. Every six hours, deletes
    windows older than `audit.retention` before.

    Args:
        now_ms: the current time; None reads the clock.

    Raises:
        StoreUnavailable: the database cannot be used.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    store.prune(now_ms=now_ms, retention_ms=settings.audit.retention.ms)
    return store.update_verdicts(
        now_ms=now_ms,
        grace_ms=settings.audit.grace.ms,
        policy=finding_policy(settings),
    )
