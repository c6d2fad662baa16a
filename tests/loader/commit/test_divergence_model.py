"""Every interleaving of three loads with elections that truncate the log loads each message of the log once.

A load executes the real steps on one partition: it reads the state, requests the leader's epochs, reads the planned
range (the broker refuses if its epoch differs from the plan), looks for a conflict and puts the commit. A message is
named by its epoch and offset. Each rule is removed in turn to show that the model detects its absence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from headrace.kafka_wire.cluster import EpochEnd, EpochEndLookup, EpochQuery
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.commit import Commit, CommittedRange
from headrace.loader.commit.conflict import Conflict, ConflictRule, find_conflict
from headrace.loader.commit.state import EMPTY, LoaderState, fold
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.plan.discover import DiscoveredTopic, PartitionOffsets
from headrace.loader.plan.divergence import SuspectPartition, is_suspect, shared_ends
from headrace.loader.plan.ranges import PlannedRange, topic_ranges
from headrace.loader.work_unit import RangeCounts
from support.loader.loader_samples import load, topic_commit

TOPIC = "orders"
TP = TopicPartition(TOPIC, 0)

LOGS = ((0, 0), (0, 0, 0), (0, 1), (0, 1, 1, 1), (0, 0, 0, 3))
"""The epoch of each message: three are produced; the log is truncated to one and grows again, to two and then to four;
then a replica that still has the first three becomes leader."""
EPOCHS = (0, 0, 1, 1, 3)


class Read(NamedTuple):
    """The result of a load's read: the planned range and the epochs of its messages."""

    planned: PlannedRange
    messages: tuple[int, ...]


class Actor(NamedTuple):
    step: str = "plan"
    commit_number: int = 0
    version: int = 0
    read: Read | None = None


class World(NamedTuple):
    """`version` is the index of the current log in `LOGS`; `committed` are the commits by number."""

    version: int
    committed: tuple[Read, ...]
    actors: tuple[Actor, ...]


class Leader(NamedTuple):
    version: int

    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup:
        log, ends = LOGS[self.version], {}
        for tp, query in queries.items():
            found = [at for at, epoch in enumerate(log) if epoch <= query.epoch]
            ends[tp] = EpochEnd(log[found[-1]], found[-1] + 1)
        return EpochEndLookup(ends)


def commit_of(read: Read, commit_number: int) -> Commit:
    planned, epochs = read.planned, NO_EPOCHS
    for offset, epoch in enumerate(read.messages, start=planned.start):
        epochs = epochs.followed_by(ReadEpochs(((epoch, offset),), offset + 1))
    committed = CommittedRange(
        partition=0,
        previous=planned.previous,
        start=planned.start,
        end=planned.end,
        leader_epoch=planned.leader_epoch,
        counts=RangeCounts(records=len(read.messages)),
        gaps=(),
        bytes_read=1,
        epochs=epochs,
        diverged_at=planned.diverged_at,
        incarnation=planned.incarnation,
    )
    return load(f"w{commit_number}", {TOPIC: topic_commit(committed, new=planned.previous is None)})


@functools.cache
def state_after(committed: tuple[Read, ...]) -> LoaderState:
    if not committed:
        return EMPTY
    return fold(state_after(committed[:-1]), commit_of(committed[-1], len(committed)).with_number(len(committed)))


@functools.cache
def plan(committed: tuple[Read, ...], version: int) -> PlannedRange:
    known = state_after(committed).topics.get(TOPIC)
    end, epoch = len(LOGS[version]), EPOCHS[version]
    shared = None
    if known is not None and is_suspect(known.partitions[0], epoch, 0, end):
        shared = shared_ends(Leader(version), {TP: SuspectPartition(known.partitions[0], epoch)}).offsets[TP]
    found = DiscoveredTopic(TOPIC, "id-1", (PartitionOffsets(0, epoch, 0, end, end, shared),), {})
    return topic_ranges(found, known, {}, on_data_loss="skip", range_bytes_max=10**9).ranges[0]


Rules = Callable[[LoaderState, Commit], Conflict | None]


