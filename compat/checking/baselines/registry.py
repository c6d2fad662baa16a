"""Schemas in a registry, each compared at its subject's own level unless the user requests one.

A few schemas are requested individually. Many are read from a listing, in pages of 1,000, if the registry supports it
and the listing is not much longer than needed. Each subject's level is requested individually, because no registry
lists levels; the requests use a few persistent connections. A failed request ends the check, except for a listing that
the registry does not support, because an unreachable registry gives no information about the schemas. Depending on
`AllNewPolicy`, the check also ends if the registry has subjects but none of the requested ones, which indicates a wrong
naming strategy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import quote

from headrace.avro_schema import Schema, SchemaParseError, parse_schema
from headrace.avro_schema.model import NO_POSITION
from headrace.compat import CompatibilityLevel
from headrace.compat.check_result import FailureKind
from headrace.compat.checking.baselines.base import (
    BaselineFailed,
    CandidateSchema,
    EarlierVersion,
    LevelChoice,
    VersionHistory,
)
from headrace.compat.checking.baselines.subject_config import (
    SubjectConfig,
    UnsupportedConfig,
    alias_target,
    level_of,
    parse_subject_config,
    plain_subject,
)
from headrace.compat.checking.scope import FileScope
from headrace.compat.errors import NoSubject
from headrace.compat.subjects import STRATEGIES, SubjectSource, derive_subject
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.client.responses import parse_registered_schema
from headrace.registry.errors import (
    InvalidSchema,
    InvalidSubject,
    RegistryError,
    SchemaNotFound,
    ServiceError,
    SubjectLevelNotConfigured,
    SubjectNotFound,
    VersionNotFound,
)

CONNECTIONS = 4
"""Concurrent requests; a registry serves a few from memory while one waits for its database."""

SINGLE_REQUESTS_MAX = 24
"""Most subjects that are requested individually."""

LISTED_PER_CANDIDATE_MAX = 20
"""Most subjects in a listing per subject that the check needs from it. For a longer listing, requests for single
subjects cost less."""

PAGE_SIZE = 1000

NO_LISTING_STATUSES = frozenset({404, 405, 500, 501})
"""Statuses of registries that do not support the listing."""


ADVICE = {
    404: "; is this the URL of a schema registry, with its whole path?",
    429: "; the registry limits requests (429); check fewer schemas, for example with --since, or try again later",
}
"""Advice by response status, appended to the error."""


class AllNewPolicy(Enum):
    """Whether a check may continue if the registry has subjects, but none of the requested ones."""

    ALLOW = auto()
    REFUSE_IF_MISNAMED = (
        auto()
    )  # refuse if another naming strategy yields an existing subject; used if only some schemas are checked
    REFUSE = auto()


class RegistryBaseline:
    """The versions in a registry, as the baseline to which the checked files are compared.

    Args:
        name: shown instead of the registry's URL.
        all_new_policy: whether the check may continue if the registry has none of the checked subjects.
    """

    def __init__(
        self, client: RegistryClient, name: str = "", all_new_policy: AllNewPolicy = AllNewPolicy.ALLOW
    ) -> None:
        self._client = client
        self._all_new_policy = all_new_policy
        self.name = name or f"registry {client.url}"
        self._parsed: Mapping[tuple[str, int], Schema | SchemaParseError] = {}

    def histories(self, candidates: Sequence[CandidateSchema], choice: LevelChoice) -> Sequence[VersionHistory]:
        with self._translated_errors(), ThreadPoolExecutor(CONNECTIONS) as pool:
            return self._histories(candidates, choice, pool)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raises `BaselineFailed` in place of an error of the registry client that occurs in the context."""
        try:
            yield
        except (InvalidSubject, UnsupportedConfig) as error:
            raise BaselineFailed.from_reason(FailureKind.UNREADABLE, self.name, str(error)) from None
        except RegistryError as error:
            status = error.status if isinstance(error, ServiceError) else 0
            message = f"{error}{ADVICE.get(status, '')}"
            raise BaselineFailed.from_reason(FailureKind.REGISTRY, self.name, message) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the response is not that of a schema registry ({type(error).__name__}: {error})"
            raise BaselineFailed.from_reason(FailureKind.REGISTRY, self.name, message) from None

    def deleted_files(self, scope: FileScope) -> Sequence[tuple[str, str]]:
        """Returns nothing, because subjects of a registry may belong to other repositories."""
        return ()

    def _histories(
        self, candidates: Sequence[CandidateSchema], choice: LevelChoice, pool: ThreadPoolExecutor
    ) -> list[VersionHistory]:
        subjects = list(dict.fromkeys(item.subject for item in candidates))
        default = level_of(self._client.config())
        configured = dict(zip(subjects, pool.map(partial(self._configured, default), subjects), strict=True))
        latest = self._latest(configured.values(), pool)
        if not latest and self._all_new_policy is not AllNewPolicy.ALLOW:
            self._check_all_new(candidates, subjects)
        needed = [subject for subject in latest if configured[subject].needs_all_versions(choice)]
        older = self._older({subject: latest[subject] for subject in needed}, pool)
        # Close the sockets before processes are forked.
        fetched = chain(latest.values(), *older.values())
        referring = [item for item in fetched if item.references]
        self._parsed = dict(zip(map(_version_key, referring), pool.map(self._try_parse, referring), strict=True))
        self._client.close()
        files: dict[str, list[str]] = {}
        for item in candidates:
            files.setdefault(item.subject, []).append(item.file.path)
        histories = []
        for item in candidates:
            subject = item.subject
            history = self._history(configured[subject], latest.get(subject), older.get(subject))
            shared = _shared_by(item, files[subject])
            histories.append(replace(history, notes=(*history.notes, *shared)))
        return histories

    def _history(
        self, config: SubjectConfig, newest: RegisteredSchema | None, before: Sequence[RegisteredSchema] | None
    ) -> VersionHistory:
        if newest is None:
            return VersionHistory(
                level=config.level,
                level_origin=config.level_origin,
                notes=config.notes({}),
                policy=config.policy({}),
            )
        versions = [*(before or ()), newest]
        version_count = len(versions) if before is not None else newest.version or 1
        if config.group:
            group = config.metadata(newest.metadata).get(config.group)
            versions = [item for item in versions if item.metadata.get(config.group) == group]
        earlier = tuple(self._earlier(item) for item in versions)
        policy, notes = config.policy(newest.metadata), config.notes(newest.metadata)
        return VersionHistory(earlier, version_count, config.level, config.level_origin, notes, policy)

    def find_equal_version(self, candidate: CandidateSchema, text: str) -> str:
        with self._translated_errors():
            config = self._configured(level_of(self._client.config()), candidate.subject)
            body: dict[str, Any] = {"schema": text, "schemaType": "AVRO"}
            if config.default_properties or config.override_properties:
                newest = self._latest_of(config)
                body["metadata"] = {"properties": config.metadata(newest.metadata if newest else {})}
            # The tags and rules of a registration are unknown to this check.
            if config.adds_tags_or_rules:
                return ""
            try:
                path = f"/subjects/{quote(candidate.subject, safe='')}"
                found = self._client.call("POST", path, body=body)
            except (SubjectNotFound, SchemaNotFound, InvalidSchema):
                return ""
            # The lookup also searches other contexts, which a registration does not use.
            is_in_target = plain_subject(str(found["subject"])) == config.target
            return f"{config.target} version {found['version']}" if is_in_target else ""

    def _earlier(self, item: RegisteredSchema) -> EarlierVersion:
        version = item.version or 1
        return EarlierVersion(version, f"{item.subject} version {version}", item.text, partial(self._parse, item))

    def _parse(self, item: RegisteredSchema) -> Schema:
        if not item.references:
            source = f"{item.subject} version {item.version}"
            # Some registries return texts as they were sent, with comments.
            return parse_schema(item.text, source=source, strict=False, lenient_json=True)
        parsed = self._parsed[_version_key(item)]
        if isinstance(parsed, SchemaParseError):
            raise parsed
        return parsed

    def _try_parse(self, item: RegisteredSchema) -> Schema | SchemaParseError:
        """Returns the schema of a registered version (`item`) that has references, or the error of parsing it. Called
        while the client is open, because references are requested from the registry."""
        try:
            return self._client.parsed(item)
        except SchemaParseError as error:
            return error
        except (SchemaNotFound, SubjectNotFound, VersionNotFound) as error:
            return SchemaParseError(
                f"refers to a schema that the registry does not have: {error}", NO_POSITION, item.subject or ""
            )

    def _check_all_new(self, candidates: Sequence[CandidateSchema], subjects: Sequence[str]) -> None:
        """Checks that it is plausible that all candidates are new. Called if the registry has none of their subjects.

        Args:
            subjects: the subjects of the candidates.

        Raises:
            BaselineFailed: the registry has different subjects, which suggests a wrong naming strategy. Under
                `REFUSE_IF_MISNAMED`, only if a different naming strategy yields one of these subjects.
        """
        existing_subjects = [name for context in _group_by_context(subjects) for name in self._client.subjects(context)]
        other = next(_renamed_subjects(candidates, frozenset(existing_subjects)), "")
        if not existing_subjects or (self._all_new_policy is AllNewPolicy.REFUSE_IF_MISNAMED and not other):
            return
        names = f"{', '.join(subjects[:2])}{', …' if len(subjects) > 2 else ''}"
        hint = other or f"such as {existing_subjects[0]}; check the naming strategy (--subject-strategy)."
        count = len(existing_subjects)
        message = f"has none of the subjects {names}, but {count} others, {hint} If all schemas are new, use --all-new"
        raise BaselineFailed.from_reason(FailureKind.UNREADABLE, self.name, message)

    def _latest(self, configured: Collection[SubjectConfig], pool: ThreadPoolExecutor) -> dict[str, RegisteredSchema]:
        """Returns the newest version of each subject that was derived from a file; subjects that do not exist are
        omitted.

        Args:
            configured: the configurations of all checked subjects.
            pool: threads that send the requests for single subjects.
        """
        if len(configured) <= SINGLE_REQUESTS_MAX:
            return self._fetch_latest(configured, pool)
        listed: dict[str, RegisteredSchema] = {}
        for members in _group_by_context([config.target for config in configured]).values():
            prefix = _common_prefix(members)
            names = set(self._client.subjects(prefix))
            existing = [name for name in members if name in names]
            if len(names) <= LISTED_PER_CANDIDATE_MAX * max(1, len(existing)):
                listed.update(self._list_latest(prefix, set(existing)))
        # A subject missing from the listing is requested by name: the user may lack permission to list it.
        unlisted = self._fetch_latest([config for config in configured if config.target not in listed], pool)
        return {config.requested: listed[config.target] for config in configured if config.target in listed} | unlisted

    def _fetch_latest(
        self, configured: Collection[SubjectConfig], pool: ThreadPoolExecutor
    ) -> dict[str, RegisteredSchema]:
        found = zip(configured, pool.map(self._latest_of, configured), strict=True)
        return {config.requested: item for config, item in found if item is not None}

    def _latest_of(self, config: SubjectConfig) -> RegisteredSchema | None:
        """Returns the newest version of the subject to which a registration goes (`config.target`); None if this
        subject has no version, or if the registry returns a version of another subject.

        The request names the subject derived from the file (`config.requested`), not the target of its alias: the
        target may be an alias itself, which the registry would then follow, although a registration follows aliases one
        step only.
        """
        try:
            item = self._client.version(config.requested, "latest")
        except (SubjectNotFound, VersionNotFound):
            return None
        # The registry may return a version of another context, which a registration does not use.
        return item if plain_subject(item.subject or config.target) == config.target else None

    def _list_latest(self, prefix: str, subjects: Collection[str]) -> dict[str, RegisteredSchema]:
        rows = self._listed(prefix, latest_only=True) or ()
        return {str(item.subject): item for item in rows if item.subject in subjects}

    def _listed(self, prefix: str, *, latest_only: bool) -> list[RegisteredSchema] | None:
        """Returns the Avro versions of all subjects with a prefix, or only their latest versions if `latest_only`; None
        if the registry does not support listing them (`GET /schemas`)."""
        try:
            return list(self._listing(prefix, latest_only=latest_only))
        except SchemaNotFound:
            return None
        except ServiceError as error:
            if error.status in NO_LISTING_STATUSES:
                return None
            raise

    def _listing(self, prefix: str, *, latest_only: bool) -> Iterator[RegisteredSchema]:
        """Yields the Avro versions of all subjects with a prefix, or only their latest versions if `latest_only`, from
        pages of `GET /schemas`; a server without paging returns everything as the first page."""
        offset = 0
        seen: set[tuple[str, int]] = set()
        while True:
            query = {"subjectPrefix": prefix, "latestOnly": str(latest_only).lower()}
            rows = self._client.call("GET", "/schemas", query={**query, "offset": str(offset), "limit": str(PAGE_SIZE)})
            fresh = [row for row in rows if (row["subject"], row["version"]) not in seen]
            seen.update((row["subject"], row["version"]) for row in fresh)
            for row in fresh:
                if row.get("schemaType", "AVRO") == "AVRO":
                    yield parse_registered_schema(row)
            if len(rows) < PAGE_SIZE or not fresh:
                return
            offset += len(rows)

    def _older(
        self, newest: Mapping[str, RegisteredSchema], pool: ThreadPoolExecutor
    ) -> dict[str, list[RegisteredSchema]]:
        """Returns, for each subject derived from a file, all versions before its newest version, ascending.

        Args:
            newest: the newest version of each subject.
            pool: threads that send the requests for single subjects.
        """
        if len(newest) > SINGLE_REQUESTS_MAX:
            rows: list[RegisteredSchema] | None = []
            for members in _group_by_context({_version_key(item)[0] for item in newest.values()}).values():
                listed = self._listed(_common_prefix(members), latest_only=False)
                rows = None if rows is None or listed is None else [*rows, *listed]
            if rows is not None:
                found: dict[str, list[RegisteredSchema]] = {}
                for row in sorted(rows, key=lambda row: row.version or 0):
                    found.setdefault(row.subject or "", []).append(row)
                return {
                    requested: [
                        row for row in found.get(item.subject or "", ()) if _version_key(row)[1] < _version_key(item)[1]
                    ]
                    for requested, item in newest.items()
                }
        return dict(zip(newest, pool.map(self._fetch_older, newest.items()), strict=True))

    def _fetch_older(self, requested_and_newest: tuple[str, RegisteredSchema]) -> list[RegisteredSchema]:
        requested, newest = requested_and_newest
        numbers = self._client.versions(requested)
        return [self._client.version(requested, number) for number in numbers if number != newest.version]

    def _configured(self, default: CompatibilityLevel, subject: str) -> SubjectConfig:
        """Returns the configuration that applies to a registration under a subject.

        Args:
            default: the registry's global level, for a subject without configuration.
        """
        try:
            config = self._client.config(subject)
        except SubjectLevelNotConfigured:
            config = {"compatibilityLevel": default.value}
        target = alias_target(subject, config)
        if target != plain_subject(subject):
            try:
                config = self._client.config(target)
            except SubjectLevelNotConfigured:
                config = {"compatibilityLevel": default.value}
        return parse_subject_config(subject, target, config)


