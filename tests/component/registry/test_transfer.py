"""The commands `headrace registry export` and `import` between running registries."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headrace.cli import main
from headrace.registry.client import transport
from support.golden import case_lines, golden
from support.registry.migrated_databases import SqliteTemplate
from support.registry.registry_calls import Registry
from support.registry.served_registry import serve_registry
from support.servers.postgres_server import PostgresServer

FIXED = '{{"type":"fixed","name":"F{0}","size":{0}}}'
MANY = 80
"""Versions of the registry in the test that kills imports: enough to kill between two of them."""


@dataclass
class Ran:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def registry_command(verb: str, file: Path | str, registry: Registry, *more: str) -> Ran:
        capsys.readouterr()
        exit_code = main(["registry", verb, str(file), "--registry-url", registry.url, *more])
        out, err = capsys.readouterr()
        # librdkafka clients of earlier tests in this process log directly to standard error.
        lines = [line for line in err.splitlines(keepends=True) if "|rdkafka#" not in line]
        return Ran(exit_code, out, "".join(lines))

    return registry_command


@pytest.fixture
def start_registry(
    sqlite_template: SqliteTemplate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Registry]]:
    """Starts an empty registry in this process, with options of `create_app`."""
    directory, numbers = tmp_path_factory.mktemp("registries"), itertools.count()
    with ExitStack() as stack:

        def start(**options: Any) -> Registry:
            url = sqlite_template.copy_to(directory / f"{next(numbers)}.db")
            return Registry(stack.enter_context(serve_registry(url, **options)).url)

        yield start


@pytest.fixture(scope="module")
def registry_url(sqlite_template: SqliteTemplate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry in this process."""
    with serve_registry(sqlite_template.copy_to(tmp_path_factory.mktemp("registry") / "registry.db")) as registry:
        yield registry.url


@pytest.fixture(scope="module")
def source(registry_url: str) -> Iterator[Registry]:
    """Contexts, references against the order of names, deletions, configurations and modes."""
    registry = Registry(registry_url)
    registry.registered("z-money", FIXED.format(1))
    registry.registered("a%2Fb", '"F1"', references=[{"name": "F1", "subject": "z-money", "version": 1}])
    registry.registered("orders", FIXED.format(2), metadata={"properties": {"owner": "me"}})
    put(registry, "/config/orders", {"compatibility": "NONE"})
    registry.registered("orders", FIXED.format(3))
    registry.registered("orders", FIXED.format(4))
    registry.registered("%3A.eu%3Aorders", FIXED.format(5))
    registry.registered("%3A.eu%3Aorders-%C3%A4", '{"type":"string","doc":"ä\\u2028\\ud83d\\ude00"}')
    for path in ("orders/versions/2", "%3A.eu%3Aorders/versions/1"):
        assert registry.delete(f"/subjects/{path}").status == 200
    registry.registered("gone", FIXED.format(6))
    assert registry.delete("/subjects/gone").status == 200
    put(registry, "/config", {"compatibility": "FULL", "normalize": True})
    put(registry, "/config/z-money", {"alias": "orders", "compatibilityGroup": "major"})
    put(registry, "/config/%3A.eu%3A", {"compatibility": "FORWARD_TRANSITIVE"})
    put(registry, "/mode/a%2Fb", {"mode": "READONLY"})
    put(registry, "/mode/%3A.eu%3A", {"mode": "READONLY"})
    yield registry


def put(registry: Registry, path: str, body: dict[str, Any]) -> None:
    response = registry.call("PUT", path, body)
    assert response.status == 200, response.text


