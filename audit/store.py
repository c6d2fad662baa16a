"""Stores audit rows in SQLite, `<data_dir>/audit.db`. Each row id is stored once, even if it is added again.

The rows of the audit topic and their next offsets change in one transaction, and so do the rows of the loader's commits
and the number of the newest commit. A crash therefore cannot separate them, and adding rows again has no effect. A
database that was lost or restored from a backup shows which rows are missing, and they are added again. Several
processes may write: each change is a short transaction, and a writer waits for a busy database.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from headrace.audit.count import FINGERPRINT_MASK
from headrace.audit.errors import StoreUnavailable
from headrace.audit.facts import RowCounts, WindowFacts, collect_facts
from headrace.audit.offsets import OffsetCheck, check_offsets
from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.schema import signed64
from headrace.audit.verdict import Acceptance, AuditVerdict
from headrace.audit.window import known_window

DATABASE_NAME: Final = "audit.db"
FORMAT: Final = 2
BUSY_TIMEOUT_S: Final = 60.0
"""How long a writer waits for another one. A transaction adds the rows of commits of one topic, or of one batch of the
audit topic, which takes seconds."""
CORRUPTION_CODES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_COLUMNS: Final = (
    "id",
    "tier",
    "outcome",
    "topic",
    "window_start_ms",
    "window_ms",
    "count",
    "bytes",
    "fingerprint",
    "sent",
    "crashed",
    "partition",
    "start",
    "end",
    "application",
    "host",
    "instance",
    "emitted_at_ms",
    "hash",
)
_COLUMN_LIST: Final = ", ".join(f'"{column}"' for column in _COLUMNS)
_INSERT: Final = f"INSERT OR IGNORE INTO audit_row ({_COLUMN_LIST}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS audit_row (
        "id" TEXT PRIMARY KEY, "tier" TEXT NOT NULL, "outcome" TEXT NOT NULL, "topic" TEXT NOT NULL,
        "window_start_ms" INTEGER NOT NULL, "window_ms" INTEGER NOT NULL, "count" INTEGER NOT NULL,
        "bytes" INTEGER NOT NULL, "fingerprint" INTEGER NOT NULL, "sent" INTEGER NOT NULL,
        "crashed" INTEGER NOT NULL, "partition" INTEGER NOT NULL, "start" INTEGER NOT NULL,
        "end" INTEGER NOT NULL, "application" TEXT NOT NULL, "host" TEXT NOT NULL, "instance" TEXT NOT NULL,
        "emitted_at_ms" INTEGER NOT NULL, "hash" TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS audit_row_window ON audit_row (topic, window_start_ms)",
    """CREATE TABLE IF NOT EXISTS ingested (
        topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
        PRIMARY KEY (topic, partition))""",
    """CREATE TABLE IF NOT EXISTS counted (
        topic TEXT PRIMARY KEY, commit_number INTEGER NOT NULL, sha256 TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS accepted (
        topic TEXT NOT NULL, window_start_ms INTEGER NOT NULL, verdict TEXT NOT NULL, difference INTEGER NOT NULL,
        reason TEXT NOT NULL, accepted_by TEXT NOT NULL, accepted_at_ms INTEGER NOT NULL,
        PRIMARY KEY (topic, window_start_ms))""",
    "CREATE TABLE IF NOT EXISTS report (created_at_ms INTEGER NOT NULL)",
    """CREATE TABLE IF NOT EXISTS reported (
        topic TEXT PRIMARY KEY, verdict TEXT NOT NULL, windows INTEGER NOT NULL, sentence TEXT NOT NULL)""",
)
_FACTS: Final = """SELECT topic, window_start_ms, outcome, application, count, bytes, fingerprint, sent, crashed,
    emitted_at_ms, hash FROM audit_row WHERE topic = ? AND outcome != 'skipped' ORDER BY window_start_ms"""


class CountedCommit(NamedTuple):
    """The number and checksum of a topic's newest commit whose counts are stored."""

    commit_number: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ReportedFinding:
    """A topic with a finding or an unknown window in a report, and the number of such windows."""

    topic: str
    verdict: AuditVerdict
    windows: int
    sentence: str


@dataclass(frozen=True, slots=True)
class StoredReport:
    """The newest report of all topics and windows: its time, in milliseconds since 1970, and its findings by topic."""

    created_at_ms: int
    findings: tuple[ReportedFinding, ...]


class AuditStore:
    """A connection to the database at `path`, which is created if it does not exist.

    Raises:
        StoreUnavailable: the file cannot be used; every method may raise it.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(str(self.path), str(error)) from error
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> AuditStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def add_rows(self, rows: Iterable[AuditRow]) -> int:
        """Adds those audit rows whose ids are not stored yet, in one transaction; returns the number of added rows."""
        with self._transaction() as connection:
            return _insert(connection, rows)

    def add_ingested(self, topic: str, next_offsets: Mapping[int, int], rows: Iterable[AuditRow]) -> int:
        """Stores audit rows from the audit topic, and for each of its partitions the offset at which to continue
        reading, in one transaction. Returns the number of rows that were not stored before.

        Args:
            topic: the audit topic.
            next_offsets: by partition, the offset at which to continue.
            rows: the audit rows.
        """
        with self._transaction() as connection:
            added = _insert(connection, rows)
            connection.executemany(
                "INSERT INTO ingested VALUES (?, ?, ?) ON CONFLICT (topic, partition) DO UPDATE "
                "SET next_offset = excluded.next_offset",
                [(topic, partition, offset) for partition, offset in next_offsets.items()],
            )
            return added

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
        with self._transaction() as connection:
            added = _insert(connection, rows)
            if since:
                connection.execute(
                    "UPDATE counted SET commit_number = ?, sha256 = ? WHERE topic = ? AND commit_number = ?",
                    (*last_commit, topic, since),
                )
            else:
                connection.execute("INSERT OR IGNORE INTO counted VALUES (?, ?, ?)", (topic, *last_commit))
            return added

    def counted_commits(self) -> dict[str, CountedCommit]:
        """Returns, by topic, the newest commit of the loader whose counts are stored."""
        with self._reading() as connection:
            rows = connection.execute("SELECT topic, commit_number, sha256 FROM counted")
            return {topic: CountedCommit(commit_number, sha256) for topic, commit_number, sha256 in rows}

    def reset_counted_commits(self) -> None:
        """Deletes the record of the commits whose counts are stored, so that the next update reads all commits again.
        Rows that are already stored remain and are not added twice."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM counted")

    def accept(self, acceptances: Iterable[Acceptance]) -> None:
        """Stores accepted findings, replacing earlier ones of the same topic and window."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO accepted VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (one.topic, one.window_start_ms, one.verdict.value, *dataclasses.astuple(one)[3:])
                    for one in acceptances
                ],
            )

    def withdraw(self, acceptances: Iterable[Acceptance]) -> None:
        """Deletes the acceptances of these topics and windows, of any verdict. Windows whose counts still differ are
        findings again."""
        with self._transaction() as connection:
            connection.executemany(
                "DELETE FROM accepted WHERE topic = ? AND window_start_ms = ?",
                [(one.topic, one.window_start_ms) for one in acceptances],
            )

    def accepted(self) -> tuple[Acceptance, ...]:
        """Returns the accepted findings, ordered by topic and window."""
        with self._reading() as connection:
            rows = connection.execute("SELECT * FROM accepted ORDER BY topic, window_start_ms")
            return tuple(
                Acceptance(topic, start, AuditVerdict(verdict), *rest) for topic, start, verdict, *rest in rows
            )

    def set_report(self, report: StoredReport) -> None:
        """Stores the findings of a report of all topics and windows in place of those of the previous report."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM report")
            connection.execute("INSERT INTO report VALUES (?)", (report.created_at_ms,))
            connection.execute("DELETE FROM reported")
            connection.executemany("INSERT INTO reported VALUES (?, ?, ?, ?)", map(_reported_values, report.findings))

    def set_reported(self, topic: str, finding: ReportedFinding | None) -> None:
        """Replaces the finding of one topic in the stored report, after an operator accepted windows or withdrew that;
        None for no finding. Does nothing without a stored report."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM reported WHERE topic = ?", (topic,))
            if finding is not None and connection.execute("SELECT 1 FROM report").fetchone():
                connection.execute("INSERT INTO reported VALUES (?, ?, ?, ?)", _reported_values(finding))

    def report(self) -> StoredReport | None:
        """Returns the stored report; None if there is none. Takes the same time for any number of audit rows."""
        with self._reading() as connection:
            created = connection.execute("SELECT created_at_ms FROM report").fetchone()
            rows = connection.execute("SELECT topic, verdict, windows, sentence FROM reported ORDER BY topic")
            findings = tuple(
                ReportedFinding(topic, AuditVerdict(verdict), windows, sentence)
                for topic, verdict, windows, sentence in rows
            )
        return None if created is None else StoredReport(created[0], findings)

    def first_emitted_ms(self) -> int | None:
        """Returns the time of the row that was added first, in milliseconds since 1970; None without rows."""
        with self._reading() as connection:
            row = connection.execute("SELECT emitted_at_ms FROM audit_row ORDER BY rowid LIMIT 1").fetchone()
            return None if row is None else row[0]

    def next_offsets(self, topic: str) -> dict[int, int]:
        """Returns the offset by partition at which ingestion of the audit topic continues."""
        with self._reading() as connection:
            rows = connection.execute("SELECT partition, next_offset FROM ingested WHERE topic = ?", (topic,))
            return dict(rows)

    def topics(self) -> list[str]:
        """Returns all topics with audit rows in the database, sorted."""
        with self._reading() as connection:
            return [topic for (topic,) in connection.execute("SELECT DISTINCT topic FROM audit_row ORDER BY topic")]

    def facts(self, topic: str) -> Iterator[WindowFacts]:
        """Yields the counts of one topic by window, added up from its audit rows; ordered by time."""
        with self._reading() as connection:
            yield from collect_facts(map(RowCounts._make, connection.execute(_FACTS, (topic,))))

    def offset_check(self, topic: str) -> OffsetCheck:
        """Returns the holes and overlaps of the offsets that the loader counted for this topic, and the offsets that it
        skipped."""
        select = 'SELECT DISTINCT partition, start, "end" FROM audit_row WHERE topic = ?'
        with self._reading() as connection:
            return check_offsets(
                connection.execute(f"{select} AND tier = ? AND partition >= 0", (topic, Tier.BROKER.value)),
                connection.execute(f"{select} AND outcome = ?", (topic, AuditOutcome.SKIPPED.value)),
            )

    def rows(self, topic: str) -> list[AuditRow]:
        """Returns the audit rows of one topic, in the order in which they were added."""
        with self._reading() as connection:
            query = f"SELECT {_COLUMN_LIST} FROM audit_row WHERE topic = ? ORDER BY rowid"  # noqa: S608
            return [_row(values) for values in connection.execute(query, (topic,))]

    def _prepare(self) -> None:
        with self._reading() as connection:
            _use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            (stored_format,) = connection.execute("PRAGMA user_version").fetchone()
        if stored_format > FORMAT:
            raise StoreUnavailable(
                str(self.path),
                f"the database has format {stored_format}, but this release reads format {FORMAT}; use a newer release",
            )
        if stored_format < FORMAT:
            with self._transaction() as connection:
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {FORMAT}")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection
        except sqlite3.Error as error:
            is_damaged = getattr(error, "sqlite_errorcode", None) in CORRUPTION_CODES
            remedy = "; move the file away: the next load restores its counts from the commit log" if is_damaged else ""
            raise StoreUnavailable(str(self.path), f"{error}{remedy}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection:
            # IMMEDIATE takes the write lock at once. A transaction that had read first could not wait for the lock
            # later.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switches a database to write-ahead logging, so that readers and a writer do not wait for each other.

    Changing the mode ignores SQLite's busy timeout, so this retries while another process creates the same database.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _insert(connection: sqlite3.Connection, rows: Iterable[AuditRow]) -> int:
    before = connection.total_changes
    connection.executemany(_INSERT, map(_values, rows))
    return connection.total_changes - before


def _reported_values(finding: ReportedFinding) -> tuple[object, ...]:
    return finding.topic, finding.verdict.value, finding.windows, finding.sentence


def _values(row: AuditRow) -> tuple[object, ...]:
    return (
        row.id,
        row.tier.value,
        row.outcome.value,
        row.topic,
        row.window_start_ms,
        row.window_ms,
        row.count,
        row.bytes,
        signed64(row.fingerprint),
        row.sent,
        row.crashed,
        row.partition,
        row.start,
        row.end,
        row.application,
        row.host,
        row.instance,
        row.emitted_at_ms,
        row.hash,
    )


def _row(values: tuple[object, ...]) -> AuditRow:
    fields = dict(zip(_COLUMNS, values, strict=True))
    fields["tier"] = Tier(str(fields["tier"]))
    fields["outcome"] = AuditOutcome(str(fields["outcome"]))
    fields["crashed"] = bool(fields["crashed"])
    fields["window_start_ms"] = known_window(int(str(fields["window_start_ms"])))
    fields["fingerprint"] = int(str(fields["fingerprint"])) & FINGERPRINT_MASK
    return AuditRow(**fields)  # type: ignore[arg-type]  # SQLite returns the types that were stored
