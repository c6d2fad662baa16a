"""`headrace sql` where another command has the metastore open."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace.cli import sql
from headrace.cli.command import CommandError
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.settings import Settings

HELD = MetastoreUnavailable("/data/metastore", "process 7 (headrace sql) has it open")


def asker(monkeypatch: pytest.MonkeyPatch, refusals: int, wait_s: float | None) -> tuple[Any, list[str]]:
    """Returns an asker whose metastore is refused so many times, and the list of what it shows meanwhile."""
    left = itertools.chain(itertools.repeat(HELD, refusals), [None])

    def open_session(self: object) -> str:
        if (error := next(left)) is not None:
            raise error
        return "a session"

    monkeypatch.setattr(sql._QueryRunner, "_open_session", open_session)
    monkeypatch.setattr(sql, "WAIT_POLL_S", 0.0)
    return sql._QueryRunner(Settings(), with_values=False, wait_s=wait_s), []


def test_it_says_who_has_it_and_how_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one, shown = asker(monkeypatch, 1, None)
    with pytest.raises(CommandError, match=r"process 7 \(headrace sql\).*--wait 5m"):
        one._session_after_wait(shown.append)


def test_it_waits_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    one, shown = asker(monkeypatch, 3, 600.0)
    assert one._session_after_wait(shown.append) == "a session"
    assert [line.endswith(str(HELD)) for line in shown] == [False, True] * 3 + [False]


def test_it_waits_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    one, shown = asker(monkeypatch, 10**9, 0.05)
    with pytest.raises(CommandError, match=r"process 7 \(headrace sql\).*\b0\.05 s\b"):
        one._session_after_wait(shown.append)
