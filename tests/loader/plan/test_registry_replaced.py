"""A registry that was rebuilt or restored from an older copy uses ids for other schemas; topics that use such ids
stop."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.avro_schema import parse_schema, self_contained_text
from headrace.loader.plan import registry_requests, schemas
from headrace.loader.report import RunReport
from headrace.loader.run import plan_load, run_load
from headrace.registry.errors import AccessDenied, RegistryUnavailable
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, FakeRegistry, World

TIMEOUT_S = 20.0
CLICK = '{"type":"record","name":"Click","fields":[{"name":"page","type":"string"}]}'


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.registry.register("clicks-value", 2, CLICK)
    world.topic("orders", [1] * 10)
    world.topic("clicks", [2] * 3)
    return world


def load(world: World) -> RunReport:
    return run_load(world.ports(), world.settings)


def rebuild_registry(world: World, name: str, **subjects: tuple[int, str]) -> None:
    """Replaces the registry by another one."""
    world.registry.name = name
    world.registry.subjects, world.registry.texts = {}, {}
    for topic, (schema_id, text) in subjects.items():
        world.registry.register(f"{topic}-value", schema_id, text)


def produce_more(world: World, topic: str, schema_id: int) -> None:
    world.cluster.topics[topic].logs[0] += [schema_id] * 2


def requests_of(world: World) -> int:
    before = world.registry.requests
    assert load(world).problems == {}
    return world.registry.requests - before


@pytest.mark.parametrize("name", ["registry-2", "registry-1", ""])
def test_a_topic_whose_id_now_has_another_schema_stops(world: World, name: str) -> None:
    """The topic stops even if the registry reports no identity or the same identity, as after a restore from an older
    copy."""
    world.registry.name = name and "registry-1"
    load(world)
    rebuild_registry(world, name, clicks=(1, CLICK), orders=(2, ORDER_V1))
    produce_more(world, "orders", 1)  # the id may be of the old or of the new registry
    produce_more(world, "clicks", 2)
    report = load(world)
    assert report.commit_number == 0
    for topic, schema_id in (("orders", 1), ("clicks", 2)):
        (problem,) = report.problems[topic]
        cached = world.warehouse / "_headrace" / "schemas" / f"{schema_id}.avsc"
        assert re.search(rf"\b{schema_id}\b.*{cached}\b", problem)
        assert "headrace registry import" in problem
        assert "loader.topics_exclude" in problem
    assert load(world).problems.keys() == {"orders", "clicks"}, "the problem persists until an operator acts"


def test_other_topics_continue_and_the_original_registry_ends_the_problem(world: World) -> None:
    load(world)
    before = dict(world.registry.texts)
    world.registry.texts[1] = CLICK
    produce_more(world, "orders", 1)
    produce_more(world, "clicks", 2)
    report = load(world)
    assert (set(report.problems), [one.topic for one in report.loaded]) == ({"orders"}, ["clicks"])
    world.registry.texts.update(before)
    assert load(world).problems == {}
    assert world.rows("orders") == world.produced("orders")


def test_a_topic_without_new_messages_is_compared_after_a_registry_change(world: World) -> None:
    load(world)
    rebuild_registry(world, "registry-2", orders=(1, ORDER_V1), clicks=(2, ORDER_V2))
    assert set(load(world).problems) == {"clicks"}


def test_a_registry_that_moved_with_its_ids_is_compared_once(world: World) -> None:
    load(world)
    idle = requests_of(world)
    world.registry.name = "registry-2"
    assert requests_of(world) == idle + 2, "one request per id"
    assert requests_of(world) == idle
    produce_more(world, "orders", 1)
    produce_more(world, "clicks", 2)
    assert requests_of(world) == idle + 2, "the newest id of each topic with news"
    assert world.rows("orders") == world.produced("orders")


def test_a_changed_schema_outside_the_subject_stops_the_topic(world: World) -> None:
    world.registry.register("", 7, ORDER_V1)
    produce_more(world, "orders", 7)
    load(world)
    load(world)
    assert world.rows("orders") == world.produced("orders")
    world.registry.texts[7] = CLICK
    produce_more(world, "orders", 1)
    assert set(load(world).problems) == {"orders"}


def load_ids(world: World, *schema_ids: int) -> None:
    """Loads messages with further schema ids into the topic `orders`."""
    for schema_id in schema_ids:
        world.registry.register("", schema_id, ORDER_V1)
    world.cluster.topics["orders"].logs[0] += schema_ids
    load(world)
    load(world)
    assert world.rows("orders") == world.produced("orders")


def test_all_ids_are_compared_after_the_first_mismatch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Normally each run compares only some of many ids. After one mismatch, other ids may have been reused too."""
    load_ids(world, *range(10, 20))
    monkeypatch.setattr(schemas, "_sampled_ids", lambda ids, run_hash: {ids[-1]})
    world.registry.texts[15] = CLICK
    produce_more(world, "orders", 1)
    assert load(world).problems == {}
    world.registry.texts[2] = ORDER_V2
    produce_more(world, "orders", 1)
    produce_more(world, "clicks", 2)
    assert set(load(world).problems) == {"orders", "clicks"}


