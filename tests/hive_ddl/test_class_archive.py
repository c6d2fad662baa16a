"""Path of the class archive, and the Java options that load it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.hive_ddl.executors import class_archive
from headrace.hive_ddl.executors.class_archive import CHECKED, archive_key, archive_name, archive_options
from headrace.hive_ddl.executors.session import session_properties


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment with its own Spark and Java."""
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    (tmp_path / "pyspark" / "jars" / "spark.jar").write_bytes(b"1")
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.15"\n')
    monkeypatch.setattr(class_archive.pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "its own"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path


def java_options(directory: Path) -> str:
    return session_properties(
        app_name="x", master="local", metastore_uri=None, data_dir=directory, warehouse_uri=f"file://{directory}"
    )["spark.driver.extraJavaOptions"]


def test_java_options_load_existing_archive(installation: Path) -> None:
    assert "SharedArchiveFile" not in java_options(installation)
    path = archive_name(archive_key(), 7)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"classes")
    assert f'"-XX:SharedArchiveFile={path}" -XX:+VerifySharedSpaces' in java_options(installation)
    assert path.is_relative_to(installation / "its own")
    path.write_bytes(b"cut")
    assert "SharedArchiveFile" not in java_options(installation)


def test_archive_key_depends_on_java_and_jars(installation: Path) -> None:
    jar = installation / "pyspark" / "jars" / "spark.jar"
    found = [archive_key()]
    jar.write_bytes(b"22")
    found.append(archive_key())
    os.utime(jar, ns=(1, 1))
    found.append(archive_key())
    (installation / "java" / "release").write_text('JAVA_VERSION="21"\n')
    found.append(archive_key())
    assert len(set(found)) == len(found)
    assert archive_key() == found[-1]


def test_no_archive_without_packaged_jars(installation: Path) -> None:
    (installation / "pyspark" / "jars").rename(installation / "elsewhere")
    assert archive_options() == ()


def test_damaged_archive_is_ignored_without_standard_output(tmp_path: Path) -> None:
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    assert java is not None
    archive = tmp_path / "classes.jsa"
    subprocess.run([java, f"-XX:ArchiveClassesAtExit={archive}", "-version"], check=True, capture_output=True)
    archive.chmod(0o644)
    whole = archive.read_bytes()
    for at in (len(whole) // 3, len(whole) // 2, len(whole) - 5_000):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        archive.write_bytes(damaged)
        done = subprocess.run(
            [java, f"-XX:SharedArchiveFile={archive}", *CHECKED, "-version"], check=True, capture_output=True
        )
        assert done.stdout == b""
        assert b"Unable to use shared archive" in done.stderr
