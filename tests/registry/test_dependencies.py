"""Dependencies of responses, and writes that are acknowledged only when no stale cached response is served any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from headrace.compat.levels import CompatibilityLevel
from headrace.registry.api.services import Services
from headrace.registry.domain import LATEST, ConfigChange, ConfigEntry, SchemaRequest
from headrace.registry.errors import VersionSoftDeleted
from headrace.registry.names import ALL_SUBJECTS
from headrace.registry.service.configuration import Configuration
from headrace.registry.service.deletion import Deletion
from headrace.registry.service.modes import ModeInheritance
from headrace.registry.service.registration import RegistrationResult
from headrace.registry.storage import dependencies, statements
from headrace.registry.storage.cache import NewestRevision
from headrace.registry.storage.database import Database, WriteConflict
from headrace.registry.storage.dependencies import (
    LEASE_MARGIN,
    LEASE_S,
    SUBJECT_LIST_ID,
    Dependencies,
    record_dependencies,
)
from headrace.registry.storage.repository import Repository
from headrace.registry.storage.revision import Revision
from headrace.registry.storage.revision_check import SQLITE_REVISIONS

WAIT_S = LEASE_S * LEASE_MARGIN


@pytest.fixture
def database(sqlite_database_url: str) -> Iterator[Database]:
    made = Database(sqlite_database_url)
    for name in ("a", "b"):
        made.write(lambda repository, name=name: repository.claim_subject(name, None))  # type: ignore[misc]
    yield made
    made.close()


def depends_on(database: Database, *reads: Callable[[Repository], Any]) -> Dependencies | None:
    with record_dependencies() as recorder:
        for read in reads:
            database.read(read)
    return recorder.dependencies()


def state(database: Database, subject: str) -> tuple[int, int]:
    found = database.read(lambda repository: repository.subject_state(subject))
    assert found is not None
    return found.subject_id, found.revision


def revision(database: Database) -> Revision:
    found = database.read(lambda repository: repository.revision())
    assert found.number == 1
    return found


def test_repository_method_without_declaration_is_uncacheable(database: Database) -> None:
    @dependencies.uncacheable_by_default
    class Extended(Repository):
        def new(self) -> None:
            """A new method without a declaration."""

    assert Extended.new.dependency is dependencies.uncacheable  # type: ignore[attr-defined]
    undeclared = [
        name
        for name in dir(Repository)
        if not name.startswith("_") and not hasattr(getattr(Repository, name), "dependency")
    ]
    assert undeclared == ["connection"]


READS: list[tuple[str, Callable[[Repository], Any], tuple[str, ...] | None]] = [
    ("configuration", lambda repository: repository.configs([None, "a"]), ()),
    ("mode", lambda repository: repository.modes(["a"]), ()),
    ("aliases", lambda repository: repository.aliases(), ()),
    ("numbers", lambda repository: repository.version_numbers("a"), ("a",)),
    ("two subjects", lambda repository: [repository.version_numbers(name) for name in "ab"], ("a", "b")),
    ("versions of a subject", lambda repository: repository.versions(subject="a"), ("a",)),
    ("versions of all", lambda repository: repository.versions(subject_filter=ALL_SUBJECTS), None),
    ("contexts", lambda repository: repository.contexts(), None),
    ("highest id", lambda repository: repository.schema_id_max("."), None),
    ("a schema that is missing", lambda repository: repository.schema(".", 1), None),
    ("a version that is missing", lambda repository: repository.version("a", 1), None),
    ("connection of the repository", lambda repository: (repository.aliases(), repository.connection), None),
    ("a subject that is missing", lambda repository: repository.subject_state("none"), None),
]


@pytest.mark.parametrize(("read", "subjects"), [row[1:] for row in READS], ids=[row[0] for row in READS])
def test_read_records_its_dependencies(
    database: Database, read: Callable[[Repository], Any], subjects: tuple[str, ...] | None
) -> None:
    expected = (
        None
        if subjects is None
        else Dependencies(revision(database), tuple(state(database, name) for name in subjects))
    )
    assert depends_on(database, read) == expected


def test_subject_list_depends_on_number_of_subjects(database: Database) -> None:
    expected = Dependencies(revision(database), ((SUBJECT_LIST_ID, 2), state(database, "a")))
    assert (
        depends_on(
            database, lambda repository: repository.subjects(), lambda repository: repository.version_numbers("a")
        )
        == expected
    )


def test_latest_version_depends_on_subject_and_numbered_version_on_registry() -> None:
    assert Repository.version.dependency is dependencies.version_revision  # type: ignore[attr-defined]
    assert dependencies.version_revision("a", LATEST) == dependencies.SubjectDependency("a")
    assert dependencies.version_revision("a", 3) is dependencies.REGISTRY_DEPENDENCY


def test_dependencies_of_several_reads_have_revisions_of_the_first(database: Database) -> None:
    before, revision_before = state(database, "a"), revision(database)

    def change_in_between(repository: Repository) -> None:
        repository.version_numbers("a")

    with record_dependencies() as recorder:
        database.read(change_in_between)
        # Another process, which this request does not see.
        other = Database(str(database._address.url))
        other.write(lambda repository: repository.claim_subject("a", repository.subject_state("a")))
        other.close()
    # The recorder noticed that write, because it was made in this thread. Reset it to see the recorded dependencies.
    assert recorder.dependencies() is None
    recorder._is_cacheable = True
    assert recorder.dependencies() == Dependencies(revision_before, (before,))


def test_request_without_reads_or_with_a_write_is_uncacheable(database: Database) -> None:
    with record_dependencies() as recorder:
        pass
    assert recorder.dependencies() is None
    with record_dependencies() as recorder:
        database.read(lambda repository: repository.version_numbers("a"))
        database.write(lambda repository: repository.list_context(".c"))
    assert recorder.dependencies() is None


def test_read_outside_of_a_request_records_nothing(database: Database) -> None:
    assert database.read(lambda repository: type(repository)) is Repository


@pytest.fixture
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(dependencies.time, "sleep", waited.append)
    return waited


def test_write_that_increases_revision_waits_for_leases(database: Database, waits_s: list[float]) -> None:
    database.write(lambda repository: repository.list_context(".c"))
    assert waits_s == []
    database.write(lambda repository: repository.bump_revision())
    assert waits_s == [WAIT_S]


def test_write_does_not_wait_without_leases(database: Database, waits_s: list[float]) -> None:
    without_leases = Database(str(database._address.url), lease_s=0)
    without_leases.write(lambda repository: repository.bump_revision())
    without_leases.close()
    assert waits_s == []


def test_conflicting_write_does_not_wait_for_leases(database: Database, waits_s: list[float]) -> None:
    def fail(repository: Repository) -> None:
        repository.bump_revision()
        raise WriteConflict("moved on")

    with pytest.raises(WriteConflict):
        database.write(fail, attempts=1)
    assert waits_s == []


def test_write_with_unknown_outcome_waits_for_leases(
    database: Database, waits_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_after(self: Any, work: Callable[[Repository], Any], *_: Any, **__: Any) -> None:
        real(self, work, 1, None, False)
        raise WriteConflict("the connection broke")

    real = Database._write
    monkeypatch.setattr(Database, "_write", break_after)
    with pytest.raises(WriteConflict):
        database.write(lambda repository: repository.bump_revision(), attempts=1)
    assert waits_s == [WAIT_S]


def test_error_that_reveals_a_change_waits_for_leases(database: Database, waits_s: list[float]) -> None:
    def refuse(repository: Repository) -> None:
        repository.bump_revision()
        raise VersionSoftDeleted(subject="a", version=1)

    with pytest.raises(VersionSoftDeleted):
        database.write(refuse)
    assert waits_s == [WAIT_S]


def test_unchanged_configuration_waits_for_leases(database: Database, waits_s: list[float]) -> None:
    configuration = Configuration(database, CompatibilityLevel.NONE, ModeInheritance())
    change = ConfigChange(ConfigEntry("FULL"), frozenset({"compatibility"}))
    for times in (1, 2):
        configuration.change("a", change)
        assert waits_s == [WAIT_S] * times


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """Another process with the same database, for which no time passes."""
    made = Database(str(database._address.url))
    made._cache.newest = NewestRevision(lambda: 0.0)
    yield made
    made.close()


def registering(database: Database) -> Callable[[], RegistrationResult]:
    services = Services.of(database, CompatibilityLevel.NONE, lambda: 1, "")
    return lambda: services.registration.register("s", SchemaRequest('"string"'), normalize=False)


def revive(database: Database) -> None:
    """Registers a version, soft-deletes it and registers it again."""
    registering(database)()
    Deletion(database, ModeInheritance()).delete_subject("s", permanent=False)
    assert registering(database)().is_new


def test_registering_just_revived_version_waits_for_leases(
    database: Database, other: Database, waits_s: list[float]
) -> None:
    revive(database)
    waits_s.clear()
    assert not registering(other)().is_new
    assert waits_s == [WAIT_S]


def test_serialized_attempt_that_finds_revived_version_waits_for_leases(
    database: Database, other: Database, waits_s: list[float]
) -> None:
    revive(database)
    waits_s.clear()
    services = Services.of(other, CompatibilityLevel.NONE, lambda: 1, "")
    for stripe in services.registration._lock_stripes:
        stripe.serialized_attempts_left = 1
    assert not services.registration.register("s", SchemaRequest('"string"'), normalize=False).is_new
    assert waits_s == [WAIT_S]


def test_registering_old_version_does_not_wait_for_leases(
    database: Database, other: Database, waits_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    revive(database)
    now_s = 0.0
    monkeypatch.setattr(other._cache, "newest", NewestRevision(lambda: now_s))
    register = registering(other)
    register()
    waits_s.clear()
    now_s = LEASE_S
    register()
    assert waits_s == [WAIT_S]
    now_s = WAIT_S
    register()
    assert len(waits_s) == 1
    # A version that is only added invalidates nothing else.
    Services.of(database, CompatibilityLevel.NONE, lambda: 1, "").registration.register(
        "s", SchemaRequest('"int"'), normalize=False
    )
    register()
    assert len(waits_s) == 1
    revive(database)
    waits_s.clear()
    register()
    assert waits_s == [WAIT_S]


def test_age_of_newest_revision_counts_from_its_first_read() -> None:
    now_s = 5.0
    newest = NewestRevision(lambda: now_s)
    assert newest.age_s() == float("inf")
    newest.record(Revision(7, 3))
    now_s = 6.0
    for revision in (Revision(7, 3), Revision(7, 2)):
        newest.record(revision)
        assert newest.age_s() == 1
    newest.record(Revision(7, 4))
    assert newest.age_s() == 0
    now_s = 8.0
    # The database has returned to an earlier state.
    newest.record(Revision(8, 1))
    assert newest.age_s() == 0


def test_revision_check_scans_no_table(database: Database) -> None:
    """The check runs in the event loop, and there may be a hundred thousand subjects."""
    with closing(sqlite3.connect(str(database._address.url.database))) as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {SQLITE_REVISIONS}", (1, "[1, 2]", SUBJECT_LIST_ID, True)
        ).fetchall()
    steps = [str(row[-1]) for row in plan]
    assert any("subjects" in step for step in steps)
    assert [step for step in steps if step.startswith("SCAN subjects")] == []


@pytest.mark.parametrize("statement", [statements.STATE, statements.SUBJECT_VIEW])
def test_statements_of_reads_are_compiled_once(statement: Any) -> None:
    assert statement._generate_cache_key() is not None
