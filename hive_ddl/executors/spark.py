"""Runs operations through the metastore client in the Spark session's JVM.

Spark SQL is not used for tables, for three reasons. Spark's `ALTER TABLE` also stores columns, those of the schema
before the change, and the metastore then refuses all later changes. Values that are not parsed as SQL need no quoting.
And `SHOW TBLPROPERTIES` redacts a schema that contains the word "url".

A table change is a compare-and-set on its property `headrace.revision`. A metastore without support for that condition
ignores it silently. Before the first change, a probe view is therefore changed with a wrong expected revision. If that
is not refused, or the result is unknown, one log line reports that compare-and-set is unavailable; the condition is
sent anyway.

Derby locks single rows, so a read of a table during a change may return the new revision with some old properties. The
condition is exact there too, because the database compares it. A change planned on such a read is planned again by the
next load.

A broken connection is not used again, because further requests would wait for the response to the failed one.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.hive_ddl.errors import MetastoreUnavailable, StaleRevision, StatementRefused
from headrace.hive_ddl.executors.base import (
    TABLES_PER_READ_MAX,
    check_creation,
    check_owner,
    view_problem,
)
from headrace.hive_ddl.executors.jvm_errors import METASTORE_FAILURES, java_class, one_line, root_cause
from headrace.hive_ddl.executors.metastore import JavaObject, ThriftValues, avro_descriptor, new_client
from headrace.hive_ddl.names import PROBE_PREFIX
from headrace.hive_ddl.ops import (
    AddPartitions,
    CreateTable,
    DropPartitions,
    DropTable,
    Op,
    PartitionValues,
    PublishSchema,
    RenameTable,
    ReplaceView,
    SetPartitionLocation,
    SetProperties,
)
from headrace.hive_ddl.render import qualified_name, render_statements
from headrace.hive_ddl.table import (
    REVISION,
    SCHEMA_URL,
    TOPIC,
    Column,
    TableState,
    literal_columns,
)
from headrace.settings.masking import mask_passwords

logger = logging.getLogger(__name__)

PARTITIONS_PER_READ_MAX = 1000  # each result is one string through the gateway, about 1 kB per partition

DESCRIPTOR_CHARS_CACHED_MAX = 32 * 1024 * 1024
"""Length of all cached descriptors together. The descriptor of a table with 25 columns has 2,000 characters."""

PLAIN_VALUE = re.compile(r"[0-9A-Za-z_-]+")
"""Partition values that appear unescaped in a partition's name. For other values Hive builds the name, which takes one
call per partition."""

UNREACHABLE = frozenset({"TTransportException", "SocketException", "ConnectException", "SocketTimeoutException"})
"""Exceptions after which the effect of a call is unknown; the same applies if the JVM has ended."""

NO_DATABASE = frozenset({"UnknownDBException", "NoSuchObjectException"})
"""Exceptions of `getTableObjectsByName` for a database that does not exist."""

MODIFIED = "The table has been modified"
"""Start of the message of the MetaException for a change with an unmet condition (HIVE-26882)."""

IGNORES_CONDITIONS = "metastore_ignores_conditions"

CONNECTION_REASON_CHARS_MAX = 300

CONDITION_KEY = "expected_parameter_key"
CONDITION_VALUE = "expected_parameter_value"
NO_STATISTICS = "DO_NOT_UPDATE_STATS"


class SparkExecutor:
    """Executor that changes tables in the metastore of a Spark session, see `hive_ddl.executors.base.Executor`."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._jvm: JavaObject = session._jvm
        self._api: JavaObject = self._jvm.org.apache.hadoop.hive.metastore.api
        self._values = ThriftValues(self._jvm)
        # Facts of tables that do not change, by database and name: the partition columns, and the descriptors as JSON
        # of Thrift, the oldest first.
        self._partition_columns: dict[tuple[str, str], Sequence[str]] = {}
        self._descriptors: dict[tuple[str, str], str] = {}
        self._descriptor_chars = 0
        self._has_compare_and_set: bool | None = None
        self._probe_database = "default"
        self._metastore = _metastore_of(session)  # read now, because the JVM may end later
        self._failure_reason = ""
        with self._failures("a connection"):
            self._client: JavaObject = new_client(session)

    @property
    def has_compare_and_set(self) -> bool:
        if self._has_compare_and_set is None:
            with self._failures("the probe for conditional changes"):
                problem = self._probe()
            self._has_compare_and_set = not problem
            if problem:
                logger.warning(
                    "compare_and_set_unavailable, simultaneous table changes may overwrite each other reason=%s",
                    problem,
                )
        return self._has_compare_and_set

    def ensure_database(self, name: str) -> None:
        with self._failures(f"database {name}"):
            try:
                self._client.getDatabase(name)
            except METASTORE_FAILURES as error:
                if java_class(error) != "NoSuchObjectException":
                    raise
                self._create_database(name)
        self._probe_database = name

    def table(self, database: str, name: str) -> TableState | None:
        with self._failures(f"reading table {database}.{name}"):
            table = self._get_table(database, name)
            if table is None:
                return None
            self._cache_descriptor(database, name, self._values.descriptor(table))
            return self._state(self._values.json(table))

    def tables_by_name(self, database: str, names: Collection[str]) -> Mapping[str, TableState]:
        found: dict[str, TableState] = {}
        ordered = sorted(names)
        with self._failures(f"reading tables of {database}"):
            for start in range(0, len(ordered), TABLES_PER_READ_MAX):
                chunk = self._values.texts(ordered[start : start + TABLES_PER_READ_MAX])
                for facts in self._values.tables_json(self._read_tables(database, chunk)):
                    state = self._state(facts)
                    found[state.name] = state
        return found

    def _read_tables(self, database: str, names: JavaObject) -> JavaObject:
        try:
            return self._client.getTableObjectsByName(database, names)
        except METASTORE_FAILURES as error:
            if java_class(error) not in NO_DATABASE:
                raise
            return self._java_list(())

    def table_names(self, database: str) -> frozenset[str]:
        with self._failures(f"reading the names of the tables of {database}"):
            names = self._client.getAllTables(database)
            joined = self._jvm.java.lang.String.join("\n", names)
        return frozenset(joined.split("\n")) if joined else frozenset()

    def partitions(
        self, database: str, name: str, selected: Collection[PartitionValues] | None = None
    ) -> Mapping[PartitionValues, str]:
        found: dict[PartitionValues, str] = {}
        with self._failures(f"reading the partitions of {database}.{name}"):
            names = self._partition_names(database, name, selected)
            for start in range(0, len(names), PARTITIONS_PER_READ_MAX):
                chunk = self._values.texts(names[start : start + PARTITIONS_PER_READ_MAX])
                found_partitions = self._client.getPartitionsByNames(database, name, chunk)
                for partition in self._values.partitions_json(found_partitions):
                    found[tuple(partition["values"])] = partition["sd"]["location"]
        return found

    def execute(self, op: Op) -> None:
        match op:
            case PublishSchema():
                self._publish(op)
            case CreateTable():
                self._create_table(op.table)
            case SetProperties():
                self._set_properties(op)
            case DropTable():
                self._drop_table(op)
            case RenameTable():
                self._rename_table(op)
            case AddPartitions():
                self._add_partitions(op)
            case SetPartitionLocation():
                self._set_location(op)
            case DropPartitions():
                self._drop_partitions(op)
            case ReplaceView():
                self._replace_view(op)

    def close(self) -> None:
        with contextlib.suppress(Py4JError):
            self._client.close()

    def _create_database(self, name: str) -> None:
        # Without a location, the metastore uses the warehouse in its configuration.
        database = self._api.Database(name, "tables of Headrace", None, self._java_map({}))
        try:
            self._client.createDatabase(database)
        except METASTORE_FAILURES as error:
            if java_class(error) != "AlreadyExistsException":
                raise

    def _descriptor(self, database: str, name: str) -> str | None:
        """Returns the descriptor of a table as JSON of Thrift, after reading it if it is not cached; None if the table
        does not exist."""
        known = self._descriptors.get((database, name))
        if known is None:
            table = self._get_table(database, name)
            if table is None:
                return None
            known = self._values.descriptor(table)
            self._cache_descriptor(database, name, known)
        return known

    def _cache_descriptor(self, database: str, name: str, descriptor: str) -> None:
        self._descriptor_chars -= len(self._descriptors.pop((database, name), ""))
        self._descriptors[database, name] = descriptor
        self._descriptor_chars += len(descriptor)
        while self._descriptor_chars > DESCRIPTOR_CHARS_CACHED_MAX:
            self._descriptor_chars -= len(self._descriptors.pop(next(iter(self._descriptors))))

    def _forget(self, database: str, name: str) -> None:
        self._partition_columns.pop((database, name), None)
        self._descriptor_chars -= len(self._descriptors.pop((database, name), ""))

    def _columns_of_partitions(self, database: str, name: str) -> Sequence[str] | None:
        """Returns the names of the partition columns of a table, None if the table does not exist."""
        known = self._partition_columns.get((database, name))
        if known is None:
            table = self._get_table(database, name)
            known = None if table is None else [str(key.getName()) for key in table.getPartitionKeys()]
            if known is not None:
                self._partition_columns[database, name] = known
        return known

    def _get_table(self, database: str, name: str) -> JavaObject | None:
        try:
            return self._client.getTable(database, name)
        except METASTORE_FAILURES as error:
            if java_class(error) == "NoSuchObjectException":
                return None
            raise

    def _state(self, facts: Mapping[str, Any]) -> TableState:
        """Returns a table as a value.

        Args:
            facts: the metastore's Thrift value of the table, as nested dicts.
        """
        descriptor: Mapping[str, Any] = facts.get("sd", {})
        properties: Mapping[str, str] = facts.get("parameters", {})
        partition_columns = tuple(column["name"] for column in facts.get("partitionKeys", ()))
        self._partition_columns[facts["dbName"], facts["tableName"]] = partition_columns
        return TableState(
            database=facts["dbName"],
            name=facts["tableName"],
            location=descriptor.get("location", ""),
            columns=self._visible_columns(facts, properties, partition_columns),
            partition_columns=partition_columns,
            properties=MappingProxyType(dict(properties)),
        )

    def _visible_columns(
        self, facts: Mapping[str, Any], properties: Mapping[str, str], partition_columns: Sequence[str]
    ) -> tuple[Column, ...]:
        """Returns the columns that readers of the table see: the columns of the schema in its properties; without a
        usable schema, the columns that the metastore reads from `avro.schema.url`; without that property, or if the
        read fails, the stored columns. Partition columns are omitted.

        Args:
            facts: the metastore's Thrift value of the table, as nested dicts.
            properties: the properties of the table.
            partition_columns: names of the partition columns.
        """
        of_literal = literal_columns(properties, partition_columns)
        if of_literal:
            return of_literal
        stored = facts.get("sd", {}).get("cols", ())
        if SCHEMA_URL in properties:
            fields = self._api.Schema()
            try:
                fields.setFieldSchemas(self._client.getFields(facts["dbName"], facts["tableName"]))
                stored = self._values.json(fields)["fieldSchemas"]
            except METASTORE_FAILURES as error:
                if _is_lost(error):
                    raise
        return tuple(Column(column["name"], column.get("type", ""), column.get("comment", "")) for column in stored)

    def _partition_names(self, database: str, name: str, selected: Collection[PartitionValues] | None) -> Sequence[str]:
        if selected is None:
            names = self._client.listPartitionNames(database, name, -1)
            joined = self._jvm.java.lang.String.join("\n", names)
            return joined.split("\n") if joined else ()
        columns = self._columns_of_partitions(database, name) if selected else None
        return () if columns is None else [self._partition_name(columns, values) for values in sorted(selected)]

    def _partition_name(self, columns: Sequence[str], values: PartitionValues) -> str:
        if all(map(PLAIN_VALUE.fullmatch, values)):
            return "/".join(map("=".join, zip(columns, values, strict=True)))
        keys = self._java_list([self._api.FieldSchema(column, "string", None) for column in columns])
        warehouse = self._jvm.org.apache.hadoop.hive.metastore.Warehouse
        return str(warehouse.makePartName(keys, self._java_list(values)))

    def _create_table(self, desired: TableState) -> None:
        with self._failures(f"the new table {desired.full_name}"):
            descriptor = avro_descriptor(desired)
            table = self._java_table(desired, descriptor)
            try:
                self._client.createTable(table)
                self._cache_descriptor(desired.database, desired.name, descriptor)
                self._partition_columns[desired.database, desired.name] = desired.partition_columns
                return
            except METASTORE_FAILURES as error:
                if _is_lost(error):
                    raise
                current = self.table(desired.database, desired.name)
                if current is None:
                    raise
                logger.debug("table_exists table=%s reason=%s", desired.full_name, java_class(error))
        check_creation(current, desired)

    def _java_table(self, desired: TableState, descriptor: str) -> JavaObject:
        return self._values.table(desired, descriptor, owner=_user(), created_s=int(time.time()))

    def _set_properties(self, op: SetProperties) -> None:
        _ = self.has_compare_and_set  # logs a warning if compare-and-set is unavailable
        subject = f"a change of table {op.database}.{op.name}"
        with self._failures(subject):
            table = self._get_table(op.database, op.name)
        if table is None:
            raise StaleRevision(op.database, op.name, op.expected_revision or "", "no table")
        parameters = table.getParameters()
        if parameters.get(REVISION) != op.expected_revision:
            raise StaleRevision(op.database, op.name, op.expected_revision or "", parameters.get(REVISION) or "")
        for key, value in op.properties:
            parameters.put(key, value)
        for key in op.removed:
            parameters.remove(key)
        context = self._context(op.expected_revision)
        with self._failures(subject):
            try:
                self._client.alter_table_with_environmentContext(op.database, op.name, table, context)
            except METASTORE_FAILURES as error:
                self._resolve_failed_change(op, error)

    def _resolve_failed_change(self, op: SetProperties, error: Py4JError) -> None:
        """Handles the error of a change of table properties. Returns if the table has the new revision, because the
        change then took effect.

        Args:
            op: the change.
            error: its error, which does not show whether the change took effect.

        Raises:
            StaleRevision: the table has the revision of another writer, or does not exist.
            Py4JError: the table is unchanged, or the connection is lost; the original error.
        """
        if _is_lost(error):
            raise error
        table = self._get_table(op.database, op.name)
        found = table.getParameters().get(REVISION) if table is not None else None
        if found == dict(op.properties)[REVISION]:
            return
        if found != op.expected_revision:
            raise StaleRevision(op.database, op.name, op.expected_revision or "", found or "")
        raise error

    def _context(self, expected_revision: str | None) -> JavaObject:
        context = self._api.EnvironmentContext()
        context.putToProperties(NO_STATISTICS, "true")
        if expected_revision is not None:
            context.putToProperties(CONDITION_KEY, REVISION)
            context.putToProperties(CONDITION_VALUE, expected_revision)
        return context

    def _drop_table(self, op: DropTable) -> None:
        with self._failures(f"table {op.database}.{op.name}"):
            table = self._get_table(op.database, op.name)
            if table is None:
                return
            check_owner(op, table.getParameters().get(TOPIC))
            self._forget(op.database, op.name)
            self._client.dropTable(op.database, op.name, False, True)

    def _rename_table(self, op: RenameTable) -> None:
        subject = f"a new name of table {op.database}.{op.name}"
        with self._failures(subject):
            table = self._get_table(op.database, op.name)
            if table is None:
                raise StatementRefused(subject, "the table does not exist")
            self._forget(op.database, op.name)
            self._forget(op.database, op.new_name)
            table.setTableName(op.new_name)
            self._client.alter_table_with_environmentContext(op.database, op.name, table, self._context(None))

    def _add_partitions(self, op: AddPartitions) -> None:
        with self._failures(f"new partitions of {op.database}.{op.name}"):
            descriptor = self._descriptor(op.database, op.name)
            if descriptor is None:
                raise StatementRefused(f"new partitions of {op.database}.{op.name}", "the table does not exist")
            partitions = [(part.values, part.location) for part in op.partitions]
            made = self._values.partitions(op.database, op.name, descriptor, partitions, int(time.time()))
            self._client.add_partitions(made, True, False)

    def _set_location(self, op: SetPartitionLocation) -> None:
        values = self._java_list(op.partition.values)
        with self._failures(f"partition {'/'.join(op.partition.values)} of {op.database}.{op.name}"):
            partition = self._client.getPartition(op.database, op.name, values)
            partition.getSd().setLocation(op.partition.location)
            self._client.alter_partition(op.database, op.name, partition, self._context(None))

    def _drop_partitions(self, op: DropPartitions) -> None:
        for values in op.values:
            with self._failures(f"partition {'/'.join(values)} of {op.database}.{op.name}"):
                try:
                    self._client.dropPartition(op.database, op.name, self._java_list(values), False)
                except METASTORE_FAILURES as error:
                    if java_class(error) != "NoSuchObjectException":
                        raise

    def _replace_view(self, op: ReplaceView) -> None:
        """Creates or replaces a view with Spark SQL, because Spark must analyse the view's query. The table is not
        changed."""
        try:
            self._session.catalog.refreshTable(qualified_name(op.database, op.table))
            for statement in render_statements(op):
                self._session.sql(statement)
        except (PySparkException, Py4JError) as error:
            text = root_cause(error) if isinstance(error, Py4JError) else str(error)
            if isinstance(error, Py4JNetworkError) or any(name in text for name in UNREACHABLE):
                raise MetastoreUnavailable(self._metastore, one_line(text)[:CONNECTION_REASON_CHARS_MAX]) from error
            raise StatementRefused(f"the view {op.database}.{op.name}", view_problem(op, text)) from error

    def _publish(self, op: PublishSchema) -> None:
        hadoop = self._jvm.org.apache.hadoop.fs
        content = op.text.encode()
        with self._failures(f"the schema file {op.url}", of_metastore=False):
            path = hadoop.Path(op.url)
            system = path.getFileSystem(self._session._jsc.hadoopConfiguration())
            if system.exists(path) and system.getFileStatus(path).getLen() == len(content):
                return
            temporary = hadoop.Path(path.getParent(), f".{path.getName()}.{secrets.token_hex(8)}")
            stream = system.create(temporary, True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
            # The name is the hash of the content, so a replaced file has the same content or is incomplete.
            overwrite = self._session._sc._gateway.new_array(hadoop.Options.Rename, 1)
            overwrite[0] = hadoop.Options.Rename.OVERWRITE
            hadoop.FileContext.getFileContext(path.toUri(), system.getConf()).rename(temporary, path, overwrite)

    def _probe(self) -> str:
        """Tests whether the metastore refuses a change with a wrong expected revision. Returns "" if it does, else the
        reason why such a change may succeed.

        The change is made to a temporary view, which needs no directory. Its name is random, so that no other process
        uses it.
        """
        name = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
        state = TableState(self._probe_database, name, "", (Column("probe", "string"),), (), {REVISION: "1"})
        view = self._java_table(state, avro_descriptor(state))
        view.setTableType("VIRTUAL_VIEW")
        view.getSd().setLocation(None)
        view.setViewOriginalText("select 1")
        view.setViewExpandedText("select 1")
        view.getParameters().remove("EXTERNAL")
        try:
            self._client.createTable(view)
        except METASTORE_FAILURES as error:
            return _probe_error(error)
        view.getParameters().put(REVISION, "2")
        context = self._context("not the revision")
        problem = IGNORES_CONDITIONS
        try:
            self._client.alter_table_with_environmentContext(self._probe_database, name, view, context)
        except METASTORE_FAILURES as error:
            problem = "" if _is_failed_condition(error) else _probe_error(error)
        try:
            self._client.dropTable(self._probe_database, name, False, True)
        except METASTORE_FAILURES as error:
            logger.warning("probe_view_not_dropped view=%s.%s %s", self._probe_database, name, _probe_error(error))
        return problem

    @contextlib.contextmanager
    def _failures(self, subject: str, *, of_metastore: bool = True) -> Iterator[None]:
        """Translates JVM exceptions in the context into errors of this package.

        Args:
            subject: what the context reads or changes, such as a table; the error message names it.
            of_metastore: whether the calls in the context go to the metastore, not to a file system.
        """
        if self._failure_reason:
            raise MetastoreUnavailable(self._metastore, self._failure_reason)
        try:
            yield
        except METASTORE_FAILURES as error:
            if not _is_lost(error) or not (of_metastore or isinstance(error, Py4JNetworkError)):
                raise StatementRefused(subject, root_cause(error)) from error
            self._failure_reason = root_cause(error)
            raise MetastoreUnavailable(self._metastore, self._failure_reason) from error

    def _java_list(self, items: Collection[Any]) -> JavaObject:
        result = self._jvm.java.util.ArrayList()
        for item in items:
            result.add(item)
        return result

    def _java_map(self, items: Mapping[str, str]) -> JavaObject:
        result = self._jvm.java.util.HashMap()
        for key, value in items.items():
            result.put(key, value)
        return result


def _metastore_of(session: SparkSession) -> str:
    """Returns the address of the metastore or its database, with passwords masked, for error messages."""
    conf = session.sparkContext.getConf()
    uri = conf.get("spark.hadoop.hive.metastore.uris")
    return mask_passwords(uri or conf.get("spark.hadoop.javax.jdo.option.ConnectionURL") or "")


def _is_lost(error: Py4JError) -> bool:
    return isinstance(error, Py4JNetworkError) or java_class(error) in UNREACHABLE


def _is_failed_condition(error: Py4JError) -> bool:
    return java_class(error) == "MetaException" and root_cause(error).startswith(MODIFIED)


def _probe_error(error: Py4JError) -> str:
    """Returns the metastore's error as text for the log.

    Raises:
        Py4JError: the connection is lost.
    """
    if _is_lost(error):
        raise error
    return f"probe_failed error={root_cause(error)}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        return "headrace"
