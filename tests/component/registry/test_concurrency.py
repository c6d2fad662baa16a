"""Fifty concurrent clients: one id per content, versions without gaps, no failed requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from support.registry.registry_calls import STRING, Registry

CLIENTS = 50
T = TypeVar("T")


@pytest.fixture(scope="module")
def registry(registry_url: str) -> Registry:
    return Registry(registry_url)


def run_concurrently(work: Callable[[int], T]) -> list[T]:
    barrier = threading.Barrier(CLIENTS)

    def run(number: int) -> T:
        barrier.wait(60)
        return work(number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(run, range(CLIENTS)))


def fixed(label: object) -> str:
    return f'{{"type":"fixed","name":"F","size":4,"of":"{label}"}}'


def test_concurrent_equal_schemas_under_one_subject_share_a_version(registry: Registry) -> None:
    responses = run_concurrently(lambda _: registry.register("same", fixed("same")))
    assert {response.status for response in responses} == {200}
    assert len({(response.json["id"], response.json["version"]) for response in responses}) == 1
    assert registry.get("/subjects/same/versions").json == [1]


def test_concurrent_equal_schemas_under_many_subjects_share_an_id(registry: Registry) -> None:
    responses = run_concurrently(lambda number: registry.register(f"spread-{number}", fixed("spread")))
    assert {response.status for response in responses} == {200}
    assert {response.json["version"] for response in responses} == {1}
    assert len({response.json["id"] for response in responses}) == 1


def test_concurrent_schemas_under_one_subject_get_consecutive_versions(registry: Registry) -> None:
    responses = run_concurrently(lambda number: registry.register("different", fixed(number)))
    assert [response.text for response in responses if response.status != 200] == []
    assert len({response.json["id"] for response in responses}) == CLIENTS
    assert sorted(response.json["version"] for response in responses) == list(range(1, CLIENTS + 1))
    assert registry.get("/subjects/different/versions").json == list(range(1, CLIENTS + 1))


def test_concurrent_equal_and_different_schemas(registry: Registry) -> None:
    responses = run_concurrently(lambda number: registry.register(f"mixed-{number % 3}", fixed(number % 10)))
    assert [response.text for response in responses if response.status != 200] == []
    for kind in range(10):
        assert len({response.json["id"] for number, response in enumerate(responses) if number % 10 == kind}) == 1
    for subject in range(3):
        versions = registry.get(f"/subjects/mixed-{subject}/versions").json
        assert versions == list(range(1, len(versions) + 1))


def test_one_of_many_incompatible_schemas_wins(registry: Registry) -> None:
    texts = ['"string"', '"int"', '"boolean"', '{"type":"fixed","name":"F","size":1}', '{"type":"array","items":"int"}']
    responses = run_concurrently(lambda number: registry.register("first", texts[number % len(texts)]))
    assert {response.status for response in responses} == {200, 409}
    assert len({response.json["id"] for response in responses if response.status == 200}) == 1
    assert registry.get("/subjects/first/versions").json == [1]


def test_concurrent_registrations_and_deletions_never_fail(registry: Registry) -> None:
    def work(number: int) -> int:
        if number % 2:
            return registry.register("contended", fixed(number % 4)).status
        path = "/subjects/contended" + ("?permanent=true" if number % 4 else "")
        return registry.delete(path).status

    assert set(run_concurrently(work)) <= {200, 404}
    registry.delete("/subjects/contended")
    registry.delete("/subjects/contended?permanent=true")
    assert registry.register("contended", STRING).json["version"] == 1


def test_concurrent_reference_and_deletion_of_its_target_exclude_each_other(registry: Registry) -> None:
    """Either the schema is registered and its target remains, or the target is deleted and the schema is rejected."""
    for round_number in range(5):
        target = f"target-{round_number}"
        name = f"T{round_number}"
        registry.registered(target, f'{{"type":"fixed","name":"{name}","size":4}}')
        text = f'{{"type":"array","items":"{name}"}}'
        reference = {"name": name, "subject": target, "version": 1}

        def work(
            number: int, target: str = target, text: str = text, reference: dict[str, object] = reference
        ) -> tuple[bool, int]:
            if number % 2:
                return True, registry.delete(f"/subjects/{target}").status
            return False, registry.register(f"user-of-{target}-{number}", text, references=[reference]).status

        results = run_concurrently(work)
        deleted = (True, 200) in results
        registered = (False, 200) in results
        assert deleted != registered
