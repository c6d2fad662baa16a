"""`headrace sql` while the metastore cannot be used, because another command has it open or because it is starting."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace.cli import sql
from headrace.cli.command import CommandError
from headrace.hive_ddl.errors import MetastoreMisconfigured, MetastoreUnavailable
from headrace.settings import Settings

IN_USE = MetastoreUnavailable("/data/metastore", "process 7 (headrace sql) has it open")
STARTING = MetastoreUnavailable("thrift://127.0.0.1:1", "Connection refused")


def runner_of(
    monkeypatch: pytest.MonkeyPatch, refusals: int, wait_s: float | None, refusal: MetastoreUnavailable = IN_USE
) -> tuple[Any, list[str]]:
    """Returns a runner whose metastore cannot be used for some attempts, and the list of the steps that it shows."""
    left = itertools.chain(itertools.repeat(refusal, refusals), [None])

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


@pytest.mark.parametrize("refusal", [IN_USE, STARTING], ids=lambda refusal: refusal.reason)
def test_wait_retries_until_the_metastore_can_be_used(
    refusal: MetastoreUnavailable, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, shown = runner_of(monkeypatch, 3, 600.0, refusal)
    assert runner._session_after_wait(shown.append) == "a session"
    assert [line.endswith(str(refusal)) for line in shown] == [False, True] * 3 + [False]


def test_wait_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, shown = runner_of(monkeypatch, 10**9, 0.05)
    with pytest.raises(CommandError, match=r"process 7 \(headrace sql\).*\b0\.05 s\b"):
        runner._session_after_wait(shown.append)


def test_malformed_address_is_an_error_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    malformed = MetastoreMisconfigured("thrift://:9083", "expected thrift://host:port")
    for wait_s in (None, 600.0):
        runner, shown = runner_of(monkeypatch, 1, wait_s, malformed)
        with pytest.raises(CommandError) as caught:
            runner._session_after_wait(shown.append)
        assert str(caught.value) == str(malformed), "without a word about --wait"
