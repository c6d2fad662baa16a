"""Requests and handles of a connection to the SQL endpoint."""

from __future__ import annotations

from typing import Any

import pytest
from TCLIService import ttypes

from headrace.pipeline.sql_endpoint.messages import METHODS, Request
from headrace.pipeline.sql_endpoint.sessions import (
    FETCH_ROWS_MAX,
    OPERATIONS_MAX,
    SESSIONS_MAX,
    STATEMENT_CHARS_MAX,
    ConnectionHandles,
    RequestDenied,
    opens_handle,
    prepare,
    record,
)

LATEST = ttypes.TProtocolVersion.HIVE_CLI_SERVICE_PROTOCOL_V10


def session(number: int) -> ttypes.TSessionHandle:
    return ttypes.TSessionHandle(sessionId=ttypes.THandleIdentifier(guid=b"%016d" % number, secret=b"s" * 16))


def operation(number: int, secret: bytes = b"o" * 16) -> ttypes.TOperationHandle:
    return ttypes.TOperationHandle(
        operationId=ttypes.THandleIdentifier(guid=b"%016d" % number, secret=secret),
        operationType=ttypes.TOperationType.EXECUTE_STATEMENT,
        hasResultSet=True,
    )


def request(method: str, **fields: Any) -> Request:
    return Request(method, 1, getattr(ttypes, f"T{method}Req")(**fields))


def opened(number: int, handles: ConnectionHandles, user: str = "alice") -> None:
    asked = request("OpenSession", client_protocol=LATEST)
    prepare(asked, handles, user)
    record(asked, ttypes.TOpenSessionResp(sessionHandle=session(number)), handles)


def executed(number: int, of_session: int, handles: ConnectionHandles) -> None:
    asked = request("ExecuteStatement", sessionHandle=session(of_session), statement="SELECT 1")
    prepare(asked, handles, "alice")
    record(asked, ttypes.TExecuteStatementResp(operationHandle=operation(number)), handles)


def reason(asked: Request, handles: ConnectionHandles) -> str:
    with pytest.raises(RequestDenied) as failure:
        prepare(asked, handles, "alice")
    return str(failure.value)


@pytest.mark.parametrize(
    ("configuration", "forwarded"),
    [
        (None, "default"),
        ({"use:database": "headrace"}, "headrace"),
        ({"use:database": "headrace", "set:hiveconf:spark.sql.variable.substitute": "true"}, "headrace"),
        ({"set:spark.sql.runSQLonFile": "true", "hive.exec.pre.hooks": "x.Y", "set:system:user.dir": "/"}, "default"),
    ],
)
def test_opening_a_session_forwards_the_database_only(configuration: dict[str, str] | None, forwarded: str) -> None:
    asked = request(
        "OpenSession", client_protocol=LATEST, username="root", password="secret", configuration=configuration
    )
    prepare(asked, ConnectionHandles(), "alice")
    assert asked.body.configuration == {"use:database": forwarded}
    assert (asked.body.username, asked.body.password) == ("alice", None)


@pytest.mark.parametrize("key", ["hive.server2.proxy.user", "set:hiveconf:hive.server2.proxy.user"])
def test_acting_for_another_user_is_denied(key: str) -> None:
    asked = request("OpenSession", client_protocol=LATEST, configuration={key: "root"})
    assert "another user" in reason(asked, ConnectionHandles())


@pytest.mark.parametrize("name", ["", "a b", "a;drop", "`a`", "a.b", "x" * 129, "identifier('a')", "ä", "a\n"])
def test_database_of_a_session_is_a_plain_name(name: str) -> None:
    # Spark runs "use " and this text as a statement.
    asked = request("OpenSession", client_protocol=LATEST, configuration={"use:database": name})
    assert "database" in reason(asked, ConnectionHandles())


