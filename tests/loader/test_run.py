"""Complete runs over a cluster, a registry, a pool and a metastore in memory."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import avro_codec
from headrace.avro_schema import Schema, parse_schema
from headrace.cli.load import print_run, print_status
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.ops import ReplaceView
from headrace.hive_ddl.table import SCHEMA_URL, VERSION, TableState
from headrace.kafka_wire.cluster import EpochQuery
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.apply.repair import Repair
from headrace.loader.apply.schema import SchemaApplier
from headrace.loader.commit import commit_log, conflict, prepare
from headrace.loader.commit.commit import Commit
from headrace.loader.commit.commit_log import CommitLog, CommitResult
from headrace.loader.commit.reconcile import DISK_REMEDY
from headrace.loader.epochs import ReadEpochs
from headrace.loader.errors import EarlierWarehouse, LoaderError, NoSuchTopic
from headrace.loader.inspect.commit_chain import read_chain
from headrace.loader.inspect.history import table_history
from headrace.loader.inspect.rolling_check import _CheckRun
from headrace.loader.inspect.status import load_status
from headrace.loader.load_schema import merge
from headrace.loader.offsets.choose import OffsetChoice, commit_of, skip, starts
from headrace.loader.plan import packing
from headrace.loader.plan.load_plan import plan_json
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.read import units as reading
from headrace.loader.report import RunReport
from headrace.loader.run import plan_load, run_load
from headrace.loader.work_unit import ImplausibleTimeCount, ImplausibleTimeKind, UnitResult, WorkUnit
from headrace.registry.errors import AccessDenied, CredentialsRefused, ServiceError, StoreError
from support.examples import examples
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, World
from support.loader.loader_samples import POLICY, clean, step_of
from support.simulation.remembered import keep_journal_in_memory, remember_results


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10, [1] * 5)
    return world


def load(world: World, **changes: object) -> RunReport:
    return run_load(world.ports(), dataclasses.replace(world.settings, **changes))


def test_a_topic_becomes_a_table_with_each_offset_once(world: World) -> None:
    report = load(world)
    assert world.rows("orders") == world.produced("orders")
    assert ("headrace", "orders") in world.hive.tables
    assert world.hive.parts[("headrace", "orders")] == {
        ("2026-01-01", "00"): f"file://{world.warehouse}/orders/dt=2026-01-01/hr=00"
    }
    assert world.cluster.committed == {TopicPartition("orders", 0): 10, TopicPartition("orders", 1): 5}
    assert sum(row.count for row in world.audit("orders")) == 15
    assert sum(one.rows for one in report.task_times) == 15
    assert sum(one.bytes_read for one in report.task_times) == report.loaded[0].bytes_read
    (loaded,) = report.loaded
    assert (loaded.rows, loaded.new, report.commit_number, report.problems) == (15, True, 1, {})
    assert world.log().storage.children("staging") == ()


def table_of_other_warehouse(world: World, location: str, topic: str = "orders") -> TableState:
    """The table of the topic as a load into another warehouse has created it."""
    load(world)
    table = world.hive.tables[("headrace", "orders")]
    properties = {**table.properties, "headrace.topic": topic}
    return dataclasses.replace(table, location=location, properties=properties)


def test_new_warehouse_is_refused_if_a_table_has_files_in_another_warehouse(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    other.registry, other.cluster.topics = world.registry, world.cluster.topics
    world.hive.tables[("headrace", "orders")] = table_of_other_warehouse(other, "file:///srv/first/orders")
    with pytest.raises(EarlierWarehouse, match=r"headrace\.orders\b.*file:///srv/first/orders\b") as refused:
        load(world)
    assert refused.value.topics == ["orders"]
    assert (world.log().head(), world.pool.runs) == (0, 0)
    world.registry.register("sales-value", 2, ORDER_V1)
    world.topic("sales", [1])
    table = world.hive.tables[("headrace", "orders")]
    sales = dataclasses.replace(table, name="sales", properties={**table.properties, "headrace.topic": "sales"})
    world.hive.tables[("headrace", "sales")] = sales
    with pytest.raises(EarlierWarehouse, match=r"file:///srv/first/orders\b.*\b2\b") as refused:
        load(world)
    assert refused.value.topics == ["orders", "sales"]
    assert load(world, allow_new_warehouse=True).commit_number == 1


@pytest.mark.parametrize("case", ["same warehouse", "of another topic", "no metastore"])
def test_new_warehouse_is_accepted_without_a_table_of_another_warehouse(
    world: World, tmp_path: Path, case: str
) -> None:
    other = World(tmp_path / "other")
    other.registry, other.cluster.topics = world.registry, world.cluster.topics
    here = world.tables().files.location("orders")
    table = table_of_other_warehouse(
        other, here if case == "same warehouse" else "file:///srv", "sales" if case == "of another topic" else "orders"
    )
    world.hive.tables[("headrace", "orders")] = table
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused") if case == "no metastore" else None
    assert load(world).commit_number == 1


def test_an_unreadable_table_stops_only_its_own_topic(world: World, tmp_path: Path) -> None:
    world.registry.register("sales-value", 2, ORDER_V1)
    world.topic("sales", [1])
    world.hive.refused["headrace", "orders"] = "the SerDe cannot be made"
    report = load(world)
    assert report.commit_number == 1
    assert list(report.problems) == ["orders"] and "the SerDe cannot be made" in str(report.problems["orders"])
    assert ("headrace", "sales") in world.hive.tables
    # The tables of other topics are still checked.
    third = World(tmp_path / "third")
    third.registry, third.cluster.topics, third.hive = world.registry, world.cluster.topics, world.hive
    with pytest.raises(EarlierWarehouse) as refused:
        load(third)
    assert refused.value.topics == ["sales"]


def test_a_run_without_new_messages_commits_nothing(world: World) -> None:
    load(world)
    executed = len(world.hive.executed)
    report = load(world)
    assert report.commit_number == 0
    assert world.log().head() == 1
    assert world.pool.runs == 1
    assert len(world.hive.executed) == executed
    assert world.log().storage.children("staging") == ()


def test_a_run_reads_each_commit_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of a large load are large, and a run applies its own commit immediately."""
    load(world)
    read: list[bytes] = []
    read_document = commit_log.read_document
    monkeypatch.setattr(
        commit_log, "read_document", lambda content, wanted: read.append(content) or read_document(content, wanted)
    )
    load(world)
    assert len(read) == len(set(read)) == 1
    world.cluster.topics["orders"].logs[0] += [1]
    read.clear()
    assert load(world).commit_number == 2
    assert len(read) == len(set(read)) == 1, "the one before"
    assert world.rows("orders") == world.produced("orders")


def test_next_run_continues_at_the_committed_offsets(world: World) -> None:
    load(world)
    world.cluster.topics["orders"].logs[1] += [1, 1]
    (loaded,) = load(world).loaded
    assert loaded.rows == 2
    assert world.rows("orders") == world.produced("orders")


