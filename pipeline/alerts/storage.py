"""Stores alerts, deliveries and silences in SQL: tables of their own in the audit's database.

Every change is one transaction that holds the write lock of these tables: SQLite's, or the row of `alert_evaluation` in
PostgreSQL. So evaluations of two processes run one after the other.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.errors import StoreUnavailable
from headrace.audit.storage.engine import AuditDatabase
from headrace.audit.storage.rows import insert_new
from headrace.audit.storage.store import audit_address
from headrace.pipeline.alerts.alert import Alert, AlertState
from headrace.pipeline.alerts.delivery import AlertDelivery, AlertEvent, DeliveryOutcome, Silence
from headrace.pipeline.alerts.errors import AlertStoreUnavailable
from headrace.pipeline.alerts.rule import AlertSeverity
from headrace.settings import Settings

CREATE_LOCK: Final = 4_842_731_937
"""A PostgreSQL advisory lock, so that one process creates the tables; an arbitrary number."""
RESOLVED_MS_MAX: Final = 30 * 86_400_000
"""Resolved alerts and ended silences are deleted after this time."""
OWED_MS_MAX: Final = 86_400_000
"""Alerts that were resolved for longer are not delivered any more."""
DELIVERIES_MAX: Final = 10_000
"""Older finished deliveries are deleted."""
FORMAT: Final = 2

METADATA: Final = sa.MetaData()
_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ALERT: Final = sa.Table(
    "alert",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("fingerprint", "kind", "subject", "source", "problem")),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("show", "repair", "severity")),
    sa.Column("state", sa.Text, nullable=False, index=True),
    *(sa.Column(name, _NUMBER, nullable=False) for name in ("opened_ms", "since_ms", "seen_ms")),
    *(sa.Column(name, _NUMBER) for name in ("clean_since_ms", "fired_ms", "resolved_ms")),
    sa.Column("firings", _NUMBER, nullable=False),
    sa.Column("delivered_ms", _NUMBER),
    sa.Column("others", sa.Text, nullable=False),  # JSON: an array of texts
)
DELIVERY: Final = sa.Table(
    "alert_delivery",
    METADATA,
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("alert_id", "target", "event")),
    *(sa.Column(name, _NUMBER, nullable=False) for name in ("event_ms", "created_ms", "attempts", "next_attempt_ms")),
    sa.Column("finished_ms", _NUMBER),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("outcome", "error")),
    sa.Index("alert_delivery_alert", "alert_id", "target"),
    sa.Index("alert_delivery_outcome", "outcome"),
    sqlite_autoincrement=True,
)
SILENCE: Final = sa.Table(
    "alert_silence",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "subject", "reason", "author")),
    *(sa.Column(name, _NUMBER, nullable=False) for name in ("created_ms", "ends_ms")),
)
EVALUATION: Final = sa.Table(
    "alert_evaluation",
    METADATA,
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("format", _NUMBER, nullable=False),
    sa.Column("evaluated_ms", _NUMBER),
)


def alert_address(settings: Settings) -> Path | str:
    """Returns the address of the database with the alerts, which is that of the audit."""
    return audit_address(settings.data_dir.resolve(), settings.audit.database_url)


class AlertStore:
    """The alerts in the audit's database. Thread-safe.

    Args:
        address: a file of SQLite, or a URL, as of `AuditDatabase`.
        creates: whether a missing file and missing tables are created. Otherwise they have no alerts.

    Raises:
        AlertStoreUnavailable: the database cannot be used, or has the format of a later release; every method may
            raise it.
    """

    def __init__(self, address: Path | str, *, creates: bool = True) -> None:
        self._database: AuditDatabase | None = None
        if not creates and isinstance(address, Path) and not address.exists():
            return
        with _errors():
            database = AuditDatabase(address)
        try:
            if self._prepare(database, creates):
                self._database = database
        finally:
            if self._database is None:
                database.close()

    def __enter__(self) -> AlertStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    @contextmanager
    def changing(self) -> Iterator[AlertChange]:
        """Begins a transaction with the write lock, and commits it at the end."""
        assert self._database is not None, "opened with creates=False"
        with _errors(), self._database.writing() as connection:
            connection.execute(sa.select(EVALUATION.c.id).with_for_update()).all()
            yield AlertChange(connection)

    @contextmanager
    def reading(self) -> Iterator[AlertReader]:
        """Begins a transaction that only reads."""
        if self._database is None:
            yield AlertReader(None)
            return
        with _errors(), self._database.reading() as connection:
            yield AlertReader(connection)

    def _prepare(self, database: AuditDatabase, creates: bool) -> bool:
        """Creates missing tables if `creates` is True. Returns whether they exist."""
        with _errors(), database.reading() as connection:
            exists = sa.inspect(connection).has_table(EVALUATION.name)
            found = connection.execute(sa.select(EVALUATION.c.format)).scalar_one_or_none() if exists else None
        if found is not None and found > FORMAT:
            problem = f"its alerts have format {found}, but this release reads format {FORMAT}"
            raise AlertStoreUnavailable(f"cannot use the database {database.name}: {problem}; use a newer release")
        if found is not None and found < FORMAT:
            action = "move it away" if database.is_sqlite else "name an empty database in audit.database_url"
            remedy = f"{action}: counts are read again; acceptances and silences are lost"
            problem = f"its alerts have format {found}, of an older release"
            raise AlertStoreUnavailable(f"cannot use the database {database.name}: {problem}; {remedy}")
        if not creates or found is not None:
            return found is not None
        with _errors(), database.writing() as connection:
            if not database.is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATE_LOCK)))
            METADATA.create_all(connection)
            insert_new(connection, EVALUATION, [{"id": 1, "format": FORMAT}])
        return True


class AlertReader:
    """Reads within one transaction. A database without tables has nothing."""

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection

    def alerts(self, resolved_since_ms: int | None = None) -> tuple[Alert, ...]:
        """Returns the pending and firing alerts, and those that were resolved at or after a time; in order of their
        opening. None for all."""
        query = sa.select(ALERT).order_by(ALERT.c.opened_ms, ALERT.c.id)
        if resolved_since_ms is not None:
            query = query.where(
                (ALERT.c.state != AlertState.RESOLVED.value) | (ALERT.c.resolved_ms >= resolved_since_ms)
            )
        return tuple(map(_alert, self._rows(query)))

    def silences(self, active_ms: int | None = None) -> tuple[Silence, ...]:
        """Returns the silences in order of their creation; only the ones that have not ended at `active_ms`."""
        query = sa.select(SILENCE).order_by(SILENCE.c.created_ms, SILENCE.c.id)
        if active_ms is not None:
            query = query.where(SILENCE.c.ends_ms > active_ms)
        return tuple(Silence(**row) for row in self._rows(query))

    def open_deliveries(self, target: str | None = None) -> tuple[AlertDelivery, ...]:
        """Returns the deliveries that are neither delivered nor abandoned, in order."""
        query = sa.select(DELIVERY).where(DELIVERY.c.outcome == DeliveryOutcome.OPEN.value).order_by(DELIVERY.c.id)
        if target is not None:
            query = query.where(DELIVERY.c.target == target)
        return tuple(map(_delivery, self._rows(query)))

    def newest_deliveries(self) -> dict[tuple[str, str], AlertDelivery]:
        """Returns by alert and target the newest delivery that was not cancelled."""
        newest = (
            sa.select(sa.func.max(DELIVERY.c.id))
            .where(DELIVERY.c.outcome != DeliveryOutcome.CANCELLED.value)
            .group_by(DELIVERY.c.alert_id, DELIVERY.c.target)
        )
        rows = map(_delivery, self._rows(sa.select(DELIVERY).where(DELIVERY.c.id.in_(newest))))
        return {(one.alert_id, one.target): one for one in rows}

    def log(self, count: int) -> tuple[AlertDelivery, ...]:
        """Returns the newest deliveries, newest first."""
        return tuple(map(_delivery, self._rows(sa.select(DELIVERY).order_by(DELIVERY.c.id.desc()).limit(count))))

    def evaluated_ms(self) -> int | None:
        """Returns the time of the newest evaluation; None if there was none."""
        rows = self._rows(sa.select(EVALUATION.c.evaluated_ms))
        return rows[0]["evaluated_ms"] if rows else None

    def _rows(self, query: sa.Select[Any]) -> list[Mapping[str, Any]]:
        return [] if self._connection is None else [dict(row) for row in self._connection.execute(query).mappings()]


class AlertChange(AlertReader):
    """Reads and changes within one transaction."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._execute = connection.execute

    def set_alerts(self, changed: Iterable[Alert], deleted: Iterable[str]) -> None:
        rows = [{**dataclasses.asdict(alert), "others": json.dumps(alert.others)} for alert in changed]
        ids = [row["id"] for row in rows] + list(deleted)
        for start in range(0, len(ids), 500):
            self._execute(sa.delete(ALERT).where(ALERT.c.id.in_(ids[start : start + 500])))
        if rows:
            self._execute(sa.insert(ALERT), rows)

    def set_evaluated(self, now_ms: int) -> None:
        self._execute(sa.update(EVALUATION).values(evaluated_ms=now_ms))

    def add_deliveries(self, deliveries: Iterable[AlertDelivery]) -> None:
        rows = [{name: value for name, value in dataclasses.asdict(one).items() if name != "id"} for one in deliveries]
        if rows:
            self._execute(sa.insert(DELIVERY), rows)

    def begin_attempt(self, deliveries: Sequence[AlertDelivery], next_attempt_ms: int) -> None:
        """Counts an attempt of the deliveries, before it is made. Other processes wait until `next_attempt_ms`."""
        self._execute(
            self._update(deliveries).values(attempts=DELIVERY.c.attempts + 1, next_attempt_ms=next_attempt_ms)
        )

    def set_delivered(self, deliveries: Sequence[AlertDelivery], now_ms: int) -> None:
        self.finish(deliveries, DeliveryOutcome.DELIVERED, "", now_ms)
        ids = [one.alert_id for one in deliveries]
        self._execute(sa.update(ALERT).where(ALERT.c.id.in_(ids)).values(delivered_ms=now_ms))

    def finish(self, deliveries: Sequence[AlertDelivery], outcome: DeliveryOutcome, error: str, now_ms: int) -> None:
        self._execute(self._update(deliveries).values(outcome=outcome.value, error=error, finished_ms=now_ms))

    def set_failed_attempt(self, deliveries: Sequence[AlertDelivery], error: str, next_attempt_ms: int) -> None:
        self._execute(self._update(deliveries).values(error=error, next_attempt_ms=next_attempt_ms))

    def delay_target(self, target: str, next_attempt_ms: int) -> None:
        """Delays all open deliveries of a target that is down, at least until `next_attempt_ms`."""
        self._execute(
            sa.update(DELIVERY)
            .where(DELIVERY.c.target == target, DELIVERY.c.outcome == DeliveryOutcome.OPEN.value)
            .where(DELIVERY.c.next_attempt_ms < next_attempt_ms)
            .values(next_attempt_ms=next_attempt_ms)
        )

    def add_silence(self, silence: Silence) -> None:
        self._execute(sa.insert(SILENCE), [dataclasses.asdict(silence)])

    def end_silence(self, silence_id: str, now_ms: int) -> bool:
        """Ends a silence now. Returns False if no silence with this id is active."""
        ended = self._execute(
            sa.update(SILENCE).where(SILENCE.c.id == silence_id, SILENCE.c.ends_ms > now_ms).values(ends_ms=now_ms)
        )
        return ended.rowcount > 0

    def prune(self, now_ms: int) -> None:
        """Deletes old resolved alerts and ended silences, and finished deliveries beyond `DELIVERIES_MAX`, except the
        newest of each alert and target."""
        old_ms = now_ms - RESOLVED_MS_MAX
        execute = self._execute
        execute(sa.delete(ALERT).where(ALERT.c.state == AlertState.RESOLVED.value, ALERT.c.resolved_ms < old_ms))
        execute(sa.delete(SILENCE).where(SILENCE.c.ends_ms < old_ms))
        oldest = sa.select(DELIVERY.c.id).order_by(DELIVERY.c.id.desc()).offset(DELIVERIES_MAX).limit(1)
        oldest_id = execute(oldest).scalar_one_or_none()
        if oldest_id is None:
            return
        newest = (
            sa.select(sa.func.max(DELIVERY.c.id))
            .where(
                DELIVERY.c.outcome != DeliveryOutcome.CANCELLED.value, DELIVERY.c.alert_id.in_(sa.select(ALERT.c.id))
            )
            .group_by(DELIVERY.c.alert_id, DELIVERY.c.target)
        )
        execute(
            sa.delete(DELIVERY)
            .where(DELIVERY.c.id <= oldest_id, DELIVERY.c.outcome != DeliveryOutcome.OPEN.value)
            .where(DELIVERY.c.id.not_in(newest))
        )

    def _update(self, deliveries: Sequence[AlertDelivery]) -> sa.Update:
        return sa.update(DELIVERY).where(DELIVERY.c.id.in_([one.id for one in deliveries]))


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise AlertStoreUnavailable(str(error)) from error


def _alert(row: Mapping[str, Any]) -> Alert:
    others = tuple(json.loads(row["others"]))
    severity, state = AlertSeverity(row["severity"]), AlertState(row["state"])
    return Alert(**{**row, "severity": severity, "state": state, "others": others})


def _delivery(row: Mapping[str, Any]) -> AlertDelivery:
    return AlertDelivery(**{**row, "event": AlertEvent(row["event"]), "outcome": DeliveryOutcome(row["outcome"])})