def step(world: World, number: int, rules: Rules) -> World | None:
    """The world after one step of an actor, or None if it has finished."""
    actor, committed = world.actors[number], world.committed
    if actor.step == "plan":
        planned = plan(committed, world.version)
        next_step = "read" if planned.has_changes else "end"
        actor = actor._replace(
            step=next_step, commit_number=len(committed), version=world.version, read=Read(planned, ())
        )
    elif actor.step == "read":
        assert actor.read is not None
        planned = actor.read.planned
        if EPOCHS[actor.version] != EPOCHS[world.version]:
            actor = actor._replace(step="end")
        else:
            messages = LOGS[world.version][planned.start : planned.end]
            actor = actor._replace(step="look", read=actor.read._replace(messages=messages))
    elif actor.step == "look":
        assert actor.read is not None
        refused = (
            rules(state_after(committed[: actor.commit_number]), commit_of(actor.read, actor.commit_number + 1))
            is not None
        )
        actor = actor._replace(step="end" if refused else "put")
    elif actor.step == "put":
        assert actor.read is not None
        if len(committed) == actor.commit_number:
            committed, actor = (*committed, actor.read), actor._replace(step="end")
        else:
            actor = actor._replace(step="look", commit_number=actor.commit_number + 1)
    else:
        return None
    actors = (*world.actors[:number], actor, *world.actors[number + 1 :])
    return World(world.version, committed, actors)


def worlds(rules: Rules) -> Iterator[World]:
    """All worlds that some interleaving of three loads and the elections reaches."""
    first = World(0, (), (Actor(), Actor(), Actor()))
    seen, pending = {first}, [first]
    while pending:
        world = pending.pop()
        yield world
        after = [step(world, number, rules) for number in range(len(world.actors))]
        if world.version + 1 < len(LOGS):
            after.append(world._replace(version=world.version + 1))
        for one in after:
            if one is not None and one not in seen:
                seen.add(one)
                pending.append(one)


def one_more_load(world: World) -> World:
    alone = world._replace(actors=(Actor(),))
    after: World | None = alone
    while after is not None:
        alone, after = after, step(after, 0, find_conflict)
    return alone


def check(world: World) -> None:
    """After one more load, every message of the log is loaded once, except those that commits list as replaced."""
    check_log(world.version, world.committed)


@functools.cache
def check_log(version: int, committed: tuple[Read, ...]) -> None:
    live = live_rows(one_more_load(World(version, committed, ())))
    assert sorted(live, key=lambda one: one[1]) == [(epoch, offset) for offset, epoch in enumerate(LOGS[version])], (
        f"the log of epochs {LOGS[version]} is loaded as {live}: {committed}"
    )


def live_rows(world: World) -> list[tuple[int, int]]:
    """The loaded messages except those that a commit lists as replaced."""
    found: list[tuple[int, int]] = []
    for read in world.committed:
        if read.planned.diverged_at is not None:
            found = [one for one in found if one[1] < read.planned.diverged_at]
        found += [(epoch, offset) for offset, epoch in enumerate(read.messages, start=read.planned.start)]
    return found


def test_every_interleaving_loads_each_message_of_the_log_once() -> None:
    count = 0
    for world in worlds(find_conflict):
        check(world)
        count += 1
    assert count > 1000


def no_rule_of_incarnations(state: LoaderState, commit: Commit) -> Conflict | None:
    conflict = find_conflict(state, commit)
    return None if conflict is not None and conflict.rule is ConflictRule.LOG_DIVERGED else conflict


def no_rule_of_offsets(state: LoaderState, commit: Commit) -> Conflict | None:
    conflict = find_conflict(state, commit)
    return None if conflict is not None and conflict.rule is ConflictRule.OFFSETS_COMMITTED else conflict


@pytest.mark.simulation
@pytest.mark.parametrize("incomplete_rules", [no_rule_of_incarnations, no_rule_of_offsets])
def test_without_either_rule_an_interleaving_breaks(incomplete_rules: Rules) -> None:
    with pytest.raises(AssertionError, match="is loaded as"):
        for world in worlds(incomplete_rules):
            check(world)
