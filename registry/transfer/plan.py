"""Plans an import from the file and the target's content, before anything is written.

An interrupted import is finished by planning again: content that the target already has needs no action.

The order of the actions, and its reasons:

1. Remove the aliases of subjects that are written to. With an alias the API would write to another subject.
2. Set IMPORT mode: on a whole context if it is empty in the target and the file has its settings, so that no other
   client takes its ids; otherwise on each subject in which a version is registered, so that other subjects stay
   writable. `force` is set except for an empty context, because without it the target would permanently delete
   soft-deleted versions.
3. Register versions after the versions that they refer to. Then soft-delete versions, referring versions first, because
   a referenced version cannot be deleted. If a live version refers to a deleted one, the deleted version is deleted
   before any version that refers to it is registered.
4. Set configurations, which could interfere with the steps above.
5. Set modes, because READONLY forbids all steps above.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from headrace.avro_schema import AvroSchemaError, Schema, canonical_text, parse_schema
from headrace.registry.domain import Mode, SubjectVersion
from headrace.registry.names import ALL_CONTEXTS_SCOPE, context_of
from headrace.registry.transfer.snapshot import (
    DEFAULT_SCOPE,
    CircularReferences,
    ExportedVersion,
    Snapshot,
    is_scope_of_context,
    json_text,
    scope_of_context,
    topological_order,
)

PUT_KEY_NAMES: Final[Mapping[str, str]] = {"compatibilityLevel": "compatibility"}
"""Configuration keys that have another name in a PUT request than in a response to GET: the name in the request, by the
name in the response."""


@dataclass(frozen=True, slots=True)
class TargetContent:
    """The target's content in the contexts and scopes of a snapshot.

    `modes` also has the modes of contexts whose own mode the snapshot does not contain, because they apply to the
    subjects in them.
    """

    versions: Mapping[SubjectVersion, ExportedVersion] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    schema_types: frozenset[str] = frozenset({"AVRO"})


@dataclass(frozen=True, slots=True)
class SetMode:
    """Sets the mode of a scope during an import; `mode` None removes the scope's own mode. `force` permits IMPORT mode
    for a scope with versions."""

    scope: str
    mode: str | None
    force: bool = False

    def __str__(self) -> str:
        return f"{describe_scope(self.scope)}: " + (f"mode {self.mode}" if self.mode else "remove the mode")


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Changes the configuration of a scope (a subject, a context or all contexts).

    `changes` is the JSON text of a PUT request; "" deletes the configuration, so that the scope inherits.
    """

    scope: str
    changes: str

    def __str__(self) -> str:
        return f"{describe_scope(self.scope)}: " + (
            f"configuration {self.changes}" if self.changes else "remove the configuration"
        )


@dataclass(frozen=True, slots=True)
class VersionAction:
    """An action on one version. It changes the subject `written` and depends on the subjects `read`."""

    version: ExportedVersion

    @property
    def written(self) -> str:
        return self.version.subject

    @property
    def read(self) -> frozenset[str]:
        return frozenset(key.subject for key in self.version.targets)


class RegisterVersion(VersionAction):
    __slots__ = ()

    def __str__(self) -> str:
        return f"{describe_version(self.version.key)}: register with id {self.version.schema_id}"


class SoftDeleteVersion(VersionAction):
    __slots__ = ()

    def __str__(self) -> str:
        return f"{describe_version(self.version.key)}: soft-delete"


ImportAction = SetMode | SetConfig | RegisterVersion | SoftDeleteVersion


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """A problem that prevents the import. `key` is the version, if the problem concerns only one. `can_be_skipped` is
    True if an import without this version is possible."""

    sentence: str
    key: SubjectVersion | None = None
    can_be_skipped: bool = False


@dataclass(frozen=True, slots=True)
class ImportPlan:
    actions: tuple[ImportAction, ...] = ()
    problems: tuple[ImportProblem, ...] = ()


def plan_import(snapshot: Snapshot, target: TargetContent) -> ImportPlan:
    """The actions that copy the snapshot to the target, or the problems that prevent it.

    Other content of the target is unchanged.
    """
    problems = list(_problems(snapshot, target))
    if problems:
        return ImportPlan(problems=tuple(problems))
    try:
        content = _content_actions(snapshot, target)
    except CircularReferences as error:
        key = error.nodes[0].version.key
        sentence = f"{describe_version(key)} refers to itself through other versions; remove the circular reference"
        return ImportPlan(problems=(ImportProblem(sentence, key),))
    scopes = _Scopes(snapshot, target)
    preparation = list(scopes.prepare_for(content))
    return ImportPlan((*preparation, *content, *scopes.configs(), *scopes.modes()))


