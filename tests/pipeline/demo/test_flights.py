"""The end of the demo: results, the console's address, and when the servers stop."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from headrace.pipeline.demo import flights
from headrace.pipeline.demo.flights import DemoResult, run_demo_in

URL = "http://127.0.0.1:4711/?range=1y"


class EndedEnvironment:
    """An environment whose demo has reached its end."""

    def __init__(self, url: str = URL) -> None:
        self.url = url
        self.is_running = True

    def console_url(self) -> str:
        return self.url

    def next_steps(self) -> tuple[str, ...]:
        return ("headrace up",)

    def stop(self) -> None:
        self.is_running = False


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("start", "first_half", "evolve", "second_half"):
        monkeypatch.setattr(flights._Demo, name, lambda self: None)
    monkeypatch.setattr(flights._Demo, "compare_queries", lambda self: [])
    monkeypatch.setattr(flights._Demo, "audit", lambda self: True)


def test_servers_run_until_the_wait_ends_after_the_address_is_printed(tmp_path: Path) -> None:
    environment, out, seen = EndedEnvironment(), io.StringIO(), []

    def wait() -> None:
        seen.append((environment.is_running, out.getvalue()))

    assert run_demo_in(environment, tmp_path, tmp_path, out, wait) == DemoResult((), True)  # type: ignore[arg-type]
    ((was_running, text),) = seen
    assert was_running
    assert text.splitlines()[-1].strip() == URL
    assert "Ctrl-C" in text
    assert not environment.is_running


@pytest.mark.parametrize(("url", "waits"), [(URL, False), ("", True)])
def test_servers_stop_at_once_without_a_terminal_or_a_console(tmp_path: Path, url: str, waits: bool) -> None:
    environment, out = EndedEnvironment(url), io.StringIO()

    def wait() -> None:
        raise AssertionError("waits")

    run_demo_in(environment, tmp_path, tmp_path, out, wait if waits else None)  # type: ignore[arg-type]
    assert URL not in out.getvalue()
    assert "headrace up" in out.getvalue()
    assert not environment.is_running
