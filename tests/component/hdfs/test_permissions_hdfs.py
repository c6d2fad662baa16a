"""The permissions on HDFS in docs/permissions.md suffice, and each is necessary."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from support.loader.remote_world import RemoteWorld
from support.permission_rows import HDFS, READER, FileRow, file_rows
from support.servers.hdfs import Hdfs

pytestmark = [pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(1200)]

ROWS = file_rows(HDFS)
LOADER_USER, METASTORE_USER, READER_USER = "loader", "hive", "analyst"
NO_OTHERS = ("user::rwx", "group::---", "other::---")
"""Entries of the warehouse for its owner, the superuser, and for users without an entry."""
PROPERTIES = {"dfs.permissions.enabled": "true", "fs.permissions.umask-mode": "027"}


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    hdfs = Hdfs(tmp_path_factory.mktemp("hdfs"), PROPERTIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
        yield hdfs
    hdfs.stop()


@pytest.mark.parametrize("missing", [None, *ROWS], ids=lambda row: row.grant if row else "complete")
def test_each_entry_of_the_access_control_list_is_necessary(
    hdfs: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: FileRow | None
) -> None:
    warehouse = f"/{'complete' if missing is None else ROWS.index(missing)}"
    entries = ",".join((*NO_OTHERS, *(row.grant for row in ROWS if row is not missing)))
    hdfs.call("PUT", warehouse, "MKDIRS&permission=700")
    hdfs.call("PUT", warehouse, f"SETACL&aclspec={quote(entries)}")
    monkeypatch.setenv("HADOOP_USER_NAME", METASTORE_USER)
    uri = f"{hdfs.uri}{warehouse}"
    with closing(RemoteWorld(tmp_path, uri, lambda target: hdfs.fetch(warehouse, target))) as world:
        monkeypatch.setenv("HADOOP_USER_NAME", LOADER_USER)
        world.produce("orders", 10)
        run = world.load()
        if missing is not None and missing.role != READER:
            assert run.returncode, run.stdout + run.stderr
            assert f"user={user_of(missing)}" in run.stdout + run.stderr
            assert "\tat " not in run.stdout + run.stderr
            assert " at org.apache" not in run.stdout
            return
        assert run.returncode == 0, run.stdout + run.stderr
        assert "note" not in run.stdout
        monkeypatch.setenv("HADOOP_USER_NAME", READER_USER)
        read = count_orders(world)
        if missing is None:
            assert json.loads(read.stdout) == [{"n": 10}]
        else:
            assert (read.returncode, read.stdout) == (2, "")
            assert f"user={READER_USER}" in read.stderr


def user_of(row: FileRow) -> str:
    return row.grant.removeprefix("default:").split(":")[1]


def count_orders(world: RemoteWorld) -> subprocess.CompletedProcess[str]:
    where = ("--metastore", world.addresses["metastore"], "--warehouse", world.uri, "--format", "json")
    return world.command(
        "sql", "SELECT count(id) AS n FROM headrace.orders", "--data-dir", str(world.data_dir / "reader"), *where
    )
