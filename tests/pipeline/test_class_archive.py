"""When the archive of Spark's classes is created, and which files remain."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from headrace.hive_ddl.executors.class_archive import find_archive
from headrace.pipeline import class_archive
from headrace.pipeline.class_archive import create_archive, is_needed


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
