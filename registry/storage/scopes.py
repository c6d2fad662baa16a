"""Contexts, configuration, modes and the registry's revision: what holds for more than one version."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.registry.domain import ConfigEntry, Metadata, Mode, SchemaContent, SchemaId
from headrace.registry.errors import StoreError
from headrace.registry.names import DEFAULT_CONTEXT, is_storable
from headrace.registry.rules import RuleSet
from headrace.registry.storage import statements
from headrace.registry.storage.footing import FootingNotes, rests_on, settled
from headrace.registry.storage.history import Moment
from headrace.registry.storage.kept import Kept, ScopeValues
from headrace.registry.storage.models import (
    GLOBAL_SCOPE,
    STATE_ID,
    ConfigRow,
    ContextRow,
    ModeRow,
    StateRow,
    SubjectRow,
)


def metadata_json(metadata: Metadata | None) -> str | None:
    return None if metadata is None else json.dumps(metadata.to_json())


def read_metadata(text: str | None) -> Metadata | None:
    return None if text is None else Metadata.of(**json.loads(text))


def rule_set_json(rule_set: RuleSet | None) -> str | None:
    return None if rule_set is None else json.dumps(rule_set.to_json())


def read_rule_set(text: str | None) -> RuleSet | None:
    return None if text is None else RuleSet.of(json.loads(text))


_CONFIG_KEYS = tuple(key.name for key in fields(ConfigEntry))
_JSON_KEYS: Mapping[str, tuple[Callable[[Any], str | None], Callable[[str | None], Any]]] = {
    "default_metadata": (metadata_json, read_metadata),
    "override_metadata": (metadata_json, read_metadata),
    "default_rule_set": (rule_set_json, read_rule_set),
    "override_rule_set": (rule_set_json, read_rule_set),
}
"""Keys of a configuration that are kept as JSON, in a column of that name with `_json` behind it."""

T = TypeVar("T")

WRITER_WAIT_S = 60  # for transactions under way, which end by themselves much earlier
WRITER_LOOK_S = 0.010  # from one look at them to the next; few take longer


ReservedIds = Mapping[str, SchemaId]
"""By context: an id that was taken before the transaction wrote anything, from a context that is listed."""


class Conflict(Exception):
    """Another transaction changed first what this one rests on; decide again."""


class ContentKnown(Conflict):
    """A content for which an id was wanted has one in its context."""

    def __init__(self, wanted: IdWanted) -> None:
        super().__init__(f"context {wanted.context} has the content")
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class IdWanted:
    """What a new id is for."""

    context: str
    content: SchemaContent


@dataclass(frozen=True, slots=True)
class RegistryState:
    """What the row of the registry's revisions says, and in which history."""

    moment: Moment
    settings_revision: int


