"""When the archive of Spark's classes is created, and which files and processes remain."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.hive_ddl.executors.class_archive import find_archive
from headrace.pipeline import class_archive
from headrace.pipeline.class_archive import create_archive, is_needed
from support.processes import command_line, descendants, is_running
from support.servers.kafka_programs import wait_until


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    key = tmp_path / "var" / "headrace" / "classes-1"
    monkeypatch.setattr(class_archive, "archive_key", lambda: key)
    monkeypatch.setattr(class_archive, "_run_jvm", lambda _, archive: archive.write_bytes(b"classes"))
    return key


def test_new_archive_replaces_outdated_ones(key: Path, tmp_path: Path) -> None:
    key.parent.mkdir(parents=True)
    (key.parent / "classes-0.jsa").write_bytes(b"old")
    (key.parent / "classes-0.failed").touch()
    assert is_needed()
    create_archive(tmp_path)
    assert sorted(one.name for one in key.parent.iterdir()) == ["classes-1-7.jsa", "classes.lock"]
    assert not is_needed()


def test_failed_archive_is_not_retried(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "_run_jvm", lambda *_: None)
    with pytest.raises(OSError, match=r"classes-1\.failed"):
        create_archive(tmp_path)
    assert not is_needed()
    create_archive(tmp_path)
    assert find_archive(key) is None


def test_archive_is_not_created_while_another_process_holds_the_lock(key: Path, tmp_path: Path) -> None:
    key.parent.mkdir(parents=True)
    with (key.parent / "classes.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        create_archive(tmp_path)
        assert find_archive(key) is None
    create_archive(tmp_path)
    path = find_archive(key)
    assert path is not None
    assert path.read_bytes() == b"classes"


def test_archive_is_not_created_on_a_full_disk(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "DISK_BYTES_MIN", 2**63)
    assert not is_needed()


def test_truncated_archive_is_created_again(key: Path, tmp_path: Path) -> None:
    create_archive(tmp_path)
    path = find_archive(key)
    assert path is not None
    path.write_bytes(b"class")
    assert find_archive(key) is None
    assert is_needed()
    create_archive(tmp_path)
    assert find_archive(key) == path


@pytest.mark.servers
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux")
def test_jvm_that_starts_ends_with_a_killed_up(tmp_path: Path) -> None:
    """A killed `headrace up` ends the process by SIGTERM, see `_before_exec` of `pipeline.up.part`."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'version "17"\' && exit\nexec sleep 600\n')
    java.chmod(0o755)
    program = (
        "import pathlib, sys; from headrace.pipeline import class_archive;"
        f"class_archive.archive_key = lambda: pathlib.Path({str(tmp_path)!r}, 'var', 'classes');"
        "sys.exit(class_archive.main())"
    )
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "java"), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-P", "-c", program], env=environment, process_group=0) as process:
        try:
            wait_until(lambda: any(command_line(one).startswith("sleep") for one in descendants(process.pid)), "a JVM")
            jvm = [one for one in descendants(process.pid) if one != process.pid]
            process.terminate()
            process.wait(60)
            wait_until(lambda: not any(map(is_running, jvm)), "the end of the JVM")
            assert not list(tmp_path.glob("headrace-classes-*"))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
