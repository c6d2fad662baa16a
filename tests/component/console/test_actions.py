"""Actions of a served console: the worker's commands, and what remains of them after kill -9."""

from __future__ import annotations

import base64
import json
import os
import signal
import sqlite3
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.console.actions.worker import CommandResult, command_runner
from headrace.loader.inspect.quarantine import committed_files
from headrace.pipeline.alerts.storage import AlertStore
from support.console import PASSWORD, user_line
from support.loader.shelf import Shelf

HOUR = "dt=2026-01-01/hr=05"
ENVIRONMENT = {"HEADRACE__KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "HEADRACE__HIVE__EXECUTOR": "print"}
SILENCE = {"action": "alert-silence", "subject": "disk", "kind": "disk-low", "duration": "2h"}


class ConsoleClient:
    """A program that uses a served console."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.url = str(service.addresses["console"])

    @classmethod
    def start(cls, start_service: Callable[..., Any], directory: Path) -> ConsoleClient:
        (directory / "users").write_text(f"{user_line('ada')}grant ada admin *\n")
        serve = ("headrace", "console", "serve", "--console-listen", "127.0.0.1:0", "--data-dir", str(directory))
        service = start_service(*serve, "--users", str(directory / "users"), environment=ENVIRONMENT)
        return cls(service)

    def open(self, path: str, form: dict[str, str] | None = None) -> Any:
        """Sends a request, follows the redirect, and returns the JSON of an action."""
        token = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
        data = None if form is None else urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(self.url + path, data, {"Authorization": f"Basic {token}"})
        with urllib.request.urlopen(request, timeout=60) as response:
            number = response.url.partition("?")[0].rpartition("/actions/")[2]
            if "?as=json" in response.url:
                return json.loads(response.read())
        return self.open(f"/actions/{number}?as=json")

    def quarantined(self) -> int:
        """Returns the number of messages on the page of the quarantine."""
        token = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(f"{self.url}/quarantine?as=json", headers={"Authorization": f"Basic {token}"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return sum(row["count"] for row in json.loads(response.read())["rows"])

    def wait(self, action: Any, *states: str) -> Any:
        """Waits until an action is in one of the states."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                found = self.open(f"/actions/{action['id']}?as=json")
            except (OSError, urllib.error.URLError):  # the worker process is being replaced
                found = None
            if found is not None and found["state"] in states:
                return found
            time.sleep(0.1)
        raise AssertionError(f"the action is {found}, expected {states}")


@pytest.mark.servers
def test_confirmed_action_changes_the_commit_log_with_name_and_reason(
    tmp_path: Path, start_service: Callable[..., Any]
) -> None:
    shelf = Shelf(tmp_path)
    shelf.load({HOUR: [(0, 0)]}, (0, None, 0, 3), quarantined={HOUR: [(0, 1), (0, 2)]})
    console = ConsoleClient.start(start_service, tmp_path)
    assert console.quarantined() == 2
    action = console.open("/actions", {"action": "quarantine-discard", "topic": "orders"})
    checked = console.wait(action, "dry run done", "failed")
    assert (checked["state"], checked["dry_run"]["count"]) == ("dry run done", 2)
    assert len(committed_files(shelf.log, ["orders"])) == 1
    console.open(f"/actions/{action['id']}/confirm", {"reason": "tests, ticket 4711", "name": "orders"})
    done = console.wait(action, "done", "failed")
    assert (done["state"], done["result"]["count"]) == ("done", 2)
    assert console.quarantined() == 0
    state = shelf.log.read_state()
    assert shelf.log.commit(done["result"]["commit_number"]).reason == "tests, ticket 4711 (ada (console))"
    assert state.topics["orders"].quarantine.records == 0


def children_of(process: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return found


@pytest.mark.fault
@pytest.mark.skipif(not Path("/proc").exists(), reason="the kernel ends commands on Linux only")
@pytest.mark.parametrize("is_parent_killed", [False, True])
def test_killed_console_leaves_the_action_interrupted_and_undone(
    tmp_path: Path, start_service: Callable[..., Any], is_parent_killed: bool
) -> None:
    AlertStore(tmp_path / "audit.db").close()
    console = ConsoleClient.start(start_service, tmp_path)
    action = console.open("/actions", SILENCE)
    console.wait(action, "dry run done")
    with sqlite3.connect(tmp_path / "audit.db", isolation_level=None) as database:
        database.execute("BEGIN IMMEDIATE")  # the command waits for this lock
        console.open(f"/actions/{action['id']}/confirm", {"reason": "tests"})
        console.wait(action, "running")
        parent = console.service.process.pid
        (worker,) = children_of(parent)
        (command,) = waited(lambda: children_of(worker))
        os.kill(parent if is_parent_killed else worker, signal.SIGKILL)
        waited(lambda: not Path(f"/proc/{command}").exists())
        database.execute("ROLLBACK")
    if is_parent_killed:
        console = ConsoleClient.start(start_service, tmp_path)
    found = console.wait(action, "interrupted", "done", "failed")
    assert (found["state"], found["result"], bool(found["error"])) == ("interrupted", None, True)
    # The same action can be requested again, and is done once.
    again = console.open("/actions", SILENCE)
    assert again["id"] != action["id"]
    console.wait(again, "dry run done")
    console.open(f"/actions/{again['id']}/confirm", {"reason": "again"})
    console.wait(again, "done")
    with AlertStore(tmp_path / "audit.db") as store, store.reading() as reader:
        assert [(one.reason, one.author) for one in reader.silences()] == [("again", "ada (console)")]


def waited(read: Callable[[], Any]) -> Any:
    """Returns the value of `read` once it is true."""
    deadline = time.monotonic() + 60
    while not (found := read()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found
    return found


def run_command(directory: Path, *words: str, seconds_max: float = 60.0, is_wanted: bool = True) -> CommandResult:
    run = command_runner({**os.environ, "HEADRACE__DATA_DIR": str(directory)}, seconds_max)
    return run(words, lambda: is_wanted)


@pytest.mark.servers
def test_results_of_commands(tmp_path: Path) -> None:
    assert run_command(tmp_path, "alerts", "list", "--format=json").document["alerts"] == []
    assert run_command(tmp_path, "alerts", "list").error.startswith("the output of the command is no JSON")
    wrong = run_command(tmp_path, "accept", "--reason=x", "--", "--topic")
    assert wrong.document is None
    assert wrong.error.startswith("topic --topic")
    assert "\n" not in wrong.error
    assert "cannot be started" in run_command(tmp_path, "accept", "a\0b").error


@pytest.mark.servers
@pytest.mark.parametrize(("seconds_max", "is_wanted"), [(0.0, True), (60.0, False)])
def test_command_that_is_late_or_not_wanted_is_stopped(tmp_path: Path, seconds_max: float, is_wanted: bool) -> None:
    settings = tmp_path / "headrace.toml"
    os.mkfifo(settings)  # the command waits until it can read its settings
    run = command_runner({**os.environ, "HEADRACE_CONFIG": str(settings)}, seconds_max)
    before = children_of(os.getpid())
    result = run(("alerts", "list", "--format=json"), lambda: is_wanted)
    assert "stopped" in result.error
    assert children_of(os.getpid()) == before
