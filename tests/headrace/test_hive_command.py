"""`headrace hive`: output, exit codes and errors."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.ops import Op
from headrace.hive_ddl.table import VERSION
from headrace.loader.run import run_load
from headrace.pipeline.load import SparkConnection
from headrace.registry.client.responses import RegisteredSchema
from support.golden import golden
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, World

TABLE = ("headrace", "orders")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A loaded topic with two versions of its schema."""
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 5)
    run_load(world.ports(), world.settings)
    world.registry.register("orders-value", 2, ORDER_V2)
    world.cluster.topics["orders"].logs[0] += [2] * 5
    run_load(world.ports(), world.settings)
    return world


@pytest.fixture
def metastore(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Replaces the configured metastore by that of the world."""
    monkeypatch.setattr(SparkConnection, "executor", lambda edge: world.hive)
    return world


def hive(world: World, verb: str, *words: str) -> int:
    return main(["hive", verb, *words, "--warehouse", str(world.warehouse), "--data-dir", str(world.warehouse.parent)])


def test_apply_without_differences_changes_nothing(metastore: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(metastore, "plan") == 0
    assert capsys.readouterr().out == ""
    assert hive(metastore, "repair") == 0
    assert counts(capsys.readouterr().out) == (0, 0)


def test_plan_of_many_topics_compares_only_tables_and_states_that(
    metastore: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.hive.PLANNED_PARTITIONS_TOPICS_MAX", 0)
    metastore.hive.parts[TABLE] = {}
    assert hive(metastore, "plan") == 0
    assert "headrace hive apply --dry-run" in capsys.readouterr().err
    assert hive(metastore, "apply", "--dry-run") == 1
    metastore.hive.tables.clear()
    capsys.readouterr()
    assert hive(metastore, "plan") == 1
    assert "2026-01-01/00" in capsys.readouterr().out, "the partitions of a missing table"
    monkeypatch.undo()
    metastore.hive.parts[TABLE] = {}
    monkeypatch.setattr(SparkConnection, "executor", lambda edge: metastore.hive)
    assert hive(metastore, "plan") == 1
    assert capsys.readouterr().err == ""


def counts(printed: str) -> tuple[int, int]:
    """Returns the numbers of repaired and of remaining differences in the totals of the last report."""
    repaired, remaining = re.findall(r"^(\d+) .*\brepaired, (\d+) ", printed, re.MULTILINE)[-1]
    return int(repaired), int(remaining)


def test_plan_prints_statements_and_changes_nothing(metastore: World, capsys: pytest.CaptureFixture[str]) -> None:
    table = metastore.hive.tables[TABLE]
    metastore.hive.tables[TABLE] = dataclasses.replace(table, properties={**table.properties, VERSION: "77"})
    metastore.hive.parts.clear()
    executed = len(metastore.hive.executed)
    assert hive(metastore, "plan", "orders") == 1
    printed = capsys.readouterr().out
    assert re.match(r"-- 2 .*\n-- orders: headrace\.orders: .*\bheadrace\.version\n", printed)
    assert re.search(r"^-- .*\bheadrace\.revision\b.* 2-", printed, re.MULTILINE)
    assert "ALTER TABLE `headrace`.`orders` SET TBLPROPERTIES (" in printed
    assert re.search(r"^-- orders: headrace\.orders: .*\b2026-01-01/00\nALTER TABLE", printed, re.MULTILINE)
    assert hive(metastore, "repair", "--dry-run") == 1
    assert counts(capsys.readouterr().out) == (2, 0)
    assert len(metastore.hive.executed) == executed
    assert hive(metastore, "apply") == 0
    printed = capsys.readouterr().out
    assert counts(printed) == (2, 0)
    assert printed == golden("headrace/hive_apply.txt", printed)


def test_repair_reports_missing_files(metastore: World, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(metastore.warehouse / "orders" / "dt=2026-01-01" / "hr=00")
    assert hive(metastore, "apply") == 0
    capsys.readouterr()
    assert hive(metastore, "repair", "--format", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)["topics"]["orders"]
    assert (found["kind"], found["repairable"], found["statements"], found["moves"]) == ("lost", False, [], [])
    assert hive(metastore, "repair") == 1
    printed = capsys.readouterr().out
    assert "orders: orders/dt=2026-01-01/hr=00: 2 of 2 " in printed
    assert counts(printed) == (0, 1)


@pytest.fixture
def two_topics(metastore: World) -> World:
    """Adds a topic `others`, which sorts after `orders`. Each topic lacks a partition."""
    metastore.registry.register("others-value", 3, ORDER_V1)
    metastore.topic("others", [3] * 5, topic_id="id-2")
    run_load(metastore.ports(), metastore.settings)
    for parts in metastore.hive.parts.values():
        parts.clear()
    return metastore


def test_failure_of_one_topic_does_not_prevent_the_repair_of_others(
    two_topics: World, capsys: pytest.CaptureFixture[str]
) -> None:
    two_topics.hive.refused[TABLE] = "no leave"
    assert hive(two_topics, "plan") == 1
    printed = capsys.readouterr().out
    printed = printed.replace(f"{two_topics.warehouse}/", "/warehouse/")
    assert printed == golden("headrace/hive_plan.sql", printed)
    assert hive(two_topics, "repair", "--dry-run") == 1
    assert counts(capsys.readouterr().out) == (1, 1)
    assert hive(two_topics, "apply", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)["topics"]
    assert [(one["kind"], one["repairable"]) for one in found["orders"]] == [("unknown", False)]
    assert [(one["kind"], one["repairable"]) for one in found["others"]] == [("partitions", True)]
    assert two_topics.hive.parts["headrace", "others"]
    assert hive(two_topics, "repair") == 1
    printed = capsys.readouterr().out
    assert counts(printed) == (0, 1)
    assert printed == golden("headrace/hive_repair.txt", printed)


def test_plan_as_json_has_every_topic_and_lists_no_directory(
    two_topics: World, capsys: pytest.CaptureFixture[str]
) -> None:
    two_topics.hive.parts["headrace", "orders"] = {
        ("2026-01-01", "00"): f"file://{two_topics.warehouse}/orders/dt=2026-01-01/hr=00"
    }
    (two_topics.warehouse / "orders" / "dt=2026-01-01" / "hr=00" / "x").write_text("mine")
    assert hive(two_topics, "plan", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)["topics"]
    assert found["orders"] == []
    (one,) = found["others"]
    assert (one["kind"], one["where"]) == ("partitions", "headrace.others")
    assert "2026-01-01/00" in one["message"]
    assert hive(two_topics, "repair", "orders", "--format", "json") == 0
    (moved,) = json.loads(capsys.readouterr().out)["topics"]["orders"]
    assert moved["moves"] == [["orders/dt=2026-01-01/hr=00/x", "orders/_foreign/dt=2026-01-01/hr=00/x"]]


def test_exit_code_is_2_if_no_topic_could_be_compared(two_topics: World, capsys: pytest.CaptureFixture[str]) -> None:
    two_topics.hive.refused[TABLE] = "no leave"
    for verb in ("plan", "apply"):
        assert hive(two_topics, verb, "orders") == 2
    two_topics.hive.refused["headrace", "others"] = "no leave"
    assert hive(two_topics, "repair") == 2
    assert counts(capsys.readouterr().out) == (0, 2)


@pytest.mark.parametrize("words", [(), ("--format", "json")])
def test_apply_prints_the_repairs_made_before_the_metastore_failed(
    two_topics: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    execute = two_topics.hive.execute

    def once(op: Op) -> None:
        execute(op)
        two_topics.hive.failure = MetastoreUnavailable("thrift://there", "connection lost")

    two_topics.hive.execute = once  # type: ignore[method-assign]
    assert hive(two_topics, "apply", *words) == 2
    captured = capsys.readouterr()
    assert re.search(r"^headrace: .*\bthrift://there\b.*: connection lost$", captured.err, re.MULTILINE)
    if words:
        (topic_differences,) = json.loads(captured.out)["topics"].items()
        assert (topic_differences[0], [(one["kind"], one["repairable"]) for one in topic_differences[1]]) == (
            "orders",
            [("partitions", True)],
        )
    else:
        assert counts(captured.out) == (1, 0)
        assert "orders: headrace.orders: " in captured.out
    assert hive(two_topics, "apply", *words) == 2
    assert capsys.readouterr().out == ""


def test_drop_leaves_tables_of_other_programs(metastore: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(metastore, "drop", "orders", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1:] == ["DROP TABLE IF EXISTS `headrace`.`orders`;"]
    assert printed.startswith("-- ")
    assert hive(metastore, "drop", "orders") == 0
    assert "headrace.orders" in capsys.readouterr().out
    assert TABLE not in metastore.hive.tables
    assert hive(metastore, "drop", "orders") == 0
    assert "headrace.orders" not in capsys.readouterr().out
    hive(metastore, "apply")
    metastore.hive.tables[TABLE] = dataclasses.replace(metastore.hive.tables[TABLE], properties={})
    capsys.readouterr()
    assert hive(metastore, "drop", "orders", "--dry-run") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "headrace.orders" in line
    assert hive(metastore, "apply") == 1
    printed = capsys.readouterr().out
    assert counts(printed) == (0, 1)
    assert "orders: headrace.orders: " in printed


def test_print_executor_needs_no_metastore(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(world, "plan", "--hive-executor", "print") == 1
    printed = capsys.readouterr().out
    assert re.match(r"-- 2 .*\n-- orders: headrace\.orders: .*\n-- column id: bigint\n", printed)
    assert "CREATE EXTERNAL TABLE `headrace`.`orders`" in printed
    assert "ADD IF NOT EXISTS\n  PARTITION (`dt` = '2026-01-01', `hr` = '00')" in printed


def test_explain_names_version_column_rule_and_reason(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(world, "explain", "orders", "--format", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["topic"], report["subject"], report["versions"]) == ("orders", "orders-value", [1, 2])
    assert [(one["version"], one["rule"]) for one in report["rules"]] == [(2, "added")]
    assert hive(world, "explain", "orders") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["version", "column", "rule", "detail", "because"]
    assert re.match(r" *2 +note +added +\w", lines[2])
    assert re.match(r"orders: .*\borders-value, versions 1, 2; 1 ", lines[-1])


def test_history_takes_a_topic_or_table_name(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(world, "history", "orders", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["topic"], found["table"]) == ("orders", "orders")
    assert [one["version"] for one in found["changes"]] == sorted({one["version"] for one in found["changes"]})
    assert found["changes"][0]["changes"][0] == "+ id bigint"
    assert hive(world, "history", "orders") == 0
    out = capsys.readouterr().out
    assert "  + id bigint\n" in out
    assert out.splitlines()[0].endswith("orders-value version 1")
    assert out.splitlines()[-1].startswith("orders: ")


class OneVersion:
    """A registry with one version, which has the given id."""

    def __init__(self, schema_id: int) -> None:
        self.schema_id = schema_id

    def version(self, subject: str, version: int) -> RegisteredSchema:
        assert (subject, version) == ("orders-value", 2)
        return RegisteredSchema(self.schema_id, "", subject, version)

    def close(self) -> None:
        pass


def test_latest_prints_a_view_of_the_newest_schema(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs no registry, except for loads of an earlier release, which did not record the newest version."""
    monkeypatch.setattr("headrace.registry.client.of_settings.registry_client", lambda settings: None)
    assert hive(world, "latest", "orders") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("CREATE OR REPLACE VIEW `headrace`.`orders_latest` (\n  `id`")
    assert "  `note`,\n" in printed
    assert printed.endswith("  `dt`,\n  `hr`\nFROM `headrace`.`orders`\n")
    monkeypatch.setattr("headrace.loader.inspect.latest_view.newest_id", lambda state: None)
    monkeypatch.setattr("headrace.registry.client.of_settings.registry_client", lambda settings: OneVersion(2))
    assert hive(world, "latest", "orders") == 0
    assert capsys.readouterr().out == printed
    monkeypatch.setattr("headrace.registry.client.of_settings.registry_client", lambda settings: OneVersion(9))
    assert hive(world, "latest", "orders") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "orders-value" in line


@pytest.mark.parametrize("verb", ["plan", "apply", "repair", "drop", "explain", "history", "latest"])
def test_topic_without_load_is_an_error(world: World, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert hive(world, verb, "nobody") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"headrace: .*\bnobody\b.*\borders$", line)


def test_error_of_an_unavailable_server_is_one_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(world, "apply", "--hive-executor", "hive://127.0.0.1:1") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.match(
        r"headrace: .*hive://127\.0\.0\.1:1 .*Connection refused.*hive\.executor", captured.err.splitlines()[-1]
    )
