"""Where the archive of Spark's classes is looked for, and when a JVM is told of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.hive_ddl.executors import class_archive
from headrace.hive_ddl.executors.class_archive import archive_options, archive_path
from headrace.hive_ddl.executors.session import session_properties


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment with Spark and a Java of one's own."""
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    (tmp_path / "pyspark" / "jars" / "spark.jar").write_bytes(b"1")
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.15"\n')
    monkeypatch.setattr(class_archive.pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "its own"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path


def java_options(folder: Path) -> str:
    return session_properties(
        app_name="x", master="local", metastore_uri=None, data_dir=folder, warehouse_uri=f"file://{folder}"
    )["spark.driver.extraJavaOptions"]


def test_a_jvm_is_told_of_an_archive_that_is_there(installation: Path) -> None:
    assert "SharedArchiveFile" not in java_options(installation)
    archive_path().parent.mkdir(parents=True)
    archive_path().touch()
    assert f'"-XX:SharedArchiveFile={archive_path()}"' in java_options(installation)
    assert archive_path().is_relative_to(installation / "its own")


def test_an_archive_is_of_one_java_and_one_set_of_jars(installation: Path) -> None:
    jar = installation / "pyspark" / "jars" / "spark.jar"
    found = [archive_path()]
    jar.write_bytes(b"22")
    found.append(archive_path())
    os.utime(jar, ns=(1, 1))
    found.append(archive_path())
    (installation / "java" / "release").write_text('JAVA_VERSION="21"\n')
    found.append(archive_path())
    assert len(set(found)) == len(found)
    assert archive_path() == found[-1]


def test_where_spark_s_jars_are_elsewhere_there_is_none(installation: Path) -> None:
    (installation / "pyspark" / "jars").rename(installation / "elsewhere")
    assert archive_options() == ()
