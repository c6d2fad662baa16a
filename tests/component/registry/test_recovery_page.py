"""Runs every step of docs/registry-recovery.md on real servers."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.memory_directory import memory_parent
from support.pages import blocks, page
from support.registry.registry_calls import STRING, Registry
from support.running_service import StartService
from support.servers.postgres_server import PostgresServer, binaries

PAGE = page("docs/registry-recovery.md")
SECTIONS = {text.partition("\n")[0]: blocks(text, "sh") for text in PAGE.split("\n## ")[1:]}
SQLITE3 = f"""#!{sys.executable}
import sqlite3, sys
path, (command, other) = sys.argv[1], sys.argv[2].split()
source, target = (path, other) if command == ".backup" else (other, path)
sqlite3.connect(source).backup(sqlite3.connect(target, timeout=30))
"""
"""Replaces the two commands of the SQLite shell that the page uses, where the shell is not installed."""


class Steps:
    """Runs the page's code blocks in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done: set[str] = set()
        tools = directory / "bin"
        tools.mkdir()
        if shutil.which("sqlite3") is None:
            (tools / "sqlite3").write_text(SQLITE3)
            (tools / "sqlite3").chmod(stat.S_IRWXU)
        found = binaries()
        paths = [str(tools), *([] if found is None else [str(found)]), str(Path(sys.executable).parent)]
        self.environment = {**os.environ, "PATH": os.pathsep.join([*paths, os.environ["PATH"]]), "NO_PROXY": "*"}

    def run(self, section: str) -> str:
        """Runs the blocks of a section and returns the output of the last one."""
        output = ""
        for number, block in enumerate(SECTIONS[section]):
            output = self.run_block(section, number)
            assert block
        return output

    def run_block(self, section: str, number: int) -> str:
        command = ["bash", "-euo", "pipefail", "-c", SECTIONS[section][number]]
        done = subprocess.run(
            command, cwd=self._directory, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


@pytest.fixture
def serve(start_service: StartService, tmp_path: Path, steps: Steps) -> Callable[[str], Registry]:
    def start(database_url: str) -> Registry:
        command = ("headrace", "registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0")
        service = start_service(*command, environment={"HEADRACE__REGISTRY__DATABASE_URL": database_url})
        steps.environment["REGISTRY_URL"] = service.addresses["registry"]
        return Registry(service.addresses["registry"])

    return start


@pytest.fixture
def servers() -> Iterator[Callable[..., PostgresServer]]:
    with ExitStack() as stack:

        def make(**options: object) -> PostgresServer:
            server = PostgresServer(parent=memory_parent(), **options)  # type: ignore[arg-type]
            stack.callback(server.remove)
            return server

        yield make


def fixed(number: int) -> str:
    return f'{{"type":"fixed","name":"F","size":{number}}}'


def upgraded(steps: Steps, url: str) -> None:
    steps.environment["DATABASE_URL"] = url
    command = ["headrace", "registry", "db", "upgrade", "--database-url", url]
    subprocess.run(command, env=steps.environment, check=True, capture_output=True)


def test_all_sections_with_steps_are_covered() -> None:
    assert {section for section, commands in SECTIONS.items() if commands} == {
        "Backups",
        "Restore a dump",
        "Restore an export into an empty database",
        "Promote a standby",
        "Promote a replica",
        "SQLite",
        "Afterwards",
    }


@pytest.mark.postgres
def test_restore_of_a_dump_and_of_an_export(
    steps: Steps, serve: Callable[[str], Registry], servers: Callable[..., PostgresServer]
) -> None:
    server = servers()
    url = server.new_database()
    upgraded(steps, url)
    registry = serve(url)
    assert registry.registered("a", fixed(1)) == 1
    steps.run("Backups")
    assert registry.registered("lost", fixed(2)) == 2
    assert registry.get("/schemas/ids/2").status == 200
    assert "ready" in steps.run_block("Restore a dump", 0)
    for _ in range(2):
        assert registry.get("/schemas/ids/2").status == 404
        assert registry.get("/subjects").json == ["a"]
    steps.run_block("Restore a dump", 1)
    assert registry.get("/mode").json == {"mode": "READWRITE"}
    assert registry.registered("other", fixed(3)) == 2
    steps.run("Afterwards")
    # Only the export is left.
    upgraded(steps, server.new_database())
    serve(steps.environment["DATABASE_URL"])
    assert steps.run("Restore an export into an empty database").endswith('["a"]')


@pytest.mark.postgres
def test_promotion_of_a_standby(
    steps: Steps, serve: Callable[[str], Registry], servers: Callable[..., PostgresServer]
) -> None:
    primary = servers()
    url = primary.new_database()
    upgraded(steps, url)
    account, _, database = url.partition("@")[0], "", url.rpartition("/")[2]
    standby = servers(base=primary)
    password = account.rpartition(":")[2]
    source = f"host=127.0.0.1 port={primary.port} user=headrace password={password}"
    standby.start_recovery("standby", f"primary_conninfo={source}")
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (primary, standby))
    registry = serve(f"{account}@/{database}?{hosts}&target_session_attrs=read-write")
    assert registry.registered("a", fixed(1)) == 1
    wal_position = primary.execute("SELECT pg_current_wal_lsn()::text")[0][0]
    while not standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{wal_position}'")[0][0]:
        time.sleep(0.02)
    primary.kill()
    steps.environment["STANDBY_URL"] = standby.url(database)
    assert "ready" in steps.run("Promote a standby")
    assert registry.get("/subjects").json == ["a"]
    assert registry.registered("b", STRING) == 2
    steps.run("Afterwards")


@pytest.mark.servers
def test_promotion_of_a_replica(
    steps: Steps, serve: Callable[[str], Registry], start_service: StartService, tmp_path: Path
) -> None:
    first = serve(f"sqlite:///{tmp_path / 'first.db'}")
    assert first.registered("a", fixed(1)) == 1
    url = f"sqlite:///{tmp_path / 'second.db'}"
    steps.environment["DATABASE_URL"] = url
    start_service("headrace", "registry", "replicate", "--database-url", url, "--registry-url", first.url)
    second = serve(url)
    assert second.register("b", fixed(2)).status == 422
    assert steps.run("Promote a replica").endswith('{"mode":"READWRITE"}')
    assert second.registered("b", fixed(2)) == 2
    steps.run("Afterwards")


@pytest.mark.servers
def test_backup_and_restore_of_sqlite(steps: Steps, serve: Callable[[str], Registry], tmp_path: Path) -> None:
    (tmp_path / "headrace-data").mkdir()
    registry = serve(f"sqlite:///{tmp_path / 'headrace-data' / 'registry.db'}")
    assert registry.registered("a", fixed(1)) == 1
    steps.run_block("SQLite", 0)
    assert registry.registered("lost", fixed(2)) == 2
    assert registry.get("/schemas/ids/2").status == 200
    assert "ready" in steps.run_block("SQLite", 1)
    assert registry.get("/schemas/ids/2").status == 404
    assert registry.registered("b", fixed(3)) == 2
    steps.run("Afterwards")