def test_a_partition_is_fetched_only_if_it_had_files_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load sends a slow metastore as few requests as possible, apart from its share in comparing all partitions. It
    moves a partition with a wrong location to its files."""
    monkeypatch.setattr(_CheckRun, "restore_partitions", lambda run, before, *_: before)
    load(world)
    assert world.hive.partition_requests == []
    (values,) = world.hive.parts["headrace", "orders"]
    there = world.hive.parts["headrace", "orders"][values]
    world.hive.parts["headrace", "orders"][values] = "file:///elsewhere"
    world.topic("orders", [1] * 20, [1] * 5)
    load(world)
    assert world.hive.partition_requests == [frozenset({values})]
    assert world.hive.parts["headrace", "orders"] == {values: there}


def test_a_new_topic_and_a_new_field_need_no_configuration(world: World) -> None:
    load(world)
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("clicks", [2] * 3)
    world.registry.register("orders-value", 3, ORDER_V2)
    world.cluster.topics["orders"].logs[0] += [3]
    report = load(world)
    assert {(one.topic, one.new, one.schema_changed) for one in report.loaded} == {
        ("clicks", True, False),
        ("orders", False, True),
    }
    assert {one.topic: one.changes for one in report.loaded} == {"clicks": (), "orders": ("+ note string",)}
    assert "note" in world.hive.tables[("headrace", "orders")].properties["avro.schema.literal"]
    assert world.rows("clicks") == world.produced("clicks")
    log = world.log()
    log.read_state()
    history = table_history(log, "orders")
    assert [(one.version, one.changes) for one in history][1:] == [(2, ("+ note string",))]
    assert history[0].changes[0] == "+ id bigint"
    assert [one.commit_number for one in history] == [1, report.commit_number]


def test_report_counts_messages_that_are_held_back(world: World) -> None:
    assert load(world).held_back == 0
    assert load(world).held_back == 0
    world.topic("without-schema", [None] * 4)
    world.cluster.topics["orders"].logs[0] += [1, 1]
    report = load(world, topics_only=("without-schema",))
    assert (report.commit_number, report.held_back) == (0, 4)
    assert load(world).held_back == 4


def test_topics_only_limits_a_load_to_the_named_topics(world: World) -> None:
    load(world)
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("clicks", [2] * 3)
    world.cluster.topics["orders"].logs[0] += [1]
    report = load(world, topics_only=("clicks",))
    assert [one.topic for one in report.loaded] == ["clicks"]
    assert report.notes == (), "no note claims that the other topics are missing"
    assert [one.topic for one in load(world).loaded] == ["orders"]
    with pytest.raises(NoSuchTopic) as refused:
        load(world, topics_only=("click.",))
    assert refused.value.topic == "click."
    with pytest.raises(NoSuchTopic, match=r"loader\.topics_include") as refused:
        load(world, topics_only=("clicks",), topics_exclude=("cli.*",))
    assert refused.value.topic == "clicks"


def test_tasks_get_routes_of_the_subjects_versions_only(world: World) -> None:
    """Two loads fold the versions, so that the commit log carries the route of the first."""
    order = '{"type":"record","name":"Order","fields":[%s]}'
    name, moved = '{"name":"name","type":"string"}', '{"name":"title","type":"string","aliases":["name"]}'
    world.registry.register("songs-value", 11, order % name)
    world.topic("songs", [11])
    load(world)
    world.registry.register("songs-value", 12, order % moved)
    load(world)
    world.registry.register("songs-value", 13, order % f"{name},{moved}")
    world.registry.register("", 99, order % name)
    world.cluster.topics["songs"].logs[0] += [99]
    load(world)
    world.cluster.topics["songs"].logs[0] += [13]
    (unit,) = plan_load(world.ports(), world.settings).units
    plan = unit.topics["songs"]
    assert plan.routes == {11: {}, 12: {}, 13: {"0": 1, "1": 0}}
    assert plan.writer_schemas.keys() == {11, 12, 13, 99}
    columns = [column.name for column in parse_schema(plan.load_schema).root.fields]  # type: ignore[union-attr]
    assert columns == ["title", "name_2"]
    writer = TopicProjection(plan, ()).writer(11)
    assert writer.project is not None
    assert writer.project(b"\x02x") == b"\x02x\x00", "the first column, and null in the second"


def test_a_registered_topic_without_messages_gets_its_table(world: World) -> None:
    world.registry.register("quiet-value", 5, ORDER_V1)
    world.topic("quiet", [])
    load(world)
    assert ("headrace", "quiet") in world.hive.tables


def test_topics_may_share_a_subject_that_is_named_after_their_record(world: World) -> None:
    world.registry.register("shop.Order", 1, ORDER_V1)
    world.subjects = {"orders": "shop.Order", "returns": "shop.Order"}
    world.topic("returns", [1, 1], topic_id="id-2")
    assert not load(world).has_findings
    world.registry.register("shop.Order", 2, ORDER_V2)
    world.cluster.topics["returns"].logs[0].append(2)
    assert not load(world).has_findings
    for topic in ("orders", "returns"):
        assert world.rows(topic) == world.produced(topic)
        known = world.log().read_state().topics[topic]
        assert (known.load_schema.subject, known.load_schema.version) == ("shop.Order", 2)
        assert '"note"' in world.hive.tables["headrace", topic].properties["avro.schema.literal"].replace("\\", "")


def test_a_table_keeps_the_subject_that_it_was_made_from(world: World) -> None:
    world.topic("other", [1], topic_id="id-2")
    world.registry.register("other-value", 1, ORDER_V1)
    load(world)
    world.registry.register("shop.Order", 2, ORDER_V2)
    world.subjects = {"orders": "shop.Order"}
    for topic in ("orders", "other"):
        world.cluster.topics[topic].logs[0].append(1)
    report = load(world)
    assert report.problems == {
        "orders": (
            "its table was created from subject orders-value, and loader.subject is shop.Order now; "
            "set orders-value in a [[loader.topic]] section for it",
        )
    }
    assert world.rows("other") == world.produced("other")
    world.subjects = {}
    assert not load(world).has_findings
    assert world.rows("orders") == world.produced("orders")


def test_topics_without_a_subject_wait_and_are_named(world: World) -> None:
    world.topic("raw", [9] * 3)
    report = load(world)
    (topic, reason), *others = report.waiting.items()
    assert (topic, others) == ("raw", [])
    assert reason.startswith("no subject raw-value is registered yet; ")
    assert not report.has_findings
    assert world.rows("orders") == world.produced("orders")


def test_a_registered_id_unknown_to_the_plan_stops_a_range_once(world: World) -> None:
    for schema_id in (50, 51):
        world.registry.register("", schema_id, ORDER_V1)  # under another subject
    world.topic("orders", [1, 1, 50, 1, 51, 1])
    first = load(world)
    assert world.rows("orders") == [(0, 0), (0, 1)]
    assert any("schema id 50, 51" in note for note in first.notes)
    load(world)
    assert world.rows("orders") == world.produced("orders")
    assert load(world).commit_number == 0


def test_messages_with_unregistered_ids_are_quarantined_in_the_same_run(world: World) -> None:
    world.topic("orders", [1, 98, 1, 99, 98, 1], [97, 1])
    (loaded,) = load(world).loaded
    assert (loaded.rows, loaded.quarantined) == (4, 4)
    assert world.rows("orders") == [(0, 0), (0, 2), (0, 5), (1, 1)]
    assert world.quarantined("orders") == [(0, 1), (0, 3), (0, 4), (1, 0)]
    assert ("headrace_quarantine", "orders") in world.hive.tables
    assert load(world).commit_number == 0


def test_an_unregistered_id_is_requested_again_when_it_occurs_again(world: World) -> None:
    world.topic("orders", [1, 99])
    assert load(world).loaded[0].quarantined == 1
    world.registry.register("", 99, ORDER_V1)
    world.cluster.topics["orders"].logs[0] += [99]
    load(world)
    assert load(world).loaded[0].rows == 1
    assert world.rows("orders") == [(0, 0), (0, 2)]


def test_a_version_registered_while_the_load_runs_is_folded_before_its_messages_are_loaded(world: World) -> None:
    """The registry is read after the cluster, but a registry of several servers may return an older list of
    versions."""
    world.registry.texts[3] = ORDER_V2  # can be fetched by its id, but the subject does not list it yet
    world.cluster.topics["orders"].logs[0] += [3]
    load(world)
    assert (0, 10) not in world.rows("orders")
    world.registry.register("orders-value", 3, ORDER_V2)
    load(world)
    assert world.rows("orders") == world.produced("orders")
    assert "note" in world.hive.tables[("headrace", "orders")].properties["avro.schema.literal"]


def test_one_load_quarantines_a_topic_with_any_number_of_unregistered_ids(world: World) -> None:
    world.pool.unknown_ids_max = 7  # limit per task
    world.policy = dataclasses.replace(world.policy, quarantine_ratio_max=1.0)
    world.topic("orders", [*range(1_000, 1_100), 1], [*range(1_050, 1_150), 1])
    (loaded,) = load(world).loaded
    assert (loaded.rows, loaded.quarantined) == (2, 200)
    assert sorted(world.rows("orders") + world.quarantined("orders")) == world.produced("orders")
    assert load(world).commit_number == 0


def test_a_load_requests_a_limited_number_of_unregistered_ids_and_the_next_continues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ABSENT_IDS_MAX", 30)
    world.topic("orders", range(1_000, 1_050), [1])
    requests_before = world.registry.requests
    first = load(world)
    assert world.registry.requests - requests_before < 40
    assert len(world.quarantined("orders")) == 30
    assert any("the next load continues" in note for note in first.notes)
    load(world)
    assert sorted(world.rows("orders") + world.quarantined("orders")) == world.produced("orders")


@pytest.mark.parametrize(
    ("failure", "is_outage"), [(ServiceError("HTTP 502"), True), (AccessDenied("not allowed"), False)]
)
def test_an_id_whose_request_fails_stops_its_range(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: Exception, is_outage: bool
) -> None:
    def fail(schema_id: int) -> None:
        raise failure

    world.topic("orders", [1, 99, 1], [1])
    load_before = world.registry.schema_by_id(1)
    monkeypatch.setattr(world.registry, "version", lambda subject, version: load_before)
    monkeypatch.setattr(world.registry, "schema_by_id", fail)
    report = load(world)
    assert world.rows("orders") == [(0, 0), (1, 0)]
    assert world.quarantined("orders") == []
    assert bool(report.registry_outage) is is_outage
    assert any("schema 99: not allowed" in text for text in report.problems.get("orders", ())) is not is_outage
    monkeypatch.undo()
    load(world)
    assert world.quarantined("orders") == [(0, 1)]
    assert world.rows("orders") == [(0, 0), (0, 2), (1, 0)]


def test_too_much_quarantine_fails_the_topic_and_nothing_else(world: World) -> None:
    world.registry.register("bad-value", 8, ORDER_V1)
    world.topic("bad", [8] * 500)
    world.pool.bad = {8}
    report = load(world)
    assert "500 of 500 messages cannot be loaded" in report.problems["bad"][0]
    assert world.rows("orders") == world.produced("orders")
    assert world.rows("bad") == []
    world.policy = dataclasses.replace(world.policy, quarantine_ratio_max=1.0)
    assert load(world).loaded[0].quarantined == 500


def test_few_bad_messages_over_the_ratio_are_loaded_and_reported_by_every_run(world: World) -> None:
    world.topic("orders", [1] * 2)
    for _ in range(2):
        world.cluster.topics["orders"].logs[0] += [99] * 99
        report = load(world)
        assert report.loaded[0].quarantined == 99
        assert "99 of " in report.problems["orders"][0] and report.has_findings
    assert sorted(world.rows("orders") + world.quarantined("orders")) == world.produced("orders")
    world.cluster.topics["orders"].logs[0] += [1]
    assert not load(world).has_findings


def test_messages_with_implausible_times_are_loaded_and_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ImplausibleTimeCount(ImplausibleTimeKind.SCATTERED, "at", "", 1, 0)
    many = ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "at", "millis", 10, 1_356_998_400_000_000_000)
    read = world.pool

    def with_implausible_times(units: Sequence[WorkUnit]) -> list[UnitResult]:
        first, *rest = read(units)
        ranges = (dataclasses.replace(first.ranges[0], implausible_times=(few, many)), *first.ranges[1:])
        return [dataclasses.replace(first, ranges=ranges), *rest]

    monkeypatch.setattr(world, "pool", with_implausible_times)
    report = load(world)
    assert world.rows("orders") == world.produced("orders")
    (problem,) = report.problems["orders"]
    assert re.match(r"10 of 15 .*\bat \(.*\b13569", problem)
    assert any(re.match(r"orders: 1 of 15 .*\bat ", note) for note in report.notes)


def test_unusable_time_field_is_a_note_in_report_plan_and_status(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = json.loads(ORDER_V1)
    schema["fields"].append({"name": "timestamp", "type": "double", "default": 0})
    world.registry.register("orders-value", 2, json.dumps(schema))
    note = (
        "orders: the time field timestamp is a double, which states no unit: rows are filed by the time of the record; "
    )
    plan = plan_load(world.ports(), world.settings)
    assert [one for one in plan_json(plan)["notes"] if one.startswith(note)]
    report = load(world)
    assert not report.has_findings
    print_run(report)
    assert f"note: {note}" in capsys.readouterr().out
    assert [one for one in dataclasses.asdict(report)["notes"] if one.startswith(note)]
    status = load_status(world.log(), None, {}, policy_of=lambda topic: world.policy)
    print_status(status)
    assert f"note: {note}" in capsys.readouterr().out
    assert f"orders: {dataclasses.asdict(status)['topics'][0]['time_note']}".startswith(note)
    assert load(world).notes == (), "nothing was read"


def test_prefix_of_a_failed_range_is_committed_and_the_next_run_reads_the_rest(world: World) -> None:
    world.pool.broken = {TopicPartition("orders", 0): 4}
    report = load(world)
    assert "the leader has changed" in report.problems["orders"][0]
    assert len(world.rows("orders")) == 9
    world.pool.broken = {}
    assert not load(world).has_findings
    assert world.rows("orders") == world.produced("orders")


def test_a_foreign_table_holds_back_its_topic_until_it_is_dropped(world: World) -> None:
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("clicks", [2] * 3)
    key = ("headrace", "orders")
    world.hive.tables[key] = TableState("headrace", "orders", "file:///elsewhere", (), ("dt",), {})
    for _ in range(2):
        report = load(world)
        assert "headrace.orders" in report.problems["orders"][0]
        assert world.rows("orders") == []
        assert world.rows("clicks") == world.produced("clicks")
    assert world.log().head() == 1
    world.cluster.topics["orders"].logs[0] += [1]
    load(world)
    del world.hive.tables[key]
    assert not load(world).has_findings
    assert world.rows("orders") == world.produced("orders")
    assert len(world.hive.parts[key]) == 1
    assert world.log().storage.children("staging") == ()


def test_a_topic_stays_loadable_when_its_type_outgrows_the_metastore(world: World) -> None:
    """Debezium messages of a wide table have such a type."""
    load(world)
    for number, members in enumerate((1000, 1001), 2):
        fields = [{"name": f"some_column_name_of_a_table_{n:04}", "type": "string"} for n in range(members)]
        row = {"name": "before", "type": ["null", {"type": "record", "name": "Row", "fields": fields}], "default": None}
        order = json.loads(ORDER_V1)
        world.registry.register("orders-value", number, json.dumps(order | {"fields": [*order["fields"], row]}))
        world.cluster.topics["orders"].logs[0] += [number]
        assert not load(world).has_findings
        assert world.rows("orders") == world.produced("orders")
        table = world.hive.tables["headrace", "orders"]
        assert (table.properties[VERSION], SCHEMA_URL in table.properties) == (str(number), True)
    for tables in (world.hive.tables, world.hive.parts):
        tables.clear()
    world.cluster.topics["orders"].logs[0] += [1]
    assert not load(world).has_findings
    assert world.hive.tables["headrace", "orders"].properties[SCHEMA_URL] == table.properties[SCHEMA_URL]


def test_a_metastore_that_is_down_delays_the_files_and_loses_none(world: World) -> None:
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    for _ in range(3):
        world.cluster.topics["orders"].logs[0] += [1]
        assert load(world).has_findings
    assert world.rows("orders") == []
    world.hive.failure = None
    assert not load(world).has_findings
    assert world.rows("orders") == world.produced("orders")


def test_a_dropped_table_comes_back_with_all_its_partitions(world: World) -> None:
    load(world)
    key = ("headrace", "orders")
    del world.hive.tables[key]
    del world.hive.parts[key]
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("clicks", [2] * 3)
    load(world)
    assert key in world.hive.tables
    assert len(world.hive.parts[key]) == 1


def test_lost_cursors_are_rebuilt_by_applying_again(world: World) -> None:
    load(world)
    world.cluster.topics["orders"].logs[0] += [1]
    load(world)
    shutil.rmtree(world.warehouse / "_headrace" / "cursor")
    assert not load(world).has_findings
    assert world.rows("orders") == world.produced("orders")


def test_a_registry_outage_stops_only_messages_with_unknown_ids(world: World) -> None:
    load(world)
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("clicks", [2] * 3)
    world.cluster.topics["orders"].logs[0] += [1]
    world.registry.is_down = True
    before = world.registry.requests
    report = load(world)
    assert world.registry.requests == before + 1
    assert world.rows("orders") == world.produced("orders")
    assert list(report.waiting) == ["clicks"]
    assert report.registry_outage
    world.registry.is_down = False
    assert load(world).waiting == {}


def test_a_registry_outage_after_the_version_list_is_the_reason_why_a_new_topic_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(subject: str, version: int) -> None:
        raise ServiceError("HTTP 502")

    with monkeypatch.context() as patch:
        patch.setattr(world.registry, "version", fail)
        late = load(world)
    world.registry.is_down = True
    assert late.waiting == load(world).waiting
    assert list(late.waiting) == ["orders"]


@pytest.mark.parametrize(
    "failure",
    [StoreError("Error while listing"), ServiceError("HTTP 502"), CredentialsRefused("no user", status=401)],
    ids=lambda failure: type(failure).__name__,
)
def test_a_failed_registry_request_quarantines_nothing(world: World, failure: Exception) -> None:
    """A failed request, or one with rejected credentials, does not prove that a schema is missing."""
    load(world)
    world.registry.texts[2] = ORDER_V1  # not in the subject, so it is requested by its id
    world.cluster.topics["orders"].logs[0] += [1, 2]
    world.registry.failure = failure
    report = load(world)
    assert str(failure) in report.registry_outage
    assert world.quarantined("orders") == []
    world.registry.failure = None
    load(world)
    load(world)
    assert world.rows("orders") == world.produced("orders")


UNUSABLE = {
    "nested too deep": '{"type":"array","items":' * 230 + '"int"' + "}" * 230,
    "too many types": json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": "int"} for n in range(100)]}
    ),
    "JSON Schema": '{"type":"object","properties":{}}',
    "not JSON": "syntax = proto3;",
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_version_that_cannot_be_used_holds_back_no_other_message(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(merge, "FOLD_TYPES_MAX", 50)
    load(world)
    world.registry.register("orders-value", 5, UNUSABLE[kind])
    world.registry.register("orders-value", 6, ORDER_V2)
    world.cluster.topics["orders"].logs[0] += [*[1] * 20, 5, *[6] * 20]
    if kind == "too many types":
        world.pool.bad = {5}  # the pool of these tests converts no bodies
    reports = [load(world), load(world)]
    for report in reports:
        (problem,) = report.problems["orders"]
        assert "version 2 of subject orders-value" in problem
    produced = world.produced("orders")
    (bad,) = world.quarantined("orders")
    assert world.rows("orders") == [row for row in produced if row != bad]
    assert world.log().read_state().topics["orders"].load_schema.version == 3
    del world.registry.subjects["orders-value"][1:]
    assert load(world).problems == {}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_topic_whose_only_version_cannot_be_used_is_held_back(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(merge, "FOLD_TYPES_MAX", 50)
    world.registry.register("pages-value", 5, UNUSABLE[kind])
    world.topic("pages", [5])
    report = load(world)
    (problem,) = report.problems["pages"]
    assert "version 1 of subject pages-value" in problem
    assert world.rows("orders") == world.produced("orders")


@pytest.mark.parametrize("schema_id", [5, 6])
def test_references_nested_too_deep_hold_back_only_their_messages(
    world: World, monkeypatch: pytest.MonkeyPatch, schema_id: int
) -> None:
    """Each schema alone can be parsed. Schema id 6 belongs to no subject of the topic and occurs in a message."""

    def parsed(registered: Any) -> Schema:
        if registered.schema_id < 5:
            return parse_schema(registered.text)
        kind, known = '"int"', []
        for part in range(8):
            for n in range(60):
                kind = f'{{"type":"record","name":"P{part}_{n}","fields":[{{"name":"f","type":{kind}}}]}}'
            known.append(parse_schema(kind, references=known[-1:]))
            kind = f'"P{part}_59"'
        return known[-1]

    monkeypatch.setattr(world.registry, "parsed", parsed)
    load(world)
    world.registry.register("orders-value" if schema_id == 5 else "", schema_id, "{}")
    world.cluster.topics["orders"].logs[0] += [schema_id]
    report = load(world)
    assert "headrace quarantine list orders" in report.problems["orders"][-1]
    if schema_id == 5:
        assert "version 2 of subject orders-value" in report.problems["orders"][0]
    assert len(world.rows("orders")) == len(world.produced("orders")) - 1


def test_a_subject_without_read_permission_holds_back_its_topic(world: World) -> None:
    load(world)
    world.cluster.topics["orders"].logs[0] += [1]
    world.registry.failure = AccessDenied("the registry does not allow this")
    report = load(world)
    assert "the registry does not allow this" in str(report.problems)
    assert not report.registry_outage
    world.registry.failure = None
    assert not load(world).has_findings
    assert world.rows("orders") == world.produced("orders")


def test_a_topic_recreated_during_the_read_is_not_committed(world: World) -> None:
    ports = world.ports()
    pool = ports.run_units

    def recreate(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        world.cluster.topics["orders"].topic_id = "id-2"
        return results

    report = run_load(dataclasses.replace(ports, run_units=recreate), world.settings)  # type: ignore[arg-type]
    assert len(report.problems["orders"]) == 1
    assert world.rows("orders") == []


def test_a_partition_whose_leader_changed_during_the_read_is_not_committed(world: World) -> None:
    ports = world.ports()

    def elect(units: Sequence[WorkUnit]) -> list[UnitResult]:
        results = world.pool(units)
        world.cluster.topics["orders"].epochs = {0: 1}
        return results

    report = run_load(dataclasses.replace(ports, run_units=elect), world.settings)
    (problem,) = report.problems["orders"]
    assert problem.startswith("partition 0 ")
    assert world.rows("orders") == [(1, n) for n in range(5)]
    assert not load(world).has_findings
    assert world.rows("orders") == world.produced("orders")


def test_a_leader_change_of_a_partition_without_news_is_ignored(world: World) -> None:
    load(world)
    world.cluster.topics["orders"].logs[0] += [1]
    ports = world.ports()

    def elect(units: Sequence[WorkUnit]) -> list[UnitResult]:
        results = world.pool(units)
        world.cluster.topics["orders"].epochs = {1: 1}
        return results

    assert run_load(dataclasses.replace(ports, run_units=elect), world.settings).problems == {}
    assert world.rows("orders") == world.produced("orders")


@pytest.mark.parametrize(("before", "after"), [(-1, 3), (3, -1)])
def test_an_unreported_leader_epoch_is_no_change(world: World, before: int, after: int) -> None:
    world.cluster.topics["orders"].epochs = {0: before}
    ports = world.ports()

    def elect(units: Sequence[WorkUnit]) -> list[UnitResult]:
        results = world.pool(units)
        world.cluster.topics["orders"].epochs = {0: after}
        return results

    assert run_load(dataclasses.replace(ports, run_units=elect), world.settings).problems == {}
    assert world.rows("orders") == world.produced("orders")


def test_a_recreated_topic_is_held_back_until_the_policy_permits_a_restart(world: World) -> None:
    load(world)
    world.topic("orders", [1] * 2, topic_id="id-2")
    assert re.search(r"\bid-2\b.*\bid-1\b", load(world).problems["orders"][0])
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    report = load(world)
    assert report.loaded[0].rows == 2
    assert len(world.rows("orders")) == 17
    assert any("its rows are in files from 0-2- on" in note for note in report.notes)
    assert [path.name[:4] for path in (world.warehouse / "orders").rglob("0-2-*.avro")] == ["0-2-"]


def test_data_loss_is_recorded_as_a_gap_with_on_data_loss_skip(world: World) -> None:
    load(world)
    topic = world.topic("orders", [1] * 2, [1] * 5)
    topic.first = 14
    assert re.match(r"partition 0: .*\b10\b.*\b13\b", load(world).problems["orders"][0])
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    assert load(world).loaded[0].gaps == 4 + 9


def skip_data_loss(world: World) -> None:
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")


def test_a_truncated_and_regrown_log_is_held_back_and_resumes_at_the_divergence(world: World) -> None:
    topic = world.topic("orders", [1] * 100, [1] * 5)
    load(world)
    counted = sum(row.count for row in world.audit("orders"))
    topic.cut_back(0, 80, *[1] * 70)
    held = load(world)
    (problem,) = held.problems["orders"]
    assert re.match(r"partition 0: .*\b80\b.*\b99\b.*\b1\b.*\b0\b.*loader\.on_data_loss=skip\b.*\b80$", problem)
    assert held.commit_number == 0
    skip_data_loss(world)
    report = load(world)
    assert report.problems == {}
    (loaded,) = report.loaded
    assert (loaded.rows, loaded.offsets, loaded.gaps) == (70, 70, 0)
    assert [offset for partition, offset in world.rows("orders") if partition == 0] == sorted(
        [*range(100), *range(80, 150)]
    )
    assert report.notes == (
        "orders: partition 0: offsets 80 to 99 were loaded and are no longer in the log, which was truncated and grew "
        "again (leader epoch 1, was 0); resumed at offset 80",
        "orders: the log of partition 0 diverged at offset 80: the rows of its offsets 80 to 99 in files of orders "
        "before 0-2- were read from the former log, and stay; the rows of the present log are in files from 0-2- on",
    )
    committed = world.log().commit(2).topics["orders"].ranges[0]
    assert (committed.previous, committed.start, committed.end, committed.replaced) == (100, 80, 150, (80, 100))
    assert (committed.incarnation, committed.epochs) == (1, ReadEpochs(((1, 80),), 150))
    state = world.log().read_state().topics["orders"].partitions[0]
    assert (state.next_offset, state.incarnation) == (150, 1)
    assert state.epochs == ReadEpochs(((0, 0), (1, 80)), 150)
    assert sum(row.count for row in world.audit("orders")) == counted + 70
    assert load(world).commit_number == 0


def test_offsets_of_both_logs_are_counted_in_the_audit(world: World) -> None:
    """Each message is counted even if the ranges of both logs are equal."""
    topic = world.topic("orders", [1] * 80)
    load(world)
    topic.logs[0] += [1] * 20
    load(world)
    skip_data_loss(world)
    topic.cut_back(0, 80, *[1] * 20)
    load(world)
    assert sum(row.count for row in world.audit("orders")) == 120


def test_epoch_end_offsets_are_requested_only_after_a_leader_epoch_change(world: World) -> None:
    topic = world.cluster.topics["orders"]
    for _ in range(2):
        load(world)
        topic.logs[0] += [1]
    assert world.cluster.epoch_requests == []
    topic.epochs[1] = 4
    load(world)
    (queries,) = world.cluster.epoch_requests
    assert queries == {TopicPartition("orders", 1): EpochQuery(0, 4)}
    assert world.rows("orders") == world.produced("orders")


def test_a_clean_election_is_no_divergence(world: World) -> None:
    topic = world.cluster.topics["orders"]
    load(world)
    topic.cut_back(0, 10, 1, 1)
    report = load(world)
    assert (report.problems, report.notes) == ({}, ())
    assert world.rows("orders") == world.produced("orders")
    assert world.log().read_state().topics["orders"].partitions[0].incarnation == 0


def test_a_log_shorter_than_loaded_resumes_at_its_end_without_epochs(world: World) -> None:
    world.cluster.supports_epochs = False
    load(world)
    topic = world.cluster.topics["orders"]
    topic.cut_back(0, 4)
    (problem,) = load(world).problems["orders"]
    assert re.match(r"partition 0: .*\b4\b.*\b9\b.*loader\.on_data_loss=skip\b.*\b4$", problem)
    skip_data_loss(world)
    assert any("the rows of its offsets 4 to 9" in note for note in load(world).notes)
    topic.logs[0] += [1] * 9
    assert load(world).loaded[0].rows == 9
    assert [offset for partition, offset in world.rows("orders") if partition == 0] == sorted(
        [*range(10), *range(4, 13)]
    )


def test_a_recreated_topic_without_ids_is_detected_by_its_leader_epochs(world: World) -> None:
    topic = world.topic("orders", [1] * 10, topic_id="")
    topic.cut_back(0, 5, *[1] * 5)
    load(world)
    world.topic("orders", [1] * 30, topic_id="")
    assert re.match(r"partition 0: .*\b0\b.*\b9\b", load(world).problems["orders"][0])
    skip_data_loss(world)
    assert load(world).loaded[0].rows == 30
    assert not load(world).notes


def test_a_topic_stays_the_same_when_its_id_is_first_reported(world: World) -> None:
    topic = world.topic("orders", [1] * 10, [1] * 5, topic_id="")
    load(world)
    topic.topic_id = "id-9"
    report = load(world)
    assert not report.problems
    assert world.log().read_state().topics["orders"].topic_id == "id-9"
    topic.logs[0] += [1] * 3
    assert load(world).loaded[0].rows == 3
    assert world.rows("orders") == world.produced("orders")
    assert not load(world).commit_number
    # Now that ids are reported, a different id means another topic.
    world.topic("orders", [1], topic_id="id-10")
    assert re.search(r"\bid-10\b.*\bid-9\b", load(world).problems["orders"][0])


def test_a_topic_recreated_while_ids_are_unreported_is_loaded_once(world: World) -> None:
    topic = world.topic("orders", [1] * 10, [1] * 4, [1] * 4)
    topic.cut_back(0, 5, *[1] * 5)
    load(world)
    # Only the epoch of partition 0 goes back, and partition 1 is longer than it was.
    recreated = world.topic("orders", [1] * 3, [1] * 7, [1] * 2, topic_id="")
    skip_data_loss(world)
    assert load(world).loaded[0].rows == 12
    recreated.topic_id = "id-2"
    recreated.logs[0] += [1] * 2
    report = load(world)
    assert not report.problems
    assert report.loaded[0].rows == 2
    old = [(0, offset) for offset in range(10)] + [(number, offset) for number in (1, 2) for offset in range(4)]
    assert world.rows("orders") == sorted([*old, *world.produced("orders")])
    assert not load(world).commit_number
    log = world.log()
    assert not read_chain(log, "orders", log.read_state().commit_number).findings


def test_offsets_deleted_by_retention_from_the_new_log_are_a_gap(world: World) -> None:
    topic = world.topic("orders", [1] * 100)
    load(world)
    topic.cut_back(0, 80, *[1] * 70)
    topic.first, topic.logs = 90, [[1] * 60]
    skip_data_loss(world)
    report = load(world)
    assert (report.loaded[0].rows, report.loaded[0].gaps) == (60, 10)
    committed = world.log().commit(2).topics["orders"].ranges[0]
    assert (committed.replaced, committed.start, committed.gaps) == ((80, 100), 90, ((80, 90),))
    assert re.search(r"\b80\b.*\b89\b", report.notes[0])


@settings(max_examples=examples(0.3), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["grow", "cut", "elect", "load", "broken"]), st.integers(0, 12), st.integers(0, 12)),
        max_size=14,
    )
)
def test_offsets_are_loaded_once_per_incarnation_of_the_log(
    memory_path: Path, steps: list[tuple[str, int, int]]
) -> None:
    with tempfile.TemporaryDirectory(dir=memory_path) as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        remember_results(patch)
        keep_journal_in_memory(patch)
        load_once_each(Path(root), steps)


def load_once_each(root: Path, steps: list[tuple[str, int, int]]) -> None:
    world = World(root)
    world.registry.register("orders-value", 1, ORDER_V1)
    topic = world.topic("orders", [1] * 5)
    skip_data_loss(world)
    for action, count, appended in steps:
        if action == "grow":
            topic.logs[0] += [1] * count
        elif action == "cut":
            topic.cut_back(0, min(count, topic.end(0)), *[1] * appended)
        elif action == "elect":
            topic.cut_back(0, topic.end(0), *[1] * count)
        else:
            world.pool.broken = {TopicPartition("orders", 0): count} if action == "broken" else {}
            load(world)
    world.pool.broken = {}
    load(world)
    owner: dict[int, int] = {}
    for commit_number in range(1, world.log().head() + 1):
        for committed in (
            world.log().commit(commit_number).topics["orders"].ranges
            if world.log().commit(commit_number).topics
            else ()
        ):
            if committed.diverged_at is not None:
                owner = {offset: epoch for offset, epoch in owner.items() if offset < committed.diverged_at}
            epochs = committed.epochs.starts
            for offset in range(committed.start, committed.end):
                assert offset not in owner, "committed twice"
                owner[offset] = [epoch for epoch, start in epochs if start <= offset][-1]
    starts = topic.starts.get(0, [(0, 0)])
    expected = {offset: [epoch for epoch, start in starts if start <= offset][-1] for offset in range(topic.end(0))}
    assert owner == expected


def test_an_open_transaction_is_reported_and_other_partitions_are_loaded(world: World) -> None:
    world.cluster.topics["orders"].open_from = {1: 2}
    first = load(world)
    assert world.rows("orders") == [(0, n) for n in range(10)] + [(1, 0), (1, 1)]
    assert first.notes == ()
    second = load(world)
    (note,) = second.notes
    assert re.match(r"orders: partition 1: .*\b3 offsets\b", note)
    assert not second.has_findings and second.commit_number == 0
    world.cluster.topics["orders"].open_from = {}
    assert load(world).notes == ()
    assert world.rows("orders") == world.produced("orders")


def test_the_same_ranges_read_by_two_drivers_are_committed_once(world: World) -> None:
    slow = world.ports()
    pool = slow.run_units

    def overtaken(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        load(world)
        return results

    report = run_load(dataclasses.replace(slow, run_units=overtaken), world.settings)  # type: ignore[arg-type]
    assert report.commit_number == 0
    assert (report.conflict or "").endswith(": orders")
    assert not report.has_findings
    assert world.rows("orders") == world.produced("orders")
    assert load(world).commit_number == 0


def test_the_slower_of_two_drivers_loses_only_topics_that_the_other_committed(world: World) -> None:
    world.topic("users", [1, 1, 1])
    world.registry.register("users-value", 1, ORDER_V1)
    slow = world.ports()
    pool = slow.run_units

    def overtaken(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        others = dataclasses.replace(world.settings, topics_include=("orders",))
        run_load(world.ports(), others)
        return results

    report = run_load(dataclasses.replace(slow, run_units=overtaken), world.settings)  # type: ignore[arg-type]
    assert [one.topic for one in report.loaded] == ["users"]
    assert [note for note in report.notes if note.startswith("orders: ")]
    for topic in ("orders", "users"):
        assert world.rows(topic) == world.produced(topic)
    assert world.log().storage.children("staging") == ()


@pytest.fixture
def small_commits(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Each topic gets a separate commit."""
    monkeypatch.setattr("headrace.loader.commit.prepare.COMMIT_BYTES_MAX", 1)
    for topic in ("clicks", "users"):
        world.topic(topic, [1, 1, 1], [1])
        world.registry.register(f"{topic}-value", 1, ORDER_V1)
    return world


