"""Runs operations as HiveQL on a HiveServer2 or a Spark Thrift Server, through PyHive.

HiveQL has no conditional changes, so `SetProperties` reads the revision and then writes. A concurrent write between the
two is not detected; one log line reports this limitation. This executor cannot write files: the loader writes schema
files next to the data before it runs the operation that refers to them.

Results are texts of these servers. HiveServer2 truncates property values at a line break or tab; Headrace's values
contain neither. Spark redacts values that resemble secrets, which includes schemas with a field `url`, so redaction is
disabled in our session.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import unquote

from pyhive import exc, hive
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException
from thrift_sasl import TSaslClientTransport

from headrace.hive_ddl.errors import MetastoreUnavailable, StaleRevision, StatementRefused
from headrace.hive_ddl.executors.base import check_creation, check_owner, view_problem
from headrace.hive_ddl.names import quote_identifier
from headrace.hive_ddl.ops import AddPartitions, CreateTable, DropTable, Op, PartitionValues, ReplaceView, SetProperties
from headrace.hive_ddl.render import database_statement, partition_spec, qualified_name, render_statements
from headrace.hive_ddl.table import Column, TableState, literal_columns

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10
LOGIN_TIMEOUT_S = (
    60  # a slow HiveServer2 creates session directories; a server with another login method never responds
)
STATEMENT_TIMEOUT_S = 900  # per statement; 500 partitions on a slow metastore take minutes
REASON_CHARS_MAX = 500
LISTINGS_MAX = 31  # most days that are listed by one statement each; for more, listing all partitions is faster

NOSASL = "NOSASL"
KERBEROS = "KERBEROS"
PASSWORD_AUTHS = frozenset({"LDAP", "CUSTOM"})

SPARK_SESSION_SETTINGS = (
    "SET spark.sql.variable.substitute=false",
    "SET spark.sql.legacy.setCommandRejectsSparkCoreConfs=false",
    "SET spark.redaction.regex=(?!)",
    "SET spark.sql.redaction.options.regex=(?!)",
)
"""Statements that change settings of our session only. If a server refuses one of them, the session works without it,
except for tables with a property that the server redacts."""
HIVE_SESSION_SETTINGS = ("SET hive.stats.autogather=false", "SET hive.variable.substitute=false")

REDACTED = "*********(redacted)"

STORED_COLUMNS = "COLUMNS_V2"
TOO_LONG_TO_STORE = (
    "Spark's ALTER TABLE stores the columns that a table has, and this metastore keeps 32,672 characters of a column's "
    "type; set hive.executor to spark or to a HiveServer2, then load again"
)


NOT_FOUND_STATES = frozenset({"42S02", "42P01"})
"""SQLSTATEs of HiveServer2 and Spark for a missing table or database."""


@dataclass(frozen=True, slots=True)
class HiveServerAddress:
    """Address and login of a HiveServer2 or a Spark Thrift Server; `auth` is the server's
    `hive.server2.authentication`.

    `password` is for LDAP and CUSTOM; `service` is the first part of the server's principal for KERBEROS.
    """

    host: str
    port: int
    auth: str = "NONE"
    user: str = ""
    password: str = field(default="", repr=False)
    service: str = "hive"

    def __str__(self) -> str:
        return f"hive://{self.host}:{self.port}"


class _TableNotFound(StatementRefused):
    """Raised when a statement names a missing table or database. Callers query a table directly and catch this error,
    because listing tables takes longer the more tables there are."""


class HiveServerExecutor:
    """An executor that runs statements on a HiveServer2 or a Spark Thrift Server, see
    `hive_ddl.executors.base.Executor`.

    Raises:
        MetastoreUnavailable: the server is unreachable or refuses the login; there is one attempt.
    """

    def __init__(self, address: HiveServerAddress) -> None:
        self._address = address
        self._has_warned = False
        self._failure_reason = ""
        try:
            with self._failures("a connection"):
                _check_reachable(address)
                self._connection = _connect(address)
                self._cursor = self._connection.cursor()
                self._is_spark = _product(self._connection).startswith("Spark")
        except StatementRefused as error:
            raise MetastoreUnavailable(str(address), error.reason) from error
        for statement in SPARK_SESSION_SETTINGS if self._is_spark else HIVE_SESSION_SETTINGS:
            try:
                self._run(statement)
            except StatementRefused as error:
                logger.debug("session_setting_refused statement=%s error=%s", statement, error)

    @property
    def has_compare_and_set(self) -> bool:
        return False

    def ensure_database(self, name: str) -> None:
        with self._failures(f"database {name}"):
            self._run(database_statement(name))

    def table(self, database: str, name: str) -> TableState | None:
        with self._failures(f"reading table {database}.{name}"):
            try:
                properties = self._properties(database, name)
                described = _TableDescription(self._query(f"DESCRIBE FORMATTED {qualified_name(database, name)}"))
            except _TableNotFound:
                return None
        partition_columns = described.partition_columns
        return TableState(
            database=database,
            name=name,
            location=described.facts.get("Location", ""),
            columns=literal_columns(properties, partition_columns) or described.columns,
            partition_columns=partition_columns,
            properties=MappingProxyType(properties),
        )

    def tables_by_name(self, database: str, names: Collection[str]) -> Mapping[str, TableState]:
        # No statement returns the properties of several tables: SHOW TABLE EXTENDED has none on Hive, and on Spark one
        # text in which they cannot be told apart. Missing tables cost no statement.
        existing = self.table_names(database) if len(names) > 1 else frozenset(names)
        known = ((name, self.table(database, name)) for name in sorted(existing.intersection(names)))
        return {name: table for name, table in known if table is not None}

    def table_names(self, database: str) -> frozenset[str]:
        with self._failures(f"reading the names of the tables of {database}"):
            try:
                rows = self._query(f"SHOW TABLES IN {quote_identifier(database)}")
            except StatementRefused:
                if self._has_database(database):
                    raise
                return frozenset()
        # Spark's rows are database, name and whether it is temporary; Hive's have the name alone.
        return frozenset(str(row[1] if len(row) > 1 else row[0]) for row in rows)

    def _has_database(self, name: str) -> bool:
        return any(row[0] == name for row in self._query("SHOW DATABASES"))

    def partitions(
        self, database: str, name: str, selected: Collection[PartitionValues] | None = None
    ) -> Mapping[PartitionValues, str]:
        found: dict[PartitionValues, str] = {}
        with self._failures(f"reading the partitions of {database}.{name}"), contextlib.suppress(_TableNotFound):
            for columns, values in self._listed(database, name, selected):
                if selected is None or values in selected:
                    statement = f"DESCRIBE FORMATTED {qualified_name(database, name)} {partition_spec(columns, values)}"
                    found[values] = _TableDescription(self._query(statement)).facts.get("Location", "")
        return found

    def execute(self, op: Op) -> None:
        match op:
            case CreateTable():
                self._create_table(op)
            case SetProperties():
                self._check_revision(op)
                try:
                    self._run_all(op, f"a change of table {op.database}.{op.name}")
                except StatementRefused as error:
                    if self._is_spark and STORED_COLUMNS in error.reason:
                        raise StatementRefused(error.subject, TOO_LONG_TO_STORE) from error
                    raise
            case DropTable():
                current = self.table(op.database, op.name)
                if current is not None:
                    check_owner(op, current.topic)
                self._run_all(op, f"table {op.database}.{op.name}")
            case AddPartitions():
                self._run_all(op, f"new partitions of {op.database}.{op.name}")
            case ReplaceView():
                try:
                    self._run_all(op, f"the view {op.database}.{op.name}")
                except StatementRefused as error:
                    raise StatementRefused(error.subject, view_problem(op, _uncut_reason(error))) from error
            case _:
                self._run_all(op, f"a {type(op).__name__}")

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the server may be unreachable, which does not matter when closing
            self._connection.close()

    def _create_table(self, op: CreateTable) -> None:
        try:
            self._run_all(op, f"the new table {op.table.full_name}")
        except StatementRefused as error:
            current = self.table(op.table.database, op.table.name)
            if current is None:
                raise
            logger.debug("table_exists table=%s reason=%s", op.table.full_name, error)
            check_creation(current, op.table)

    def _check_revision(self, op: SetProperties) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "compare_and_set_unavailable, simultaneous table changes may overwrite each other "
                "reason=no_condition_in_hiveql server=%s",
                self._address,
            )
        current = self.table(op.database, op.name)
        found = "no table" if current is None else current.revision
        if found != op.expected_revision:
            raise StaleRevision(op.database, op.name, op.expected_revision or "", found or "")

    def _properties(self, database: str, name: str) -> dict[str, str]:
        rows = self._query(f"SHOW TBLPROPERTIES {qualified_name(database, name)}")
        properties = {str(row[0]): str(row[1]) for row in rows if len(row) > 1 and row[1] is not None}
        hidden = sorted(key for key, value in properties.items() if REDACTED in value)
        if hidden:
            raise StatementRefused(
                f"reading table {database}.{name}",
                f"the Spark Thrift Server redacts the table properties {', '.join(hidden)}; in its configuration, set "
                "spark.sql.redaction.options.regex and spark.redaction.regex to patterns that match neither url, "
                "token, secret nor password",
            )
        return properties

    def _listed(
        self, database: str, name: str, selected: Collection[PartitionValues] | None
    ) -> Iterator[tuple[tuple[str, ...], PartitionValues]]:
        """Yields, for each existing partition of a table, the names of the partition columns and the partition's
        values.

        Args:
            selected: limits the listing to the days of these partitions; None for all partitions. For more than
                `LISTINGS_MAX` days, all partitions are listed anyway, because that is faster.
        """
        table = qualified_name(database, name)
        days = None if selected is None else sorted({values[0] for values in selected})
        specs = [""]
        if days is not None and len(days) <= LISTINGS_MAX:
            (first, *_) = _TableDescription(self._query(f"DESCRIBE FORMATTED {table}")).partition_columns
            specs = [f" {partition_spec((first,), (day,))}" for day in days]
        for spec in specs:
            for listed, *_ in self._query(f"SHOW PARTITIONS {table}{spec}"):
                pairs = [part.partition("=") for part in str(listed).split("/")]
                yield tuple(unquote(key) for key, _, _ in pairs), tuple(unquote(value) for _, _, value in pairs)

    def _run_all(self, op: Op, subject: str) -> None:
        with self._failures(subject):
            for statement in render_statements(op):
                self._run(statement)

    def _run(self, statement: str) -> None:
        with self._failures("a statement"):
            self._cursor.execute(statement)

    def _query(self, query: str) -> Sequence[Sequence[Any]]:
        self._run(query)
        with self._failures("a result"):
            return [tuple(row) for row in self._cursor.fetchall()]

    @contextlib.contextmanager
    def _failures(self, subject: str) -> Iterator[None]:
        if self._failure_reason:
            raise MetastoreUnavailable(str(self._address), self._failure_reason)
        try:
            yield
        except exc.Error as error:
            refused = _TableNotFound if _state(error) in NOT_FOUND_STATES else StatementRefused
            raise refused(subject, _reason(error)) from error
        except StatementRefused as error:
            if error.subject != "a statement":
                raise
            raise type(error)(subject, error.reason) from error
        except (TException, OSError, EOFError) as error:
            self._fail_connection(error)

    def _fail_connection(self, error: Exception) -> NoReturn:
        """Marks the connection as unusable after an error, and raises `MetastoreUnavailable`: further requests would
        wait for the response to the failed one."""
        self._failure_reason = _describe_connection_failure(error)
        raise MetastoreUnavailable(str(self._address), self._failure_reason) from error


@dataclass(frozen=True, slots=True)
class _TableDescription:
    """The rows that DESCRIBE FORMATTED returns for a table or partition, on a HiveServer2 or a Spark Thrift Server.

    Columns come first, then sections with titles that start with #. The first section repeats the partition columns,
    later ones contain names and values, such as the table's location. Names are padded with blanks; Hive ends them with
    a colon.
    """

    rows: Sequence[Sequence[Any]]

    @property
    def columns(self) -> tuple[Column, ...]:
        keys = self.partition_columns
        described = (
            Column(str(row[0]).strip(), str(row[1]).strip(), _text(row[2]))
            for row in self._section("")
            if _text(row[0]).strip()
        )
        return tuple(column for column in described if column.name not in keys)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        names = (_text(row[0]).strip() for row in self._section("# Partition Information"))
        return tuple(name for name in names if name and not name.startswith("#"))

    @property
    def facts(self) -> Mapping[str, str]:
        rows = (row for title in self._titles() if title.startswith("# Detailed") for row in self._section(title))
        return {_text(row[0]).strip().removesuffix(":"): _text(row[1]).strip() for row in rows}

    def _titles(self) -> list[str]:
        return [title for row in self.rows if _is_title(title := _text(row[0]).strip())]

    def _section(self, section_title: str) -> Iterator[Sequence[Any]]:
        title = ""
        for row in self.rows:
            first = _text(row[0]).strip()
            if _is_title(first):
                title = first
            elif title == section_title:
                yield row


def _is_title(text: str) -> bool:
    return text.startswith("# ") and text != "# col_name"


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _check_reachable(address: HiveServerAddress) -> None:
    socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S).close()


def _connect(address: HiveServerAddress) -> Any:
    """Returns a PyHive connection to a server. It uses a transport that we create, because PyHive's own has no timeout
    for a server that does not respond."""
    wire = TSocket(address.host, address.port)
    wire.setTimeout(LOGIN_TIMEOUT_S * 1000)
    user = address.user or _user()
    if address.auth == NOSASL:
        transport = TBufferedTransport(wire)
    else:
        mechanism = "GSSAPI" if address.auth == KERBEROS else "PLAIN"
        login = {
            "host": address.host,
            "sasl_auth": mechanism,
            "service": address.service if address.auth == KERBEROS else None,
            "username": user,
            "password": address.password
            if address.auth in PASSWORD_AUTHS
            else "x",  # PLAIN requires a non-empty password
        }
        transport = TSaslClientTransport(lambda: hive.get_installed_sasl(**login), mechanism, wire)
    connection = hive.connect(thrift_transport=transport, username=user)
    wire.setTimeout(STATEMENT_TIMEOUT_S * 1000)
    return connection


def _product(connection: Any) -> str:
    """Returns the product name that the server reports: `Apache Hive` or `Spark SQL`."""
    from TCLIService.ttypes import TGetInfoReq, TGetInfoType

    request = TGetInfoReq(connection.sessionHandle, TGetInfoType.CLI_DBMS_NAME)
    return str(connection.client.GetInfo(request).infoValue.stringValue)


def _state(error: exc.Error) -> str:
    """Returns the SQLSTATE of the server's error, "" if the error has no SQLSTATE."""
    response = error.args[0] if error.args else None
    return str(getattr(getattr(response, "status", None), "sqlState", None) or "")