def test_older_ids_are_compared_in_later_runs(world: World) -> None:
    load_ids(world, *range(10, 14))
    world.registry.texts[11] = CLICK
    for _ in range(100):
        produce_more(world, "orders", 1)
        if load(world).problems:
            return
    raise AssertionError("the id was never compared")


def test_a_new_version_with_a_reused_id_stops_its_topic(world: World) -> None:
    load(world)
    world.registry.subjects["orders-value"].append(2)
    world.registry.texts[2] = ORDER_V2
    report = load(world)
    assert "/schemas/2.avsc" in report.problems["orders"][0]
    assert len(world.log().read_state().topics["orders"].load_schema.writer_ids) == 1


def test_a_reused_id_in_messages_stops_its_range(world: World) -> None:
    load(world)
    world.registry.texts[2] = ORDER_V1
    world.cluster.topics["orders"].logs[0] += [1, 2, 1]
    report = load(world)
    assert any("/schemas/2.avsc" in problem for problem in report.problems["orders"])
    assert world.rows("orders") == world.produced("orders")[:11]


def test_an_outage_is_not_taken_for_another_registry(world: World) -> None:
    load(world)
    world.registry.is_down = True
    produce_more(world, "orders", 1)
    report = load(world)
    assert report.problems == {}
    assert report.registry_outage
    assert world.rows("orders") == world.produced("orders")
    world.registry.is_down = False
    world.registry.name = "registry-2"
    world.registry.texts[1] = CLICK
    assert set(load(world).problems) == {"orders"}


@pytest.mark.parametrize("failure", [AccessDenied("not allowed"), RegistryUnavailable("http://registry", "slow")])
def test_newest_ids_are_compared_without_permission_to_read_the_identity(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    load(world)

    def fail() -> str:
        raise failure

    monkeypatch.setattr(world.registry, "identity", fail)
    produce_more(world, "orders", 1)
    report = load(world)
    assert report.problems == {}
    assert world.rows("orders") == world.produced("orders")
    assert bool(report.registry_outage) is isinstance(failure, RegistryUnavailable)


def test_a_permanently_deleted_schema_is_read_from_the_cache(world: World) -> None:
    load(world)
    del world.registry.texts[1]
    world.registry.name = "registry-2"
    produce_more(world, "orders", 1)
    assert load(world).problems == {}
    assert world.rows("orders") == world.produced("orders")


def test_a_cached_schema_in_another_spelling_is_equal(world: World) -> None:
    load(world)
    cached = world.warehouse / "_headrace" / "schemas" / "1.avsc"
    cached.write_text(json.dumps(json.loads(ORDER_V1), indent=2))
    world.registry.name = "registry-2"
    assert load(world).problems == {}
    assert self_contained_text(parse_schema(ORDER_V1)) == ORDER_V1


def test_error_of_a_damaged_cached_schema_has_its_file(world: World) -> None:
    load(world)
    (world.warehouse / "_headrace" / "schemas" / "1.avsc").write_text('{"type":')
    produce_more(world, "orders", 1)
    assert "1.avsc" in load(world).problems["orders"][0]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"identity":3,"compared":[]}'])
