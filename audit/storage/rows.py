"""Adds audit rows: those that are new, with the marks of their windows and the offsets that they counted; and reads
their sums.

All changes of a topic are made under its lock (`lock_topics`). On PostgreSQL that is a row lock of `topic_state`,
without which an update of verdicts could delete the mark of a window whose new rows it did not see. SQLite has one
writer at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from headrace.audit.count import FINGERPRINT_MASK
from headrace.audit.facts import RowCounts, WindowFacts, collect_facts
from headrace.audit.offsets import CountedOffsets, OffsetSpan
from headrace.audit.row import AUDITOR, AuditOutcome, AuditRow, Tier
from headrace.audit.schema import signed64
from headrace.audit.storage.tables import (
    AUDIT_ROW,
    OFFSET_RANGE,
    TIER_COUNT,
    TOPIC_STATE,
    TOUCHED_WINDOW,
)
from headrace.audit.window import known_window

PARAMETERS_MAX: Final = 500
"""Parameters of one statement. SQLite permits 32,766, older ones 999."""

READ_ROWS: Final = 5_000
"""Rows that are fetched at once."""

ROW_FIELDS: Final = tuple(field.name for field in dataclasses.fields(AuditRow) if field.name in AUDIT_ROW.c)
"""The columns of the rows, by the names of their fields."""

_field_values: Final = operator.attrgetter(*ROW_FIELDS)
_TEXT_FIELDS: Final = tuple(name for name in ROW_FIELDS if isinstance(AUDIT_ROW.c[name].type, sa.Text))
_texts: Final = operator.attrgetter(*_TEXT_FIELDS)
_PLAIN: Final = tuple(ROW_FIELDS.index(name) for name in ("tier", "outcome"))
_FINGERPRINT: Final = ROW_FIELDS.index("fingerprint")
_CRASHED: Final = ROW_FIELDS.index("crashed")

_C: Final = AUDIT_ROW.c
_KEY_COLUMNS: Final = (_C.topic, _C.window_start_ms, _C.outcome, _C.application, _C.emitted_at_ms, _C.hash)


def _total(column: sa.ColumnElement[Any], name: str | None = None) -> sa.ColumnElement[Any]:
    return sa.cast(sa.func.sum(column), sa.BigInteger).label(name)  # PostgreSQL's sums of integers are decimals


def _fingerprint_total() -> sa.ColumnElement[Any]:
    """Returns the sum of the fingerprints modulo 2**64, as a signed number. The plain sum of the signed numbers could
    exceed 64 bits, which is an error; so the halves are added up apart. Constants instead of parameters let SQLite
    compute each sum once."""
    bits, mask = sa.literal_column("32", sa.Integer), sa.literal_column("4294967295", sa.BigInteger)
    high, low = _total(_C.fingerprint.bitwise_rshift(bits)), _total(_C.fingerprint.bitwise_and(mask))
    return (high + low.bitwise_rshift(bits)).bitwise_lshift(bits).bitwise_or(low.bitwise_and(mask)).label("fingerprint")


FACT_COLUMNS: Final = (
    _C.topic,
    _C.window_start_ms,
    _C.outcome,
    _C.application,
    _total(_C["count"], "messages"),
    _total(_C.bytes, "size_bytes"),
    _fingerprint_total(),
    _total(_C.sent, "sent"),
    sa.func.max(_C.crashed).label("crashed"),
    _C.emitted_at_ms,
    _C.hash,
)
"""The columns that `facts_of` reads, in the order of `RowCounts`. The database adds up the rows of one commit's
partitions, or of the auditor's partitions at one time. The query takes as long as without sums and returns fewer
rows."""


def in_batches(values: Iterable[Any], size: int = PARAMETERS_MAX) -> Iterator[list[Any]]:
    """Yields the values in lists of at most `size`."""
    batch: list[Any] = []
    for value in values:
        batch.append(value)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def insert_new(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts the rows with new primary keys; existing rows do not change."""
    _insert(connection, table, rows, replaces=False)


