"""The manifest makes a directory a backup, and finds every change of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.pipeline.state_backup.manifest import (
    MANIFEST_NAME,
    BackupError,
    BackupFile,
    BackupWriter,
    Manifest,
    Store,
    manifest_content,
    read_manifest,
    verify_files,
)
from support.cases import all_cases


def manifest(files: tuple[BackupFile, ...]) -> Manifest:
    return Manifest(
        "0.1.0", "abc", "2026-01-31T07:00:00Z", "2026-01-31T07:00:09Z", "/d", "file:/d/w", 7, {}, {}, (), files
    )


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    source.chmod(0o640)
    writer = BackupWriter(tmp_path / "backup")
    writer.copy(source, "broker/orders-0/0.log", 4)
    writer.write("registry/registry.db", b"text")
    writer.link(source, "tables/a.avro")
    writer.finish(manifest(writer.files))
    return tmp_path / "backup"


def verify(backup: Path) -> Manifest:
    found = read_manifest(backup)
    verify_files(backup, found.files, lambda step: None)
    return found


def test_files_have_length_checksum_and_mode(backup: Path) -> None:
    found = verify(backup)
    assert [(file.path, file.bytes, oct(file.mode)) for file in found.files] == [
        ("broker/orders-0/0.log", 4, "0o640"),
        ("registry/registry.db", 4, "0o644"),
        ("tables/a.avro", 10, "0o640"),
    ]
    assert (backup / "broker/orders-0/0.log").read_bytes() == b"0123"
    assert (backup / "tables/a.avro").stat().st_nlink == 2
    assert [file.path_in_store for file in found.files_of(Store.BROKER)] == ["orders-0/0.log"]


def test_every_flipped_bit_of_the_manifest_is_detected(backup: Path) -> None:
    content = (backup / MANIFEST_NAME).read_bytes()
    for position in range(len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 1
        (backup / MANIFEST_NAME).write_bytes(changed)
        with pytest.raises(BackupError):
            read_manifest(backup)


def test_changed_files_are_detected(backup: Path, tmp_path: Path) -> None:
    log, table = backup / "broker/orders-0/0.log", backup / "tables/a.avro"
    with all_cases() as case:
        for name, harm in {
            "changed": lambda: log.write_bytes(b"0124"),
            "truncated": lambda: os.truncate(log, 3),
            "extended": lambda: log.write_bytes(b"01234"),
            "missing": log.unlink,
            "link": lambda: log.symlink_to(table),
        }.items():
            with case(name):
                harm()
                with pytest.raises(BackupError, match=r"0\.log"):
                    verify(backup)


def test_directory_without_manifest_is_no_backup(backup: Path) -> None:
    (backup / MANIFEST_NAME).unlink()
    with pytest.raises(BackupError, match="not a complete backup"):
        read_manifest(backup)
    with pytest.raises(BackupError, match="not a complete backup"):
        read_manifest(backup / "broker/orders-0/0.log")


def test_paths_outside_of_the_backup_are_refused(backup: Path) -> None:
    with all_cases() as case:
        for path in ("broker/../../x", "/etc/passwd", "elsewhere/x", "broker", "broker/\0"):
            with case(path):
                content = manifest_content(manifest((BackupFile(path, 0, "", 0o644),)))
                (backup / MANIFEST_NAME).write_bytes(content)
                with pytest.raises(BackupError, match="outside"):
                    read_manifest(backup)


def test_source_that_is_shorter_than_stated_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"0123")
    with pytest.raises(BackupError, match="4 bytes instead of 5"):
        BackupWriter(tmp_path / "backup").copy(tmp_path / "source", "broker/x", 5)


def test_file_is_copied_if_it_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "source").write_bytes(b"0123")
    writer = BackupWriter(tmp_path / "backup")
    writer.link(tmp_path / "source", "tables/x")
    assert (tmp_path / "backup/tables/x").read_bytes() == b"0123"
    assert writer.has("tables/x")