def _reason(error: exc.Error) -> str:
    """Returns the server's message for an error in one line, without its stack trace, cut to `REASON_CHARS_MAX`."""
    return _message(error)[:REASON_CHARS_MAX] or "no reason given"


def _uncut_reason(refused: StatementRefused) -> str:
    """Returns the reason of a refused statement in one line, as long as the server's message."""
    cause: BaseException = refused
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return _message(cause) if isinstance(cause, exc.Error) else refused.reason


def _message(error: exc.Error) -> str:
    response = error.args[0] if error.args else error
    status = getattr(response, "status", None)
    message = getattr(status, "errorMessage", None) or str(response)
    lines = [line.strip() for line in str(message).splitlines() if line.strip() and not line.strip().startswith("at ")]
    return " ".join(" ".join(lines).split())


def _describe_connection_failure(error: Exception) -> str:
    if isinstance(error, TimeoutError) or getattr(error, "type", None) == TTransportException.TIMED_OUT:
        return "no response; set hive.server_auth to the server's hive.server2.authentication"
    message = " ".join(str(getattr(error, "message", "") or getattr(error, "strerror", "") or error).split())
    if isinstance(error, OSError) and not isinstance(error, EOFError):
        return f"{message}; start the server or correct hive.executor"
    return (
        f"{message[:REASON_CHARS_MAX] or type(error).__name__}; see hive.server_auth, hive.server_user and its password"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        return "headrace"
