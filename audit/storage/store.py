"""`AuditStore`: the audit's database as other packages use it.

The rows of the audit topic and their next offsets change in one transaction, and so do the rows of the loader's commits
and the number of the newest commit. A crash therefore cannot separate them, and adding rows again has no effect. A
database that was lost or restored from a backup shows which rows are missing, and they are added again. Several
processes may write: each change is a short transaction, and a writer waits for a busy database.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.errors import StoreUnavailable
from headrace.audit.event import AuditEvent, Incident
from headrace.audit.facts import WindowFacts
from headrace.audit.offsets import CountedOffsets, OffsetCheck
from headrace.audit.row import AuditRow, Tier
from headrace.audit.storage import reading
from headrace.audit.storage.completeness import TierShare, read_totals
from headrace.audit.storage.engine import AuditDatabase
from headrace.audit.storage.producer_faults import read_producer_faults
from headrace.audit.storage.report import read_report
from headrace.audit.storage.retention import prune, without_late
from headrace.audit.storage.rows import (
    FACT_COLUMNS,
    ROW_FIELDS,
    add_topics,
    counted_offsets,
    facts_of,
    insert_new,
    insert_rows,
    lock_topics,
    storable,
    stored_row,
    touch,
    upsert,
)
from headrace.audit.storage.tables import (
    ACCEPTED,
    AUDIT_ROW,
    CORRUPT_BATCH,
    COUNTED,
    FORMAT,
    INGESTED,
    METADATA,
    STORE_STATE,
    TIER_COUNT,
    TOPIC_STATE,
    WINDOW_VERDICT,
)
from headrace.audit.storage.update import VerdictUpdate, acceptances, update_verdicts
from headrace.audit.stored import (
    DATABASE_NAME,
    CompletenessTimes,
    CompletenessTotals,
    CountedCommit,
    ProducerFault,
    StoredWindow,
    TopicSummary,
    UncountedBatch,
)
from headrace.audit.verdict import ALL_TIME, NO_FINDING_POLICY, Acceptance, FindingPolicy, Period, TopicResult

CREATE_LOCK: Final = 4_842_731_936
"""A PostgreSQL advisory lock, so that one process creates the tables; an arbitrary number."""

_V = WINDOW_VERDICT.c


def audit_address(data_dir: Path, database_url: str) -> Path | str:
    """Returns the address of the audit's database: the URL of the settings, or the file in the data directory."""
    return database_url or data_dir / DATABASE_NAME


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class AuditStore:
    """The audit's database at `address`: a file of SQLite, or a URL. Tables are created if it has none. Thread-safe.

    Raises:
        StoreUnavailable: the database cannot be used; every method may raise it.
    """

    def __init__(self, address: Path | str) -> None:
        self.database = AuditDatabase(address)
        self.path = self.database.path
        try:
            self._prepare()
        except BaseException:
            self.database.close()
            raise

    def __enter__(self) -> AuditStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    # Rows

    def add_rows(self, rows: Iterable[AuditRow]) -> int:
        """Adds audit rows with new ids, in one transaction; returns the number of added rows."""
        new = [storable(row) for row in rows]
        with self._changing({row.topic for row in new}) as connection:
            return insert_rows(connection, without_late(connection, new, _now_ms()))

    def add_ingested(self, topic: str, next_offsets: Mapping[int, int], rows: Iterable[AuditRow]) -> int:
        """Stores audit rows from the audit topic, and for each of its partitions the offset at which to continue
        reading, in one transaction. Returns the number of rows that were not stored before.

        Args:
            topic: the audit topic.
            next_offsets: by partition, the offset at which to continue.
            rows: the audit rows.
        """
        new = [storable(row) for row in rows]
        positions = [
            {"topic": topic, "partition": partition, "next_offset": offset}
            for partition, offset in sorted(next_offsets.items())
        ]
        with self._changing({row.topic for row in new}) as connection:
            added = insert_rows(connection, without_late(connection, new, _now_ms()))
            upsert(connection, INGESTED, positions)
            return added

    def add_log_counts(
        self,
        log_id: str,
        before: Mapping[int, int | None],
        after: Mapping[int, int],
        rows: Iterable[AuditRow],
        corrupt: Sequence[UncountedBatch] = (),
    ) -> bool:
        """Adds the rows that the auditor counted in a topic's log, the corrupt batches that it could not count, and its
        new positions, in one transaction. Returns False, and changes nothing, if another process has moved a position
        meanwhile.

        Args:
            log_id: name of the log among the positions (`next_offsets`).
            before: by partition, the position at which the auditor began to count; None if there was none.
            after: by partition, the new position.
            rows: the rows of the messages between; all of one topic.
            corrupt: the corrupt batches between.
        """
        new = [storable(row) for row in rows]
        with self._changing({row.topic for row in new}) as connection:
            if not self.database.is_sqlite:
                # A lock of the log's rows would not stop another process while there are none.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(log_id, 0))))
            query = sa.select(INGESTED.c.partition, INGESTED.c.next_offset).where(INGESTED.c.topic == log_id)
            stored = {row.partition: row.next_offset for row in connection.execute(query)}
            if any(stored.get(partition) != position for partition, position in before.items()):
                return False
            insert_rows(connection, new)
            positions = [
                {"topic": log_id, "partition": partition, "next_offset": position}
                for partition, position in sorted(after.items())
            ]
            upsert(connection, INGESTED, positions)
            upsert(connection, CORRUPT_BATCH, [{"log_id": log_id, **one._asdict()} for one in corrupt])
            return True

    def corrupt_batches(self) -> list[UncountedBatch]:
        """Returns the corrupt batches that the auditor found and that may still be in the log, ordered by topic and
        offset."""
        columns = [CORRUPT_BATCH.c[name] for name in UncountedBatch._fields]
        with self.database.reading() as connection:
            return sorted(UncountedBatch(*values) for values in connection.execute(sa.select(*columns)))

    def forget_corrupt_batches(self, log_id: str, topic: str, log_starts: Mapping[int, int]) -> None:
        """Deletes the corrupt batches of a topic that are no longer in its log: those of a topic of the same name that
        was deleted, and those before the start of the log.

        Args:
            log_id: name of the topic's present log among the positions.
            log_starts: the first offset by partition.
        """
        found = CORRUPT_BATCH.c
        with self.database.writing() as connection:
            connection.execute(sa.delete(CORRUPT_BATCH).where(found.topic == topic, found.log_id != log_id))
            for partition, start in sorted(log_starts.items()):
                is_deleted = (found.partition == partition) & (found.end <= start)
                connection.execute(sa.delete(CORRUPT_BATCH).where(found.log_id == log_id, is_deleted))

    def add_committed(self, topic: str, since: int, last_commit: CountedCommit, rows: Iterable[AuditRow]) -> int:
        """Adds the audit rows of a topic's commits. Records in the same transaction that the counts of all commits up
        to `last_commit` are stored. Returns the number of new rows.

        The record changes only if the recorded commit number is still `since`. So a process that is slower than another
        one, or than `reset_counted_commits`, does not move the record back.

        Args:
            topic: the topic.
            since: the recorded commit number when the rows were read; 0 if there was none.
            last_commit: the newest commit in `rows`.
            rows: the rows of the commits after `since`, up to `last_commit`.
        """
        new = [storable(row) for row in rows]
        values = last_commit._asdict()
        with self._changing({row.topic for row in new}) as connection:
            added = insert_rows(connection, without_late(connection, new, _now_ms()))
            if since:
                is_unmoved = (COUNTED.c.topic == topic) & (COUNTED.c.commit_number == since)
                connection.execute(sa.update(COUNTED).where(is_unmoved).values(**values))
            else:
                insert_new(connection, COUNTED, [{"topic": topic, **values}])
            return added

    def counted_commits(self) -> dict[str, CountedCommit]:
        """Returns, by topic, the newest counted commit of the loader."""
        with self.database.reading() as connection:
            return {
                one.topic: CountedCommit(one.commit_number, one.sha256)
                for one in connection.execute(sa.select(COUNTED))
            }

    def reset_counted_commits(self) -> None:
        """Deletes the record of counted commits, so that the next update reads all commits again.
        Rows that are already stored remain and are not added twice."""
        with self.database.writing() as connection:
            connection.execute(sa.delete(COUNTED))

    def set_ingested(self, now_ms: int) -> None:
        """Records that the audit topic was read to its end at this time."""
        with self.database.writing() as connection:
            connection.execute(sa.update(STORE_STATE).values(ingested_at_ms=now_ms))

    def ingested_at_ms(self) -> int:
        """Returns when the audit topic was last read to its end, or when the database was created."""
        return self._state("ingested_at_ms")

    def next_offsets(self, topic: str) -> dict[int, int]:
        """Returns the offset by partition at which ingestion of the audit topic continues."""
        query = sa.select(INGESTED.c.partition, INGESTED.c.next_offset).where(INGESTED.c.topic == topic)
        with self.database.reading() as connection:
            return dict(connection.execute(query).all())

    def topics(self) -> list[str]:
        """Returns all topics with audit rows in the database, sorted."""
        with self.database.reading() as connection:
            return sorted(connection.execute(sa.select(TOPIC_STATE.c.topic)).scalars())

    def facts(self, topic: str, since_ms: int | None = None, until_ms: int | None = None) -> Iterator[WindowFacts]:
        """Yields the counts of one topic by window, added up from its audit rows; ordered by time. Only windows that
        start in [since_ms, until_ms); None is unbounded."""
        query = sa.select(*FACT_COLUMNS).where(AUDIT_ROW.c.topic == topic)
        if since_ms is not None:
            query = query.where(AUDIT_ROW.c.window_start_ms >= since_ms)
        if until_ms is not None:
            query = query.where(AUDIT_ROW.c.window_start_ms < until_ms)
        with self.database.reading() as connection:
            yield from facts_of(connection, query)

    def offset_check(self, topic: str) -> OffsetCheck:
        """Returns the holes and overlaps of the offsets that the loader counted for this topic, and the offsets that it
        skipped."""
        with self.database.reading() as connection:
            return counted_offsets(connection, [topic]).get(topic, CountedOffsets()).check()

    def rows(self, topic: str) -> list[AuditRow]:
        """Returns the audit rows of one topic, ordered by window and id."""
        columns = [AUDIT_ROW.c[name] for name in ROW_FIELDS]
        query = sa.select(*columns).where(AUDIT_ROW.c.topic == topic)
        with self.database.reading() as connection:
            ordered = query.order_by(AUDIT_ROW.c.window_start_ms, AUDIT_ROW.c.id)
            return [stored_row(values) for values in connection.execute(ordered)]

    # Decisions of operators

    def accept(self, accepted: Iterable[Acceptance]) -> None:
        """Stores accepted findings, replacing earlier ones of the same topic and window. The next update of verdicts
        considers them."""
        new = list(accepted)
        names = [column.name for column in ACCEPTED.c]
        rows = [{name: getattr(one, name) for name in names} | {"verdict": one.verdict.value} for one in new]
        with self._changing({one.topic for one in new}) as connection:
            upsert(connection, ACCEPTED, rows)
            touch(connection, {(one.topic, one.window_start_ms) for one in new})

    def withdraw(self, accepted: Iterable[Acceptance]) -> None:
        """Deletes the acceptances of these topics and windows, of any verdict. After the next update of verdicts,
        windows with differing counts are findings again."""
        old = list(accepted)
        matches = (ACCEPTED.c.topic == sa.bindparam("old_topic"), ACCEPTED.c.window_start_ms == sa.bindparam("old_ms"))
        with self._changing({one.topic for one in old}) as connection:
            if old:
                keys = [{"old_topic": one.topic, "old_ms": one.window_start_ms} for one in old]
                connection.execute(sa.delete(ACCEPTED).where(*matches), keys)
            touch(connection, {(one.topic, one.window_start_ms) for one in old})

    def accepted(self) -> tuple[Acceptance, ...]:
        """Returns the accepted findings, ordered by topic and window."""
        query = sa.select(ACCEPTED).order_by(ACCEPTED.c.topic, ACCEPTED.c.window_start_ms)
        with self.database.reading() as connection:
            return tuple(acceptances(connection, query))

    # Verdicts

    def update_verdicts(
        self, *, now_ms: int, grace_ms: int, policy: FindingPolicy = NO_FINDING_POLICY
    ) -> VerdictUpdate:
        """Brings the stored verdicts, strips and events up to date with the stored rows (see `storage.update`).

        Args:
            now_ms: the current time.
            grace_ms: time in which further counts may arrive, as in `compare.reconcile_window`.
            policy: decisions of operators; acceptances are read from the database.
        """
        return update_verdicts(self.database, now_ms=now_ms, grace_ms=grace_ms, policy=policy)

    def prune(self, *, now_ms: int, retention_ms: int) -> int:
        """Deletes rows and verdicts of windows without counts for `retention_ms`, and after `retention.HISTORY_DAYS`
        strips and events; at most every six hours. Returns the number of deleted windows.

        Args:
            now_ms: the current time.
            retention_ms: at least a day.
        """
        return prune(self.database, now_ms=now_ms, retention_ms=retention_ms)

    def revision(self) -> int:
        """Returns a number that grows with each write of verdicts."""
        return self._state("revision")

    def checked_at_ms(self) -> int:
        """Returns the time of the newest update of the verdicts; 0 if there was none."""
        return self._state("checked_at_ms")

    def report(self, topics: Collection[str], *, now_ms: int, period: Period = ALL_TIME) -> tuple[TopicResult, ...]:
        """Returns the results of topics that have a window in the period, from the stored verdicts: the most severe
        first, then by name. They equal those of `reconcile.reconcile_topics`, but list only windows that are not
        complete.

        Args:
            topics: the topics.
            now_ms: the current time. Windows that have not ended are not complete.
            period: limits the windows.
        """
        with self.database.reading() as connection:
            return read_report(connection, topics, now_ms, period)

    def strips(self, first_day: int, last_day: int, topics: Collection[str] | None = None) -> dict[str, bytes]:
        """Returns the verdicts of each topic in a range of days, one byte for each window (see `audit.strip`). Topics
        without messages in the range are left out.

        Args:
            first_day, last_day: the range, inclusive, in days since 1970-01-01.
            topics: the topics; None for all.

        Raises:
            ValueError: the range is empty, or longer than `strip.DAYS_MAX`.
        """
        with self.database.reading() as connection:
            return reading.read_strips(connection, first_day, last_day, topics)

    def windows(self, topic: str, since_ms: int | None = None, until_ms: int | None = None) -> list[StoredWindow]:
        """Returns the windows of a topic that start in [since_ms, until_ms), ordered by time; None is unbounded.
        Special windows have negative starts (`window.SPECIAL_WINDOWS`)."""
        query = sa.select(WINDOW_VERDICT).where(_V.topic == topic).order_by(_V.window_start_ms)
        if since_ms is not None:
            query = query.where(_V.window_start_ms >= since_ms)
        if until_ms is not None:
            query = query.where(_V.window_start_ms < until_ms)
        with self.database.reading() as connection:
            return reading.read_windows(connection, query)

    def topic_summaries(self, now_ms: int, topics: Collection[str] | None = None) -> list[TopicSummary]:
        """Returns the summaries of all topics, or of these, ordered by name.

        Args:
            now_ms: the current time. Windows that have not ended are not complete.
            topics: the topics; None for all.
        """
        with self.database.reading() as connection:
            return reading.read_summaries(connection, now_ms, topics)

    def events(
        self, since_ms: int, *, only_open: bool = False, counts_clean_windows: bool = True, topic: str | None = None
    ) -> list[AuditEvent]:
        """Returns the open events and the events of the period, ordered by start.

        Args:
            since_ms: events that ended or closed after this time are returned.
            only_open: return open events only, of any time.
            counts_clean_windows: whether to fill `clean_windows`, which takes a query for each event.
            topic: return the events of this topic only.
        """
        with self.database.reading() as connection:
            return reading.read_stored_events(
                connection, since_ms, only_open=only_open, counts_clean_windows=counts_clean_windows, topic=topic
            )

    def incidents(self, since_ms: int, *, only_open: bool = False, counts_clean_windows: bool = True) -> list[Incident]:
        """Returns the events of `events`, grouped: those of several topics that began together are one incident. The
        most severe first. An incident is open while one of its events is, and keeps its id then."""
        with self.database.reading() as connection:
            return reading.read_incidents(
                connection, since_ms, only_open=only_open, counts_clean_windows=counts_clean_windows
            )

    def late_windows(self, since_ms: int, until_ms: int) -> dict[str, int]:
        """Returns by topic the number of pending windows that start in [since_ms, until_ms) and of whose messages less
        than 99.9 % are in the table; without topics that have none."""
        with self.database.reading() as connection:
            return reading.read_late_windows(connection, since_ms, until_ms)

    def extra_shares(self, more_than: int) -> dict[str, float]:
        """Returns by topic the largest share of extra messages among the windows with the verdict `extra` and more than
        this number of extra messages; without topics that have none. The share is that of the messages in the log."""
        with self.database.reading() as connection:
            return reading.read_extra_shares(connection, more_than)

    def producer_faults(self, now_ms: int) -> list[ProducerFault]:
        """Returns the faults of producers that are no difference between tiers: by topic, messages with times in the
        future, and messages of the last day that crashed producers did not deliver."""
        with self.database.reading() as connection:
            return read_producer_faults(connection, now_ms)

    def completeness_totals(self) -> dict[TierShare, CompletenessTotals]:
        """Returns by tier, `log` and `loaded`, and share, of `SHARE_NAMES`, how many windows have become complete, by
        the time from their end until the share of their messages. The numbers never decrease while the database
        exists."""
        with self.database.reading() as connection:
            return read_totals(connection)

    def last_counted_by_tier(self) -> dict[Tier, int]:
        """Returns the creation time of the newest audit row of each tier, in milliseconds since 1970."""
        with self.database.reading() as connection:
            return {Tier(tier): time_ms for tier, time_ms in connection.execute(sa.select(TIER_COUNT))}

    def completeness_times(
        self, since_ms: int, until_ms: int, topics: Collection[str] | None = None
    ) -> dict[str, CompletenessTimes]:
        """Returns the distributions of the times from the end of a window to 99 %, 99.9 % and 100 % of its messages, by
        tier: `log` and `loaded`.

        Args:
            since_ms, until_ms: windows that start in this period.
            topics: the topics; None for all.
        """
        with self.database.reading() as connection:
            return reading.read_completeness_times(connection, since_ms, until_ms, topics)

    def _state(self, name: str) -> int:
        with self.database.reading() as connection:
            return int(connection.execute(sa.select(STORE_STATE.c[name])).scalar_one())

    @contextmanager
    def _changing(self, topics: Collection[str]) -> Iterator[Connection]:
        """Yields a connection with a write transaction that has the locks of topics."""
        if not self.database.is_sqlite and topics:
            # A separate transaction prevents a deadlock with transactions that lock new rows.
            with self.database.writing() as connection:
                add_topics(connection, topics)
        with self.database.writing() as connection:
            if self.database.is_sqlite:
                add_topics(connection, topics)
            lock_topics(connection, topics)
            yield connection

    def _prepare(self) -> None:
        with self.database.reading() as connection:
            if self._has_format(connection):
                return
        with self.database.writing() as connection:
            if not self.database.is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATE_LOCK)))
            METADATA.create_all(connection)
            state = {"id": 1, "format": FORMAT, "revision": 0, "policy": "", "checked_at_ms": 0, "pruned_at_ms": 0}
            insert_new(connection, STORE_STATE, [state | {"ingested_at_ms": _now_ms()}])

    def _has_format(self, connection: Connection) -> bool:
        """Returns whether the tables exist, and checks their format."""
        tables = sa.inspect(connection).get_table_names()
        action = "move it away" if self.database.is_sqlite else "name an empty database in audit.database_url"
        remedy = f"{action}: the next load and report read the counts again; acceptances are lost"
        if STORE_STATE.name not in tables:
            if AUDIT_ROW.name in tables:
                raise StoreUnavailable(self.database.name, f"it was written by an older release; {remedy}")
            return False
        (stored_format,) = connection.execute(sa.select(STORE_STATE.c.format)).scalars().all() or (0,)
        if stored_format > FORMAT:
            problem = f"the database has format {stored_format}, but this release reads format {FORMAT}"
            raise StoreUnavailable(self.database.name, f"{problem}; use a newer release")
        if stored_format < FORMAT:
            raise StoreUnavailable(self.database.name, f"it has format {stored_format}, of an older release; {remedy}")
        return True
