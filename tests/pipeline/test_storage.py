"""Locations of warehouse and commit log, and the check that they belong together."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from headrace.loader.errors import StorageError
from headrace.loader.storage.hadoop.staging import HadoopStaging
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.lease import Lease, LeaseHolder, lease_holder
from headrace.pipeline.load import commit_log
from headrace.pipeline.storage import (
    check_warehouse_and_log,
    lease_path,
    location_of,
    prepare_environment,
    warehouse_storage,
)
from headrace.settings import LoaderSettings, Settings
from headrace.settings.addresses import RemoteDirectory


def settings_of(root: Path, warehouse: str = "w", state: str = "") -> Settings:
    return Settings(
        data_dir=root / "data",
        loader=LoaderSettings(warehouse=str(root / warehouse), state=str(root / state) if state else ""),
    )


def open_log(settings: Settings, *, is_dry: bool = False) -> None:
    """Opens the commit log and checks it as a load does."""
    commit_log(settings).open()
    check_warehouse_and_log(settings, warehouse_storage(settings), is_dry=is_dry)


def test_separate_commit_log_can_be_opened_again(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, state="s")
    for _ in range(2):
        open_log(settings)
    assert (tmp_path / "s" / "format.json").exists()
    assert not (tmp_path / "w" / "_headrace" / "format.json").exists()
    assert warehouse_storage(settings).staging.location("1") == str(tmp_path / "w" / "_headrace" / "staging" / "1")
    assert lease_path(settings) == tmp_path / "s" / "lease.json"


def test_dry_run_writes_no_location(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, state="s")
    open_log(settings, is_dry=True)
    assert not (tmp_path / "w").exists()
    assert not (tmp_path / "s" / "warehouse.json").exists()


def test_warehouse_with_another_commit_log_is_rejected(tmp_path: Path) -> None:
    open_log(settings_of(tmp_path, state="s"))
    with pytest.raises(StorageError, match=r"file://.*/w: .*file://.*/s\b"):
        check_warehouse_and_log(settings_of(tmp_path), warehouse_storage(settings_of(tmp_path)), is_dry=False)
    with pytest.raises(StorageError, match=r"loader\.state"):
        commit_log(settings_of(tmp_path))
    with pytest.raises(StorageError, match=r"/w: .*file://.*/s\b.*loader\.state .*file://.*/other"):
        open_log(settings_of(tmp_path, state="other"))


def test_commit_log_of_another_warehouse_is_rejected(tmp_path: Path) -> None:
    open_log(settings_of(tmp_path, state="s"))
    with pytest.raises(StorageError, match=r"file://.*/s: .*file://.*/w\b"):
        open_log(settings_of(tmp_path, warehouse="other", state="s"))
    assert not (tmp_path / "other").exists()


def test_warehouse_with_its_own_log_rejects_a_separate_one(tmp_path: Path) -> None:
    open_log(settings_of(tmp_path))
    with pytest.raises(StorageError, match=r"/w: .*loader\.state .*file://.*/s\b"):
        open_log(settings_of(tmp_path, state="s"))


def test_remote_storage_is_created_without_file_operations(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, loader=LoaderSettings(warehouse="s3a://bucket/w", state=str(tmp_path / "s")))
    storage = warehouse_storage(settings)
    assert isinstance(storage.commits, LocalCommitStorage)
    assert isinstance(storage.staging, HadoopStaging)
    assert storage.staging.location("1") == "s3a://bucket/w/_headrace/staging/1"
    assert storage.files.location("t/dt=1") == "s3a://bucket/w/t/dt=1"


def test_lease_of_a_remote_log_is_in_the_data_directory(tmp_path: Path) -> None:
    paths = {
        lease_path(Settings(data_dir=tmp_path / "d", loader=LoaderSettings(warehouse=f"hdfs://nn/{name}")))
        for name in ("a", "b")
    }
    assert len(paths) == 2
    assert {path.parent for path in paths} == {tmp_path / "d"}
    lease = Lease(paths.pop())
    assert lease.acquire(1) is None, "creates the directory"
    lease.release()


def test_holder_of_the_lease_is_known_without_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    assert lease_holder(path) is None
    lease = Lease(path)
    assert lease.acquire(1_000) is None
    assert lease_holder(path) == LeaseHolder(os.getpid(), socket.gethostname(), 1_000)
    lease.release()
    assert lease_holder(path) is None
    assert lease.acquire(2_000) is None
    lease.release()


def test_location_of_has_hadoops_spelling(tmp_path: Path) -> None:
    assert location_of(tmp_path) == f"file://{tmp_path}"
    assert location_of(RemoteDirectory("hdfs://nn/w")) == "hdfs://nn/w"


@pytest.mark.parametrize(
    ("spark", "python"),
    [
        ({"master": "local[2]"}, sys.executable),
        ({"master": "yarn"}, None),
        ({"master": "yarn", "pyspark.python": "./env/bin/python"}, "./env/bin/python"),
    ],
)
def test_prepare_environment_sets_the_python_of_workers(
    spark: dict[str, str], python: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that monkeypatch restores it
    monkeypatch.delenv("PYSPARK_PYTHON")
    prepare_environment(Settings(data_dir=tmp_path, spark=spark))
    assert os.environ.get("PYSPARK_PYTHON") == python
