"""Random sequences of registrations and deletions agree with a small model of one subject."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compat.levels import CompatibilityLevel
from headrace.registry import errors
from headrace.registry.api.services import Services
from headrace.registry.domain import LATEST, SchemaRequest
from headrace.registry.names import SubjectFilter
from headrace.registry.storage.database import Database
from support.examples import examples

Operation = tuple[str, int]

operations = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["delete", "delete for good"]), st.sampled_from([LATEST, 1, 2, 3, 4])),
        st.tuples(st.sampled_from(["delete subject", "delete subject for good"]), st.just(0)),
    ),
    max_size=25,
)


def schema(content: int) -> str:
    return f'{{"type":"fixed","name":"F","size":4,"of":{content}}}'


@dataclass
class Model:
    """(content, is soft-deleted) by version."""

    versions: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def register(self, content: int) -> int:
        for version, (found, is_deleted) in sorted(self.versions.items(), reverse=True):
            if found == content and not is_deleted:
                return version
        new = max(self.versions, default=0) + 1
        self.versions = {key: value for key, value in self.versions.items() if value != (content, True)}
        self.versions[new] = (content, False)
        return new

    def delete(self, version: int, *, permanent: bool) -> Any:
        if not self.versions:
            return errors.SubjectNotFound
        if version == LATEST:
            version = max((key for key, value in self.versions.items() if not value[1]), default=0)
        if version not in self.versions:
            return errors.VersionNotFound
        content, is_deleted = self.versions[version]
        if is_deleted != permanent:
            return errors.VersionSoftDeleted if is_deleted else errors.VersionNotSoftDeleted
        if permanent:
            del self.versions[version]
        else:
            self.versions[version] = (content, True)
        return version

    def delete_subject(self, *, permanent: bool) -> Any:
        live = [version for version, (_, is_deleted) in sorted(self.versions.items()) if not is_deleted]
        if not self.versions:
            return errors.SubjectNotFound
        if permanent and live:
            return errors.SubjectNotSoftDeleted
        if not permanent and not live:
            return errors.SubjectSoftDeleted
        chosen = sorted(self.versions) if permanent else live
        for version in chosen:
            if permanent:
                del self.versions[version]
            else:
                self.versions[version] = (self.versions[version][0], True)
        return chosen


@pytest.fixture(scope="module")
def services(registry_database_url: str) -> Iterator[Services]:
    database = Database(registry_database_url, lease_s=0)
    yield Services.of(database, CompatibilityLevel.NONE, lambda: 1, "")
    database.close()


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except errors.RegistryError as error:
        return type(error)


def apply(services: Services, subject: str, operation: Operation) -> Any:
    name, number = operation
    if name == "register":
        request = SchemaRequest(schema(number))
        return services.registration.register(subject, request, normalize=False).stored.version
    permanent = name.endswith("for good")
    if name.startswith("delete subject"):
        return outcome(lambda: services.deletion.delete_subject(subject, permanent=permanent).numbers)
    return outcome(lambda: services.deletion.delete_version(subject, number, permanent=permanent).numbers[0])


def expected(model: Model, operation: Operation) -> Any:
    name, number = operation
    if name == "register":
        return model.register(number)
    permanent = name.endswith("for good")
    return (
        model.delete_subject(permanent=permanent)
        if name.startswith("delete subject")
        else model.delete(number, permanent=permanent)
    )


contexts = itertools.count(1)


@settings(max_examples=examples(0.5))
@given(steps=operations)
def test_registrations_and_deletions_agree_with_model(services: Services, steps: list[Operation]) -> None:
    # A new context for each sequence, with ids from 1.
    context = f".c{next(contexts)}"
    subject = f":{context}:s"
    model = Model()
    ids: dict[int, int] = {}
    newest_id = 0
    for step in steps:
        assert apply(services, subject, step) == expected(model, step)
        stored = services.database.read(lambda repository: repository.versions(subject=subject, deleted=True))
        assert [(item.version, item.schema.content.text, item.deleted) for item in stored] == [
            (version, schema(content), is_deleted) for version, (content, is_deleted) in sorted(model.versions.items())
        ]
        present = {item.schema.content.text: item.schema.schema_id for item in stored}
        # An id stays while a version uses it, and a deleted id is not reused.
        ids = {content: schema_id for content, schema_id in ids.items() if schema(content) in present}
        for content in range(4):
            if schema(content) in present:
                schema_id = present[schema(content)]
                assert ids.setdefault(content, schema_id) == schema_id
                assert schema_id <= newest_id or schema_id == newest_id + 1
                newest_id = max(newest_id, schema_id)
        assert len(set(ids.values())) == len(ids)
        live = [version for version, (_, is_deleted) in model.versions.items() if not is_deleted]
        found = services.lookup.subjects(SubjectFilter(context=context), deleted=False, deleted_only=False)
        assert found == [subject] * bool(live)
