"""Random registrations, imports and deletions in two contexts: an id stands for one content and is assigned once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compat.levels import CompatibilityLevel
from headrace.registry.api.services import Services
from headrace.registry.domain import Mode, SchemaRequest
from headrace.registry.errors import RegistryError
from headrace.registry.names import ALL_SUBJECTS, context_of
from headrace.registry.storage.database import Database, sqlite_url
from support.examples import examples

SUBJECTS = ("a", "b", ":.c:a")
CONTENTS = range(4)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from(SUBJECTS), st.sampled_from(CONTENTS), st.just(0)),
        st.tuples(st.just("import"), st.sampled_from(SUBJECTS), st.sampled_from(CONTENTS), st.integers(1, 8)),
        st.tuples(st.just("delete"), st.sampled_from(SUBJECTS), st.just(0), st.integers(0, 1)),
        st.tuples(st.just("delete context"), st.just(":.c:"), st.just(0), st.just(0)),
    ),
    max_size=20,
)


def schema(content: int) -> str:
    return f'{{"type":"fixed","name":"F","size":4,"of":{content}}}'


@cache
def empty_database() -> bytes:
    """The bytes of a migrated SQLite database without schemas."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "registry.db"
        database = Database(sqlite_url(path))
        database.upgrade()
        database.close()
        return path.read_bytes()


@contextmanager
def open_services() -> Iterator[Services]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "registry.db"
        path.write_bytes(empty_database())
        database = Database(sqlite_url(path), lease_s=0)
        yield Services.of(database, CompatibilityLevel.NONE, lambda: 1, "")
        database.close()


def register(services: Services, subject: str, content: int) -> tuple[int, bool]:
    found = services.registration.register(subject, SchemaRequest(schema(content)), normalize=False)
    return found.stored.schema.schema_id, found.is_new


def import_schema(services: Services, subject: str, content: int, schema_id: int) -> None:
    services.modes.change(subject, Mode.IMPORT, force=True)
    try:
        request = SchemaRequest(schema(content), schema_id=schema_id)
        services.registration.register(subject, request, normalize=False)
    finally:
        services.modes.reset(subject, recursive=False)


def run_step(services: Services, step: tuple[str, str, int, int], assigned_ids: dict[str, set[int]]) -> None:
    kind, subject, content, number = step
    known = contents(services)
    seen = assigned_ids.setdefault(context_of(subject), set())
    if kind == "register":
        schema_id, _ = register(services, subject, content)
        if (context_of(subject), schema_id) not in known:
            assert schema_id > max(seen, default=0)
    elif kind == "import":
        import_schema(services, subject, content, number)
    elif kind == "delete":
        services.deletion.delete_subject(subject, permanent=bool(number))
    else:
        services.deletion.delete_context(context_of(subject))


def contents(services: Services) -> dict[tuple[str, int], str]:
    """The content of each id of each context."""
    stored = services.database.read(lambda repository: repository.versions(subject_filter=ALL_SUBJECTS, deleted=True))
    return {(item.schema.context, item.schema.schema_id): item.schema.content.text for item in stored}


@settings(max_examples=examples(0.1))
@given(steps)
def test_id_stands_for_one_content_and_is_assigned_once(steps: list[tuple[str, str, int, int]]) -> None:
    assigned_ids: dict[str, set[int]] = {}
    with open_services() as services:
        for step in steps:
            before = contents(services)
            try:
                run_step(services, step, assigned_ids)
            except RegistryError:
                assert contents(services) == before
            after = contents(services)
            assert all(after.get(key, text) == text for key, text in before.items())
            for context, schema_id in after:
                assigned_ids.setdefault(context, set()).add(schema_id)
                found = services.lookup.schema(schema_id, subject=":.c:" if context == ".c" else None)
                assert found.schema.content.text == after[context, schema_id]
