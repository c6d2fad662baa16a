"""Writes the catalogue: two Hive tables that describe the tables of all topics, for analysts.

    <database>_catalog.tables    a row per topic: owner, doc, rows, bytes, freshness, lag, first and last hour
    <database>_catalog.columns   a row per column of the topics' tables: type, doc, since which version of the subject

    <warehouse>/_catalog/tables/tables.avro      replaced by every load
    <warehouse>/_catalog/columns/columns.avro    replaced if a table's columns changed

Each table is one Avro file with one block. A reader that lists the file before its replacement and opens it afterwards
still reads one complete version, because a block is read as a whole, whatever length the reader expects. The catalogue
is derived from the commit log and may be deleted at any time: the next load writes it again.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Final

import fastavro

from headrace.avro_schema import parse_schema
from headrace.hive_ddl.errors import MetastoreUnavailable, SessionFailed
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.plan import plan_table
from headrace.hive_ddl.table import COMMENT, PARTITION_COMMENTS, TableState, desired_table
from headrace.hive_ddl.types import table_columns
from headrace.loader.apply.complete import read_completeness
from headrace.loader.apply.layout import PARTITION_COLUMNS, partition_values
from headrace.loader.apply.schema import TableSettings
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import DayIndex, live_at
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.load_schema import LoadState, column_versions, table_comment, table_owner
from headrace.loader.plan.discover import DiscoveredTopic
from headrace.loader.report import held_back
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind
from headrace.loader.write.container import CALENDAR

logger = logging.getLogger(__name__)

DATABASE_SUFFIX: Final = "_catalog"
DIRECTORY: Final = "_catalog"
TABLES: Final = "tables"
COLUMNS: Final = "columns"

OWNER_OF_CATALOG: Final = "the catalogue/"
"""Value of the property `headrace.topic` of the two tables, before their names. No topic has a slash in its name."""

BLOCK_BYTES_MAX: Final = 1 << 30  # more than a file has, so that it has one block


def _field(name: str, kind: str, doc: str, *, logical: str = "", is_nullable: bool = False) -> dict[str, Any]:
    plain: Any = {"type": kind, "logicalType": logical} if logical else kind
    field = {"name": name, "type": ["null", plain] if is_nullable else plain, "doc": doc}
    return {**field, "default": None} if is_nullable else field


MILLIS: Final = "timestamp-millis"

TABLES_SCHEMA: Final = {
    "type": "record",
    "name": "CatalogTable",
    "namespace": "headrace.catalog",
    "doc": "tables of the topics, as of the newest load",
    "fields": [
        _field("topic", "string", "name of the Kafka topic"),
        _field("database_name", "string", "Hive database of the table"),
        _field("table_name", "string", "Hive table of the topic"),
        _field(
            "owner", "string", "owner by the subject's metadata or the attribute owner of the schema", is_nullable=True
        ),
        _field("doc", "string", "doc of the newest schema", is_nullable=True),
        _field("subject", "string", "registry subject of the topic's values"),
        _field("version", "int", "newest version of the subject in the table"),
        _field("partitioned_by", "string", "partition columns, separated by commas"),
        _field("row_count", "long", "rows in the table, without quarantined messages"),
        _field("byte_count", "long", "bytes of the table's files"),
        _field("file_count", "long", "files of the table"),
        _field("quarantined", "long", "messages in the quarantine table"),
        _field("lag", "long", "messages that are not loaded yet; null if unknown", is_nullable=True),
        _field("complete_until", "long", "time up to which the table is complete", logical=MILLIS, is_nullable=True),
        _field("first_hour", "long", "start of the first time partition with rows", logical=MILLIS, is_nullable=True),
        _field("last_hour", "long", "start of the last time partition with rows", logical=MILLIS, is_nullable=True),
        _field("commit_number", "long", "newest commit of the topic"),
        _field("schema_revision", "int", "number of changes of the table's schema"),
        _field("kafka_column", "string", "variant of the column kafka: none, position or full"),
        _field("as_of", "long", "time of the load that wrote this row", logical=MILLIS),
    ],
}
"""Schema of the table `tables`. Fields are only added, with a default."""

COLUMNS_SCHEMA: Final = {
    "type": "record",
    "name": "CatalogColumn",
    "namespace": "headrace.catalog",
    "doc": "columns of the topics' tables, as of the newest load",
    "fields": [
        _field("topic", "string", "name of the Kafka topic"),
        _field("database_name", "string", "Hive database of the table"),
        _field("table_name", "string", "Hive table of the topic"),
        _field("ordinal_position", "int", "position in the table, from 1; partition columns come last"),
        _field("column_name", "string", "name of the column"),
        _field("data_type", "string", "Hive type of the column"),
        _field("doc", "string", "doc of the field that feeds the column", is_nullable=True),
        _field("since_version", "int", "version of the subject that added the column", is_nullable=True),
    ],
}
"""Schema of the table `columns`. Fields are only added, with a default."""

SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {TABLES: TABLES_SCHEMA, COLUMNS: COLUMNS_SCHEMA}

Row = Mapping[str, Any]
Hours = tuple[datetime | None, datetime | None]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Writes the catalogue of a warehouse. `index` has the live files of the topics, `tables` the settings from which
    the topics' tables are defined, and `executor` creates the catalogue's own tables."""

    log: CommitLog
    index: FileIndex
    files: WarehouseFiles
    tables: TableSettings
    executor: Callable[[], Executor]

    def update(
        self, discovered: Mapping[str, DiscoveredTopic], now_ms: int, *, compares_tables: bool
    ) -> tuple[str, ...]:
        """Writes the catalogue as of the state that the log has read.

        Args:
            discovered: topics and offsets on the brokers, for the lag.
            now_ms: the current time.
            compares_tables: whether to compare the catalogue's tables, and to create missing ones. The first load
                creates them in any case.

        Returns:
            Warnings. No row of a topic depends on the catalogue, so every failure is only a warning, and the next load
            tries again.
        """
        if not self.log.state.topics:
            return ()
        try:
            previous = {row["topic"]: row for row in self._read(TABLES)}
            if compares_tables or not previous:
                self._ensure_tables()
            self._write(discovered, now_ms, previous)
        except (MetastoreUnavailable, SessionFailed):
            # The appliers report it. Without the first file, the next load tries again to create the tables.
            logger.debug("catalog_not_updated reason=metastore_unavailable", exc_info=True)
        except Exception as error:
            logger.debug("catalog_not_updated", exc_info=True)
            return (
                f"the catalogue {self.tables.database}{DATABASE_SUFFIX} was not updated: {error}; "
                "the next load tries again",
            )
        return ()

    def _write(self, discovered: Mapping[str, DiscoveredTopic], now_ms: int, previous: Mapping[str, Row]) -> None:
        state = self.log.state
        completeness = read_completeness(self.log.storage).topics
        as_of, rows = datetime.fromtimestamp(now_ms / 1000, UTC), []
        for topic, known in sorted(state.topics.items()):
            complete = completeness.get(topic)
            rows.append(
                table_row(
                    topic,
                    known,
                    self.tables,
                    lag=_lag(topic, discovered, state),
                    complete_until_ms=complete.until_ms if complete else 0,
                    hours=self._hours(topic, known, previous.get(topic)),
                    as_of=as_of,
                )
            )
        if list(map(_schema_key, rows)) != list(map(_schema_key, previous.values())) or not self.files.length(
            _path(COLUMNS)
        ):
            self._put(COLUMNS, column_rows(state.topics, self.tables))
        # Written last: its rows show that the columns were written.
        self._put(TABLES, rows)

    def _hours(self, topic: str, known: TopicState, previous: Row | None) -> Hours:
        """Returns the starts of a topic's first and last time partitions with files.

        Args:
            previous: the topic's row in the previous catalogue, which is current if the topic has no newer commit.
        """
        if previous is not None and previous["commit_number"] == known.commit_number:
            return previous["first_hour"], previous["last_hour"]

        def live(day: str) -> list[str]:
            return live_time_partitions(self.index.day_uncached(topic, FileKind.DATA, day), known.commit_number)

        return hours_of(self.index.days(topic, FileKind.DATA), live)

    def _ensure_tables(self) -> None:
        executor = self.executor()
        executor.ensure_database(self.tables.database + DATABASE_SUFFIX)
        for name in (TABLES, COLUMNS):
            wanted = catalog_table(name, self.tables.database, self.files.location(f"{DIRECTORY}/{name}"))
            for operation in plan_table(executor.table(wanted.database, wanted.name), wanted):
                executor.execute(operation)

    def _read(self, name: str) -> Sequence[Row]:
        """Returns the rows of a table of the catalogue. A missing or damaged file has no rows."""
        if not self.files.length(_path(name)):
            return ()
        try:
            with self.files.open(_path(name)) as file:
                return list(fastavro.reader(BytesIO(file.read()), SCHEMAS[name]))
        except (OSError, ValueError, EOFError, LookupError) as error:
            logger.warning("catalog_file_ignored table=%s reason=%s", name, error)
            return ()

    def _put(self, name: str, rows: Iterable[Row]) -> None:
        content = BytesIO()
        fastavro.writer(
            content, SCHEMAS[name], rows, codec="deflate", sync_interval=BLOCK_BYTES_MAX, metadata=dict(CALENDAR)
        )
        self.files.put(_path(name), content.getvalue())


