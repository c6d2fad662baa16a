"""Configuration of subjects and contexts, and subject aliases."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.compat.errors import InvalidLevel
from headrace.compat.levels import CompatibilityLevel, parse_level
from headrace.registry.domain import ConfigChange, ConfigEntry, Mode
from headrace.registry.errors import InvalidCompatibilityLevel, SubjectLevelNotConfigured, SubjectNotFound
from headrace.registry.names import is_context_scope, quoted_for_log, resolve_in_context, scopes_of
from headrace.registry.rules import check_rule_set
from headrace.registry.service.modes import ModeInheritance
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository

logger = logging.getLogger(__name__)

LOGICAL: Final = "LOGICAL"
POLICIES: Final = ("STRICT", "LENIENT", LOGICAL)
"""How strictly compatibility is checked. For Avro schemas STRICT and LENIENT are equal; LOGICAL also compares logical
types."""


@dataclass(frozen=True, slots=True)
class SubjectSettings:
    """The effective configuration and mode of a subject. If the request named an alias, `subject` is the subject that
    it refers to."""

    subject: str
    config: ConfigEntry
    mode: Mode

    @property
    def level(self) -> CompatibilityLevel:
        assert self.config.compatibility is not None, "an effective configuration has a level"
        return CompatibilityLevel(self.config.compatibility)


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The result of a change of a scope's configuration.

    `change` is the requested change, with the level in canonical spelling. `before` and `entry` are the whole
    configuration of the scope before and after it. `is_new` is False if the scope already had this configuration.
    """

    change: ConfigChange
    before: ConfigEntry
    entry: ConfigEntry
    is_new: bool


@dataclass(frozen=True, slots=True)
class ConfigRemoved:
    """The result of removing the configuration of a scope. `entry` is the removed configuration. If none was set, which
    is possible for the default context only, `was_set` is False and `entry` has just the default level."""

    entry: ConfigEntry
    was_set: bool


INHERITED_KEYS: Final = (
    "normalize",
    "validate_fields",
    "validate_new_schemas",
    "validate_rules",
    "compatibility_policy",
    "compatibility_group",
)
"""Keys that an entry inherits from the enclosing scopes if it does not set them. Aliases come from the scope's own
entry only. All other keys come from the innermost scope that has an entry: if that entry has no level, the default
level applies, as in the Confluent Schema Registry."""


def effective_config(entries: Sequence[ConfigEntry | None], default_level: str) -> ConfigEntry:
    """The effective configuration of a scope.

    Args:
        entries: the configurations that are set on the scope itself and on its enclosing scopes, the innermost
            first. None stands for a scope without one.
        default_level: the level if the innermost configuration has none, or if there is no configuration.
    """
    present = [entry for entry in entries if entry is not None]
    nearest = present[0] if present else ConfigEntry()
    inherited = {
        key: next((value for entry in present if (value := getattr(entry, key)) is not None), None)
        for key in INHERITED_KEYS
    }
    # An alias replaces one subject, so only a subject's own entry can have one.
    own = entries[0] or ConfigEntry()
    return replace(
        nearest,
        **inherited,
        compatibility=nearest.compatibility or default_level,
        alias=own.alias,
        alias_for_deks=own.alias_for_deks,
    )


