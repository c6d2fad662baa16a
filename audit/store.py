"""The audit's rows in SQLite, `<data_dir>/audit.db`: each id once, whoever adds it and however often.

Rows read from the audit topic and the offsets up to where it was read change in one transaction, and so do the rows
of the loader's decisions and what says which of them are in: a crash between the two cannot happen, adding again adds
nothing, and a database that was lost or put back from a backup asks for what it lacks. Several processes may write:
each change is one short transaction, and a busy database is waited for.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from headrace.audit.count import FINGERPRINT_MASK, HASH_BEFORE
from headrace.audit.errors import StoreUnavailable
from headrace.audit.facts import CountedRow, WindowFacts, gather
from headrace.audit.offsets import OffsetCheck, check_offsets
from headrace.audit.row import AuditRow, Outcome, Tier
from headrace.audit.schema import signed64
from headrace.audit.verdict import Acceptance, State
from headrace.audit.window import known_window

DATABASE_NAME: Final = "audit.db"
FORMAT: Final = 4
BUSY_TIMEOUT_S: Final = 60.0
"""How long a writer waits for another: a transaction holds at most one load's rows, which take seconds."""
DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

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
        topic TEXT PRIMARY KEY, slot INTEGER NOT NULL, sha256 TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS accepted (
        topic TEXT NOT NULL, window_start_ms INTEGER NOT NULL, state TEXT NOT NULL, difference INTEGER NOT NULL,
        reason TEXT NOT NULL, accepted_by TEXT NOT NULL, accepted_at_ms INTEGER NOT NULL,
        PRIMARY KEY (topic, window_start_ms))""",
)
_ADD_HASH: Final = f"""ALTER TABLE audit_row ADD COLUMN "hash" TEXT NOT NULL DEFAULT '{HASH_BEFORE}'"""
"""For a database of before format 3: the default is true of the rows that it has."""
_FACTS: Final = """SELECT topic, window_start_ms, outcome, application, count, bytes, fingerprint, sent, crashed,
    emitted_at_ms, hash FROM audit_row WHERE topic = ? AND outcome != 'passed over' ORDER BY window_start_ms"""


class Counted(NamedTuple):
    """The newest of the loader's decisions on a topic whose counts are here: its slot and its checksum."""

    slot: int
    sha256: str