def upsert(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts rows; replaces the columns of rows with existing primary keys."""
    _insert(connection, table, rows, replaces=True)


def _insert(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]], *, replaces: bool) -> None:
    """Inserts rows, all with the same columns. The driver gets the values as they are: SQLAlchemy's processing of the
    parameters of many rows would take longer than the insert."""
    if not rows:
        return
    sql, names = _insert_text(connection.dialect, table, tuple(rows[0]), replaces)
    if names is None:
        connection.exec_driver_sql(sql, [dict(row) for row in rows])
    elif len(names) == 1:
        connection.exec_driver_sql(sql, [(row[names[0]],) for row in rows])
    else:
        connection.exec_driver_sql(sql, list(map(operator.itemgetter(*names), rows)))


@functools.lru_cache(maxsize=64)
def _insert_text(
    dialect: sa.Dialect, table: sa.Table, columns: tuple[str, ...], replaces: bool
) -> tuple[str, Sequence[str] | None]:
    """Returns the text of an insert, and the names of its parameters in their order; None for parameters by name."""
    statement = (sqlite if dialect.name == "sqlite" else postgresql).insert(table)
    if replaces:
        keys = [column.name for column in table.primary_key]
        changed = {name: statement.excluded[name] for name in columns if name not in keys}
        statement = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    else:
        statement = statement.on_conflict_do_nothing()
    compiled = statement.compile(dialect=dialect, column_keys=columns)
    return compiled.string, compiled.positiontup


def add_topics(connection: Connection, topics: Iterable[str]) -> None:
    """Adds the states of topics that have none."""
    insert_new(connection, TOPIC_STATE, [{"topic": topic} for topic in sorted(set(topics))])


def lock_topics(connection: Connection, topics: Collection[str]) -> None:
    """Waits for other changes of these topics, and keeps later ones waiting until the transaction ends. The topics have
    states. Called once in a transaction, so that two of them cannot wait for each other."""
    if connection.dialect.name == "sqlite" or not topics:
        return
    query = sa.select(TOPIC_STATE.c.topic).where(TOPIC_STATE.c.topic.in_(sorted(topics)))
    connection.execute(query.order_by(TOPIC_STATE.c.topic).with_for_update()).all()


def storable(row: AuditRow) -> AuditRow:
    """Returns the row without NUL characters in its texts, which PostgreSQL does not store: a name in a message must
    not stop the reading of the audit topic."""
    texts = _texts(row)
    if "\0" not in "".join(texts):
        return row
    cleaned = {
        name: text.replace("\0", "\ufffd") for name, text in zip(_TEXT_FIELDS, texts, strict=True) if "\0" in text
    }
    return dataclasses.replace(row, **cleaned)


def insert_rows(connection: Connection, rows: Sequence[AuditRow]) -> int:
    """Adds the audit rows with new ids, under the lock of their topics, and marks their windows as touched.
    Returns their number."""
    new = _new_rows(connection, rows)
    if not new:
        return 0
    _add_offsets(connection, new)
    insert_new(connection, AUDIT_ROW, [dict(zip(ROW_FIELDS, _values(row), strict=True)) for row in new])
    touch(connection, {(row.topic, row.window_start_ms) for row in new})
    newest: dict[str, int] = {}
    for row in new:
        newest[row.tier.value] = max(newest.get(row.tier.value, 0), row.emitted_at_ms)
    _set_tier_counts(connection, newest)
    return len(new)


def touch(connection: Connection, windows: Iterable[tuple[str, int]]) -> None:
    """Marks windows (topic, start) for a new computation of their verdicts."""
    marks = [{"topic": topic, "window_start_ms": start_ms} for topic, start_ms in sorted(windows)]
    insert_new(connection, TOUCHED_WINDOW, marks)


_ID_IN: Final = sa.select(_C.id).where(_C.id.in_(sa.bindparam("ids", expanding=True)))
_RANGES_OF: Final = sa.select(OFFSET_RANGE).where(OFFSET_RANGE.c.topic.in_(sa.bindparam("topics", expanding=True)))
_RANGE_COLUMNS: Final = ("kind", "partition", "start", "end")
_DELETE_RANGE: Final = sa.delete(OFFSET_RANGE).where(
    *(OFFSET_RANGE.c[name] == sa.bindparam(f"old_{name}") for name in ("topic", *_RANGE_COLUMNS))
)
_TIER_COUNTS: Final = sa.select(TIER_COUNT.c.tier, TIER_COUNT.c.last_counted_ms)
"""Statements of each added row batch. Building them again for each batch takes a fifth of its time."""


def _new_rows(connection: Connection, rows: Sequence[AuditRow]) -> list[AuditRow]:
    by_id = {row.id: row for row in reversed(rows)}  # of equal ids, the first row
    for ids in in_batches(by_id.copy()):
        for (found,) in connection.execute(_ID_IN, {"ids": ids}):
            del by_id[found]
    return [row for row in rows if by_id.pop(row.id, None) is not None]


def _set_tier_counts(connection: Connection, newest: Mapping[str, int]) -> None:
    stored = dict(connection.execute(_TIER_COUNTS).all())
    changed = [
        {"tier": tier, "last_counted_ms": time_ms}
        for tier, time_ms in sorted(newest.items())
        if time_ms > stored.get(tier, -1)
    ]
    upsert(connection, TIER_COUNT, changed)


def _add_offsets(connection: Connection, rows: Iterable[AuditRow]) -> None:
    counted: dict[str, set[OffsetSpan]] = {}
    skipped: dict[str, set[OffsetSpan]] = {}
    for row in rows:
        span = (row.partition, row.start, row.end)
        if row.outcome is AuditOutcome.SKIPPED:
            skipped.setdefault(row.topic, set()).add(span)
        # The auditor counts offsets that the loader counts, too: that is no overlap.
        elif row.tier is Tier.BROKER and row.partition >= 0 and row.application != AUDITOR:
            counted.setdefault(row.topic, set()).add(span)
    topics = sorted({*counted, *skipped})
    stored = counted_offsets(connection, topics)
    for topic in topics:
        before, spans = stored.get(topic, CountedOffsets()), counted.get(topic, set())
        if before.meets(spans):
            spans = spans - _stored_spans(connection, topic)
        after = before.plus(spans, skipped.get(topic, ())).without_old_holes()
        _replace_offsets(connection, topic, before, after)


def _stored_spans(connection: Connection, topic: str) -> set[OffsetSpan]:
    columns = (AUDIT_ROW.c.partition, AUDIT_ROW.c.start, AUDIT_ROW.c.end)
    query = (
        sa.select(*columns)
        .distinct()
        .where(AUDIT_ROW.c.topic == topic, AUDIT_ROW.c.tier == Tier.BROKER.value, AUDIT_ROW.c.application != AUDITOR)
    )
    return {(partition, start, end) for partition, start, end in connection.execute(query)}


def _replace_offsets(connection: Connection, topic: str, before: CountedOffsets, after: CountedOffsets) -> None:
    old, new = _kinds(before), _kinds(after)
    deleted, added = old - new, new - old
    if deleted:
        names = [f"old_{name}" for name in _RANGE_COLUMNS]
        connection.execute(
            _DELETE_RANGE,
            [{"old_topic": topic, **dict(zip(names, one, strict=True))} for one in sorted(deleted)],
        )
    insert_new(
        connection,
        OFFSET_RANGE,
        [{"topic": topic, **dict(zip(_RANGE_COLUMNS, one, strict=True))} for one in sorted(added)],
    )


def _kinds(offsets: CountedOffsets) -> set[tuple[str, int, int, int]]:
    return {
        *(("counted", *span) for span in offsets.counted),
        *(("overlap", *span) for span in offsets.overlaps),
        *(("skipped", *span) for span in offsets.skipped),
    }


def counted_offsets(connection: Connection, topics: Iterable[str]) -> dict[str, CountedOffsets]:
    """Returns the counted and skipped offsets of topics; topics without any are left out."""
    spans: dict[str, dict[str, list[OffsetSpan]]] = {}
    for batch in in_batches(topics):
        for topic, kind, partition, start, end in connection.execute(_RANGES_OF, {"topics": batch}):
            spans.setdefault(topic, {}).setdefault(kind, []).append((partition, start, end))
    return {
        topic: CountedOffsets(*(tuple(sorted(kinds.get(kind, ()))) for kind in ("counted", "overlap", "skipped")))
        for topic, kinds in spans.items()
    }


def facts_of(connection: Connection, query: sa.Select[Any]) -> Iterator[WindowFacts]:
    """Yields the sums of the rows of a query of `FACT_COLUMNS`, by topic and window. Adds the query's order and
    grouping, and leaves out rows of skipped offsets, which are no messages."""
    ordered = (
        query.where(_C.outcome != AuditOutcome.SKIPPED.value)
        .group_by(*_KEY_COLUMNS)
        .order_by(*_KEY_COLUMNS)  # like the grouping, so that SQLite sorts once
    )
    rows = itertools.chain.from_iterable(connection.execute(ordered).partitions(READ_ROWS))
    return collect_facts(map(RowCounts._make, rows))


def _values(row: AuditRow) -> list[Any]:
    values = list(_field_values(row))
    for place in _PLAIN:
        values[place] = values[place].value
    values[_FINGERPRINT] = signed64(values[_FINGERPRINT])
    values[_CRASHED] = int(values[_CRASHED])
    return values


def stored_row(values: Iterable[Any]) -> AuditRow:
    """Returns the audit row of its columns `ROW_FIELDS`."""
    fields = dict(zip(ROW_FIELDS, values, strict=True))
    fields["tier"] = Tier(fields["tier"])
    fields["outcome"] = AuditOutcome(fields["outcome"])
    fields["crashed"] = bool(fields["crashed"])
    fields["window_start_ms"] = known_window(fields["window_start_ms"])
    fields["fingerprint"] &= FINGERPRINT_MASK
    return AuditRow(**fields)
