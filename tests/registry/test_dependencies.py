"""What answers rest on, and that changes are acknowledged only when no kept answer is given any more."""

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
from headrace.registry.service.registration import RegistrationResult
from headrace.registry.storage import dependencies, statements
from headrace.registry.storage.cache import NewestRevision
from headrace.registry.storage.database import WriteConflict, Database
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


def test_a_method_that_says_nothing_makes_no_answer_that_is_kept(database: Database) -> None:
    @dependencies.uncacheable_by_default
    class Extended(Repository):
        def new(self) -> None:
            """Somebody added this and did not think of answers that are kept."""

    assert Extended.new.dependency is dependencies.uncacheable  # type: ignore[attr-defined]
    silent = [
        name
        for name in dir(Repository)
        if not name.startswith("_") and not hasattr(getattr(Repository, name), "dependency")
    ]
    assert silent == ["connection"]


READS: list[tuple[str, Callable[[Repository], Any], tuple[str, ...] | None]] = [
    ("configuration", lambda repository: repository.configs([None, "a"]), ()),
    ("mode", lambda repository: repository.modes(["a"]), ()),
    ("aliases", lambda repository: repository.aliases(), ()),
    ("numbers", lambda repository: repository.version_numbers("a"), ("a",)),
    ("two subjects", lambda repository: [repository.version_numbers(name) for name in "ab"], ("a", "b")),
    ("versions of a subject", lambda repository: repository.versions(subject="a"), ("a",)),
    ("versions of all", lambda repository: repository.versions(wanted=ALL_SUBJECTS), None),
    ("contexts", lambda repository: repository.contexts(), None),
    ("highest id", lambda repository: repository.schema_id_max("."), None),
    ("a schema that is missing", lambda repository: repository.schema(".", 1), None),
    ("a version that is missing", lambda repository: repository.version("a", 1), None),
    ("beside the repository", lambda repository: (repository.aliases(), repository.connection), None),
    ("a subject that is missing", lambda repository: repository.subject_state("none"), None),
]


@pytest.mark.parametrize(("read", "subjects"), [row[1:] for row in READS], ids=[row[0] for row in READS])
def test_what_a_read_rests_on(
    database: Database, read: Callable[[Repository], Any], subjects: tuple[str, ...] | None
) -> None:
    expected = (
        None
        if subjects is None
        else Dependencies(revision(database), tuple(state(database, name) for name in subjects))
    )
    assert depends_on(database, read) == expected


def test_a_list_of_subjects_rests_on_their_number(database: Database) -> None:
    expected = Dependencies(revision(database), ((SUBJECT_LIST_ID, 2), state(database, "a")))
    assert (
        depends_on(
            database, lambda repository: repository.subjects(), lambda repository: repository.version_numbers("a")
        )
        == expected
    )


def test_the_newest_version_rests_on_its_subject_and_a_number_on_the_registry_alone() -> None:
    assert Repository.version.dependency is dependencies.version_revision  # type: ignore[attr-defined]
    assert dependencies.version_revision("a", LATEST) == dependencies.SubjectDependency("a")
    assert dependencies.version_revision("a", 3) is dependencies.REGISTRY_DEPENDENCY


def test_several_reads_rest_on_what_the_first_of_them_saw(database: Database) -> None:
    before, revision_before = state(database, "a"), revision(database)

    def change_in_between(repository: Repository) -> None:
        repository.version_numbers("a")

    with record_dependencies() as recorder:
        database.read(change_in_between)
        # Another process, which this request does not know of.
        other = Database(str(database._address.url))
        other.write(lambda repository: repository.claim_subject("a", repository.subject_state("a")))
        other.close()
    # That write was noted in this very thread; without it the footing is the older one.
    assert recorder.dependencies() is None
    recorder._is_cacheable = True
    assert recorder.dependencies() == Dependencies(revision_before, (before,))


def test_nothing_read_and_something_written_is_not_kept(database: Database) -> None:
    with record_dependencies() as recorder:
        pass
    assert recorder.dependencies() is None
    with record_dependencies() as recorder:
        database.read(lambda repository: repository.version_numbers("a"))
        database.write(lambda repository: repository.list_context(".c"))
    assert recorder.dependencies() is None


def test_outside_of_a_request_nothing_is_noted(database: Database) -> None:
    assert database.read(lambda repository: type(repository)) is Repository


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(dependencies.time, "sleep", waited.append)
    return waited


def test_a_greater_revision_is_acknowledged_after_the_lease(database: Database, waits: list[float]) -> None:
    database.write(lambda repository: repository.list_context(".c"))
    assert waits == []
    database.write(lambda repository: repository.bump_revision())
    assert waits == [WAIT_S]


