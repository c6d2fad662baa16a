"""Checks whether a schema may become a subject's next version."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from headrace.avro_schema import Record
from headrace.compat.errors import ComparisonTooLarge
from headrace.compat.finding import LEVELS, Direction, Report
from headrace.compat.levels import CompatibilityLevel, VersionedSchema, check_level
from headrace.compat.logical_policy import find_logical_problems
from headrace.compat.report import confluent_messages
from headrace.compat.resolution import ComparisonBudget
from headrace.registry.domain import (
    LATEST,
    ConfigEntry,
    Metadata,
    Mode,
    SchemaContent,
    SchemaRequest,
    StoredVersion,
)
from headrace.registry.errors import InvalidSchema, RegistryError, VersionNotFound
from headrace.registry.metadata import compatibility_group_of, reserved_fields
from headrace.registry.service.configuration import LOGICAL, Configuration, SubjectSettings
from headrace.registry.service.schema_parser import CACHED_CHARS_MAX, Candidate, SchemaParser
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository

# Time limit of a compatibility check. A registration has no time limit; only its number of compared pairs is limited.
CHECK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class CompatibilityVerdict:
    """The result of a check, with one message per incompatibility. `is_final` is False if the check reached its time
    limit: a later check may have another verdict."""

    is_compatible: bool
    messages: tuple[str, ...] = ()
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """The inputs of one compatibility check of a schema for a subject. Another process with the same database can
    repeat the check from them, because they are plain values.

    `config` is the subject's effective configuration. `content` and `text` belong to the schema to check, and
    `targets` identify the schemas that its references name. `versions` are the subject's versions to compare it with:
    each version number, and a hash of its schema and of all schemas that this refers to (`SchemaParser.closure_key`).
    """

    subject: str
    config: ConfigEntry
    content: SchemaContent
    text: str
    targets: tuple[bytes, ...]
    versions: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    comparison: Comparison
    verdict: CompatibilityVerdict


@dataclass(frozen=True, slots=True)
class ComparisonOffload:
    """An argument of callers that let another process run slow comparisons: with it the service raises
    `ComparisonDeferred` instead of running a slow comparison itself.

    `comparison_result` is the result of a comparison that an earlier call deferred; None in the first call.
    """

    comparison_result: ComparisonResult | None = None


class ComparisonDeferred(Exception):
    """Raised for a slow comparison that another process should run; not an error of the client."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(comparison.subject)
        self.comparison = comparison