def describe_scope(scope: str) -> str:
    """The name of a scope for messages, such as `context .eu` or `subject orders`."""
    if scope == ALL_CONTEXTS_SCOPE:
        return "all contexts"
    context = context_of(scope)
    return f"context {context}" if is_scope_of_context(scope) else f"subject {scope}"


def describe_version(key: SubjectVersion) -> str:
    return f"subject {key.subject} version {key.version}"


def _problems(snapshot: Snapshot, target: TargetContent) -> Iterator[ImportProblem]:
    yield from _unknown_types(snapshot, target)
    yield from _dangling_references(snapshot, target)
    yield from _conflicting_ids(snapshot, target)
    yield from _readonly_subjects(snapshot, target)


def _unknown_types(snapshot: Snapshot, target: TargetContent) -> Iterator[ImportProblem]:
    for version in snapshot.versions:
        if version.schema_type not in target.schema_types:
            yield ImportProblem(
                f"{describe_version(version.key)} has schema type {version.schema_type}; the target supports "
                f"{', '.join(sorted(target.schema_types))}",
                version.key,
                can_be_skipped=True,
            )


def _dangling_references(snapshot: Snapshot, target: TargetContent) -> Iterator[ImportProblem]:
    existing = {version.key for version in snapshot.versions} | set(target.versions)
    for version in snapshot.versions:
        for key in version.targets:
            if key not in existing and version.key not in target.versions:
                yield ImportProblem(
                    f"{describe_version(version.key)} refers to {describe_version(key)}, which is neither in the file "
                    "nor in the target; export that version too, or register it in the target first",
                    version.key,
                    can_be_skipped=True,
                )


def _conflicting_ids(snapshot: Snapshot, target: TargetContent) -> Iterator[ImportProblem]:
    """Yields a problem for each version that has one id in the export file (`snapshot`) and another in the target, and
    for each id that has two different schemas.

    One schema with several ids is no conflict: merged registries have these, and every id is in use by messages.
    """
    contents = ContentIndex(target.versions, {version.key: version for version in snapshot.versions})
    owners = {
        (version.context, version.schema_id): contents.content_in_target(version)
        for version in target.versions.values()
    }
    known_owners = dict(owners)
    for version in snapshot.versions:
        yield from _conflicting_version_id(version, target)
        in_file = contents.content_in_file(version)
        owner = known_owners.setdefault((version.context, version.schema_id), in_file)
        if not owner.equals(in_file):
            where = "target" if (version.context, version.schema_id) in owners else "file"
            yield ImportProblem(
                f"id {version.schema_id} in context {version.context} is {describe_version(version.key)} in the file "
                f"and {describe_version(owner.version.key)} in the {where}, and their schemas differ",
                version.key,
            )


def _conflicting_version_id(version: ExportedVersion, target: TargetContent) -> Iterator[ImportProblem]:
    existing = target.versions.get(version.key)
    if existing is not None and existing.schema_id != version.schema_id:
        yield ImportProblem(
            f"{describe_version(version.key)} has id {version.schema_id} in the file and {existing.schema_id} in the "
            "target",
            version.key,
        )


def _readonly_subjects(snapshot: Snapshot, target: TargetContent) -> Iterator[ImportProblem]:
    """Yields a problem for each read-only scope of the target in which the import of the snapshot would register or
    delete a version."""
    reported = set()
    for version in snapshot.versions:
        scope, mode = mode_in_force(version.subject, target.modes)
        if mode.is_readonly and scope not in reported and _needs_change(version, target):
            reported.add(scope)
            yield ImportProblem(
                f"{describe_scope(scope)} is {mode} in the target, and {describe_version(version.key)} is to be "
                f"{'deleted' if version.key in target.versions else 'registered'}; set its mode to READWRITE first"
            )


def mode_in_force(subject: str, modes: Mapping[str, str]) -> tuple[str, Mode]:
    """The scope that determines a subject's mode (the subject itself, its context or all contexts), and this mode.
    `modes` has the mode of each scope that has one."""
    for scope in (subject, scope_of_context(context_of(subject)), ALL_CONTEXTS_SCOPE):
        if scope in modes:
            return scope, Mode(modes[scope])
    return ALL_CONTEXTS_SCOPE, Mode.READWRITE


