"""Fifty clients at once: one id per content, versions without gaps, nobody refused."""

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


def at_once(work: Callable[[int], T]) -> list[T]:
    barrier = threading.Barrier(CLIENTS)

    def run(number: int) -> T:
        barrier.wait(60)
        return work(number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(run, range(CLIENTS)))


def fixed(label: object) -> str:
    return f'{{"type":"fixed","name":"F","size":4,"of":"{label}"}}'


def test_the_same_schema_under_one_subject(registry: Registry) -> None:
    answers = at_once(lambda _: registry.register("same", fixed("same")))
    assert {answer.status for answer in answers} == {200}
    assert len({(answer.json["id"], answer.json["version"]) for answer in answers}) == 1
    assert registry.get("/subjects/same/versions").json == [1]


def test_the_same_schema_under_many_subjects(registry: Registry) -> None:
    answers = at_once(lambda number: registry.register(f"spread-{number}", fixed("spread")))
    assert {answer.status for answer in answers} == {200}
    assert {answer.json["version"] for answer in answers} == {1}
    assert len({answer.json["id"] for answer in answers}) == 1


def test_different_schemas_under_one_subject(registry: Registry) -> None:
    answers = at_once(lambda number: registry.register("different", fixed(number)))
    assert [answer.text for answer in answers if answer.status != 200] == []
    assert len({answer.json["id"] for answer in answers}) == CLIENTS
    assert sorted(answer.json["version"] for answer in answers) == list(range(1, CLIENTS + 1))
    assert registry.get("/subjects/different/versions").json == list(range(1, CLIENTS + 1))


def test_same_and_different_mixed(registry: Registry) -> None:
    answers = at_once(lambda number: registry.register(f"mixed-{number % 3}", fixed(number % 10)))
    assert [answer.text for answer in answers if answer.status != 200] == []
    for kind in range(10):
        assert len({answer.json["id"] for number, answer in enumerate(answers) if number % 10 == kind}) == 1
    for subject in range(3):
        versions = registry.get(f"/subjects/mixed-{subject}/versions").json
        assert versions == list(range(1, len(versions) + 1))


def test_of_many_incompatible_changes_at_most_one_is_first(registry: Registry) -> None:
    texts = ['"string"', '"int"', '"boolean"', '{"type":"fixed","name":"F","size":1}', '{"type":"array","items":"int"}']
    answers = at_once(lambda number: registry.register("first", texts[number % len(texts)]))
    assert {answer.status for answer in answers} == {200, 409}
    assert len({answer.json["id"] for answer in answers if answer.status == 200}) == 1
    assert registry.get("/subjects/first/versions").json == [1]


def test_registering_against_deleting(registry: Registry) -> None:
    def work(number: int) -> int:
        if number % 2:
            return registry.register("contended", fixed(number % 4)).status
        path = "/subjects/contended" + ("?permanent=true" if number % 4 else "")
        return registry.delete(path).status

    assert set(at_once(work)) <= {200, 404}
    registry.delete("/subjects/contended")
    registry.delete("/subjects/contended?permanent=true")
    assert registry.register("contended", STRING).json["version"] == 1


def test_a_reference_and_the_delete_of_its_target(registry: Registry) -> None:
    """Either the schema is registered and its target stays, or the target goes and the schema is refused."""
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

        results = at_once(work)
        deleted = (True, 200) in results
        registered = (False, 200) in results
        assert deleted != registered
