"""Deferred comparisons: registrations defer long comparisons, and accept a result for the same comparison only."""

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
from headrace.registry.service.compatibility import Comparison, ComparisonDeferred, ComparisonOffload, Compatibility
from headrace.registry.service.schema_parser import SchemaParser
from headrace.registry.storage.database import Database


@pytest.fixture
def every_comparison_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every comparison with at least one version count as long."""
    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)


@pytest.fixture
def processes(database_url: str) -> Iterator[tuple[Services, Services]]:
    """Two services that share only their database, for registration and comparison."""
    databases = [Database(database_url, lease_s=0) for _ in range(2)]
    yield tuple(Services.of(it, CompatibilityLevel.BACKWARD, lambda: 1, "") for it in databases)  # type: ignore[misc]
    for database in databases:
        database.close()


def record(*fields: str, default: str = '""') -> str:
    listed = ",".join(f'{{"name":"{name}","type":"string","default":{default}}}' for name in fields)
    return f'{{ "type":"record","name":"R","fields":[{listed}] }}'


def deferred_comparison(
    services: Services, request: SchemaRequest, offload: ComparisonOffload | None = None, **more: Any
) -> Comparison:
    with pytest.raises(ComparisonDeferred) as raised:
        register(services, request, offload or ComparisonOffload(), **more)
    return raised.value.comparison


def register(services: Services, request: SchemaRequest, offload: ComparisonOffload | None = None, **more: Any) -> Any:
    return services.registration.register("s", request, **{"normalize": False, **more}, offload=offload)


def register_or_error(
    services: Services, request: SchemaRequest, offload: ComparisonOffload | None = None, **more: Any
) -> Any:
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
    "with a reference": (
        SchemaRequest('{"type":"array","items":"N"}', references=(SchemaReference("N", "named", -1),)),
        {},
    ),
    "with metadata": (SchemaRequest(record("a", "b"), metadata=Metadata.of({"group": "1"})), {}),
    "without a text": (SchemaRequest(None, metadata=Metadata.of({"group": "2"})), {}),
}


@pytest.mark.usefixtures("every_comparison_is_long")
@pytest.mark.parametrize("case", REQUESTS)
@pytest.mark.parametrize("level", ["BACKWARD", "FULL_TRANSITIVE"])
def test_offloaded_verdict_equals_the_local_one(
    processes: tuple[Services, Services], monkeypatch: pytest.MonkeyPatch, case: str, level: str
) -> None:
    request, more = REQUESTS[case]
    first_process, second_process = processes
    first_process.registration.register("named", SchemaRequest('{"type":"fixed","name":"N","size":4}'), normalize=False)
    configure(first_process, compatibility=level)
    for fields in ("a", "ab"):
        register(first_process, SchemaRequest(record("first", *fields), metadata=Metadata.of({"group": "1"})))
    offload = comparison_result(second_process, deferred_comparison(first_process, request, **more))
    with monkeypatch.context() as patch:
        patch.setattr(Compatibility, "_compare", None)
        registered = register_or_error(first_process, request, offload, **more)
    assert registered == register_or_error(second_process, request, None, **more)
    is_compatible = offload.comparison_result is not None and offload.comparison_result.verdict.is_compatible
    assert is_compatible is not isinstance(registered, tuple)


@pytest.mark.usefixtures("every_comparison_is_long")
def test_result_is_ignored_for_a_different_comparison(processes: tuple[Services, Services]) -> None:
    first_process, second_process = processes
    request = SchemaRequest(A_NUMBER)
    register(first_process, SchemaRequest(record("a")))
    first = comparison_result(second_process, deferred_comparison(first_process, request))
    assert deferred_comparison(first_process, SchemaRequest(record("other")), first).text != request.text
    assert (
        deferred_comparison(first_process, replace(request, metadata=Metadata.of({"x": "y"})), first).content.metadata
        is not None
    )
    # Another process has registered a newer version.
    register(second_process, SchemaRequest(record("a", "b")))
    repeated = deferred_comparison(first_process, request, first)
    assert [number for number, _ in repeated.versions] == [2]
    # The configuration of the subject has changed.
    second = comparison_result(second_process, repeated)
    configure(second_process, compatibility="FORWARD")
    assert deferred_comparison(first_process, request, second).config.compatibility == "FORWARD"
    configure(second_process, compatibility="NONE")
    assert register(first_process, request, second).is_new


@pytest.mark.usefixtures("every_comparison_is_long")
def test_comparison_with_a_deleted_version_has_no_result(processes: tuple[Services, Services]) -> None:
    first_process, second_process = processes
    register(first_process, SchemaRequest(record("a")))
    comparison = deferred_comparison(first_process, SchemaRequest(A_NUMBER))
    first_process.deletion.delete_subject("s", permanent=False)
    # The soft-deleted version still exists, but the registration no longer compares with it.
    offload = comparison_result(second_process, comparison)
    first_process.deletion.delete_subject("s", permanent=True)
    assert second_process.compatibility.run_comparison(comparison) is None
    assert register(first_process, SchemaRequest(A_NUMBER), offload).is_new
    assert second_process.compatibility.run_comparison(comparison) is None


def test_short_comparison_is_not_deferred(processes: tuple[Services, Services]) -> None:
    first_process, _ = processes
    register(first_process, SchemaRequest(record("a")), ComparisonOffload())
    assert register(first_process, SchemaRequest(record("a", "b")), ComparisonOffload()).is_new
    with pytest.raises(IncompatibleSchema):
        register(first_process, SchemaRequest(A_NUMBER), ComparisonOffload())


def test_comparison_with_uncacheable_history_is_deferred_without_reading_it(
    processes: tuple[Services, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    first_process, second_process = processes
    configure(first_process, compatibility="BACKWARD_TRANSITIVE")
    for fields in ("a", "ab", "abc"):
        register(first_process, SchemaRequest(record(*fields)))
    versions = first_process.database.read(lambda repository: repository.versions(subject="s"))
    stored = sum(len(item.schema.content.text) for item in versions)
    request = SchemaRequest(A_NUMBER)
    monkeypatch.setattr(compatibility, "CACHED_CHARS_MAX", stored)
    with pytest.raises(IncompatibleSchema):
        register(first_process, request, ComparisonOffload())
    monkeypatch.setattr(compatibility, "CACHED_CHARS_MAX", stored - 1)
    with monkeypatch.context() as patch:
        patch.setattr(SchemaParser, "parse_stored", None)
        comparison = deferred_comparison(first_process, request)
    offload = comparison_result(second_process, comparison)
    monkeypatch.setattr(SchemaParser, "parse_stored", None)
    assert register_or_error(first_process, request, offload)[0] is IncompatibleSchema


@pytest.mark.usefixtures("every_comparison_is_long")
def test_registration_without_comparison_is_not_deferred(processes: tuple[Services, Services]) -> None:
    first_process, _ = processes
    assert register(first_process, SchemaRequest(record("a")), ComparisonOffload()).is_new
    assert not register(first_process, SchemaRequest(record("a")), ComparisonOffload()).is_new
    assert register(first_process, SchemaRequest(A_NUMBER), ComparisonOffload(), force=True).is_new
    with pytest.raises(InvalidSchema):
        register(first_process, SchemaRequest("{"), ComparisonOffload())