def table_row(
    topic: str,
    known: TopicState,
    tables: TableSettings,
    *,
    lag: int | None,
    complete_until_ms: int,
    hours: Hours,
    as_of: datetime,
) -> Row:
    """Returns the row of the table `tables` about a topic.

    Args:
        lag: messages of the topic that are not loaded, None if unknown.
        complete_until_ms: time up to which the table is complete, in ms since 1970; 0 if unknown.
        hours: starts of the first and last time partitions with files.
        as_of: time of this load.
    """
    loaded = known.load_schema
    return {
        "topic": topic,
        "database_name": tables.database,
        "table_name": known.table,
        "owner": table_owner(loaded.fold) or None,
        "doc": table_comment(loaded.fold) or None,
        "subject": loaded.subject,
        "version": loaded.version,
        "partitioned_by": ",".join(PARTITION_COLUMNS[known.partition_by]),
        "row_count": known.data.records,
        "byte_count": known.data.bytes,
        "file_count": known.data.files,
        "quarantined": known.quarantine.records,
        "lag": lag,
        "complete_until": datetime.fromtimestamp(complete_until_ms / 1000, UTC) if complete_until_ms else None,
        "first_hour": hours[0],
        "last_hour": hours[1],
        "commit_number": known.commit_number,
        "schema_revision": loaded.revision,
        "kafka_column": known.kafka_column,
        "as_of": as_of,
    }


