"""Bringing a database to what was told of another one, in one transaction.

So whoever reads it sees nothing half done, and it can be promoted at any moment. Nobody else writes here meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headrace.registry.domain import Mode
from headrace.registry.names import ALL_CONTEXTS_SCOPE, context_of
from headrace.registry.replication.feed import ReplicatedSchema, ReplicatedSettings, settings_of
from headrace.registry.service.registration import refresh_lookup_keys
from headrace.registry.storage.replication import ReplicatedSubject, ReplicatedVersion, ReplicationTables
from headrace.registry.storage.repository import Repository

SchemaKey = tuple[str, int]
"""Context and id."""


class ReplicaDiverged(Exception):
    """What is here does not fit what was told: all of it has to be taken over anew."""


@dataclass(frozen=True, slots=True)
class ReplicationUpdate:
    """What the other registry holds of the subjects that changed there, and all of its settings.

    `subjects` has None for those that are gone. `schemas` are those that were not here. With `is_full` the subjects
    are all that there are, and their schemas all told, so that what is here goes first.
    """

    subjects: Mapping[str, ReplicatedSubject | None]
    schemas: Mapping[SchemaKey, ReplicatedSchema]
    settings: ReplicatedSettings
    is_full: bool = False


def apply_update(repository: Repository, update: ReplicationUpdate) -> None:
    """
    Raises:
        Unlike: it has to be done again with an update that `is_full`. The transaction is to be rolled back.
    """
    tables = ReplicationTables(repository)
    if update.is_full:
        repository.bump_revision()
        for name, local in tables.replicated_subjects(list(tables.subject_states())).items():
            _remove(repository, name, [version.version for version in local.versions])
    existing = tables.replicated_subjects(list(update.subjects))
    desired = replica_settings(update.settings)
    settings = settings_of(repository)
    has_settings = (settings.configs, settings.modes) != (desired.configs, desired.modes)
    if has_settings or not all(
        _only_adds(name, existing.get(name), subject, update) for name, subject in update.subjects.items()
    ):
        repository.bump_revision(of_settings=has_settings)
    replaced = [
        place
        for name, subject in update.subjects.items()
        if subject is not None
        for place in _put(repository, name, existing.get(name), subject, update)
    ]
    for name, subject in update.subjects.items():
        kept = set() if subject is None else {version.version for version in subject.versions}
        leaving = [number for number in _by_number(existing.get(name)) if number not in kept]
        if leaving:
            _remove(repository, name, leaving)
    for name, number in replaced:
        refresh_lookup_keys(repository, name, number)
    if has_settings:
        _set(repository, settings_of(repository), desired)
    if settings.contexts != desired.contexts:
        _set_contexts(repository, settings, desired)


def replica_settings(settings: ReplicatedSettings) -> ReplicatedSettings:
    """The settings as a follower has them: it takes no changes, whatever modes say."""
    return replace(settings, modes={**settings.modes, ALL_CONTEXTS_SCOPE: Mode.READONLY_OVERRIDE})


def _by_number(subject: ReplicatedSubject | None) -> dict[int, ReplicatedVersion]:
    return {} if subject is None else {version.version: version for version in subject.versions}


def _only_adds(
    name: str, existing: ReplicatedSubject | None, desired: ReplicatedSubject | None, update: ReplicationUpdate
) -> bool:
    """Whether a subject only gets newer versions, of schemas that are new and refer to nothing.

    Then no answer changes but those that rest on the subject, whose revision grows by one for each of them.
    """
    if desired is None:
        return False
    before = () if existing is None else existing.versions
    added = desired.versions[len(before) :]
    return (
        desired.versions[: len(before)] == before
        and not any(
            version.deleted
            or (response := update.schemas.get((context_of(name), version.schema_id))) is None
            or response.schema.content.references
            for version in added
        )
        and not any(version.deleted for version in before)
    )


def _put(
    repository: Repository,
    name: str,
    existing: ReplicatedSubject | None,
    desired: ReplicatedSubject,
    update: ReplicationUpdate,
) -> Iterator[tuple[str, int]]:
    """Brings the versions of a subject; gives those that had another schema before."""
    before, context = _by_number(existing), context_of(name)
    changed = [version for version in desired.versions if before.get(version.version) != version]
    if not changed:
        return
    subject_id = 0
    for version in changed:
        subject_id = repository.claim_subject(name, repository.subject_state(name))
        row_key = _row_key(repository, context, version, update)
        if repository.put_version(subject_id, version.version, row_key, version.created_ms):
            yield name, version.version
    repository.mark_deleted(subject_id, [version.version for version in changed if version.deleted])


def _row_key(repository: Repository, context: str, version: ReplicatedVersion, update: ReplicationUpdate) -> int:
    """The row of a version's schema, which is made when it is not here."""
    found = repository.schema(context, version.schema_id)
    if found is not None:
        if found.content.fingerprint != version.fingerprint:
            raise ReplicaDiverged(f"id {version.schema_id} of context {context} is another schema's")
        return found.row_key
    response = update.schemas.get((context, version.schema_id))
    if response is None or response.schema.content.fingerprint != version.fingerprint:
        raise ReplicaDiverged(f"the schema of id {version.schema_id} in context {context} has gone meanwhile")
    schema = response.schema
    is_copy = repository.schema_of(context, schema.content) is not None
    row_key = repository.add_schema(
        context, schema.schema_id, schema.content, response.lookup_key, schema.created_ms, is_copy=is_copy
    )
    assert row_key is not None, "nobody else writes here"
    return row_key


def _remove(repository: Repository, name: str, numbers: list[int]) -> None:
    subject_id = repository.claim_subject(name, repository.subject_state(name))
    repository.remove_versions(subject_id, numbers)


def _set(repository: Repository, existing: ReplicatedSettings, desired: ReplicatedSettings) -> None:
    for scope in existing.configs.keys() - desired.configs.keys():
        repository.remove_config(scope)
    for scope, entry in desired.configs.items():
        if existing.configs.get(scope) != entry:
            repository.put_config(scope, entry)
    repository.remove_modes(list(existing.modes.keys() - desired.modes.keys()))
    for scope, mode in desired.modes.items():
        if existing.modes.get(scope) != mode:
            repository.put_mode(scope, mode)


def _set_contexts(repository: Repository, existing: ReplicatedSettings, desired: ReplicatedSettings) -> None:
    listed = {context.name for context in desired.contexts if context.listed}
    for context in desired.contexts:
        # Also ids of schemas that were deleted for good there: they are never given again here either.
        repository.advance_next_id(context.name, context.next_id - 1)
    for name in listed:
        repository.list_context(name)
    for name in {context.name for context in existing.contexts} - listed:
        repository.unlist_context(name)
