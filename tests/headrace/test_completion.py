"""Completions, computed by a real bash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.cli import GROUPS, SUBCOMMANDS, main

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion"
    path.write_text(capsys.readouterr().out)
    return path


def completions(script: Path, *words: str) -> list[str]:
    """Returns the completions of the last word."""
    line = " ".join(f"'{word}'" for word in ("headrace", *words))
    script_text = (
        f'. {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _headrace; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    run = subprocess.run(["bash", "-uc", script_text], capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.parametrize(
    ("words", "some", "others"),
    [
        (["lo"], ["load", "locate"], ["up"]),
        ([""], ["help", "sql", "--version"], ["plan"]),
        (["load", ""], ["plan", "status", "--topic"], ["orders", "sql"]),
        (["load", "plan", "--form"], ["--format"], ["--topic"]),
        (["load", "--tasks", "2", "st"], ["status"], []),
        (["load", "plan", "--format", ""], ["text", "json"], ["csv", "--format"]),
        (["sql", "--format", "c"], ["csv"], ["json"]),
        (["completion", ""], ["bash", "zsh"], []),
        (["registry", "db", ""], ["upgrade"], ["serve"]),
        (["load", "/etc/ho"], [], ["plan"]),
    ],
)
def test_completions_fit_the_command(script: Path, words: list[str], some: list[str], others: list[str]) -> None:
    found = completions(script, *words)
    assert {*some} <= {*found}
    assert not {*others} & {*found}
    assert all(one.startswith(words[-1]) for one in found)


def test_zsh_uses_the_script_of_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("autoload -U +X compinit")
    assert "complete -o default -F _headrace headrace" in out


def test_every_command_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(SUBCOMMANDS)
