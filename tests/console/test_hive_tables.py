"""The pages of tables, on a warehouse with loaded topics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.console.pages import hive_table, hive_tables
from headrace.hive_ddl.metastore_names import table_names
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.run import run_load
from headrace.settings import HiveSettings, LoaderSettings, Settings
from support.console import ConsoleWorld, console_world, user_line
from support.console_tables import loaded_world
from support.loader.loader_fakes import World


@pytest.fixture
def loads(tmp_path: Path) -> World:
    return loaded_world(tmp_path)


def world_of(loads: World, directory: Path, users: str = "") -> ConsoleWorld:
    settings = Settings(loader=LoaderSettings(warehouse=str(loads.warehouse)))
    return console_world(directory, users, settings)


def rows(world: ConsoleWorld, path: str, user: str = "") -> list[dict[str, Any]]:
    client = world.signed_in(user) if user else world.client()
    response = client.get(path)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = json.loads(response.text)["rows"]
    return found


def test_list_shows_size_owner_and_time_of_each_table(loads: World, tmp_path: Path) -> None:
    world = world_of(loads, tmp_path)
    (row,) = rows(world, "/tables?as=json")
    assert (row["topic"], row["table"], row["owner"], row["version"]) == ("orders", "orders", "team <b>", 2)
    state = loads.log().read_state().topics["orders"]
    assert (row["rows"], row["files"], row["bytes"]) == (18, state.data.files, state.data.bytes)
    assert row["complete_until"] == "2026-01-01T00:00:00Z"
    assert row["age"] == (world.now_ms - 1_767_225_600_000) / 1000
    assert row["metastore"] == "not known"
    page = world.client().get("/tables").text
    assert "No metastore service runs" in page
    assert "<b>" not in page.partition("<tbody>")[2].partition("</tbody>")[0]


def test_columns_have_doc_rule_and_version_even_with_capitals(loads: World, tmp_path: Path) -> None:
    world = world_of(loads, tmp_path)
    found = {row["column"]: row for row in rows(world, "/tables/orders?as=json")}
    assert list(found) == ["orderid", "username", "kafka", "dt", "hr"]
    assert (found["orderid"]["type"], found["orderid"]["since"]) == ("bigint", 1)
    assert found["orderid"]["rules"] == "widened in 2"
    assert (found["username"]["since"], found["username"]["rules"]) == (2, "added in 2")
    assert found["username"]["doc"] == "name of the buyer"
    page = world.client().get("/tables/orders").text
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert rows(world, "/tables/orders?show=rules&as=json")[0]["rule"] == "widened"


def test_history_reads_only_commits_that_changed_the_columns(
    loads: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    commit = CommitLog.commit
    monkeypatch.setattr(CommitLog, "commit", lambda self, number: (read.append(number), commit(self, number))[1])
    world = world_of(loads, tmp_path)
    newest, oldest = rows(world, "/tables/orders?show=history&as=json")
    assert (newest["commit"], newest["version"], oldest["commit"]) == (2, 2, 1)
    assert newest["changes"] == "orderId int → bigint; + userName string"
    assert read == [2, 1]
    assert loads.log().head() == 3


def test_days_are_counted_from_live_files_and_bounded(
    loads: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(loads, tmp_path)
    day, *others = rows(world, "/tables/orders?show=days&as=json")
    state = loads.log().read_state().topics["orders"]
    assert (day["day"], day["rows"], day["files"], day["bytes"]) == (
        "2026-01-01",
        18,
        state.data.files,
        state.data.bytes,
    )
    assert others == []
    assert rows(world, "/tables/orders?show=days&until=dt=2025-12-31&as=json") == []
    monkeypatch.setattr(hive_table, "DAYS_MAX", 1)
    assert "Older days" not in world.client().get("/tables/orders?show=days").text


def test_a_later_load_shows_after_the_cached_reading(loads: World, tmp_path: Path) -> None:
    world = world_of(loads, tmp_path)
    assert rows(world, "/tables?as=json")[0]["rows"] == 18
    loads.cluster.topics["orders"].logs[0].append(2)
    run_load(loads.ports(), loads.settings)
    world.now_ms += 3_600_000
    assert rows(world, "/tables?as=json")[0]["rows"] == 19


def test_metastore_states_which_tables_it_has(loads: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        loader=LoaderSettings(warehouse=str(loads.warehouse)), hive=HiveSettings(metastore="thrift://127.0.0.1:1")
    )
    world = console_world(tmp_path, settings=settings)
    assert "127.0.0.1:1 does not answer" in world.client().get("/tables/orders").text
    assert table_names("thrift://127.0.0.1:1", "headrace") is None
    monkeypatch.setattr(hive_tables, "table_names", lambda uris, database: frozenset({"clicks"}))
    world.now_ms += 3_600_000
    assert rows(world, "/tables?as=json")[0]["metastore"] == "missing"
    assert "headrace hive apply orders" in world.client().get("/tables/orders").text


def test_columns_need_the_permission_to_read_the_subject(loads: World, tmp_path: Path) -> None:
    users = user_line("eve") + user_line("lea") + "grant eve read clicks-value\ngrant lea read *\n"
    world = world_of(loads, tmp_path, users)
    eve = world.signed_in("eve")
    assert rows(world, "/tables?as=json", "eve")[0]["owner"] == ""
    for view in ("", "?show=rules", "?show=history"):
        page = eve.get(f"/tables/orders{view}").text
        assert "orderid" not in page.lower()
        assert "team" not in page
        assert eve.get(f"/tables/orders{view}{'&' if view else '?'}as=json").status_code == 403
    assert rows(world, "/tables/orders?show=days&as=json", "eve")[0]["rows"] == 18
    assert rows(world, "/tables/orders?as=json", "lea")[0]["column"] == "orderid"
    assert world.client().get("/tables").status_code == 302


def test_unknown_topics_and_damaged_commits_are_stated(loads: World, tmp_path: Path) -> None:
    world = world_of(loads, tmp_path)
    assert world.client().get("/tables/nope").status_code == 404
    path = loads.warehouse / "_headrace" / "log" / "000000002.json"
    path.write_bytes(path.read_bytes().replace(b"orders", b"orderz"))
    page = world_of(loads, tmp_path).client().get("/tables")
    assert page.status_code == 200
    assert "Not known" in page.text
    remote = replace(Settings(), loader=LoaderSettings(warehouse="hdfs://namenode/warehouse"))
    assert "not in a local directory" in console_world(tmp_path, settings=remote).client().get("/tables").text


def test_console_without_loads_has_no_tables(tmp_path: Path) -> None:
    assert "No topic has been loaded yet." in console_world(tmp_path).client().get("/tables").text
