"""The page of quarantined messages, on files of a warehouse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.console.pages import quarantine
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.alarms import accept
from headrace.loader.inspect.quarantine_groups import GroupLimits
from headrace.settings import LoaderSettings, Settings
from support.console import NOW_MS, ConsoleWorld, console_world, user_line
from support.console_quarantine import log_of, quarantine_of


def rows_of(world: ConsoleWorld, query: str = "") -> list[dict[str, object]]:
    response = world.client().get(f"/quarantine?as=json{query}")
    assert response.status_code == 200
    found: list[dict[str, object]] = json.loads(response.text)["rows"]
    return found


def test_messages_are_grouped_by_reason_with_times_and_hint(tmp_path: Path) -> None:
    quarantine_of(tmp_path)
    world = console_world(tmp_path)
    framing, malformed = rows_of(world)
    assert (framing["topic"], framing["code"], framing["count"], framing["state"]) == ("orders", "framing", 2, "open")
    assert (framing["first"], framing["last"]) == ("2026-11-18T11:09:51Z", "2026-11-18T11:09:57Z")
    assert str(framing["hint"]).startswith("JSON: ")
    assert malformed["count"] == 1
    page = world.client().get("/quarantine?topic=orders").text
    assert "headrace quarantine replay orders --dry-run" in page
    assert "headrace accept orders --kind quarantined --reason TEXT" in page
    assert "&lt;b&gt;Avro" in page
    assert "<b>Avro" not in page


def test_accepted_messages_are_marked(tmp_path: Path) -> None:
    quarantine_of(tmp_path)
    log = log_of(tmp_path)
    log.open()
    log.read_state()
    assert accept(log, FileIndex(log), ["orders"], (), "tests of <lea>", "lea@host", NOW_MS)
    world = console_world(tmp_path)
    assert {row["state"] for row in rows_of(world)} == {"accepted"}
    page = world.client().get("/quarantine?topic=orders").text
    assert "<dt>not accepted</dt><dd>0</dd>" in page
    assert "by lea@host: Tests of &lt;lea&gt;." in page


def test_reasons_are_shown_with_the_permission_payload_only(tmp_path: Path) -> None:
    quarantine_of(tmp_path)
    users = user_line("lea") + user_line("kim") + "grant lea read *\ngrant lea payload orders\ngrant kim read *\n"
    world = console_world(tmp_path, users)
    assert "top secret" in world.signed_in("lea").get("/quarantine").text
    for path in ("/quarantine", "/quarantine?as=csv", "/quarantine?q=secret", "/quarantine?topic=orders"):
        assert "top secret" not in world.signed_in("kim").get(path).text
    assert world.client().get("/quarantine").status_code == 302


def test_messages_beyond_the_limits_are_counted_as_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine_of(tmp_path)
    monkeypatch.setattr(quarantine, "ALL_LIMITS", GroupLimits(2, 2, 1_000))
    found = rows_of(console_world(tmp_path))
    assert [(row["code"], row["count"]) for row in found] == [("framing", 1), ("malformed", 1), ("not read", 1)]
    monkeypatch.setattr(quarantine, "ALL_LIMITS", GroupLimits(2, 100, 1_000))
    assert [row["count"] for row in rows_of(console_world(tmp_path))] == [1, 1, 1]
    assert "1 message not read here" in console_world(tmp_path).client().get("/quarantine").text
    assert "not read here" not in console_world(tmp_path).client().get("/quarantine?topic=orders").text
    monkeypatch.setattr(quarantine, "ALL_LIMITS", GroupLimits(10, 10, 1))
    assert sum(int(str(row["count"])) for row in rows_of(console_world(tmp_path))) == 3
    everything = rows_of(console_world(tmp_path), "&topic=orders")
    assert "not read" not in {row["code"] for row in everything}


def test_missing_and_damaged_files_leave_a_page(tmp_path: Path) -> None:
    path = quarantine_of(tmp_path)
    path.write_bytes(b"garbage")
    page = console_world(tmp_path).client().get("/quarantine")
    assert page.status_code == 200
    assert "a file of orders" in page.text
    path.unlink()
    (row,) = rows_of(console_world(tmp_path))
    assert (row["code"], row["count"]) == ("not read", 3)


def test_other_warehouses_have_a_page(tmp_path: Path) -> None:
    assert "No messages are in the quarantine." in console_world(tmp_path).client().get("/quarantine").text
    assert console_world(tmp_path).client().get("/quarantine?topic=none").status_code == 200
    remote = Settings(loader=LoaderSettings(warehouse="hdfs://names:8020/warehouse"))
    page = console_world(tmp_path, settings=remote).client().get("/quarantine").text
    assert "Not known:" in page
    assert "headrace quarantine list" in page
    (tmp_path / "warehouse" / "_headrace" / "commits").mkdir(parents=True)
    (tmp_path / "warehouse" / "_headrace" / "format.json").write_text("{")
    page = console_world(tmp_path).client().get("/quarantine")
    assert page.status_code == 200
    assert "Not known:" in page.text