def test_the_hint_may_be_lost_or_damaged(world: World, content: str) -> None:
    load(world)
    (world.warehouse / "_headrace" / "schemas" / "registry.json").write_text(content)
    assert load(world).problems == {}
    world.registry.texts[2] = ORDER_V2
    (world.warehouse / "_headrace" / "schemas" / "registry.json").write_text(content)
    assert set(load(world).problems) == {"clicks"}


def test_a_plan_leaves_no_hint(world: World) -> None:
    load(world)
    hint = world.warehouse / "_headrace" / "schemas" / "registry.json"
    hint.unlink()
    ports = world.ports()
    dry = dataclasses.replace(
        ports, schemas=type(ports.schemas)(world.registry, ports.log.storage, world.subject_of, writable=False)
    )
    assert plan_load(dry, world.settings).problems == {}
    assert not hint.exists()


class SlowRegistry(FakeRegistry):
    """Counts concurrent requests. Each request waits until the permitted number of requests run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.reached = threading.Event()
        self.concurrent = self.concurrent_max = 0

    def _count_request(self) -> None:
        with self.lock:
            self.concurrent += 1
            self.concurrent_max = max(self.concurrent_max, self.concurrent)
            if self.concurrent == registry_requests.CONCURRENT_REQUESTS_MAX:
                self.reached.set()
        self.reached.wait(TIMEOUT_S)
        with self.lock:
            self.concurrent -= 1
            super()._count_request()


def slow_world(tmp_path: Path, topics: int) -> tuple[World, SlowRegistry]:
    world = World(tmp_path)
    world.registry = registry = SlowRegistry()
    for number in range(topics):
        registry.register(f"t{number}-value", number, ORDER_V1)
        world.topic(f"t{number}", [number])
    return world, registry


def test_registry_requests_of_a_plan_run_concurrently(tmp_path: Path) -> None:
    world, registry = slow_world(tmp_path, 40)
    assert len(load(world).loaded) == 40
    assert registry.requests == 1 + 40 + 2 * 40, "the fake registry counts the request of a version twice"
    assert registry.concurrent_max == registry_requests.CONCURRENT_REQUESTS_MAX
    registry.concurrent_max = 0
    registry.reached.clear()
    before = registry.requests
    load(world)
    assert registry.concurrent_max == registry_requests.CONCURRENT_REQUESTS_MAX
    assert registry.requests - before == 41, "the versions of each subject, and the identity of the registry"


def test_a_registry_outage_stops_further_requests(tmp_path: Path) -> None:
    world, registry = slow_world(tmp_path, 40)
    registry.is_down = True
    before = registry.requests
    report = load(world)
    assert len(report.waiting) == 40
    assert registry.requests - before <= registry_requests.CONCURRENT_REQUESTS_MAX


def test_requests_of_two_kinds_with_equal_fields_are_distinct() -> None:
    class Registry(FakeRegistry):
        def versions(self, subject: Any) -> list[int]:
            return [5]

    registry = Registry()
    registry.register("", 5, ORDER_V1)
    cached_responses = registry_requests.RegistryResponses(registry)
    assert cached_responses.fetch(registry_requests.VersionsRequest(5)) == (5,)  # type: ignore[arg-type]
    assert isinstance(cached_responses.fetch(registry_requests.SchemaByIdRequest(5)), type(parse_schema(ORDER_V1)))
