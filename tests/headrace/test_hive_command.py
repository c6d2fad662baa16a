"""`headrace hive` as it is typed: what it prints, its exit codes, and what it says where it cannot tell."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.ops import Op
from headrace.hive_ddl.table import VERSION
from headrace.loader.run import run_load
from headrace.pipeline.load import SparkEdge
from headrace.registry.client.answers import RegisteredSchema
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, World

TABLE = ("headrace", "orders")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Loaded, with a second version of the schema."""
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
    """With the world's metastore in place of that of the settings."""
    monkeypatch.setattr(SparkEdge, "executor", lambda edge: world.hive)
    return world


def hive(world: World, verb: str, *words: str) -> int:
    return main(["hive", verb, *words, "--warehouse", str(world.warehouse), "--data-dir", str(world.warehouse.parent)])


def test_nothing_differs(metastore: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(metastore, "plan") == 0
    assert capsys.readouterr().out == ""
    assert hive(metastore, "repair") == 0
    assert capsys.readouterr().out == "0 mended, 0 left to people\n"


def test_plan_prints_statements_and_changes_nothing(metastore: World, capsys: pytest.CaptureFixture[str]) -> None:
    table = metastore.hive.tables[TABLE]
    metastore.hive.tables[TABLE] = dataclasses.replace(table, properties={**table.properties, VERSION: "77"})
    metastore.hive.parts.clear()
    executed = len(metastore.hive.executed)
    assert hive(metastore, "plan", "orders") == 1
    printed = capsys.readouterr().out
    assert printed.startswith("-- orders: headrace.orders: the table was altered: headrace.version\n")
    assert "\n-- only if headrace.revision is 2-" in printed
    assert "ALTER TABLE `headrace`.`orders` SET TBLPROPERTIES (" in printed
    assert "-- orders: headrace.orders: 1 partition is not there: 2026-01-01/00\nALTER TABLE" in printed
    assert hive(metastore, "repair", "--dry-run") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 would be mended, 0 left to people"
    assert len(metastore.hive.executed) == executed
    assert hive(metastore, "apply") == 0
    assert capsys.readouterr().out.splitlines() == [
        "mended: orders: headrace.orders: the table was altered: headrace.version",
        "mended: orders: headrace.orders: 1 partition is not there: 2026-01-01/00",
        "2 mended, 0 left to people",
    ]


def test_what_cannot_be_mended_ends_with_1(metastore: World, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(metastore.warehouse / "orders" / "dt=2026-01-01" / "hr=00")
    assert hive(metastore, "apply") == 0
    capsys.readouterr()
    assert hive(metastore, "repair", "--format", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)["topics"]["orders"]
    assert (found["trouble"], found["mendable"], found["statements"], found["moves"]) == ("lost", False, [], [])
    assert hive(metastore, "repair") == 1
    assert capsys.readouterr().out.startswith("NOT MENDED: orders: orders/dt=2026-01-01/hr=00: 2 of 2 decided files")


@pytest.fixture
def two_topics(metastore: World) -> World:
    """With `others`, a topic that comes after `orders`; of each a partition was dropped."""
    metastore.registry.register("others-value", 3, ORDER_V1)
    metastore.topic("others", [3] * 5, topic_id="id-2")
    run_load(metastore.ports(), metastore.settings)
    for parts in metastore.hive.parts.values():
        parts.clear()
    return metastore


MISSING = "1 partition is not there: 2026-01-01/00"
UNTOLD = (
    "headrace.orders: what differs cannot be told: the Hive metastore refused a look at table headrace.orders: no leave"
)


def test_what_is_the_matter_with_one_topic_keeps_no_other_from_being_looked_at(
    two_topics: World, capsys: pytest.CaptureFixture[str]
) -> None:
    two_topics.hive.refused[TABLE] = "no leave"
    assert hive(two_topics, "plan") == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"-- orders: {UNTOLD}\n-- others: headrace.others: {MISSING}\nALTER TABLE ")
    assert hive(two_topics, "repair", "--dry-run") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 would be mended, 1 left to people"
    assert hive(two_topics, "apply", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)["topics"]
    assert [(one["trouble"], one["mendable"]) for one in found["orders"]] == [("untold", False)]
    assert [(one["trouble"], one["mendable"]) for one in found["others"]] == [("partitions", True)]
    assert two_topics.hive.parts["headrace", "others"]
    assert hive(two_topics, "repair") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"NOT MENDED: orders: {UNTOLD}",
        "0 mended, 1 left to people",
    ]


