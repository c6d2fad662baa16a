"""Limits the bytes per second of each client. The time is a parameter."""

from __future__ import annotations

from collections import OrderedDict

BURST_S = 1.0
"""Seconds' worth of bytes that a client may send or receive at once after it was idle."""
CLIENTS_MAX = 10_000
"""Tracked clients; beyond this, the least recently active one is dropped."""


class ByteRateLimiter:
    """Rate limit per client. For each it stores the time, in seconds, until which the counted bytes use up its rate."""

    def __init__(self, bytes_per_second_max: int) -> None:
        self._rate = bytes_per_second_max
        self._paid_until_s: OrderedDict[str, float] = OrderedDict()

    def take(self, client: str, byte_count: int, now_s: float) -> float:
        """Counts bytes of a client; returns how many seconds it must wait before the next ones, 0.0 for none."""
        paid_until_s = max(self._paid_until_s.get(client, 0.0), now_s - BURST_S) + byte_count / self._rate
        self._paid_until_s[client] = paid_until_s
        self._paid_until_s.move_to_end(client)
        if len(self._paid_until_s) > CLIENTS_MAX:
            self._paid_until_s.popitem(last=False)
        return max(paid_until_s - now_s, 0.0)
