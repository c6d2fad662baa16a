"""Where the settings say that the warehouse and the commit log are; that one is not used with another's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.loader.errors import StorageError
from headrace.loader.storage.hadoop.staging import HadoopStaging
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
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


def opened(settings: Settings, *, is_dry: bool = False) -> None:
    """As a load does it."""
    commit_log(settings).open()
    check_warehouse_and_log(settings, warehouse_storage(settings), is_dry=is_dry)


def test_the_log_may_be_elsewhere_and_is_found_again(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, state="s")
    for _ in range(2):
        opened(settings)
    assert (tmp_path / "s" / "format.json").exists()
    assert not (tmp_path / "w" / "_headrace" / "format.json").exists()
    assert warehouse_storage(settings).staging.location("1") == str(tmp_path / "w" / "_headrace" / "staging" / "1")
    assert lease_path(settings) == tmp_path / "s" / "lease.json"


def test_a_dry_run_leaves_no_word(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, state="s")
    opened(settings, is_dry=True)
    assert not (tmp_path / "w").exists()
    assert not (tmp_path / "s" / "warehouse.json").exists()


def test_a_warehouse_whose_log_is_elsewhere_is_not_begun_anew(tmp_path: Path) -> None:
    opened(settings_of(tmp_path, state="s"))
    with pytest.raises(StorageError, match=r"file://.*/w .*file://.*/s\b"):
        check_warehouse_and_log(settings_of(tmp_path), warehouse_storage(settings_of(tmp_path)), is_dry=False)
    with pytest.raises(StorageError, match=r"loader\.state"):
        commit_log(settings_of(tmp_path))
    with pytest.raises(StorageError, match=r"/w .*file://.*/s\b.*loader\.state .*file://.*/other"):
        opened(settings_of(tmp_path, state="other"))


def test_a_log_of_another_warehouse_is_refused(tmp_path: Path) -> None:
    opened(settings_of(tmp_path, state="s"))
    with pytest.raises(StorageError, match=r"file://.*/s .*file://.*/w\b"):
        opened(settings_of(tmp_path, warehouse="other", state="s"))
    assert not (tmp_path / "other").exists()


def test_a_warehouse_that_has_its_own_log_keeps_it(tmp_path: Path) -> None:
    opened(settings_of(tmp_path))
    with pytest.raises(StorageError, match=r"/w .*loader\.state .*file://.*/s\b"):
        opened(settings_of(tmp_path, state="s"))


def test_what_is_remote_is_not_looked_at_before_it_is_used(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, loader=LoaderSettings(warehouse="s3a://bucket/w", state=str(tmp_path / "s")))
    storage = warehouse_storage(settings)
    assert isinstance(storage.commits, LocalCommitStorage)
    assert isinstance(storage.staging, HadoopStaging)
    assert storage.staging.location("1") == "s3a://bucket/w/_headrace/staging/1"
    assert storage.files.location("t/dt=1") == "s3a://bucket/w/t/dt=1"


def test_the_lease_of_a_remote_log_is_on_this_machine(tmp_path: Path) -> None:
    paths = {
        lease_path(Settings(data_dir=tmp_path / "d", loader=LoaderSettings(warehouse=f"hdfs://nn/{name}")))
        for name in ("a", "b")
    }
    assert len(paths) == 2
    assert {path.parent for path in paths} == {tmp_path / "d"}
    assert (tmp_path / "d").is_dir()


def test_places_in_hadoops_spelling(tmp_path: Path) -> None:
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
def test_workers_of_a_cluster_run_the_python_that_the_settings_name(
    spark: dict[str, str], python: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back afterwards
    monkeypatch.delenv("PYSPARK_PYTHON")
    prepare_environment(Settings(data_dir=tmp_path, spark=spark))
    assert os.environ.get("PYSPARK_PYTHON") == python
