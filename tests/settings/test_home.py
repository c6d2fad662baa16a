"""A user without a home directory, as in containers that run as any number."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.settings import SettingsError, home_directory, load_settings, state_directory
from headrace.settings.loading import COMMAND_LINE


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    monkeypatch.setattr(Path, "expanduser", lambda path: none() if str(path).startswith("~") else path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def test_who_has_a_home_keeps_things_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert home_directory() == tmp_path
    assert state_directory() == tmp_path / ".local" / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_directory() == tmp_path / "state"


@pytest.mark.usefixtures("nobody")
def test_nobody_needs_a_home(tmp_path: Path) -> None:
    assert home_directory() is None
    assert state_directory() is None
    assert load_settings(working_dir=tmp_path, home=home_directory()).data_dir == Path("headrace-data")


@pytest.mark.usefixtures("nobody")
def test_a_path_at_home_is_refused_where_there_is_none() -> None:
    with pytest.raises(SettingsError, match=f"'~/x'.*{COMMAND_LINE}"):
        load_settings(flags={"data_dir": "~/x"})
