"""Runs a query over the tables. The result has rows of text, and JSON values on request.

Spark converts the values to text: Python's conversions would move timestamps into the local time zone and lose values
outside of its types. A value has the same form at the top level and nested:

    timestamp           2026-01-31 07:20:04.5, in UTC, without trailing zeros of the second; without zone: unchanged
    date                2026-01-31
    decimal             its digits as text, with the scale of its type: 1.50
    bytes               lower-case hexadecimal digits: 01ff
    other numbers       a number; NaN, Infinity and -Infinity are text
    struct, map         an object, null for NULL; the keys of a map are text in these forms
    array               an array
    interval and so on  Spark's text
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

QUERY_WORDS = ("SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN")
"""The first words of permitted statements. Changes through SQL are not permitted: they could overwrite a concurrent
change of a load, because they bypass its check that the table is still the one it has read. Spark's own `ALTER TABLE`
can also lock a table permanently."""

NUMERIC_TYPES = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
JSON_NATIVE_TYPES = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "void"})
"""The types that Spark's JSON functions already write in the form described above."""
NESTED_TYPES = frozenset({"struct", "array", "map", "variant"})

KAFKA_COLUMN_TYPE = "struct<partition:int,offset:bigint,timestamp:"
"""The start of the type of the column `kafka`, which has partition, offset and timestamp of a row's message, as Spark
prints types."""

_LEADING_BLANKS = re.compile(r"\s+|--[^\n]*(?:\n|$)|/\*.*?\*/|\(", re.DOTALL)
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_READ_COMMANDS = ("Show", "Describe", "Explain")
_WRITE_STATEMENTS = ("Insert", "Call", "ExecuteImmediate", "UnresolvedExecuteImmediate")
"""Beginnings of the names of Spark's classes for commands that only read, and for writing statements that are not
instances of `_COMMAND`."""
TASKS_PER_CORE = 4
"""The limit of tasks for one scan of a partitioned table, on a Spark that runs in this process."""

_HIVE_TABLE = "HiveTableRelation"
_ADVICE = re.compile(r"\s*(Verify the spelling and correctness|If necessary set \"spark\.sql).*$")
_POSITION = re.compile(r"line (\d+),? pos (\d+)|\(line (\d+), pos (\d+)\)")


class QueryFailed(Exception):
    """The reason why a query failed, in one line."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The columns and rows of a query's result.

    `types` are Spark's short type names. A value is its text, or None for NULL. `values` has the same rows as JSON
    values; it is empty unless requested.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    values: tuple[tuple[Any, ...], ...]

    @property
    def numeric_columns(self) -> tuple[int, ...]:
        return tuple(i for i, name in enumerate(self.types) if name.partition("(")[0] in NUMERIC_TYPES)


def check_statement(text: str) -> str:
    """Returns the query without its final semicolon.

    Raises:
        QueryFailed: the text is empty, or its first word is not permitted.
    """
    statement = text.strip()
    while statement.endswith(";"):
        statement = statement[:-1].rstrip()
    rest = statement
    while (blank := _LEADING_BLANKS.match(rest)) is not None:
        rest = rest[blank.end() :]
    if not rest:
        raise QueryFailed("no query given; expected one, such as: headrace sql 'SHOW TABLES'")
    word = re.match(r"\w*", rest)
    first = (word[0] if word and word[0] else rest[0]).upper()
    if first not in QUERY_WORDS:
        raise QueryFailed(
            f"only queries are allowed: expected a query beginning with {', '.join(QUERY_WORDS[:-1])} or "
            f"{QUERY_WORDS[-1]}, found {first[:40]}"
        )
    return statement


def run_query(session: SparkSession, statement: str, database: str, *, with_values: bool = False) -> QueryResult:
    """Runs one query. Table names without a database refer to `database`.

    Args:
        session: a Spark session with the metastore of the tables.
        statement: as returned by `check_statement`.
        database: the default database; it need not exist.
        with_values: whether to fill the result's `values`.

    Raises:
        QueryFailed: Spark cannot parse or run the query, or the statement writes.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        _reject_writes(session, statement)
        if session.catalog.databaseExists(database):
            session.catalog.setCurrentDatabase(database)
        return _collect(_with_few_tasks(session, session.sql(statement)), with_values)
    except (PySparkException, Py4JError) as error:
        if "PARSE_SYNTAX_ERROR" in str(error) and _error_follows_semicolon(statement, str(error)):
            raise QueryFailed(
                "expected one query, found more text after a semicolon; run the queries one at a time"
            ) from error
        raise QueryFailed(error_line(error)) from error


