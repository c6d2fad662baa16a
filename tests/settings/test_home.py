"""Settings of a user without a home directory, as in containers that run with an arbitrary user id."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.settings import SettingsError, home_directory, load_settings, user_state_directory
from headrace.settings.loading import COMMAND_LINE


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*args: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", raise_error)
    monkeypatch.setattr(Path, "expanduser", lambda path: raise_error() if str(path).startswith("~") else path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def test_user_state_directory_is_in_home_or_xdg_state_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert home_directory() == tmp_path
    assert user_state_directory() == tmp_path / ".local" / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert user_state_directory() == tmp_path / "state"


@pytest.mark.usefixtures("no_home")
def test_settings_load_without_a_home_directory(tmp_path: Path) -> None:
    assert home_directory() is None
    assert user_state_directory() is None
    assert load_settings(working_dir=tmp_path, home=home_directory()).data_dir == Path("headrace-data")


@pytest.mark.usefixtures("no_home")
def test_path_with_tilde_is_an_error_without_a_home_directory() -> None:
    with pytest.raises(SettingsError, match=f"'~/x'.*{COMMAND_LINE}"):
        load_settings(flags={"data_dir": "~/x"})
