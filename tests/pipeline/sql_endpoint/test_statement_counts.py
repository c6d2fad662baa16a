"""Counts and cancellation of the statements of the SQL endpoint, with a Spark that responds as the test requires."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from TCLIService import TCLIService, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from headrace.pipeline.server_metrics import QueryCounts, QueryTotals
from headrace.pipeline.sql_endpoint import messages
from headrace.pipeline.sql_endpoint import server as server_module
from headrace.pipeline.sql_endpoint.access import EndpointAccess
from headrace.pipeline.sql_endpoint.messages import Request
from headrace.pipeline.sql_endpoint.server import PLANNING_MAX_S, EndpointOptions, SqlEndpoint, _Connection
from headrace.pipeline.sql_endpoint.sessions import HandleKey, handle_key
from headrace.pipeline.sql_endpoint.statements import StatementDenied

State = ttypes.TOperationState
OK = ttypes.TStatus(statusCode=ttypes.TStatusCode.SUCCESS_STATUS)
SESSION = ttypes.TSessionHandle(ttypes.THandleIdentifier(b"s" * 16, b"x" * 16))


def operation(number: int) -> Any:
    identifier = ttypes.THandleIdentifier(bytes([number]) * 16, b"x" * 16)
    return ttypes.TOperationHandle(identifier, ttypes.TOperationType.EXECUTE_STATEMENT, True)


def encoded(method: str, **values: Any) -> bytes:
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer)
    protocol.writeMessageBegin(method, TMessageType.REPLY, 0)
    body = getattr(ttypes, f"T{method}Resp")(status=OK, **values)
    getattr(TCLIService, f"{method}_result")(body).write(protocol)
    protocol.writeMessageEnd()
    return bytes(buffer.getvalue())


class World:
    """An endpoint with one connection and session. `states` are the states that Spark reports, one after another."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = QueryCounts()
        self.states: list[int] = []
        self.has_handle = True
        self.started = 0
        self.cancelled: list[int] = []
        options = EndpointOptions(EndpointAccess(None, "", None), frozenset(), directory, False, str, self.counts)
        self.endpoint = SqlEndpoint(self, options)  # type: ignore[arg-type]
        self.connection = _Connection(socket.socket(), "127.0.0.1", 0.0, user="")
        self.connection.socket.close()
        self.connection.handles.operations[handle_key(SESSION)] = set()
        self.check: Callable[[], None] = lambda: None
        monkeypatch.setattr(self.endpoint, "_check_statement", lambda *arguments: self.check())

    def process(self, message: bytes) -> bytes:
        """Stands for Spark."""
        method = messages.decode_request(message).method
        if method == "ExecuteStatement":
            self.started += 1
            return encoded(method, operationHandle=operation(self.started) if self.has_handle else None)
        if method == "GetOperationStatus":
            return encoded(method, operationState=self.states.pop(0))
        return encoded(method)

    def cancel_jobs(self, statements: Collection[HandleKey]) -> None:
        self.cancelled += sorted(guid[0] for guid, _ in statements)

    def execute(self, *, waits: bool = True) -> None:
        body = ttypes.TExecuteStatementReq(sessionHandle=SESSION, statement="SELECT 1", runAsync=not waits)
        self.respond("ExecuteStatement", body)

    def poll(self, state: int, number: int = 1) -> None:
        self.states.append(state)
        self.respond("GetOperationStatus", ttypes.TGetOperationStatusReq(operationHandle=operation(number)))

    def respond(self, method: str, body: Any) -> None:
        self.endpoint._respond(self.connection, self, messages.encode_request(Request(method, 0, body)))  # type: ignore[arg-type]

    def totals(self) -> tuple[int, int, int]:
        totals = self.counts.totals()
        assert isinstance(totals, QueryTotals)
        return totals.running, totals.succeeded, totals.failed


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("states", "has_handle", "expected"),
    [
        ([State.RUNNING_STATE, State.FINISHED_STATE], True, (0, 1, 0)),
        ([State.PENDING_STATE, State.ERROR_STATE], True, (0, 0, 1)),
        ([State.CANCELED_STATE], True, (0, 0, 1)),
        ([], False, (0, 0, 1)),  # Spark has not started it
    ],
)
def test_statement_for_which_the_client_waits(
    world: World, states: list[int], has_handle: bool, expected: tuple[int, int, int]
) -> None:
    world.states, world.has_handle = states, has_handle
    world.execute()
    assert world.totals() == expected


