"""Classifies responses to batches. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

REFUSALS: Final = frozenset({400, 413, 422})
"""Statuses that concern the content of a batch. All others except 2xx concern the receiver: a wrong token, a missing
page or an overload would refuse every message, so the messages wait."""
BACKOFF_S: Final = 0.5
BACKOFF_S_MAX: Final = 60.0


class Verdict(Enum):
    """Whether a batch is delivered, refused for its content, or sent again."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    TRY_AGAIN = "try again"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request.

    Attributes:
        status: the HTTP status; 0 without a response.
        reason: a phrase for logs and dead letters, without the URL.
        retry_after_s: the seconds of the header `Retry-After`.
    """

    status: int
    reason: str
    retry_after_s: float = 0.0

    @property
    def verdict(self) -> Verdict:
        if 200 <= self.status < 300:
            return Verdict.DELIVERED
        return Verdict.REFUSED if self.status in REFUSALS else Verdict.TRY_AGAIN


def pause_s(attempt: int, retry_after_s: float, chance: float) -> float:
    """Returns the pause after a failed attempt: it doubles, up to a minute, and varies by half of it.

    Args:
        attempt: the number of failed attempts, from 1.
        retry_after_s: the seconds of the header `Retry-After`. The longer pause counts, up to the maximum.
        chance: a random number from 0 to 1, so that the gateways do not come at the same time.
    """
    own = min(BACKOFF_S_MAX, BACKOFF_S * 2.0 ** min(attempt - 1, 10))
    return min(BACKOFF_S_MAX, max(own * (1 - chance / 2), retry_after_s))