class AuditStore:
    """One connection to the database at `path`, made with its directory when it does not exist.

    Raises:
        StoreUnavailable: from every method, when the file cannot be used.
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
        """Adds the rows whose ids are new, all or none, and says how many those were."""
        with self._transaction() as connection:
            return _insert(connection, rows)

    def add_ingested(self, topic: str, next_offsets: Mapping[int, int], rows: Iterable[AuditRow]) -> int:
        """Adds rows read from the audit topic and notes, in the same transaction, up to where it was read."""
        with self._transaction() as connection:
            added = _insert(connection, rows)
            connection.executemany(
                "INSERT INTO ingested VALUES (?, ?, ?) ON CONFLICT (topic, partition) DO UPDATE "
                "SET next_offset = excluded.next_offset",
                [(topic, partition, offset) for partition, offset in next_offsets.items()],
            )
            return added

    def add_committed(self, topic: str, since: int, upto: Counted, rows: Iterable[AuditRow]) -> int:
        """Adds the rows of a topic's decisions and notes, in the same transaction, that all up to one are in.

        The note is made only where the last one is of the slot `since`, which the rows go on from (0: there is none):
        whoever was slower than another process, or than its forgetting, adds nothing that is not there and takes
        nothing back.
        """
        with self._transaction() as connection:
            added = _insert(connection, rows)
            if since:
                connection.execute(
                    "UPDATE counted SET slot = ?, sha256 = ? WHERE topic = ? AND slot = ?", (*upto, topic, since)
                )
            else:
                connection.execute("INSERT OR IGNORE INTO counted VALUES (?, ?, ?)", (topic, *upto))
            return added

    def counted(self) -> dict[str, Counted]:
        """By topic, up to where the loader's decisions are in."""
        with self._reading() as connection:
            found = connection.execute("SELECT topic, slot, sha256 FROM counted")
            return {topic: Counted(slot, sha256) for topic, slot, sha256 in found}

    def forget_counted(self) -> None:
        """Makes the loader's decisions be added again, all of them; what is there stays and counts once."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM counted")

    def accept(self, acceptances: Iterable[Acceptance]) -> None:
        """Notes what a person has accepted; of one topic and window the newest counts."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO accepted VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (one.topic, one.window_start_ms, one.state.value, *dataclasses.astuple(one)[3:])
                    for one in acceptances
                ],
            )

    def withdraw(self, acceptances: Iterable[Acceptance]) -> None:
        """Makes what was accepted a finding again."""
        with self._transaction() as connection:
            connection.executemany(
                "DELETE FROM accepted WHERE topic = ? AND window_start_ms = ?",
                [(one.topic, one.window_start_ms) for one in acceptances],
            )

    def accepted(self) -> tuple[Acceptance, ...]:
        """What people have accepted, by topic and window."""
        with self._reading() as connection:
            found = connection.execute("SELECT * FROM accepted ORDER BY topic, window_start_ms")
            return tuple(Acceptance(topic, start, State(state), *rest) for topic, start, state, *rest in found)

    def next_offsets(self, topic: str) -> dict[int, int]:
        """By partition, the offset of the audit topic that ingestion goes on from."""
        with self._reading() as connection:
            found = connection.execute("SELECT partition, next_offset FROM ingested WHERE topic = ?", (topic,))
            return dict(found)

    def topics(self) -> list[str]:
        """The topics that any row is about, in order."""
        with self._reading() as connection:
            return [topic for (topic,) in connection.execute("SELECT DISTINCT topic FROM audit_row ORDER BY topic")]

    def facts(self, topic: str) -> Iterator[WindowFacts]:
        """What the rows of one topic add up to, by window in the order of time."""
        with self._reading() as connection:
            yield from gather(map(CountedRow._make, connection.execute(_FACTS, (topic,))))

    def offset_check(self, topic: str) -> OffsetCheck:
        """Whether the offsets that the loader counted of this topic are contiguous, and which it passed over."""
        select = 'SELECT DISTINCT partition, start, "end" FROM audit_row WHERE topic = ?'
        with self._reading() as connection:
            return check_offsets(
                connection.execute(f"{select} AND tier = ? AND partition >= 0", (topic, Tier.BROKER.value)),
                connection.execute(f"{select} AND outcome = ?", (topic, Outcome.PASSED_OVER.value)),
            )

    def rows(self, topic: str) -> list[AuditRow]:
        """The rows of one topic, in the order in which they were added."""
        with self._reading() as connection:
            query = f"SELECT {_COLUMN_LIST} FROM audit_row WHERE topic = ? ORDER BY rowid"  # noqa: S608
            return [_row(values) for values in connection.execute(query, (topic,))]

    def _prepare(self) -> None:
        with self._reading() as connection:
            _use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise StoreUnavailable(str(self.path), f"it has format {found}, this version of Headrace knows {FORMAT}")
        if found < FORMAT:
            with self._transaction() as connection:
                for statement in _TABLES:
                    connection.execute(statement)
                if "hash" not in {name for _, name, *_ in connection.execute("PRAGMA table_info(audit_row)")}:
                    connection.execute(_ADD_HASH)
                connection.execute(f"PRAGMA user_version = {FORMAT}")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection
        except sqlite3.Error as error:
            is_damaged = getattr(error, "sqlite_errorcode", None) in DAMAGED
            cure = "; the log of loads has its counts: move it away and load again" if is_damaged else ""
            raise StoreUnavailable(str(self.path), f"{error}{cure}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection:
            # IMMEDIATE takes the write lock at once: a transaction that read first could not wait for it later.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Readers and a writer then do not wait for each other.

    The change of mode does not honour the busy timeout, so two processes that make the database at once retry.
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
    named = dict(zip(_COLUMNS, values, strict=True))
    named["tier"] = Tier(str(named["tier"]))
    named["outcome"] = Outcome(str(named["outcome"]))
    named["crashed"] = bool(named["crashed"])
    named["window_start_ms"] = known_window(int(str(named["window_start_ms"])))
    named["fingerprint"] = int(str(named["fingerprint"])) & FINGERPRINT_MASK
    return AuditRow(**named)  # type: ignore[arg-type]  # columns come back as the types they were stored with