def test_a_change_is_acknowledged_at_once_where_no_process_caches_answers(
    database: Database, waits: list[float]
) -> None:
    alone = Database(str(database._address.url), lease_s=0)
    alone.write(lambda repository: repository.bump_revision())
    alone.close()
    assert waits == []


def test_a_change_that_was_not_made_is_not_waited_for(database: Database, waits: list[float]) -> None:
    def fail(repository: Repository) -> None:
        repository.bump_revision()
        raise WriteConflict("moved on")

    with pytest.raises(WriteConflict):
        database.write(fail, attempts=1)
    assert waits == []


def test_a_change_whose_commit_broke_is_waited_for(
    database: Database, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_after(self: Any, work: Callable[[Repository], Any], *_: Any, **__: Any) -> None:
        real(self, work, 1, None, False)
        raise WriteConflict("the connection broke")

    real = Database._write
    monkeypatch.setattr(Database, "_write", break_after)
    with pytest.raises(WriteConflict):
        database.write(lambda repository: repository.bump_revision(), attempts=1)
    assert waits == [WAIT_S]


def test_a_refusal_that_may_tell_of_a_change_comes_after_the_lease(database: Database, waits: list[float]) -> None:
    def refuse(repository: Repository) -> None:
        repository.bump_revision()
        raise VersionSoftDeleted(subject="a", version=1)

    with pytest.raises(VersionSoftDeleted):
        database.write(refuse)
    assert waits == [WAIT_S]


def test_who_asks_for_a_configuration_that_is_so_already_waits_as_who_made_it_so(
    database: Database, waits: list[float]
) -> None:
    configuration = Configuration(database, CompatibilityLevel.NONE)
    change = ConfigChange(ConfigEntry("FULL"), frozenset({"compatibility"}))
    for times in (1, 2):
        configuration.change("a", change)
        assert waits == [WAIT_S] * times


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """Another process on the same database."""
    made = Database(str(database._address.url))
    yield made
    made.close()


def registering(database: Database) -> Callable[[], RegistrationResult]:
    services = Services.of(database, CompatibilityLevel.NONE, lambda: 1, "")
    return lambda: services.registration.register("s", SchemaRequest('"string"'), normalize=False)


def revive(database: Database) -> None:
    """A version that is deleted softly is visible again."""
    registering(database)()
    Deletion(database).delete_subject("s", permanent=False)
    assert registering(database)().is_new


def test_who_registers_what_has_just_been_revived_waits_as_who_revived_it(
    database: Database, other: Database, waits: list[float]
) -> None:
    revive(database)
    waits.clear()
    assert not registering(other)().is_new
    assert waits == [WAIT_S]


def test_so_does_who_finds_it_in_its_turn(database: Database, other: Database, waits: list[float]) -> None:
    revive(database)
    waits.clear()
    services = Services.of(other, CompatibilityLevel.NONE, lambda: 1, "")
    for stripe in services.registration._lock_stripes:
        stripe.serialized_attempts_left = 1
    assert not services.registration.register("s", SchemaRequest('"string"'), normalize=False).is_new
    assert waits == [WAIT_S]


def test_who_registers_what_has_been_there_for_long_does_not_wait(
    database: Database, other: Database, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    revive(database)
    now_s = 0.0
    monkeypatch.setattr(other._cache, "newest", NewestRevision(lambda: now_s))
    register = registering(other)
    register()
    waits.clear()
    now_s = LEASE_S
    register()
    assert waits == [WAIT_S]
    now_s = WAIT_S
    register()
    assert len(waits) == 1
    # A version that is only added makes nothing else untrue.
    Services.of(database, CompatibilityLevel.NONE, lambda: 1, "").registration.register(
        "s", SchemaRequest('"int"'), normalize=False
    )
    register()
    assert len(waits) == 1
    revive(database)
    waits.clear()
    register()
    assert waits == [WAIT_S]


def test_the_newest_moment_is_known_since_it_was_seen_first() -> None:
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
    # The database has gone back.
    newest.record(Revision(8, 1))
    assert newest.age_s() == 0


def test_a_look_reads_no_table_as_a_whole(database: Database) -> None:
    """It is made in the event loop, and there may be a hundred thousand subjects."""
    with closing(sqlite3.connect(str(database._address.url.database))) as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {SQLITE_REVISIONS}", (1, "[1, 2]", SUBJECT_LIST_ID, True)
        ).fetchall()
    steps = [str(row[-1]) for row in plan]
    assert any("subjects" in step for step in steps)
    assert [step for step in steps if step.startswith("SCAN subjects")] == []


@pytest.mark.parametrize("statement", [statements.STATE, statements.SUBJECT_VIEW])
def test_the_statements_of_every_read_are_compiled_once(statement: Any) -> None:
    assert statement._generate_cache_key() is not None
