"""Rate limit per client: requests per second to a worker, with bursts of ten seconds' worth of requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

BURST_S: Final = 10.0  # an idle client may send the requests of this many seconds at once
CLOCK_S: Final = 1e-6  # rounding error of summed times
CLIENTS_MAX: Final = 20_000  # clients in memory; after its eviction a client may send a full burst again


class RequestRates:
    """Limits the requests of each client by the generic cell rate algorithm. For one event loop.

    The only state of a client is a time. Each accepted request moves it forward by 1 / `per_second` seconds, starting
    from now if it is in the past. A request that would move it to more than `BURST_S` after now is rejected; if 1 /
    `per_second` is larger, that is the limit.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cost_s = 1 / per_second
        self._clock = clock
        self._paid_at: OrderedDict[Hashable, float] = OrderedDict()

    def wait_s(self, client: Hashable) -> float:
        """Returns 0 and counts a request if the client may send one now, otherwise the seconds until it may.

        Args:
            client: a key that is unique to the client, such as its username or address.
        """
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
