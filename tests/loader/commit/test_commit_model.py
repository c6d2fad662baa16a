"""Every interleaving of two loads with cleaning or an operator's commit, each of which may stop forever after any step.

The actors execute the real steps one at a time on a small world: read the log, stage a file, look for a conflict, put
the commit, link the file, unlink it, remove the staging. Conflict rules and fold are the loader's own. After every step
no offset may be published twice and no committed file may be lost. From every state one more load must be able to
publish each offset exactly once, except offsets that the operator skipped, which no file may contain. Each rule that
this depends on is removed in turn to show that the model detects its absence.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from headrace.loader.commit.commit import Commit
from headrace.loader.commit.conflict import Conflict, find_conflict
from headrace.loader.commit.state import EMPTY, LoaderState, fold
from headrace.loader.offsets import choose
from headrace.loader.offsets.choose import OffsetChange, OffsetChoice, starts
from support.loader.loader_samples import clean, committed_range, load, topic_commit

END = 3  # offsets produced
TOPIC = "orders"
OPERATOR = "d"


class Proposal(NamedTuple):
    """A hashable form of a commit. `voided` is for cleaning, the range for loads and operators."""

    run_id: str
    start: int = 0
    end: int = 0
    voided: frozenset[str] = frozenset()

    @property
    def is_gap(self) -> bool:
        return self.run_id == OPERATOR

    @property
    def is_start(self) -> bool:
        """Whether it sets the start offset of the first load. No files exist then."""
        return self.is_gap and self.start == 0


class Actor(NamedTuple):
    """`step` is its next step, `commit_number` the newest commit number it knows, `planned` the newest commit when it
    planned, and `apply` the commit number whose files it publishes."""

    name: str
    step: str
    commit_number: int = 0
    proposal: Proposal | None = None
    apply: int = 1
    planned: int = 0


class World(NamedTuple):
    log: tuple[Proposal, ...]
    staged: frozenset[str]
    published: frozenset[str]
    actors: tuple[Actor, ...]


@functools.cache
def state_after(log: tuple[Proposal, ...]) -> LoaderState:
    if not log:
        return EMPTY
    return fold(state_after(log[:-1]), commit_of(log[-1], log[:-1]).with_number(len(log)))


def commit_of(proposal: Proposal, before: tuple[Proposal, ...]) -> Commit:
    state = state_after(before)
    return commit_for(proposal, state, new=TOPIC not in state.topics, previous=state.next_offset(TOPIC, 0))


def commit_for(proposal: Proposal, state: LoaderState, *, new: bool, previous: int | None) -> Commit:
    if proposal.voided:
        return clean(proposal.run_id, *proposal.voided)
    if proposal.is_start:
        choice = starts(EMPTY, {TOPIC: {0: proposal.end}}, "the model")
        return choose.commit_of(choice, EMPTY, run_id=proposal.run_id, now_ms=1, build="test")
    if proposal.is_gap:
        choice = OffsetChoice(gaps=(OffsetChange(TOPIC, 0, proposal.start, proposal.end),), reason="the model")
        return choose.commit_of(choice, state, run_id=proposal.run_id, now_ms=1, build="test")
    return load(
        proposal.run_id, {TOPIC: topic_commit(committed_range(0, previous, proposal.start, proposal.end), new=new)}
    )


def next_offset(log: tuple[Proposal, ...]) -> int:
    return max((proposal.end for proposal in log), default=0)


Rules = Callable[[LoaderState, Commit], Conflict | None]


def conflicts(rules: Rules, log: tuple[Proposal, ...], actor: Actor) -> bool:
    assert actor.proposal is not None
    state, planned = state_after(log[: actor.commit_number]), state_after(log[: actor.planned])
    new, previous = TOPIC not in planned.topics, planned.next_offset(TOPIC, 0)
    return rules(state, commit_for(actor.proposal, planned, new=new, previous=previous)) is not None


def step(world: World, number: int, rules: Rules) -> World | None:
    """The world after one step of an actor, or None if it has finished."""
    actor = world.actors[number]
    log, staged, published = world.log, world.staged, world.published
    if actor.step == "read":
        ends = {"a": 2, "b": END, "last": END}
        if actor.name == "c":
            uncommitted = staged - state_after(log).staged_runs - state_after(log).voided
            actor = actor._replace(
                step="look" if uncommitted else "sweep",
                commit_number=len(log),
                proposal=Proposal("c", voided=uncommitted),
            )
        elif actor.name == OPERATOR:
            # It skips the next offsets, or sets the start offset of the first load.
            proposal = Proposal(OPERATOR, next_offset(log), next_offset(log) + 1)
            actor = actor._replace(
                step="look" if proposal.end <= END else "end", commit_number=len(log), proposal=proposal
            )
            actor = actor._replace(planned=len(log))
        elif next_offset(log) < ends[actor.name]:
            proposal = Proposal(actor.name, next_offset(log), ends[actor.name])
            actor = actor._replace(step="stage", commit_number=len(log), proposal=proposal, planned=len(log))
        else:
            actor = actor._replace(step="link", commit_number=len(log))
    elif actor.step == "stage":
        staged |= {actor.name}
        actor = actor._replace(step="look")
    elif actor.step == "look":
        next_step = "sweep" if actor.name == "c" else "end"
        actor = actor._replace(step=next_step if conflicts(rules, log, actor) else "put")
    elif actor.step == "put":
        assert actor.proposal is not None
        if len(log) == actor.commit_number:
            log = (*log, actor.proposal)
            next_step = {"c": "sweep", OPERATOR: "end"}.get(actor.name, "link")
            actor = actor._replace(step=next_step, commit_number=len(log))
        else:
            actor = actor._replace(step="look", commit_number=actor.commit_number + 1)
    elif actor.step == "sweep":
        voided_files = staged & state_after(log).voided
        if not voided_files:
            return None
        staged -= {min(voided_files)}
    elif actor.step in ("link", "unlink"):
        if actor.apply > len(log):
            return None
        proposal = log[actor.apply - 1]
        if proposal.voided or proposal.is_gap:
            actor = actor._replace(apply=actor.apply + 1)
        elif actor.step == "link":
            if proposal.run_id not in published:
                if proposal.run_id not in staged:
                    raise AssertionError(f"the committed file of {proposal.run_id} is lost: {log}")
                published |= {proposal.run_id}
            actor = actor._replace(step="unlink")
        else:
            staged -= {proposal.run_id}
            actor = actor._replace(step="link", apply=actor.apply + 1)
    else:
        return None
    actors = (*world.actors[:number], actor, *world.actors[number + 1 :])
    return World(log, staged, published, actors)


def check(world: World) -> None:
    rows = [
        offset
        for proposal in world.log
        if proposal.run_id in world.published
        for offset in range(proposal.start, proposal.end)
    ]
    assert len(rows) == len(set(rows)), f"published twice: {world.log}"
    assert not set(rows) & skipped(world), f"published and skipped: {world.log}"


def skipped(world: World) -> set[int]:
    return {offset for proposal in world.log if proposal.is_gap for offset in range(proposal.start, proposal.end)}


def worlds(rules: Rules, names: str = "abc") -> Iterator[World]:
    """All worlds that some interleaving reaches."""
    first = World((), frozenset(), frozenset(), tuple(Actor(name, "read") for name in names))
    seen, pending = {first}, [first]
    while pending:
        world = pending.pop()
        check(world)
        yield world
        for number in range(len(world.actors)):
            after = step(world, number, rules)
            if after is not None and after not in seen:
                seen.add(after)
                pending.append(after)


def one_more_load(world: World) -> World:
    """All other actors have died. One undisturbed load catches up, reads the rest and publishes it."""
    alone = world._replace(actors=(Actor("last", "read"),))
    for _ in range(2):
        after: World | None = alone
        while after is not None:
            alone, after = after, step(after, 0, find_conflict)
        alone = alone._replace(actors=(Actor("last", "read"),))
    return alone


@pytest.mark.parametrize(("names", "worlds_min"), [("abc", 1000), ("abd", 900)])
def test_every_interleaving_publishes_each_offset_once(names: str, worlds_min: int) -> None:
    finished: set[tuple[tuple[Proposal, ...], frozenset[str], frozenset[str]]] = set()
    count = 0
    for world in worlds(find_conflict, names):
        count += 1
        rest = (world.log, world.staged, world.published)
        if rest in finished:
            continue
        finished.add(rest)
        done = one_more_load(world)
        check(done)
        rows = sorted(
            offset
            for proposal in done.log
            if proposal.run_id in done.published
            for offset in range(proposal.start, proposal.end)
        )
        assert sorted([*rows, *skipped(done)]) == list(range(END)), world
    assert count > worlds_min


def no_load_rules(state: LoaderState, commit: Commit) -> Conflict | None:
    return find_conflict(state, commit) if commit.voided or commit.run_id in state.voided else None


def no_void_rule(state: LoaderState, commit: Commit) -> Conflict | None:
    return find_conflict(dataclasses.replace(state, voided=frozenset()), commit)


def no_rule_for_cleaning(state: LoaderState, commit: Commit) -> Conflict | None:
    return find_conflict(dataclasses.replace(state, staged_runs=frozenset()), commit)


def no_rule_for_starts(state: LoaderState, commit: Commit) -> Conflict | None:
    return None if commit.starts else find_conflict(state, commit)


def no_rule_for_gaps(state: LoaderState, commit: Commit) -> Conflict | None:
    return None if commit.reason else find_conflict(state, commit)


def starts_unknown(state: LoaderState, commit: Commit) -> Conflict | None:
    return find_conflict(dataclasses.replace(state, starts={}), commit)


@pytest.mark.parametrize(
    ("incomplete_rules", "names"),
    [
        (no_load_rules, "abc"),
        (no_void_rule, "abc"),
        (no_rule_for_cleaning, "abc"),
        (no_load_rules, "abd"),
        (no_rule_for_starts, "abd"),
        (no_rule_for_gaps, "abd"),
        (starts_unknown, "abd"),
    ],
)
def test_without_any_of_the_rules_an_interleaving_breaks(incomplete_rules: Rules, names: str) -> None:
    with pytest.raises(AssertionError, match=r"is lost|published twice|published and skipped"):
        for _ in worlds(incomplete_rules, names):
            pass
