"""`headrace alerts` in this process: exit codes, output and silences, on an empty data directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from support.webhook_receiver import WebhookReceiver, webhook_receiver

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def run(
    tmp_path: Path, receiver: WebhookReceiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs `headrace alerts` with a rule that fires at once because nothing runs here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.toml").write_text(
        f"""[alerts]
webhook_urls = ["{receiver.url}/geheim"]
[[alerts.rules]]
kind = "up-down"
hold = "0s"
[[alerts.rules]]
kind = "alerts-*"
severity = "none"
"""
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["alerts", *arguments])
        captured = capsys.readouterr()
        assert "geheim" not in captured.out + captured.err
        return code, captured.out, captured.err

    return run


def document(run: Run, *arguments: str) -> Any:
    return json.loads(run(*arguments, "--format", "json")[1])


def test_check_delivers_and_exits_with_1_until_the_alert_is_silenced(run: Run, receiver: WebhookReceiver) -> None:
    assert "not evaluated yet" in run("list")[1]
    code, out, _ = run("check")
    assert code == 1
    assert "up-down" in out
    assert receiver.events() == [("headrace up", "firing")]
    (alert,) = document(run, "list")["alerts"]
    assert (alert["state"], alert["severity"], alert["silence"]) == ("firing", "page", None)
    code, out, _ = run("silence", "--subject", "headrace*", "--for", "2h", "--reason", "it is a test", "--author", "me")
    silence_id = out.strip()
    assert code == 0
    code, out, _ = run("check")
    assert (code, out) == (0, "no alerts\n1 more are silenced: headrace alerts list\n")
    listed = document(run, "list")
    assert [one["silence"] for one in listed["alerts"]] == [silence_id]
    assert [(one["author"], one["reason"]) for one in listed["silences"]] == [("me", "it is a test")]
    assert "firing (silenced)" in run("list")[1]
    assert run("unsilence", silence_id)[0] == 0
    assert run("unsilence", silence_id)[0] == 2
    assert run("check")[0] == 1
    assert len(receiver.requests) == 1


def test_check_exits_with_2_if_a_target_fails_and_the_log_has_the_error(run: Run, receiver: WebhookReceiver) -> None:
    receiver.responses = [500]
    code, _, error = run("check")
    assert code == 2
    assert "HTTP 500" in error
    (delivery,) = document(run, "log")
    assert (delivery["outcome"], delivery["attempts"], delivery["error"]) == ("open", 1, "HTTP 500: a?b c")
    assert "HTTP 500" in run("log", "--count", "1")[1]


def test_dry_run_of_a_silence_shows_its_alerts_and_stores_nothing(run: Run) -> None:
    silence = ("silence", "--subject", "headrace*", "--for", "2h", "--reason", "x")
    assert document(run, *silence, "--dry-run")["alerts"] == []
    assert list(Path().glob("headrace-data/audit.db")) == []
    run("check")
    found = document(run, *silence, "--dry-run")
    assert ([one["kind"] for one in found["alerts"]], found["dry_run"]) == (["up-down"], True)
    assert document(run, "list")["silences"] == []
    assert "up-down" in run(*silence, "--dry-run")[1]
    stored = document(run, *silence)
    assert [one["id"] for one in document(run, "list")["silences"]] == [stored["silence"]["id"]]


def test_test_alert_reports_each_target(run: Run, receiver: WebhookReceiver) -> None:
    code, out, _ = run("test")
    assert (code, out.count(": ok")) == (0, 1)
    assert receiver.events() == [("test alert", "firing"), ("test alert", "resolved")]
    receiver.responses = [404]
    code, out, _ = run("test")
    assert (code, out.count("failed: HTTP 404")) == (2, 1)
    assert document(run, "list")["alerts"] == []


def test_rules_show_changes_of_the_settings(run: Run) -> None:
    rules = {rule["kind"]: rule for rule in document(run, "rules")}
    assert (rules["up-down"]["hold_ms"], rules["up-down"]["changed"]) == (0, True)
    assert not rules["disk-low"]["changed"]
    assert "settings" in run("rules")[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("silence", "--for", "2h", "--reason", "x"), "--kind or --subject"),
        (("silence", "--kind", "audit-mising", "--for", "2h", "--reason", "x"), "matches no kind"),
        (("silence", "--subject", "x", "--for", "2", "--reason", "x"), "--for 2"),
        (("silence", "--subject", "x", "--for", "0h", "--reason", "x"), "zero"),
        (("silence", "--subject", "x", "--for", "2h", "--reason", " "), "--reason is empty"),
        (("unsilence", "\x1b[31m"), "no active silence"),
    ],
)
def test_invalid_arguments_are_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], text: str) -> None:
    code, _, error = run(*arguments)
    assert (code, error.count("\n")) == (2, 1)
    assert text in error
    assert "\x1b" not in error


@pytest.mark.parametrize("verb", ["check", "test", "rules"])
def test_invalid_settings_are_one_line_and_exit_code_2(run: Run, tmp_path: Path, verb: str) -> None:
    (tmp_path / "headrace.toml").write_text("[alerts]\nwebhook_urls = ['geheim']\n[[alerts.rules]]\nkind = 'x'\n")
    code, _, error = run(verb)
    assert (code, error.count("\n")) == (2, 1)


def test_a_database_that_cannot_be_used_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "headrace-data").mkdir()
    (tmp_path / "headrace-data" / "audit.db").write_bytes(b"garbage" * 1000)
    for verb in ("list", "check", "log"):
        code, _, error = run(verb)
        assert (code, error.count("\n")) == (2, 1)
        assert "not a database" in error