def column_rows(topics: Mapping[str, TopicState], tables: TableSettings) -> Iterator[Row]:
    """Yields the rows of the table `columns`: the columns of each topic's table, partition columns last."""
    for topic, known in sorted(topics.items()):
        fold = LoadState.from_json(json.loads(known.load_schema.fold))
        # Hive's names are in lower case.
        added = {name.lower(): version for name, version in column_versions(fold).items()}
        first = min(fold.versions, default=None)
        schema = parse_schema(tables.table_schema(topic, known), strict=False)
        columns = [
            (column.name, column.type, column.comment, added.get(column.name, first))
            for column in table_columns(schema, PARTITION_COLUMNS[known.partition_by])
        ]
        columns += [(name, "string", PARTITION_COMMENTS[name], None) for name in PARTITION_COLUMNS[known.partition_by]]
        for position, (name, hive_type, doc, since) in enumerate(columns, 1):
            yield {
                "topic": topic,
                "database_name": tables.database,
                "table_name": known.table,
                "ordinal_position": position,
                "column_name": name,
                "data_type": hive_type,
                "doc": doc or None,
                "since_version": since,
            }


def catalog_table(name: str, database: str, location: str) -> TableState:
    """Returns the Hive table `name` of the catalogue: `tables` or `columns`.

    Args:
        database: the database of the topics' tables.
        location: URI of the table's directory.
    """
    return desired_table(
        database=database + DATABASE_SUFFIX,
        name=name,
        location=location,
        topic=OWNER_OF_CATALOG + name,
        subject="",
        version=1,
        schema_text=json.dumps(SCHEMAS[name], separators=(",", ":")),
        revision="1-catalog",
        partition_columns=(),
        properties={COMMENT: SCHEMAS[name]["doc"]},
    )


def hours_of(days: Sequence[str], live: Callable[[str], Sequence[str]]) -> Hours:
    """Returns the starts of the first and last time partitions with files.

    Expiry empties the oldest days, and the index still lists them. The first day with files is therefore found by
    bisection, and the last one from the end.

    Args:
        days: the days that have or had files, sorted, such as `dt=2026-01-31`.
        live: returns the sorted time partitions of a day that have files.
    """
    last = next((found for day in reversed(days) if (found := live(day))), None)
    if last is None:
        return None, None
    first = bisect_left(days, True, hi=len(days) - 1, key=lambda day: bool(live(day)))
    # Late rows of an expired day may make bisection end at a day without files.
    return _start((live(days[first]) or last)[0]), _start(last[-1])


def live_time_partitions(day: DayIndex, commit_number: int) -> list[str]:
    """Returns the time partitions of a day that have live files as of a commit, sorted."""
    return sorted(name for name, one in day.time_partitions.items() if live_at(one, commit_number))


def _lag(topic: str, discovered: Mapping[str, DiscoveredTopic], state: LoaderState) -> int | None:
    found = discovered.get(topic)
    return None if found is None or found.errors else held_back({topic: found}, state).get(topic, 0)


def _schema_key(row: Row) -> tuple[Any, ...]:
    """Returns the values of a row of `tables` on which the topic's columns depend."""
    return row["topic"], row["table_name"], row["partitioned_by"], row["schema_revision"], row["kafka_column"]


def _start(time_partition: str) -> datetime | None:
    """Returns the start of a time partition such as `dt=2026-01-31/hr=07`; None before year 1 or after year 9999."""
    day, *hour = partition_values(time_partition)
    try:
        return datetime.fromisoformat(f"{day}T{hour[0] if hour else '00'}:00:00+00:00")
    except ValueError:
        return None


def _path(name: str) -> str:
    return f"{DIRECTORY}/{name}/{name}.avro"
