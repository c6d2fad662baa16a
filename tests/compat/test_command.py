"""`headrace compat check`: what a person or a CI job sees, and the exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from support.checkout import PACKAGES, ROOT

DEMO = ROOT / "pipeline" / "demo" / "schemas"
ORDER = '{"type": "record", "name": "Order", "fields": [\n  {"name": "id", "type": "long"}%s\n]}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of schemas to work in: v1, v2 that reads it, v3 that adds a field without default, and bad files."""
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
    Path("folder.avsc").mkdir()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["compat", "check", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_compatible(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "v2.avsc", "--against", "v1.avsc")
    assert (code, out, err) == (0, "v2.avsc: compatible at BACKWARD with v1.avsc\n", "")


def test_incompatible_names_field_line_column_and_fix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "v3.avsc", "--against", "v1.avsc")
    assert (code, err) == (1, "")
    assert out == (
        'v3.avsc:3:3: error: field "note" is not in v1.avsc and has no default, so data of that version cannot be '
        "read\n"
        '     3 | {"name": "note", "type": "string"}\n'
        "       | ^\n"
        '    fix: give it a default, such as "default": "", or make it optional: "type": ["null", "string"], '
        '"default": null\n'
        "    rule: READER_FIELD_MISSING_DEFAULT_VALUE (backward) at /fields/1: note\n"
        "\n"
        "v3.avsc: incompatible at BACKWARD with v1.avsc: 1 problem\n"
    )


def test_the_history_is_given_oldest_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "v3.avsc", "--against", "v1.avsc", "v2.avsc")
    assert code == 0
    assert out == (
        "v3.avsc: compatible at BACKWARD with v2.avsc\n"
        "note: the older file was not compared; --level BACKWARD_TRANSITIVE compares every one\n"
    )
    code, out, _ = run(capsys, "v3.avsc", "--against", "v1.avsc", "--against", "v2.avsc", "--level", "full_transitive")
    assert code == 1
    assert "v3.avsc: incompatible at FULL_TRANSITIVE with v1.avsc: 1 problem" in out


def test_the_same_problem_in_several_versions_is_told_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "v3.avsc", "--against", "v1.avsc", "v1.avsc", "--level", "BACKWARD_TRANSITIVE")
    assert out.count("error:") == 1


def test_several_candidates_are_each_judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "v2.avsc", "v3.avsc", "--against", "v1.avsc")
    assert code == 1
    assert "v2.avsc: compatible" in out
    assert "v3.avsc: incompatible" in out


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("file", "code", "message"),
    [
        ("broken.avsc", 3, 'broken.avsc:2:11: error: expected a JSON value, found "}"'),
        ("unknown.avsc", 3, "unknown.avsc:2:24: error: the type lnog is not defined"),
        ("empty.avsc", 3, "empty.avsc:1:1: error: the file is empty; expected an Avro schema in JSON"),
        ("deep.avsc", 3, "deep.avsc:1:201: error: nested deeper than 200 levels"),
        ("bom.avsc", 3, "bom.avsc:1:1: error: the text begins with a byte order mark"),
        ("utf16.avsc", 3, "utf16.avsc:1:1: error: not UTF-8 text (found UTF-16)"),
        ("binary.avsc", 3, "binary.avsc:2:118: error: not UTF-8 text (found the byte 0x80)"),
        ("missing.avsc", 2, "missing.avsc: error: cannot be read: No such file or directory"),
        ("folder.avsc", 2, "folder.avsc: error: the folder holds no schema file (.avsc)"),
        ("v1.avsc/x", 2, "v1.avsc/x: error: cannot be read: Not a directory"),
        ("", 2, '"": error: cannot be read: No such file or directory'),
        ("a\x00b", 2, "a·b: error: cannot be read: embedded null byte"),
        ("a\x1b[31m\nb", 2, "a·[31m·b: error: cannot be read: No such file or directory"),
    ],
)
@pytest.mark.parametrize("is_candidate", [True, False])
def test_bad_files_are_one_line_and_a_code(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, code: int, message: str, is_candidate: bool
) -> None:
    arguments = (file, "--against", "v1.avsc") if is_candidate else ("v1.avsc", "--against", file)
    actual, out, err = run(capsys, *arguments)
    assert (actual, out) == (code, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_file_that_cannot_be_read_counts_more_than_one_that_is_invalid(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "broken.avsc", "missing.avsc", "v3.avsc", "--against", "v1.avsc")
    assert code == 2
    assert "v3.avsc: incompatible" in out
    assert len(err.splitlines()) == 2


def test_another_word_is_not_a_level(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "v1.avsc", "--against", "v1.avsc", "--level", "sideways")
    assert code == 2
    assert err.startswith("headrace: --level: 'sideways' is not a compatibility level; expected one of NONE, BACKWARD,")
    assert err.count("\n") == 1


def test_schemas_too_large_to_compare(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.compat.resolution.PAIRS_MAX", 0)
    code, out, err = run(capsys, "v3.avsc", "--against", "v2.avsc")
    assert (code, out) == (2, "")
    assert err.startswith("v3.avsc: error: the schemas cannot be compared: more than 0 pairs of types")


def test_a_schema_in_one_long_line_is_shown_around_the_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = ",".join(f'{{"name":"f{i}","type":"int"}}' for i in range(100))
    Path("long.avsc").write_text(f'{{"type":"record","name":"Order","fields":[{fields}]}}')
    _, out, _ = run(capsys, "long.avsc", "--against", "v1.avsc")
    _, excerpt, caret = out.split("\n")[6 * 50 : 6 * 50 + 3]  # the fiftieth finding; each takes six lines
    assert len(excerpt) < 130
    assert excerpt[caret.index("^") :].startswith('{"name":"f')


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("variable", "is_coloured"), [("", True), ("NO_COLOR", False)])
def test_colour_is_for_terminals(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, is_coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if variable:
        monkeypatch.setenv(variable, "1")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["compat", "check", "v3.avsc", "--against", "v1.avsc"]) == 1
    assert ("\x1b[" in terminal.getvalue()) is is_coloured


def test_it_needs_the_standard_library_only(folder: Path) -> None:
    """Without site packages, as in a bare install; nothing but our own rooms comes from elsewhere."""
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
        str(PACKAGES),
        "compat",
        "check",
        "v3.avsc",
        "--against",
        "v1.avsc",
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 1, done.stderr
    assert done.stderr == "['headrace']\n"


@pytest.mark.parametrize("style", ["text", "json"])
def test_names_and_terminals_that_are_not_unicode(folder: Path, style: str) -> None:
    name = os.fsdecode(b"\xff\xe9.avsc")
    Path(name).write_text(Path("v3.avsc").read_text())
    command = [sys.executable, "-m", "headrace", "compat", "check", name, "--against", "v1.avsc", "--format", style]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    if style == "json":
        assert json.loads(done.stdout)["reports"][0]["file"] == name


def test_the_demos_third_version_is_refused_with_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(DEMO / f"flights-v{version}.avsc") for version in (1, 2, 3)]
    code, out, _ = run(capsys, files[2], "--against", *files[:2])
    assert code == 1
    assert 'field "dep_delay" may hold int in' in out
    assert 'fix: add "int" to the union' in out
    assert 'field "gate" is not in' in out
    assert 'fix: give it a default, such as "default": ""' in out
    assert run(capsys, files[1], "--against", files[0])[0] == 0