class Compatibility:
    """Checks schemas against a subject's versions at the subject's effective level."""

    def __init__(
        self,
        database: Database,
        parser: SchemaParser,
        configuration: Configuration,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._database = database
        self._parser = parser
        self._configuration = configuration

    def check(
        self,
        repository: Repository,
        settings: SubjectSettings,
        candidate: Candidate,
        budget: ComparisonBudget | None = None,
    ) -> CompatibilityVerdict:
        """Checks a schema as a registration does: against the latest live version, or at a transitive level against all
        live versions. A compatibility group limits the check to versions of the schema's group. Level NONE checks
        reserved field names only.

        Args:
            repository: contains the subject.
            settings: the subject and its effective level.
            candidate: the parsed schema of the request.
            budget: limits the size and duration of the comparison; None limits only the size.
        """
        return self._compare(repository, settings, candidate, _compared_with(repository, settings), budget)

    def check_or_defer(
        self, repository: Repository, settings: SubjectSettings, candidate: Candidate, offload: ComparisonOffload
    ) -> CompatibilityVerdict:
        """Checks a schema as a registration does and returns the verdict, but raises `ComparisonDeferred` instead of
        running a slow comparison.

        Args:
            repository: contains the subject.
            settings: the subject and its effective level.
            candidate: the parsed schema of the request.
            offload: may have the result of this comparison from an earlier call; the verdict is then taken from it.

        Raises:
            ComparisonDeferred: the comparison is slow. The caller lets another process run it and calls again with its
                result.
        """
        history = _compared_with(repository, settings)
        known = offload.comparison_result
        if known is not None and known.comparison == self._comparison(repository, settings, candidate, history):
            return known.verdict

        def defer() -> bool:
            raise ComparisonDeferred(self._comparison(repository, settings, candidate, history))

        if sum(len(item.schema.content.text) for item in history) > CACHED_CHARS_MAX:
            defer()  # even reading the schemas is slow
        return self._compare(repository, settings, candidate, history, ComparisonBudget(defer))

    def run_comparison(self, comparison: Comparison) -> ComparisonResult | None:
        """Runs a deferred comparison. Returns None if the versions to compare with or their schemas have changed
        meanwhile, or if an error occurred; the registration then meets the change or the error itself."""
        try:
            return self._database.read(lambda repository: self._run_comparison(repository, comparison))
        except RegistryError:
            return None  # the registration meets the same error and reports it

    def _comparison(
        self, repository: Repository, settings: SubjectSettings, candidate: Candidate, history: list[StoredVersion]
    ) -> Comparison:
        versions = tuple((item.version, self._parser.closure_key(repository, item.schema)) for item in history)
        return Comparison(
            settings.subject, settings.config, candidate.content, candidate.text, candidate.targets, versions
        )

    def _run_comparison(self, repository: Repository, comparison: Comparison) -> ComparisonResult | None:
        # The settings are not read again: the registration ignores the result if the current settings differ.
        settings = SubjectSettings(comparison.subject, comparison.config, Mode.READWRITE)
        request = SchemaRequest(comparison.text, references=comparison.content.references)
        # The text was already parsed strictly where that is required.
        candidate = self._parser.parse_candidate(
            repository, comparison.subject, request, normalize=False, strict=False, deleted=True
        )
        candidate = replace(candidate, content=comparison.content)
        numbers = {number for number, _ in comparison.versions}
        entries = repository.subject_view(comparison.subject).entries
        history = repository.load_entries(comparison.subject, [entry for entry in entries if entry.version in numbers])
        if self._comparison(repository, settings, candidate, history) != comparison:
            return None
        return ComparisonResult(comparison, self._compare(repository, settings, candidate, history, None))

    def check_subject(
        self, subject: str, request: SchemaRequest, *, normalize: bool, verbose: bool
    ) -> CompatibilityVerdict:
        """Checks a request's schema like a registration under the subject, without registering it.

        Args:
            subject: the subject; an alias is resolved.
            request: the schema.
            normalize: normalizes the schema's text first.
            verbose: returns a malformed schema as an incompatible verdict instead of raising an error.

        Raises:
            InvalidSchema: the schema is malformed and `verbose` is not set, or an earlier version cannot be parsed.
        """
        return self._database.read(
            lambda repository: self._checked(repository, subject, None, request, normalize, verbose)
        )

    def check_version(
        self, subject: str, version: int, request: SchemaRequest, *, normalize: bool, verbose: bool
    ) -> CompatibilityVerdict:
        """Checks a request's schema against one version of a subject only, even at a transitive level. At level NONE,
        and for a version of another compatibility group, checks reserved field names only.

        Args:
            subject: the subject; an alias is resolved.
            version: the version number. `LATEST` is the newest version; without one, the schema is compatible.
            request: the schema.
            normalize: normalizes the schema's text first.
            verbose: returns a malformed schema as an incompatible verdict instead of raising an error.

        Raises:
            InvalidSchema: the schema is malformed and `verbose` is not set, or the version cannot be parsed.
            VersionNotFound: the version does not exist or is deleted.
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
    ) -> CompatibilityVerdict:
        settings = self._configuration.settings(repository, subject)
        subject = settings.subject
        normalize = normalize or bool(settings.config.normalize)
        found = None if version is None else repository.version(subject, version)
        if found is None and version not in (None, LATEST):
            raise VersionNotFound(subject=subject, version=version)
        strict = settings.config.validate_new_schemas is not False
        try:
            candidate = self._parser.parse_candidate(repository, subject, request, normalize=normalize, strict=strict)
        except InvalidSchema as error:
            if verbose:
                return CompatibilityVerdict(False, (str(error),))
            raise
        ends_at = self._clock() + CHECK_S
        budget = ComparisonBudget(lambda: self._clock() >= ends_at)
        if version is None:
            verdict = self.check(repository, settings, candidate, budget)
        else:
            verdict = self._compare(repository, settings, candidate, [] if found is None else [found], budget)
        return replace(verdict, is_final=self._clock() < ends_at)

    def _compare(
        self,
        repository: Repository,
        settings: SubjectSettings,
        candidate: Candidate,
        history: list[StoredVersion],
        budget: ComparisonBudget | None,
    ) -> CompatibilityVerdict:
        config, level = settings.config, settings.level
        reserved = _reserved_problems(candidate, history[-1] if history else None) if config.validate_fields else []
        if config.compatibility_group is not None:
            group = compatibility_group_of(candidate.content.metadata, config.compatibility_group)
            history = [
                item for item in history if compatibility_group_of(_metadata(item), config.compatibility_group) == group
            ]
        if level is CompatibilityLevel.NONE:
            history = []
        elif not _is_transitive(level):
            history = history[-1:]
        versioned = [
            VersionedSchema(item.version, self._parser.parse_stored(repository, item.schema)) for item in history
        ]
        try:
            report = check_level(candidate.schema, versioned, level, budget=budget)
        except ComparisonTooLarge as error:
            return CompatibilityVerdict(False, (*reserved, f"Unexpected exception during compatibility check: {error}"))
        extra_messages = [*reserved, *(_logical_problems(report) if config.compatibility_policy == LOGICAL else ())]
        messages = confluent_messages(
            report, validate_fields=bool(config.validate_fields), extra_messages=extra_messages
        )
        return CompatibilityVerdict(not messages, tuple(messages))


def _compared_with(repository: Repository, settings: SubjectSettings) -> list[StoredVersion]:
    # The latest version of a compatibility group need not be the latest of the subject.
    if settings.config.compatibility_group is not None or _is_transitive(settings.level):
        view = repository.subject_view(settings.subject)
        return repository.load_entries(settings.subject, [entry for entry in view.entries if not entry.deleted])
    latest = repository.version(settings.subject, LATEST)
    return [] if latest is None else [latest]


def _logical_problems(report: Report) -> list[str]:
    """Compares the logical types of the report's candidate with each earlier version in the report, the newest version
    first. Returns the messages about the first version that is incompatible."""
    for earlier in report.compared:
        problems: list[str] = []
        for direction in LEVELS[report.level].directions:
            if direction is Direction.BACKWARD:
                problems += find_logical_problems(report.candidate, earlier.schema, reader_is_new=True)
            else:
                problems += find_logical_problems(earlier.schema, report.candidate, reader_is_new=False)
        if problems:
            return problems
    return []


def _is_transitive(level: CompatibilityLevel) -> bool:
    return LEVELS[level].transitive


def _metadata(stored: StoredVersion) -> Metadata | None:
    return stored.schema.content.metadata


def _reserved_problems(candidate: Candidate, before: StoredVersion | None) -> list[str]:
    """Checks the field names that the metadata of schemas reserve. Returns a message for each name that `before`
    reserves and the candidate no longer reserves, and for each top-level field of the candidate that has a name
    reserved by the candidate itself.

    Args:
        candidate: the schema to check.
        before: the newest version of the subject, or the one version that was requested; None without one.
    """
    reserved = reserved_fields(candidate.content.metadata)
    removed = [] if before is None else [name for name in reserved_fields(_metadata(before)) if name not in reserved]
    root = candidate.schema.root
    fields = {field.name for field in root.fields} if isinstance(root, Record) else set()
    return [
        *(
            f"The new schema has reserved field {name} removed from its metadata which is present in the old schema's "
            "metadata."
            for name in removed
        ),
        *(
            f"The new schema has field that conflicts with the reserved field {name}."
            for name in reserved
            if name in fields
        ),
    ]
