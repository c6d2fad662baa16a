"""Lists the next offset of every partition from the commit log, with the brokers' offsets if they are available."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.loader.commit.state import LoaderState, PartitionState
from headrace.loader.plan.discover import Discovery, PartitionOffsets


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The offsets of one partition.

    `next_offset` is the offset at which the next load begins, None if that is the log start offset. `is_loaded` is
    False for a partition without loaded offsets; its `next_offset` is then None or one set by the operator.
    `leader_epoch` is that of the last commit, -1 if unknown. `log_end` is the last stable offset. `log_start`,
    `log_end` and `lag` are None if unknown, for example without a connection to the brokers.
    """

    topic: str
    partition: int
    next_offset: int | None
    is_loaded: bool
    leader_epoch: int
    log_start: int | None
    log_end: int | None
    lag: int | None

    @property
    def is_outside_log(self) -> bool:
        """Whether the next offset is not in the log: it was deleted, or the log ends before it."""
        if self.next_offset is None or self.log_start is None or self.log_end is None:
            return False
        return not self.log_start <= self.next_offset <= self.log_end


def partition_statuses(state: LoaderState, discovery: Discovery | None) -> tuple[PartitionStatus, ...]:
    """Returns the offsets of each partition that is in the commit log or on the brokers.

    Args:
        discovery: the topics on the brokers, None if the brokers are unavailable.
    """
    discovered = {
        (name, found.partition): found
        for name, topic_found in (discovery.topics.items() if discovery else ())
        for found in topic_found.partitions
    }
    loaded = {
        (name, number): partition_state
        for name, topic_state in state.topics.items()
        for number, partition_state in topic_state.partitions.items()
    }
    start_offsets = {
        (name, number): start for name, numbers in state.starts.items() for number, start in numbers.items()
    }
    return tuple(
        _status(*key, loaded.get(key), start_offsets.get(key), discovered.get(key))
        for key in sorted({*discovered, *loaded, *start_offsets})
    )


def _status(
    topic: str,
    partition: int,
    loaded: PartitionState | None,
    start_offset: int | None,
    offsets: PartitionOffsets | None,
) -> PartitionStatus:
    next_offset = loaded.next_offset if loaded else start_offset
    lag = None
    if offsets is not None:
        lag = max(0, offsets.end - (offsets.start if next_offset is None else next_offset))
    return PartitionStatus(
        topic,
        partition,
        next_offset,
        loaded is not None,
        loaded.leader_epoch if loaded else -1,
        offsets.start if offsets else None,
        offsets.end if offsets else None,
        lag,
    )
