"""The queue of actions in SQL, which is also the audit log of actions.

States, with the event that ends each:

    queued ── the worker takes it ──> dry run running ──> dry run done ── user confirms ──> confirmed
    confirmed ── the worker takes it ──> running ──> done | failed

A dry run that fails or has nothing to do ends the action (failed, cancelled), so does a user (cancelled) before the
confirmation. A worker that stops without a word leaves its action interrupted: nothing runs it again, because the
command may have made its change. One action runs at a time, over all consoles of the database, and an action is not
queued twice while it is open.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from headrace.console.actions.kinds import ActionKind
from headrace.console.actions.outcome import ActionOutcome
from headrace.console.database import METADATA, ConsoleDatabase
from headrace.console.errors import ConsoleError

LEASE_MS: Final = 15_000
"""A running action is interrupted if its worker has not updated it for this time."""
CONFIRM_MS_MAX: Final = 3_600_000
"""A dry run of this age is too old to be confirmed."""
OPEN_MAX: Final = 100
KEPT_MAX: Final = 10_000
"""Older finished actions are deleted."""


class ActionState(StrEnum):
    QUEUED = "queued"
    CHECKING = "dry run running"
    CHECKED = "dry run done"
    CONFIRMED = "confirmed"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def is_open(self) -> bool:
        return self in OPEN

    @property
    def is_moving(self) -> bool:
        """Whether the state changes without the user."""
        return self in OPEN and self is not ActionState.CHECKED


OPEN: Final = (
    ActionState.QUEUED,
    ActionState.CHECKING,
    ActionState.CHECKED,
    ActionState.CONFIRMED,
    ActionState.RUNNING,
)
BUSY: Final = (ActionState.CHECKING, ActionState.RUNNING)
STARTS: Final = MappingProxyType({ActionState.CONFIRMED: ActionState.RUNNING, ActionState.QUEUED: ActionState.CHECKING})
"""The states that wait for the worker, in the order in which it takes them, and the states that follow."""
_OPEN_TEXTS: Final = tuple(state.value for state in OPEN)
_IS_OPEN: Final = "state IN (" + ", ".join(f"'{text}'" for text in _OPEN_TEXTS) + ")"

_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_action = sa.Table(
    "console_action",
    METADATA,
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "arguments", "about", "state", "requested_by")),
    sa.Column("requested_ms", _NUMBER, nullable=False),
    sa.Column("confirmed_by", sa.Text, nullable=False, default=""),
    sa.Column("confirmed_ms", _NUMBER),
    *(sa.Column(name, sa.Text, nullable=False, default="") for name in ("reason", "dry_run", "result", "error")),
    *(sa.Column(name, _NUMBER) for name in ("checked_ms", "finished_ms", "alive_ms")),
    sa.Column("worker", sa.Text, nullable=False, default=""),
    sa.Index(
        "console_action_open",
        "kind",
        "arguments",
        unique=True,
        sqlite_where=sa.text(_IS_OPEN),
        postgresql_where=sa.text(_IS_OPEN),
    ),
    sa.Index("console_action_state", "state"),
    sqlite_autoincrement=True,
)


class TooManyActions(ConsoleError):
    """The queue is full. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class ConsoleAction:
    """A requested action. Times are in milliseconds since 1970, None if the event has not happened.

    Attributes:
        about: the topic or other object of the action.
        requested_by, confirmed_by: user names; "anonymous" on a console without users.
        dry_run, result: the outcomes; None without one.
        error: why it failed, was interrupted or cancelled.
        alive_ms: the last sign of life of the worker that runs it.
    """

    id: int
    kind: str
    arguments: Mapping[str, str]
    about: str
    state: ActionState
    requested_by: str
    requested_ms: int
    confirmed_by: str
    confirmed_ms: int | None
    reason: str
    dry_run: ActionOutcome | None
    result: ActionOutcome | None
    error: str
    checked_ms: int | None
    finished_ms: int | None
    alive_ms: int | None
    worker: str


@dataclass(frozen=True, slots=True)
class QueueStep:
    """A worker's next step: the actions to mark as interrupted and as expired, and the action to run; None for none."""

    interrupted: tuple[int, ...] = ()
    expired: tuple[int, ...] = ()
    taken: ConsoleAction | None = None


