"""`headrace compat check`: output and exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from support.checkout import PACKAGE_LINKS, ROOT
from support.golden import case_lines, golden

DEMO = ROOT / "pipeline" / "demo" / "schemas"
ORDER = '{"type": "record", "name": "Order", "fields": [\n  {"name": "id", "type": "long"}%s\n]}\n'


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with schemas: v1, v2 that reads v1, v3 that adds a field without default, and invalid files."""
    monkeypatch.chdir(tmp_path)
    files = {
        "v1.avsc": ORDER % "",
        "v2.avsc": ORDER % ',\n  {"name": "note", "type": "string", "default": ""}',
        "v3.avsc": ORDER % ',\n  {"name": "note", "type": "string"}',
        "broken.avsc": '{"type": "record",\n  "name": }',
        "unknown.avsc": '{"type": "record", "name": "R", "fields": [\n {"name": "a", "type": "lnog"}]}',
        "empty.avsc": "  \n",
        "deep.avsc": "[" * 100_000,
    }
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("bom.avsc").write_bytes(b'\xef\xbb\xbf"int"')
    Path("utf16.avsc").write_bytes('"int"'.encode("utf-16"))
    Path("binary.avsc").write_bytes(bytes(range(256)) * 20)
    Path("directory.avsc").mkdir()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["compat", "check", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_report_names_level_versions_fields_positions_and_fixes(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = []
    for code, *arguments in (
        (0, "v2.avsc", "--against", "v1.avsc"),
        (1, "v3.avsc", "--against", "v1.avsc"),
        (0, "v3.avsc", "--against", "v1.avsc", "v2.avsc"),
        (1, "v3.avsc", "--against", "v1.avsc", "--against", "v2.avsc", "--level", "full_transitive"),
        (1, "v2.avsc", "v3.avsc", "--against", "v1.avsc"),
    ):
        found, out, err = run(capsys, *map(str, arguments))
        assert (found, err) == (code, ""), arguments
        reports.append((" ".join(map(str, arguments)), out))
    text = case_lines(reports)
    assert text == golden("compat/command.txt", text)


def test_history_is_given_oldest_first(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def compared(*arguments: str) -> list[str]:
        _, out, _ = run(capsys, "v3.avsc", *arguments, "--format", "json")
        return [version["name"] for version in json.loads(out)["reports"][0]["compared"]]

    assert compared("--against", "v1.avsc", "v2.avsc") == ["v2.avsc"]
    transitive = ("--level", "full_transitive")
    assert compared("--against", "v1.avsc", "--against", "v2.avsc", *transitive) == ["v2.avsc", "v1.avsc"]


def test_same_problem_in_several_versions_is_reported_once(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "v3.avsc", "--against", "v1.avsc", "v1.avsc", "--level", "BACKWARD_TRANSITIVE")
    assert out.count("error:") == 1


def test_json_report_of_incompatible_and_invalid_files(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "v3.avsc", "broken.avsc", "--against", "v1.avsc", "--format", "json")
    value = json.loads(out)
    assert code == 3
    assert (value["format"], value["compatible"]) == (1, False)
    (report,) = value["reports"]
    (finding,) = report["findings"]
    assert {key: finding[key] for key in ("rule", "direction", "version", "line", "column", "pointer")} == {
        "rule": "READER_FIELD_MISSING_DEFAULT_VALUE",
        "direction": "backward",
        "version": 1,
        "line": 3,
        "column": 3,
        "pointer": "/fields/1",
    }
    (error,) = value["errors"]
    assert (error["kind"], error["file"], error["line"], error["column"]) == ("invalid", "broken.avsc", 2, 11)
    assert err.startswith("broken.avsc:2:11: error: ")


UNUSABLE = [
    ("broken.avsc", 3, "broken.avsc:2:11"),
    ("unknown.avsc", 3, "unknown.avsc:2:24"),
    ("empty.avsc", 3, "empty.avsc:1:1"),
    ("deep.avsc", 3, "deep.avsc:1:201"),
    ("bom.avsc", 3, "bom.avsc:1:1"),
    ("utf16.avsc", 3, "utf16.avsc:1:1"),
    ("binary.avsc", 3, "binary.avsc:2:118"),
    ("missing.avsc", 2, "missing.avsc"),
    ("directory.avsc", 2, "directory.avsc"),
    ("v1.avsc/x", 2, "v1.avsc/x"),
    ("", 2, '""'),
    ("a\x00b", 2, "a·b"),
    ("a\x1b[31m\nb", 2, "a·[31m·b"),
]
"""An unusable file, the exit code of its check, and the position in its error."""


def test_unusable_file_prints_one_line_and_sets_exit_code(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, messages = [], []
    for file, _, _ in UNUSABLE:
        for arguments in ((file, "--against", "v1.avsc"), ("v1.avsc", "--against", file)):
            code, out, err = run(capsys, *arguments)
            place, _, message = err.partition(": error: ")
            found.append((file, code, place))
            messages.append((ascii(arguments), message))
            assert (out, err.count("\n")) == ("", 1), file
    assert found == [row for row in UNUSABLE for _ in range(2)]
    lines = case_lines(messages)
    assert lines == golden("compat/unusable_files.txt", lines)


def test_exit_code_of_unreadable_file_precedes_invalid_file(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "broken.avsc", "missing.avsc", "v3.avsc", "--against", "v1.avsc")
    assert code == 2
    assert "v3.avsc:3:3: error: " in out
    assert len(err.splitlines()) == 2


def test_unknown_level_is_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "v1.avsc", "--against", "v1.avsc", "--level", "sideways")
    assert code == 2
    assert err.startswith("headrace: --level: 'sideways' ")
    assert err.count("\n") == 1


def test_too_large_schemas_exit_with_code_2(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.compat.resolution.PAIRS_MAX", 0)
    code, out, err = run(capsys, "v3.avsc", "--against", "v2.avsc")
    assert (code, out) == (2, "")
    assert err.startswith("v3.avsc: error: ")
    assert err.count("\n") == 1


def test_excerpt_of_long_line_is_around_the_column(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = ",".join(f'{{"name":"f{i}","type":"int"}}' for i in range(100))
    Path("long.avsc").write_text(f'{{"type":"record","name":"Order","fields":[{fields}]}}')
    _, out, _ = run(capsys, "long.avsc", "--against", "v1.avsc")
    _, excerpt, caret = out.split("\n")[6 * 50 : 6 * 50 + 3]  # the 50th finding; each has six lines
    assert len(excerpt) < 130
    assert excerpt[caret.index("^") :].startswith('{"name":"f')


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("variable", "is_coloured"), [("", True), ("NO_COLOR", False)])
def test_colour_only_on_terminals(
    directory: Path, monkeypatch: pytest.MonkeyPatch, variable: str, is_coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if variable:
        monkeypatch.setenv(variable, "1")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["compat", "check", "v3.avsc", "--against", "v1.avsc"]) == 1
    assert ("\x1b[" in terminal.getvalue()) is is_coloured


def test_check_needs_only_standard_library(directory: Path) -> None:
    """Without site packages, as in a bare install; only the headrace package is imported in addition."""
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from headrace.cli import main; code = main(sys.argv[1:]); "
        "print(sorted({name.partition('.')[0] for name in sys.modules if not name.startswith('_')} "
        "- set(sys.stdlib_module_names)), file=sys.stderr); sys.exit(code)"
    )
    arguments = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        program,
        str(PACKAGE_LINKS),
        "compat",
        "check",
        "v3.avsc",
        "--against",
        "v1.avsc",
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=directory)
    assert done.returncode == 1, done.stderr
    assert done.stderr == "['headrace']\n"


@pytest.mark.parametrize("style", ["text", "json"])
def test_non_unicode_file_names_and_terminals(directory: Path, style: str) -> None:
    name = os.fsdecode(b"\xff\xe9.avsc")
    Path(name).write_text(Path("v3.avsc").read_text())
    command = [sys.executable, "-m", "headrace", "compat", "check", name, "--against", "v1.avsc", "--format", style]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    if style == "json":
        assert json.loads(done.stdout)["reports"][0]["file"] == name


def test_third_demo_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(DEMO / f"flights-v{version}.avsc") for version in (1, 2, 3)]
    code, out, _ = run(capsys, files[2], "--against", *files[:2])
    assert code == 1
    out = out.replace(f"{DEMO}/", "").replace(f"{DEMO.relative_to(ROOT)}/", "")
    assert out == golden("compat/demo.txt", out)
    assert run(capsys, files[1], "--against", files[0])[0] == 0
