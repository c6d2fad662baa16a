"""The page of alerts, on a store that evaluations have filled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from headrace.pipeline.alerts.delivery import Silence
from headrace.pipeline.alerts.errors import NotificationFailed
from headrace.pipeline.alerts.evaluate import evaluate_reports
from headrace.pipeline.alerts.rule import rules_of
from headrace.pipeline.alerts.storage import AlertStore
from headrace.pipeline.alerts.target import AlertTarget
from headrace.pipeline.status.finding import KINDS, SourceReport, StatusFinding, finding
from headrace.settings import AlertsSettings, Settings
from support.console import NOW_MS, ConsoleWorld, console_world

MINUTE_MS = 60_000
STRANGE = "<script>alert(1)</script>"


def refuse(notices: object, now_ms: int) -> None:
    raise NotificationFailed("the connection was refused", is_target_down=False)


TARGET = AlertTarget("webhook http://127.0.0.1:1", None, False, refuse)


def evaluate(directory: Path, *findings: StatusFinding, at_ms: int = NOW_MS) -> None:
    with AlertStore(directory / "audit.db") as store:
        evaluate_reports(store, [SourceReport(findings=findings, source="test")], rules_of([]), [TARGET], at_ms)


def silence(directory: Path, subject: str) -> None:
    with AlertStore(directory / "audit.db") as store, store.changing() as change:
        change.add_silence(Silence("51", "*", subject, "new <disk>", "lea", NOW_MS - 1, NOW_MS + 60 * MINUTE_MS))


def rows(world: ConsoleWorld, show: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(world.client().get(f"/alerts?show={show}&as=json").text)["rows"]
    return found


LOST = finding("data-lost", "orders", "7 offsets of partition 0 were deleted before a load read them")
LATE = finding("audit-missing", STRANGE, "3 messages are missing")


def test_firing_and_pending_alerts_are_listed_with_commands(tmp_path: Path) -> None:
    evaluate(tmp_path, LOST, LATE)
    world = console_world(tmp_path)
    page = world.client().get("/alerts").text
    assert "<h1>1 alert fires.</h1>" in page
    assert 'class="verdict bad"' in page
    assert "7 offsets of partition 0 were deleted" in page
    assert "headrace alerts silence --kind data-lost --subject orders --for 2h --reason TEXT" in page
    assert "<script>alert" not in page
    assert [(row["subject"], row["state"], row["severity"]) for row in rows(world, "alerts")] == [
        ("orders", "firing", "page"),
        (STRANGE, "pending", "page"),
    ]


def test_alerts_link_to_the_page_of_their_subject(tmp_path: Path) -> None:
    evaluate(
        tmp_path, LATE, finding("audit-old", "report", "2 h"), finding("alarm-quarantined", "orders", "7 messages")
    )
    page = console_world(tmp_path).client().get("/alerts").text
    headings = re.findall(r"<h3>(.*?)</h3>", page)
    links = sorted(found[1] for heading in headings if (found := re.match(r'<a href="(.*?)"', heading)))
    assert links == ["/quarantine?topic=orders", "/topics/%3Cscript%3Ealert%281%29%3C%2Fscript%3E"]
    assert len(headings) == 3


def test_resolved_alerts_and_failed_deliveries_stay_in_the_tables(tmp_path: Path) -> None:
    evaluate(tmp_path, LOST, at_ms=NOW_MS - 60 * MINUTE_MS)
    evaluate(tmp_path, at_ms=NOW_MS - 30 * MINUTE_MS)
    evaluate(tmp_path, at_ms=NOW_MS - 10 * MINUTE_MS)
    world = console_world(tmp_path)
    assert "<h1>No alert fires.</h1>" in world.client().get("/alerts").text
    assert [row["state"] for row in rows(world, "alerts")] == ["resolved"]
    deliveries = rows(world, "deliveries")
    assert [row["event"] for row in deliveries] == ["resolved", "firing"]
    assert deliveries[-1]["error"] == "the connection was refused"
    assert deliveries[-1]["about"].startswith("orders: ")


def test_silenced_alerts_name_the_silence(tmp_path: Path) -> None:
    evaluate(tmp_path, LOST)
    silence(tmp_path, "ord*")
    world = console_world(tmp_path)
    page = world.client().get("/alerts").text
    assert "<h1>The only firing alert is silenced.</h1>" in page
    assert "by lea: New &lt;disk&gt;." in page
    assert "headrace alerts unsilence 51" in page
    (row,) = rows(world, "silences")
    assert (row["subject"], row["author"], row["reason"]) == ("ord*", "lea", "new <disk>")
    assert [row["state"] for row in rows(world, "alerts")] == ["firing, silenced"]


def test_rules_state_what_the_settings_changed(tmp_path: Path) -> None:
    changed = Settings(alerts=AlertsSettings(rules=({"kind": "disk-low", "severity": "page", "hold": "1h"},)))
    found = {row["kind"]: row for row in rows(console_world(tmp_path, settings=changed), "rules")}
    assert found.keys() == KINDS.keys()
    assert (found["disk-low"]["severity"], found["disk-low"]["hold"], found["disk-low"]["from"]) == (
        "page",
        3600.0,
        "settings",
    )
    assert found["data-lost"]["from"] == "default"
    wrong = Settings(alerts=AlertsSettings(rules=({"kind": "no-such-kind"},)))
    page = console_world(tmp_path, settings=wrong).client().get("/alerts?show=rules")
    assert page.status_code == 200
    assert "Not known:" in page.text


def test_page_without_alerts_or_without_a_usable_store_opens(tmp_path: Path) -> None:
    page = console_world(tmp_path).client().get("/alerts").text
    assert "<h1>Alerts have not been evaluated yet.</h1>" in page
    assert not (tmp_path / "audit.db").exists()
    evaluate(tmp_path, at_ms=NOW_MS - 60 * MINUTE_MS)
    assert "have not been evaluated for a while" in console_world(tmp_path).client().get("/alerts").text
    for path in tmp_path.glob("audit.db*"):
        path.unlink()
    (tmp_path / "audit.db").write_bytes(b"no database" * 1000)
    for show in ("alerts", "silences", "deliveries"):
        page = console_world(tmp_path).client().get(f"/alerts?show={show}").text
        assert "It is not known whether alerts fire." in page
        assert page.count("Not known:") == 2
