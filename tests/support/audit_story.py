"""Audit counts of a day with injected faults, as producers, the broker's log and the loader would have counted them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.storage.store import AuditStore
from headrace.audit.verdict import FindingPolicy
from headrace.audit.window import WINDOW_MS

GRACE_MS: Final = 1_800_000
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a topic in the windows `[first, end)`, counted backwards from the newest window.

    Kinds: `lost` (1 of 100 acknowledged messages is not in the log), `doubled` (each message is in the log twice),
    `altered` (a row of the table differs), `unloaded` (the table has no rows), `late` (the producer counts afterwards).
    """

    kind: str
    first: int
    end: int


TOPICS: Final = (
    "payments.captured",
    "search.queries",
    "orders.placed",
    "mail.clicks",
    "mail.views",
    "flights",
    "page.views",
    "cart.items",
    "<script>alert(1)</script>",
    "خبر\u202emoc.live",
)
FAULTS: Final = {
    "payments.captured": Fault("lost", 28, 4),
    "search.queries": Fault("altered", 40, 37),
    "orders.placed": Fault("doubled", 55, 50),
    "mail.clicks": Fault("unloaded", 12, 4),
    "mail.views": Fault("unloaded", 12, 4),
    "<script>alert(1)</script>": Fault("lost", 90, 88),
}


def story_rows(now_ms: int, windows: int = 144) -> Iterator[AuditRow]:
    """Returns the rows of all topics for the windows before `now_ms`."""
    newest = now_ms // WINDOW_MS
    for number, topic in enumerate(TOPICS):
        fault = FAULTS.get(topic)
        for age in range(windows, 0, -1):
            start_ms = (newest - age) * WINDOW_MS
            is_faulty = fault is not None and fault.end < age <= fault.first
            kind = fault.kind if fault is not None and is_faulty else ""
            yield from _window_rows(topic, start_ms, _messages(number, start_ms), kind)


def fill_store(store: AuditStore, now_ms: int, windows: int = 144) -> None:
    """Adds the rows and updates the verdicts, as a load at `now_ms` does."""
    rows = list(story_rows(now_ms, windows))
    for topic in TOPICS:
        store.add_rows([row for row in rows if row.topic == topic and row.emitted_at_ms <= now_ms])
    store.update_verdicts(
        now_ms=now_ms, grace_ms=GRACE_MS, policy=FindingPolicy(all_producers_count=lambda topic: True)
    )


def _messages(number: int, start_ms: int) -> int:
    day = math.sin((start_ms / 86_400_000 - 0.25) * 2 * math.pi)
    return int((800 + 150 * number) * (1.2 + day)) + start_ms // WINDOW_MS % 17


def _window_rows(topic: str, start_ms: int, messages: int, kind: str) -> Iterator[AuditRow]:
    digest = hashlib.sha256(f"{topic} {start_ms}".encode()).digest()
    fingerprint = int.from_bytes(digest[:8], "big")
    end_ms = start_ms + WINDOW_MS
    base = AuditRow(
        id="",
        tier=Tier.PRODUCER,
        outcome=AuditOutcome.ACKNOWLEDGED,
        topic=topic,
        window_start_ms=start_ms,
        count=messages,
        bytes=messages * 300,
        fingerprint=fingerprint,
        application="pay-gateway" if topic.startswith("pay") else "shop",
        host="pay-7" if topic.startswith("pay") else f"web-{digest[8] % 3}",
        instance="1",
        emitted_at_ms=end_ms + 20_000,
        sent=messages,
    )
    lost = messages // 100 if kind == "lost" else 0
    stored = messages * 2 if kind == "doubled" else messages - lost
    log_fingerprint = fingerprint if stored == messages else (fingerprint + lost * 7 + stored) % 2**64
    log = dataclasses.replace(
        base,
        tier=Tier.BROKER,
        outcome=AuditOutcome.STORED,
        count=stored,
        fingerprint=log_fingerprint,
        application="headrace-load",
        host="load-1",
        emitted_at_ms=end_ms + 2 * MINUTE_MS + digest[9] * 1000,
        sent=0,
    )
    written = dataclasses.replace(
        log,
        tier=Tier.LOADER,
        outcome=AuditOutcome.WRITTEN,
        fingerprint=(log_fingerprint + 1) % 2**64 if kind == "altered" else log_fingerprint,
    )
    rows = [base, log] if kind == "unloaded" else [base, log, written]
    for row in rows:
        yield dataclasses.replace(row, id=f"{row.tier} {topic} {start_ms}")