def _needs_change(version: ExportedVersion, target: TargetContent) -> bool:
    existing = target.versions.get(version.key)
    return existing is None or existing.deleted != version.deleted


def _content_actions(snapshot: Snapshot, target: TargetContent) -> list[RegisterVersion | SoftDeleteVersion]:
    """Returns the registrations and soft deletions that the import of a snapshot makes, in an order that the target
    accepts.

    A version is registered after the versions that it refers to, and deleted before them. But a deleted version to
    which a live version refers is deleted before any version that refers to it is registered.

    Raises:
        CircularReferences: references are circular; its `nodes` are the actions of the versions.
    """
    registered, deleted = _needed_actions(snapshot, target)
    same_id = defaultdict(list)
    for version in snapshot.versions:
        same_id[version.subject, version.schema_id].append(version.key)
    # Deleted versions that a live version refers to. They are deleted before any version refers to them.
    referenced = {
        key for version in snapshot.versions if not version.deleted for key in version.targets if key in deleted
    }
    prerequisites: dict[RegisterVersion | SoftDeleteVersion, list[RegisterVersion | SoftDeleteVersion]] = defaultdict(
        list
    )
    for key, removal in deleted.items():
        # The registration of a later version with the same id removes soft-deleted versions, so it must come first.
        later_keys = same_id[key.subject, removal.version.schema_id]
        prerequisites[removal] += [registered[item] for item in later_keys if item in registered]
        for item in removal.version.targets:
            if item in deleted and item not in referenced:
                prerequisites[deleted[item]].append(removal)
    for action in registered.values():
        for item in action.version.targets:
            first = deleted[item] if item in referenced else registered.get(item)
            if first is not None:
                prerequisites[action].append(first)
    position = {version.key: number for number, version in enumerate(snapshot.versions)}

    def rank(action: RegisterVersion | SoftDeleteVersion) -> tuple[int, int]:
        if isinstance(action, RegisterVersion):
            return 0, position[action.version.key]
        return 1, -position[action.version.key]

    return topological_order([*registered.values(), *deleted.values()], prerequisites, rank)


def _needed_actions(
    snapshot: Snapshot, target: TargetContent
) -> tuple[dict[SubjectVersion, RegisterVersion], dict[SubjectVersion, SoftDeleteVersion]]:
    """The versions of a snapshot to register in the target, and those to soft-delete there, as (registrations, soft
    deletions) by version. Registering a version that is soft-deleted only in the target restores it."""
    registered, deleted = {}, {}
    for version in snapshot.versions:
        existing = target.versions.get(version.key)
        if existing is None or (existing.deleted and not version.deleted):
            registered[version.key] = RegisterVersion(version)
        if version.deleted and not (existing is not None and existing.deleted):
            deleted[version.key] = SoftDeleteVersion(version)
    return registered, deleted


class _Scopes:
    """Plans the changes of configurations and modes that an import needs. Tracks the configurations and modes that the
    target has after the actions planned so far, and compares them with the export."""

    def __init__(self, snapshot: Snapshot, target: TargetContent) -> None:
        self._snapshot = snapshot
        self._occupied = {version.context for version in target.versions.values()}
        self._configs = dict(target.configs)
        self._modes = dict(target.modes)
        self._opened: dict[str, str | None] = {}  # the own mode before the import of each scope that is set to IMPORT

    def prepare_for(self, actions: list[RegisterVersion | SoftDeleteVersion]) -> Iterator[ImportAction]:
        """Yields the actions that must run before `actions`, to make the subjects writable for the import."""
        written = [action.version.subject for action in actions]
        for subject in dict.fromkeys(written):
            if json.loads(self._configs.get(subject, "{}")).get("alias"):
                yield SetConfig(subject, json_text({"alias": None}))
                self._configs[subject] = json_text(
                    {key: value for key, value in json.loads(self._configs[subject]).items() if key != "alias"}
                )
        registered = dict.fromkeys(action.version.subject for action in actions if isinstance(action, RegisterVersion))
        for context in dict.fromkeys(map(context_of, registered)):
            if context in self._snapshot.contexts and context not in self._occupied:
                yield from self._import_mode_actions(scope_of_context(context), force=False)
        for subject in registered:
            # The API has no mode of a subject with an empty name; its path means the context.
            yield from self._import_mode_actions(subject or DEFAULT_SCOPE, force=True)

    def _import_mode_actions(self, scope: str, *, force: bool) -> Iterator[SetMode]:
        if mode_in_force(scope, self._modes)[1] != Mode.IMPORT:
            self._opened[scope] = self._modes.get(scope)
            self._modes[scope] = Mode.IMPORT
            yield SetMode(scope, Mode.IMPORT, force)

    def configs(self) -> Iterator[SetConfig]:
        for scope in self._snapshot.scopes:
            desired, existing = self._snapshot.configs.get(scope), self._configs.get(scope)
            if scope == DEFAULT_SCOPE and desired is None:
                continue  # cannot be removed, and the file has none
            if desired is None and existing is not None:
                yield SetConfig(scope, "")
            elif desired is not None and desired != existing:
                yield SetConfig(scope, _changes(desired, existing or "{}"))

    def modes(self) -> Iterator[SetMode]:
        # Contexts after their subjects, so that other clients cannot write before the import is complete.
        for scope in sorted(self._snapshot.scopes, key=is_scope_of_context):
            desired, existing = self._snapshot.modes.get(scope), self._modes.get(scope)
            if scope == DEFAULT_SCOPE:
                desired = desired or Mode.READWRITE
            if desired != existing:
                yield SetMode(scope, desired, force=desired == Mode.IMPORT)
        for scope, mode in self._opened.items():
            if scope not in self._snapshot.scopes:  # the context of a subject with an empty name
                yield SetMode(scope, mode)


