"""The command: configuration, dry run, status, check, the single-file program on the oldest Python, the unit."""

from __future__ import annotations

import ast
import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.push.config import PushError, parse_config, read_config
from headrace.push.make_zipapp import MODULES, make_zipapp
from support.certificates import Authority
from support.checkout import ROOT
from support.pages import page
from support.push_client import ClientProcess, config_table, eventually
from support.session_gateway import Failure, session_gateway
from support.systemd_unit import parse_sections

EXAMPLES = ROOT / "examples" / "push"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
RULE = {"paths": "/var/log/a.log", "topic": "a"}
PUSH = {"gateway": "http://gateway:8082"}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, "push.gateway is missing"),
        ({"pull": {}}, "unknown key pull"),
        ({"push": []}, "expected a table"),
        ({"push": {"gateway": "gateway:8082"}, "files": [RULE]}, "no URL of a gateway"),
        ({"push": {"gateway": "ftp://gateway"}, "files": [RULE]}, "no URL of a gateway"),
        ({"push": {"gateway": "http://gateway:99999"}, "files": [RULE]}, "no URL of a gateway"),
        ({"push": {"gateway": []}, "files": [RULE]}, "push.gateway is empty"),
        ({"push": PUSH}, "no files"),
        ({"push": PUSH, "files": []}, "no files"),
        ({"push": PUSH, "files": [{"topic": "a"}]}, "files[0]: paths is missing"),
        ({"push": PUSH, "files": [{"paths": "a"}]}, "files[0]: topic is missing"),
        ({"push": PUSH, "files": [{**RULE, "topics": "b"}]}, "unknown key topics"),
        ({"push": PUSH, "files": [{**RULE, "format": "xml"}]}, "format: expected one of lines, json, found xml"),
        ({"push": PUSH, "files": [{**RULE, "start_pattern": "("}]}, "start_pattern: not a regular expression"),
        ({"push": {**PUSH, "poll": "fast"}, "files": [RULE]}, "push: poll: expected time such as 500ms"),
        ({"push": {**PUSH, "poll": 5}, "files": [RULE]}, "push: poll: expected time"),
        ({"push": {**PUSH, "chunk_bytes": "big"}, "files": [RULE]}, "chunk_bytes: expected size"),
        ({"push": {**PUSH, "line_bytes_max": 100}, "files": [RULE]}, "line_bytes_max"),
        ({"push": {**PUSH, "user": "u"}, "files": [RULE]}, "push.password_file belong together"),
    ],
)
def test_wrong_configuration_is_named(found: dict[str, Any], problem: str) -> None:
    with pytest.raises(PushError) as raised:
        parse_config(found, "push.toml", Path("/etc"))
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(PushError) as raised:
        parse_config({"push": {"gateway": "http://u:secret@gateway"}, "files": [RULE]}, "push.toml", Path("/etc"))
    assert "secret" not in str(raised.value)


def test_example_and_page_are_valid_configurations(tmp_path: Path) -> None:
    config = read_config(EXAMPLES / "push.toml")
    assert [rule.topic for rule in config.rules] == ["nginx", "app", "events"]
    (tmp_path / "page.toml").write_text(page("docs/push.md").partition("```toml\n")[2].partition("```")[0])
    assert read_config(tmp_path / "page.toml").gateways == ("http://gateway:8082",)


def test_page_describes_every_key() -> None:
    from headrace.push.config import _FILE_KEYS, _PUSH_KEYS

    text = page("docs/push.md")
    assert [key for key in (*_PUSH_KEYS, *_FILE_KEYS) if f"`{key}`" not in text] == []


def test_relative_paths_belong_to_the_directory_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "push.json").write_text(json.dumps(config_table("http://g", tmp_path)))
    config = read_config(tmp_path / "push.json")
    assert config.state_dir == tmp_path / "state"
    assert config.rules[0].paths == (str(tmp_path / "logs/*"),)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    directory.mkdir()
    (directory / "app.log").write_text("a\nb\n")
    return directory


