"""One row of the audit: what one tier counted of one topic in one window.

Rows of a tier add up. Each has an id that says what was counted, so that a row sent, spooled or followed twice is
one row: producer rows by (instance, sequence), rows made from the log by (partition, offsets, window).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.audit.count import FINGERPRINT_MASK, HASH
from headrace.audit.window import NAMES, WINDOW_MS, window_start

ANY_PARTITION: Final = -1
"""The partition of a row that is not about one, and the start and end that go with it."""


class Tier(StrEnum):
    """A place that messages pass, in the order in which they do."""

    PRODUCER = "producer"
    BROKER = "broker"
    LOADER = "loader"
    CONSUMER = "consumer"


class Outcome(StrEnum):
    """What the tier did with the messages it counted."""

    ACKNOWLEDGED = "acknowledged"  # producer: the broker said it has them
    STORED = "stored"  # broker: they are in the log
    WRITTEN = "written"  # loader: they are rows of a data file
    QUARANTINED = "quarantined"  # loader: they are rows of the topic's quarantine
    PASSED_OVER = "passed over"  # loader: offsets, not messages, that a decision declared to be in no row
    CONSUMED = "consumed"  # consumer: the application was given them


OUTCOMES: Final = {
    Tier.PRODUCER: (Outcome.ACKNOWLEDGED,),
    Tier.BROKER: (Outcome.STORED,),
    Tier.LOADER: (Outcome.WRITTEN, Outcome.QUARANTINED, Outcome.PASSED_OVER),
    Tier.CONSUMER: (Outcome.CONSUMED,),
}


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Counts of one tier, topic and window.

    `sent` is for producer rows: how many messages were handed to the Kafka client, whether or not they were
    acknowledged; elsewhere it is 0. A producer's rows add up, so one row may say `sent` and a later one `count` of
    the same messages. `crashed` marks a producer row that was found in the spool of a process that ended without
    closing: between `count` and `sent` of its messages are in the log.
    `hash` names the hash of messages that `fingerprint` is a sum of.
    `partition`, `start` and `end` (offsets, half-open) are -1 where the row is not about one partition.
    """

    id: str
    tier: Tier
    outcome: Outcome
    topic: str
    window_start_ms: int
    count: int
    bytes: int
    fingerprint: int
    application: str
    host: str
    instance: str
    emitted_at_ms: int
    sent: int = 0
    crashed: bool = False
    partition: int = ANY_PARTITION
    start: int = -1
    end: int = -1
    window_ms: int = WINDOW_MS
    hash: str = HASH

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES[self.tier]:
            raise ValueError(f"a row of tier {self.tier} cannot have the outcome {self.outcome}")
        if (
            self.window_ms == WINDOW_MS
            and self.window_start_ms not in NAMES
            and window_start(self.window_start_ms) != self.window_start_ms
        ):
            raise ValueError(f"{self.window_start_ms} is not the start of a window of {WINDOW_MS} ms")
        if not 0 <= self.fingerprint <= FINGERPRINT_MASK:
            raise ValueError(f"the fingerprint {self.fingerprint} is not a 64-bit number")
        if min(self.count, self.bytes, self.sent) < 0:
            raise ValueError("count, bytes and sent cannot be negative")


def counted_row_id(instance: str, sequence: int) -> str:
    """The id of the `sequence`-th row of a counting process."""
    return f"{instance}-{sequence}"


def range_row_id(
    tier: Tier,
    outcome: Outcome,
    topic: str,
    partition: int,
    start: int,
    end: int,
    window_start_ms: int,
    *,
    topic_id: str = "",
    application: str = "",
) -> str:
    """The id of a row counted from offsets `[start, end)` of one partition, the same whoever counts them again.

    `topic_id` is the topic's incarnation, since the offsets of a re-created topic begin at 0 again; `application`
    is for consumers, each of which reads the same offsets.
    """
    parts = (tier, outcome, application, topic, topic_id, partition, start, end, window_start_ms)
    # Length-prefixed, so that no two different rows give one text whatever characters the names hold.
    text = "".join(f"{len(str(part))}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
