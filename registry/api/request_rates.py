"""How many requests a client may send to a worker: so many a second, and a few seconds' worth of them at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

BURST_S: Final = 10.0  # a client that was quiet may send as many at once as it may in so many seconds
CLOCK_S: Final = 1e-6  # what sums of times may be wrong by
CLIENTS_MAX: Final = 20_000  # that are remembered; who was forgotten begins anew


class RequestRates:
    """Used by one event loop. The generic cell rate algorithm: of each client only when it will have paid for all."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cost_s = 1 / per_second
        self._clock = clock
        self._paid_at: OrderedDict[Hashable, float] = OrderedDict()

    def wait_s(self, client: Hashable) -> float:
        """0 lets a request through and counts it; else it comes so many seconds too early."""
        now = self._clock()
        paid_at = max(now, self._paid_at.get(client, now)) + self._cost_s
        early_s = paid_at - now - max(BURST_S, self._cost_s)
        if early_s > CLOCK_S:
            return early_s
        self._paid_at[client] = paid_at
        self._paid_at.move_to_end(client)
        if len(self._paid_at) > CLIENTS_MAX:
            self._paid_at.popitem(last=False)
        return 0
