"""May this schema be the subject's next version?"""

from __future__ import annotations

from dataclasses import dataclass

from avro_schema import Schema
from compat.errors import ComparisonTooLarge
from compat.levels import CompatibilityLevel, VersionedSchema, check_level
from compat.report import confluent_messages
from registry.domain import LATEST, SchemaRequest, StoredVersion
from registry.errors import InvalidSchema, VersionNotFound
from registry.service.configuration import Configuration, SubjectSettings
from registry.service.texts import Candidate, SchemaTexts
from registry.storage.database import Database
from registry.storage.repository import Repository


@dataclass(frozen=True, slots=True)
class Verdict:
    is_compatible: bool
    messages: tuple[str, ...] = ()


class Compatibility:
    """Checks schemas against the versions of a subject at the level that holds for it."""

    def __init__(self, database: Database, texts: SchemaTexts, configuration: Configuration) -> None:
        self._database = database
        self._texts = texts
        self._configuration = configuration

    def verdict(self, repository: Repository, settings: SubjectSettings, candidate: Candidate) -> Verdict:
        """What registration would say: against the latest version, or all when the level is transitive."""
        subject, level, schema = settings.subject, settings.level, candidate.schema
        if level is CompatibilityLevel.NONE:
            return Verdict(True)
        if level.value.endswith("_TRANSITIVE"):
            history = repository.versions(subject=subject)
        else:
            latest = repository.version(subject, LATEST)
            history = [] if latest is None else [latest]
        return self._compare(repository, schema, history, level)

    def check_subject(self, subject: str, request: SchemaRequest, *, normalize: bool, verbose: bool) -> Verdict:
        """`verdict` for a schema that is only being tried.

        Raises:
            InvalidSchema: the schema is malformed; with `verbose` that is a verdict.
        """
        return self._database.read(
            lambda repository: self._checked(repository, subject, None, request, normalize, verbose)
        )

    def check_version(
        self, subject: str, version: int, request: SchemaRequest, *, normalize: bool, verbose: bool
    ) -> Verdict:
        """Against one version only, whether or not the level is transitive; no version yet is compatible.

        Raises:
            InvalidSchema: the schema is malformed; with `verbose` that is a verdict.
            VersionNotFound: there is no such version, or it is deleted.
        """
        return self._database.read(
            lambda repository: self._checked(repository, subject, version, request, normalize, verbose)
        )

    def _checked(
        self,
        repository: Repository,
        subject: str,
        version: int | None,
        request: SchemaRequest,
        normalize: bool,
        verbose: bool,
    ) -> Verdict:
        settings = self._configuration.settings(repository, subject)
        subject = settings.subject
        normalize = normalize or bool(settings.config.normalize)
        found = None if version is None else repository.version(subject, version)
        if found is None and version not in (None, LATEST):
            raise VersionNotFound(subject=subject, version=version)
        try:
            candidate = self._texts.candidate(repository, subject, request, normalize=normalize, strict=True)
        except InvalidSchema as error:
            if verbose:
                return Verdict(False, (str(error),))
            raise
        if version is None:
            return self.verdict(repository, settings, candidate)
        level = settings.level
        return self._compare(repository, candidate.schema, [] if found is None else [found], level)

    def _compare(
        self, repository: Repository, schema: Schema, history: list[StoredVersion], level: CompatibilityLevel
    ) -> Verdict:
        versioned = [VersionedSchema(item.version, self._texts.parsed(repository, item.schema)) for item in history]
        try:
            report = check_level(schema, versioned, level)
        except ComparisonTooLarge as error:
            return Verdict(False, (f"Unexpected exception during compatibility check: {error}",))
        return Verdict(report.is_compatible, () if report.is_compatible else tuple(confluent_messages(report)))
