"""Which compatibility level and normalization hold for a subject."""

from __future__ import annotations

import logging
from dataclasses import replace

from compat.errors import InvalidLevel
from compat.levels import CompatibilityLevel, parse_level
from registry.domain import ConfigChange, ConfigEntry
from registry.errors import InvalidCompatibilityLevel, SubjectLevelNotConfigured, SubjectNotFound
from registry.storage.database import Database
from registry.storage.repository import Repository

logger = logging.getLogger(__name__)


class Configuration:
    """Reads and changes what is configured; `default_level` holds where nothing is."""

    def __init__(self, database: Database, default_level: CompatibilityLevel) -> None:
        self._database = database
        self._default_level = default_level

    def level(self, repository: Repository, subject: str) -> CompatibilityLevel:
        """The subject's own entry, even one without a level, hides the global one, as in the Confluent registry."""
        entry = repository.config(subject) or repository.config(None) or ConfigEntry()
        return CompatibilityLevel(entry.compatibility) if entry.compatibility else self._default_level

    def normalize(self, repository: Repository, subject: str) -> bool:
        """Unlike the level, this is inherited by a subject entry that does not set it."""
        for entry in (repository.config(subject), repository.config(None)):
            if entry is not None and entry.normalize is not None:
                return entry.normalize
        return False

    def of_all(self) -> ConfigEntry:
        entry = self._database.read(lambda repository: repository.config(None)) or ConfigEntry()
        return replace(entry, compatibility=entry.compatibility or self._default_level.value)

    def of_subject(self, subject: str, *, or_global: bool) -> ConfigEntry:
        """A subject's own entry, or with `or_global` what holds for it.

        Raises:
            SubjectLevelNotConfigured: the subject has no entry.
        """

        def read(repository: Repository) -> ConfigEntry:
            entry = repository.config(subject)
            if or_global:
                level, normalize = self.level(repository, subject), self.normalize(repository, subject)
                return ConfigEntry(compatibility=level.value, normalize=normalize or None)
            if entry is None:
                raise SubjectLevelNotConfigured(subject=subject)
            return entry

        return self._database.read(read)

    def change(self, subject: str | None, change: ConfigChange) -> ConfigChange:
        """Merges a change into the entry of a subject, or of all; returns it with the level in its own spelling.

        Raises:
            InvalidCompatibilityLevel: there is no such level.
        """
        level = change.values.compatibility
        if level is not None:
            change = replace(change, values=replace(change.values, compatibility=_level(level).value))

        def write(repository: Repository) -> None:
            repository.bump_revision()
            repository.put_config(subject, change.applied_to(repository.config(subject) or ConfigEntry()))

        self._database.write(write)
        logger.info("configuration changed: subject=%s keys=%s", subject, ",".join(sorted(change.given)))
        return change

    def reset(self, subject: str | None) -> ConfigEntry:
        """Removes an entry and returns what it was.

        Raises:
            SubjectNotFound: the subject has none.
        """

        def remove(repository: Repository) -> ConfigEntry:
            repository.bump_revision()
            entry = repository.config(subject)
            if entry is None and subject is not None:
                raise SubjectNotFound(subject=subject)
            repository.remove_config(subject)
            return entry or ConfigEntry(compatibility=self._default_level.value)

        removed = self._database.write(remove)
        logger.info("configuration removed: subject=%s", subject)
        return removed


def _level(text: str) -> CompatibilityLevel:
    try:
        return parse_level(text)
    except InvalidLevel as error:
        raise InvalidCompatibilityLevel from error
