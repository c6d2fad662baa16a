"""The manifest of a backup, `manifest.json`: its files with lengths and checksums, and the position of each store.

It is written last, under its final name only when it and all files are fsynced. A directory without a manifest is no
backup. The manifest's last line is the checksum of the rest of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST_NAME = "manifest.json"
FORMAT = 1
CHUNK_BYTES = 1024 * 1024
HEX_DIGITS = 64


class BackupError(Exception):
    """A backup cannot be made, or cannot be restored. The message is one line for the user."""


class Store(StrEnum):
    """A part of the state that is copied by itself; also the name of its directory in the backup."""

    METASTORE = "metastore"
    AUDIT = "audit"
    COMMIT_LOG = "commit-log"
    TABLES = "tables"
    BROKER = "broker"
    REGISTRY = "registry"


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup; `path` is relative to the backup, and begins with the name of its store."""

    path: str
    bytes: int
    sha256: str
    mode: int

    @property
    def store(self) -> Store:
        return Store(PurePosixPath(self.path).parts[0])

    @property
    def path_in_store(self) -> str:
        return self.path.partition("/")[2]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a backup.

    `stores` has the position of each copied store, as text. `left_out` has the reason for each store that
    was not copied. `findings` are faults of the copied state, such as files that were missing before the backup.
    `data_dir` and `warehouse` are the directories that were copied; `commit_number` is the newest commit.
    """

    release: str
    git_commit: str
    started_at: str
    finished_at: str
    data_dir: str
    warehouse: str
    commit_number: int
    stores: Mapping[str, str]
    left_out: Mapping[str, str]
    findings: tuple[str, ...]
    files: tuple[BackupFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def files_of(self, store: Store) -> Iterator[BackupFile]:
        return (file for file in self.files if file.store is store)


def manifest_content(manifest: Manifest) -> bytes:
    document = {"format": FORMAT, **dataclasses.asdict(manifest)}
    body = json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


def read_manifest(backup: Path) -> Manifest:
    """Reads the manifest of a backup.

    Raises:
        BackupError: the directory is no complete backup, or the manifest is damaged or of another release.
    """
    path = backup / MANIFEST_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BackupError(
            f"{backup} is not a complete backup: it has no {MANIFEST_NAME}; name the directory of a backup that ended"
        ) from error
    body, checksum = content[: -HEX_DIGITS - 1], content[-HEX_DIGITS - 1 :].strip().decode("ascii", "replace")
    if hashlib.sha256(body).hexdigest() != checksum:
        raise BackupError(f"{path} is damaged: its checksum is wrong; use another backup")
    document: dict[str, Any] = json.loads(body)
    if document.pop("format") != FORMAT:
        raise BackupError(f"{path} has another format; restore it with Headrace {document.get('release')}")
    files = tuple(BackupFile(**file) for file in document.pop("files"))
    for file in files:
        _check_path(path, file.path)
    return Manifest(**{**document, "files": files, "findings": tuple(document["findings"])})


def _check_path(manifest: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    if len(parts) < 2 or parts[0] not in set(Store) or ".." in parts or "\0" in name:
        raise BackupError(f"{manifest} names the file {name!r}, which is outside of the backup; use another backup")


def verify_files(backup: Path, files: Iterable[BackupFile], progress: Callable[[str], None]) -> None:
    """Reads all files of a backup.

    Raises:
        BackupError: a file is missing or changed.
    """
    for file in files:
        progress(f"checking {file.path}")
        path = backup / file.path
        try:
            if path.is_symlink() or path.stat().st_size != file.bytes or sha256_of(path) != file.sha256:
                raise BackupError(f"{path} is damaged: it differs from the manifest; use another backup")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BackupError(f"{path} is missing in the backup; use another backup") from error


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class BackupWriter:
    """Writes the files of a backup into the new directory `root`, and records their lengths and checksums.

    Args:
        progress: called with the current step.
    """

    def __init__(self, root: Path, progress: Callable[[str], None] = lambda step: None) -> None:
        self.root, self.progress = root, progress
        self._files: dict[str, BackupFile] = {}

    @property
    def files(self) -> tuple[BackupFile, ...]:
        return tuple(self._files[name] for name in sorted(self._files))

    def has(self, name: str) -> bool:
        return name in self._files

    def path(self, name: str) -> Path:
        """Returns the path of a file of the backup, after creating its directory."""
        path = self.root / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def write(self, name: str, content: bytes, mode: int = 0o644) -> None:
        with self.path(name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._files[name] = BackupFile(name, len(content), hashlib.sha256(content).hexdigest(), mode)

    def copy(self, source: Path, name: str, size: int | None = None, mode: int | None = None) -> None:
        """Copies a file, or its first `size` bytes.

        Args:
            mode: the permissions after a restore; by default the permissions of the source.

        Raises:
            FileNotFoundError: there is no such file.
            BackupError: the file is shorter than `size`.
        """
        self.progress(f"copying {name}")
        with source.open("rb") as reader:
            mode = os.fstat(reader.fileno()).st_mode & 0o777 if mode is None else mode
            with self.path(name).open("wb") as writer:
                length, sha256 = _copy(reader, writer, size)
        if size is not None and length != size:
            raise BackupError(f"{source} has {length} bytes instead of {size}; check its disk")
        self._files[name] = BackupFile(name, length, sha256, mode)

    def link(self, source: Path, name: str) -> None:
        """Adds a file that is never changed: as a hard link if the backup is on the same file system, else as a copy.

        Raises:
            FileNotFoundError: there is no such file.
        """
        target = self.path(name)
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:
            self.copy(source, name)
            return
        self.adopt(name)

    def adopt(self, name: str) -> None:
        """Records a file that another program has written into the backup."""
        path = self.root / name
        self.progress(f"reading {name}")
        with path.open("rb") as file:
            os.fsync(file.fileno())
            found = os.fstat(file.fileno())
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._files[name] = BackupFile(name, found.st_size, sha256, found.st_mode & 0o777)

    def remove(self, store: Store) -> None:
        """Removes the files of a store, which is then copied again."""
        shutil.rmtree(self.root / store, ignore_errors=True)
        self._files = {name: file for name, file in self._files.items() if file.store is not store}

    def finish(self, manifest: Manifest) -> None:
        """Fsyncs all directories, then writes the manifest."""
        fsync_tree(self.root)
        temporary = self.root / f"{MANIFEST_NAME}.tmp"
        with temporary.open("wb") as file:
            file.write(manifest_content(manifest))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.root / MANIFEST_NAME)
        fsync_directory(self.root)
        fsync_directory(self.root.parent)


def _copy(reader: Any, writer: Any, size: int | None) -> tuple[int, str]:
    """Copies up to `size` bytes and fsyncs them. Returns their number and checksum."""
    digest, length = hashlib.sha256(), 0
    while size is None or length < size:
        chunk = reader.read(CHUNK_BYTES if size is None else min(CHUNK_BYTES, size - length))
        if not chunk:
            break
        digest.update(chunk)
        writer.write(chunk)
        length += len(chunk)
    writer.flush()
    os.fsync(writer.fileno())
    return length, digest.hexdigest()


def copy_file(source: Path, target: Path, mode: int) -> None:
    """Copies a file of a backup to its place and fsyncs it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reader, target.open("wb") as writer:
        _copy(reader, writer, None)
    target.chmod(mode & 0o777)


def fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Fsyncs the names in a directory and in all directories below it."""
    for directory, _, _ in os.walk(root):
        fsync_directory(Path(directory))
