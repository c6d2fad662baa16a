"""Which files are read, types that files use of each other, and input that is bad in every way."""

from __future__ import annotations

import json
import os
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
from headrace.compat.checking.processes import answers_of
from headrace.compat.checking.scope import Scope
from headrace.compat.checking.type_sets import TypeSet
from headrace.compat.subjects import SchemaPlace, subject_of
from support.checkout import PACKAGES

RECORD = '{"type": "record", "name": "%s", "fields": [{"name": "f", "type": "%s"}]}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("s/b.avsc", "s/a.avsc", "s/sub/c.avsc", "s/.hidden/d.avsc", "s/node_modules/e.avsc", "s/f.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text('"int"')
    return tmp_path


def paths(*arguments: str) -> list[str]:
    return [file.path for file in find_files(arguments).files]


def test_folders_patterns_and_files(folder: Path) -> None:
    assert paths("s") == paths("s/") == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert paths(".") == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert paths("s/*.avsc") == ["s/a.avsc", "s/b.avsc"]
    assert paths("s/**/[a-c].avsc") == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert paths("s/b.avsc", "s") == ["s/b.avsc", "s/a.avsc", "s/sub/c.avsc"], "each once"
    assert paths("s/f.txt") == ["s/f.txt"]
    assert paths("./s/a.avsc", "s//a.avsc", "./s/", "./s/*.avsc") == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert [file.key for file in find_files(["s"]).files] == ["a.avsc", "b.avsc", "sub/c.avsc"]
    Path("[x].avsc").write_text('"int"')
    assert paths("[x].avsc") == ["[x].avsc"], "a file that is called like a pattern"


def test_folders_that_a_link_leads_to(folder: Path) -> None:
    """Schemas that several projects share are linked into each, and may be linked back."""
    (folder / "shared").mkdir()
    (folder / "shared/x.avsc").write_text('"int"')
    Path("s/linked").symlink_to("../shared")
    Path("shared/back").symlink_to("../s")
    Path("s/self").symlink_to(".")
    Path("s/sub/up").symlink_to(folder, target_is_directory=True)
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
def test_what_was_deleted_is_meant_by_the_patterns_that_would_have_found_it(folder: Path, pattern: str) -> None:
    everything = [path.as_posix() for path in sorted(Path("s").rglob("*")) if path.is_file()]
    found = set(paths(pattern))
    assert {path for path in everything if Scope((pattern,)).covers(path)} == found - {pattern}


