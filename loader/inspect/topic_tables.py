"""The tables of topics as the commits define them: sizes, columns with the rules that produced them, and days. Needs no
metastore."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headrace.loader.apply.catalog import column_rows
from headrace.loader.apply.complete import read_completeness
from headrace.loader.apply.layout import PARTITION_COLUMNS
from headrace.loader.apply.schema import TableSettings
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import live_at
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.load_schema import (
    AppliedRule,
    ExplainedRule,
    LoadState,
    explain,
    load_record,
    sources,
    table_comment,
    table_owner,
)
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """The table of one topic. `version` is the newest version of the subject in it. `rows`, `bytes` and `files` do not
    include quarantined messages. `complete_until_ms` is the time up to which the table is complete, None if unknown.
    `owner` and `doc` come from the newest schema, "" for none."""

    topic: str
    table: str
    subject: str
    version: int
    owner: str
    doc: str
    partitioned_by: tuple[str, ...]
    rows: int
    bytes: int
    files: int
    quarantined: int
    complete_until_ms: int | None
    commit_number: int


@dataclass(frozen=True, slots=True)
class DescribedColumn:
    """A column of a topic's table. `fields` are the fields of messages that fed it, newest first, and `rules` the rules
    that produced it and its parts. `since` is the version of the subject that added it. A partition column has neither
    fields nor rules."""

    name: str
    type: str
    doc: str
    fields: tuple[str, ...]
    rules: tuple[AppliedRule, ...]
    since: int | None


@dataclass(frozen=True, slots=True)
class TableDay:
    """The live files of one day of a table, such as `dt=2026-01-31`, and the number of its partitions."""

    day: str
    partitions: int
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableDays:
    """Some days of a table, newest first, of the `total` days for which it has or had files. `older` is the next older
    day, "" for none."""

    total: int = 0
    shown: tuple[TableDay, ...] = ()
    older: str = ""


def topic_named(state: LoaderState, name: str) -> str:
    """Returns the topic that a user means by a name: the loaded topic with this name, or the one whose table has this
    name; if there is neither, the name itself."""
    topics = state.topics
    return name if name in topics else next((topic for topic, one in topics.items() if one.table == name), name)


def topic_tables(log: CommitLog, only: str = "") -> tuple[LoadedTable, ...]:
    """Returns the tables of all loaded topics, by topic.

    Args:
        log: the commit log, after a call of `read_state`.
        only: only the table of this topic, none if it is not loaded; "" for all.

    Raises:
        OSError: the storage failed.
    """
    complete = read_completeness(log.storage).topics
    return tuple(
        topic_table(topic, known, complete[topic].until_ms if topic in complete else 0)
        for topic, known in sorted(log.state.topics.items())
        if only in ("", topic)
    )


def topic_table(topic: str, known: TopicState, complete_until_ms: int) -> LoadedTable:
    """Returns the table of a topic.

    Args:
        complete_until_ms: the time up to which the table is complete, in ms since 1970; 0 if unknown.
    """
    loaded = known.load_schema
    return LoadedTable(
        topic=topic,
        table=known.table,
        subject=loaded.subject,
        version=loaded.version,
        owner=table_owner(loaded.fold),
        doc=table_comment(loaded.fold),
        partitioned_by=PARTITION_COLUMNS[known.partition_by],
        rows=known.data.records,
        bytes=known.data.bytes,
        files=known.data.files,
        quarantined=known.quarantine.records,
        complete_until_ms=complete_until_ms or None,
        commit_number=known.commit_number,
    )


def described_columns(topic: str, known: TopicState, tables: TableSettings) -> tuple[DescribedColumn, ...]:
    """Returns the columns of a topic's table, partition columns last."""
    fold = LoadState.from_json(json.loads(known.load_schema.fold))
    fields = {one.name.lower(): sources(one) for one in load_record(known.load_schema.text).fields}
    rules: dict[str, list[AppliedRule]] = {}
    for rule in fold.applied:
        rules.setdefault(rule.column.partition(".")[0].lower(), []).append(rule)
    return tuple(
        DescribedColumn(
            name=row["column_name"],
            type=row["data_type"],
            doc=row["doc"] or "",
            fields=fields.get(row["column_name"], ()),
            rules=tuple(rules.get(row["column_name"], ())),
            since=row["since_version"],
        )
        for row in column_rows({topic: known}, tables)
    )


def table_rules(known: TopicState) -> tuple[tuple[int, ...], tuple[ExplainedRule, ...]]:
    """Returns the versions of the subject in a topic's table, and the rules that produced its columns."""
    fold = LoadState.from_json(json.loads(known.load_schema.fold))
    return fold.versions, explain(fold)


def days_of_table(index: FileIndex, topic: str, until: str, days_max: int) -> TableDays:
    """Returns the newest days of a topic's table, newest first.

    Args:
        until: the newest of these days, such as `dt=2026-01-31`; "" for the newest of all.
        days_max: the number of days to read.
    """
    days = index.days(topic, FileKind.DATA)
    candidates = [day for day in days if not until or day <= until]
    shown, older = candidates[-days_max:], candidates[:-days_max]
    return TableDays(len(days), tuple(_day(index, topic, day) for day in reversed(shown)), older[-1] if older else "")


def _day(index: FileIndex, topic: str, day: str) -> TableDay:
    time_partitions = index.day_uncached(topic, FileKind.DATA, day).time_partitions.values()
    live = [found for one in time_partitions if (found := live_at(one, index.commit_number))]
    return TableDay(
        day,
        partitions=len(live),
        files=sum(map(len, live)),
        rows=sum(file.records for files in live for file in files),
        bytes=sum(file.length for files in live for file in files),
    )
