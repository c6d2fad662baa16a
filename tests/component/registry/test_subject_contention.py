"""Concurrent registrations of several processes under one subject: cached views and subject locks."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from headrace.compat.levels import CompatibilityLevel
from headrace.registry.api.services import Services
from headrace.registry.domain import Mode, SchemaContent, SchemaRequest
from headrace.registry.errors import RegistryError
from headrace.registry.storage.cache import SubjectView
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository, WriteConflict
from support.registry.migrated_databases import PostgresTemplate

PROCESSES = 3


def fixed(label: object) -> str:
    return f'{{"type":"fixed","name":"F","size":4,"of":"{label}"}}'


def request(label: object, **given: Any) -> SchemaRequest:
    return SchemaRequest(fixed(label), **given)


@pytest.fixture
def processes(database_url: str) -> Iterator[list[Services]]:
    """Services that share only their database."""
    databases = [Database(database_url, lease_s=0) for _ in range(PROCESSES)]
    yield [Services.of(database, CompatibilityLevel.NONE, lambda: 1, "") for database in databases]
    for database in databases:
        database.close()


def full_view(repository: Repository) -> SubjectView:
    return repository._view_after("s", None)[0].view


def versions(services: Services) -> list[int]:
    return [number for number, _ in services.database.read(lambda repository: repository.version_numbers("s"))]


def test_cached_view_of_a_subject_matches_the_database(processes: list[Services], database_url: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed: {seed}")
    chance = random.Random(seed)
    fresh = Database(database_url)

    def change(services: Services, number: int) -> None:
        version = chance.randrange(1, 12)
        match chance.randrange(7):
            case 0 | 1 | 2:
                services.registration.register("s", request(chance.randrange(20)), normalize=False)
            case 3:
                # Also between existing versions, over a deleted one, and before the first.
                imported = request(f"i{chance.randrange(9)}", version=version, schema_id=100 + chance.randrange(9))
                services.modes.change("s", Mode.IMPORT, force=True)
                with suppress(RegistryError):
                    services.registration.register("s", imported, normalize=False)
                if chance.randrange(2):
                    more = request(f"j{number}", version=version + 2, schema_id=1000 + number)
                    with suppress(RegistryError):
                        services.registration.register("s", more, normalize=False)
                services.modes.change("s", Mode.READWRITE, force=True)
            case 4:
                services.deletion.delete_version("s", version, permanent=False)
            case 5:
                services.deletion.delete_version("s", version, permanent=True)
            case 6:
                services.deletion.delete_subject("s", permanent=bool(chance.randrange(2)))

    for number in range(120):
        with suppress(RegistryError):
            change(chance.choice(processes), number)
        expected = fresh.read(full_view)
        for services in chance.sample(processes, 2):
            assert services.database.read(lambda repository: repository.subject_view("s")) == expected
    fresh.close()


def test_import_between_versions_updates_the_cached_view(processes: list[Services]) -> None:
    writer, reader = processes[:2]
    writer.modes.change("s", Mode.IMPORT, force=True)
    for version, schema_id in ((1, 101), (5, 105)):
        writer.registration.register("s", request(version, version=version, schema_id=schema_id), normalize=False)
    seen = [reader.database.read(lambda repository: repository.subject_view("s"))]
    for version, schema_id in ((3, 103), (6, 106)):
        writer.registration.register("s", request(version, version=version, schema_id=schema_id), normalize=False)
        seen.append(reader.database.read(lambda repository: repository.subject_view("s")))
    assert [[entry.version for entry in view.entries] for view in seen] == [[1, 5], [1, 3, 5], [1, 3, 5, 6]]


def test_known_subject_reads_only_new_versions(processes: list[Services]) -> None:
    writer, reader = processes[:2]
    known_versions: list[int] = []

    def note(_: Any, __: Any, statement: str, ___: Any, context: Any, ____: bool) -> None:
        if "registry_revision" in statement:
            known_versions.append(context.compiled_parameters[0]["known_version"])

    sa.event.listen(reader.database._engine, "before_cursor_execute", note)
    for number in range(3):
        writer.registration.register("s", request(number), normalize=False)
        reader.lookup.find_version("s", request(number), normalize=False, deleted=False)
    assert known_versions == [0, 1, 2]


@pytest.mark.postgres
def test_registration_on_postgres_takes_three_statements(postgres_template: PostgresTemplate) -> None:
    """Its throughput depends on this."""
    database = Database(postgres_template.copy(), lease_s=0)
    services = Services.of(database, CompatibilityLevel.BACKWARD, lambda: 1, "")
    services.registration.register("s", request("first"), normalize=False)
    statements: list[str] = []
    sa.event.listen(database._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    for subject in ("s", "another"):
        services.registration.register(subject, request(f"new of {subject}"), normalize=False)
        assert len(statements) == 3, statements
        statements.clear()
    database.close()


def overtake(services: Services, other: Services, monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Makes another process register under the subject between decision and write, `times` times."""
    write, written = services.database.write, []

    def write_after_another(*args: Any, **options: Any) -> Any:
        if len(written) < times:
            written.append(fixed(f"rival {len(written)}"))
            other.registration.register("s", SchemaRequest(written[-1]), normalize=False)
        return write(*args, **options)

    monkeypatch.setattr(services.database, "write", write_after_another)
    return written