@pytest.mark.parametrize("method", ["GetDelegationToken", "CancelDelegationToken", "RenewDelegationToken"])
def test_tokens_are_denied(method: str) -> None:
    handles = ConnectionHandles()
    opened(1, handles)
    assert method in reason(request(method, sessionHandle=session(1)), handles)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_handles_of_another_connection_are_unknown(method: str) -> None:
    others, own = ConnectionHandles(), ConnectionHandles()
    opened(1, others)
    executed(7, 1, others)
    opened(2, own)
    executed(8, 2, own)
    if method == "OpenSession":
        return
    for handle in (session(1), operation(7), operation(8, b"x" * 16), ttypes.TOperationHandle(), None):
        body = getattr(ttypes, f"T{method}Req")()
        kind = "sessionHandle" if hasattr(body, "sessionHandle") else "operationHandle"
        setattr(body, kind, handle)
        reason(Request(method, 1, body), own)


def test_closed_handles_are_unknown() -> None:
    handles = ConnectionHandles()
    opened(1, handles)
    executed(7, 1, handles)
    executed(8, 1, handles)
    fetch = request("FetchResults", operationHandle=operation(7))
    prepare(fetch, handles, "alice")
    record(request("CloseOperation", operationHandle=operation(7)), None, handles)
    assert "operation" in reason(fetch, handles)
    prepare(request("FetchResults", operationHandle=operation(8)), handles, "alice")
    record(request("CloseSession", sessionHandle=session(1)), None, handles)
    assert "operation" in reason(request("FetchResults", operationHandle=operation(8)), handles)
    assert "session" in reason(request("GetTables", sessionHandle=session(1)), handles)
    assert handles == ConnectionHandles()


def test_failed_requests_open_nothing() -> None:
    handles = ConnectionHandles()
    asked = request("OpenSession", client_protocol=LATEST)
    record(asked, ttypes.TOpenSessionResp(), handles)
    record(asked, None, handles)
    assert handles == ConnectionHandles()


def test_sessions_and_results_of_a_connection_are_limited() -> None:
    handles = ConnectionHandles()
    for number in range(SESSIONS_MAX):
        opened(number, handles)
    assert "open sessions" in reason(request("OpenSession", client_protocol=LATEST), handles)
    for number in range(OPERATIONS_MAX):
        executed(number, 0, handles)
    assert "open results" in reason(request("GetTables", sessionHandle=session(0)), handles)
    prepare(request("GetTables", sessionHandle=session(1)), handles, "alice")
    record(request("CloseOperation", operationHandle=operation(3)), None, handles)
    prepare(request("GetTables", sessionHandle=session(0)), handles, "alice")


@pytest.mark.parametrize(
    ("asked", "forwarded"),
    [(2**62, FETCH_ROWS_MAX), (FETCH_ROWS_MAX + 1, FETCH_ROWS_MAX), (10, 10), (0, FETCH_ROWS_MAX), (-5, 1)],
)
def test_rows_of_a_response_are_limited(asked: int, forwarded: int) -> None:
    handles = ConnectionHandles()
    opened(1, handles)
    executed(7, 1, handles)
    fetch = request("FetchResults", operationHandle=operation(7), maxRows=asked)
    prepare(fetch, handles, "alice")
    assert fetch.body.maxRows == forwarded


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT 1;", " SELECT 1 ; ;\n"])
def test_statement_loses_settings_and_semicolons(text: str) -> None:
    handles = ConnectionHandles()
    opened(1, handles)
    asked = request("ExecuteStatement", sessionHandle=session(1), statement=text, confOverlay={"spark.sql.x": "y"})
    prepare(asked, handles, "alice")
    assert (asked.body.statement, asked.body.confOverlay) == ("SELECT 1", None)


@pytest.mark.parametrize("text", [None, "", " ; ", "x" * (STATEMENT_CHARS_MAX + 1)])
def test_empty_and_long_statements_are_denied(text: str | None) -> None:
    handles = ConnectionHandles()
    opened(1, handles)
    assert "statement" in reason(request("ExecuteStatement", sessionHandle=session(1), statement=text), handles)


def test_methods_whose_responses_have_handles() -> None:
    assert {name for name in METHODS if opens_handle(name)} == {
        name for name in METHODS if hasattr(getattr(ttypes, f"T{name}Resp")(), "operationHandle")
    } | {"OpenSession"}