class ScopeTables:
    """The part of the repository that knows scopes: a subject, a context, or (None) all of the default context."""

    def __init__(
        self,
        connection: Connection,
        *,
        reserved: ReservedIds | None = None,
        kept: Kept | None = None,
        notes: FootingNotes | None = None,
    ) -> None:
        """`reserved` are ids taken beforehand; `kept` makes it a read, whose transaction sees one state throughout.

        `notes` are told what the answers rest on.
        """
        self._connection = connection
        self._reserved = dict(reserved or {})
        self._kept = kept
        self._notes = notes
        self._answers: dict[Hashable, Any] = {}
        self.has_bumped_revision = False
        self.has_changed_settings = False

    def _once(self, question: Hashable, ask: Callable[[], T]) -> T:
        """The answer to a question, which a read asks the database once."""
        if self._kept is None:
            return ask()
        if question not in self._answers:
            self._answers[question] = ask()
        return cast(T, self._answers[question])

    def _seen(self, question: Hashable) -> Any:
        return self._answers.get(question)

    def bump_revision(self, *, of_settings: bool = False) -> None:
        """Makes the registry's revision greater, before anything else in the transaction is locked.

        So those who do this queue here and cannot wait for each other in a circle. `of_settings` is for changes of
        configuration and modes: registrations that were decided before and are written after it find that the settings
        have changed, and those that are being written meanwhile are to be waited for by `outwait_writers`.
        """
        values = {"revision": StateRow.revision + 1}
        if of_settings:
            values["settings_revision"] = StateRow.settings_revision + 1
        self._connection.execute(sa.update(StateRow).where(StateRow.id == STATE_ID).values(values))
        self.has_bumped_revision = True
        self.has_changed_settings |= of_settings

    def keep_writers_out(self) -> None:
        """Waits for those who are writing versions, and lets nobody else do so before the end of this transaction."""
        # Whoever writes versions writes the subject's row first. On SQLite a write is alone anyway.
        if self._connection.dialect.name == "postgresql":
            self._connection.execute(sa.text(f"LOCK TABLE {SubjectRow.__tablename__} IN SHARE MODE"))

    def outwait_writers(self) -> None:
        """Waits for those who are writing versions and keeps nobody from beginning to; not within a transaction.

        Raises:
            StoreError: one of them has not ended for long.
        """
        if self._connection.dialect.name != "postgresql":
            return
        deadline = time.monotonic() + WRITER_WAIT_S
        writing = self._writing()
        while writing:
            if time.monotonic() > deadline:
                raise StoreError("The change was made, but registrations from before it have not ended for long")
            time.sleep(WRITER_LOOK_S)
            writing &= self._writing()

    def _writing(self) -> set[tuple[int, str]]:
        """The transactions that write versions. A statement has its locks before it sees anything."""
        return {(row.pid, row.virtualtransaction) for row in self._connection.execute(statements.WRITERS)}

    @rests_on(settled)
    def settings_revision(self) -> int:
        """Greater after every change of configuration and modes."""
        return self._state().settings_revision

    @rests_on(settled)
    def revision(self) -> int:
        """The registry's: greater after every deletion, revival, import and change of configuration or mode."""
        return self._state().moment.revision

    @rests_on(settled)
    def history(self) -> int:
        """Another number after the database may have gone back."""
        return self._state().moment.history

    @rests_on(settled)
    def moment(self) -> Moment:
        return self._state().moment

    def _state(self) -> RegistryState:
        return self._once("state", self._ask_state)

    def _ask_state(self) -> RegistryState:
        row = self._connection.execute(statements.STATE).one()
        return RegistryState(Moment(row.history, row.revision), row.settings_revision)

    def contexts(self) -> list[str]:
        """The default context, then the others that have ever held a subject and were not deleted, sorted."""
        # A subject may have come while its context was being deleted.
        in_use = sa.exists().where(SubjectRow.context == ContextRow.name)
        query = sa.select(ContextRow.name).where(ContextRow.listed | in_use, ContextRow.name != DEFAULT_CONTEXT)
        return [DEFAULT_CONTEXT, *sorted(self._connection.scalars(query))]

    def list_context(self, context: str) -> None:
        if context in self._reserved:
            return
        # Only when it has to be: the row of a busy context is not to be locked for as long as a registration.
        if self._connection.scalar(statements.CONTEXT_LISTED, {"name": context}):
            return
        self._make_context(context)
        changed = sa.update(ContextRow).where(ContextRow.name == context, ContextRow.listed.is_(False))
        self._connection.execute(changed.values(listed=True))

    def unlist_context(self, context: str) -> bool:
        """Whether it was listed."""
        listed = sa.update(ContextRow).where(ContextRow.name == context, ContextRow.listed)
        return self._connection.execute(listed.values(listed=False)).rowcount > 0

    def take_schema_id(self, context: str) -> SchemaId:
        """The next id of a context, which nobody else gets."""
        if context in self._reserved:
            return self._reserved.pop(context)
        taken = (
            sa.update(ContextRow)
            .where(ContextRow.name == context)
            .values(next_id=ContextRow.next_id + 1)
            .returning(ContextRow.next_id)
        )
        following = self._connection.scalar(taken)
        if following is None:
            self._make_context(context)
            following = self._connection.scalar(taken)
        assert following is not None
        return SchemaId(following - 1)

    def keep_schema_id(self, context: str, schema_id: int) -> None:
        """Makes sure that an id that was imposed is not given to another schema later on."""
        self._make_context(context)
        self._connection.execute(
            sa.update(ContextRow)
            .where(ContextRow.name == context, ContextRow.next_id <= schema_id)
            .values(next_id=schema_id + 1)
        )

    def _make_context(self, context: str) -> None:
        self._connection.execute(
            statements.insert_for(self._connection.dialect.name, ContextRow)
            .values(name=context, next_id=1, listed=False)
            .on_conflict_do_nothing()
        )

    @rests_on(settled)
    def config(self, scope: str | None) -> ConfigEntry | None:
        """What is configured for a subject or a context, or for all of the default context when None."""
        return self.configs([scope]).get(scope)

    @rests_on(settled)
    def configs(self, scopes: Sequence[str | None]) -> dict[str | None, ConfigEntry]:
        """What is configured, for those of the scopes that have an entry."""
        if self._kept is None:
            return self._configs(statements.CONFIGS, scopes)
        kept = self._kept.scopes.at(self.moment())
        if kept.configs is None:
            kept.configs = _whole(self._configs(statements.FIRST_CONFIGS))
        return _of_scopes(kept.configs, scopes, lambda missing: self._configs(statements.CONFIGS, missing))

    def _configs(
        self, query: sa.Executable, scopes: Sequence[str | None] | None = None
    ) -> dict[str | None, ConfigEntry]:
        rows = self._connection.execute(query, None if scopes is None else {"scopes": _scopes(scopes)})
        return {_unscoped(row.scope): _config_entry(row._asdict()) for row in rows}

    @rests_on(settled)
    def aliases(self) -> dict[str | None, str]:
        """The alias of each scope that has one."""
        query = sa.select(ConfigRow.scope, ConfigRow.alias).where(ConfigRow.alias.is_not(None))
        return {_unscoped(row.scope): row.alias for row in self._connection.execute(query)}

    def config_scopes(self) -> list[str | None]:
        """Every scope with a configuration of its own."""
        return [_unscoped(scope) for scope in self._connection.scalars(sa.select(ConfigRow.scope))]

    def put_config(self, scope: str | None, entry: ConfigEntry) -> None:
        """Replaces what is configured; an entry that says nothing is none, since one would hide those around it."""
        self.remove_config(scope)
        if entry.is_empty:
            return
        row: dict[str, Any] = {"scope": _scope(scope)}
        for key in _CONFIG_KEYS:
            value = getattr(entry, key)
            row.update({f"{key}_json": _JSON_KEYS[key][0](value)} if key in _JSON_KEYS else {key: value})
        self._connection.execute(sa.insert(ConfigRow).values(row))

    def remove_config(self, scope: str | None) -> bool:
        """Whether there was one."""
        return self._connection.execute(sa.delete(ConfigRow).where(ConfigRow.scope == _scope(scope))).rowcount > 0

    @rests_on(settled)
    def modes(self, scopes: Sequence[str | None]) -> dict[str | None, Mode]:
        """The modes that are set, for those of the scopes that have one."""
        if self._kept is None:
            return self._modes(statements.MODES, scopes)
        kept = self._kept.scopes.at(self.moment())
        if kept.modes is None:
            kept.modes = _whole(self._modes(statements.FIRST_MODES))
        return _of_scopes(kept.modes, scopes, lambda missing: self._modes(statements.MODES, missing))

    def _modes(self, query: sa.Executable, scopes: Sequence[str | None] | None = None) -> dict[str | None, Mode]:
        rows = self._connection.execute(query, None if scopes is None else {"scopes": _scopes(scopes)})
        return {_unscoped(row.scope): Mode(row.mode) for row in rows}

    def put_mode(self, scope: str | None, mode: Mode) -> None:
        self.remove_modes([scope])
        self._connection.execute(sa.insert(ModeRow).values(scope=_scope(scope), mode=mode.value))

    def remove_modes(self, scopes: Sequence[str | None]) -> bool:
        """Whether there was any."""
        return self._connection.execute(sa.delete(ModeRow).where(ModeRow.scope.in_(_scopes(scopes)))).rowcount > 0

    def mode_scopes(self) -> list[str | None]:
        """Every scope with a mode of its own."""
        return [_unscoped(scope) for scope in self._connection.scalars(sa.select(ModeRow.scope))]


