"""The SQL endpoint on a real Spark, with PyHive, beeline and a hostile client."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyhive import hive
from pyhive.exc import OperationalError
from TCLIService import TCLIService, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException
from thrift.transport.TSSLSocket import TSSLSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException
from thrift_sasl import TSaslClientTransport

from headrace.pipeline.server_metrics import QueryCounts
from headrace.pipeline.sql_endpoint import server as server_module
from headrace.pipeline.sql_endpoint.access import EndpointAccess, open_access
from headrace.pipeline.sql_endpoint.permitted import FUNCTIONS
from headrace.pipeline.sql_endpoint.server import EndpointOptions, SqlEndpoint
from headrace.pipeline.sql_endpoint.spark_service import SparkService
from headrace.pipeline.sql_server import ENDPOINT_PROPERTIES
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from headrace.settings import load_settings
from support.certificates import Authority
from support.hive.spark_sessions import spark_session
from support.memory_directory import memory_directory

pytestmark = pytest.mark.spark

CHEAP = Cost(4, 8, 1)
PASSWORDS = {"reader": "read:ing", "writer": "writing", "shop": "shopping"}
GRANTS = """
grant reader sql-read *
grant writer sql-write *
grant shop write *
"""
ROWS = [(1, "a"), (2, "b"), (3, "c")]


@dataclass
class Endpoint:
    """A running endpoint: with users and TLS on `port`, and without both on `open_port`."""

    session: Any
    directory: Path
    authority: Authority
    port: int
    open_port: int
    counts: QueryCounts

    def connect(self, user: str, password: str | None = None, **configuration: str) -> hive.Connection:
        """Connects as PyHive does with auth="LDAP", over TLS."""
        channel = TSSLSocket("localhost", self.port, cert_reqs=ssl.CERT_REQUIRED, ca_certs=str(self.authority.ca_file))
        return hive.connect(
            thrift_transport=sasl(channel, user, PASSWORDS[user] if password is None else password),
            username=user,
            database="headrace",
            configuration=configuration,
        )

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "logs" / "sql-audit.jsonl").read_text().splitlines()]


def sasl(channel: Any, user: str, password: str) -> TSaslClientTransport:
    return TSaslClientTransport(
        lambda: hive.get_installed_sasl(host="localhost", sasl_auth="PLAIN", username=user, password=password),
        "PLAIN",
        channel,
    )


def listener() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return found


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with memory_directory("sql_endpoint") as directory, contextlib.ExitStack() as sockets:
        authority = Authority(directory / "tls")
        certificate, key = authority.certificate("server")
        users = directory / "users"
        lines = [user_line(name, PasswordHash.of(word, os.urandom(16), CHEAP)) for name, word in PASSWORDS.items()]
        users.write_text("\n".join(lines) + GRANTS)
        flags = {
            "registry.users": str(users),
            "sql.listen": "127.0.0.1:0",
            "sql.tls_certificate": str(certificate),
            "sql.tls_key": str(key),
        }
        with spark_session(directory / "data", directory / "warehouse", extra=ENDPOINT_PROPERTIES) as session:
            session.sql("CREATE DATABASE headrace")
            session.sql("CREATE TABLE headrace.orders (id INT, name STRING) USING parquet")
            session.sql("INSERT INTO headrace.orders VALUES (1, 'a'), (2, 'b'), (3, 'c')")
            service = SparkService(session)
            ports = []
            counts = QueryCounts()
            for access in (open_access(load_settings(flags=flags)), EndpointAccess(None, "", None)):
                options = EndpointOptions(
                    access=access,
                    loader_databases=frozenset({"headrace", "headrace_quarantine"}),
                    log_dir=directory / "logs",
                    audit_statements=False,
                    failure_reason=str,
                    counts=counts,
                )
                (directory / "logs").mkdir(exist_ok=True)
                bound = sockets.enter_context(listener())
                SqlEndpoint(service, options).start(bound)
                ports.append(bound.getsockname()[1])
            yield Endpoint(session, directory, authority, *ports, counts)


def rows(connection: hive.Connection, statement: str) -> list[tuple[Any, ...]]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
    finally:
        cursor.close()


def denial(connection: hive.Connection, statement: str) -> Any:
    """Runs a statement that must fail, and returns the status."""
    with pytest.raises(OperationalError) as failure:
        rows(connection, statement)
    return failure.value.args[0].status


def tables(endpoint: Endpoint) -> set[tuple[str, str]]:
    names = [row[0] for row in endpoint.session.sql("SHOW DATABASES").collect()]
    return {(name, row[1]) for name in names for row in endpoint.session.sql(f"SHOW TABLES IN {name}").collect()}


QUERIES = (
    "SELECT * FROM orders ORDER BY id",
    "SELECT o.id, o.name FROM headrace.orders AS o WHERE o.id IN (1, 2, 3) AND NOT o.name LIKE 'x%' ORDER BY 1",
    "WITH c AS (SELECT id, name FROM orders) SELECT * FROM c WHERE EXISTS (SELECT 1 FROM c d WHERE d.id = c.id) "
    "ORDER BY id",
    "SELECT id, max(name) AS m FROM (SELECT * FROM orders) x GROUP BY id HAVING count(*) > 0 ORDER BY 1 NULLS LAST",
    "SELECT CAST(id AS INT), CASE WHEN id > 0 THEN lower(name) ELSE 'z' END FROM orders ORDER BY id",
    "(SELECT id, name FROM orders) UNION (SELECT id, name FROM orders) ORDER BY id",
    "SELECT a.id, b.name FROM orders a JOIN orders b ON a.id = b.id LEFT JOIN orders c USING (id) ORDER BY 1",
    "SELECT id, first_value(name) OVER (PARTITION BY id ORDER BY name) FROM orders ORDER BY id",
    "SELECT `orders`.`id` AS `id`, `orders`.`name` AS `name` FROM `headrace`.`orders` `orders` ORDER BY 1 LIMIT 1000",
)
"""Queries in the forms of analysts and BI tools. Each returns `ROWS`."""


def test_reader_runs_queries(endpoint: Endpoint) -> None:
    with contextlib.closing(endpoint.connect("reader")) as connection:
        for statement in QUERIES:
            assert rows(connection, statement) == ROWS, statement


def test_reader_lists_and_describes(endpoint: Endpoint) -> None:
    with contextlib.closing(endpoint.connect("reader")) as connection:
        for statement in (
            "SHOW DATABASES",
            "SHOW TABLES IN headrace LIKE 'o*'",
            "SHOW COLUMNS IN orders",
            "SHOW CREATE TABLE headrace.orders",
            "DESCRIBE headrace.orders",
            "DESCRIBE FORMATTED orders",
            "EXPLAIN FORMATTED SELECT count(*) FROM orders",
            "SHOW FUNCTIONS",
            "DESCRIBE FUNCTION abs",
        ):
            assert rows(connection, statement), statement
        rows(connection, "USE default")
        rows(connection, "SET TIME ZONE 'Asia/Tokyo'")
        assert rows(connection, "SELECT current_timezone()") == [("Asia/Tokyo",)]
        cursor = connection.cursor()
        assert ("orders",) in {(name,) for _, name, _ in rows(connection, "SHOW TABLES IN headrace")}
        metadata = connection.client.GetColumns(
            ttypes.TGetColumnsReq(sessionHandle=connection.sessionHandle, schemaName="headrace", tableName="orders")
        )
        assert metadata.status.statusCode == ttypes.TStatusCode.SUCCESS_STATUS
        cursor.close()


CANARY = "the content of a file outside of the warehouse"

WRITES = (
    "INSERT INTO headrace.orders VALUES (4, 'd')",
    "INSERT OVERWRITE headrace.orders SELECT 4, 'd'",
    "WITH c AS (SELECT 4, 'd') INSERT INTO headrace.orders SELECT * FROM c",
    "FROM headrace.orders INSERT INTO headrace.orders SELECT * INSERT INTO headrace.orders SELECT *",
    "/* SELECT */ DROP TABLE headrace.orders",
    "DROP TABLE headrace.orders",
    "DROP DATABASE headrace CASCADE",
    "CREATE DATABASE mine",
    "CREATE TABLE mine.t AS SELECT 1 AS a",
    "CREATE VIEW mine.v AS SELECT 1 AS a",
    "EXPLAIN INSERT INTO headrace.orders VALUES (4, 'd')",
    "EXPLAIN EXTENDED CREATE TABLE mine.t AS SELECT 1 AS a",
)
"""Statements that need `sql-write`."""

HOSTILE = (
    "SELECT * FROM text.`{canary}`",
    "SELECT * FROM `text`.`file://{canary}`",
    "SELECT (SELECT max(value) FROM text.`{canary}`)",
    "SELECT * FROM orders WITH (path = '{canary}')",
    "SELECT * FROM IDENTIFIER('text.`{canary}`')",
    "SELECT * FROM IDENTIFIER('orders' || '')",
    "SELECT * FROM orders VERSION AS OF 1",
    "SELECT * FROM STREAM orders",
    "CREATE TEMPORARY VIEW v USING text OPTIONS (path '{canary}')",
    "CREATE TABLE default.t USING text OPTIONS (path '{canary}')",
    "CREATE TABLE default.t USING text LOCATION '{canary}'",
    "CREATE EXTERNAL TABLE default.t (a STRING) STORED AS TEXTFILE LOCATION '{outside}'",
    "CREATE TABLE default.t ROW FORMAT SERDE 'x.Y' AS SELECT 1 AS a",
    "CREATE TABLE default.t USING jdbc AS SELECT 1 AS a",
    "CREATE TABLE default.t USING parquet TBLPROPERTIES ('path' = '{outside}') AS SELECT 1 AS a",
    "CREATE DATABASE mine LOCATION '{outside}'",
    "CREATE DATABASE mine WITH DBPROPERTIES ('path' = '{outside}')",
    "INSERT OVERWRITE DIRECTORY '{outside}' USING csv SELECT 1",
    "INSERT OVERWRITE LOCAL DIRECTORY '{outside}' ROW FORMAT DELIMITED SELECT 1",
    "INSERT INTO default.t WITH (path = '{outside}') SELECT 1",
    "LOAD DATA LOCAL INPATH '{canary}' INTO TABLE headrace.orders",
    "ALTER TABLE headrace.orders SET LOCATION '{outside}'",
    "ALTER TABLE headrace.orders SET TBLPROPERTIES ('a' = 'b')",
    "ALTER DATABASE headrace SET LOCATION '{outside}'",
    "TRUNCATE TABLE headrace.orders",
    "ANALYZE TABLE headrace.orders COMPUTE STATISTICS",
    "MSCK REPAIR TABLE headrace.orders",
    "REFRESH '{outside}'",
    "CACHE TABLE headrace.orders",
    "CLEAR CACHE",
    "ADD JAR '{canary}'",
    "ADD FILE '{canary}'",
    "LIST FILES",
    "SELECT TRANSFORM(name) USING 'touch {outside}/touched' AS (x) FROM orders",
    "FROM orders MAP id USING 'touch {outside}/touched' AS x",
    "SELECT reflect('java.lang.System', 'setProperty', 'hostile', 'yes')",
    "SELECT `REFLECT`('java.lang.System', 'setProperty', 'hostile', 'yes')",
    "SELECT java_method('java.lang.System', 'setProperty', 'hostile', 'yes')",
    "SELECT try_reflect('java.lang.System', 'setProperty', 'hostile', 'yes')",
    "SELECT builtin.reflect('java.lang.System', 'setProperty', 'hostile', 'yes')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'setProperty', 'hostile', 'yes')",
    "SELECT * FROM orders ORDER BY reflect('java.lang.System', 'setProperty', 'hostile', 'yes')",
    "SELECT transform(array(1), x -> reflect('java.lang.System', 'setProperty', 'hostile', 'yes'))",
    "SELECT max(id) FILTER (WHERE reflect('java.lang.System', 'setProperty', 'hostile', 'yes') = '') FROM orders",
    "SELECT * FROM orders LATERAL VIEW reflect('java.lang.System', 'setProperty', 'hostile', 'yes') l AS x",
    "WITH c AS (SELECT reflect('java.lang.System', 'setProperty', 'hostile', 'yes')) SELECT 1",
    "VALUES (reflect('java.lang.System', 'setProperty', 'hostile', 'yes'))",
    "SELECT max(id) OVER w FROM orders "
    "WINDOW w AS (ORDER BY reflect('java.lang.System', 'setProperty', 'hostile', 'yes'))",
    "DESCRIBE QUERY SELECT reflect('java.lang.System', 'setProperty', 'hostile', 'yes')",
    "SELECT from_avro(x'00', '\"int\"', map('avroSchemaUrl', 'file://{canary}'))",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '{canary}'))",
    "CREATE FUNCTION f AS 'x.Y' USING JAR '{canary}'",
    "CREATE TEMPORARY FUNCTION f AS 'x.Y'",
    "CREATE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x + 1",
    "EXECUTE IMMEDIATE 'DROP TABLE headrace.orders'",
    "BEGIN DROP TABLE headrace.orders; END",
    "DECLARE VARIABLE x INT",
    "CALL sys.anything()",
    "SET spark.sql.variable.substitute=true",
    "SET spark.sql.runSQLonFile=true",
    "SET",
    "SET -v",
    "RESET",
    "DELETE FROM headrace.orders",
    "UPDATE headrace.orders SET id = 1",
    "MERGE INTO headrace.orders USING headrace.orders o ON true WHEN MATCHED THEN DELETE",
)
"""Statements that no grant permits."""


def run_hostile(endpoint: Endpoint, connection: hive.Connection, statement: str) -> str:
    """Runs a statement and returns everything that the client received."""
    outside, canary = endpoint.directory / "outside", endpoint.directory / "canary.txt"
    outside.mkdir(exist_ok=True)
    canary.write_text(CANARY)
    try:
        return str(rows(connection, statement.format(canary=canary, outside=outside)))
    except OperationalError as error:
        status = error.args[0].status
        return f"denied {status.sqlState} {status}"


@pytest.mark.parametrize("user", ["reader", "writer"])
def test_hostile_statements_are_denied_without_side_effect(endpoint: Endpoint, user: str) -> None:
    before, files = tables(endpoint), sorted((endpoint.directory / "warehouse").rglob("*.parquet"))
    system = endpoint.session._jvm.java.lang.System
    not_denied = []
    with contextlib.closing(endpoint.connect(user)) as connection:
        for statement in (*HOSTILE, *(WRITES if user == "reader" else ())):
            received = run_hostile(endpoint, connection, statement)
            assert CANARY not in received, statement
            if not received.startswith("denied 42501"):
                not_denied.append((statement, received[:300]))
    assert not not_denied, f"they ran, or only Spark has rejected them: {not_denied}"
    assert system.getProperty("hostile") is None
    assert list((endpoint.directory / "outside").iterdir()) == []
    assert tables(endpoint) == before
    assert sorted((endpoint.directory / "warehouse").rglob("*.parquet")) == files
    assert [tuple(row) for row in endpoint.session.sql("SELECT * FROM headrace.orders ORDER BY id").collect()] == ROWS


def test_denial_has_sqlstate_and_remedy(endpoint: Endpoint) -> None:
    with contextlib.closing(endpoint.connect("reader")) as connection:
        status = denial(connection, "DROP TABLE headrace.orders")
        assert status.sqlState == "42501"
        assert f"`grant reader sql-write *` to {endpoint.directory / 'users'}" in status.errorMessage
        assert denial(connection, "SELEC 1").sqlState == "42000"
        assert "too many" in denial(connection, "VALUES " + ",".join(["(1)"] * 25_000)).errorMessage
        assert denial(connection, "SELECT " + "+".join("1" * 5000)).sqlState == "42000"
        assert rows(connection, "SELECT 1") == [(1,)], "the connection can still be used"


def test_variables_in_statements_stay_text(endpoint: Endpoint) -> None:
    with contextlib.closing(endpoint.connect("reader")) as connection:
        assert rows(connection, "SELECT '${env:PATH}', '${system:user.dir}'") == [("${env:PATH}", "${system:user.dir}")]


def test_writer_writes_tables_of_other_databases_in_the_warehouse(endpoint: Endpoint) -> None:
    with contextlib.closing(endpoint.connect("writer")) as connection:
        for statement in (
            "CREATE DATABASE IF NOT EXISTS analysts COMMENT 'x'",
            "CREATE TABLE analysts.t (a INT, b STRING) USING parquet PARTITIONED BY (a) COMMENT 'y'",
            "INSERT INTO analysts.t SELECT name, 1 FROM headrace.orders",
            "INSERT OVERWRITE TABLE analysts.t PARTITION (a = 1) VALUES ('z')",
            "CREATE TABLE analysts.u AS SELECT * FROM analysts.t",
            "CREATE OR REPLACE VIEW analysts.v (a COMMENT 'x') AS SELECT a FROM analysts.u",
        ):
            rows(connection, statement)
        assert rows(connection, "SELECT a, b FROM analysts.u") == [(1, "z")]
        assert rows(connection, "SELECT * FROM analysts.v") == [(1,)]
        location = endpoint.session.sql("DESCRIBE FORMATTED analysts.u").where("col_name = 'Location'").collect()[0][1]
        assert str(endpoint.directory / "warehouse") in location
        for statement in ("DROP VIEW analysts.v", "DROP TABLE analysts.u", "DROP DATABASE analysts CASCADE"):
            rows(connection, statement)
        for statement, reason in (
            ("DROP TABLE headrace.orders", "only loads write"),
            ("DROP TABLE HEADRACE.orders", "only loads write"),
            ("DROP TABLE spark_catalog.headrace.orders", "only loads write"),
            ("INSERT INTO headrace.orders VALUES (4, 'd')", "only loads write"),
            ("DROP DATABASE headrace CASCADE", "only loads write"),
            ("DROP TABLE orders", "needs its database"),
        ):
            assert reason in denial(connection, statement).errorMessage, statement
    assert ("headrace", "orders") in tables(endpoint)


def test_functions_that_are_permitted_exist(endpoint: Endpoint) -> None:
    registries = endpoint.session._jvm.org.apache.spark.sql.catalyst.analysis
    existing = set()
    for registry in (registries.FunctionRegistry, registries.TableFunctionRegistry):
        iterator = registry.builtin().listFunction().iterator()
        while iterator.hasNext():
            existing.add(iterator.next().funcName())
    assert FUNCTIONS - existing <= {"ifnull"}, "FUNCTIONS has names that this Spark does not know"


@pytest.mark.parametrize(
    ("user", "password"), [("reader", "wrong"), ("reader", ""), ("nobody", "reading"), ("writer", "read:ing")]
)
def test_wrong_password_is_denied(endpoint: Endpoint, user: str, password: str) -> None:
    with pytest.raises(TTransportException, match=r"wrong user or password|too many password checks"):
        endpoint.connect(user, password)


def test_denial_of_user_without_grant_names_the_grant(endpoint: Endpoint) -> None:
    with pytest.raises(OperationalError, match="grant shop sql-read") as failure:
        endpoint.connect("shop")
    assert failure.value.args[0].status.sqlState == "42501"


def test_proxy_user_is_denied(endpoint: Endpoint) -> None:
    with pytest.raises(OperationalError, match="another user"):
        endpoint.connect("reader", **{"hive.server2.proxy.user": "writer"})


def test_settings_of_a_session_are_ignored(endpoint: Endpoint) -> None:
    hostile = {"set:hiveconf:spark.sql.variable.substitute": "true", "set:spark.sql.session.timeZone": "Asia/Tokyo"}
    with contextlib.closing(endpoint.connect("reader", **hostile)) as connection:
        assert rows(connection, "SELECT current_timezone(), '${env:PATH}'") == [("UTC", "${env:PATH}")]


def test_handles_of_another_user_are_unknown(endpoint: Endpoint) -> None:
    with (
        contextlib.closing(endpoint.connect("writer")) as victim,
        contextlib.closing(endpoint.connect("reader")) as thief,
    ):
        cursor = victim.cursor()
        cursor.execute("SELECT 'private'")
        stolen = cursor._operationHandle
        for response in (
            thief.client.FetchResults(ttypes.TFetchResultsReq(operationHandle=stolen, orientation=0, maxRows=10)),
            thief.client.GetResultSetMetadata(ttypes.TGetResultSetMetadataReq(operationHandle=stolen)),
            thief.client.CancelOperation(ttypes.TCancelOperationReq(operationHandle=stolen)),
            thief.client.CloseOperation(ttypes.TCloseOperationReq(operationHandle=stolen)),
            thief.client.CloseSession(ttypes.TCloseSessionReq(sessionHandle=victim.sessionHandle)),
            thief.client.ExecuteStatement(
                ttypes.TExecuteStatementReq(sessionHandle=victim.sessionHandle, statement="SELECT 1")
            ),
            thief.client.GetDelegationToken(
                ttypes.TGetDelegationTokenReq(sessionHandle=thief.sessionHandle, owner="a", renewer="a")
            ),
        ):
            assert response.status.statusCode == ttypes.TStatusCode.ERROR_STATUS
        assert cursor.fetchall() == [("private",)]


def test_client_without_sasl_gets_an_exception(endpoint: Endpoint) -> None:
    channel = TBufferedTransport(
        TSSLSocket("localhost", endpoint.port, cert_reqs=ssl.CERT_REQUIRED, ca_certs=str(endpoint.authority.ca_file))
    )
    channel.open()
    client = TCLIService.Client(TBinaryProtocol(channel))
    with pytest.raises(TApplicationException, match="LDAP"):
        client.OpenSession(ttypes.TOpenSessionReq(client_protocol=9))
    channel.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x80\x01\x00\x01\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">BI", 1, 2**31),
        struct.pack(">BI", 1, 5) + b"PLAIN" + struct.pack(">BI", 2, 4) + b"\0a\0b" + b"\xff" * 100,
        struct.pack(">BI", 1, 5) + b"PLAIN" + struct.pack(">BI", 2, 4) + b"\0a\0b" + b"\0\0\0\4nope",
    ],
)
def test_garbage_ends_the_connection_only(endpoint: Endpoint, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.open_port)) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
        connection.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1000):
                pass
    with contextlib.closing(open_connection(endpoint)) as client:
        assert rows(client, "SELECT 1") == [(1,)]


def open_connection(endpoint: Endpoint) -> hive.Connection:
    return hive.connect("127.0.0.1", endpoint.open_port, username="anyone", database="headrace")


def test_endpoint_without_users_is_read_only(endpoint: Endpoint) -> None:
    with contextlib.closing(open_connection(endpoint)) as connection:
        assert rows(connection, "SELECT * FROM orders ORDER BY id") == ROWS
        status = denial(connection, "CREATE DATABASE mine")
        assert (status.sqlState, "registry.users" in status.errorMessage) == ("42501", True)


def test_plain_connection_to_tls_port_is_closed(endpoint: Endpoint) -> None:
    with pytest.raises((TTransportException, ConnectionError)):
        hive.connect("127.0.0.1", endpoint.port, username="reader", password="read:ing", auth="LDAP")


def test_hangup_cancels_the_query(endpoint: Endpoint) -> None:
    tracker = endpoint.session.sparkContext.statusTracker()
    connection = endpoint.connect("reader")
    slow = "SELECT count(*) FROM range(1000000000000) WHERE id % 7 = 9"
    failed = threading.Event()

    def run() -> None:
        with contextlib.suppress(Exception):
            rows(connection, slow)
        failed.set()

    threading.Thread(target=run, daemon=True).start()
    wait_until(lambda: bool(tracker.getActiveJobsIds()))
    raw = connection._transport._trans.handle
    raw.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: not tracker.getActiveJobsIds())
    assert failed.wait(30)


def test_statement_cancelled_at_once_leaves_no_job(endpoint: Endpoint) -> None:
    tracker = endpoint.session.sparkContext.statusTracker()
    slow = "SELECT count(*) FROM range(1000000000000) WHERE id % 7 = 9"
    for leave in ("cancel", "close", "hang up"):
        connections = [open_connection(endpoint) for _ in range(4)]
        for connection in connections:
            cursor = connection.cursor()
            cursor.execute(slow, async_=True)
            if leave == "cancel":
                cursor.cancel()
            elif leave == "close":
                cursor.close()
            else:
                connection._transport._trans.handle.shutdown(socket.SHUT_RDWR)
        quiet = 0

        def has_no_job_for_two_seconds() -> bool:
            nonlocal quiet
            quiet = 0 if tracker.getActiveJobsIds() else quiet + 1
            return quiet > 20

        wait_until(has_no_job_for_two_seconds)
        for connection in connections:
            with contextlib.suppress(Exception):
                connection.close()


def wait_until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(600):
        if condition():
            return
        waiting.wait(0.1)
    raise AssertionError("the condition has not become true within a minute")


def test_statements_are_counted_by_outcome(endpoint: Endpoint) -> None:
    def added() -> tuple[int, int, int]:
        totals = endpoint.counts.totals()
        return totals.running - before.running, totals.succeeded - before.succeeded, totals.failed - before.failed

    def has_job() -> bool:
        return bool(endpoint.session.sparkContext.statusTracker().getActiveJobsIds())

    slow = "SELECT count(*) FROM range(100000000000) WHERE id % 3 = 1"
    with contextlib.closing(endpoint.connect("reader")) as connection:
        before = endpoint.counts.totals()  # a connection begins with USE
        rows(connection, "SELECT 1")
        denial(connection, "SELECT missing FROM orders")
        denial(connection, "DROP TABLE orders")
        assert added() == (0, 1, 2)
        background = connection.cursor()
        background.execute("SELECT 1", async_=True)
        while background.poll().operationState != ttypes.TOperationState.FINISHED_STATE:
            time.sleep(0.05)
        assert added() == (0, 2, 2)
        background.poll()
        background.close()
        assert added() == (0, 2, 2), "counted once"
        for close in (lambda cursor: cursor.cancel(), lambda cursor: cursor.close()):
            cursor = connection.cursor()
            cursor.execute(slow, async_=True)
            wait_until(has_job)  # Spark may start the job of a statement that is cancelled before
            assert added()[0] == 1
            close(cursor)
            wait_until(lambda: not has_job())
        assert added() == (0, 2, 4)
        connection.cursor().execute(slow, async_=True)
        wait_until(has_job)
        assert added()[0] == 1
    wait_until(lambda: added() == (0, 2, 5) and not has_job())


def test_connections_of_a_user_are_limited(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS_PER_USER_MAX", 2)
    with contextlib.ExitStack() as opened:
        opened.enter_context(contextlib.closing(endpoint.connect("writer")))
        opened.enter_context(contextlib.closing(endpoint.connect("writer")))
        with pytest.raises(TTransportException, match="connections"):
            endpoint.connect("writer")
        opened.enter_context(contextlib.closing(endpoint.connect("reader")))


def test_audit_log_has_users_and_kinds_but_no_literals(endpoint: Endpoint) -> None:
    with contextlib.closing(endpoint.connect("reader")) as connection:
        rows(connection, "SELECT 'a literal'")
        denial(connection, "DROP TABLE headrace.orders")
    entries = endpoint.audit()
    found = [(entry["user"], entry["action"], entry["kind"]) for entry in entries[-2:]]
    assert found == [("reader", "statement", "Project"), ("reader", "statement_denied", "DropTable")]
    assert "literal" not in json.dumps(entries)
    assert not any(word in json.dumps(entries) for word in PASSWORDS.values())
    assert "statement" not in {key for entry in entries for key in entry}


def test_beeline_connects_with_tls_and_password(endpoint: Endpoint) -> None:
    store = endpoint.directory / "trust.p12"
    subprocess.run(
        [
            Path(os.environ.get("JAVA_HOME", "/usr")) / "bin" / "keytool",
            "-importcert",
            "-noprompt",
            "-alias",
            "ca",
            "-file",
            endpoint.authority.ca_file,
            "-keystore",
            store,
            "-storetype",
            "PKCS12",
            "-storepass",
            "changeit",
        ],
        check=True,
        capture_output=True,
    )
    url = f"jdbc:hive2://localhost:{endpoint.port}/headrace;ssl=true;sslTrustStore={store};trustStorePassword=changeit"
    script = "SELECT max(name) AS m FROM orders; SELECT count(*) + 40 AS n FROM orders; DROP TABLE headrace.orders;"
    run = subprocess.run(
        [
            Path(sys.executable).with_name("beeline"),
            "-u",
            url,
            "-n",
            "reader",
            "-p",
            PASSWORDS["reader"],
            "--outputformat=csv2",
            "--silent=true",
            "-e",
            script,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent)},
    )
    assert "m\nc\n" in run.stdout, run.stderr
    assert "n\n43\n" in run.stdout, run.stderr
    assert "sql-write" in run.stderr
    assert "42501" in run.stderr
