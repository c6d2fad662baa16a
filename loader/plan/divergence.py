"""Finds the offset up to which a log still has the batches that the loader has read.

After an unclean election, or when a broker's disk was restored from an older copy, a log ends before the offsets that
were read and then grows again: the same offsets, other messages. The leader epoch differs then, and comparing the
epochs in the log gives the offset at which it diverged (KIP-101, KIP-279). Without epochs (brokers before Kafka 0.11),
only a log that ends too early is detected. Brokers without topic ids do not report that a topic was re-created; it is
recognized by a leader epoch that is lower than at the last load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.kafka_wire.requests import EpochEnd, EpochQuery
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import PartitionState

if TYPE_CHECKING:
    from headrace.kafka_wire.cluster import EpochEndLookup


class EpochSource(Protocol):
    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup: ...


@dataclass(frozen=True, slots=True)
class SuspectPartition:
    """A partition with a log that may have diverged from the log that was loaded.

    `known` is the partition's state after the last load, `leader_epoch` the present leader's epoch. If `has_topic_id`,
    the topic id has not changed, so the topic was not re-created. If `is_of_new_topic`, the topic was re-created, as
    one of its partitions shows; then no loaded offset is in the log.
    """

    known: PartitionState
    leader_epoch: int
    has_topic_id: bool = True
    is_of_new_topic: bool = False

    @property
    def is_recreated(self) -> bool:
        return self.is_of_new_topic or (not self.has_topic_id and 0 <= self.leader_epoch < self.known.leader_epoch)


@dataclass(frozen=True, slots=True)
class SharedEnds:
    """The result of `shared_ends`. `offsets` has, by partition, the offset up to which the log still has the batches
    that the loader has read; a partition is missing if the brokers do not support the request, or if no epoch of it is
    known. `errors` has, by partition, the reason why a request failed or its response is invalid."""

    offsets: Mapping[TopicPartition, int]
    errors: Mapping[TopicPartition, str]


def is_suspect(known: PartitionState, leader_epoch: int, start: int, end: int) -> bool:
    """Whether a partition's log may have diverged from the log that was loaded, so that its leader epochs must be
    compared.

    It may have if the leader epoch has changed or is unknown, or if the log ends before the next offset. A partition of
    which all loaded offsets have been deleted is not suspect, because nothing is left to compare.

    Args:
        known: the partition's state after the last load.
        leader_epoch: the epoch of the present leader, -1 if unknown.
        start, end: the offsets `[start, end)` that can be read now.
    """
    is_changed = leader_epoch < 0 or leader_epoch != known.leader_epoch or end < known.next_offset
    return is_changed and start < known.next_offset


def shared_ends(source: EpochSource, suspects: Mapping[TopicPartition, SuspectPartition]) -> SharedEnds:
    """Determines, for each suspect partition, the offset up to which its log still has the batches that the loader has
    read. Sends one request per broker, and further ones for partitions whose first response does not decide it.
    Partitions of a re-created topic need no request: their offset is 0.

    Args:
        source: requests the end offsets of leader epochs from the brokers.
        suspects: the partitions whose logs may have diverged.
    """
    offsets = {tp: 0 for tp, suspect in suspects.items() if suspect.is_recreated}
    searches = {
        tp: search
        for tp, suspect in suspects.items()
        if tp not in offsets and (search := _initial_search(suspect.known)) is not None
    }
    errors: dict[TopicPartition, str] = {}
    while searches:
        queries = {tp: EpochQuery(search.epoch, suspects[tp].leader_epoch) for tp, search in searches.items()}
        responses = source.lookup_epoch_ends(queries)
        errors.update(responses.errors)
        next_searches = {}
        for tp, search in searches.items():
            if tp in errors:
                continue
            if invalid := _invalid_response(search.epoch, responses.ends, tp):
                errors[tp] = invalid
                continue
            epoch_end = responses.ends[tp]
            if epoch_end is None:
                continue
            found = _evaluate(search, epoch_end, suspects[tp].known)
            if isinstance(found, _Search):
                next_searches[tp] = found
            else:
                offsets[tp] = found
        searches = next_searches
    return SharedEnds(offsets, errors)


def _invalid_response(
    epoch: int, ends: Mapping[TopicPartition, EpochEnd | None], topic_partition: TopicPartition
) -> str:
    """Returns the reason why a response does not answer the request for the end of a leader epoch; "" if it does. Such
    a partition must not count as unchanged.

    Args:
        epoch: the requested epoch.
        ends: the response, by partition.
    """
    if topic_partition not in ends:
        return f"the broker's response has no end offset of leader epoch {epoch}"
    found = ends[topic_partition]
    if found is not None and found.epoch > epoch:
        return f"the broker returned leader epoch {found.epoch}, and epoch {epoch} or an older one was requested"
    if found is not None and found.epoch >= 0 and found.end < 0:
        return f"the broker returned leader epoch {found.epoch} without its end offset"
    return ""


@dataclass(frozen=True, slots=True)
class _Search:
    """The state of the search for a partition's shared end, the offset up to which its log still has the batches that
    the loader read. Each step requests from the broker the end offset of one leader epoch; if the log does not have the
    epoch, the next step requests an older one.

    `epoch` is the epoch of the next request. `older` has the epochs of later requests, newest first, each with the
    offset at which it ended when it was read. The log has none of the batches that were read at `up_to` or later.
    `is_read` is True if the loader read batches of `epoch`. It is False only if `epoch` is the leader's epoch at the
    last commit, and the loader read no batch of it.
    """

    epoch: int
    up_to: int
    older: tuple[tuple[int, int], ...]
    is_read: bool


def _initial_search(known: PartitionState) -> _Search | None:
    """Returns the initial state of the search for the offset up to which a partition's log still has the batches that
    were read. Returns None if no leader epoch of the partition is known.

    Args:
        known: the partition's state after the last load.
    """
    if known.epochs.starts:
        (epoch, end), *older = known.epochs.newest_first()
        return _Search(epoch, end, tuple(older), True)
    return None if known.leader_epoch < 0 else _Search(known.leader_epoch, known.next_offset, (), False)


def _evaluate(search: _Search, epoch_end: EpochEnd, known: PartitionState) -> _Search | int:
    """Evaluates the broker's response to the next request of `search`, for the end offset of the leader epoch
    `search.epoch`. Returns the offset up to which the log still has the batches that the loader read. If the response
    does not decide it, returns the search with its next request instead. Pure.

    Args:
        epoch_end: the newest epoch of the log that is not above the requested one, and the offset at which it ends.
        known: the partition's state after the last load.
    """
    read_end = known.epochs.end
    if not search.is_read:
        # The offsets after the last batch that was read held no messages. If they are missing now, reading them again
        # loads nothing twice.
        is_epoch_missing = bool(known.epochs.starts) and epoch_end.epoch < search.epoch
        return read_end if is_epoch_missing else max(0, read_end, min(search.up_to, epoch_end.end))
    up_to = min(search.up_to, epoch_end.end) if epoch_end.end >= 0 else search.up_to
    if epoch_end.epoch < search.epoch:
        # The log has no batch of this epoch, so it diverged before, wherever the returned epoch ends.
        if not search.older:
            return 0
        (epoch, end), *older = search.older
        return _Search(epoch, min(up_to, end), tuple(older), True)
    if up_to < read_end:
        return up_to
    if read_end < known.next_offset and known.leader_epoch > search.epoch:
        # The log still has every batch that was read. The offsets after them had no batch, so they may belong to any
        # epoch up to that of the leader.
        return _Search(known.leader_epoch, known.next_offset, (), False)
    return min(epoch_end.end, known.next_offset)
