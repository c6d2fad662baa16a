"""Explores the takeover of a lane over every interleaving of two gateways, their requests and two clients.

The model has one source in one partition. Gateways crash at any step, and begin again with the takeover of `LaneLog`. A
request of a gateway or a client arrives at any time, also after its sender has died, or never. Two clients send
the same records in sessions of their own, so the later session must end the earlier one.

Each field of `Rules` is a step that `LaneLog` or `Lane` takes. Without it the exploration must find a violation, which
proves that the step is necessary and that the model can find defects.

Logs do not change below their end, so a gateway loads or scans a log in the same step in which it learns the end. The
state topic is only the result of a load, and the log of the partition only its records, without fences.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

RECORDS = 2
OPENINGS_MAX = 2
CHECKPOINTS_MAX = 1
NOBODY = -1


@dataclass(frozen=True)
class Rules:
    new_epoch: bool = True
    """A takeover gets a new epoch."""
    fences_state: bool = True
    """A takeover fences the state topic before it loads the state."""
    fences_data: bool = True
    """A takeover fences the partitions of the lane."""
    scans: bool = True
    """A takeover reads the records after the checkpoint."""
    scans_after_fence: bool = True
    """It reads them after it has fenced the partition."""
    registers: bool = True
    """A partition is registered in the state topic before the first record goes there."""
    stores_sessions: bool = True
    """The number of a session is stored before the response to its opening."""
    checks_sessions: bool = True
    """A chunk of an earlier session is refused."""
    retakes: bool = True
    """A write without a response ends the ownership."""
    checkpoints_acknowledged: bool = True
    """A checkpoint has only acknowledged records."""


STEPS = [field.name for field in dataclasses.fields(Rules)]


class State(NamedTuple):
    """The result of a load of the state topic: the source's last number and session, and the number of records that the
    checkpoint reflects; None if the partition is not registered. In a write, None leaves a value unchanged."""

    last: int | None = 0
    session: int | None = 0
    reflected: int | None = None

    def after(self, write: State) -> State:
        return State(*(old if new is None else new for old, new in zip(self, write, strict=True)))


class Record(NamedTuple):
    """A record for the partition; a fence has the number 0. `opening` identifies the opening of its session."""

    seqno: int
    opening: int


NOTHING = State(None, None, None)
FENCE = Record(0, NOBODY)


class Write(NamedTuple):
    """A request of a gateway that is under way. `start` identifies the gateway's takeover."""

    start: int
    epoch: int
    content: State | Record


class Chunk(NamedTuple):
    """A chunk of one record that is under way from a client."""

    client: int
    session: int
    seqno: int
    opening: int


class Gateway(NamedTuple):
    start: int = 0
    epoch: int = 0
    phase: str = "down"
    state: State = State()
    opened: int | None = None
    """The session that was opened here last; chunks of others are refused."""
    waits_for: Write | None = None
    """The request whose response it waits for; it sends no other meanwhile."""
    cause: Chunk | tuple[int, int] | None = None
    """The chunk, or client and opening, that it responds to then."""


class Client(NamedTuple):
    phase: str = "closed"
    start: int = 0
    session: int = 0
    last: int = 0
    opening: int = NOBODY


class World(NamedTuple):
    starts_left: int
    epoch: int = 0
    starts: int = 0
    openings: int = 0
    checkpoints: int = 0
    state_epoch: int = 0
    state: State = State()
    data_epoch: int = 0
    data: tuple[int, ...] = ()
    gateways: tuple[Gateway, ...] = (Gateway(), Gateway())
    clients: tuple[Client, ...] = (Client(), Client())
    writes: frozenset[Write] = frozenset()
    chunks: frozenset[Chunk] = frozenset()
    newest: int = NOBODY
    """The opening that was answered last."""


class Violation(Exception):
    pass


def replaced(items: tuple, old: NamedTuple, new: NamedTuple) -> tuple:  # type: ignore[type-arg]
    at = items.index(old)
    return (*items[:at], new, *items[at + 1 :])


def normal(world: World) -> World:
    """Merges worlds that differ only in what has no effect: requests to dead gateways, rejected writes, and the order
    of the gateways."""
    alive = {gateway.start for gateway in world.gateways}
    awaited = {gateway.waits_for for gateway in world.gateways}
    return world._replace(
        gateways=tuple(sorted(world.gateways, key=lambda gateway: gateway.start)),
        clients=tuple(
            client if client.start in alive and client.phase != "closed" else Client() for client in world.clients
        ),
        writes=frozenset(
            write for write in world.writes if write in awaited or write.epoch >= _log_epoch(world, write)
        ),
        chunks=frozenset(
            chunk
            for chunk in world.chunks
            if chunk.session > (world.state.session or 0)
            or any(gateway.opened is not None and gateway.opened >= chunk.session for gateway in world.gateways)
        ),
    )


