"""How one topic is loaded: the settings in force for it, as one value that plan, tasks and checks take it from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from headrace.loader.load_schema.kafka_record import wider_column

FAIL, QUARANTINE = "fail", "quarantine"
"""Words of the setting `loader.corrupt_batches`; the third is `skip`."""


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The words are those of the settings `loader.…` of the same names."""

    partition_by: str  # hour | day
    kafka_column: str  # none | position | full
    codec: str  # null | deflate | snappy
    time_fields: tuple[str, ...]
    on_data_loss: str  # fail | skip
    quarantine_ratio_max: float
    record_bytes_max: int  # what one batch may unfold to
    corrupt_batches: str  # fail | quarantine | skip
    future_ms_max: int | None  # how far after its arrival a message may be dated; None files all by their own time

    def with_table(self, partition_by: str, kafka_column: str) -> TopicPolicy:
        """The policy for a topic that has a table: its files lie in the layout they began with, and its column
        `kafka` grows but never shrinks, since rows that are there would lose what they have.

        Args:
            kafka_column: "" where the log does not tell.
        """
        return dataclasses.replace(
            self, partition_by=partition_by, kafka_column=wider_column(kafka_column, self.kafka_column)
        )
