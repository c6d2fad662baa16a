"""Schema files into a registry: what is to be registered, in which order, and doing it.

A file that uses the types of another one is registered with a reference to that one's subject, after it. What is there
already is found and left alone, so a run that stopped half-way is finished by the same command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.avro_schema import SchemaParseError
from headrace.compat.checking.baselines.configured import alias_target, plain_subject
from headrace.compat.checking.inputs import SchemaFile
from headrace.compat.checking.run import Sources
from headrace.compat.checking.type_sets import AmbiguousType, root_name
from headrace.compat.errors import NoSubject
from headrace.compat.outcome import Failure, FailureKind
from headrace.compat.subjects import Naming, SchemaPlace
from headrace.registry.client import RegisteredSchema, RegistryClient, SchemaReference
from headrace.registry.errors import SchemaNotFound, SubjectLevelNotConfigured, SubjectNotFound


class Action(StrEnum):
    NEW_SUBJECT = "new subject"
    NEW_VERSION = "new version"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Registration:
    """One schema to register; `needs` are the files whose subjects it refers to, by the name of their type."""

    file: str
    subject: str
    text: str
    needs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """What was, or would be, done with one schema. `version` and `schema_id` are None where a dry run cannot tell."""

    registration: Registration
    action: Action
    version: int | None = None
    schema_id: int | None = None


def plan_registrations(sources: Sources, naming: Naming) -> tuple[tuple[Registration, ...], tuple[Failure, ...]]:
    """What is to be registered, what others refer to first, and what cannot be.

    Files that were not named but define types that named ones use are part of it.
    """
    plan: dict[str, Registration] = {}
    failures: dict[str, Failure] = {failure.file: failure for failure in sources.failures}
    for file in sources.files:
        _add(file.path, sources, naming, plan, failures)
    first: dict[str, Registration] = {}
    for item in plan.values():
        same = first.setdefault(item.subject, item)
        if same is not item:
            message = f"its subject {item.subject} is also that of {same.file}; give one of them another (--subject)"
            failures[item.file] = Failure(FailureKind.UNREADABLE, item.file, message)
    return tuple(plan.values()), tuple(failures.values())


def _add(
    path: str, sources: Sources, naming: Naming, plan: dict[str, Registration], failures: dict[str, Failure]
) -> None:
    if path in plan or path in failures:
        return
    types = sources.types
    try:
        types.schema(path)  # also refuses circles of files, so that this recursion ends
        needs = () if types.stands_alone(path) else types.needs(path)
        subject = naming.subject_of(SchemaPlace(path, root_name(types.texts[path])))
    except SchemaParseError as error:
        failures[path] = Failure.invalid(path, error)
        return
    except (AmbiguousType, NoSubject) as error:
        failures[path] = Failure(FailureKind.UNREADABLE, path, str(error))
        return
    for other in needs:
        _add(other, sources, naming, plan, failures)
    named = tuple((root_name(types.texts[other]), other) for other in needs)
    plan[path] = Registration(path, subject, types.texts[path], named)


def register_all(
    plan: Sequence[Registration], client: RegistryClient, *, dry_run: bool = False
) -> Iterator[Registered]:
    """Registers each in order, and tells of each as soon as it is done.

    Raises:
        RegistryError: the registry refuses one, or cannot be reached; what came before stays registered.
    """
    done: dict[str, Registered] = {}
    for item in plan:
        done[item.file] = _register(item, done, client, dry_run=dry_run)
        yield done[item.file]


def _register(
    item: Registration, done: Mapping[str, Registered], client: RegistryClient, *, dry_run: bool
) -> Registered:
    references = []
    for name, file in item.needs:
        other = done[file]
        if other.version is None:  # of a dry run: what it refers to is not there yet, so neither is this
            return Registered(item, _action_of_new(item, client))
        references.append(SchemaReference(name, other.registration.subject, other.version))
    found = registered_as(client, item.subject, item.text, references)
    if found is not None:
        return Registered(item, Action.UNCHANGED, found.version, found.schema_id)
    action = _action_of_new(item, client)
    if dry_run:
        return Registered(item, action)
    made = client.register(item.subject, item.text, references)
    return Registered(item, action, made.version, made.schema_id)


def registered_as(
    client: RegistryClient, subject: str, text: str, references: Sequence[SchemaReference] = ()
) -> RegisteredSchema | None:
    """The version of a subject that holds a text, if there is one where a registration would look."""
    try:
        found = client.lookup(subject, text, references)
    except (SubjectNotFound, SchemaNotFound):
        return None
    # A look-up also finds what stands in another context, and an alias may mean that one.
    named = plain_subject(found.subject or subject)
    return found if named in (plain_subject(subject), _target(client, subject)) else None


def _target(client: RegistryClient, subject: str) -> str:
    try:
        return alias_target(subject, client.config(subject))
    except SubjectLevelNotConfigured:
        return plain_subject(subject)


def _action_of_new(item: Registration, client: RegistryClient) -> Action:
    try:
        client.versions(item.subject)
    except SubjectNotFound:
        return Action.NEW_SUBJECT
    return Action.NEW_VERSION


def with_files(sources: Sources, plan: Sequence[Registration]) -> Sources:
    """The same with every file of the plan, those too that were not named."""
    known = {file.path: file for file in sources.files}
    files = tuple(known.get(item.file) or SchemaFile(item.file, item.file.rpartition("/")[2]) for item in plan)
    return replace(sources, files=files, texts={item.file: item.text for item in plan})
