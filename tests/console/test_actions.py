"""Permissions to request and confirm actions in the pages, and the content of these pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from headrace.audit.storage.store import AuditStore
from headrace.console.actions import storage
from headrace.console.actions.worker import ActionWorker, CommandResult
from headrace.pipeline.alerts.evaluate import evaluate_reports
from headrace.pipeline.alerts.rule import rules_of
from headrace.pipeline.alerts.storage import AlertStore
from headrace.pipeline.status.finding import SourceReport, finding
from headrace.settings import Address
from support.audit_story import TOPICS, fill_store
from support.console import NOW_MS, PASSWORD, SAME_ORIGIN, ConsoleWorld, console_world, user_line
from support.loader.shelf import Shelf

SCRIPT = "<script>alert(1)</script>"
DOCUMENT = {"discarded": {"framing": 2}, "left": {}, "commit_number": 0, "problems": [], "notes": [SCRIPT]}
USERS = (
    "".join(user_line(name) for name in ("ada", "lea", "oto"))
    + "grant ada admin *\ngrant lea read *\ngrant oto read *\ngrant oto admin orders*\n"
)
DISCARD = {"action": "quarantine-discard", "topic": "orders", "code": ""}
SILENCE = {"action": "alert-silence", "subject": "disk", "kind": "disk-low", "duration": "2h"}
LINKS = ("/topics/payments.captured", "/quarantine?topic=orders", "/alerts")


@pytest.fixture
def world(tmp_path: Path) -> ConsoleWorld:
    return console_world(tmp_path, USERS)


def post(client: FlaskClient, path: str, **form: str) -> TestResponse:
    """Posts a form with the token of its session."""
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', client.get("/actions").text)
    token = {"form_token": found[1]} if found else {}
    return client.post(path, data={**token, **form}, headers=SAME_ORIGIN)


def requested(client: FlaskClient, **form: str) -> str:
    """Requests an action, and returns the path of its page."""
    response = post(client, "/actions", **(form or DISCARD))
    assert response.status_code == 303, response.text
    return response.headers["Location"]


def run(world: ConsoleWorld, *results: object) -> list[str]:
    """Lets the worker run actions whose commands return these results. Returns their last words."""
    words, given = [], list(results)

    def command(command: object, is_wanted: object) -> CommandResult:
        words.append(command[-1])  # type: ignore[index]
        result = given.pop(0)
        return CommandResult(error=result) if isinstance(result, str) else CommandResult(result)

    worker = ActionWorker(world.actions, command, lambda: world.now_ms)
    while worker.step():
        pass
    return words


def state(client: FlaskClient, path: str) -> str:
    return str(json.loads(client.get(f"{path.partition('?')[0]}?as=json").text)["state"])


def test_action_is_requested_shown_and_confirmed_by_its_users(world: ConsoleWorld) -> None:
    ada = world.signed_in("ada")
    assert 'action="/actions"' in ada.get("/actions/new?action=quarantine-discard&topic=orders").text
    path = requested(ada)
    page = ada.get(path).text
    assert "dry run waits" in page
    assert '<noscript><meta http-equiv="refresh"' in page
    assert "confirm" not in page.lower().partition("<main")[2]
    run(world, DOCUMENT)
    page = ada.get(path).text
    assert "Delete 2 messages" in page
    assert "cannot be undone" in page
    assert "refresh" not in page
    assert SCRIPT not in page
    assert "alert(1)" in page
    for name in ("", "Orders", "orders2"):
        refused = post(ada, f"{path}/confirm", reason="it is a test", name=name)
        assert (refused.status_code, "it is a test" in refused.text) == (400, True)
    assert post(ada, f"{path}/confirm", reason=" \n", name="orders").status_code == 400
    assert post(ada, f"{path}/confirm", reason="x" * 1_001, name="orders").status_code == 400
    assert post(ada, f"{path}/confirm", reason="\u202eevil", name="orders").status_code == 400
    assert run(world) == []
    longest = f"{SCRIPT} {'y' * 1_000}"[:1_000]
    assert post(ada, f"{path}/confirm", reason=longest, name="orders").status_code == 303
    assert post(ada, f"{path}/confirm", reason="again", name="orders").status_code == 409
    assert run(world, {**DOCUMENT, "commit_number": 7}) == ["orders"]
    page = ada.get(path).text
    assert state(ada, path) == "done"
    assert "Commit 7" in page
    assert "headrace quarantine discard" in page
    assert SCRIPT not in page
    assert post(ada, f"{path}/cancel").status_code == 409


def test_action_that_deletes_nothing_needs_no_name(world: ConsoleWorld) -> None:
    ada = world.signed_in("ada")
    path = requested(ada, action="quarantine-accept", topic="orders")
    run(world, {"accepted": [{"kind": "quarantined", "count": 1}]})
    assert 'name="name"' not in ada.get(path).text
    assert post(ada, f"{path}/confirm", reason="explained").status_code == 303
    run(world, {"accepted": [{"kind": "quarantined", "count": 1}]})
    page = ada.get(path).text
    assert "headrace accept orders --kind quarantined --withdraw" in page
    assert "Changed: 1 message" in page


@pytest.mark.parametrize("user", ["lea", ""])
def test_users_without_admin_get_no_buttons_and_403(world: ConsoleWorld, user: str, tmp_path: Path) -> None:
    world.users_path.write_text(f"{USERS}grant anonymous read *\n")
    world = console_world(tmp_path, world.users_path.read_text())
    path = requested(world.signed_in("ada"))
    run(world, DOCUMENT)
    client = world.signed_in(user) if user else world.client()
    page = client.get(path)
    assert page.status_code == 200
    assert 'action="/actions' not in page.text
    assert client.get("/actions").status_code == 200
    assert client.get("/actions/new", query_string=DISCARD).status_code == 403
    for target, form in (
        ("/actions", DISCARD),
        ("/actions", SILENCE),
        (f"{path}/confirm", {"reason": "x", "name": "orders"}),
        (f"{path}/cancel", {}),
    ):
        assert post(client, target, **form).status_code == 403
        # A program without a form token, too.
        if user:
            assert client.post(target, data=form, auth=(user, PASSWORD)).status_code == 403
    assert state(client, path) == "dry run done"
    assert len(world.actions.newest(10)) == 1


def test_admin_of_a_topic_acts_on_this_topic_only(world: ConsoleWorld) -> None:
    oto = world.signed_in("oto")
    path = requested(oto)
    assert post(oto, "/actions", **{**DISCARD, "topic": "payments"}).status_code == 403
    assert post(oto, "/actions", **SILENCE).status_code == 403
    other = requested(world.signed_in("ada"), **{**DISCARD, "topic": "payments"})
    assert post(oto, f"{other}/cancel").status_code == 403
    assert post(oto, f"{path}/cancel").status_code == 303
    assert [state(oto, one) for one in (path, other)] == ["cancelled", "queued"]


@pytest.mark.parametrize(("user", "links"), [("ada", True), ("oto", False), ("lea", False)])
def test_pages_link_actions_that_the_viewer_may_request(tmp_path: Path, user: str, links: bool) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        fill_store(store, NOW_MS)
    with AlertStore(tmp_path / "audit.db") as alerts:
        report = SourceReport(findings=(finding("disk-low", "disk", "full"),), source="test")
        evaluate_reports(alerts, [report], rules_of([]), [], NOW_MS)
    Shelf(tmp_path).load({}, (0, None, 0, 1), quarantined={"dt=2026-01-01/hr=05": [(0, 0)]})
    world = console_world(tmp_path, USERS)
    client = world.signed_in(user)
    found = [re.findall(r'class="button" href="([^"]+)"', client.get(path).text) for path in LINKS]
    assert [bool(one) for one in found] == [links, links or user == "oto", links]
    for target in (target for one in found for target in one):
        assert client.get(target.replace("&amp;", "&")).status_code == 200
    if links:
        assert "since=2026-" in found[0][0]
        assert len(found[1]) == 3
    strange = client.get(f"/topics/{TOPICS[-1]}")
    assert 'class="button"' not in strange.text  # its name is no argument of a command


def test_equal_action_of_two_tabs_is_one(world: ConsoleWorld) -> None:
    ada, oto = world.signed_in("ada"), world.signed_in("oto")
    first, second, third = requested(ada), requested(ada), requested(oto)
    assert second == third == f"{first}?joined=1"
    assert "already requested" in oto.get(third).text
    assert len(world.actions.newest(10)) == 1


def test_second_tab_after_sign_out_cannot_act(world: ConsoleWorld) -> None:
    ada = world.signed_in("ada")
    path = requested(ada)
    run(world, DOCUMENT)
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', ada.get(path).text)
    assert found is not None
    form = {"form_token": found[1], "reason": "late", "name": "orders"}
    assert post(ada, "/sign-out").status_code == 303
    assert ada.post(f"{path}/confirm", data=form, headers=SAME_ORIGIN).status_code == 403
    assert ada.get(path).status_code == 302
    oto = world.signed_in("oto")
    assert oto.post(f"{path}/confirm", data=form, headers=SAME_ORIGIN).status_code == 403
    assert state(oto, path) == "dry run done"


@pytest.mark.parametrize("site", ["same-site", "cross-site", "none"])
def test_form_of_another_origin_requests_nothing(world: ConsoleWorld, site: str) -> None:
    ada = world.signed_in("ada")
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', ada.get("/actions").text)
    assert found is not None
    form = {**DISCARD, "form_token": found[1]}
    assert ada.post("/actions", data=form, headers={"Sec-Fetch-Site": site}).status_code == 403
    assert ada.post("/actions", data=DISCARD, headers=SAME_ORIGIN).status_code == 403  # without a token
    assert world.actions.newest(10) == ()


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({**DISCARD, "action": "drop-database"}, 404),
        ({**DISCARD, "action": ""}, 404),
        ({**DISCARD, "code": "everything"}, 400),
        ({**DISCARD, "topic": ""}, 400),
        ({**DISCARD, "topic": "a\x00b"}, 400),
        ({**DISCARD, "topic": "\u202eorders"}, 400),
        ({**DISCARD, "topic": "x" * 256}, 400),
        ({**SILENCE, "duration": "9999d"}, 400),
        ({**SILENCE, "kind": "*"}, 400),
        ({"action": "audit-accept", "topic": "orders", "since": "yesterday"}, 400),
        ({"action": "quarantine-replay", "topic": "orders", "code": "framing"}, 400),
        ({"action": "audit-accept", "topic": "orders", "since": "2026-01-31T00:00:00Z"}, 303),
        ({**DISCARD, "topic": "x" * 255}, 303),
    ],
)
def test_arguments_are_checked(world: ConsoleWorld, form: dict[str, str], status: int) -> None:
    assert post(world.signed_in("ada"), "/actions", **form).status_code == status
    assert len(world.actions.newest(10)) == (1 if status == 303 else 0)


@pytest.mark.parametrize("query", ["", "topic=", "topic=a%00b", f"topic={'x' * 256}"])
def test_form_for_a_value_that_it_cannot_correct_is_400(world: ConsoleWorld, query: str) -> None:
    ada = world.signed_in("ada")
    assert ada.get(f"/actions/new?action=quarantine-discard&{query}").status_code == 400
    assert ada.get("/actions/new?action=quarantine-discard&topic=orders&code=none").status_code == 200


def test_console_without_users_acts_on_loopback_only(tmp_path: Path) -> None:
    for host, status in (("127.0.0.1", 303), ("10.0.0.7", 403)):
        (tmp_path / host).mkdir()
        world = console_world(tmp_path / host, listen=Address(host, 8080))
        client = world.client()
        form = client.get("/actions/new", query_string=DISCARD)
        assert form.status_code == (200 if status == 303 else 403)
        token = re.search(r'name="form_token" value="([0-9a-f]+)"', form.text)
        data = {**DISCARD, "form_token": token[1] if token else ""}
        assert client.post("/actions", data=data, headers=SAME_ORIGIN).status_code == status
        assert [one.requested_by for one in world.actions.newest(9)] == (["anonymous"] if status == 303 else [])


@pytest.mark.parametrize("number", ["0", "99", "9" * 30, "9" * 5_000, "-1", "x"])
def test_action_that_does_not_exist_is_404(world: ConsoleWorld, number: str) -> None:
    assert world.signed_in("ada").get(f"/actions/{number}").status_code == 404


def test_full_queue_is_stated(world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "OPEN_MAX", 2)
    ada = world.signed_in("ada")
    for number in range(2):
        requested(ada, **{**DISCARD, "topic": f"t{number}"})
    refused = post(ada, "/actions", **DISCARD)
    assert (refused.status_code, "2 actions are open" in refused.text) == (429, True)


def test_audit_log_lists_who_did_what_and_why(world: ConsoleWorld) -> None:
    ada = world.signed_in("ada")
    path = requested(ada)
    run(world, DOCUMENT)
    post(ada, f"{path}/confirm", reason="=ticket 4711", name="orders")
    run(world, {**DOCUMENT, "commit_number": 7})
    requested(world.signed_in("oto"), **{**DISCARD, "topic": "orders.eu"})
    run(world, f"orders.eu: {SCRIPT}")
    failed, done = json.loads(ada.get("/actions?as=json").text)["rows"]
    assert (done["requested_by"], done["confirmed_by"], done["reason"]) == ("ada", "ada", "=ticket 4711")
    assert (done["state"], done["result"], done["about"]) == ("done", "2 messages, commit 7", "topic orders")
    assert (failed["requested_by"], failed["state"], failed["confirmed_by"]) == ("oto", "failed", None)
    assert (done["requested"], done["finished"]) == ("2026-11-18T11:10:00Z", "2026-11-18T11:10:00Z")
    page = ada.get("/actions").text
    assert SCRIPT not in page
    assert "are listed" not in page
    assert re.search(r"show=bad(&amp;|&)as=csv", ada.get("/actions?show=bad").text)
    assert "'=ticket 4711" in ada.get("/actions?as=csv").text
    for query, about in (("show=bad", ["topic orders.eu"]), ("show=open", []), ("q=4711", ["topic orders"])):
        rows = json.loads(ada.get(f"/actions?as=json&{query}").text)["rows"]
        assert [one["about"] for one in rows] == about


def test_interrupted_action_says_that_nothing_runs_it_again(world: ConsoleWorld) -> None:
    ada = world.signed_in("ada")
    path = requested(ada)
    run(world, DOCUMENT)
    post(ada, f"{path}/confirm", reason="x", name="orders")
    assert world.actions.take("dead", NOW_MS) is not None
    world.now_ms += 60_000
    assert run(world) == []
    page = ada.get(path).text
    assert "Nothing runs it again" in page
    assert "Request it again" in page


def test_program_requests_and_confirms_with_its_password(world: ConsoleWorld) -> None:
    client = world.client()
    response = client.post("/actions", data=DISCARD, auth=("ada", PASSWORD))
    path = response.headers["Location"]
    run(world, DOCUMENT)
    found = json.loads(client.get(f"{path}?as=json", auth=("ada", PASSWORD)).text)
    assert (found["dry_run"]["count"], found["finished"], "worker" in found) == (2, None, False)
    form = {"reason": "script", "name": "orders"}
    assert client.post(f"{path}/confirm", data=form, auth=("lea", PASSWORD)).status_code == 403
    assert client.post(f"{path}/confirm", data=form, auth=("ada", PASSWORD)).status_code == 303
