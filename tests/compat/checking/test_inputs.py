"""Selection of files, types that files use of each other, and invalid input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.avro_schema import SchemaParseError
from headrace.cli import main
from headrace.compat.checking import inputs
from headrace.compat.checking.inputs import FILE_BYTES_MAX, find_files
from headrace.compat.checking.run import run_in_processes
from headrace.compat.checking.scope import FileScope
from headrace.compat.checking.type_sets import TypeSet
from headrace.compat.subjects import SubjectSource, derive_subject
from support.checkout import PACKAGE_LINKS
from support.examples import examples
from support.golden import case_lines, golden

RECORD = '{"type": "record", "name": "%s", "fields": [{"name": "f", "type": "%s"}]}'


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("s/b.avsc", "s/a.avsc", "s/sub/c.avsc", "s/.hidden/d.avsc", "s/node_modules/e.avsc", "s/f.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text('"int"')
    return tmp_path


def paths(*arguments: str) -> list[str]:
    return [file.path for file in find_files(arguments).files]


def test_find_files_by_directory_pattern_and_path(directory: Path) -> None:
    assert paths("s") == paths("s/") == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert paths(".") == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert paths("s/*.avsc") == ["s/a.avsc", "s/b.avsc"]
    assert paths("s/**/[a-c].avsc") == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert paths("s/b.avsc", "s") == ["s/b.avsc", "s/a.avsc", "s/sub/c.avsc"], "each once"
    assert paths("s/f.txt") == ["s/f.txt"]
    assert paths("./s/a.avsc", "s//a.avsc", "./s/", "./s/*.avsc") == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert [file.key for file in find_files(["s"]).files] == ["a.avsc", "b.avsc", "sub/c.avsc"]
    Path("[x].avsc").write_text('"int"')
    assert paths("[x].avsc") == ["[x].avsc"], "a file with the name of a pattern"


def test_linked_directories_are_searched_once(directory: Path) -> None:
    """Schemas shared by several projects are linked into each, and may be linked back."""
    (directory / "shared").mkdir()
    (directory / "shared/x.avsc").write_text('"int"')
    Path("s/linked").symlink_to("../shared")
    Path("shared/back").symlink_to("../s")
    Path("s/self").symlink_to(".")
    Path("s/sub/up").symlink_to(directory, target_is_directory=True)
    Path("s/.hidden-link").symlink_to("../shared")
    assert paths("s") == ["s/a.avsc", "s/b.avsc", "s/linked/x.avsc", "s/sub/c.avsc"]
    assert paths("s/linked") == ["s/linked/x.avsc", *(f"s/linked/back/{name}.avsc" for name in ("a", "b", "sub/c"))]


@pytest.mark.parametrize(
    "pattern",
    [
        "s/*.avsc",
        "s/?.avsc",
        "s/[ab].avsc",
        "s/[!a].avsc",
        "s/[a-b].avsc",
        "s/*/*.avsc",
        "s/**/*.avsc",
        "**/c.avsc",
        "**",
        "s/**",
        "s/.hidden/*.avsc",
        "s/.*/*.avsc",
        "s/*",
        "[!t]/[a].avsc",
        "s/[.avsc",
        "s/[].avsc",
    ],
)
def test_scope_covers_files_that_a_pattern_finds(directory: Path, pattern: str) -> None:
    all_files = [path.as_posix() for path in sorted(Path("s").rglob("*")) if path.is_file()]
    found = set(paths(pattern))
    assert {path for path in all_files if FileScope((pattern,)).covers(path)} == found - {pattern}


@pytest.mark.parametrize(
    ("arguments", "path", "key"),
    [
        (["s"], "s/sub/c.avsc", "sub/c.avsc"),
        (["t", "s/sub"], "s/sub/c.avsc", "c.avsc"),
        (["."], "s/a.avsc", "s/a.avsc"),
        (["s/a.avsc"], "s/a.avsc", "a.avsc"),
        (["s/*.avsc"], "s/a.avsc", "a.avsc"),
        ([".", "/t/a.avsc"], "/t/a.avsc", "a.avsc"),
    ],
)
def test_scope_key_is_relative_to_the_named_directory(arguments: list[str], path: str, key: str) -> None:
    assert FileScope(tuple(arguments)).key(path) == key


def test_suffix_case_and_json_files(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old").mkdir()
    broken = (RECORD % ("Broken", "int"))[:-1]
    for name, text in {
        "s/UPPER.AVSC": RECORD % ("Upper", "int"),
        "s/order.json": RECORD % ("Order", "int"),
        "s/broken.JSON": broken,
        "s/enum.json": '// mine\n{"symbols": [], "name": "E", "type": "enum"}',
        "s/package.json": '{"name": "p", "type": "module", "config": {"type": "record", "name": "R", "fields": []}}',
        "s/album.json": '{"type": "record", "name": "Blue"}',
        "s/other.json": '{"type": "object", "name": "x", "properties": {}}',
        "s/cut.json": '{"type": "object", "x": {"type": "record", "name": "R", "fields": []}',
        "s/list.json": "[1]",
        "s/bytes.json": "\x00",
        "old/UPPER.AVSC": RECORD % ("Upper", "string"),
        "old/order.json": RECORD % ("Order", "string"),
    }.items():
        Path(name).write_text(text)
    new = ["s/UPPER.AVSC", "s/broken.JSON", "s/enum.json", "s/order.json"]
    assert [path for path in paths("s") if path not in ("s/a.avsc", "s/b.avsc", "s/sub/c.avsc")] == new
    assert main(["compat", "check", "s", "--against", "old", "--allow-comments", "--format", "json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert {row["subject"]: row["compatible"] for row in document["reports"] if not row["new"]} == {
        "UPPER-value": False,
        "order-value": False,
    }
    assert [error["file"] for error in document["errors"]] == ["s/broken.JSON"]


def test_windows_paths_use_forward_slashes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects and git use forward slashes; with backslashes the whole path would become the subject."""
    monkeypatch.setattr(inputs, "PurePath", PureWindowsPath)
    walk = os.walk
    monkeypatch.setattr(
        os, "walk", lambda top, **options: (((path.replace("/", "\\")), *rest) for path, *rest in walk(top, **options))
    )
    found = find_files(["s\\a.avsc", "s", "s\\sub\\*.avsc"]).files
    assert [file.path for file in found] == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert [derive_subject(SubjectSource(file.path), "topic") for file in found] == ["a-value", "b-value", "c-value"]
    assert found[2].key == "sub/c.avsc"