def test_denied_statement_has_failed(world: World) -> None:
    def deny() -> None:
        raise StatementDenied("no")

    world.check = deny
    with pytest.raises(StatementDenied):  # `_check_statement` itself translates it
        world.execute()
    assert world.totals() == (0, 0, 1)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.FINISHED_STATE, (0, 1, 0)),
        (State.ERROR_STATE, (0, 0, 1)),
        (State.CANCELED_STATE, (0, 0, 1)),
    ],
)
def test_statement_in_the_background_is_counted_once_when_its_state_is_read(
    world: World, state: int, expected: tuple[int, int, int]
) -> None:
    world.execute(waits=False)
    world.poll(State.RUNNING_STATE)
    assert world.totals() == (1, 0, 0)
    world.poll(state)
    assert world.totals() == expected
    world.poll(state)
    world.respond("CloseOperation", ttypes.TCloseOperationReq(operationHandle=operation(1)))
    world.respond("CloseSession", ttypes.TCloseSessionReq(sessionHandle=SESSION))
    assert world.totals() == expected


@pytest.mark.parametrize("method", ["CancelOperation", "CloseOperation", "CloseSession"])
def test_statement_that_is_closed_before_its_end_has_failed(world: World, method: str) -> None:
    world.execute(waits=False)
    world.execute(waits=False)
    world.poll(State.FINISHED_STATE, 2)
    body = getattr(ttypes, f"T{method}Req")
    world.respond(method, body(SESSION) if method == "CloseSession" else body(operation(1)))
    assert world.totals() == (0, 1, 1)
    assert world.cancelled == [1], "only the statement that was still running"


def test_jobs_of_a_cancelled_statement_are_cancelled_again_while_it_may_be_planned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(server_module.time, "monotonic", lambda: now)
    world.execute(waits=False)
    world.respond("CancelOperation", ttypes.TCancelOperationReq(operationHandle=operation(1)))
    now += PLANNING_MAX_S - 1
    world.endpoint._cancel_again()
    assert world.cancelled == [1, 1]
    now += 1
    world.endpoint._cancel_again()
    assert world.cancelled == [1, 1]


def test_statements_to_cancel_again_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CANCELLED_MAX", 2)
    for number in (1, 2, 3):
        world.execute(waits=False)
        world.respond("CancelOperation", ttypes.TCancelOperationReq(operationHandle=operation(number)))
    world.cancelled.clear()
    world.endpoint._cancel_again()
    assert world.cancelled == [2, 3]


@pytest.mark.parametrize("waits", [True, False])
def test_statement_of_a_client_that_hung_up_meanwhile_is_closed(world: World, waits: bool) -> None:
    world.connection.is_closing = True
    world.execute(waits=waits)
    assert world.totals() == (0, 0, 1)
    assert world.cancelled == [1]
    assert not world.connection.handles.has_operation(handle_key(operation(1)))


def test_close_of_the_connection_cancels_the_statement_for_which_the_client_waits(world: World) -> None:
    world.states = [State.RUNNING_STATE, State.CANCELED_STATE]
    hang_up = world.process

    def process(message: bytes) -> bytes:
        if len(world.states) == 1:  # the client hangs up after the first state
            world.endpoint._close_sessions(world.connection)
        return hang_up(message)

    world.process = process  # type: ignore[method-assign]
    world.execute()
    assert world.cancelled[0] == 1
