"""Every interleaving of two loads and a cleaner, each of which may stop for ever after any step.

The actors take the real steps one at a time on a small world: read the log, stage a file, look for a conflict, put
the slot, link the file, unlink it, remove the staging. Rules and fold are the loader's own. After every step it must
hold that no offset is published twice and that no decided file is lost, and from every state one more load must be
able to publish each offset exactly once. The rules that this rests on are taken away one by one to show that the
model would notice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from headrace.loader.decide.conflict import Conflict, find_conflict
from headrace.loader.decide.decision import Decision
from headrace.loader.decide.state import EMPTY, LoaderState, fold
from loader_samples import clean, decided_range, load, topic_decision

END = 3  # offsets produced
TOPIC = "orders"


class Offer(NamedTuple):
    """A decision in a form that can be hashed. `voided` is for cleanings, the range for loads."""

    work: str
    start: int = 0
    end: int = 0
    voided: frozenset[str] = frozenset()


class Actor(NamedTuple):
    """`step` is what it does next; `slot` the newest slot it knows; `apply` the slot whose files it publishes."""

    name: str
    step: str
    slot: int = 0
    offer: Offer | None = None
    apply: int = 1


class World(NamedTuple):
    log: tuple[Offer, ...]
    staged: frozenset[str]
    published: frozenset[str]
    actors: tuple[Actor, ...]


@functools.cache
def state_after(log: tuple[Offer, ...]) -> LoaderState:
    if not log:
        return EMPTY
    return fold(state_after(log[:-1]), decision_of(log[-1], log[:-1]).at(len(log)))


def decision_of(offer: Offer, before: tuple[Offer, ...]) -> Decision:
    if offer.voided:
        return clean(offer.work, *offer.voided)
    known = any(not earlier.voided for earlier in before)
    return load(
        offer.work,
        {TOPIC: topic_decision(decided_range(0, offer.start or None, offer.start, offer.end), new=not known)},
    )


def next_offset(log: tuple[Offer, ...]) -> int:
    return max((offer.end for offer in log), default=0)


Rules = Callable[[LoaderState, Decision], Conflict | None]


def conflicts(rules: Rules, log: tuple[Offer, ...], actor: Actor) -> bool:
    assert actor.offer is not None
    offer = actor.offer
    if offer.voided:
        decision = clean(offer.work, *offer.voided)
    else:
        new = offer.start == 0
        ranges = decided_range(0, None if new else offer.start, offer.start, offer.end)
        decision = load(offer.work, {TOPIC: topic_decision(ranges, new=new)})
    return rules(state_after(log[: actor.slot]), decision) is not None


def step(world: World, number: int, rules: Rules) -> World | None:
    """The world after one step of an actor, or None when it has nothing left to do."""
    actor = world.actors[number]
    log, staged, published = world.log, world.staged, world.published
    if actor.step == "read":
        ends = {"a": 2, "b": END, "last": END}
        if actor.name == "c":
            old = staged - state_after(log).works - state_after(log).voided
            actor = actor._replace(step="look" if old else "sweep", slot=len(log), offer=Offer("c", voided=old))
        elif next_offset(log) < ends[actor.name]:
            offer = Offer(actor.name, next_offset(log), ends[actor.name])
            actor = actor._replace(step="stage", slot=len(log), offer=offer)
        else:
            actor = actor._replace(step="link", slot=len(log))
    elif actor.step == "stage":
        staged |= {actor.name}
        actor = actor._replace(step="look")
    elif actor.step == "look":
        lost = "sweep" if actor.name == "c" else "end"
        actor = actor._replace(step=lost if conflicts(rules, log, actor) else "put")
    elif actor.step == "put":
        assert actor.offer is not None
        if len(log) == actor.slot:
            log = (*log, actor.offer)
            actor = actor._replace(step="sweep" if actor.name == "c" else "link", slot=len(log))
        else:
            actor = actor._replace(step="look", slot=actor.slot + 1)
    elif actor.step == "sweep":
        gone = staged & state_after(log).voided
        if not gone:
            return None
        staged -= {min(gone)}
    elif actor.step in ("link", "unlink"):
        if actor.apply > len(log):
            return None
        offer = log[actor.apply - 1]
        if offer.voided:
            actor = actor._replace(apply=actor.apply + 1)
        elif actor.step == "link":
            if offer.work not in published:
                if offer.work not in staged:
                    raise AssertionError(f"the decided file of {offer.work} is lost: {log}")
                published |= {offer.work}
            actor = actor._replace(step="unlink")
        else:
            staged -= {offer.work}
            actor = actor._replace(step="link", apply=actor.apply + 1)
    else:
        return None
    actors = (*world.actors[:number], actor, *world.actors[number + 1 :])
    return World(log, staged, published, actors)


def check(world: World) -> None:
    rows = [offset for offer in world.log if offer.work in world.published for offset in range(offer.start, offer.end)]
    assert len(rows) == len(set(rows)), f"published twice: {world.log}"


def worlds(rules: Rules) -> Iterator[World]:
    """Every world that any interleaving reaches."""
    first = World((), frozenset(), frozenset(), tuple(Actor(name, "read") for name in "abc"))
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        check(world)
        yield world
        for number in range(len(world.actors)):
            after = step(world, number, rules)
            if after is not None and after not in seen:
                seen.add(after)
                waiting.append(after)


def one_more_load(world: World) -> World:
    """Whoever was at work has died; one undisturbed load catches up, reads the rest and publishes it."""
    alone = world._replace(actors=(Actor("last", "read"),))
    for _ in range(2):
        after: World | None = alone
        while after is not None:
            alone, after = after, step(after, 0, find_conflict)
        alone = alone._replace(actors=(Actor("last", "read"),))
    return alone


def test_every_interleaving_publishes_each_offset_once() -> None:
    finished: set[tuple[tuple[Offer, ...], frozenset[str], frozenset[str]]] = set()
    count = 0
    for world in worlds(find_conflict):
        count += 1
        rest = (world.log, world.staged, world.published)
        if rest in finished:
            continue
        finished.add(rest)
        done = one_more_load(world)
        check(done)
        rows = sorted(
            offset for offer in done.log if offer.work in done.published for offset in range(offer.start, offer.end)
        )
        assert rows == list(range(END)), world
    assert count > 1000


def no_load_rules(state: LoaderState, decision: Decision) -> Conflict | None:
    return find_conflict(state, decision) if decision.voided or decision.work_id in state.voided else None


def no_void_rule(state: LoaderState, decision: Decision) -> Conflict | None:
    return find_conflict(dataclasses.replace(state, voided=frozenset()), decision)


def no_rule_for_cleaning(state: LoaderState, decision: Decision) -> Conflict | None:
    return find_conflict(dataclasses.replace(state, works=frozenset()), decision)


@pytest.mark.parametrize("careless", [no_load_rules, no_void_rule, no_rule_for_cleaning])
def test_without_any_of_the_rules_an_interleaving_breaks(careless: Rules) -> None:
    with pytest.raises(AssertionError, match=r"is lost|published twice"):
        for _ in worlds(careless):
            pass
