"""`headrace sql` while another command has the metastore open."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace.cli import sql
from headrace.cli.command import CommandError
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.settings import Settings

IN_USE = MetastoreUnavailable("/data/metastore", "process 7 (headrace sql) has it open")


def runner_of(monkeypatch: pytest.MonkeyPatch, refusals: int, wait_s: float | None) -> tuple[Any, list[str]]:
    """Returns a runner whose metastore is in use for some attempts, and the list of the steps that it shows."""
    left = itertools.chain(itertools.repeat(IN_USE, refusals), [None])

    def open_session(self: object) -> str:
        if (error := next(left)) is not None:
            raise error
        return "a session"

    monkeypatch.setattr(sql._QueryRunner, "_open_session", open_session)
    monkeypatch.setattr(sql, "WAIT_POLL_S", 0.0)
    return sql._QueryRunner(Settings(), with_values=False, wait_s=wait_s), []


def test_error_names_the_other_process_and_the_option_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, shown = runner_of(monkeypatch, 1, None)
    with pytest.raises(CommandError, match=r"process 7 \(headrace sql\).*--wait 5m"):
        runner._session_after_wait(shown.append)


def test_wait_retries_until_the_metastore_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, shown = runner_of(monkeypatch, 3, 600.0)
    assert runner._session_after_wait(shown.append) == "a session"
    assert [line.endswith(str(IN_USE)) for line in shown] == [False, True] * 3 + [False]


def test_wait_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, shown = runner_of(monkeypatch, 10**9, 0.05)
    with pytest.raises(CommandError, match=r"process 7 \(headrace sql\).*\b0\.05 s\b"):
        runner._session_after_wait(shown.append)