def _error_follows_semicolon(statement: str, failure: str) -> bool:
    """Returns whether Spark found a syntax error right after a semicolon, which means that the text has several
    statements.

    Args:
        failure: Spark's message, which contains the position of the error.
    """
    position = _POSITION.search(failure)
    if position is None:
        return False
    line, column = (int(part) for part in position.groups() if part is not None)
    before = [*statement.split("\n")[: line - 1], statement.split("\n")[line - 1][:column]]
    return "\n".join(before).rstrip().endswith(";")


def error_line(error: PySparkException | Py4JError) -> str:
    """Returns Spark's error message in one line, without the stack trace."""
    from py4j.protocol import Py4JError, Py4JJavaError

    from headrace.hive_ddl.executors.jvm_errors import one_line, root_cause

    if isinstance(error, Py4JError):
        return root_cause(error)
    origin = getattr(error, "_origin", None)
    text = str(error)
    if origin is not None and error.getCondition() is None:
        # In a failed task, the innermost exception is the cause; the outer ones wrap it.
        text = root_cause(Py4JJavaError("", origin))
    position = _POSITION.search(text)
    message = one_line(re.split(r"\s*SQLSTATE: |\n\n?== |;\s*\n'|\n\s+at ", text, maxsplit=1)[0]).rstrip(" ;")
    message = _ADVICE.sub("", message)
    if position is not None and "line " not in message:
        line, column = (part for part in position.groups() if part is not None)
        message += f" (line {line}, column {int(column) + 1})"
    return message


def _reject_writes(session: Any, statement: str) -> None:
    """Raises `QueryFailed` for a statement that writes although it begins like a query: `WITH … INSERT`, or a statement
    after nested comments. The parser of the Spark session decides."""
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    command = plan.getClass().getClassLoader().loadClass(_COMMAND)
    nodes = [plan]
    while nodes:
        node = nodes.pop()
        name = node.getClass().getSimpleName()
        if name.startswith(_WRITE_STATEMENTS) or (command.isInstance(node) and not name.startswith(_READ_COMMANDS)):
            raise QueryFailed(f"only queries are allowed, and Spark parses this as {name}; only loads change tables")
        children = node.children()
        nodes += [children.apply(index) for index in range(children.size())]


