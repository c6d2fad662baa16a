"""When the archive of Spark's classes is made, and what of it is left."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from headrace.pipeline import class_archive
from headrace.pipeline.class_archive import is_wanted, make_archive


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "var" / "headrace" / "classes-1.jsa"
    monkeypatch.setattr(class_archive, "archive_path", lambda: path)
    monkeypatch.setattr(class_archive, "_run_jvm", lambda _, archive: archive.write_bytes(b"classes"))
    return path


def test_an_archive_takes_the_place_of_those_that_fit_no_longer(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(parents=True)
    (path.parent / "classes-0.jsa").write_bytes(b"old")
    (path.parent / "classes-0.failed").touch()
    assert is_wanted()
    make_archive(tmp_path)
    assert sorted(one.name for one in path.parent.iterdir()) == ["classes-1.jsa", "classes.lock"]
    assert not is_wanted()


def test_what_java_does_not_write_is_not_tried_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "_run_jvm", lambda *_: None)
    with pytest.raises(OSError, match=r"Java wrote none; it is not tried again while .*classes-1\.failed is there"):
        make_archive(tmp_path)
    assert not is_wanted()
    make_archive(tmp_path)
    assert not path.exists()


def test_two_do_not_make_it_at_once(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(parents=True)
    with (path.parent / "classes.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        make_archive(tmp_path)
        assert not path.exists()
    make_archive(tmp_path)
    assert path.read_bytes() == b"classes"


def test_a_full_disk_has_no_room_for_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "DISK_BYTES_MIN", 2**63)
    assert not is_wanted()