def _changes(desired: str, existing: str) -> str:
    """Returns the JSON text of the PUT request that turns the existing configuration into the desired one."""
    values = {**dict.fromkeys(json.loads(existing)), **json.loads(desired)}
    return json_text({PUT_KEY_NAMES.get(key, key): value for key, value in values.items()})


DEPTH_MAX = 100  # of references; registries reject much less


class ContentIndex:
    """Makes the schemas of an export file and of the target registry comparable, and resolves their references."""

    def __init__(
        self,
        in_target: Mapping[SubjectVersion, ExportedVersion],
        in_file: Mapping[SubjectVersion, ExportedVersion],
    ) -> None:
        # References that the file does not contain are resolved in the target.
        self._target = _Schemas(in_target)
        self._file = _Schemas({**in_target, **in_file})

    def content_in_target(self, version: ExportedVersion) -> VersionContent:
        return VersionContent(version, self._target)

    def content_in_file(self, version: ExportedVersion) -> VersionContent:
        return VersionContent(version, self._file)


@dataclass(frozen=True)
class VersionContent:
    """A version's schema in a form that is comparable across registries.

    The class has no `__slots__`, so that `identity`, which needs a parser, is computed only once.

    Rule sets are not compared, because some editions of the registry drop them.
    """

    version: ExportedVersion
    schemas: _Schemas

    def equals(self, other: VersionContent) -> bool:
        return self._written == other._written or self.identity == other.identity

    @property
    def _written(self) -> tuple[object, ...]:
        version = self.version
        return version.text, version.schema_type, version.references, version.metadata

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """The schema's content as a value to compare: two registries may store the same schema with different texts, so
        an Avro schema has its canonical text here."""
        schema = self.schemas.parse(self.version) if self.version.schema_type == "AVRO" else None
        return (self.version.text if schema is None else canonical_text(schema), *self._written[1:])


class _Schemas:
    """Parses the schemas of versions, and the schemas that they refer to, when they are first needed."""

    def __init__(self, versions: Mapping[SubjectVersion, ExportedVersion]) -> None:
        self._versions = versions
        self._parsed: dict[SubjectVersion, Schema | None] = {}

    def parse(self, version: ExportedVersion, depth: int = DEPTH_MAX) -> Schema | None:
        """Returns the parsed schema of a version. Returns None if it cannot be parsed; the caller then compares the
        text.

        References are followed at most `depth` levels deep.
        """
        if version.key not in self._parsed:
            self._parsed[version.key] = None  # also while it is being parsed, because references may be circular
            targets = [self._versions.get(key) for key in version.targets]
            referenced = [self.parse(item, depth - 1) if item and depth else None for item in targets]
            known = [schema for schema in referenced if schema is not None]
            if len(known) == len(referenced):
                with contextlib.suppress(AvroSchemaError):
                    self._parsed[version.key] = parse_schema(
                        version.text, references=known, strict=False, lenient_json=True
                    )
        return self._parsed[version.key]
