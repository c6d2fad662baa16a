"""Many threads change a few subjects in every way: no server errors, and consistent content afterwards."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.registry.registry_calls import RegistryInProcess, RestResponse, registry_in_process

THREADS = 12
CALLS_EACH = 40
SUBJECTS = ("a", "b", ":.c:a", ":.c:b")


def schema(label: int) -> dict[str, Any]:
    return {"schema": f'{{"type":"fixed","name":"F{label % 2}","size":4,"of":{label}}}'}


def referring(generator: random.Random, context: str) -> dict[str, Any]:
    number = generator.randrange(2)
    subject = generator.choice("ab")
    return {
        "schema": f'{{"type":"array","items":"F{number}"}}',
        "references": [{"name": f"F{number}", "subject": subject, "version": generator.randrange(1, 6)}],
    }


def call(registry: RegistryInProcess, generator: random.Random) -> RestResponse:
    subject = generator.choice(SUBJECTS)
    version = generator.choice(["latest", "1", "2", "3", "4"])
    permanent = generator.choice(["", "", "?permanent=true"])
    calls = [
        lambda: registry.post(f"/subjects/{subject}/versions", schema(generator.randrange(5))),
        lambda: registry.post(f"/subjects/{subject}/versions", schema(generator.randrange(5))),
        lambda: registry.post(f"/subjects/{subject}/versions", referring(generator, subject)),
        lambda: registry.post(f"/subjects/{subject}", schema(generator.randrange(5))),
        lambda: registry.delete(f"/subjects/{subject}/versions/{version}{permanent}"),
        lambda: registry.delete(f"/subjects/{subject}{permanent}"),
        lambda: registry.get(f"/subjects/{subject}/versions/{version}?deleted=true"),
        lambda: registry.get(f"/schemas/ids/{generator.randrange(1, 30)}?subject={subject}&format=resolved"),
        lambda: registry.put(f"/config/{subject}", {"compatibility": "NONE"}),
        lambda: registry.delete(f"/config/{subject}"),
        lambda: registry.put(f"/mode/{subject}", {"mode": generator.choice(["READONLY", "READWRITE", "IMPORT"])}),
        lambda: registry.delete(f"/mode/{subject}"),
        lambda: registry.post(
            f"/subjects/{subject}/versions",
            {**schema(generator.randrange(5)), "id": generator.randrange(40, 44), "version": generator.randrange(1, 6)},
        ),
    ]
    return generator.choice(calls)()


def test_concurrent_changes_of_every_kind_keep_the_registry_consistent(database_url: str) -> None:
    with registry_in_process(database_url) as registry:
        for scope in ("", "/:.c:"):
            registry.put(f"/config{scope}", {"compatibility": "NONE"})
        barrier = threading.Barrier(THREADS)

        def work(seed: int) -> list[RestResponse]:
            generator = random.Random(seed)
            barrier.wait(60)
            return [call(registry, generator) for _ in range(CALLS_EACH)]

        with ThreadPoolExecutor(THREADS) as pool:
            responses = [response for responses in pool.map(work, range(THREADS)) for response in responses]
        assert {response.text for response in responses if response.status not in (200, 404, 409, 422)} == set()
        assert any(response.status == 200 for response in responses)
        check_order(registry)


def check_order(registry: RegistryInProcess) -> None:
    """Each id has one content, and every reference has its target."""
    contents: dict[tuple[str, int], set[str]] = defaultdict(set)
    for item in registry.get("/schemas?subjectPrefix=:*:&deleted=true").json:
        context = ".c" if item["subject"].startswith(":.c:") else "."
        contents[context, item["id"]].add(item["guid"])
        for reference in item.get("references", []):
            target = reference["subject"] if context == "." else f":.c:{reference['subject']}"
            found = registry.get(f"/subjects/{target}/versions/{reference['version']}?deleted=true")
            assert found.status == 200, item
            assert item["deleted"] or not found.json["deleted"] or item["subject"] == target, item
    assert all(len(guids) == 1 for guids in contents.values())
    for context, schema_id in contents:
        query = "?subject=:.c:" if context == ".c" else ""
        assert registry.get(f"/schemas/ids/{schema_id}{query}").status == 200
