"""An audit row: the count of one tier for one topic and window.

The rows of a tier are added up. The id of a row identifies the counted messages, so that a row that is published,
spooled or applied twice counts once. Ids of producer rows consist of (instance, sequence). The other ids are hashes of
the tier, the outcome, the application, the counted offsets of a partition, and the window.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

from headrace.audit.count import FINGERPRINT_MASK, HASH
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS, window_start

AUDITOR: Final = "headrace-audit"
"""Application of the rows that `headrace audit run` counts in the log, independently of loads."""

ANY_PARTITION: Final = -1
"""Partition of a row that is not limited to one partition; its start and end are -1, too."""


class Tier(StrEnum):
    """A stage at which messages are counted, in the order in which messages pass the stages. The loader counts for two
    of them: `BROKER`, the messages in the log, and `LOADER`, those that it wrote, quarantined or skipped."""

    PRODUCER = "producer"
    BROKER = "broker"
    LOADER = "loader"
    CONSUMER = "consumer"


class AuditOutcome(StrEnum):
    """The outcome that a tier counts: acknowledged by the broker, written to a table, quarantined, and so on."""

    ACKNOWLEDGED = "acknowledged"  # producer: acknowledged by the broker
    STORED = "stored"  # broker: stored in the log
    WRITTEN = "written"  # loader: written as rows of the table
    QUARANTINED = "quarantined"  # loader: written as rows of the topic's quarantine
    SKIPPED = "skipped"  # loader: offsets (not messages) that a commit skipped
    CONSUMED = "consumed"  # consumer: delivered to the application


OUTCOMES: Final = {
    Tier.PRODUCER: (AuditOutcome.ACKNOWLEDGED,),
    Tier.BROKER: (AuditOutcome.STORED,),
    Tier.LOADER: (AuditOutcome.WRITTEN, AuditOutcome.QUARANTINED, AuditOutcome.SKIPPED),
    Tier.CONSUMER: (AuditOutcome.CONSUMED,),
}


_COUNTS: Final = attrgetter(
    "count",
    "bytes",
    "sent",
    "late",
    "no_time",
    "errors",
    "latency_mean_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "latency_max_ms",
)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """The count of one tier, topic and window.

    Attributes:
        sent: producer rows: messages handed to the Kafka client, acknowledged or not; 0 in other rows. Rows of a
            producer are added up, so `sent` and `count` of a message may be in different rows.
        crashed: marks a producer row that was still counting when its process ended without closing; it comes from the
            spool. The log contains between `count` and `sent` of its messages.
        hash: name of the message hash that `fingerprint` sums.
        partition: -1 if the row is not limited to one partition.
        start: first counted offset, or -1.
        end: offset after the last counted one, or -1.
        datacenter: the setting `audit.datacenter` of the process that counted.
        late: messages counted more than the setting `audit.grace` after the end of their window.
        no_time: messages without a time in the time fields of their schema; their record timestamp is their time.
        errors: producer rows: messages that were not acknowledged; other tiers: messages that cannot be decoded.
        latency_mean_ms: mean time from message time to counting time; producer rows: from handing a message to the
            Kafka client to its acknowledgement. All four latencies are 0 if they were not measured.
    """

    id: str
    tier: Tier
    outcome: AuditOutcome
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
    datacenter: str = ""
    late: int = 0
    no_time: int = 0
    errors: int = 0
    latency_mean_ms: int = 0
    latency_p95_ms: int = 0
    latency_p99_ms: int = 0
    latency_max_ms: int = 0

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES[self.tier]:
            raise ValueError(f"a row of tier {self.tier} cannot have the outcome {self.outcome}")
        if (
            self.window_ms == WINDOW_MS
            and self.window_start_ms not in SPECIAL_WINDOWS
            and window_start(self.window_start_ms) != self.window_start_ms
        ):
            raise ValueError(
                f"an audit row has the window start {self.window_start_ms} ms; no window of {WINDOW_MS} ms starts then"
            )
        if not 0 <= self.fingerprint <= FINGERPRINT_MASK:
            raise ValueError(f"the fingerprint {self.fingerprint} is not a 64-bit number")
        if min(_COUNTS(self)) < 0:
            raise ValueError("the counts, bytes and latencies of an audit row cannot be negative")


def counted_row_id(instance: str, sequence: int) -> str:
    """Returns the id of the `sequence`-th row that a process counts; `instance` is the id of the process."""
    return f"{instance}-{sequence}"


def range_row_id(
    tier: Tier,
    outcome: AuditOutcome,
    topic: str,
    partition: int,
    start: int,
    end: int,
    window_start_ms: int,
    *,
    topic_id: str = "",
    application: str = "",
) -> str:
    """Returns the id of a row counted from offsets `[start, end)` of one partition. Every recount gives the same id.

    Args:
        tier, outcome: the stage that counts, and which of its messages.
        window_start_ms: start of the window.
        topic_id: distinguishes a topic that was deleted and created again, because its offsets begin at 0 again.
        application: distinguishes consumers, which count the same offsets.
    """
    parts = (tier, outcome, application, topic, topic_id, partition, start, end, window_start_ms)
    # The length prefixes make the text unique, even if names contain separators.
    text = "".join(f"{len(str(part))}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
