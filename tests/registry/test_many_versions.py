"""A subject with more versions than one statement may have parameters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.compat.levels import CompatibilityLevel
from headrace.registry.api.services import Services
from headrace.registry.domain import SchemaContent
from headrace.registry.names import ALL_SUBJECTS
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository

VERSIONS = 1_100  # a statement has at most 500


@pytest.fixture
def services(database_url: str) -> Iterator[Services]:
    database = Database(database_url, lease_s=0)
    database.write(add_versions)
    yield Services.of(database, CompatibilityLevel.NONE, lambda: 1, "")
    database.close()


def add_versions(repository: Repository) -> None:
    subject_id = repository.claim_subject("s", None)
    for version in range(1, VERSIONS + 1):
        content = SchemaContent(f'{{"type":"fixed","name":"F","size":{version}}}')
        row_key = repository.add_schema(".", repository.take_next_id("."), content, content.fingerprint, 1)
        assert row_key is not None
        repository.add_version(subject_id, version, row_key, 1)


def test_subject_with_many_versions_is_listed_and_deleted(services: Services) -> None:
    numbers = list(range(1, VERSIONS + 1))
    assert services.lookup.versions("s", deleted=False, deleted_only=False) == numbers
    listed = services.lookup.versions_of_subjects(
        ALL_SUBJECTS, deleted=False, latest_only=False, page=lambda all_: all_
    )
    assert [item.stored.version for item in listed] == numbers
    assert services.deletion.delete_subject("s", permanent=False).numbers == numbers
    assert services.lookup.versions("s", deleted=False, deleted_only=True) == numbers
    assert services.deletion.delete_subject("s", permanent=True).numbers == numbers
    left = services.database.read(
        lambda repository: (repository.listed_versions(ALL_SUBJECTS, deleted=True), repository.schema_id_max("."))
    )
    assert left == ([], 0)
