"""Limits the bytes per second of each client. The caller passes the time."""

from __future__ import annotations

from collections import OrderedDict

BURST_S = 1.0
"""A client that was idle may send or receive the bytes of this many seconds at once."""
CLIENTS_MAX = 10_000
"""Maximum number of clients in memory. Beyond it, the least recently active one is forgotten and starts as if idle."""


class ByteRateLimiter:
    """Rate limit per client. For each client it stores the time, in seconds, at which all bytes counted so far would
    have been sent at the permitted rate."""

    def __init__(self, bytes_per_second_max: int) -> None:
        self._rate = bytes_per_second_max
        self._paid_until_s: OrderedDict[str, float] = OrderedDict()

    def take(self, client: str, byte_count: int, now_s: float) -> float:
        """Counts bytes that a client sent or received at the time `now_s`. Returns how many seconds the client must
        wait before its next bytes; 0.0 if it need not wait."""
        paid_until_s = max(self._paid_until_s.get(client, 0.0), now_s - BURST_S) + byte_count / self._rate
        self._paid_until_s[client] = paid_until_s
        self._paid_until_s.move_to_end(client)
        if len(self._paid_until_s) > CLIENTS_MAX:
            self._paid_until_s.popitem(last=False)
        return max(paid_until_s - now_s, 0.0)
