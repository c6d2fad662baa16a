"""Bringing a database to what was told of another one, in one transaction.

So whoever reads it sees nothing half done, and it can be promoted at any moment. Nobody else writes here meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headrace.registry.domain import Mode
from headrace.registry.following.feed import Settings, ToldSchema, settings_of
from headrace.registry.names import EVERYWHERE, context_of
from headrace.registry.service.registration import mend_lookup_keys
from headrace.registry.storage.following import FollowingTables, ListedSubject, ListedVersion
from headrace.registry.storage.repository import Repository

SchemaKey = tuple[str, int]
"""Context and id."""


class Unlike(Exception):
    """What is here does not fit what was told: all of it has to be taken over anew."""


@dataclass(frozen=True, slots=True)
class Update:
    """What the other registry holds of the subjects that changed there, and all of its settings.

    `subjects` has None for those that are gone. `schemas` are those that were not here. With `is_whole` the subjects
    are all that there are, and their schemas all told, so that what is here goes first.
    """

    subjects: Mapping[str, ListedSubject | None]
    schemas: Mapping[SchemaKey, ToldSchema]
    settings: Settings
    is_whole: bool = False


def mirror(repository: Repository, update: Update) -> None:
    """
    Raises:
        Unlike: it has to be done again with an update that `is_whole`. The transaction is to be rolled back.
    """
    tables = FollowingTables(repository)
    if update.is_whole:
        repository.bump_revision()
        for name, here in tables.listed_subjects(list(tables.subject_states())).items():
            _remove(repository, name, [version.version for version in here.versions])
    there = tables.listed_subjects(list(update.subjects))
    wanted = mirrored(update.settings)
    settings = settings_of(repository)
    has_settings = (settings.configs, settings.modes) != (wanted.configs, wanted.modes)
    if has_settings or not all(
        _only_adds(name, there.get(name), subject, update) for name, subject in update.subjects.items()
    ):
        repository.bump_revision(of_settings=has_settings)
    replaced = [
        place
        for name, subject in update.subjects.items()
        if subject is not None
        for place in _put(repository, name, there.get(name), subject, update)
    ]
    for name, subject in update.subjects.items():
        kept = set() if subject is None else {version.version for version in subject.versions}
        leaving = [number for number in _by_number(there.get(name)) if number not in kept]
        if leaving:
            _remove(repository, name, leaving)
    for name, number in replaced:
        mend_lookup_keys(repository, name, number)
    if has_settings:
        _set(repository, settings_of(repository), wanted)
    if settings.contexts != wanted.contexts:
        _set_contexts(repository, settings, wanted)


def mirrored(settings: Settings) -> Settings:
    """The settings as a follower has them: it takes no changes, whatever modes say."""
    return replace(settings, modes={**settings.modes, EVERYWHERE: Mode.READONLY_OVERRIDE})


def _by_number(subject: ListedSubject | None) -> dict[int, ListedVersion]:
    return {} if subject is None else {version.version: version for version in subject.versions}


def _only_adds(name: str, there: ListedSubject | None, wanted: ListedSubject | None, update: Update) -> bool:
    """Whether a subject only gets newer versions, of schemas that are new and refer to nothing.

    Then no answer changes but those that rest on the subject, whose revision grows by one for each of them.
    """
    if wanted is None:
        return False
    before = () if there is None else there.versions
    added = wanted.versions[len(before) :]
    return (
        wanted.versions[: len(before)] == before
        and not any(
            version.deleted
            or (told := update.schemas.get((context_of(name), version.schema_id))) is None
            or told.schema.content.references
            for version in added
        )
        and not any(version.deleted for version in before)
    )


def _put(
    repository: Repository, name: str, there: ListedSubject | None, wanted: ListedSubject, update: Update
) -> Iterator[tuple[str, int]]:
    """Brings the versions of a subject; gives those that had another schema before."""
    before, context = _by_number(there), context_of(name)
    changed = [version for version in wanted.versions if before.get(version.version) != version]
    if not changed:
        return
    subject_id = 0
    for version in changed:
        subject_id = repository.claim_subject(name, repository.subject_state(name))
        row_key = _row_key(repository, context, version, update)
        if repository.put_version(subject_id, version.version, row_key, version.created_ms):
            yield name, version.version
    repository.mark_deleted(subject_id, [version.version for version in changed if version.deleted])


def _row_key(repository: Repository, context: str, version: ListedVersion, update: Update) -> int:
    """The row of a version's schema, which is made when it is not here."""
    found = repository.schema(context, version.schema_id)
    if found is not None:
        if found.content.fingerprint != version.fingerprint:
            raise Unlike(f"id {version.schema_id} of context {context} is another schema's")
        return found.row_key
    told = update.schemas.get((context, version.schema_id))
    if told is None or told.schema.content.fingerprint != version.fingerprint:
        raise Unlike(f"the schema of id {version.schema_id} in context {context} has gone meanwhile")
    schema = told.schema
    is_copy = repository.schema_of(context, schema.content) is not None
    row_key = repository.add_schema(
        context, schema.schema_id, schema.content, told.lookup_key, schema.created_ms, is_copy=is_copy
    )
    assert row_key is not None, "nobody else writes here"
    return row_key


def _remove(repository: Repository, name: str, numbers: list[int]) -> None:
    subject_id = repository.claim_subject(name, repository.subject_state(name))
    repository.remove_versions(subject_id, numbers)


def _set(repository: Repository, there: Settings, wanted: Settings) -> None:
    for scope in there.configs.keys() - wanted.configs.keys():
        repository.remove_config(scope)
    for scope, entry in wanted.configs.items():
        if there.configs.get(scope) != entry:
            repository.put_config(scope, entry)
    repository.remove_modes(list(there.modes.keys() - wanted.modes.keys()))
    for scope, mode in wanted.modes.items():
        if there.modes.get(scope) != mode:
            repository.put_mode(scope, mode)


def _set_contexts(repository: Repository, there: Settings, wanted: Settings) -> None:
    listed = {context.name for context in wanted.contexts if context.listed}
    for context in wanted.contexts:
        # Also ids of schemas that were deleted for good there: they are never given again here either.
        repository.keep_schema_id(context.name, context.next_id - 1)
    for name in listed:
        repository.list_context(name)
    for name in {context.name for context in there.contexts} - listed:
        repository.unlist_context(name)
