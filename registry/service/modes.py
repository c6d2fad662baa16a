"""Modes of subjects and contexts: read-write, read-only, and import with given ids."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.registry.domain import Mode, StoredVersion, SubjectVersion
from headrace.registry.errors import (
    InvalidMode,
    OperationNotPermitted,
    ReferenceExists,
    SubjectModeNotConfigured,
    SubjectNotFound,
)
from headrace.registry.names import (
    ALL_CONTEXTS_SCOPE,
    context_of,
    filter_of_scope,
    is_context_scope,
    quoted_for_log,
    scopes_of,
)
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository

logger = logging.getLogger(__name__)

FORWARD_GLOBAL_ONLY: Final = "Forward mode only supported on global level"


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The mode that was set on a scope before and after a change; None is no mode. `purged` is the number of
    soft-deleted versions that were permanently deleted for an import."""

    before: Mode | None
    after: Mode | None
    purged: int

    @property
    def is_new(self) -> bool:
        return self.before is not self.after or self.purged > 0


@dataclass(frozen=True, slots=True)
class ModeRemoved:
    """The removed mode of a scope. If the scope had none, `mode` is None after a recursive removal; otherwise it is the
    mode that overrules the scope, or READWRITE of the default context. `was_set` is True if any mode was removed."""

    mode: Mode | None
    was_set: bool


@dataclass(frozen=True, slots=True)
class ModeInheritance:
    """Determines the modes of scopes.

    A scope without a mode of its own has the mode of the innermost enclosing scope with one. READONLY_OVERRIDE of all
    contexts overrules every other mode, because it makes a replica read-only. With `override_wins`, so does
    READONLY_OVERRIDE of the default context, also in other contexts, as in the Confluent registry before 8.2.
    """

    override_wins: bool = False

    def mode_of(self, repository: Repository, scope: str | None) -> Mode:
        """The effective mode of a scope."""
        scopes = scopes_of(scope)
        modes = repository.modes(tuple(dict.fromkeys((*scopes, None))) if self.override_wins else scopes)
        return self.effective(modes, scopes)

    def effective(self, modes: Mapping[str | None, Mode], scopes: Sequence[str | None]) -> Mode:
        """The effective mode of a scope.

        Args:
            modes: the modes of these scopes and, with `override_wins`, of the default context. Scopes without a mode
                are missing.
            scopes: the scope and its enclosing scopes, the innermost first; see `scopes_of`.
        """
        if modes.get(ALL_CONTEXTS_SCOPE) is Mode.READONLY_OVERRIDE or self._is_overruled(modes):
            return Mode.READONLY_OVERRIDE
        return next((modes[scope] for scope in scopes if scope in modes), Mode.READWRITE)

    def own_mode(self, repository: Repository, scope: str | None) -> Mode | None:
        """The mode that is set on a scope itself, or the READONLY_OVERRIDE that overrules it. None without one; the
        default context is then READWRITE."""
        modes = repository.modes([scope, None] if self.override_wins and scope is not None else [scope])
        if self._is_overruled(modes):
            return Mode.READONLY_OVERRIDE
        return modes.get(scope, Mode.READWRITE if scope is None else None)

    def require_writable(self, repository: Repository, scope: str | None) -> None:
        """Requires that a scope may be changed.

        Raises:
            OperationNotPermitted: the scope is read-only.
        """
        refuse_readonly(scope, self.mode_of(repository, scope))

    def _is_overruled(self, modes: Mapping[str | None, Mode]) -> bool:
        return self.override_wins and modes.get(None) is Mode.READONLY_OVERRIDE


