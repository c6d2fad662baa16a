"""Explores the commits of one lane of the ledger over every interleaving of two gateways and their requests.

Two transactions belong to the lane. Clients send any request at any time to any gateway, and every gateway has every
chunk: that covers clients that repeat requests, send them to two gateways at once, or store a chunk again. Gateways
crash at any step, and begin again with the takeover of `LedgerLane`. A request to the brokers arrives at any time, also
after its sender has died or has given up waiting for the response, or never.

Each field of `Rules` is a step of `LedgerLane` or `Transactions`. Without it the exploration must find a violation,
which proves that the step is necessary and that the model can find defects.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

IDS = (0, 1)
REPEATS_MAX = 2


@dataclass(frozen=True)
class Rules:
    new_epoch: bool = True
    """A takeover gets a new epoch, which aborts an open transaction."""
    loads_after_epoch: bool = True
    """A takeover reads the ledger after it has the new epoch."""
    checks_ledger: bool = True
    """A transaction with a row in the ledger is not written again."""
    row_in_transaction: bool = True
    """The row is written in the transaction of the records."""
    lost_end_ends_epoch: bool = True
    """A request for a commit without a response is not sent again in the same epoch."""
    refuses_old_ids: bool = True
    """A transaction whose row the ledger may have forgotten is refused."""


STEPS = [field.name for field in dataclasses.fields(Rules)]


class Message(NamedTuple):
    """A request to the brokers that is under way: records, the row, or the end of a transaction."""

    epoch: int
    kind: str
    transaction: int


class Gateway(NamedTuple):
    phase: str = "down"
    epoch: int = -1
    known: frozenset[int] = frozenset()
    """The transactions whose rows it knows."""
    waits_for: Message | None = None


class World(NamedTuple):
    starts_left: int
    epoch: int = 0
    open: tuple[Message, ...] = ()
    """The content of the open transaction, which belongs to `epoch`."""
    stored: tuple[int, ...] = (0, 0)
    """How often the records of each chunk are visible."""
    rows: frozenset[int] = frozenset()
    old: frozenset[int] = frozenset()
    """The transactions whose ids are too old to use."""
    gateways: tuple[Gateway, ...] = (Gateway(), Gateway())
    messages: tuple[Message, ...] = ()


class Violation(Exception):
    pass


def steps(world: World, rules: Rules) -> Iterator[World]:
    for index, gateway in enumerate(world.gateways):
        for changed, own in gateway_steps(world, rules, gateway):
            yield with_gateway(changed, index, own)
    for message in set(world.messages):
        yield arrival(world, rules, message)
    if world.open:  # the broker aborts a transaction that takes too long
        yield world._replace(epoch=world.epoch + 1, open=())
    for transaction in IDS:
        yield from age(world, transaction)


def with_gateway(world: World, index: int, gateway: Gateway) -> World:
    return world._replace(gateways=(*world.gateways[:index], gateway, *world.gateways[index + 1 :]))


def gateway_steps(world: World, rules: Rules, gateway: Gateway) -> Iterator[tuple[World, Gateway]]:
    if gateway.phase == "down":
        if world.starts_left:
            started = world._replace(starts_left=world.starts_left - 1)
            if rules.loads_after_epoch:
                yield take_epoch(started, rules, gateway)
            else:
                yield started, Gateway("loaded", known=world.rows)
        return
    yield world, Gateway()  # it crashes, or gives up and begins again
    if gateway.phase == "loaded":
        changed, own = take_epoch(world, rules, gateway)
        yield changed, own._replace(phase="serving")
    elif gateway.phase == "started":
        yield world, gateway._replace(phase="serving", known=world.rows)
    elif gateway.waits_for is None:
        for transaction in IDS:
            is_known = transaction in gateway.known and rules.checks_ledger
            if not is_known and not (rules.refuses_old_ids and transaction in world.old):
                yield send(world, gateway, Message(gateway.epoch, "records", transaction))
    elif not rules.lost_end_ends_epoch and may_repeat(world, gateway.waits_for):
        yield send(world, gateway, gateway.waits_for)


def may_repeat(world: World, message: Message) -> bool:
    return message.kind == "end" and world.messages.count(message) < REPEATS_MAX


def take_epoch(world: World, rules: Rules, gateway: Gateway) -> tuple[World, Gateway]:
    if rules.new_epoch:
        world = world._replace(epoch=world.epoch + 1, open=())
    return world, gateway._replace(phase="started", epoch=world.epoch)


def send(world: World, gateway: Gateway, message: Message) -> tuple[World, Gateway]:
    return world._replace(messages=tuple(sorted((*world.messages, message)))), gateway._replace(waits_for=message)


def arrival(world: World, rules: Rules, message: Message) -> World:
    """The brokers get a request, and the gateway that waits for it the response."""
    messages = list(world.messages)
    messages.remove(message)
    world = world._replace(messages=tuple(messages))
    is_current = message.epoch == world.epoch
    if is_current and message.kind == "end":
        world = committed(world)
    elif is_current and message.kind == "row" and not rules.row_in_transaction:
        world = world._replace(rows=world.rows | {message.transaction})
    elif is_current:
        world = world._replace(open=(*world.open, message))
    for index, gateway in enumerate(world.gateways):
        if gateway.waits_for == message:
            world, own = response(world, rules, gateway, message) if is_current else (world, Gateway())
            return with_gateway(world, index, own)
    return world


def committed(world: World) -> World:
    records = [message.transaction for message in world.open if message.kind == "records"]
    stored = tuple(count + records.count(transaction) for transaction, count in enumerate(world.stored))
    if max(stored) > 1:
        raise Violation(f"the records of a chunk are stored twice: {stored}")
    rows = {message.transaction for message in world.open if message.kind == "row"}
    return world._replace(open=(), stored=stored, rows=world.rows | rows)


def response(world: World, rules: Rules, gateway: Gateway, message: Message) -> tuple[World, Gateway]:
    order = ("records", "row", "end") if rules.row_in_transaction else ("records", "end", "row")
    if message.kind != order[-1]:
        return send(world, gateway, message._replace(kind=order[order.index(message.kind) + 1]))
    if world.stored[message.transaction] != 1:
        raise Violation(f"transaction {message.transaction} is reported as committed, and is not stored once")
    return world, gateway._replace(waits_for=None, known=gateway.known | {message.transaction})


def age(world: World, transaction: int) -> Iterator[World]:
    """The id of a transaction becomes too old to use; a day later the ledger forgets its row. Until then every
    transaction that began before has ended."""
    if transaction not in world.old:
        yield world._replace(old=world.old | {transaction})
    elif transaction in world.rows and transaction not in {one.transaction for one in (*world.messages, *world.open)}:
        yield world._replace(
            rows=world.rows - {transaction},
            gateways=tuple(gateway._replace(known=gateway.known - {transaction}) for gateway in world.gateways),
        )


def check(world: World) -> None:
    """A row in the ledger is reported as a commit."""
    for transaction in world.rows:
        if world.stored[transaction] != 1:
            raise Violation(f"transaction {transaction} has a row, and is not stored once")


def normal(world: World) -> World:
    """Merges worlds that differ only in rejected requests that no gateway waits for, and in the order of the
    gateways."""
    awaited = {gateway.waits_for for gateway in world.gateways}
    return world._replace(
        gateways=tuple(sorted(world.gateways, key=repr)),
        messages=tuple(message for message in world.messages if message.epoch == world.epoch or message in awaited),
    )


def explore(rules: Rules, starts_max: int) -> int:
    """Visits all reachable worlds; returns their number.

    Args:
        starts_max: how often gateways begin a takeover.

    Raises:
        Violation: a reachable world breaks a promise.
    """
    seen = {World(starts_left=starts_max)}
    waiting = deque(seen)
    while waiting:
        for following in map(normal, steps(waiting.popleft(), rules)):
            if following not in seen:
                check(following)
                seen.add(following)
                waiting.append(following)
    return len(seen)


@pytest.mark.parametrize("starts_max", [3, pytest.param(5, marks=pytest.mark.simulation)])
def test_no_interleaving_stores_a_chunk_twice_or_reports_one_that_is_not_stored(starts_max: int) -> None:
    assert explore(Rules(), starts_max) > 1_000


@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_necessary(step: str) -> None:
    with pytest.raises(Violation):
        explore(dataclasses.replace(Rules(), **{step: False}), 2)