def _whole(rows: Mapping[str | None, T]) -> ScopeValues[T]:
    """A table's first rows, which are mostly all that it has."""
    return ScopeValues({**rows}, is_whole=len(rows) < statements.KEPT_SCOPES_MAX)


def _of_scopes(
    known: ScopeValues[T], scopes: Sequence[str | None], read: Callable[[list[str | None]], Mapping[str | None, T]]
) -> dict[str | None, T]:
    """What the scopes have, read only for those that are not known. Of a large table that is not kept."""
    missing = [scope for scope in scopes if known.lacks(scope)]
    values = {**{scope: known.values.get(scope) for scope in scopes}, **(read(missing) if missing else {})}
    return {scope: value for scope, value in values.items() if value is not None}


def _scope(scope: str | None) -> str:
    return GLOBAL_SCOPE if scope is None else scope


def _unscoped(scope: str) -> str | None:
    return None if scope == GLOBAL_SCOPE else scope


def _scopes(scopes: Iterable[str | None]) -> list[str]:
    return [_scope(scope) for scope in scopes if is_storable(scope or "")]


def _config_entry(row: Mapping[str, Any]) -> ConfigEntry:
    values = {key: _JSON_KEYS[key][1](row[f"{key}_json"]) if key in _JSON_KEYS else row[key] for key in _CONFIG_KEYS}
    return ConfigEntry(**values)


def reserve_schema_id(connection: Connection, wanted: IdWanted) -> ReservedIds:
    """The next id of a context, taken in a transaction of its own by one statement; on PostgreSQL only.

    It does not wait for the disk: what uses the id commits later, and that brings everything before it to the disk.

    Raises:
        ContentKnown: no id was taken.
    """
    parameters = {"context": wanted.context, "fingerprint": wanted.content.fingerprint}
    following = connection.execute(statements.RESERVE_ID, parameters).scalar()
    if following is None:
        raise ContentKnown(wanted)
    return {wanted.context: SchemaId(following - 1)}