def _with_few_tasks(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Returns the query with a limited number of tasks for each scan of a partitioned Hive table.

    Spark reads each file of such a table in a task of its own, and each of these tasks first deserializes the
    description of all partitions of the scan. The time of a scan therefore grows with files times partitions: 20 s of
    processor time for 730 small files in 365 partitions, and 6 s with this limit. On a cluster the number of tasks is
    not limited, because executors may join during the query.

    Args:
        frame: the query, analyzed. Conditions on partition columns still limit the partitions that it reads.
    """
    if not session.sparkContext.master.startswith("local"):
        return frame
    jvm: Any = session._jvm
    tasks = TASKS_PER_CORE * session.sparkContext.defaultParallelism

    def limited(node: Any) -> Any:
        if node.getClass().getSimpleName() == _HIVE_TABLE:
            if node.partitionCols().isEmpty():
                return node
            return jvm.org.apache.spark.sql.catalyst.plans.logical.Repartition(tasks, False, node)
        children = [node.children().apply(index) for index in range(node.children().size())]
        replaced = [limited(child) for child in children]
        if all(new is old for new, old in zip(replaced, children, strict=True)):
            return node
        return node.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq(replaced))

    plan = frame._jdf.queryExecution().analyzed()
    replaced = limited(plan)
    if replaced is plan:
        return frame
    dataset = jvm
    for name in str(frame._jdf.getClass().getName()).split("."):  # its package depends on the release of Spark
        dataset = getattr(dataset, name)
    return type(frame)(dataset.ofRows(session._jsparkSession, replaced), session)


def _collect(frame: DataFrame, with_values: bool) -> QueryResult:
    from pyspark.sql import functions

    names, types = tuple(frame.columns), tuple(field.dataType for field in frame.schema.fields)
    # Columns by position, since a query may return the same name twice.
    keys = [f"c{i}" for i in range(len(names))]
    renamed = frame.toDF(*keys)
    texts = [_as_text(functions.col(key), kind).alias(f"{key}_text") for key, kind in zip(keys, types, strict=True)]
    if with_values:
        json_columns = [
            _as_json_value(functions.col(key), kind).alias(key) for key, kind in zip(keys, types, strict=True)
        ]
        row_document = functions.struct(*json_columns)
        texts.append(functions.to_json(row_document, {"ignoreNullFields": "false"}).alias("whole"))
    rows = [tuple(row) for row in renamed.select(*texts).collect()] if keys else []
    documents = [json.loads(row[-1]) for row in rows] if with_values else []
    return QueryResult(
        columns=names,
        types=tuple(kind.simpleString() for kind in types),
        rows=tuple(row[: len(keys)] for row in rows),
        values=tuple(tuple(document[key] for key in keys) for document in documents),
    )


def _as_text(column: Any, kind: DataType) -> Any:
    from pyspark.sql import functions

    name = _short_name(kind)
    if name in NESTED_TYPES:
        return functions.to_json(_as_json_value(column, kind), {"ignoreNullFields": "false"})
    if name == "binary":
        return functions.lower(functions.hex(column))
    return column.cast("string")


def _as_json_value(column: Any, kind: DataType) -> Any:
    """Returns the column with all values in a form that Spark's JSON functions write as query results need it: values
    such as decimals and timestamps become text, also inside structs, arrays and maps.

    Args:
        column: a column of a Spark data frame, or a part of one.
        kind: its type.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, MapType, StructType

    if _is_json_native(kind):
        return column
    if isinstance(kind, StructType):
        fields = [
            _as_json_value(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields
        ]
        return functions.when(column.isNotNull(), functions.struct(*fields))
    if isinstance(kind, ArrayType):
        return functions.transform(column, lambda item: _as_json_value(item, kind.elementType))
    if isinstance(kind, MapType):
        text_keys = functions.transform_keys(column, lambda key, _: _as_text(key, kind.keyType))
        return functions.transform_values(text_keys, lambda _, value: _as_json_value(value, kind.valueType))
    return _as_text(column, kind)


def _is_json_native(kind: DataType) -> bool:
    """Returns whether Spark's JSON functions already write all values of the type `kind` in the form of query results,
    in which for example decimals are text. If not, `_as_json_value` must convert the values first."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return all(_is_json_native(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_json_native(kind.elementType)
    if isinstance(kind, MapType):
        return _short_name(kind.keyType) == "string" and _is_json_native(kind.valueType)
    return _short_name(kind) in JSON_NATIVE_TYPES or _short_name(kind) == "variant"


def _short_name(kind: DataType) -> str:
    return re.split(r"[(<]", kind.simpleString(), maxsplit=1)[0]


def aligned_rows(result: QueryResult, cell_chars_max: int) -> Sequence[Sequence[str]]:
    """Formats the rows of a result for a terminal: NULL is spelled out, a cell is one line of at most `cell_chars_max`
    characters, and the column `kafka` is `partition:offset timestamp`."""
    kafka_columns = {i for i, kind in enumerate(result.types) if kind.startswith(KAFKA_COLUMN_TYPE)}
    return [
        [
            "NULL"
            if value is None
            else _shorten(_format_kafka_column(value) if i in kafka_columns else value, cell_chars_max)
            for i, value in enumerate(row)
        ]
        for row in result.rows
    ]


def _format_kafka_column(text: str) -> str:
    position = json.loads(text)
    return f"{position['partition']}:{position['offset']} {position['timestamp'] or ''}".rstrip()


def _shorten(text: str, chars_max: int) -> str:
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