def test_copy_exports_the_same_file(
    source: Registry, start_registry: Callable[[], Registry], run: Run, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    exported = run("export", first, source)
    assert exported.exit_code == 0, exported.err
    target = start_registry()
    shown = run("import", first, target, "--dry-run")
    assert shown.exit_code == 0, shown.err
    assert target.get("/subjects?deleted=true").json == []
    imported = run("import", first, target)
    assert imported.exit_code == 0, imported.err
    assert run("export", second, target).exit_code == 0
    assert second.read_bytes() == first.read_bytes()
    repeated = run("import", first, target)
    assert repeated.exit_code == 0, repeated.err
    outputs = {"export": exported.out, "dry run": shown.out, "import": imported.out, "again": repeated.out}
    found = case_lines(outputs.items()).replace(str(first), "FILE")
    assert found == golden("registry_transfer/commands.txt", found)
    # The copy has the same responses as the source and continues its ids.
    for path in ("/schemas/ids/2", "/subjects/a%2Fb/versions/1", "/contexts/.eu/schemas/ids/2", "/mode/a%2Fb"):
        copied, original = target.get(path).json, source.get(path).json
        assert {**copied, "ts": 0} == {**original, "ts": 0}
    assert target.registered("new", FIXED.format(9)) == 7


def test_selection_is_imported_into_a_registry_in_use(
    source: Registry, start_registry: Callable[[], Registry], run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "part.jsonl"
    assert run("export", file, source, "--subject", "a*").exit_code == 0
    target = start_registry()
    put(target, "/mode", {"mode": "READWRITE"})
    target.registered("mine", FIXED.format(8))
    conflict = run("import", file, target)
    assert conflict.exit_code == 1
    assert re.search(r"^PROBLEM: id 1 .*\bz-money version 1 .*\bmine version 1 .*\n$", conflict.out)
    assert re.search(r"^headrace: .*\b1 problem$", conflict.err.splitlines()[-1])
    assert target.get("/subjects").json == ["mine"]
    other = start_registry()
    put(other, "/mode/mine", {"mode": "IMPORT"})
    assert other.register("mine", FIXED.format(8), id=40).status == 200
    assert other.delete("/mode/mine").status == 200
    done = run("import", file, other, "--format", "json")
    assert done.exit_code == 0, done.err
    assert (done.json["registered"], done.json["finished"]) == (2, True)
    assert run("import", file, other, "--dry-run", "--format", "json").json["actions"] == []
    assert other.get("/subjects").json == ["a/b", "mine", "z-money"]
    assert other.get("/mode").json == {"mode": "READWRITE"}
    assert other.get("/mode/a%2Fb").json == {"mode": "READONLY"}


def test_subject_with_empty_name_is_imported_into_a_context_in_use(
    start_registry: Callable[[], Registry], run: Run, tmp_path: Path
) -> None:
    file, nameless, target = tmp_path / "e.jsonl", start_registry(), start_registry()
    nameless.registered("", FIXED.format(1))
    put(target, "/mode/mine", {"mode": "IMPORT"})
    assert target.register("mine", FIXED.format(8), id=40).status == 200
    assert target.delete("/mode/mine").status == 200
    assert run("export", file, nameless).exit_code == 0
    assert run("import", file, target).exit_code == 0
    assert target.get("/subjects").json == ["", "mine"]
    assert target.get("/mode").json == {"mode": "READWRITE"}


@pytest.mark.parametrize("empty", ["", ":.eu:"])
@pytest.mark.parametrize("own_mode", [None, "READWRITE"])
def test_selected_subject_with_empty_name_does_not_change_the_mode_of_its_context(
    start_registry: Callable[[], Registry], run: Run, tmp_path: Path, empty: str, own_mode: str | None
) -> None:
    file, nameless, target = tmp_path / "e.jsonl", start_registry(), start_registry()
    nameless.registered(quote(empty, safe=""), FIXED.format(1))
    mode_path = f"/mode/{quote(empty, safe='')}" if empty else "/mode"
    put(target, f"/mode/{quote(empty + 'mine', safe='')}", {"mode": "IMPORT"})
    assert target.register(quote(f"{empty}mine", safe=""), FIXED.format(8), id=40).status == 200
    if own_mode is not None:
        put(target, mode_path, {"mode": own_mode})
    before = target.get(mode_path).text
    assert run("export", file, nameless).exit_code == 0
    assert run("import", file, target, "--subject", "*").exit_code == 0
    assert target.get("/subjects?subjectPrefix=:*:").json == [empty, f"{empty}mine"]
    assert target.get(mode_path).text == before


def test_settings_of_subjects_and_contexts_without_versions_are_copied(
    start_registry: Callable[[], Registry], run: Run, tmp_path: Path
) -> None:
    file, source, target = tmp_path / "e.jsonl", start_registry(), start_registry()
    source.registered("orders", FIXED.format(1))
    settings = {
        "/config/bestellungen": {"alias": "orders"},
        "/config/planned": {"compatibility": "NONE"},
        "/config/:.new:": {"compatibility": "FULL"},
        "/config/:.other:planned": {"normalize": True},
        "/mode/planned": {"mode": "READONLY"},
        "/mode/:.closed:": {"mode": "READONLY"},
        "/config/:.__GLOBAL:": {"compatibility": "FORWARD"},
    }
    for path, body in settings.items():
        put(source, path, body)
    assert source.get("/contexts").json == ["."], "as in the reference, only contexts that have had a subject"
    assert run("export", file, source).exit_code == 0
    assert run("import", file, target).exit_code == 0
    for path in settings:
        assert target.get(path).json == source.get(path).json, path
    assert target.get("/subjects/bestellungen/versions/1").json["id"] == 1
    assert run("import", file, target, "--format", "json").json["configurations"] == 0
    assert run("export", file, source, "--context", "new", "--subject", "*").exit_code == 0
    assert [json.loads(line)["kind"] for line in file.read_text().splitlines()] == ["header", "end"]
    assert run("export", file, source, "--subject", "plan*").exit_code == 0
    scopes = [json.loads(line).get("scope") for line in file.read_text().splitlines()]
    assert scopes == [None, "planned", ":.other:planned", "planned", None]


OWN_MODES = {":.:": "READWRITE", "a": "READONLY"}


@pytest.mark.parametrize(
    ("profile", "override", "selection", "exported", "hidden"),
    [
        (7, ":.:", [], {":.:": "READONLY_OVERRIDE"}, 4),
        (7, ":.:", ["--subject", "a"], {}, 1),
        (7, ":.:", ["--context", ".eu"], {}, 2),
        (7, ":.eu:", [], {**OWN_MODES, ":.eu:": "READONLY_OVERRIDE"}, 0),
        (8, ":.:", [], {":.:": "READONLY_OVERRIDE", "a": "READONLY"}, 0),
        (8, ":.__GLOBAL:", [], {**OWN_MODES, ":.__GLOBAL:": "READONLY_OVERRIDE"}, 0),
        (8, ":.eu:b", [], {**OWN_MODES, ":.eu:b": "READONLY_OVERRIDE"}, 0),
    ],
)
def test_modes_hidden_by_readonly_override_are_not_exported(
    profile: int,
    override: str,
    selection: list[str],
    exported: dict[str, str],
    hidden: int,
    start_registry: Callable[..., Registry],
    run: Run,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    file, source, target = tmp_path / "e.jsonl", start_registry(profile=profile), start_registry()
    source.registered("a", FIXED.format(1))
    source.registered("%3A.eu%3Ab", FIXED.format(2))
    put(source, "/mode/a", {"mode": "READONLY"})
    put(source, f"/mode/{quote(override)}", {"mode": "READONLY_OVERRIDE"})
    assert run("export", file, source, *selection).exit_code == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["scope"]: line["mode"] for line in lines if line["kind"] == "mode"} == exported
    assert re.findall(r"READONLY_OVERRIDE.* scopes=(\d+)", caplog.text) == ([str(hidden)] if hidden else [])
    for _ in range(2):
        imported = run("import", file, target)
        assert imported.exit_code == 0, imported.err


@pytest.mark.postgres
def test_registry_moves_from_sqlite_to_postgresql_and_back(
    source: Registry,
    start_registry: Callable[[], Registry],
    start_service: Callable[..., Any],
    postgres_server: PostgresServer,
    run: Run,
    tmp_path: Path,
) -> None:
    url = {"HEADRACE__REGISTRY__DATABASE_URL": postgres_server.new_database()}
    command = [sys.executable, "-m", "headrace", "registry", "db", "upgrade"]
    subprocess.run(command, check=True, env={**os.environ, **url})
    arguments = ["registry", "serve", "--registry-listen", "127.0.0.1:0", "--workers", "2"]
    postgres = Registry(start_service("headrace", *arguments, environment=url).addresses["registry"])
    files = [tmp_path / f"{number}.jsonl" for number in range(3)]
    assert run("export", files[0], source).exit_code == 0
    assert run("import", files[0], postgres).exit_code == 0
    assert run("export", files[1], postgres).exit_code == 0
    sqlite = start_registry()
    assert run("import", files[1], sqlite).exit_code == 0
    assert run("export", files[2], sqlite).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()


@pytest.mark.servers
def test_killed_import_is_finished_by_another(start_registry: Callable[[], Registry], run: Run, tmp_path: Path) -> None:
    busy = start_registry()
    put(busy, "/config", {"compatibility": "NONE"})
    for number in range(1, MANY + 1):
        busy.registered(f"s{number % 10}", FIXED.format(number))
    for number in range(0, 10, 3):
        assert busy.delete(f"/subjects/s{number}/versions/2").status == 200
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert run("export", first, busy).exit_code == 0
    target = start_registry()
    for reached in (10, 50):
        kill_import_at(reached, first, target)
    assert run("import", first, target).exit_code == 0
    assert run("export", second, target).exit_code == 0
    assert second.read_bytes() == first.read_bytes()


def kill_import_at(reached: int, file: Path, target: Registry) -> None:
    """Kills an import as soon as the target has this number of versions."""
    command = [sys.executable, "-m", "headrace", "registry", "import", str(file), "--registry-url", target.url]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(target.get("/schemas?latestOnly=false").json) < reached:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()


def test_unsupported_versions_are_skipped_on_request(
    start_registry: Callable[[], Registry], run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "mixed.jsonl"
    file.write_text(
        '{"kind":"header","fileType":"schema registry export","format":1}\n'
        '{"kind":"version","subject":"mixed-p","version":1,"id":901,"schemaType":"PROTOBUF","schema":"message P {}"}\n'
        '{"kind":"version","subject":"mixed-a","version":1,"id":902,"schema":"{\\"type\\":\\"strin\\"}"}\n'
        '{"kind":"version","subject":"mixed-b","version":7,"id":903,"schema":"\\"bytes\\""}\n'
        '{"kind":"end","lines":4}\n'
    )
    target = start_registry()
    stopped = run("import", file, target)
    assert stopped.exit_code == 1
    assert re.search(r"^PROBLEM: subject mixed-p version 1 .*PROTOBUF.*AVRO\n$", stopped.out)
    assert "--skip-rejected" in stopped.err
    assert target.get("/subjects?subjectPrefix=mixed").json == []
    done = run("import", file, target, "--skip-rejected", "--format", "json")
    assert done.exit_code == 0, done.err
    assert (done.json["registered"], done.json["finished"], len(done.json["skipped"])) == (1, True, 2)
    assert done.json["skipped"][1].startswith("subject mixed-a version 1: ")
    assert target.get("/subjects/mixed-b/versions").json == [7]
    assert target.get("/mode/mixed-b").status == 404
    rejected = run("import", file, target, "--subject", "mixed-a")
    assert rejected.exit_code == 1
    assert re.search(r"^headrace: .*\b1 version\b", rejected.err.splitlines()[-1])


@pytest.mark.parametrize("content", [None, b"", b'{"kind":"header","fileType":"schema registry export","format":1}\n'])
def test_invalid_export_file_exits_2(content: bytes | None, registry_url: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    if content is not None:
        file.write_bytes(content)
    ran = run("import", file, Registry(registry_url))
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith("headrace: ") and f"{file}: " in ran.err
    assert ran.err.count("\n") == 1


def test_unreachable_registry_exits_2(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PAUSE_FIRST_S", 0.001)
    unreachable = Registry("http://127.0.0.1:9")
    file = tmp_path / "e.jsonl"
    ran = run("export", file, unreachable)
    assert ran.exit_code == 2
    assert ran.err.startswith("headrace: ") and "http://127.0.0.1:9" in ran.err
    assert not file.exists()
    assert list(tmp_path.iterdir()) == []


def test_export_that_cannot_be_written_exits_2(source: Registry, run: Run, tmp_path: Path) -> None:
    ran = run("export", tmp_path / "no" / "e.jsonl", source)
    assert (ran.exit_code, ran.err.count("\n")) == (2, 1)
    assert str(tmp_path / "no" / "e.jsonl") in ran.err
    piped = run("export", "-", source)
    assert piped.exit_code == 0
    assert piped.out.startswith('{"kind":"header"')
    assert list(tmp_path.iterdir()) == []
