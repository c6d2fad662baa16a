"""The front door: help, exit codes, and one line for what goes wrong."""

from __future__ import annotations

import socket
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


@pytest.mark.parametrize(
    "command", ["load", "load plan", "load status", "quarantine list", "audit report", "registry serve", "broker serve"]
)
def test_a_data_folder_that_is_a_file_is_one_line_and_code_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert main([*command.split(), "--data-dir", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert str(tmp_path / "file") in said[0]


def test_a_load_without_a_broker_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert main(["load", "--data-dir", str(tmp_path), "--bootstrap-servers", address]) == 2
    assert capsys.readouterr().err.strip().splitlines() == [
        f"headrace: cannot connect to broker {address}: [Errno 111] Connection refused; start it, with `headrace up` "
        "here, or set kafka.bootstrap_servers"
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_code_2(tmp_path: Path) -> None:
    listing = [sys.executable, "-m", "headrace", "quarantine", "list", "--data-dir", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(listing, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 2
    assert "No space left on device" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("library", "command", "extra"),
    [("py4j", "sql X", "loader"), ("marshmallow", "registry serve", "registry"), ("kafka", "broker serve", "broker")],
)
def test_a_missing_library_names_the_extra_that_brings_it(
    library: str, command: str, extra: str, tmp_path: Path
) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None; from headrace.cli import main; "
        f"sys.exit(main([*{command.split()!r}, '--data-dir', {str(tmp_path)!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert f"pip install 'headrace[{extra}]'" in run.stderr
