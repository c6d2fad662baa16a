"""Which member of a consumer group is to read which partitions: the server-side assignors of KIP-848.

`uniform` gives every member as many partitions as the others, to within one where all subscribe to the same topics,
and leaves with their members as many as that allows. `range` gives of each topic consecutive partitions to each member,
so that partitions of the same number of several topics come to one member; it looks at nothing that was before.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

TopicIdPartition = tuple[bytes, int]
"""The bytes of a topic's id, since groups compare many: objects of `uuid.UUID` take ten times as long."""
Assignment = dict[str, frozenset[TopicIdPartition]]


@dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """`members` are the ids of those that subscribe, of which there are some, in the order in which they are served."""

    topic_id: bytes
    partitions: int
    members: tuple[str, ...]


Assignor = Callable[[Sequence[SubscribedTopic], Mapping[str, Set[TopicIdPartition]]], Assignment]


def assign_range(topics: Sequence[SubscribedTopic], present: Mapping[str, Set[TopicIdPartition]]) -> Assignment:
    found: dict[str, list[TopicIdPartition]] = {}
    for topic in topics:
        each, more = divmod(topic.partitions, len(topic.members))
        begin = 0
        for number, member_id in enumerate(topic.members):
            end = begin + each + (number < more)
            found.setdefault(member_id, []).extend((topic.topic_id, index) for index in range(begin, end))
            begin = end
    return _frozen(found)


def assign_uniform(topics: Sequence[SubscribedTopic], present: Mapping[str, Set[TopicIdPartition]]) -> Assignment:
    held = _kept(topics, present)
    loads = Counter({member_id: sum(map(len, of_topics.values())) for member_id, of_topics in held.items()})
    # Who has few to choose from chooses first, or others would have taken what only they can read.
    for topic in sorted(topics, key=lambda topic: len(topic.members)):
        _hand_out(topic, held, loads)
    while sum(_balance(topic, held, loads) for topic in topics):
        # A partition that is moved makes room for one of another topic; each move makes the loads more alike.
        continue
    return _frozen(
        {
            member_id: [(topic_id, index) for topic_id, indexes in of_topics.items() for index in indexes]
            for member_id, of_topics in held.items()
        }
    )


_Held = dict[str, dict[bytes, list[int]]]


def _kept(topics: Sequence[SubscribedTopic], present: Mapping[str, Set[TopicIdPartition]]) -> _Held:
    """What members have and may keep: partitions that are there, of topics that they subscribe to."""
    held: _Held = {member_id: {} for topic in topics for member_id in topic.members}
    counts = {topic.topic_id: topic.partitions for topic in topics}
    subscribed = {(topic.topic_id, member_id) for topic in topics for member_id in topic.members}
    for member_id, partitions in present.items():
        for topic_id, index in sorted(partitions):
            if (topic_id, member_id) in subscribed and index < counts[topic_id]:
                held[member_id].setdefault(topic_id, []).append(index)
    return held


def _hand_out(topic: SubscribedTopic, held: _Held, loads: Counter[str]) -> None:
    """Gives partitions that nobody has to who has least."""
    taken = {index for member_id in topic.members for index in held[member_id].get(topic.topic_id, ())}
    queue = [(loads[member_id], number, member_id) for number, member_id in enumerate(topic.members)]
    heapq.heapify(queue)
    for index in range(topic.partitions):
        if index not in taken:
            load, number, member_id = queue[0]
            held[member_id].setdefault(topic.topic_id, []).append(index)
            loads[member_id] = load + 1
            heapq.heapreplace(queue, (load + 1, number, member_id))


def _balance(topic: SubscribedTopic, held: _Held, loads: Counter[str]) -> bool:
    """Moves partitions from who has most to who has least while that makes a difference; says whether it did."""
    is_changed = False
    while True:
        owners = [member_id for member_id in topic.members if held[member_id].get(topic.topic_id)]
        poorest = min(topic.members, key=loads.__getitem__)
        richest = max(owners, key=loads.__getitem__, default=poorest)
        if loads[richest] - loads[poorest] < 2:
            return is_changed
        held[poorest].setdefault(topic.topic_id, []).append(held[richest][topic.topic_id].pop())
        loads[richest] -= 1
        loads[poorest] += 1
        is_changed = True


def _frozen(found: Mapping[str, Iterable[TopicIdPartition]]) -> Assignment:
    return {member_id: frozenset(partitions) for member_id, partitions in found.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""The first one is the default, as in Kafka."""
DEFAULT_ASSIGNOR = "uniform"
