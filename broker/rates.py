"""How fast one client may send and be sent: a decision over values, with the time as an argument."""

from __future__ import annotations

from collections import OrderedDict

BURST_S = 1.0
"""Of what a client may do at once after it was silent."""
CLIENTS_MAX = 10_000
"""Whose account is kept; beyond it that of whoever was counted longest ago is forgotten."""


class Rates:
    """Bytes of each client. Its account says until when, in seconds, what it has had would have lasted at its rate."""

    def __init__(self, bytes_per_second_max: int) -> None:
        self._rate = bytes_per_second_max
        self._paid_until_s: OrderedDict[str, float] = OrderedDict()

    def take(self, client: str, byte_count: int, now_s: float) -> float:
        """Counts bytes of a client; returns how many seconds it must wait before its next ones, 0.0 for none."""
        paid_until_s = max(self._paid_until_s.get(client, 0.0), now_s - BURST_S) + byte_count / self._rate
        self._paid_until_s[client] = paid_until_s
        self._paid_until_s.move_to_end(client)
        if len(self._paid_until_s) > CLIENTS_MAX:
            self._paid_until_s.popitem(last=False)
        return max(paid_until_s - now_s, 0.0)