def test_a_large_run_is_committed_in_chunks(small_commits: World) -> None:
    world = small_commits
    report = load(world)
    assert report.commit_number == 3
    assert [one.topic for one in report.loaded] == ["clicks", "orders", "users"]
    assert report.conflict == ""
    log = world.log()
    assert [list(log.commit(commit_number).topics) for commit_number in (1, 2, 3)] == [
        ["clicks"],
        ["orders"],
        ["users"],
    ]
    assert len({log.commit(commit_number).run_id for commit_number in (1, 2, 3)}) == 3
    for topic in ("clicks", "orders", "users"):
        assert world.rows(topic) == world.produced(topic)
    assert log.storage.children("staging") == ()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_run_killed_between_its_chunks_leaves_the_rest_to_the_next(
    small_commits: World, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = small_commits
    commit_results = itertools.count(1)
    plain = CommitLog.try_commit

    def killed(log: CommitLog, proposal: Commit) -> CommitResult:
        if next(commit_results) == nth:
            raise KeyboardInterrupt
        return plain(log, proposal)

    monkeypatch.setattr(CommitLog, "try_commit", killed)
    with pytest.raises(KeyboardInterrupt):
        load(world)
    monkeypatch.setattr(CommitLog, "try_commit", plain)
    report = load(world)
    assert [one.topic for one in report.loaded] == ["clicks", "orders", "users"][nth - 1 :]
    for topic in ("clicks", "orders", "users"):
        assert world.rows(topic) == world.produced(topic)
    world.clock_ms += world.settings.staging_age_ms * 1000
    load(world)
    assert world.log().storage.children("staging") == (), "files of chunks without a commit are deleted"


def test_a_conflict_of_one_chunk_leaves_the_other_chunks_committed(small_commits: World) -> None:
    world = small_commits
    slow = world.ports()
    pool = slow.run_units

    def overtaken(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        run_load(world.ports(), dataclasses.replace(world.settings, topics_include=("orders",)))
        return results

    report = run_load(dataclasses.replace(slow, run_units=overtaken), world.settings)  # type: ignore[arg-type]
    assert [one.topic for one in report.loaded] == ["clicks", "users"]
    assert (report.conflict or "").endswith(": orders")
    for topic in ("clicks", "orders", "users"):
        assert world.rows(topic) == world.produced(topic)


def test_state_drops_a_run_when_its_staging_is_deleted(world: World) -> None:
    for _ in range(5):
        world.cluster.topics["orders"].logs[0].append(1)
        load(world)
    assert len(world.log().read_state().staged_runs) == 1, (
        "the run of the newest commit, since no later commit has published it"
    )


def test_staging_of_a_run_without_a_commit_is_deleted_at_once(world: World) -> None:
    load(world)
    world.cluster.topics["orders"].logs[0].append(1)
    ports = world.ports()
    pool = ports.run_units

    def lost(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        for work in (world.warehouse / "_headrace" / "staging").iterdir():
            next(path for path in work.iterdir() if "orders-0" in path.name).write_bytes(b"")
        return results

    report = run_load(dataclasses.replace(ports, run_units=lost), world.settings)  # type: ignore[arg-type]
    assert report.commit_number == 0 and "orders" in report.problems
    assert world.log().storage.children("staging") == ()


def test_a_run_voided_while_it_reads_is_never_committed(world: World) -> None:
    slow = world.ports()
    pool = slow.run_units

    def run_and_void(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        world.settings = dataclasses.replace(world.settings, topics_exclude=("orders",), staging_age_ms=-(10**15))
        load(world)
        return results

    report = run_load(dataclasses.replace(slow, run_units=run_and_void), world.settings)  # type: ignore[arg-type]
    assert report.commit_number == 0
    assert world.rows("orders") == []
    assert world.log().commit(1).planned_after == 0, "the commit that voids it states its plan"
    world.settings = dataclasses.replace(world.settings, topics_exclude=(), staging_age_ms=10**15)
    assert load(world).commit_number == 2
    assert world.rows("orders") == world.produced("orders")
    assert world.log().commit(2).planned_after == 1


def test_an_old_plan_is_refused_and_the_next_load_reads_it_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Because of this limit, the log need not store voided runs forever."""
    monkeypatch.setattr(conflict, "PLAN_COMMITS_MAX", 1)
    slow = world.ports()
    pool = slow.run_units

    def run_and_commit_others(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        for number in range(2):
            world.log().try_commit(clean(f"c{number}", f"w{number}"))
        return results

    report = run_load(dataclasses.replace(slow, run_units=run_and_commit_others), world.settings)  # type: ignore[arg-type]
    assert report.commit_number == 0
    assert report.conflict
    assert not report.has_findings
    assert load(world).commit_number == 3
    assert world.rows("orders") == world.produced("orders")


def test_staging_of_a_refused_run_stays_until_a_commit_voids_it(world: World) -> None:
    slow = world.ports()
    pool = slow.run_units

    def overtaken(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        load(world)
        return results

    run_load(dataclasses.replace(slow, run_units=overtaken), world.settings)  # type: ignore[arg-type]
    (left,) = world.log().storage.children("staging")
    world.settings = dataclasses.replace(world.settings, staging_age_ms=-(10**15))
    load(world)
    assert world.log().storage.children("staging") == ()
    assert world.log().read_state().voided == {left}


def test_a_truncated_staged_file_holds_back_its_topic(world: World) -> None:
    ports = world.ports()
    pool = ports.run_units

    def run_and_truncate(units: object) -> object:
        results = pool(units)  # type: ignore[arg-type]
        for work in (world.warehouse / "_headrace" / "staging").iterdir():
            next(path for path in work.iterdir() if "orders-0" in path.name).write_bytes(b"")
        return results

    report = run_load(dataclasses.replace(ports, run_units=run_and_truncate), world.settings)  # type: ignore[arg-type]
    assert re.search(r"\b0 bytes\b", report.problems["orders"][0])
    assert world.rows("orders") == []


def test_a_run_without_the_core_says_so_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.topic("orders", [1])
    assert not load(world).notes
    monkeypatch.setattr(avro_codec, "_CORE", None)
    monkeypatch.setattr(avro_codec, "_MISSING_REASON", "it was not built")
    (note,) = load(world).notes
    assert "it was not built" in note


def test_a_foreign_build_ends_the_run(world: World) -> None:
    ports = world.ports()
    pool = ports.run_units

    def foreign(units: object) -> object:
        return [dataclasses.replace(result, error="Python 3.9 here") for result in pool(units)]  # type: ignore[arg-type]

    with pytest.raises(LoaderError, match=r"Python 3\.9 here"):
        run_load(dataclasses.replace(ports, run_units=foreign), world.settings)  # type: ignore[arg-type]
    assert world.log().head() == 0


def test_a_full_disk_of_one_task_costs_only_what_it_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "TASK_BYTES_MIN", 1)
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("clicks", [2] * 3)
    ports = world.ports()
    lost: set[TopicPartition] = set()

    def full(units: Sequence[WorkUnit]) -> list[UnitResult]:
        first, *others = world.pool(units)
        lost.update(offsets.topic_partition for offsets in units[0].ranges)
        return [dataclasses.replace(first, files=(), disk_error="cannot write to /staging: no space"), *others]

    report = run_load(dataclasses.replace(ports, run_units=full), world.settings)
    assert report.tasks == 2 and report.problems.keys() == {tp.topic for tp in lost}
    sentence = f"task 0 cannot write to /staging: no space; {DISK_REMEDY}"
    assert set(report.problems.values()) == {(sentence,)}
    for topic in ("orders", "clicks"):
        expected = [row for row in world.produced(topic) if TopicPartition(topic, row[0]) not in lost]
        assert world.rows(topic) == expected
    assert 0 < len(lost) < 3
    assert not load(world).has_findings
    assert all(world.rows(topic) == world.produced(topic) for topic in ("orders", "clicks"))


def test_the_plan_shows_what_a_run_would_do_and_changes_nothing(world: World) -> None:
    plan = plan_load(world.ports(), world.settings)
    assert [(one.start, one.end) for unit in plan.units for one in unit.ranges] == [(0, 10), (0, 5)]
    assert world.log().head() == 0
    assert world.log().storage.children("staging") == ()


def test_colliding_topics_get_tables_of_their_own(world: World) -> None:
    for number, name in enumerate(("a.b", "a-b"), start=20):
        world.registry.register(f"{name}-value", number, ORDER_V1)
        world.topic(name, [number])
    load(world)
    tables = {world.log().read_state().topics[name].table for name in ("a.b", "a-b")}
    assert len(tables) == 2
    assert all(("headrace", table) in world.hive.tables for table in tables)


def test_a_schema_that_cannot_be_written_holds_back_no_other_topic(world: World) -> None:
    """The schemas of many topics are written together."""
    for topic in ("clicks", "views"):
        world.registry.register(f"{topic}-value", 1, ORDER_V1)
        world.topic(topic, [1] * 3)
    obstacle = world.warehouse / "orders" / "_schema"
    obstacle.parent.mkdir(parents=True)
    obstacle.touch()
    report = load(world)
    assert list(report.problems) == ["orders"]
    assert ("headrace", "orders") not in world.hive.tables
    for topic in ("clicks", "views"):
        assert (world.warehouse / topic / "_schema" / "current.avsc").exists()
        assert world.rows(topic) == world.produced(topic)
    obstacle.unlink()
    assert not load(world).problems
    assert world.rows("orders") == world.produced("orders")
    assert (obstacle / "current.avsc").exists()


def test_a_resumed_driver_does_not_restore_an_older_schema(world: World) -> None:
    """A driver is paused before its appliers and resumes after the table has changed."""
    load(world)
    log = world.log()
    late = step_of(log.read_state(), "orders", (log.commit(1),))
    world.registry.register("orders-value", 3, ORDER_V2)
    world.cluster.topics["orders"].logs[0] += [3]
    load(world)
    executed = len(world.hive.executed)
    applier = SchemaApplier(lambda: world.hive, world.tables(), world.log().head)
    applier.apply(late)
    assert len(world.hive.executed) == executed


def test_loads_keep_the_view_of_the_newest_schema(world: World) -> None:
    load(world)
    assert ("headrace", "orders_latest") not in world.hive.tables
    world.latest_views = True
    one_more(world, "orders")
    load(world)
    first = world.hive.tables[("headrace", "orders_latest")]
    one_more(world, "orders")
    executed = len(world.hive.executed)
    assert not load(world).has_findings
    assert not [op for op in world.hive.executed[executed:] if isinstance(op, ReplaceView)]
    world.registry.register("orders-value", 3, ORDER_V2)
    world.cluster.topics["orders"].logs[0] += [3]
    log = world.log()
    late = step_of(log.read_state(), "orders", (log.commit(3),))
    load(world)
    second = world.hive.tables[("headrace", "orders_latest")]
    assert [column.name for column in second.columns if column not in first.columns] == ["note"]
    SchemaApplier(lambda: world.hive, world.tables(), log.head).apply(late)
    assert world.hive.tables[("headrace", "orders_latest")] == second


def test_a_foreign_view_is_unchanged_and_does_not_stop_the_load(world: World) -> None:
    load(world)
    world.latest_views = True
    own = TableState("headrace", "orders_latest", "", (), (), {})
    world.hive.tables[("headrace", "orders_latest")] = own
    one_more(world, "orders")
    report = load(world)
    assert world.hive.tables[("headrace", "orders_latest")] == own
    (note,) = [note for note in report.notes if "headrace.orders_latest" in note]
    assert "hive.latest_views = false" in note
    assert not report.problems
    assert [one.topic for one in report.loaded] == ["orders"]


def test_a_refused_view_is_reported_once_and_tried_again_after_a_change_or_repair(world: World) -> None:
    world.latest_views = True
    world.hive.refused_views["headrace", "orders_latest"] = "its query is too long"

    def notes_and_tries() -> tuple[int, int]:
        one_more(world, "orders")
        before = len(world.hive.executed)
        report = load(world)
        assert not report.problems
        notes = [note for note in report.notes if "headrace.orders_latest was not created: its query" in note]
        return len(notes), len([op for op in world.hive.executed[before:] if isinstance(op, ReplaceView)])

    assert [notes_and_tries() for _ in range(3)] == [(1, 1), (0, 0), (0, 0)]
    world.registry.register("orders-value", 3, ORDER_V2)
    world.cluster.topics["orders"].logs[0] += [3]
    assert [notes_and_tries() for _ in range(2)] == [(1, 1), (0, 0)]
    repair = Repair(world.log(), lambda: world.hive, world.tables(), lambda: "repair", deep=True)
    (repaired,) = [one for one in repair.repair_topic("orders") if "view" in one.message]
    assert repaired.is_repairable
    world.hive.refused_views.clear()
    assert [notes_and_tries() for _ in range(2)] == [(0, 1), (0, 0)]
    assert "headrace.view_refused" not in world.hive.tables["headrace", "orders"].properties


def test_loads_of_other_topics_do_not_touch_a_view(world: World) -> None:
    world.latest_views = True
    world.topic("second", [1])
    world.registry.register("second-value", 1, ORDER_V1)
    load(world)
    del world.hive.tables["headrace", "orders_latest"]
    one_more(world, "second")
    load(world)
    assert ("headrace", "orders_latest") not in world.hive.tables
    one_more(world, "orders")
    load(world)
    assert ("headrace", "orders_latest") in world.hive.tables


def test_a_table_of_a_lost_log_is_taken_over(world: World) -> None:
    """The revision of the table has a commit number that this log lacks, so it does not show which driver is late."""
    for _ in range(3):
        world.cluster.topics["orders"].logs[0] += [1]
        load(world)
    shutil.rmtree(world.warehouse)
    world.registry.register("orders-value", 3, ORDER_V2)
    assert not load(world).has_findings
    assert "note" in world.hive.tables[("headrace", "orders")].properties["avro.schema.literal"]


def one_more(world: World, topic: str, number: int = 1) -> None:
    world.cluster.topics[topic].logs[0] += [1] * number


def test_each_topic_of_a_task_is_loaded_with_its_own_policy(world: World) -> None:
    world.registry.register("clicks-value", 1, ORDER_V1)
    world.topic("clicks", [1] * 3)
    world.policies["clicks"] = clicks = dataclasses.replace(
        POLICY, partition_by="day", codec="null", time_fields=("at",)
    )
    (unit,) = plan_load(world.ports(), world.settings).units
    assert {topic: plan.policy for topic, plan in unit.topics.items()} == {"clicks": clicks, "orders": POLICY}
    load(world)
    tables = world.hive.tables
    assert tables["headrace", "clicks"].partition_columns == ("dt",)
    assert tables["headrace", "orders"].partition_columns == ("dt", "hr")


def test_a_table_keeps_its_first_layout_and_the_load_reports_it(world: World) -> None:
    assert load(world).notes == ()
    world.policy = dataclasses.replace(world.policy, partition_by="day")
    one_more(world, "orders")
    report = load(world)
    assert report.problems == {} and report.loaded[0].rows == 1
    (note,) = report.notes
    assert re.match(r"loader\.partition_by = day\b.*\bhour\b.*\borders$", note)
    assert world.hive.tables["headrace", "orders"].partition_columns == ("dt", "hr")


def test_auto_partitions_a_table_by_day_unless_its_first_load_is_busy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first load of a busy topic reads its messages twice, and commits them once."""
    world.policy = dataclasses.replace(world.policy, partition_by="auto")
    assert load(world).loaded[0].rows == len(world.produced("orders"))
    world.registry.register("clicks-value", 1, ORDER_V1)
    world.topic("clicks", [1] * 3)
    monkeypatch.setattr(prepare, "HOURLY_BYTES_MIN", 1)
    one_more(world, "orders")
    report = load(world)
    assert [(one.topic, one.rows) for one in report.loaded] == [("clicks", 3), ("orders", 1)]
    assert report.notes == ()
    assert {one: world.rows(one) for one in ("orders", "clicks")} == {
        one: world.produced(one) for one in ("orders", "clicks")
    }
    tables = {name: world.hive.tables["headrace", name].partition_columns for name in ("orders", "clicks")}
    assert tables == {"orders": ("dt",), "clicks": ("dt", "hr")}
    one_more(world, "clicks")
    assert load(world).loaded[0].rows == 1
    assert world.rows("clicks") == world.produced("clicks")
    assert not list((world.warehouse / "_headrace" / "staging").glob("*/*clicks*"))


def test_a_note_names_a_limited_number_of_topics(world: World) -> None:
    for number in range(5):
        world.registry.register(f"t{number}-value", 1, ORDER_V1)
        world.topic(f"t{number}", [1])
    load(world)
    world.policy = dataclasses.replace(world.policy, partition_by="day")
    (note,) = load(world).notes
    assert re.search(r"\borders, t0, t1\b.*\b3\b", note)


def test_the_kafka_column_grows_in_table_and_files_and_never_shrinks(world: World) -> None:
    def columns() -> str:
        return world.hive.tables["headrace", "orders"].properties["avro.schema.literal"]

    world.policy = dataclasses.replace(POLICY, kafka_column="none")
    load(world)
    assert "kafka" not in columns()
    world.policy = dataclasses.replace(POLICY, kafka_column="full")
    assert load(world).commit_number == 0 and "kafka" not in columns()  # no row has it yet
    one_more(world, "orders")
    assert load(world).notes == () and '"headers"' in columns()
    world.policy = dataclasses.replace(POLICY, kafka_column="position")
    one_more(world, "orders")
    (unit,) = plan_load(world.ports(), world.settings).units
    assert unit.topics["orders"].policy.kafka_column == "full"
    (note,) = load(world).notes
    assert re.match(r"loader\.kafka_column = position\b.*\bfull\b.*\borders$", note)
    assert '"headers"' in columns()


def test_on_data_loss_of_one_topic_lets_it_continue_while_another_waits(world: World) -> None:
    world.registry.register("clicks-value", 1, ORDER_V1)
    world.topic("clicks", [1] * 3)
    load(world)
    for name in ("orders", "clicks"):
        topic = world.topic(name, *([1] * 2 for _ in world.cluster.topics[name].logs))
        topic.first = 100
    world.policies["clicks"] = dataclasses.replace(POLICY, on_data_loss="skip")
    report = load(world)
    assert [one.topic for one in report.loaded] == ["clicks"] and list(report.problems) == ["orders"]


def test_quarantine_ratio_max_is_per_topic(world: World) -> None:
    world.topic("orders", [99] * 50 + [1] * 50)
    world.policies["orders"] = dataclasses.replace(POLICY, quarantine_ratio_max=0.5)
    assert load(world).problems == {}
    world.cluster.topics["orders"].logs[0] += [99] * 200 + [1] * 100
    assert "loader.quarantine_ratio_max (50%)" in load(world).problems["orders"][0]
    world.policies["orders"] = dataclasses.replace(POLICY, quarantine_ratio_max=0.7)
    assert load(world).loaded[0].quarantined == 200


def commit_offsets(world: World, choice: OffsetChoice, run_id: str = "op") -> int:
    log = world.log()
    log.open()
    commit_result = log.try_commit(commit_of(choice, log.read_state(), run_id=run_id, now_ms=world.clock_ms, build="b"))
    assert commit_result.commit is not None and not commit_result.refused
    return commit_result.commit.commit_number


def test_skipped_offsets_unblock_a_partition_and_are_in_the_audit(world: World) -> None:
    world.pool.broken = {TopicPartition("orders", 0): 4}
    assert load(world).problems["orders"] and len(world.rows("orders")) == 9
    assert load(world).commit_number == 0
    state = world.log().read_state()
    commit_offsets(world, skip(state, "orders", 0, 4, 6, "ticket 4711", None))
    world.pool.broken = {}
    report = load(world)
    assert report.problems == {}
    assert world.rows("orders") == [at for at in world.produced("orders") if at not in ((0, 4), (0, 5))]
    passed = [row for row in world.audit("orders") if row.outcome == "skipped"]
    assert [(row.partition, row.start, row.end, row.count) for row in passed] == [(0, 4, 6, 2)]
    assert world.cluster.committed[TopicPartition("orders", 0)] == 10


def test_a_topic_begins_at_the_start_offset_of_the_operator(world: World) -> None:
    wanted = {"orders": {0: 7, 1: 5}, "clicks": {0: 2}}
    commit_offsets(world, starts(world.log().read_state(), wanted, "imported"))
    report = load(world)
    assert report.problems == {} and report.notes == ()
    assert world.rows("orders") == [(0, 7), (0, 8), (0, 9)]
    world.cluster.topics["orders"].logs[1] += [1, 1]
    assert load(world).loaded[0].rows == 2
    assert world.rows("orders")[-2:] == [(1, 5), (1, 6)]
    assert world.log().read_state().starts == {"clicks": {0: 2}}


def test_a_start_offset_outside_the_log_is_data_loss(world: World) -> None:
    commit_offsets(world, starts(world.log().read_state(), {"orders": {0: 7, 1: 9}}, "imported"))
    world.cluster.topics["orders"].first = 8
    world.cluster.topics["orders"].logs = [[1] * 3, [1] * 0]
    first, second = load(world).problems["orders"]
    assert re.match(r"partition 0: .*\b7\b.*\b7\b", first)
    assert re.match(r"partition 1: .*\b8\b.*\b9\b", second)
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    (loaded,) = load(world).loaded
    assert (loaded.rows, loaded.gaps) == (3, 1)
    assert world.log().read_state().next_offset("orders", 1) == 8


def test_a_load_planned_before_a_start_offset_is_refused_for_that_topic(world: World) -> None:
    world.registry.register("clicks-value", 1, ORDER_V1)
    world.topic("clicks", [1] * 3)
    ports = world.ports()
    run_units = ports.run_units

    def meanwhile(units: Sequence[WorkUnit]) -> Sequence[UnitResult]:
        commit_offsets(world, starts(world.log().read_state(), {"orders": {0: 7}}, "imported"))
        return run_units(units)

    report = run_load(dataclasses.replace(ports, run_units=meanwhile), world.settings)
    assert [one.topic for one in report.loaded] == ["clicks"] and world.rows("orders") == []
    assert any("orders: " in note for note in report.notes)
    load(world)
    assert world.rows("orders") == [(0, 7), (0, 8), (0, 9), *((1, n) for n in range(5))]


def test_a_subject_registered_again_after_permanent_deletion_adds_its_new_fields(world: World) -> None:
    world.registry.register("orders-value", 2, ORDER_V2)
    load(world)
    # The versions count from 1 again and have other fields than before.
    texts = [text.replace('"note"', f'"n{at}"') for at, text in enumerate((ORDER_V2, ORDER_V2))]
    world.registry.subjects["orders-value"] = [8, 9]
    world.registry.texts.update({8: texts[0], 9: texts[1]})
    world.cluster.topics["orders"].logs[0] += [9, 8, 2]
    load(world)
    load(world)
    assert world.rows("orders") == world.produced("orders")
    state = world.log().read_state().topics["orders"]
    assert [field.name for field in parse_schema(state.load_schema.text).root.fields] == ["id", "note", "n0", "n1"]  # type: ignore[union-attr]
    assert state.load_schema.writer_ids == {1, 2, 8, 9}
    revision = state.load_schema.revision
    requests_before = world.registry.requests
    load(world)
    assert world.log().read_state().topics["orders"].load_schema.revision == revision
    assert world.registry.requests - requests_before == 2, (
        "one for the subject's versions, one for the identity of the registry"
    )


def test_ids_of_other_subjects_cause_one_request_for_the_newest_version(world: World) -> None:
    load(world)
    world.registry.register("others-value", 8, ORDER_V2)
    world.cluster.topics["orders"].logs[0].append(8)
    load(world)
    load(world)
    assert world.rows("orders") == world.produced("orders")
    assert world.log().read_state().topics["orders"].load_schema.revision == 1
    requests_before = world.registry.requests
    load(world)
    assert world.registry.requests - requests_before <= 4