def _log_epoch(world: World, write: Write) -> int:
    return world.state_epoch if isinstance(write.content, State) else world.data_epoch


def steps(world: World, rules: Rules) -> Iterator[World]:
    for gateway in set(world.gateways):
        yield from gateway_steps(world, rules, gateway)
    for write in world.writes:
        yield arrival(world, rules, write)
    for chunk in world.chunks:
        yield from chunk_steps(world, rules, chunk)
    for index, client in enumerate(world.clients):
        yield from client_steps(world, rules, index, client)


def changed(world: World, old: Gateway, new: Gateway) -> World:
    return world._replace(gateways=replaced(world.gateways, old, new))


def send(
    world: World,
    old: Gateway,
    new: Gateway,
    content: State | Record,
    cause: Chunk | tuple[int, int] | None = None,
) -> World:
    write = Write(new.start, new.epoch, content)
    return changed(world, old, new._replace(waits_for=write, cause=cause))._replace(writes=world.writes | {write})


def gateway_steps(world: World, rules: Rules, gateway: Gateway) -> Iterator[World]:
    if gateway.phase == "down":
        if world.starts_left:
            epoch = world.epoch + 1 if rules.new_epoch or not world.epoch else world.epoch
            started = Gateway(world.starts + 1, epoch, "started")
            yield changed(world, gateway, started)._replace(
                epoch=epoch, starts=world.starts + 1, starts_left=world.starts_left - 1
            )
        return
    yield changed(world, gateway, Gateway())  # it crashes, or has waited too long and begins again
    if gateway.waits_for is not None:
        if not rules.retakes and gateway.phase == "serving":
            yield changed(world, gateway, gateway._replace(waits_for=None, cause=None))
    elif gateway.phase == "started" and rules.fences_state:
        yield send(world, gateway, gateway, NOTHING)
    elif gateway.phase == "started":
        yield changed(world, gateway, gateway._replace(phase="loaded", state=world.state))
    elif gateway.phase == "loaded" and gateway.state.reflected is None:
        yield changed(world, gateway, gateway._replace(phase="serving"))
    elif gateway.phase == "loaded" and rules.fences_data and rules.scans_after_fence:
        yield send(world, gateway, gateway, FENCE)
    elif gateway.phase == "loaded":
        yield changed(world, gateway, scanned(world, rules, gateway, "scanned" if rules.fences_data else "serving"))
    elif gateway.phase == "scanned":
        yield send(world, gateway, gateway, FENCE)
    elif world.checkpoints < CHECKPOINTS_MAX and gateway.state.reflected is not None:
        counted = world._replace(checkpoints=world.checkpoints + 1)
        yield send(counted, gateway, gateway, gateway.state)


def scanned(world: World, rules: Rules, gateway: Gateway, phase: str) -> Gateway:
    state = gateway.state
    if rules.scans:
        state = state._replace(last=max((state.last or 0, *world.data[state.reflected :])), reflected=len(world.data))
    return gateway._replace(phase=phase, state=state, waits_for=None, cause=None)


def arrival(world: World, rules: Rules, write: Write) -> World:
    """A broker gets a request, and the gateway that waits for it the response."""
    world = world._replace(writes=world.writes - {write})
    gateway = next((gateway for gateway in world.gateways if gateway.waits_for == write), None)
    if write.epoch < _log_epoch(world, write):
        return world if gateway is None else changed(world, gateway, Gateway())
    if isinstance(write.content, State):
        world = world._replace(state_epoch=write.epoch, state=world.state.after(write.content))
    else:
        world = world._replace(data_epoch=write.epoch, data=appended(world, write.content))
    return world if gateway is None else response(world, rules, gateway, write.content)


def appended(world: World, record: Record) -> tuple[int, ...]:
    if not record.seqno:
        return world.data
    if record.opening != world.newest:
        raise Violation("a record of an ended session was stored")
    if record.seqno != len(world.data) + 1:
        raise Violation(f"lost, doubled or reordered: {(*world.data, record.seqno)}")
    return (*world.data, record.seqno)


