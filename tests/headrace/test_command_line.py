"""The front door: help, exit codes, and one line for what goes wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import SUBCOMMANDS, main


@pytest.mark.parametrize("name", ["", *SUBCOMMANDS])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*([name] if name else []), "--help"])
    assert ended.value.code == 0
    assert "usage: headrace" in capsys.readouterr().out


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lode"])
    assert ended.value.code == 2
    assert "lode" in capsys.readouterr().err


def test_a_bad_setting_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "serve", "--broker-listen", "everywhere"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith("headrace: broker.listen in the command line: expected host:port")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m headrace --help | head -1"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