def queue_step(actions: Sequence[ConsoleAction], now_ms: int) -> QueueStep:
    """Decides the next step from the open actions. Pure."""
    busy = [one for one in actions if one.state in BUSY]
    interrupted = tuple(one.id for one in busy if now_ms - (one.alive_ms or 0) >= LEASE_MS)
    expired = tuple(
        one.id
        for one in actions
        if one.state is ActionState.CHECKED and now_ms - (one.checked_ms or 0) >= CONFIRM_MS_MAX
    )
    if len(busy) > len(interrupted):
        return QueueStep(interrupted, expired)
    order = list(STARTS)
    waiting = sorted((one for one in actions if one.state in STARTS), key=lambda one: (order.index(one.state), one.id))
    return QueueStep(interrupted, expired, waiting[0] if waiting else None)


class ActionStore:
    """The actions in the console's database. Thread-safe. Its table is created if it does not exist.

    Every method may raise SQLAlchemyError. Of two processes that change the same action, one changes nothing and
    returns False.

    Attributes:
        changed: set when an action of this process waits for the worker.

    Raises:
        ConsoleUnusable: the database cannot be used.
    """

    def __init__(self, database: ConsoleDatabase) -> None:
        self.changed = threading.Event()
        self._database = database
        database.create(_action)

    def request(
        self, kind: ActionKind, arguments: Mapping[str, str], user: str, now_ms: int
    ) -> tuple[ConsoleAction, bool]:
        """Queues an action. Returns the action, and whether it is new: if an equal one is open, returns that.

        Raises:
            TooManyActions: `OPEN_MAX` actions are open.
        """
        text = json.dumps(dict(arguments), sort_keys=True)
        while True:
            if (found := self._open(kind.name, text)) is not None:
                return found, False
            try:
                number = self._insert(kind, text, kind.object_of(arguments), user, now_ms)
            except IntegrityError:  # another process was faster
                continue
            self.changed.set()
            created = self.find(number)
            assert created is not None
            return created, True

    def confirm(self, number: int, user: str, reason: str, now_ms: int) -> bool:
        """Confirms an action if its dry run is done and has not expired."""
        values = {"state": ActionState.CONFIRMED, "confirmed_by": user, "confirmed_ms": now_ms, "reason": reason}
        is_young = _action.c.checked_ms > now_ms - CONFIRM_MS_MAX
        is_confirmed = self._change(number, (ActionState.CHECKED,), values, is_young)
        self.changed.set()
        return is_confirmed

    def cancel(self, number: int, user: str, now_ms: int) -> bool:
        """Cancels an action that no command has begun to make."""
        values = {"state": ActionState.CANCELLED, "error": f"cancelled by {user}", "finished_ms": now_ms}
        return self._change(number, (ActionState.QUEUED, ActionState.CHECKED), values)

    def find(self, number: int) -> ConsoleAction | None:
        with self._database.reading() as connection:
            row = connection.execute(sa.select(_action).where(_action.c.id == number)).mappings().one_or_none()
        return None if row is None else _of_row(row)

    def newest(self, count: int) -> tuple[ConsoleAction, ...]:
        """Returns the newest actions, newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(_action).order_by(_action.c.id.desc()).limit(count)).mappings().all()
        return tuple(map(_of_row, rows))

    def take(self, worker: str, now_ms: int) -> ConsoleAction | None:
        """Makes the next step of the queue. Returns the action that the worker must run, in its new state."""
        with self._database.reading() as connection:
            step = queue_step(self._open_actions(connection), now_ms)
        if step == QueueStep():
            return None
        with self._database.writing() as connection:
            # On PostgreSQL the lock orders the decisions of several processes.
            step = queue_step(self._open_actions(connection, locks=True), now_ms)
            interrupted = {"state": ActionState.INTERRUPTED, "error": INTERRUPTED_TEXT, "finished_ms": now_ms}
            expired = {"state": ActionState.CANCELLED, "error": EXPIRED_TEXT, "finished_ms": now_ms}
            changes = [(step.interrupted, interrupted), (step.expired, expired)]
            if step.taken is not None:
                taken = {"state": STARTS[step.taken.state], "worker": worker, "alive_ms": now_ms}
                changes.append(((step.taken.id,), taken))
            for numbers, values in changes:
                if numbers:
                    connection.execute(sa.update(_action).where(_action.c.id.in_(numbers)).values(_plain(values)))
        return None if step.taken is None else self.find(step.taken.id)

    def keep(self, number: int, worker: str, now_ms: int) -> bool:
        """Records that the worker still runs the action. Returns False if it is no longer the worker's."""
        return self._change(number, BUSY, {"alive_ms": now_ms}, _action.c.worker == worker)

    def finish_dry_run(
        self, number: int, worker: str, state: ActionState, dry_run: ActionOutcome | None, error: str, now_ms: int
    ) -> bool:
        """Stores the result of a dry run. `state` is CHECKED, FAILED or CANCELLED."""
        values = {
            "state": state,
            "dry_run": "" if dry_run is None else dry_run.as_json(),
            "error": error,
            "checked_ms": now_ms,
            "finished_ms": None if state.is_open else now_ms,
        }
        return self._change(number, (ActionState.CHECKING,), values, _action.c.worker == worker)

    def finish(
        self, number: int, worker: str, state: ActionState, result: ActionOutcome | None, error: str, now_ms: int
    ) -> bool:
        """Stores the result of an action, also if it was taken for interrupted. `state` is DONE or FAILED."""
        values = {
            "state": state,
            "result": "" if result is None else result.as_json(),
            "error": error,
            "finished_ms": now_ms,
        }
        states = (ActionState.RUNNING, ActionState.INTERRUPTED)
        return self._change(
            number, states, values, (_action.c.worker == worker) & (_action.c.confirmed_ms.is_not(None))
        )

    def _insert(self, kind: ActionKind, text: str, about: str, user: str, now_ms: int) -> int:
        with self._database.writing() as connection:
            is_open = _action.c.state.in_(_OPEN_TEXTS)
            if connection.execute(sa.select(sa.func.count()).where(is_open)).scalar_one() >= OPEN_MAX:
                raise TooManyActions(f"{OPEN_MAX} actions are open. Confirm or cancel some of them first.")
            values = {"kind": kind.name, "arguments": text, "about": about, "state": ActionState.QUEUED.value}
            inserted = connection.execute(
                sa.insert(_action).values(**values, requested_by=user, requested_ms=now_ms).returning(_action.c.id)
            )
            number = int(inserted.scalar_one())
            connection.execute(sa.delete(_action).where(_action.c.id <= number - KEPT_MAX, sa.not_(is_open)))
        return number

    def _open(self, kind: str, text: str) -> ConsoleAction | None:
        query = sa.select(_action).where(_action.c.kind == kind, _action.c.arguments == text)
        with self._database.reading() as connection:
            row = connection.execute(query.where(_action.c.state.in_(_OPEN_TEXTS))).mappings().one_or_none()
        return None if row is None else _of_row(row)

    @staticmethod
    def _open_actions(connection: sa.Connection, *, locks: bool = False) -> list[ConsoleAction]:
        query = sa.select(_action).where(_action.c.state.in_(_OPEN_TEXTS)).order_by(_action.c.id)
        rows = connection.execute(query.with_for_update() if locks else query).mappings().all()
        return [_of_row(row) for row in rows]

    def _change(
        self,
        number: int,
        states: Sequence[ActionState],
        values: Mapping[str, Any],
        condition: sa.ColumnElement[bool] | None = None,
    ) -> bool:
        """Changes an action that is in one of the states. Returns whether it was."""
        query = sa.update(_action).where(_action.c.id == number, _action.c.state.in_([one.value for one in states]))
        query = query if condition is None else query.where(condition)
        with self._database.writing() as connection:
            return connection.execute(query.values(_plain(values))).rowcount > 0


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values for SQL. The driver of PostgreSQL would store the name of an enumeration's member."""
    return {name: value.value if isinstance(value, ActionState) else value for name, value in values.items()}


INTERRUPTED_TEXT: Final = "the console's worker stopped while the command ran"
EXPIRED_TEXT: Final = "not confirmed within an hour after the dry run"


def _of_row(row: sa.RowMapping) -> ConsoleAction:
    return ConsoleAction(
        **{
            **row,
            "state": ActionState(row["state"]),
            "arguments": json.loads(row["arguments"]),
            "dry_run": ActionOutcome.of_json(row["dry_run"]),
            "result": ActionOutcome.of_json(row["result"]),
        }
    )