@pytest.mark.parametrize("argument", ["s/*.json", "empty"])
def test_argument_without_schema_files_is_an_error(directory: Path, argument: str) -> None:
    Path("empty").mkdir()
    (failure,) = find_files([argument]).failures
    assert (failure.file, failure.exit_code) == (argument, 2)


def test_validate_counts_valid_files_next_to_invalid_ones(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x", "y", "z"):
        Path(f"s/{name}.avsc").write_text('"itn"')
    assert main(["schema", "validate", "s"]) == 3
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("3 valid schemas, 3 errors\n", 3)


def test_files_of_other_avro_formats_are_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other").mkdir()
    Path("other/P.avdl").write_text("protocol P { record A { int x; } }")
    Path("other/P.AVPR").write_text('{"protocol": "P", "types": [], "messages": {}}')
    for file, words in (("other/P.avdl", "Avro IDL"), ("other/P.AVPR", "an Avro protocol")):
        for arguments in (["schema", "validate", file], ["compat", "check", "s/a.avsc", "--against", file]):
            assert main(arguments) == 3
            assert f"{file}: error: is {words}; " in capsys.readouterr().err
    assert main(["schema", "validate", "other"]) == 2
    assert re.search(r"^other: error: .* (Avro IDL|an Avro protocol); ", capsys.readouterr().err)


def test_json_schema_with_byte_order_mark_is_not_skipped(directory: Path) -> None:
    Path("s/windows.json").write_bytes(b"\xef\xbb\xbf" + (RECORD % ("W", "int")).encode())
    assert "s/windows.json" in paths("s")
    assert main(["schema", "validate", "s"]) == 3


def test_pipes_in_a_directory_are_skipped(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("s/pipe.avsc")
    Path("s/loop.avsc").symlink_to("loop.avsc")
    Path("s/a.avsc").write_text(RECORD % ("A", "Missing"))
    assert "s/pipe.avsc" not in paths("s")
    assert main(["schema", "validate", "s"]) == 2
    captured = capsys.readouterr()
    assert re.search(r"^s/loop\.avsc: .*Too many levels of symbolic links", captured.err, re.MULTILINE)
    assert re.search(r"^s/a\.avsc:1:66: .*\bMissing\b", captured.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "released", "earlier"),
    [
        (["schemas"], ["shop/order"], "shop/order"),
        (["schemas/**/*.avsc"], ["shop/order", "web/order"], "shop/order"),
        (["schemas/shop/order.avsc"], ["shop/order", "web/order"], "shop/order"),
        (["schemas/shop/order.avsc"], ["schemas/shop/order", "shop/order"], "schemas/shop/order"),
        (["schemas/shop/order.avsc"], ["web/order"], "web/order"),
        (["schemas"], ["order-value", "shop/other"], "order-value"),
        (["schemas"], ["shop/order/v2", "shop/order/v10", "shop/order/header"], "shop/order/v10"),
        (["schemas"], ["order-value/1", "order-value/2"], "order-value/2"),
        (["schemas"], ["web/renamed"], "web/renamed"),
    ],
)
def test_directory_baseline_finds_earlier_version(
    directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], released: list[str], earlier: str
) -> None:
    Path("schemas/shop").mkdir(parents=True)
    Path("schemas/shop/order.avsc").write_text(RECORD % ("Order", "long"))
    for name in released:
        Path(f"released/{name}.avsc").parent.mkdir(parents=True, exist_ok=True)
        Path(f"released/{name}.avsc").write_text(RECORD % ("Order" if name == earlier else "Other", "long"))
    code = main(["compat", "check", *arguments, "--against", "released", "--require-subject", "--format", "json"])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    (report,) = json.loads(captured.out)["reports"]
    assert [version["name"] for version in report["compared"]] == [f"released/{earlier}.avsc"]


