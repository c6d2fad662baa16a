"""Once a change of mode or configuration is answered, nothing is registered that it forbids, however long it took."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat.levels import CompatibilityLevel
from registry.api.services import Services
from registry.domain import ConfigChange, ConfigEntry, Mode, SchemaReference, SchemaRequest
from registry.errors import IncompatibleSchema, OperationNotPermitted, RegistryError
from registry.storage.database import Database
from registry.storage.repository import Repository

FIXED = '{"type":"fixed","name":"F","size":4}'
OTHER = '{"type":"fixed","name":"F","size":5}'
Write = Callable[..., Any]


@pytest.fixture
def services(database_url: str) -> Iterator[Services]:
    database = Database(database_url)
    database.upgrade()
    yield Services.of(database, CompatibilityLevel.NONE, lambda: 1, "")
    database.close()


def register(services: Services, subject: str, text: str, *references: SchemaReference) -> Any:
    return services.registration.register(subject, SchemaRequest(text, references=references), normalize=False)


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
    ("change", "text", "references", "refused"),
    [
        (set_readonly, OTHER, (), OperationNotPermitted),
        (set_level, OTHER, (), IncompatibleSchema),
        (set_alias, OTHER, (), OperationNotPermitted),
        # These are not written by one statement: a schema that is there, and one that refers to another.
        (set_readonly, '"string"', (), OperationNotPermitted),
        (set_readonly, '{"type":"array","items":"F"}', (SchemaReference("F", "target", 1),), OperationNotPermitted),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_registration_decided_before_a_change_is_decided_again(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Services], None],
    text: str,
    references: tuple[SchemaReference, ...],
    refused: type[RegistryError],
    is_first: bool,
) -> None:
    register(services, "target", FIXED)
    register(services, "elsewhere", '"string"')
    if not is_first or refused is IncompatibleSchema:
        register(services, "s", FIXED)
    before = services.database.read(lambda repository: repository.version_numbers("s"))
    write, changed = services.database.write, []

    def write_after_a_change(work: Callable[[Repository], Any], *args: Any, **options: Any) -> Any:
        if not changed:
            changed.append(True)
            change(services)
        return write(work, *args, **options)

    monkeypatch.setattr(services.database, "write", write_after_a_change, raising=True)
    with pytest.raises(refused):
        register(services, "s", text, *references)
    assert services.database.read(lambda repository: repository.version_numbers("s")) == before


def test_a_change_waits_for_the_registrations_that_are_being_written(services: Services) -> None:
    """Such a registration was decided before, and counts as before."""
    register(services, "s", FIXED)
    is_written, may_commit, is_answered = threading.Event(), threading.Event(), threading.Event()

    def hold(repository: Repository) -> None:
        repository.claim_subject("s", repository.subject_state("s"))
        is_written.set()
        assert may_commit.wait(60)

    def make_readonly() -> None:
        set_readonly(services)
        is_answered.set()

    threads = [threading.Thread(target=lambda: services.database.write(hold)), threading.Thread(target=make_readonly)]
    threads[0].start()
    assert is_written.wait(60)
    threads[1].start()
    assert not is_answered.wait(0.2)
    may_commit.set()
    for thread in threads:
        thread.join(60)
    assert is_answered.is_set()
    with pytest.raises(OperationNotPermitted):
        register(services, "s", OTHER)
