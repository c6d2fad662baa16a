"""What a run did, as values that can be printed. Sentences are for people; exit codes follow from what is here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopicLoaded:
    """What one decision brought to one topic. `bytes_read` came off the wire, `bytes_written` went to files."""

    topic: str
    table: str
    rows: int
    files: int
    partitions: int
    quarantined: int
    tombstones: int
    gaps: int
    offsets: int
    bytes_read: int
    bytes_written: int
    new: bool
    schema_changed: bool


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run.

    `slot` is the decision it made, 0 for none; `conflict` says why its work was thrown away, if it was. `waiting`
    topics are fine and not loaded yet, with the reason; `problems` are sentences by topic that somebody must act on;
    `notes` need no action. `registry_outage` says why the registry could not be asked; what the schemas known before
    allow was loaded all the same. `imbalance` is the heaviest task's share over the mean, as planned (bytes) and as
    measured (time). `read_ms` is the time of the slowest task.
    """

    slot: int = 0
    work_id: str = ""
    conflict: str = ""
    loaded: tuple[TopicLoaded, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    registry_outage: str = ""
    followed: tuple[str, ...] = ()
    tasks: int = 0
    imbalance_planned: float = 1.0
    imbalance_measured: float = 1.0
    read_ms: int = 0
    duration_ms: int = 0

    @property
    def has_findings(self) -> bool:
        return bool(self.problems)
