"""When a broker that keeps failing is left alone, so that what it costs is bounded by it and not by who asks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.kafka_wire.errors import BrokerPutOff

FAILURES_MAX = 4  # in a row; as many as one request has attempts, so that a leader election is sat out as before
COOL_DOWN_S = 60.0  # twice the usual timeout of an answer, so that trials take the smaller part of the time
COOL_DOWN_S_MAX = 600.0  # the interval of loads: nobody waits longer for a broker that is back


@dataclass(slots=True)
class Breaker:
    """The failures of one broker, in a row, to connect or to answer; `now` is always of one monotonic clock.

    After `FAILURES_MAX` of them requests are refused until a cool-down is over. Then one is let through as a trial: an
    answer closes the matter, a failure begins a cool-down twice as long, up to `COOL_DOWN_S_MAX`.
    """

    failures: int = 0
    _reason: str = ""
    _cool_down_s: float = 0.0
    _next_trial: float = 0.0

    def check(self, now: float) -> None:
        """
        Raises:
            BrokerPutOff: the broker is not to be asked now; says why it failed last, in the words of then, so that
                whoever reports reasons has one for all that was asked.
        """
        if self.failures >= FAILURES_MAX and now < self._next_trial:
            raise BrokerPutOff(self._reason)

    def failed(self, reason: str, now: float) -> None:
        self.failures += 1
        self._reason = reason
        if self.failures >= FAILURES_MAX:
            self._cool_down_s = min(self._cool_down_s * 2, COOL_DOWN_S_MAX) or COOL_DOWN_S
            self._next_trial = now + self._cool_down_s

    def answered(self) -> None:
        self.failures = 0
        self._cool_down_s = 0.0
