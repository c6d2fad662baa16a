"""Which member of a consumer group is to read which partitions: the server-side assignors of KIP-848.

`uniform` gives every member as many partitions as the others, to within one where all subscribe to the same topics,
and leaves with their members as many as that allows. `range` gives of each topic consecutive partitions to each member,
so that partitions of the same number of several topics come to one member; it looks at nothing that was before.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

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
    by_members: dict[tuple[str, ...], list[SubscribedTopic]] = {}
    for topic in topics:
        by_members.setdefault(topic.members, []).append(topic)
    # Who has few to choose from chooses first, or others would have taken what only they can read.
    shares = [_Share(members, by_members[members]) for members in sorted(by_members, key=len)]
    _keep(shares, present)
    loads = Counter({member_id: 0 for share in shares for member_id in share.members})
    for share in shares:
        for member_id, partitions in share.held.items():
            loads[member_id] += len(partitions)
    for share in shares:
        _hand_out(share, loads)
    while sum(_balance(share, loads) for share in shares):
        # A partition that is moved makes room for one of another share; each move makes the loads more alike.
        continue
    found: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in loads}
    for share in shares:
        for member_id, partitions in share.held.items():
            found[member_id] += partitions
    return _frozen(found)


@dataclass(slots=True)
class _Share:
    """The topics of the same subscribers, among which it makes no difference which one a partition is of.

    There may be thousands of topics and a thousand members, and few shares. Of what a member has in `held`, that which
    it had before comes first.
    """

    members: tuple[str, ...]
    topics: Sequence[SubscribedTopic]
    held: dict[str, list[TopicIdPartition]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = {member_id: [] for member_id in self.members}


def _keep(shares: Sequence[_Share], present: Mapping[str, Set[TopicIdPartition]]) -> None:
    """Leaves with members what they may keep: partitions that are there, of topics that they subscribe to."""
    places = {topic.topic_id: (share.held, topic.partitions) for share in shares for topic in share.topics}
    nowhere: tuple[dict[str, list[TopicIdPartition]], int] = {}, 0
    for member_id, partitions in present.items():
        for partition in sorted(partitions):
            held, count = places.get(partition[0], nowhere)
            if partition[1] < count and member_id in held:
                held[member_id].append(partition)


def _hand_out(share: _Share, loads: Counter[str]) -> None:
    """Gives partitions that nobody has to who has least."""
    taken = {partition for partitions in share.held.values() for partition in partitions}
    queue = [(loads[member_id], number, member_id) for number, member_id in enumerate(share.members)]
    heapq.heapify(queue)
    for topic in share.topics:
        for index in range(topic.partitions):
            partition = (topic.topic_id, index)
            if partition not in taken:
                load, number, member_id = queue[0]
                share.held[member_id].append(partition)
                loads[member_id] = load + 1
                heapq.heapreplace(queue, (load + 1, number, member_id))


def _balance(share: _Share, loads: Counter[str]) -> bool:
    """Moves partitions from who has most to who has least while that makes a difference; says whether it did."""
    held, is_changed = share.held, False
    poor = [(loads[member_id], number, member_id) for number, member_id in enumerate(share.members)]
    rich = [(-load, number, member_id) for load, number, member_id in poor if held[member_id]]
    heapq.heapify(poor)
    heapq.heapify(rich)
    # Who gives has more than who takes even afterwards, so nobody that has given takes later, or the other way round:
    # each heap needs to know of its own changes alone.
    while rich and -rich[0][0] - poor[0][0] >= 2:
        (most, giver, giver_id), (least, taker, taker_id) = rich[0], poor[0]
        held[taker_id].append(held[giver_id].pop())
        loads[giver_id] -= 1
        loads[taker_id] += 1
        heapq.heapreplace(poor, (least + 1, taker, taker_id))
        if held[giver_id]:
            heapq.heapreplace(rich, (most + 1, giver, giver_id))
        else:
            heapq.heappop(rich)
        is_changed = True
    return is_changed


def _frozen(found: Mapping[str, Iterable[TopicIdPartition]]) -> Assignment:
    return {member_id: frozenset(partitions) for member_id, partitions in found.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""The first one is the default, as in Kafka."""
DEFAULT_ASSIGNOR = "uniform"
