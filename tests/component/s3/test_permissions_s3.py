"""The actions on S3 in docs/permissions.md suffice below the prefix of the warehouse, and each is necessary."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support.loader.remote_world import RemoteWorld, read_and_change
from support.permission_rows import LOADER, READER, S3, file_rows
from support.servers.s3_actions import ABORT, S3Policy
from support.servers.s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.s3, pytest.mark.spark, pytest.mark.timeout(1800)]

PREFIX = "teams/warehouse"
LOADER_ACTIONS, READER_ACTIONS = (frozenset(row.grant for row in file_rows(S3, role)) for role in (LOADER, READER))


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server()
    # S3A repeats requests that were denied while it deletes or renames.
    fewer_retries = {"hadoop.fs.s3a.retry.limit": "1", "hadoop.fs.s3a.attempts.maximum": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CONFIG", str(server.settings_file(tmp_path_factory.mktemp("s3"), **fewer_retries)))
        yield server
    server.stop()


@contextmanager
def allowing(s3: S3Server, actions: frozenset[str]) -> Iterator[S3Policy]:
    policy = S3Policy(PREFIX, actions)
    with s3.inject_faults(policy):
        yield policy


def test_loads_and_queries_use_exactly_the_actions_of_the_page(s3: S3Server, tmp_path: Path) -> None:
    """Uploads in parts are left out: files of tests are too small."""
    uri = f"s3a://{BUCKET}/{PREFIX}"
    with closing(RemoteWorld(tmp_path, uri, lambda target: s3.fetch(PREFIX, target))) as world:
        with allowing(s3, LOADER_ACTIONS) as policy:
            read_and_change(world)
        assert (policy.used, policy.denied) == (LOADER_ACTIONS - {ABORT}, set())
        rows = len(world.produced["orders"].rows)
        with allowing(s3, READER_ACTIONS) as policy:
            assert json.loads(query(world).stdout) == [{"n": rows}]
        assert (policy.used, policy.denied) == (READER_ACTIONS, set())
        for action in READER_ACTIONS:
            with allowing(s3, READER_ACTIONS - {action}) as policy:
                denied = query(world)
            assert (denied.returncode, denied.stdout) == (2, "")
            assert "Status Code: 403" in denied.stderr
            assert {name for name, _ in policy.denied} == {action}
        world.produce("orders", 10)
        for action in LOADER_ACTIONS - {ABORT}:
            with allowing(s3, LOADER_ACTIONS - {action}) as policy:
                denied = world.load()
            assert (denied.returncode, denied.stdout) == (2, "")
            (line,) = [line for line in denied.stderr.splitlines() if " INFO " not in line]
            assert "Status Code: 403" in line
            assert {name for name, _ in policy.denied} == {action}
        assert world.load().returncode == 0
        assert json.loads(query(world).stdout) == [{"n": rows + 10}]


def query(world: RemoteWorld) -> subprocess.CompletedProcess[str]:
    where = ("--metastore", world.addresses["metastore"], "--warehouse", world.uri, "--format", "json")
    return world.command("sql", "SELECT count(id) AS n FROM headrace.orders", "--data-dir", str(world.data_dir), *where)
