"""A circuit breaker for brokers: limits the time that a failing broker costs, however many requests need it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.kafka_wire.errors import BrokerSuspended

FAILURES_MAX = 4  # in a row; equals the attempts of one request, which cover a leader election
COOL_DOWN_S = 60.0  # twice the usual response timeout, so that trials take less than half of the time
COOL_DOWN_S_MAX = 600.0  # the interval of loads, after which a recovered broker is used at the latest


@dataclass(slots=True)
class CircuitBreaker:
    """Counts the consecutive failures of one broker to connect or to respond, and decides whether it is contacted.

    After `FAILURES_MAX` failures, requests are rejected until the end of a cool-down. The next request is a trial: a
    recorded success resets the breaker, a failure starts a cool-down of twice the length, up to `COOL_DOWN_S_MAX`.

    The argument `now` of the methods is the time in seconds on one monotonic clock.
    """

    failures: int = 0
    _reason: str = ""
    _cool_down_s: float = 0.0
    _next_trial: float = 0.0

    def check(self, now: float) -> None:
        """Raises BrokerSuspended, with the message of the last failure, if `now` (seconds on the monotonic clock) is in
        a cool-down."""
        if self.failures >= FAILURES_MAX and now < self._next_trial:
            raise BrokerSuspended(self._reason)

    def record_failure(self, reason: str, now: float) -> None:
        self.failures += 1
        self._reason = reason
        if self.failures >= FAILURES_MAX:
            self._cool_down_s = min(self._cool_down_s * 2, COOL_DOWN_S_MAX) or COOL_DOWN_S
            self._next_trial = now + self._cool_down_s

    def record_success(self) -> None:
        self.failures = 0
        self._cool_down_s = 0.0
