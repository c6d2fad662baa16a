"""Replaces `GatewayAudit` in tests of the gateway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class NotedAudit:
    """Lists the values that were sent, acknowledged and refused. The ticket of a value is the value itself."""

    def __init__(self) -> None:
        self.times = self
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.failed: list[bytes] = []

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

    def acknowledge(self, tickets: Sequence[bytes | None], latency_s: float) -> None:
        assert latency_s >= 0
        self.acknowledged += [one for one in tickets if one is not None]

    def count_failed(self, tickets: Iterable[bytes | None]) -> None:
        self.failed += [one for one in tickets if one is not None]