@pytest.mark.parametrize("baseline", [".", "./", "..//new/../released", "./released"])
def test_directory_spellings_are_equivalent(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, baseline: str
) -> None:
    for name in ("released/shop/order.avsc", "released/released/shop/order.avsc", "new/shop/order.avsc"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(RECORD % (Path(name).parent.parent.name.title(), "long"))
    monkeypatch.chdir("released")
    assert main(["compat", "check", "../new", "--against", baseline, "--format", "json"]) == 1
    assert "NAME_MISMATCH" in capsys.readouterr().out


def test_ambiguous_earlier_version_is_an_error(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("released/a/order.avsc", "released/b/order.avsc", "order.avsc"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text('"int"')
    assert main(["compat", "check", "order.avsc", "--against", "released"]) == 2
    assert capsys.readouterr().err.startswith("order.avsc: error: a/order.avsc, b/order.avsc ")


def test_moved_file_in_directory_is_found_by_subject(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {
        "old/a/x.avsc": "Old",
        "old/b/x.avsc": "Other",
        "new/b/x.avsc": "Other",
        "new/c/x.avsc": "X",
    }.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(RECORD % (text, "int"))

    def incompatible(*arguments: str) -> dict[str, list[str]]:
        assert main(["compat", "check", "new", "--against", "old", *arguments, "--format", "json"]) == 1
        found = [row for row in json.loads(capsys.readouterr().out)["reports"] if not row["compatible"]]
        return {row["file"]: [version["name"] for version in row["compared"]] for row in found}

    assert incompatible() == {"new/c/x.avsc": ["old/a/x.avsc"]}
    assert incompatible("--subject-strategy", "record") == {"new/a/x.avsc": ["old/a/x.avsc"]}


def test_deleted_files_of_directory_baseline(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "old/a.avsc",
        "old/kept/1.avsc",
        "old/kept/2.avsc",
        "old/gone/v1.avsc",
        "old/gone/v2.avsc",
        "old/t-1.avsc",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(RECORD % ("R", "int"))
    for name in ("new/a.avsc", "new/kept.avsc", "new/t-1.avsc", "elsewhere/b.avsc"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(RECORD % ("R", "int"))
    assert main(["compat", "check", "new", "--against", "old", "--format", "json"]) == 1
    found = {row["file"]: row for row in json.loads(capsys.readouterr().out)["reports"] if not row["compatible"]}
    assert set(found) == {"new/gone.avsc"}
    assert found["new/gone.avsc"]["compared"][0]["name"] == "old/gone/v2.avsc"
    Path("new/t-1.avsc").unlink()
    assert main(["compat", "check", "new", "--against", "old", "--subject", "*=all"]) == 1, (
        "the other files existed before"
    )
    capsys.readouterr()
    assert main(["compat", "check", "new", "--against", "old", "--quiet"]) == 1
    assert capsys.readouterr().out.count(" SCHEMA_DELETED\n") == 2
    assert main(["compat", "check", "new/a.avsc", "--against", "old"]) == 0
    assert main(["compat", "check", "elsewhere", "--against", "old"]) == 2


def test_deletion_of_the_only_file_of_directory_baseline(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old").mkdir()
    Path("new").mkdir()
    Path("old/a.avsc").write_text(RECORD % ("R", "int"))
    assert main(["compat", "check", "new", "--against", "old"]) == 1
    out, err = capsys.readouterr()
    assert (out.count(" SCHEMA_DELETED\n"), err) == (1, "")
    assert main(["compat", "check", "misspelled", "--against", "old"]) == 2


def test_a_new_file_is_not_compared_with_another_topics(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, record in (("released/orders/value.avsc", "Order"), ("schemas/users/value.avsc", "User")):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(RECORD % (record, "long"))
    arguments = ("schemas", "--against", "released", "--subject={directory}-value", "--format=json")
    assert main(["compat", "check", *arguments]) == 0
    assert [row["new"] for row in json.loads(capsys.readouterr().out)["reports"]] == [True]


def test_types_of_other_files_in_any_order() -> None:
    types = TypeSet({"z": RECORD % ("Z", "Y"), "x": RECORD % ("X", "string"), "y": RECORD % ("Y", "X")})
    assert [str(name) for name in types.schema("z").names] == ["X", "Y", "Z"]
    assert types.dependencies("z") == ("y",)
    assert types.is_self_contained("x")
    assert not types.is_self_contained("z")


def test_nearest_definition_is_used() -> None:
    nearest, other = RECORD % ("Header", "long"), RECORD % ("Header", "string")
    texts = {
        "a/h.avsc": nearest,
        "b/h.avsc": other,
        "a/order.avsc": RECORD % ("O", "Header"),
        "b/c/p.avsc": RECORD % ("P", "Header"),
    }
    types = TypeSet(texts)
    assert types.dependencies("a/order.avsc") == ("a/h.avsc",)
    assert types.dependencies("b/c/p.avsc") == ("b/h.avsc",)
    types = TypeSet({**texts, "top.avsc": RECORD % ("T", "Header")})
    with pytest.raises(SchemaParseError, match=r"\bHeader\b.* a/h\.avsc .*b/h\.avsc"):
        types.schema("top.avsc")
    types = TypeSet({**texts, "b/h.avsc": nearest, "top.avsc": RECORD % ("T", "Header")})
    assert types.schema("top.avsc"), "the same definition twice is one"


def test_given_types_precede_named_files(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind in (("types/h", "long"), ("h", "Missing"), ("x/h", "Missing"), ("x/y/h", "long")):
        Path(f"{name}.avsc").parent.mkdir(parents=True, exist_ok=True)
        Path(f"{name}.avsc").write_text(RECORD % ("Header", kind))
    for using in ("u/use.avsc", "x/y/use.avsc"):
        Path(using).parent.mkdir(exist_ok=True)
        Path(using).write_text(RECORD % ("Use", "Header"))
        assert main(["schema", "validate", using, "h.avsc", "--types", "types"]) == 3
        assert capsys.readouterr().err.count("\n") == 1, "h.avsc is not a schema; its type is not used"
    assert main(["schema", "validate", "u/use.avsc"]) == 3
    assert re.search(r"^u/use\.avsc:1:68: .*\bh\.avsc", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize("schema", ["s/a.avsc", "missing.avsc"])
def test_unreadable_file_of_types_is_reported_once(
    directory: Path, capsys: pytest.CaptureFixture[str], schema: str
) -> None:
    assert main(["schema", "validate", schema, "--types", "missing.avsc"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("missing.avsc: error: ")


def test_named_file_precedes_equally_near_copy(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind in (("types/h", "long"), ("target/h", "string")):
        Path(f"{name}.avsc").parent.mkdir()
        Path(f"{name}.avsc").write_text(RECORD % ("Header", kind))
    Path("use.avsc").write_text(RECORD % ("Use", "Header"))
    assert main(["schema", "validate", "use.avsc", "types"]) == 0
    assert main(["schema", "validate", "use.avsc"]) == 3
    assert re.search(r"\bHeader\b.* target/h\.avsc .*types/h\.avsc", capsys.readouterr().err)


def test_namespaces_of_other_files() -> None:
    header = '{"type": "enum", "name": "Kind", "namespace": "shop.common", "symbols": ["A"]}'
    using = '{"type": "record", "name": "R", "namespace": "shop", "fields": [{"name": "k", "type": "%s"}]}'
    assert TypeSet({"k": header, "r": using % "shop.common.Kind"}).schema("r")
    with pytest.raises(SchemaParseError, match=r"\bshop\.Kind\b"):
        TypeSet({"k": header, "r": using % "Kind"}).schema("r")


def test_cyclic_files_are_an_error() -> None:
    types = TypeSet(
        {"a": RECORD % ("A", "B"), "b": RECORD % ("B", "C"), "c": RECORD % ("C", "A"), "d": RECORD % ("D", "D")}
    )
    for path in ("a", "b", "c"):
        with pytest.raises(SchemaParseError, match=r"\b(a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c)\b"):
            types.schema(path)
    assert types.schema("d"), "a recursive record needs only its own file"


def test_error_of_a_used_file_has_both_positions() -> None:
    types = TypeSet({"a": RECORD % ("A", "B"), "b": '{"type": "record", "name": "B", "fields": [{"name": "1"}]}'})
    with pytest.raises(SchemaParseError) as raised:
        types.schema("a")
    assert re.match(r'a:1:66: .*\bb:1:53: "1" ', str(raised.value))


BAD = {
    "broken": ('{"type": "record",\n  "name": }', "2:11"),
    "comment": ('// about\n"int"', "1:1"),
    "inner": ('{"type": "int" /* why */}', "1:16"),
    "duplicate": ('{"type": "int",\n "type": "long"}', "2:2"),
    "bom": ("\ufeff" + '"int"', "1:1"),
    "deep": ('{"type":"array","items":' * 10_000 + '"int"' + "}" * 10_000, "1:4801"),
    "long": ('"' + "x" * 5_000_000 + '"', "1:1"),
    "missing": (RECORD % ("M", "Nowhere"), "1:66"),
    "cycle": (RECORD % ("C1", "C2"), "1:67"),
    "empty": (" \n", "1:1"),
}
"""Invalid schema texts, and line and column of their errors."""


def test_invalid_schema_is_one_line_with_its_position_and_exit_code_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    errors = {}
    for name, (text, _) in BAD.items():
        Path("bad.avsc").write_text(text)
        Path("good.avsc").write_text(RECORD % ("C2", "C1") if name == "cycle" else '"int"')
        is_cycle = name == "cycle"
        checked = ("schema", "validate", ".") if is_cycle else ("compat", "check", "bad.avsc", "--against", "good.avsc")
        assert main([*checked]) == 3, name
        errors[name] = capsys.readouterr().err
        assert errors[name].count("\n") == (2 if is_cycle else 1), name
    found = {name: ":".join(error.split(":")[:3]) for name, error in errors.items()}
    assert found == {name: f"bad.avsc:{place}" for name, (_, place) in BAD.items()}
    lines = case_lines(errors.items())
    assert lines == golden("compat/invalid_schemas.txt", lines)


def test_a_file_of_50_megabytes_is_refused_unparsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Path("big.avsc").open("wb") as file:
        file.truncate(50_000_000)
    assert main(["schema", "validate", "big.avsc"]) == 3
    assert re.fullmatch(rf"big\.avsc:1:1: .*\b{FILE_BYTES_MAX}\b.*\n", capsys.readouterr().err)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_without_permission_exits_with_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.avsc").write_text('"int"')
    Path("secret.avsc").chmod(0)
    assert main(["schema", "validate", "secret.avsc"]) == 2
    assert "Permission denied" in capsys.readouterr().err


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=200), st.text(alphabet='{}[]",:\\ \nabtypenmfield0123', max_size=200).map(str.encode)
    )
)
def test_arbitrary_bytes_never_cause_a_traceback(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.avsc"
    path.write_bytes(data)
    assert main(["compat", "check", str(path), "--against", str(path), "--types", str(path)]) in (0, 3)


@given(st.lists(st.integers(), max_size=200), st.integers(1, 5))
@settings(max_examples=examples(0.5))
def test_run_in_processes_preserves_order(items: list[int], processes: int) -> None:
    assert run_in_processes(lambda item: item * 2, items, processes) == [item * 2 for item in items]


def test_items_of_a_killed_process_are_processed() -> None:
    parent = os.getpid()

    def process_item(item: int) -> int:
        if os.getpid() != parent:
            time.sleep(0)
            os._exit(9)
        return item

    assert run_in_processes(process_item, range(100), 3) == list(range(100))


def test_partial_result_of_a_killed_process_is_discarded(tmp_path: Path) -> None:
    parent, started = os.getpid(), tmp_path / "started"

    def process_item(item: int) -> bytes:
        if os.getpid() != parent:
            started.write_text(str(os.getpid()))
        elif item == 0:
            while not started.exists() or not started.read_text():
                time.sleep(0.01)
            time.sleep(0.3)  # its results fill the pipe, which is not read yet
            os.kill(int(started.read_text()), signal.SIGKILL)
        return b"%d" % item * 100_000

    assert run_in_processes(process_item, range(50), 2) == [b"%d" % item * 100_000 for item in range(50)]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["compat", "check", "s", "--against", "s"], 0),
        (["compat", "check", "s", "--against-registry", "http://127.0.0.1:1"], 4),
        (["compat", "diff", "s", "--against", "s"], 0),
        (["compat", "explain"], 0),
        (["schema", "validate", "s"], 0),
        (["schema", "download", "--to", "x", "--registry-url", "http://127.0.0.1:1"], 4),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_commands_run_without_site_packages(directory: Path, arguments: list[str], code: int) -> None:
    """Without site packages; only the headrace package is imported in addition."""
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import headrace.registry.client.transport as t; "
        "t.PAUSE_FIRST_S = 0.001; from headrace.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(PACKAGE_LINKS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