def response(world: World, rules: Rules, gateway: Gateway, content: State | Record) -> World:
    own = gateway._replace(waits_for=None, cause=None)
    if gateway.phase == "started":
        return changed(world, gateway, own._replace(phase="loaded", state=world.state))
    if gateway.phase == "loaded":
        return changed(world, gateway, scanned(world, rules, gateway, "serving"))
    if gateway.phase == "scanned":
        return changed(world, gateway, own._replace(phase="serving"))
    if isinstance(gateway.cause, Chunk):
        chunk = gateway.cause
        stored = own._replace(state=own.state._replace(last=chunk.seqno, reflected=len(world.data)))
        return respond(changed(world, gateway, stored), chunk)
    if gateway.cause is not None:
        index, opening = gateway.cause
        reflected = own.state.reflected
        if reflected is None:
            assert isinstance(content, State)
            reflected = content.reflected or 0
        session = (own.state.session or 0) + 1
        opened = own._replace(state=own.state._replace(session=session, reflected=reflected), opened=session)
        return respond_opening(changed(world, gateway, opened), opened, index, opening)
    return changed(world, gateway, own)


def respond_opening(world: World, gateway: Gateway, index: int, opening: int) -> World:
    last, session = gateway.state.last or 0, gateway.state.session or 0
    if last > len(world.data):
        raise Violation(f"number {last} is reported as stored, the log has {len(world.data)}")
    client = world.clients[index]
    if client.phase == "opening" and client.opening == opening:
        client = Client("open", gateway.start, session, last, opening)
    return world._replace(newest=opening, clients=replaced_at(world.clients, index, client))


def respond(world: World, chunk: Chunk) -> World:
    if chunk.seqno > len(world.data):
        raise Violation(f"number {chunk.seqno} is acknowledged, the log has {len(world.data)}")
    client = world.clients[chunk.client]
    if client.phase == "sending" and client.opening == chunk.opening and client.last == chunk.seqno - 1:
        client = client._replace(phase="open", last=chunk.seqno)
    return world._replace(clients=replaced_at(world.clients, chunk.client, client))


def replaced_at(clients: tuple[Client, ...], index: int, client: Client) -> tuple[Client, ...]:
    return (*clients[:index], client, *clients[index + 1 :])


def chunk_steps(world: World, rules: Rules, chunk: Chunk) -> Iterator[World]:
    """A gateway receives a chunk. The owner of a session at its opening may not be the owner any more."""
    for gateway in world.gateways:
        if gateway.phase == "serving" and gateway.waits_for is None and gateway.opened is not None:
            yield from received(world._replace(chunks=world.chunks - {chunk}), rules, gateway, chunk)


def received(world: World, rules: Rules, gateway: Gateway, chunk: Chunk) -> Iterator[World]:
    if rules.checks_sessions and chunk.session != gateway.opened:
        yield world
    elif chunk.seqno <= (gateway.state.last or 0):
        yield respond(world, chunk)
    else:
        sent = send(world, gateway, gateway, Record(chunk.seqno, chunk.opening), chunk)
        if not rules.checkpoints_acknowledged:
            early = gateway.state._replace(last=chunk.seqno, reflected=len(world.data) + 1)
            sent = sent._replace(writes=sent.writes | {Write(gateway.start, gateway.epoch, early)})
        yield sent


def client_steps(world: World, rules: Rules, index: int, client: Client) -> Iterator[World]:
    if client.phase != "closed":
        # It has waited too long, or the gateway has no such session.
        yield world._replace(clients=replaced_at(world.clients, index, Client()))
    if client.phase == "open" and client.last < RECORDS:
        chunk = Chunk(index, client.session, client.last + 1, client.opening)
        sending = replaced_at(world.clients, index, client._replace(phase="sending"))
        yield world._replace(clients=sending, chunks=world.chunks | {chunk})
    if client.phase != "closed" or world.openings == OPENINGS_MAX:
        return
    for gateway in world.gateways:
        if gateway.phase != "serving" or gateway.waits_for is not None:
            continue
        opening = world.openings
        waiting = replaced_at(world.clients, index, Client("opening", gateway.start, opening=opening))
        session = (gateway.state.session or 0) + 1 if rules.stores_sessions else None
        reflected = len(world.data) if rules.registers and gateway.state.reflected is None else None
        yield send(
            world._replace(clients=waiting, openings=opening + 1),
            gateway,
            gateway,
            State(None, session, reflected),
            (index, opening),
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
                seen.add(following)
                waiting.append(following)
    return len(seen)


@pytest.mark.parametrize("starts_max", [2, pytest.param(3, marks=pytest.mark.simulation)])
def test_no_interleaving_loses_doubles_or_reorders_records(starts_max: int) -> None:
    assert explore(Rules(), starts_max) > 20_000


@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_necessary(step: str) -> None:
    with pytest.raises(Violation):
        explore(dataclasses.replace(Rules(), **{step: False}), 2)