class Modes:
    """Reads and changes modes; without `mutable` modes cannot be changed."""

    def __init__(self, database: Database, inheritance: ModeInheritance, *, mutable: bool = True) -> None:
        self._database = database
        self._inheritance = inheritance
        self._mutable = mutable

    def read_scope(self, scope: str | None, *, in_effect: bool) -> Mode:
        """The mode that is set on the scope, or overrules it; with `in_effect` the effective mode.

        Raises:
            SubjectModeNotConfigured: the scope has no mode, and `in_effect` is False. Without a mode, the default
                context is READWRITE.
        """

        def read(repository: Repository) -> Mode:
            if in_effect:
                return self._inheritance.mode_of(repository, scope)
            found = self._inheritance.own_mode(repository, scope)
            if found is None:
                raise SubjectModeNotConfigured(subject=scope or "")
            return found

        return self._database.read(read)

    def change(self, scope: str | None, mode: Mode | None, *, force: bool) -> ModeChanged:
        """Sets the mode of a scope.

        Setting IMPORT without `force` permanently deletes the soft-deleted versions of the scope, so that the import
        can use their ids and version numbers; not if the effective mode is already IMPORT.

        Args:
            scope: a subject, a context, all contexts, or None for the default context.
            mode: the mode; None removes the scope's own mode.
            force: sets IMPORT even if the scope has versions, and deletes none.

        Raises:
            InvalidMode: FORWARD is set on a scope other than all contexts.
            OperationNotPermitted: modes cannot be changed, the registry is a replica, or IMPORT without `force` is set
                for a scope with live versions.
            ReferenceExists: a version cannot be deleted for IMPORT, because a schema outside the scope refers to it.
        """
        self._require_mutable()
        if mode is Mode.FORWARD and scope != ALL_CONTEXTS_SCOPE:
            raise InvalidMode(message=FORWARD_GLOBAL_ONLY)

        def write(repository: Repository) -> ModeChanged:
            repository.bump_revision(of_settings=True)
            _refuse_on_replica(repository)
            purged = 0
            is_importing = self._inheritance.mode_of(repository, scope) is Mode.IMPORT
            if mode is Mode.IMPORT and not force and not is_importing:
                repository.lock_out_writers()
                purged = _purge_soft_deleted(repository, scope)
            before = repository.modes([scope]).get(scope)
            if mode is None:
                repository.remove_modes([scope])
            else:
                repository.put_mode(scope, mode)
            return ModeChanged(before, mode, purged)

        changed = self._database.write(write)
        if changed.is_new:
            logger.info("mode changed: scope=%s mode=%s", quoted_for_log(scope), mode)
        return changed

    def reset(self, scope: str | None, *, recursive: bool) -> ModeRemoved:
        """Removes the mode of a scope.

        With `recursive` the modes of all scopes that it encloses are removed too; then the scope itself need not have a
        mode.

        Raises:
            SubjectNotFound: the scope has no mode, and `recursive` is False; never raised for the default context.
            OperationNotPermitted: modes cannot be changed, or the registry is a replica.
        """

        def remove(repository: Repository) -> ModeRemoved:
            repository.bump_revision(of_settings=True)
            if not recursive and self._inheritance.own_mode(repository, scope) is None:
                raise SubjectNotFound(subject=scope or "")
            self._require_mutable()
            _refuse_on_replica(repository)
            found = repository.modes([scope]).get(scope)
            if found is None and not recursive:
                return ModeRemoved(self._inheritance.own_mode(repository, scope), was_set=False)
            inside = [other for other in repository.mode_scopes() if _encloses(scope, other)] if recursive else []
            return ModeRemoved(found, repository.remove_modes([scope, *inside]))

        removed = self._database.write(remove)
        if removed.was_set:
            logger.info("mode removed: scope=%s recursive=%s", quoted_for_log(scope), recursive)
        return removed

    def _require_mutable(self) -> None:
        if not self._mutable:
            raise OperationNotPermitted("Mode changes are not allowed")


def _refuse_on_replica(repository: Repository) -> None:
    """Rejects changes of modes on a replica. Other changes need no such check, because a replica's global mode is
    read-only.

    Raises:
        OperationNotPermitted: the database is a replica that is not promoted.
    """
    replication = repository.replication_state()
    if replication is not None and not replication.is_promoted:
        raise OperationNotPermitted(
            f"This registry is a replica of {replication.url} and is read-only until it is promoted"
        )


def refuse_readonly(scope: str | None, mode: Mode) -> None:
    if mode.is_readonly:
        raise not_permitted(scope, "is in read-only mode")


def not_permitted(scope: str | None, reason: str) -> OperationNotPermitted:
    # The Confluent registry prints Java's null for the global scope.
    return OperationNotPermitted(
        f"Subject {'null' if scope is None else scope} in context {context_of(scope or '')} {reason}",
        subject=scope or "",
    )


def _purge_soft_deleted(repository: Repository, scope: str | None) -> int:
    """Permanently deletes the soft-deleted versions of a scope, so that an import can take their ids and versions.

    Returns:
        The number of deleted versions.

    Raises:
        OperationNotPermitted: the scope has versions that are not deleted.
        ReferenceExists: a version outside the scope refers to one of the versions.
    """
    if scope is not None and not is_context_scope(scope):
        stored = repository.versions(subject=scope, deleted=True)
    else:
        stored = repository.versions(subject_filter=filter_of_scope(scope), deleted=True)
    if any(not item.deleted for item in stored):
        raise OperationNotPermitted("Cannot import since found existing subjects", subject=scope or "")
    by_subject: dict[str, list[StoredVersion]] = defaultdict(list)
    for item in stored:
        by_subject[item.subject].append(item)
    removed = {SubjectVersion(item.subject, item.version) for item in stored}
    for subject, versions in sorted(by_subject.items()):
        subject_id = repository.claim_subject(subject, repository.subject_state(subject))
        repository.lock_versions(subject_id, [item.version for item in versions])
    for subject in sorted(by_subject):
        for version, user in repository.references_to(subject, deleted=True):
            if user not in removed:
                raise ReferenceExists(subject=subject, version=version)
    for subject, versions in sorted(by_subject.items()):
        state = repository.subject_state(subject)
        assert state is not None
        repository.remove_versions(state.subject_id, [item.version for item in versions])
    return len(stored)


def _encloses(scope: str | None, other: str | None) -> bool:
    """Whether `other` is another scope that `scope` encloses, so that it inherits the mode of `scope` unless it has one
    itself."""
    return scope != other and scope in scopes_of(other)
