"""Comparisons that take long: registrations leave them to others, and take a verdict for what it was worked out for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.compat import resolution
from headrace.compat.levels import CompatibilityLevel
from headrace.registry.api.services import Services
from headrace.registry.domain import ConfigChange, ConfigEntry, Metadata, SchemaReference, SchemaRequest
from headrace.registry.errors import IncompatibleSchema, InvalidSchema, RegistryError
from headrace.registry.service import compatibility
from headrace.registry.service.compatibility import Comparison, ComparisonDeferred, Compatibility, ComparisonOffload
from headrace.registry.service.schema_parser import SchemaParser
from headrace.registry.storage.database import Database


@pytest.fixture
def takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every comparison takes long that compares anything at all."""
    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)


@pytest.fixture
def processes(database_url: str) -> Iterator[tuple[Services, Services]]:
    """Two that share nothing but their database: who registers, and who compares."""
    databases = [Database(database_url, lease_s=0) for _ in range(2)]
    yield tuple(Services.of(it, CompatibilityLevel.BACKWARD, lambda: 1, "") for it in databases)  # type: ignore[misc]
    for database in databases:
        database.close()


def record(*fields: str, default: str = '""') -> str:
    listed = ",".join(f'{{"name":"{name}","type":"string","default":{default}}}' for name in fields)
    return f'{{ "type":"record","name":"R","fields":[{listed}] }}'


def left(
    services: Services, request: SchemaRequest, offload: ComparisonOffload | None = None, **more: Any
) -> Comparison:
    with pytest.raises(ComparisonDeferred) as raised:
        register(services, request, offload or ComparisonOffload(), **more)
    return raised.value.comparison


def register(services: Services, request: SchemaRequest, offload: ComparisonOffload | None = None, **more: Any) -> Any:
    return services.registration.register("s", request, **{"normalize": False, **more}, offload=offload)


def outcome(services: Services, request: SchemaRequest, offload: ComparisonOffload | None = None, **more: Any) -> Any:
    try:
        return register(services, request, offload, **more).stored.schema.content
    except RegistryError as error:
        return type(error), str(error)


def comparison_result(services: Services, comparison: Comparison) -> ComparisonOffload:
    found = services.compatibility.run_comparison(comparison)
    assert found is not None
    assert found.comparison == comparison
    return ComparisonOffload(found)


def configure(services: Services, **values: Any) -> None:
    entry = ConfigEntry(**values)
    services.configuration.change("s", ConfigChange(entry, frozenset(values)))


A_NUMBER = '{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}'
REQUESTS = {
    "compatible": (SchemaRequest(record("a", "b")), {}),
    "incompatible": (SchemaRequest(A_NUMBER), {}),
    "normalized": (SchemaRequest(record("b", "a")), {"normalize": True}),
    "with what it refers to": (
        SchemaRequest('{"type":"array","items":"N"}', references=(SchemaReference("N", "named", -1),)),
        {},
    ),
    "with metadata": (SchemaRequest(record("a", "b"), metadata=Metadata.of({"group": "1"})), {}),
    "without a text": (SchemaRequest(None, metadata=Metadata.of({"group": "2"})), {}),
}


@pytest.mark.usefixtures("takes_long")
@pytest.mark.parametrize("case", REQUESTS)
@pytest.mark.parametrize("level", ["BACKWARD", "FULL_TRANSITIVE"])
def test_what_others_compared_is_answered_as_what_was_compared_here(
    processes: tuple[Services, Services], monkeypatch: pytest.MonkeyPatch, case: str, level: str
) -> None:
    request, more = REQUESTS[case]
    here, there = processes
    here.registration.register("named", SchemaRequest('{"type":"fixed","name":"N","size":4}'), normalize=False)
    configure(here, compatibility=level)
    for fields in ("a", "ab"):
        register(here, SchemaRequest(record("first", *fields), metadata=Metadata.of({"group": "1"})))
    offload = comparison_result(there, left(here, request, **more))
    with monkeypatch.context() as patch:
        patch.setattr(Compatibility, "_compare", None)
        answered = outcome(here, request, offload, **more)
    assert answered == outcome(there, request, None, **more)
    is_compatible = offload.comparison_result is not None and offload.comparison_result.verdict.is_compatible
    assert is_compatible is not isinstance(answered, tuple)


