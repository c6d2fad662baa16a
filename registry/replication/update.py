"""Applies the changes of the source registry to the replica's database, in one transaction.

Readers see each update completely or not at all, so the replica can be promoted at any time. Clients cannot write to a
replica.
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
"""The context and id of a schema."""


class ReplicaDiverged(Exception):
    """The replica's database contradicts the source registry, or the source registry changed a schema during the round.
    A full update has to replace everything."""


@dataclass(frozen=True, slots=True)
class ReplicationUpdate:
    """The changes to apply to a replica's database.

    Attributes:
        subjects: the changed subjects by name; None for a deleted one.
        schemas: the schemas of these subjects that this database does not have.
        settings: all settings of the source.
        is_full: whether `subjects` and `schemas` are those of the whole source, and replace everything in the database.
    """

    subjects: Mapping[str, ReplicatedSubject | None]
    schemas: Mapping[SchemaKey, ReplicatedSchema]
    settings: ReplicatedSettings
    is_full: bool = False


def apply_update(repository: Repository, update: ReplicationUpdate) -> None:
    """Writes an update to the replica's database, in the repository's transaction.

    Raises:
        ReplicaDiverged: a full update is needed. The transaction must be rolled back.
    """
    tables = ReplicationTables(repository)
    if update.is_full:
        repository.bump_revision()
        for name, local in tables.replicated_subjects(list(tables.subject_states())).items():
            _remove_versions(repository, name, [version.version for version in local.versions])
    existing = tables.replicated_subjects(list(update.subjects))
    desired = replica_settings(update.settings)
    settings = settings_of(repository)
    has_settings = (settings.configs, settings.modes) != (desired.configs, desired.modes)
    if has_settings or not all(
        _only_adds_versions(name, existing.get(name), subject, update) for name, subject in update.subjects.items()
    ):
        repository.bump_revision(of_settings=has_settings)
    replaced = [
        version
        for name, subject in update.subjects.items()
        if subject is not None
        for version in _put_versions(repository, name, existing.get(name), subject, update)
    ]
    for name, subject in update.subjects.items():
        source_numbers = set() if subject is None else {version.version for version in subject.versions}
        removed = [number for number in _by_number(existing.get(name)) if number not in source_numbers]
        if removed:
            _remove_versions(repository, name, removed)
    for name, number in replaced:
        refresh_lookup_keys(repository, name, number)
    if has_settings:
        _put_settings(repository, settings_of(repository), desired)
    if settings.contexts != desired.contexts:
        _put_contexts(repository, settings, desired)


def replica_settings(settings: ReplicatedSettings) -> ReplicatedSettings:
    """The settings of the source with the global mode of a replica, which makes it read-only."""
    return replace(settings, modes={**settings.modes, ALL_CONTEXTS_SCOPE: Mode.READONLY_OVERRIDE})


def _by_number(subject: ReplicatedSubject | None) -> dict[int, ReplicatedVersion]:
    return {} if subject is None else {version.version: version for version in subject.versions}


def _only_adds_versions(
    name: str, existing: ReplicatedSubject | None, desired: ReplicatedSubject | None, update: ReplicationUpdate
) -> bool:
    """Whether the update only adds newer versions to a subject, no version is soft-deleted, and the schemas of the
    added versions are new and have no references.

    If so, only responses that depend on the subject change, and its revision grows by one for each version.

    Args:
        name: the subject.
        existing: the subject in this database; None if it does not exist.
        desired: the subject in the source; None if it was deleted.
        update: contains the new schemas.
    """
    if desired is None:
        return False
    existing_versions = () if existing is None else existing.versions
    added = desired.versions[len(existing_versions) :]
    return (
        desired.versions[: len(existing_versions)] == existing_versions
        and not any(
            version.deleted
            or (response := update.schemas.get((context_of(name), version.schema_id))) is None
            or response.schema.content.references
            for version in added
        )
        and not any(version.deleted for version in existing_versions)
    )


def _put_versions(
    repository: Repository,
    name: str,
    existing: ReplicatedSubject | None,
    desired: ReplicatedSubject,
    update: ReplicationUpdate,
) -> Iterator[tuple[str, int]]:
    """Writes the versions of `desired` that are missing in `existing` or differ there.

    Yields (subject, version) for each version that had another schema in this database before.

    Args:
        repository: has the transaction to write in.
        name: the subject.
        existing: the subject in this database; None if it does not exist.
        desired: the subject in the source.
        update: contains the schemas that this database does not have.
    """
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
    """Returns the primary key of the row with a version's schema. Adds the schema from the update if the database does
    not have it.

    Args:
        repository: the database of the replica.
        context: the context of the version's subject.
        version: the version in the source registry.
        update: contains the new schemas.

    Raises:
        ReplicaDiverged: the database has another schema with this id, or the update does not contain the schema.
    """
    found = repository.schema(context, version.schema_id)
    if found is not None:
        if found.content.fingerprint != version.fingerprint:
            raise ReplicaDiverged(
                f"schema id {version.schema_id} of context {context} has another schema in the source registry than "
                "in this replica; replication continues with a full copy"
            )
        return found.row_key
    response = update.schemas.get((context, version.schema_id))
    if response is None or response.schema.content.fingerprint != version.fingerprint:
        raise ReplicaDiverged(
            f"the source registry deleted or replaced schema id {version.schema_id} of context {context} during this "
            "replication round"
        )
    schema = response.schema
    is_copy = repository.schema_with_content(context, schema.content) is not None
    row_key = repository.add_schema(
        context, schema.schema_id, schema.content, response.lookup_key, schema.created_ms, is_copy=is_copy
    )
    assert row_key is not None, "nothing else writes to a replica"
    return row_key


def _remove_versions(repository: Repository, name: str, numbers: list[int]) -> None:
    subject_id = repository.claim_subject(name, repository.subject_state(name))
    repository.remove_versions(subject_id, numbers)


def _put_settings(repository: Repository, existing: ReplicatedSettings, desired: ReplicatedSettings) -> None:
    for scope in existing.configs.keys() - desired.configs.keys():
        repository.remove_config(scope)
    for scope, entry in desired.configs.items():
        if existing.configs.get(scope) != entry:
            repository.put_config(scope, entry)
    repository.remove_modes(list(existing.modes.keys() - desired.modes.keys()))
    for scope, mode in desired.modes.items():
        if existing.modes.get(scope) != mode:
            repository.put_mode(scope, mode)


def _put_contexts(repository: Repository, existing: ReplicatedSettings, desired: ReplicatedSettings) -> None:
    listed = {context.name for context in desired.contexts if context.listed}
    for context in desired.contexts:
        # Also reserves the ids of permanently deleted schemas, which the source does not reuse either.
        repository.advance_next_id(context.name, context.next_id - 1)
    for name in listed:
        repository.list_context(name)
    for name in {context.name for context in existing.contexts} - listed:
        repository.unlist_context(name)