class Configuration:
    """Reads and changes configurations; `default_level` is the level of subjects without one."""

    def __init__(self, database: Database, default_level: CompatibilityLevel, inheritance: ModeInheritance) -> None:
        self._database = database
        self._default_level = default_level
        self._inheritance = inheritance

    def settings(self, repository: Repository, subject: str) -> SubjectSettings:
        """Resolves a subject's alias and returns the effective configuration and mode of the resolved subject, whether
        or not it exists."""
        config = self.config(repository, subject)
        target = alias_target(subject, config)
        if target != subject:
            config = self.config(repository, target)
        return SubjectSettings(target, config, self._inheritance.mode_of(repository, target))

    def config(self, repository: Repository, scope: str | None) -> ConfigEntry:
        """The effective configuration of a scope: its own entry merged with the entries of its enclosing scopes and the
        default level."""
        scopes = scopes_of(scope)
        entries = repository.configs(scopes)
        return effective_config([entries.get(scope) for scope in scopes], self._default_level.value)

    def read_scope(self, scope: str | None, *, in_effect: bool) -> ConfigEntry:
        """The configuration that is set on the scope itself, or with `in_effect` the effective one. For the default
        context a missing level is the default level.

        Raises:
            SubjectLevelNotConfigured: nothing is set on the scope itself, and `in_effect` is False; never raised for
                the default context.
        """

        def read(repository: Repository) -> ConfigEntry:
            if in_effect:
                return self.config(repository, scope)
            entry = repository.config(scope)
            if entry is None and scope is not None:
                raise SubjectLevelNotConfigured(subject=scope)
            return entry or ConfigEntry()

        entry = self._database.read(read)
        return (
            replace(entry, compatibility=entry.compatibility or self._default_level.value) if scope is None else entry
        )

    def change(self, scope: str | None, change: ConfigChange) -> ConfigChanged:
        """Merges a change into the configuration that is set on a scope.

        Raises:
            InvalidCompatibilityLevel: the level or policy does not exist.
            InvalidRuleSet: the rules are invalid.
            InvalidSubject: the alias is not a valid subject name.
            OperationNotPermitted: the scope is read-only.
        """
        values = change.values
        for rules in (values.default_rule_set, values.override_rule_set):
            if rules is not None:
                check_rule_set(rules)
        level, policy = values.compatibility, values.compatibility_policy
        normalized = replace(
            values,
            compatibility=None if level is None else _level(level).value,
            compatibility_policy=None if policy is None else _policy(policy),
        )
        change = replace(change, values=normalized)
        if values.alias:
            resolve_in_context(scope or "", values.alias)

        def find_unchanged(repository: Repository) -> ConfigEntry | None:
            self._inheritance.require_writable(repository, scope)
            entry = repository.config(scope)
            return entry if entry is not None and change.applied_to(entry) == entry else None

        def write(repository: Repository) -> ConfigChanged:
            repository.bump_revision(of_settings=True)
            self._inheritance.require_writable(repository, scope)
            before = repository.config(scope) or ConfigEntry()
            entry = change.applied_to(before)
            repository.put_config(scope, entry)
            return ConfigChanged(change, before, entry, is_new=entry != before)

        # Some clients set the level before each registration. A change without effect must not invalidate all cached
        # responses.
        unchanged = self._database.read(find_unchanged)
        if unchanged is not None:
            # Another request has made the change and may still be waiting for writers or leases. This one must wait as
            # well.
            self._database.wait_for_change_in_effect()
            return ConfigChanged(change, unchanged, unchanged, is_new=False)
        changed = self._database.write(write)
        logger.info(
            "configuration changed: scope=%s keys=%s", quoted_for_log(scope), ",".join(sorted(change.changed_keys))
        )
        return changed

    def reset(self, scope: str | None) -> ConfigRemoved:
        """Removes the configuration that is set on a scope.

        Raises:
            SubjectNotFound: the scope has no configuration of its own; never raised for the default context.
            OperationNotPermitted: the scope is read-only.
        """

        def remove(repository: Repository) -> ConfigRemoved:
            repository.bump_revision(of_settings=True)
            entry = repository.config(scope)
            if entry is None and scope is not None:
                raise SubjectNotFound(subject=scope)
            self._inheritance.require_writable(repository, scope)
            was_set = repository.remove_config(scope)
            return ConfigRemoved(entry or ConfigEntry(compatibility=self._default_level.value), was_set)

        removed = self._database.write(remove)
        if removed.was_set:
            logger.info("configuration removed: scope=%s", quoted_for_log(scope))
        return removed


def resolve_alias(repository: Repository, subject: str) -> str:
    """Returns the subject that `subject` is an alias of, or `subject` itself if it is no alias.

    An alias refers to a subject in the alias's context unless it names another context. If it refers to another alias,
    that alias is not resolved, so aliases cannot form a cycle.
    """
    return alias_target(subject, repository.config(subject) or ConfigEntry())


def alias_target(subject: str, config: ConfigEntry) -> str:
    """Returns the subject that `subject` is an alias of, or `subject` itself if it is no alias.

    `config` is the configuration that is set on `subject`. `resolve_alias` reads it from the database.
    """
    if not config.alias or is_context_scope(subject):
        return subject
    return resolve_in_context(subject, config.alias)


def _level(text: str) -> CompatibilityLevel:
    try:
        return parse_level(text)
    except InvalidLevel as error:
        raise InvalidCompatibilityLevel from error


def _policy(text: str) -> str:
    if text.upper() not in POLICIES:
        raise InvalidCompatibilityLevel(
            message="Invalid compatibility policy. Valid values are strict, lenient, logical"
        )
    return text.upper()
