"""The settings in force for one topic, as one value that the plan, the tasks and the checks use."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from headrace.loader.load_schema.kafka_record import wider_column

AUTO, HOUR, DAY = "auto", "hour", "day"
"""Values of the setting `loader.partition_by`. With `auto` the first load of a topic chooses one of the others."""

FAIL, QUARANTINE = "fail", "quarantine"
"""Values of the setting `loader.corrupt_batches`; the third value is `skip`."""


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The settings in force for one topic. Each field is the setting `loader.…` of the same name, except
    `future_ms_max`: it is `loader.future_max`, None if `loader.future_records` is not `clamp`. `are_time_fields_set`
    means that `loader.time_fields` is not the default."""

    partition_by: str  # hour | day, or auto if the topic has no table yet
    kafka_column: str  # none | position | full
    codec: str  # null | deflate | snappy
    time_fields: tuple[str, ...]
    on_data_loss: str  # fail | skip
    quarantine_ratio_max: float
    record_bytes_max: int  # of one decompressed batch
    corrupt_batches: str  # fail | quarantine | skip
    future_ms_max: int | None  # largest time of a message after its arrival; None for no limit
    are_time_fields_set: bool = False

    def with_table(self, partition_by: str, kafka_column: str) -> TopicPolicy:
        """Returns the policy for a topic that has a table. The table keeps its partitioning. Its `kafka` column gets
        the wider of the table's variant and that of the settings, because existing rows would lose fields in a narrower
        one.

        Args:
            partition_by: the partitioning of the table.
            kafka_column: the variant in the table; "" if there is no commit yet.
        """
        return dataclasses.replace(
            self, partition_by=partition_by, kafka_column=wider_column(kafka_column, self.kafka_column)
        )
