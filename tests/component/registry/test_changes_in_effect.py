"""After the response to a change of mode or configuration nothing is registered that it forbids."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.compat.levels import CompatibilityLevel
from headrace.registry.api.services import Services
from headrace.registry.domain import ConfigChange, ConfigEntry, Mode, SchemaReference, SchemaRequest
from headrace.registry.errors import IncompatibleSchema, OperationNotPermitted, RegistryError, StoreError
from headrace.registry.storage import repository as storage
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository
from support.registry.migrated_databases import PostgresTemplate

FIXED = '{"type":"fixed","name":"F","size":4}'
OTHER = '{"type":"fixed","name":"F","size":5}'


@pytest.fixture
def services(database_url: str) -> Iterator[Services]:
    database = Database(database_url, lease_s=0)
    yield Services.of(database, CompatibilityLevel.NONE, lambda: 1, "")
    database.close()


def register(services: Services, subject: str, text: str, *references: SchemaReference) -> Any:
    return services.registration.register(subject, SchemaRequest(text, references=references), normalize=False)


@pytest.fixture
def postgres(postgres_template: PostgresTemplate) -> Iterator[Services]:
    database = Database(postgres_template.copy(), lease_s=0)
    yield Services.of(database, CompatibilityLevel.NONE, lambda: 1, "")
    database.close()


def set_readonly(services: Services) -> None:
    services.modes.change("s", Mode.READONLY, force=False)


def set_level(services: Services) -> None:
    change = ConfigChange(ConfigEntry("FULL"), frozenset({"compatibility"}))
    services.configuration.change("s", change)


def set_alias(services: Services) -> None:
    change = ConfigChange(ConfigEntry(alias="closed"), frozenset({"alias"}))
    services.modes.change("closed", Mode.READONLY, force=False)
    services.configuration.change("s", change)


@pytest.mark.parametrize(
    ("change", "text", "references", "expected_error"),
    [
        (set_readonly, OTHER, (), OperationNotPermitted),
        (set_level, OTHER, (), IncompatibleSchema),
        (set_alias, OTHER, (), OperationNotPermitted),
        # Registrations of more than one statement: an existing schema, and a schema with references.
        (set_readonly, '"string"', (), OperationNotPermitted),
        (set_readonly, '{"type":"array","items":"F"}', (SchemaReference("F", "target", 1),), OperationNotPermitted),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_registration_decided_before_a_change_is_decided_again(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Services], None],
    text: str,
    references: tuple[SchemaReference, ...],
    expected_error: type[RegistryError],
    is_first: bool,
) -> None:
    register(services, "target", FIXED)
    register(services, "elsewhere", '"string"')
    if not is_first or expected_error is IncompatibleSchema:
        register(services, "s", FIXED)
    before = services.database.read(lambda repository: repository.version_numbers("s"))
    write, changed = services.database.write, []

    def write_after_a_change(work: Callable[[Repository], Any], *args: Any, **options: Any) -> Any:
        if not changed:
            changed.append(True)
            change(services)
        return write(work, *args, **options)

    monkeypatch.setattr(services.database, "write", write_after_a_change, raising=True)
    with pytest.raises(expected_error):
        register(services, "s", text, *references)
    assert services.database.read(lambda repository: repository.version_numbers("s")) == before


def test_change_waits_for_registrations_being_written(services: Services) -> None:
    """Such a registration was decided before the change and is valid."""
    register(services, "s", FIXED)
    is_written, may_commit, is_acknowledged = threading.Event(), threading.Event(), threading.Event()

    def hold(repository: Repository) -> None:
        repository.claim_subject("s", repository.subject_state("s"))
        is_written.set()
        assert may_commit.wait(60)

    def make_readonly() -> None:
        set_readonly(services)
        is_acknowledged.set()

    threads = [threading.Thread(target=lambda: services.database.write(hold)), threading.Thread(target=make_readonly)]
    threads[0].start()
    assert is_written.wait(60)
    threads[1].start()
    assert not is_acknowledged.wait(0.2)
    may_commit.set()
    for thread in threads:
        thread.join(60)
    assert is_acknowledged.is_set()
    with pytest.raises(OperationNotPermitted):
        register(services, "s", OTHER)


@pytest.mark.postgres
def test_waiting_change_does_not_block_registrations(postgres: Services) -> None:
    """SQLite has one writer at a time anyway."""
    register(postgres, "s", FIXED)
    is_written, may_commit = threading.Event(), threading.Event()

    def hold(repository: Repository) -> None:
        repository.claim_subject("s", repository.subject_state("s"))
        is_written.set()
        assert may_commit.wait(60)

    def level() -> str | None:
        return postgres.configuration.read_scope("s", in_effect=True).compatibility

    with ThreadPoolExecutor(3) as pool:
        writing = pool.submit(postgres.database.write, hold)
        assert is_written.wait(60)
        try:
            changes = [pool.submit(set_level, postgres)]
            while level() != "FULL":
                assert not changes[0].done()
                time.sleep(0.01)
            # A second request for the same change finds it made, but must not return before it is in effect.
            changes.append(pool.submit(set_level, postgres))
            assert register(postgres, "another", FIXED).is_new
            assert not any(change.done() for change in changes)
        finally:
            may_commit.set()
        for waiting in (writing, *changes):
            waiting.result(60)


@pytest.mark.postgres
def test_wait_for_a_writer_is_limited(postgres: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "WRITER_WAIT_S", 0)
    register(postgres, "s", FIXED)

    def change_during_write(repository: Repository) -> None:
        repository.claim_subject("s", repository.subject_state("s"))
        with pytest.raises(StoreError):
            set_level(postgres)

    postgres.database.write(change_during_write)
    set_level(postgres)