def _renamed_subjects(candidates: Sequence[CandidateSchema], existing_subjects: Collection[str]) -> Iterator[str]:
    """Yields a hint for each candidate whose subject would exist in the registry under another naming strategy.

    Args:
        existing_subjects: the subjects of the registry.
    """
    for strategy in STRATEGIES:
        for item in candidates:
            with suppress(NoSubject):
                subject = derive_subject(SubjectSource(item.file.path, item.record), strategy)
                if subject in existing_subjects:
                    yield f"among them {subject}, the subject of {item.file.path} with --subject-strategy {strategy}."


def _shared_by(candidate: CandidateSchema, files: Sequence[str]) -> tuple[str, ...]:
    others = [file for file in files if file != candidate.file.path]
    return (f"{candidate.subject} is also the subject of {', '.join(others[:3])}",) if others else ()


def _version_key(item: RegisteredSchema) -> tuple[str, int]:
    return item.subject or "", item.version or 0


def _group_by_context(subjects: Iterable[str]) -> dict[str, list[str]]:
    """Groups subjects by the prefix of their context, "" for the default context."""
    found: dict[str, list[str]] = {}
    for subject in subjects:
        context, colon, _ = subject[1:].partition(":") if subject.startswith(":.") else ("", "", "")
        found.setdefault(f":{context}:" if colon else "", []).append(subject)
    return found


def _common_prefix(names: Sequence[str]) -> str:
    """Returns the longest text with which all these subject names begin. The caller passes subjects of one context, so
    it includes the context's prefix."""
    first, last = min(names), max(names)
    length = next(
        (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    return first[:length]
