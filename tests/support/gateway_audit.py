"""Replaces `GatewayAudit` in tests of the gateway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headrace.audit.count import FINGERPRINT_MASK, message_hash


class Together(NamedTuple):
    """Records that were counted together: their number, bytes, and sum of hashes."""

    records: int
    size_bytes: int
    fingerprint: int


Noted = bytes | Together


class NotedAudit:
    """Lists the sent, acknowledged and refused values, or their sums if they were counted together. The lists contain
    the tickets."""

    def __init__(self) -> None:
        self.times = self
        self.sent: list[Noted] = []
        self.acknowledged: list[Noted] = []
        self.failed: list[Noted] = []

    async def prepare(self, topic: str, values: Iterable[bytes | None]) -> None:
        pass

    def time_of(self, topic: str, value: bytes) -> tuple[int | None, bool]:
        return None, True

    def count_sent(
        self, topic: str, key: bytes | None, value: bytes | None, record_ms: int, found: Any = None
    ) -> bytes | None:
        if value is not None:
            self.sent.append(value)
        return value

    def count_sent_together(
        self, topic: str, count: int, size_bytes: int, fingerprint: int, record_ms: int, found: Any
    ) -> Together:
        self.sent.append(Together(count, size_bytes, fingerprint))
        return Together(count, size_bytes, fingerprint)

    def acknowledge(self, tickets: Sequence[Noted | None], latency_s: float) -> None:
        assert latency_s >= 0
        self.acknowledged += [one for one in tickets if one is not None]

    def count_failed(self, tickets: Iterable[Noted | None]) -> None:
        self.failed += [one for one in tickets if one is not None]


def sums_of(noted: Iterable[Noted]) -> Together:
    """Returns the sums of all values."""
    each = [one if isinstance(one, Together) else Together(1, len(one), message_hash(None, one)) for one in noted]
    count, size_bytes, fingerprint = (sum(column) for column in zip(*each, strict=True)) if each else (0, 0, 0)
    return Together(count, size_bytes, fingerprint & FINGERPRINT_MASK)