@pytest.mark.usefixtures("takes_long")
def test_a_verdict_is_of_no_use_once_something_else_is_to_be_compared(processes: tuple[Services, Services]) -> None:
    here, there = processes
    request = SchemaRequest(A_NUMBER)
    register(here, SchemaRequest(record("a")))
    first = comparison_result(there, left(here, request))
    assert left(here, SchemaRequest(record("other")), first).text != request.text
    assert left(here, replace(request, metadata=Metadata.of({"x": "y"})), first).content.metadata is not None
    # The newest version is another one, by another process.
    register(there, SchemaRequest(record("a", "b")))
    again = left(here, request, first)
    assert [number for number, _ in again.versions] == [2]
    # What holds for the subject is something else.
    second = comparison_result(there, again)
    configure(there, compatibility="FORWARD")
    assert left(here, request, second).config.compatibility == "FORWARD"
    configure(there, compatibility="NONE")
    assert register(here, request, second).is_new


@pytest.mark.usefixtures("takes_long")
def test_what_is_no_longer_there_is_not_compared(processes: tuple[Services, Services]) -> None:
    here, there = processes
    register(here, SchemaRequest(record("a")))
    comparison = left(here, SchemaRequest(A_NUMBER))
    here.deletion.delete_subject("s", permanent=False)
    # It is still there as what it was asked for as, but who registers compares with nothing by now.
    offload = comparison_result(there, comparison)
    here.deletion.delete_subject("s", permanent=True)
    assert there.compatibility.run_comparison(comparison) is None
    assert register(here, SchemaRequest(A_NUMBER), offload).is_new
    assert there.compatibility.run_comparison(comparison) is None


def test_what_is_compared_in_a_moment_is_left_to_nobody(processes: tuple[Services, Services]) -> None:
    here, _ = processes
    register(here, SchemaRequest(record("a")), ComparisonOffload())
    assert register(here, SchemaRequest(record("a", "b")), ComparisonOffload()).is_new
    with pytest.raises(IncompatibleSchema):
        register(here, SchemaRequest(A_NUMBER), ComparisonOffload())


def test_so_many_versions_that_they_are_read_each_time_are_left_unread(
    processes: tuple[Services, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = processes
    configure(here, compatibility="BACKWARD_TRANSITIVE")
    for fields in ("a", "ab", "abc"):
        register(here, SchemaRequest(record(*fields)))
    versions = here.database.read(lambda repository: repository.versions(subject="s"))
    stored = sum(len(item.schema.content.text) for item in versions)
    request = SchemaRequest(A_NUMBER)
    monkeypatch.setattr(compatibility, "CACHED_CHARS_MAX", stored)
    with pytest.raises(IncompatibleSchema):
        register(here, request, ComparisonOffload())
    monkeypatch.setattr(compatibility, "CACHED_CHARS_MAX", stored - 1)
    with monkeypatch.context() as patch:
        patch.setattr(SchemaParser, "parsed", None)
        comparison = left(here, request)
    offload = comparison_result(there, comparison)
    monkeypatch.setattr(SchemaParser, "parsed", None)
    assert outcome(here, request, offload)[0] is IncompatibleSchema


@pytest.mark.usefixtures("takes_long")
def test_without_a_comparison_nothing_is_left(processes: tuple[Services, Services]) -> None:
    here, _ = processes
    assert register(here, SchemaRequest(record("a")), ComparisonOffload()).is_new
    assert not register(here, SchemaRequest(record("a")), ComparisonOffload()).is_new
    assert register(here, SchemaRequest(A_NUMBER), ComparisonOffload(), force=True).is_new
    with pytest.raises(InvalidSchema):
        register(here, SchemaRequest("{"), ComparisonOffload())
