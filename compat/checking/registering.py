"""Registers schema files: plans the registrations and their order, and performs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.avro_schema import SchemaParseError, canonical_text, self_contained_text
from headrace.compat.check_result import Failure, FailureKind
from headrace.compat.checking.baselines.registry import CONNECTIONS
from headrace.compat.checking.baselines.subject_config import alias_target, plain_subject
from headrace.compat.checking.inputs import SchemaFile
from headrace.compat.checking.sources import Sources
from headrace.compat.checking.type_sets import AmbiguousType, root_type_name
from headrace.compat.errors import NoSubject
from headrace.compat.subjects import SubjectNaming, SubjectSource
from headrace.registry.client import RegisteredSchema, RegistryClient, SchemaReference
from headrace.registry.errors import SchemaNotFound, SubjectLevelNotConfigured, SubjectNotFound


class RegistrationAction(StrEnum):
    NEW_SUBJECT = "new subject"
    NEW_VERSION = "new version"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class PlannedRegistration:
    """One schema to register. `dependencies` are pairs: the full name of a referenced type, and the file that defines
    it."""

    file: str
    subject: str
    text: str
    dependencies: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredFile:
    """Result of registering one schema. `version` and `schema_id` are None if a dry run found that the schema is not
    registered yet."""

    registration: PlannedRegistration
    action: RegistrationAction
    version: int | None = None
    schema_id: int | None = None


LookedUp = tuple[RegistrationAction, RegisteredSchema | None]
"""The action of a registration, and the existing version that it would return; None if it would create one."""


def plan_registrations(
    sources: Sources, naming: SubjectNaming
) -> tuple[tuple[PlannedRegistration, ...], tuple[Failure, ...]]:
    """Returns the registrations in order, referenced schemas first, and the files that cannot be registered. The
    registrations can be performed only if there are no such files.

    Files that the command line does not name are included if they define types that named files use.

    Args:
        sources: the schema files that the command line names, with the types that they use.
        naming: derives the subject of each file.
    """
    plan: dict[str, PlannedRegistration] = {}
    failures: dict[str, Failure] = {failure.file: failure for failure in sources.failures}
    for file in sources.files:
        _add(file.path, sources, naming, plan, failures)
    first: dict[str, PlannedRegistration] = {}
    for item in plan.values():
        other = first.setdefault(item.subject, item)
        if other is not item and not _are_equal(item, other, plan, sources):
            message = f"its subject {item.subject} is also that of {other.file}; set another subject with --subject"
            failures[item.file] = Failure(FailureKind.UNREADABLE, item.file, message)
    return tuple(plan.values()), tuple(failures.values())


def _are_equal(
    item: PlannedRegistration,
    other: PlannedRegistration,
    plan: Mapping[str, PlannedRegistration],
    sources: Sources,
) -> bool:
    """Whether two files register the same version of a subject: the same schema, with references to the same subjects,
    as for a symbolic link and its target."""

    def references(planned: PlannedRegistration) -> list[tuple[str, str]]:
        return [(name, plan[file].subject if file in plan else "") for name, file in planned.dependencies]

    schemas = [sources.types.schema(planned.file) for planned in (item, other)]
    return (
        canonical_text(schemas[0]) == canonical_text(schemas[1])
        and self_contained_text(schemas[0]) == self_contained_text(schemas[1])
        and references(item) == references(other)
    )


def _add(
    path: str,
    sources: Sources,
    naming: SubjectNaming,
    plan: dict[str, PlannedRegistration],
    failures: dict[str, Failure],
) -> None:
    if path in plan or path in failures:
        return
    types = sources.types
    try:
        types.schema(path)  # also rejects cycles of files, so this recursion ends
        dependencies = () if types.is_self_contained(path) else types.dependencies(path)
        subject = naming.derive_subject(SubjectSource(path, root_type_name(types.texts[path])))
    except SchemaParseError as error:
        failures[path] = Failure.invalid(path, error)
        return
    except (AmbiguousType, NoSubject) as error:
        failures[path] = Failure(FailureKind.UNREADABLE, path, str(error))
        return
    for other in dependencies:
        _add(other, sources, naming, plan, failures)
    references = tuple((root_type_name(types.texts[other]), other) for other in dependencies)
    plan[path] = PlannedRegistration(path, subject, types.texts[path], references)


def register_all(
    plan: Sequence[PlannedRegistration], client: RegistryClient, *, dry_run: bool = False
) -> Iterator[RegisteredFile]:
    """Registers the schemas of `plan` in order and yields each result immediately.

    Args:
        plan: the registrations, referenced schemas first.
        client: client of the registry.
        dry_run: only look up whether each schema is registered.

    Raises:
        RegistryError: the registry refused a schema or is unreachable; earlier schemas stay registered.
    """
    done: dict[str, RegisteredFile] = {}
    files = Counter(item.subject for item in plan)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        # Most schemas of a repository are registered already. Those whose lookup depends on no other one are looked up
        # ahead.
        found = {
            item.file: pool.submit(_look_up, item, (), client)
            for item in plan
            if not item.dependencies and files[item.subject] == 1
        }
        try:
            for item in plan:
                done[item.file] = _register(item, done, found.pop(item.file, None), client, dry_run=dry_run)
                yield done[item.file]
        finally:
            pool.shutdown(cancel_futures=True)


def _register(
    item: PlannedRegistration,
    done: Mapping[str, RegisteredFile],
    looked_up: Future[LookedUp] | None,
    client: RegistryClient,
    *,
    dry_run: bool,
) -> RegisteredFile:
    references = []
    for name, file in item.dependencies:
        other = done[file]
        if other.version is None:  # dry run: the referenced schema does not exist yet, so neither does this one
            return RegisteredFile(item, _action_of_new(item, client))
        references.append(SchemaReference(name, other.registration.subject, other.version))
    action, found = looked_up.result() if looked_up else _look_up(item, references, client)
    if found is not None:
        return RegisteredFile(item, action, found.version, found.schema_id)
    if dry_run:
        return RegisteredFile(item, action)
    registered = client.register(item.subject, item.text, references)
    return RegisteredFile(item, action, registered.version, registered.schema_id)


def _look_up(item: PlannedRegistration, references: Sequence[SchemaReference], client: RegistryClient) -> LookedUp:
    """Returns the action of a registration, and the existing version that it would return.

    Args:
        references: the references of the schema; an equal version has the same text and references.
    """
    try:
        found = client.lookup(item.subject, item.text, references)
    except SubjectNotFound:
        return RegistrationAction.NEW_SUBJECT, None
    except SchemaNotFound:
        return RegistrationAction.NEW_VERSION, None
    # The lookup also searches other contexts; an alias may refer to such a context.
    named = plain_subject(found.subject or item.subject)
    if named in (plain_subject(item.subject), _target(client, item.subject)):
        return RegistrationAction.UNCHANGED, found
    return _action_of_new(item, client), None


def _target(client: RegistryClient, subject: str) -> str:
    try:
        return alias_target(subject, client.config(subject))
    except SubjectLevelNotConfigured:
        return plain_subject(subject)


def _action_of_new(item: PlannedRegistration, client: RegistryClient) -> RegistrationAction:
    try:
        client.versions(item.subject)
    except SubjectNotFound:
        return RegistrationAction.NEW_SUBJECT
    return RegistrationAction.NEW_VERSION


def with_planned_files(sources: Sources, plan: Sequence[PlannedRegistration]) -> Sources:
    """Returns `sources` with the files of the plan instead of the files that the command line names. The plan has those
    files too, and the files that define types which they use."""
    named_files = {file.path: file for file in sources.files}
    files = tuple(named_files.get(item.file) or SchemaFile(item.file, item.file.rpartition("/")[2]) for item in plan)
    return replace(sources, files=files, texts={item.file: item.text for item in plan})
