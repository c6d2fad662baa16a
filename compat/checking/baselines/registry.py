"""Schemas as a registry holds them, each compared at its subject's own level.

Few schemas are asked for one by one; many come in one listing, pages of 1,000 at a time, from registries that have it.
Levels are asked for subject by subject, since no registry lists them, over a few connections that are kept open.
Anything but an answer ends the check: a registry that cannot be reached or refuses access says nothing about schemas.
Nor does one that has subjects and none of those asked for: that is what a wrong strategy of naming looks like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from itertools import chain
from typing import Any

from headrace.avro_schema import Schema, SchemaParseError, parse_schema
from headrace.avro_schema.model import NOWHERE
from headrace.compat import CompatibilityLevel, InvalidLevel, parse_level
from headrace.compat.checking.baselines.base import BaselineFailed, Earlier, History, LevelChoice, Wanted
from headrace.compat.checking.scope import Scope
from headrace.compat.errors import NoSubject
from headrace.compat.outcome import FailureKind
from headrace.compat.subjects import STRATEGIES, SchemaPlace, subject_of
from headrace.registry.client import RegisteredSchema, RegistryClient, SchemaReference
from headrace.registry.errors import (
    InvalidSubject,
    RegistryError,
    SchemaNotFound,
    ServiceError,
    SubjectLevelNotConfigured,
    SubjectNotFound,
    VersionNotFound,
)

CONNECTIONS = 4
"""Calls under way at once; a registry answers a few from memory while one waits for its database."""

FEW = 24
"""Up to so many subjects are asked for one by one."""

LISTED_PER_WANTED_MAX = 20
"""A listing that holds more subjects than this for each that is wanted costs more than it saves."""

PAGE = 1000

NO_LISTING_STATUSES = frozenset({404, 405, 500, 501})
"""What registries answer that do not know the listing."""


ADVICE = {
    404: "; is this the URL of a schema registry, with its whole path?",
    429: "; it takes no more requests for now (429), so check fewer schemas, as with --since, or try again later",
}
"""By the status of an answer whose own words do not say what to do."""


class Stranger(Enum):
    """What it means that a registry with subjects knows none of those that are asked for."""

    NEW = auto()
    DOUBTED = auto()  # a mistake where another strategy names one that is there: only some schemas are checked
    REFUSED = auto()


class RegistryBaseline:
    """
    Args:
        name: what to call it, instead of by its URL.
        stranger: what it means that the registry knows none of the schemas.
    """

    def __init__(self, client: RegistryClient, name: str = "", stranger: Stranger = Stranger.NEW) -> None:
        self._client = client
        self._stranger = stranger
        self.name = name or f"registry {client.url}"
        self._parsed: Mapping[tuple[str, int], Schema | SchemaParseError] = {}

    def histories(self, wanted: Sequence[Wanted], choice: LevelChoice) -> Sequence[History]:
        try:
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                return self._histories(wanted, choice, pool)
        except InvalidSubject as error:
            raise BaselineFailed.because(FailureKind.UNREADABLE, self.name, str(error)) from None
        except RegistryError as error:
            status = error.status if isinstance(error, ServiceError) else 0
            message = f"{error}{ADVICE.get(status, '')}"
            raise BaselineFailed.because(FailureKind.REGISTRY, self.name, message) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the answer is not one of a schema registry ({type(error).__name__}: {error})"
            raise BaselineFailed.because(FailureKind.REGISTRY, self.name, message) from None

    def gone(self, scope: Scope) -> Sequence[tuple[str, str]]:
        """None: of its subjects others may be the owners."""
        return ()

    def _histories(self, wanted: Sequence[Wanted], choice: LevelChoice, pool: ThreadPoolExecutor) -> list[History]:
        subjects = list(dict.fromkeys(item.subject for item in wanted))
        default = self._level(self._client.config())
        latest = self._latest(subjects, pool)
        known = [subject for subject in subjects if subject in latest]
        if not known and self._stranger is not Stranger.NEW:
            self._require_new(wanted, subjects)
        levels = dict(zip(known, pool.map(partial(self._own, default), known), strict=True))
        transitive = [subject for subject in known if choice.is_transitive(levels[subject].level)]
        older = self._older([latest[subject] for subject in transitive], pool)
        # Sockets must not be there when processes are forked.
        fetched = chain(latest.values(), *older.values())
        referring = [item for item in fetched if item.references]
        self._parsed = dict(zip(map(_key, referring), pool.map(self._parsed_or_error, referring), strict=True))
        self._client.close()
        files: dict[str, list[str]] = {}
        for item in wanted:
            files.setdefault(item.subject, []).append(item.file.path)
        histories = []
        for item in wanted:
            history = self._history(item.subject, default, latest, levels, older)
            shared = _shared_by(item, files[item.subject])
            histories.append(replace(history, notes=(*history.notes, *shared)))
        return histories

    def _history(
        self,
        subject: str,
        default: CompatibilityLevel,
        latest: Mapping[str, RegisteredSchema],
        levels: Mapping[str, OwnLevel],
        older: Mapping[str, Sequence[RegisteredSchema]],
    ) -> History:
        newest = latest.get(subject)
        if newest is None:
            return History(level=default, level_origin="the registry's")
        own = levels[subject]
        before = older.get(newest.subject or "")
        versions = [*(before or ()), newest]
        known = len(versions) if before is not None else newest.version or 1
        return History(tuple(self._earlier(item) for item in versions), known, own.level, own.origin, own.notes)

    def _earlier(self, item: RegisteredSchema) -> Earlier:
        version = item.version or 1
        return Earlier(version, f"{item.subject} version {version}", item.text, partial(self._parse, item))

    def _parse(self, item: RegisteredSchema) -> Schema:
        if not item.references:
            return parse_schema(item.text, source=f"{item.subject} version {item.version}", strict=False)
        parsed = self._parsed[_key(item)]
        if isinstance(parsed, SchemaParseError):
            raise parsed
        return parsed

    def _parsed_or_error(self, item: RegisteredSchema) -> Schema | SchemaParseError:
        """What refers to other schemas is parsed while the registry is at hand."""
        try:
            return self._client.parsed(item)
        except SchemaParseError as error:
            return error
        except (SchemaNotFound, SubjectNotFound, VersionNotFound) as error:
            return SchemaParseError(f"refers to what the registry does not have: {error}", NOWHERE, item.subject or "")

    def _require_new(self, wanted: Sequence[Wanted], subjects: Sequence[str]) -> None:
        """
        Raises:
            BaselineFailed: the registry has other subjects, which these may have been meant to be.
        """
        there = [name for context in _by_context(subjects) for name in self._client.subjects(context)]
        other = next(_under_other_names(wanted, frozenset(there)), "")
        if not there or (self._stranger is Stranger.DOUBTED and not other):
            return
        few = f"{', '.join(subjects[:2])}{', …' if len(subjects) > 2 else ''}"
        hint = other or f"such as {there[0]}; are they named by the right strategy (--subject-strategy)?"
        message = (
            f"has none of the subjects {few}, and {len(there)} others, {hint} If all are meant to be new: --all-new"
        )
        raise BaselineFailed.because(FailureKind.UNREADABLE, self.name, message)

    def _latest(self, subjects: Sequence[str], pool: ThreadPoolExecutor) -> dict[str, RegisteredSchema]:
        """The newest version of each subject that has any."""
        if len(subjects) <= FEW:
            return self._latest_one_by_one(subjects, pool)
        found: dict[str, RegisteredSchema] = {}
        for members in _by_context(subjects).values():
            prefix = _shared_beginning(members)
            listed = set(self._client.subjects(prefix))
            here = [name for name in members if name in listed]
            if len(listed) <= LISTED_PER_WANTED_MAX * max(1, len(here)):
                found.update(self._latest_listed(prefix, set(here)))
        # What is not listed is asked for by name: it may be an alias, or what this user may not see, which is no pass.
        found.update(self._latest_one_by_one([name for name in subjects if name not in found], pool))
        return found

    def _latest_one_by_one(self, subjects: Sequence[str], pool: ThreadPoolExecutor) -> dict[str, RegisteredSchema]:
        return {
            subject: item
            for subject, item in zip(subjects, pool.map(self._latest_of, subjects), strict=True)
            if item is not None
        }

    def _latest_of(self, subject: str) -> RegisteredSchema | None:
        try:
            return self._client.version(subject, "latest")
        except (SubjectNotFound, VersionNotFound):
            return None

    def _latest_listed(self, prefix: str, subjects: Collection[str]) -> dict[str, RegisteredSchema]:
        rows = self._listed(prefix, latest_only=True) or ()
        return {str(item.subject): item for item in rows if item.subject in subjects}

    def _listed(self, prefix: str, *, latest_only: bool) -> list[RegisteredSchema] | None:
        """All versions of the subjects that begin so; None from a registry that has no such listing."""
        try:
            return list(self._listing(prefix, latest_only=latest_only))
        except SchemaNotFound:
            return None
        except ServiceError as error:
            if error.status in NO_LISTING_STATUSES:
                return None
            raise

    def _listing(self, prefix: str, *, latest_only: bool) -> Iterator[RegisteredSchema]:
        """`GET /schemas`, page by page; a server that does not know pages gives all of it as the first one."""
        offset = 0
        seen: set[tuple[str, int]] = set()
        while True:
            query = {"subjectPrefix": prefix, "latestOnly": str(latest_only).lower()}
            rows = self._client.call("GET", "/schemas", query={**query, "offset": str(offset), "limit": str(PAGE)})
            fresh = [row for row in rows if (row["subject"], row["version"]) not in seen]
            seen.update((row["subject"], row["version"]) for row in fresh)
            for row in fresh:
                if row.get("schemaType", "AVRO") == "AVRO":
                    yield _registered(row)
            if len(rows) < PAGE or not fresh:
                return
            offset += len(rows)

    def _older(self, newest: Sequence[RegisteredSchema], pool: ThreadPoolExecutor) -> dict[str, list[RegisteredSchema]]:
        """The versions of subjects before the newest, ascending."""
        last = {str(item.subject): item.version for item in newest}
        if len(newest) > FEW:
            rows: list[RegisteredSchema] | None = []
            for members in _by_context(last).values():
                listed = self._listed(_shared_beginning(members), latest_only=False)
                rows = None if rows is None or listed is None else [*rows, *listed]
            if rows is not None:
                found: dict[str, list[RegisteredSchema]] = {subject: [] for subject in last}
                for item in sorted(rows, key=lambda item: item.version or 0):
                    if item.subject in last and (item.version or 0) < (last[item.subject] or 0):
                        found[item.subject].append(item)
                return found
        return dict(zip(last, pool.map(self._older_one_by_one, last.items()), strict=True))

    def _older_one_by_one(self, subject_and_last: tuple[str, int | None]) -> list[RegisteredSchema]:
        subject, last = subject_and_last
        return [self._client.version(subject, number) for number in self._client.versions(subject) if number != last]

    def _own(self, default: CompatibilityLevel, subject: str) -> OwnLevel:
        """The level that holds for a subject."""
        try:
            config = self._client.config(subject)
        except SubjectLevelNotConfigured:
            return OwnLevel(default, "the registry's")
        level = self._level(config)
        notes = []
        if config.get("compatibilityGroup"):
            notes.append(
                f"{subject} compares only versions of one {config['compatibilityGroup']!r}, which a file does not "
                "tell; it is compared with all here"
            )
        return OwnLevel(level, "the registry's" if level is default else "the subject's own", tuple(notes))

    def _level(self, config: Mapping[str, Any]) -> CompatibilityLevel:
        try:
            return parse_level(str(config["compatibilityLevel"]))
        except InvalidLevel as error:
            raise ServiceError(f"the registry's level: {error}", status=200) from None


@dataclass(frozen=True, slots=True)
class OwnLevel:
    level: CompatibilityLevel
    origin: str
    notes: tuple[str, ...] = ()


def _under_other_names(wanted: Sequence[Wanted], there: Collection[str]) -> Iterator[str]:
    """How a schema would be called, in words, where the registry has what another strategy makes of it."""
    for strategy in STRATEGIES:
        for item in wanted:
            with suppress(NoSubject):
                subject = subject_of(SchemaPlace(item.file.path, item.record), strategy)
                if subject in there:
                    yield f"among them {subject}, which {item.file.path} is with --subject-strategy {strategy}."


def _shared_by(wanted: Wanted, files: Sequence[str]) -> tuple[str, ...]:
    others = [file for file in files if file != wanted.file.path]
    return (f"{wanted.subject} is also the subject of {', '.join(others[:3])}",) if others else ()


def _key(item: RegisteredSchema) -> tuple[str, int]:
    return item.subject or "", item.version or 0


def _registered(row: Mapping[str, Any]) -> RegisteredSchema:
    references = tuple(
        SchemaReference(item["name"], item["subject"], item["version"]) for item in row.get("references") or ()
    )
    return RegisteredSchema(int(row["id"]), str(row["schema"]), str(row["subject"]), int(row["version"]), references)


def _by_context(subjects: Iterable[str]) -> dict[str, list[str]]:
    """Subjects by the prefix that names their context, "" for the default one."""
    found: dict[str, list[str]] = {}
    for subject in subjects:
        context, colon, _ = subject[1:].partition(":") if subject.startswith(":.") else ("", "", "")
        found.setdefault(f":{context}:" if colon else "", []).append(subject)
    return found


def _shared_beginning(names: Sequence[str]) -> str:
    """What all names begin with; the context of all, at least."""
    first, last = min(names), max(names)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]