def config_file(directory: Path, url: str) -> str:
    (directory / "push.json").write_text(json.dumps(config_table(url, directory)))
    return str(directory / "push.json")


def test_dry_run_shows_files_and_changes_nothing(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    path = config_file(tmp_path, "http://127.0.0.1:9")
    assert main(["push", "run", "--config", path, "--dry-run"]) == 0
    assert f"{logs}/app.log: 4 bytes from position 0 to logs" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == sorted([*before, Path(path)])


def test_status_shows_positions_and_problems(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with session_gateway() as gateway:
        path = config_file(tmp_path, gateway.url)
        client = ClientProcess(config_table(gateway.url, tmp_path), tmp_path)
        eventually(lambda: len(gateway.lines()) == 2)
        eventually(
            lambda: main(["push", "status", "--config", path]) == 0 and "position 4, 0" in capsys.readouterr().out
        )
        capsys.readouterr()
        gateway.fail("/v1/sessions/", Failure(409, {"error_code": 40970, "host": "web-2"}))
        with (logs / "app.log").open("a") as file:
            file.write("c\n")
        eventually(lambda: main(["push", "status", "--config", path, "--format", "json"]) == 1)
        capsys.readouterr()
        assert main(["push", "status", "--config", path]) == 1
        out = capsys.readouterr().out
        assert "client: running" in out
        assert "2 bytes behind, stopped" in out
        assert "web-2" in out
        assert client.stop() == 0
        assert main(["push", "status", "--config", path, "--format", "json"]) == 1
        report = json.loads(capsys.readouterr().out)
        assert report["running"] is False
        assert [(one["position"], one["behind_bytes"], one["status"]) for one in report["files"]] == [(4, 2, "stopped")]


def test_status_finds_a_renamed_file_and_says_that_a_compressed_one_is_gone(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, rotated = config_file(tmp_path, "http://127.0.0.1:9"), logs / "app.log.1"
    with session_gateway() as gateway:
        client = ClientProcess(config_table(gateway.url, tmp_path), tmp_path)
        eventually(lambda: len(gateway.lines()) == 2)
        assert client.stop() == 0

    def entries() -> list[tuple[str, int | None, str]]:
        assert main(["push", "status", "--config", path, "--format", "json"]) == 0
        files = json.loads(capsys.readouterr().out)["files"]
        return [(one["file"], one["behind_bytes"], one["status"]) for one in files]

    (logs / "app.log").rename(rotated)
    with rotated.open("a") as file:
        file.write("late\n")
    assert entries() == [(str(rotated), 5, "sending")]
    rotated.with_suffix(".1.gz").write_bytes(gzip.compress(rotated.read_bytes()))
    rotated.unlink()
    assert entries() == [(str(logs / "app.log"), None, "gone")]


def test_second_client_with_the_same_state_is_refused(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with session_gateway() as gateway:
        client = ClientProcess(config_table(gateway.url, tmp_path), tmp_path)
        eventually(lambda: len(gateway.lines()) == 2)
        assert main(["push", "run", "--config", str(client.config)]) == 2
        error = capsys.readouterr().err
        assert "another client runs with this state_dir" in error
        assert error.count("\n") == 1
        assert client.stop() == 0


def test_check_finds_nothing_or_names_each_finding(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with session_gateway() as gateway:
        assert main(["push", "check", "--config", config_file(tmp_path, gateway.url)]) == 0
        assert "no findings" in capsys.readouterr().out
        gateway.always = Failure(401, {"message": "who are you"})
        assert main(["push", "check", "--config", config_file(tmp_path, gateway.url)]) == 1
        assert "refuses the credentials" in capsys.readouterr().out
        gateway.always = Failure(404, {"message": "no such path"})
        assert main(["push", "check", "--config", config_file(tmp_path, gateway.url)]) == 1
        assert "is no gateway with sessions" in capsys.readouterr().out
        url = gateway.url
    (logs / "app.log").unlink()
    assert main(["push", "check", "--config", config_file(tmp_path, url)]) == 1
    out = capsys.readouterr().out
    assert "not reachable" in out
    assert "matches no file" in out
    logs.rmdir()
    logs.symlink_to("logs")  # an error that root gets too, unlike that of a missing permission
    assert main(["push", "check", "--config", config_file(tmp_path, url)]) == 1
    assert f"{logs}: Too many levels of symbolic links; give" in capsys.readouterr().out


def test_damaged_state_is_one_line(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").mkdir()
    for text in ("{", "[]", '{"version": 2}', '{"version": 1, "sources": [{"base": 1}]}'):
        (tmp_path / "state" / "state.json").write_text(text)
        assert main(["push", "run", "--config", config_file(tmp_path, "http://127.0.0.1:9")]) == 2
        error = capsys.readouterr().err
        assert "state.json" in error
        assert error.count("\n") == 1


def oldest_python() -> str:
    """The oldest Python from 3.9 on this machine."""
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    for minor in (9, 10, 11):
        for place in places:
            python = place / f"python3.{minor}"
            if python.exists() and not subprocess.run([python, "-c", "import zlib"], capture_output=True).returncode:
                return str(python)
    return sys.executable


def test_single_file_program_runs_on_the_oldest_python(logs: Path, tmp_path: Path) -> None:
    program = tmp_path / "headrace-push"
    make_zipapp(program)
    first = program.read_bytes()
    make_zipapp(program)
    assert program.read_bytes() == first
    assert len(first) < 200_000
    with zipfile.ZipFile(program) as archive:
        compiled = [archive.read(f"headrace/push/{path.name}c")[:8] for path in MODULES]
    assert set(compiled) == {MAGIC_NUMBER + b"\1\0\0\0"}, "the interpreter would compile at each start"
    with session_gateway() as gateway:
        client = ClientProcess(config_table(gateway.url, tmp_path), tmp_path, oldest_python(), "-I", "-S", str(program))
        eventually(lambda: gateway.lines() == [b"a", b"b"], lambda: (tmp_path / "client.log").read_text())
        assert client.stop() == 0
    assert "Traceback" not in (tmp_path / "client.log").read_text()


def test_single_file_program_verifies_the_gateway_by_https(logs: Path, tmp_path: Path) -> None:
    program = tmp_path / "headrace-push"
    make_zipapp(program)
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other", "another authority")
    with session_gateway(authority.certificate("gateway")) as gateway:
        table = config_table(gateway.url, tmp_path, ca=str(other.ca_file))
        client = ClientProcess(table, tmp_path, sys.executable, "-I", "-S", str(program))
        eventually(lambda: "certificate verify failed" in (tmp_path / "client.log").read_text())
        assert client.stop() == 0
        assert not gateway.lines()
        table["push"]["ca"] = str(authority.ca_file)
        client = ClientProcess(table, tmp_path, sys.executable, "-I", "-S", str(program))
        eventually(lambda: gateway.lines() == [b"a", b"b"], lambda: (tmp_path / "client.log").read_text())
        assert client.stop() == 0


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_have_the_syntax_of_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names = {keyword.arg for keyword in node.keywords}
            assert not names & {"slots", "kw_only", "strict"}, f"line {node.lineno}: not in Python 3.9"
        assert not isinstance(node, ast.Match)


def test_unit_runs_an_existing_command_and_names_its_place() -> None:
    text = (EXAMPLES / "headrace-push.service").read_text(encoding="utf-8")
    assert text.startswith("# /etc/systemd/system/headrace-push.service\n[Unit]\n")
    (line,) = dict(parse_sections(text)["Service"])["ExecStart"]
    program, *words = shlex.split(line)
    assert program in page("docs/push.md")
    from headrace.cli import _parser

    assert _parser(["push", *words]).parse_args(["push", *words]).config == Path("/etc/headrace/push.toml")


@needs_systemd
def test_unit_has_a_sandbox() -> None:
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        "--threshold=16",
        str(EXAMPLES / "headrace-push.service"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