def test_overtaken_registration_locks_the_subject(processes: list[Services], monkeypatch: pytest.MonkeyPatch) -> None:
    services, other = processes[:2]
    services.registration.register("s", request("first"), normalize=False)
    rivals = overtake(services, other, monkeypatch, times=5)
    for number in range(4):
        found = services.registration.register("s", request(number), normalize=False)
        # The registration is overtaken twice. Then it locks the subject, so nothing comes between decision and write.
        assert found.stored.version == 4 + number
    assert len(rivals) == 2
    # Also if nothing has to be written.
    repeated = services.registration.register("s", request(2), normalize=False)
    assert (repeated.is_new, repeated.stored.version) == (False, 6)
    assert versions(services) == list(range(1, 8))


def test_content_registered_concurrently_elsewhere_keeps_its_id(
    processes: list[Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    services, other = processes[:2]
    known = other.registration.register("elsewhere", request("x"), normalize=False).stored.schema
    assert services.registration.register("s", request("x"), normalize=False).stored.schema.schema_id == known.schema_id
    # Also with the subject locked.
    known = other.registration.register("elsewhere", request("y"), normalize=False).stored.schema
    overtake(services, other, monkeypatch, times=2)
    services.registration.register("s", request("z"), normalize=False)
    assert services.registration.register("s", request("y"), normalize=False).stored.schema.schema_id == known.schema_id
    assert versions(services) == [1, 2, 3, 4, 5]


def test_subject_locks_exclude_each_other(processes: list[Services]) -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def authorize(repository: Repository) -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        return len(repository.subject_view("s").entries)

    def work(repository: Repository, seen: int) -> None:
        nonlocal inside
        subject_id = repository.claim_subject("s", repository.subject_state("s"))
        schema_id = repository.take_next_id(".")
        row_key = repository.add_schema(".", schema_id, SchemaContent(fixed(schema_id)), b"key", 1)
        assert row_key is not None
        repository.add_version(subject_id, seen + 1, row_key, 1)
        with lock:
            inside -= 1

    def take(number: int) -> None:
        processes[number % PROCESSES].database.write_serialized("s", authorize, work, new_id=lambda _: None)

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(take, range(27)))
    assert most == 1
    assert versions(processes[0]) == list(range(1, 28))


def test_failed_work_releases_the_subject_lock(processes: list[Services]) -> None:
    def fail(_: Repository, __: None) -> None:
        raise WriteConflict("moved on")

    services, other = processes[:2]
    with pytest.raises(WriteConflict):
        services.database.write_serialized("s", lambda _: None, fail, new_id=lambda _: None)
    assert other.database.write_serialized("s", lambda _: 1, lambda _, found: found, new_id=lambda _: None) == 1