def test_names_in_other_cases_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_paths_of_windows_have_forward_slashes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects and git know a file so; with others the whole path would be the subject."""
    monkeypatch.setattr(inputs, "PurePath", PureWindowsPath)
    walk = os.walk
    monkeypatch.setattr(
        os, "walk", lambda top, **how: (((path.replace("/", "\\")), *rest) for path, *rest in walk(top, **how))
    )
    found = find_files(["s\\a.avsc", "s", "s\\sub\\*.avsc"]).files
    assert [file.path for file in found] == ["s/a.avsc", "s/b.avsc", "s/sub/c.avsc"]
    assert [subject_of(SchemaPlace(file.path), "topic") for file in found] == ["a-value", "b-value", "c-value"]
    assert found[2].key == "sub/c.avsc"


@pytest.mark.parametrize(
    ("argument", "words"),
    [("s/*.json", "the pattern matches no file"), ("empty", "the folder holds no schema file (.avsc)")],
)
def test_nothing_found_is_an_error(folder: Path, argument: str, words: str) -> None:
    Path("empty").mkdir()
    (failure,) = find_files([argument]).failures
    assert failure.message.startswith(words)
    assert failure.exit_code == 2


def test_pipes_in_a_folder_are_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("s/pipe.avsc")
    Path("s/loop.avsc").symlink_to("loop.avsc")
    Path("s/a.avsc").write_text(RECORD % ("A", "Missing"))
    assert "s/pipe.avsc" not in paths("s")
    assert main(["schema", "validate", "s"]) == 2
    captured = capsys.readouterr()
    assert "s/loop.avsc: error: cannot be read: Too many levels of symbolic links" in captured.err
    assert "s/a.avsc:1:66: error: the type Missing is not defined" in captured.err


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
def test_where_a_folder_holds_the_earlier_version(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], released: list[str], earlier: str
) -> None:
    Path("schemas/shop").mkdir(parents=True)
    Path("schemas/shop/order.avsc").write_text(RECORD % ("Order", "long"))
    for name in released:
        Path(f"released/{name}.avsc").parent.mkdir(parents=True, exist_ok=True)
        Path(f"released/{name}.avsc").write_text(RECORD % ("Order" if name == earlier else "Other", "long"))
    code = main(["compat", "check", *arguments, "--against", "released", "--require-subject"])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    assert f"with released/{earlier}.avsc" in captured.out


@pytest.mark.parametrize("baseline", [".", "./", "..//new/../released", "./released"])
def test_folders_in_other_spellings(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, baseline: str
) -> None:
    for name in ("released/shop/order.avsc", "released/released/shop/order.avsc", "new/shop/order.avsc"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(RECORD % (Path(name).parent.parent.name.title(), "long"))
    monkeypatch.chdir("released")
    assert main(["compat", "check", "../new", "--against", baseline, "--format", "json"]) == 1
    assert "NAME_MISMATCH" in capsys.readouterr().out


def test_files_that_could_each_be_the_earlier_version(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("released/a/order.avsc", "released/b/order.avsc", "order.avsc"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text('"int"')
    assert main(["compat", "check", "order.avsc", "--against", "released"]) == 2
    assert capsys.readouterr().err.startswith("order.avsc: error: a/order.avsc, b/order.avsc could each be its earlier")


def test_a_file_that_was_moved_in_a_folder_keeps_its_subject(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {
        "old/a/x.avsc": "Old",
        "old/b/x.avsc": "Other",
        "new/b/x.avsc": "Other",
        "new/c/x.avsc": "X",
    }.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(RECORD % (text, "int"))
    assert main(["compat", "check", "new", "--against", "old"]) == 1
    assert "new/c/x.avsc: incompatible at BACKWARD with old/a/x.avsc" in capsys.readouterr().out
    assert main(["compat", "check", "new", "--against", "old", "--subject-strategy", "record"]) == 1
    assert (
        "new/a/x.avsc: error: the schema is gone, and nothing takes the place of old/a/x.avsc (subject Old)"
        in capsys.readouterr().out
    )


def test_what_a_folder_has_and_the_new_one_has_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert main(["compat", "check", "new", "--against", "old", "--subject", "*=all"]) == 1, "others were there before"
    capsys.readouterr()
    assert main(["compat", "check", "new", "--against", "old", "--quiet"]) == 1
    assert capsys.readouterr().out.count("the schema is gone") == 2
    assert main(["compat", "check", "new/a.avsc", "--against", "old"]) == 0
    assert main(["compat", "check", "elsewhere", "--against", "old"]) == 2


def test_a_new_file_is_not_compared_with_another_topics(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, record in (("released/orders/value.avsc", "Order"), ("schemas/users/value.avsc", "User")):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(RECORD % (record, "long"))
    assert main(["compat", "check", "schemas", "--against", "released", "--subject={folder}-value"]) == 0
    assert "released/ has no earlier version" in capsys.readouterr().out


def test_types_of_other_files_in_any_order() -> None:
    types = TypeSet({"z": RECORD % ("Z", "Y"), "x": RECORD % ("X", "string"), "y": RECORD % ("Y", "X")})
    assert [str(name) for name in types.schema("z").names] == ["X", "Y", "Z"]
    assert types.needs("z") == ("y",)
    assert types.stands_alone("x")
    assert not types.stands_alone("z")


def test_the_nearest_definition_is_taken() -> None:
    here, there = RECORD % ("Header", "long"), RECORD % ("Header", "string")
    texts = {
        "a/h.avsc": here,
        "b/h.avsc": there,
        "a/order.avsc": RECORD % ("O", "Header"),
        "b/c/p.avsc": RECORD % ("P", "Header"),
    }
    types = TypeSet(texts)
    assert types.needs("a/order.avsc") == ("a/h.avsc",)
    assert types.needs("b/c/p.avsc") == ("b/h.avsc",)
    types = TypeSet({**texts, "top.avsc": RECORD % ("T", "Header")})
    with pytest.raises(SchemaParseError, match=r"Header is defined differently in a/h.avsc and b/h.avsc; keep one"):
        types.schema("top.avsc")
    types = TypeSet({**texts, "b/h.avsc": here, "top.avsc": RECORD % ("T", "Header")})
    assert types.schema("top.avsc"), "the same definition twice is one"


def test_types_that_were_given_go_before_those_that_happen_to_be_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, kind in (("types/h", "long"), ("h", "Missing"), ("x/h", "Missing"), ("x/y/h", "long")):
        Path(f"{name}.avsc").parent.mkdir(parents=True, exist_ok=True)
        Path(f"{name}.avsc").write_text(RECORD % ("Header", kind))
    for using in ("u/use.avsc", "x/y/use.avsc"):
        Path(using).parent.mkdir(exist_ok=True)
        Path(using).write_text(RECORD % ("Use", "Header"))
        assert main(["schema", "validate", using, "h.avsc", "--types", "types"]) == 3
        assert capsys.readouterr().err.count("\n") == 1, "h.avsc is no schema; its type is not the one used"
    assert main(["schema", "validate", "u/use.avsc"]) == 3
    assert "u/use.avsc:1:68: error: uses a type of h.avsc, which is not a schema" in capsys.readouterr().err


def test_a_stale_copy_is_as_near_as_what_was_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind in (("types/h", "long"), ("target/h", "string")):
        Path(f"{name}.avsc").parent.mkdir()
        Path(f"{name}.avsc").write_text(RECORD % ("Header", kind))
    Path("use.avsc").write_text(RECORD % ("Use", "Header"))
    assert main(["schema", "validate", "use.avsc", "types"]) == 0
    assert main(["schema", "validate", "use.avsc"]) == 3
    assert "Header is defined differently in target/h.avsc and types/h.avsc" in capsys.readouterr().err


def test_namespaces_of_other_files() -> None:
    header = '{"type": "enum", "name": "Kind", "namespace": "shop.common", "symbols": ["A"]}'
    using = '{"type": "record", "name": "R", "namespace": "shop", "fields": [{"name": "k", "type": "%s"}]}'
    assert TypeSet({"k": header, "r": using % "shop.common.Kind"}).schema("r")
    with pytest.raises(SchemaParseError, match=r"the type shop.Kind is not defined"):
        TypeSet({"k": header, "r": using % "Kind"}).schema("r")


def test_circles_of_files_end() -> None:
    types = TypeSet(
        {"a": RECORD % ("A", "B"), "b": RECORD % ("B", "C"), "c": RECORD % ("C", "A"), "d": RECORD % ("D", "D")}
    )
    for path in ("a", "b", "c"):
        with pytest.raises(SchemaParseError, match="need each other's types in a circle"):
            types.schema(path)
    assert types.schema("d"), "a recursive record needs no other file"


def test_what_is_wrong_with_the_file_that_is_used_is_told() -> None:
    types = TypeSet({"a": RECORD % ("A", "B"), "b": '{"type": "record", "name": "B", "fields": [{"name": "1"}]}'})
    with pytest.raises(SchemaParseError) as raised:
        types.schema("a")
    assert str(raised.value).startswith(
        'a:1:66: uses a type of b, which is not a schema: b:1:53: "1" is not a field name'
    )


BAD = {
    "broken": ('{"type": "record",\n  "name": }', "2:11: error: expected a JSON value"),
    "comment": ('// about\n"int"', "1:1: error: expected a JSON value, found a comment, which JSON does not have"),
    "inner": ('{"type": "int" /* why */}', '1:16: error: expected "," or "}"'),
    "duplicate": ('{"type": "int",\n "type": "long"}', '2:2: error: duplicate key "type" in one object'),
    "bom": ("\ufeff" + '"int"', "1:1: error: the text begins with a byte order mark"),
    "deep": ('{"type":"array","items":' * 10_000 + '"int"' + "}" * 10_000, "1:4801: error: nested deeper than 200"),
    "long": ('"' + "x" * 5_000_000 + '"', "1:1: error: the text has 5000002 characters; at most 4000000 are read"),
    "missing": (RECORD % ("M", "Nowhere"), "1:66: error: the type Nowhere is not defined"),
    "cycle": (RECORD % ("C1", "C2"), "1:67: error: files need each other's types in a circle"),
    "empty": (" \n", "1:1: error: the file is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_schemas_are_one_line_and_exit_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.avsc").write_text(BAD[name][0])
    Path("good.avsc").write_text(RECORD % ("C2", "C1") if name == "cycle" else '"int"')
    assert (
        main(
            ["compat", "check", "bad.avsc", "--against", "good.avsc"]
            if name != "cycle"
            else ["schema", "validate", "."]
        )
        == 3
    )
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines[0].startswith(f"bad.avsc:{BAD[name][1]}")
    assert len(lines) == (2 if name == "cycle" else 1)
    assert "Traceback" not in captured.err


def test_a_file_of_50_megabytes_is_refused_unparsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Path("big.avsc").open("wb") as file:
        file.truncate(50_000_000)
    assert main(["schema", "validate", "big.avsc"]) == 3
    assert (
        capsys.readouterr().err
        == f"big.avsc:1:1: error: longer than {FILE_BYTES_MAX} bytes; expected an Avro schema in JSON\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.avsc").write_text('"int"')
    Path("secret.avsc").chmod(0)
    assert main(["schema", "validate", "secret.avsc"]) == 2
    assert "cannot be read: Permission denied" in capsys.readouterr().err


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=200), st.text(alphabet='{}[]",:\\ \nabtypenmfield0123', max_size=200).map(str.encode)
    )
)
def test_no_bytes_end_in_a_traceback(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.avsc"
    path.write_bytes(data)
    assert main(["compat", "check", str(path), "--against", str(path), "--types", str(path)]) in (0, 3)


@given(st.lists(st.integers(), max_size=200), st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_answers_of_several_processes_are_in_order(items: list[int], processes: int) -> None:
    assert answers_of(lambda item: item * 2, items, processes) == [item * 2 for item in items]


def test_what_a_killed_process_should_have_done_is_done() -> None:
    parent = os.getpid()

    def answer(item: int) -> int:
        if os.getpid() != parent:
            time.sleep(0)
            os._exit(9)
        return item

    assert answers_of(answer, range(100), 3) == list(range(100))


def test_half_of_an_answer_is_none(tmp_path: Path) -> None:
    parent, started = os.getpid(), tmp_path / "started"

    def answer(item: int) -> bytes:
        if os.getpid() != parent:
            started.write_text(str(os.getpid()))
        elif item == 0:
            while not started.exists() or not started.read_text():
                time.sleep(0.01)
            time.sleep(0.3)  # its answers fill the pipe, which nobody reads yet
            os.kill(int(started.read_text()), signal.SIGKILL)
        return b"%d" % item * 100_000

    assert answers_of(answer, range(50), 2) == [b"%d" % item * 100_000 for item in range(50)]


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
def test_a_bare_install_runs_it(folder: Path, arguments: list[str], code: int) -> None:
    """Without site packages; nothing but our own rooms comes from elsewhere."""
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import headrace.registry.client.transport as t; "
        "t.PAUSE_FIRST_S = 0.001; from headrace.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(PACKAGES), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
