"""Server-side assignors of KIP-848: they distribute topic partitions over the members of a consumer group.

`uniform` balances the number of partitions per member. If all members subscribe to the same topics, the numbers differ
by at most one; within that, members keep as many of their current partitions as possible. `range` gives each member
consecutive partitions of each topic, so that a member gets the same partition numbers of topics with equally many
partitions and the same subscribers; it ignores the current assignment.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

TopicIdPartition = tuple[bytes, int]
"""(topic id, partition). The id is bytes, because groups compare many of them and `uuid.UUID` objects are ten times
slower."""
Assignment = dict[str, frozenset[TopicIdPartition]]


@dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """A topic with its subscribers. `members` are their member ids in the order in which partitions are assigned to
    them; there is at least one."""

    topic_id: bytes
    partitions: int
    members: tuple[str, ...]


Assignor = Callable[[Sequence[SubscribedTopic], Mapping[str, Set[TopicIdPartition]]], Assignment]


def assign_range(topics: Sequence[SubscribedTopic], current: Mapping[str, Set[TopicIdPartition]]) -> Assignment:
    found: dict[str, list[TopicIdPartition]] = {}
    for topic in topics:
        quotient, remainder = divmod(topic.partitions, len(topic.members))
        begin = 0
        for number, member_id in enumerate(topic.members):
            end = begin + quotient + (number < remainder)
            found.setdefault(member_id, []).extend((topic.topic_id, index) for index in range(begin, end))
            begin = end
    return _frozen(found)


def assign_uniform(topics: Sequence[SubscribedTopic], current: Mapping[str, Set[TopicIdPartition]]) -> Assignment:
    by_members: dict[tuple[str, ...], list[SubscribedTopic]] = {}
    for topic in topics:
        by_members.setdefault(topic.members, []).append(topic)
    # Members with fewer topics to choose from are assigned first; otherwise others would take the partitions that only
    # they can read.
    subscriber_sets = [_SubscriberSet(members, by_members[members]) for members in sorted(by_members, key=len)]
    _retain_current(subscriber_sets, current)
    loads = Counter({member_id: 0 for subscriber_set in subscriber_sets for member_id in subscriber_set.members})
    for subscriber_set in subscriber_sets:
        for member_id, partitions in subscriber_set.held.items():
            loads[member_id] += len(partitions)
    for subscriber_set in subscriber_sets:
        _assign_unowned(subscriber_set, loads)
    while sum(_balance(subscriber_set, loads) for subscriber_set in subscriber_sets):
        # A move may allow a move in another set. Each move reduces the difference between two loads, so the loop ends.
        continue
    found: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in loads}
    for subscriber_set in subscriber_sets:
        for member_id, partitions in subscriber_set.held.items():
            found[member_id] += partitions
    return _frozen(found)


@dataclass(slots=True)
class _SubscriberSet:
    """A set of members, and all topics to which exactly these members subscribe. Each of the members may get any
    partition of these topics.

    There may be thousands of topics and a thousand members, but few different sets. `held` lists the partitions that
    each member has got so far: first those of its current assignment, which are the last to move to another member.
    """

    members: tuple[str, ...]
    topics: Sequence[SubscribedTopic]
    held: dict[str, list[TopicIdPartition]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = {member_id: [] for member_id in self.members}


def _retain_current(subscriber_sets: Sequence[_SubscriberSet], current: Mapping[str, Set[TopicIdPartition]]) -> None:
    """Gives members the partitions that they have in `current`, their assignment so far, if the partition still exists
    and they still subscribe to its topic."""
    by_topic_id = {
        topic.topic_id: (subscriber_set.held, topic.partitions)
        for subscriber_set in subscriber_sets
        for topic in subscriber_set.topics
    }
    unknown_topic: tuple[dict[str, list[TopicIdPartition]], int] = {}, 0
    for member_id, partitions in current.items():
        for partition in sorted(partitions):
            held, count = by_topic_id.get(partition[0], unknown_topic)
            if partition[1] < count and member_id in held:
                held[member_id].append(partition)


def _assign_unowned(subscriber_set: _SubscriberSet, loads: Counter[str]) -> None:
    """Gives each partition without an owner, of the topics of a subscriber set, to the member of the set with the
    fewest partitions.

    Args:
        loads: number of partitions of each member in all subscriber sets; updated.
    """
    owned = {partition for partitions in subscriber_set.held.values() for partition in partitions}
    queue = [(loads[member_id], number, member_id) for number, member_id in enumerate(subscriber_set.members)]
    heapq.heapify(queue)
    for topic in subscriber_set.topics:
        for index in range(topic.partitions):
            partition = (topic.topic_id, index)
            if partition not in owned:
                load, number, member_id = queue[0]
                subscriber_set.held[member_id].append(partition)
                loads[member_id] = load + 1
                heapq.heapreplace(queue, (load + 1, number, member_id))


def _balance(subscriber_set: _SubscriberSet, loads: Counter[str]) -> bool:
    """Moves partitions within a subscriber set, from the member with the most partitions to the member with the fewest,
    while their numbers differ by at least two. Returns True if any partition moved.

    Args:
        loads: number of partitions of each member in all subscriber sets; updated.
    """
    held, is_changed = subscriber_set.held, False
    least_loaded = [(loads[member_id], number, member_id) for number, member_id in enumerate(subscriber_set.members)]
    most_loaded = [(-load, number, member_id) for load, number, member_id in least_loaded if held[member_id]]
    heapq.heapify(least_loaded)
    heapq.heapify(most_loaded)
    # After a move the donor still has at least as many as the receiver, so no member is both a donor and a receiver.
    # Therefore each heap only needs updates for its own members.
    while most_loaded and -most_loaded[0][0] - least_loaded[0][0] >= 2:
        (most, donor, donor_id), (least, receiver, receiver_id) = most_loaded[0], least_loaded[0]
        held[receiver_id].append(held[donor_id].pop())
        loads[donor_id] -= 1
        loads[receiver_id] += 1
        heapq.heapreplace(least_loaded, (least + 1, receiver, receiver_id))
        if held[donor_id]:
            heapq.heapreplace(most_loaded, (most + 1, donor, donor_id))
        else:
            heapq.heappop(most_loaded)
        is_changed = True
    return is_changed


def _frozen(found: Mapping[str, Iterable[TopicIdPartition]]) -> Assignment:
    return {member_id: frozenset(partitions) for member_id, partitions in found.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""Assignors by name. The first one is the default, as in Kafka."""
DEFAULT_ASSIGNOR = "uniform"
