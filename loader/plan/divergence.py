"""Up to which offset a log is still the one that was read.

After an unclean election, or when a broker's disk was put back from an older copy, a log ends before what was read of
it, and soon has grown beyond that again: the same offsets, other messages. Then the leader's epoch is another than it
was, and what epochs the log holds says where the two went apart (KIP-101, KIP-279). Without epochs (brokers before
Kafka 0.11 know none) only a log that ends too early is noticed. Where topics have no ids, one whose leader epochs began
again was made anew.
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
    def lookup_epoch_ends(self, questions: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup: ...


@dataclass(frozen=True, slots=True)
class Doubt:
    """A partition whose log may be another than the one that was read. `leader_epoch` is the leader's now.

    `has_topic_id` says that the topic is known to be the same one, `is_of_new_topic` that another of its partitions
    tells that it is not.
    """

    known: PartitionState
    leader_epoch: int
    has_topic_id: bool = True
    is_of_new_topic: bool = False

    @property
    def is_made_anew(self) -> bool:
        return self.is_of_new_topic or (not self.has_topic_id and 0 <= self.leader_epoch < self.known.leader_epoch)


@dataclass(frozen=True, slots=True)
class SharedEnds:
    """By partition the end of what the log still holds of what was read; what nobody could tell is left out.

    `errors` says why a partition could not be asked now.
    """

    offsets: Mapping[TopicPartition, int]
    errors: Mapping[TopicPartition, str]


def is_doubtful(known: PartitionState, leader_epoch: int, start: int, end: int) -> bool:
    """Whether a log that holds `[start, end)` must be asked about. A log is only cut back under a new leader epoch, so
    that idle clusters cost nothing; and where nothing is left of what was read, nothing can differ."""
    is_changed = leader_epoch < 0 or leader_epoch != known.leader_epoch or end < known.next_offset
    return is_changed and start < known.next_offset


def shared_ends(source: EpochSource, doubts: Mapping[TopicPartition, Doubt]) -> SharedEnds:
    """Asks about all partitions together: one request per broker, more only for those that diverged."""
    offsets = {tp: 0 for tp, doubt in doubts.items() if doubt.is_made_anew}
    searches = {
        tp: search for tp, doubt in doubts.items() if tp not in offsets and (search := _first(doubt.known)) is not None
    }
    errors: dict[TopicPartition, str] = {}
    while searches:
        questions = {tp: EpochQuery(search.epoch, doubts[tp].leader_epoch) for tp, search in searches.items()}
        answers = source.lookup_epoch_ends(questions)
        errors.update(answers.errors)
        going_on = {}
        for tp, answer in answers.ends.items():
            search = searches[tp]
            if answer is None or answer.epoch > search.epoch:
                continue
            found = _after(search, answer, doubts[tp].known)
            if isinstance(found, _Search):
                going_on[tp] = found
            else:
                offsets[tp] = found
        searches = going_on
    return SharedEnds(offsets, errors)


@dataclass(frozen=True, slots=True)
class _Search:
    """`epoch` is to be asked for. Nothing from `up_to` on is shared.

    `older` are the epochs read before it, newest first, each with its end. `is_read` says that batches of the epoch
    were read; else it is the leader's when the offsets were committed, and nothing read is above it.
    """

    epoch: int
    up_to: int
    older: tuple[tuple[int, int], ...]
    is_read: bool


def _first(known: PartitionState) -> _Search | None:
    """What to ask first; None when no epoch is known."""
    if known.epochs.starts:
        (epoch, end), *older = known.epochs.newest_first()
        return _Search(epoch, end, tuple(older), True)
    return None if known.leader_epoch < 0 else _Search(known.leader_epoch, known.next_offset, (), False)


def _after(search: _Search, answer: EpochEnd, known: PartitionState) -> _Search | int:
    """The next question, or the end of what is shared. Pure."""
    read_end = known.epochs.end
    if not search.is_read:
        # What the leader then wrote last may have been the emptied offsets: if it is not there, they are read again,
        # which costs nothing.
        unsure = bool(known.epochs.starts) and answer.epoch < search.epoch
        return read_end if unsure else max(0, read_end, min(search.up_to, answer.end))
    up_to = min(search.up_to, answer.end) if answer.end >= 0 else search.up_to
    if answer.epoch < search.epoch:
        # The log holds nothing of this epoch, so it went apart before, wherever the epoch found instead ends.
        if not search.older:
            return 0
        (epoch, end), *older = search.older
        return _Search(epoch, min(up_to, end), tuple(older), True)
    if up_to < read_end:
        return up_to
    if read_end < known.next_offset and known.leader_epoch > search.epoch:
        # Every batch read is there. Behind them compaction had left none, so what stood there is of any epoch up to
        # the leader's then.
        return _Search(known.leader_epoch, known.next_offset, (), False)
    return min(answer.end, known.next_offset)