def test_plan_as_json_has_every_topic_and_looks_into_no_folder(
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
    assert (one["trouble"], one["where"], one["message"]) == ("partitions", "headrace.others", MISSING)
    assert hive(two_topics, "repair", "orders", "--format", "json") == 0
    (moved,) = json.loads(capsys.readouterr().out)["topics"]["orders"]
    assert moved["moves"] == [["orders/dt=2026-01-01/hr=00/x", "orders/_foreign/dt=2026-01-01/hr=00/x"]]


def test_where_nothing_could_be_told_the_exit_code_says_so(
    two_topics: World, capsys: pytest.CaptureFixture[str]
) -> None:
    two_topics.hive.refused[TABLE] = "no leave"
    for verb in ("plan", "apply"):
        assert hive(two_topics, verb, "orders") == 2
    two_topics.hive.refused["headrace", "others"] = "no leave"
    assert hive(two_topics, "repair") == 2
    assert capsys.readouterr().out.splitlines()[-1] == "0 mended, 2 left to people"


@pytest.mark.parametrize("words", [(), ("--format", "json")])
def test_a_metastore_that_goes_away_ends_it_and_what_was_mended_is_told(
    two_topics: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    execute = two_topics.hive.execute

    def once(op: Op) -> None:
        execute(op)
        two_topics.hive.failure = MetastoreUnavailable("thrift://there", "it went away")

    two_topics.hive.execute = once  # type: ignore[method-assign]
    assert hive(two_topics, "apply", *words) == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("headrace: the Hive metastore thrift://there cannot be used: it went away\n")
    if words:
        (told,) = json.loads(captured.out)["topics"].items()
        assert (told[0], [(one["trouble"], one["mendable"]) for one in told[1]]) == ("orders", [("partitions", True)])
    else:
        assert captured.out == f"mended: orders: headrace.orders: {MISSING}\n1 mended, 0 left to people\n"
    assert hive(two_topics, "apply", *words) == 2
    assert capsys.readouterr().out == ""


def test_drop_and_a_table_of_somebody_else(metastore: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(metastore, "drop", "orders", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert printed == (
        "-- the files stay; the next load makes the table again\nDROP TABLE IF EXISTS `headrace`.`orders`;\n"
    )
    assert hive(metastore, "drop", "orders") == 0
    assert capsys.readouterr().out == "dropped headrace.orders; its files are where they were\n"
    assert TABLE not in metastore.hive.tables
    assert hive(metastore, "drop", "orders") == 0
    assert capsys.readouterr().out == "there is no such table\n"
    hive(metastore, "apply")
    metastore.hive.tables[TABLE] = dataclasses.replace(metastore.hive.tables[TABLE], properties={})
    capsys.readouterr()
    assert hive(metastore, "drop", "orders", "--dry-run") == 2
    assert "the Hive table headrace.orders is not its own" in capsys.readouterr().err
    assert hive(metastore, "apply") == 1
    assert capsys.readouterr().out.startswith("NOT MENDED: orders: headrace.orders: topic orders waits: the Hive table")


def test_printed_statements_need_no_metastore(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(world, "plan", "--hive-executor", "print") == 1
    printed = capsys.readouterr().out
    assert "-- orders: headrace.orders: the table is not there\n-- column id: bigint\n" in printed
    assert "CREATE EXTERNAL TABLE `headrace`.`orders`" in printed
    assert "ADD IF NOT EXISTS\n  PARTITION (`dt` = '2026-01-01', `hr` = '00')" in printed


def test_explain_names_version_column_rule_and_reason(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(world, "explain", "orders", "--format", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["topic"], said["subject"], said["versions"]) == ("orders", "orders-value", [1, 2])
    assert [(one["version"], one["rule"]) for one in said["rules"]] == [(2, "added")]
    assert hive(world, "explain", "orders") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["version", "column", "rule", "detail", "because"]
    assert "a new field is appended, since readers by position" in lines[2]
    assert lines[-1] == "orders: subject orders-value, versions 1, 2; 1 rule beyond taking fields as they are"


def test_history_says_when_columns_came_by_topic_or_table(world: World, capsys: pytest.CaptureFixture[str]) -> None:
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
    """A registry that says which id the newest version has."""

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
    """Without a registry, but for what an earlier release loaded, which did not keep which version is the newest."""
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
    assert "version 2 of orders-value is another one than was loaded: headrace load" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["plan", "apply", "repair", "drop", "explain", "history", "latest"])
def test_a_topic_that_was_never_loaded(world: World, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert hive(world, verb, "nobody") == 2
    assert capsys.readouterr().err == "headrace: nothing of topic nobody has been loaded; loaded topics: orders\n"


def test_a_server_that_is_not_there_is_one_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert hive(world, "apply", "--hive-executor", "hive://127.0.0.1:1") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(
        "headrace: the Hive metastore hive://127.0.0.1:1 cannot be used: Connection refused; start it there or set "
        "hive.executor\n"
    )
