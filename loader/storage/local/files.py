"""Publishes and reads the files of a warehouse in a local directory. Staging is on the same file system."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from headrace.hive_ddl.table import local_location
from headrace.loader.checksum import checksum_as
from headrace.loader.errors import PublishedFileLost, PublishedNameTaken
from headrace.loader.storage.local.disk import (
    call_concurrently,
    children_of,
    fsync,
    length_of,
    lengths_in,
    write_temporary,
)
from headrace.loader.storage.local.staging import LocalStaging
from headrace.loader.storage.protocols import Publication


class LocalFiles:
    """A `WarehouseFiles` (the files that queries read) in the local directory `warehouse`."""

    def __init__(self, warehouse: Path, staging: LocalStaging) -> None:
        self._warehouse = warehouse
        self._staging = staging

    def publish(self, files: Sequence[Publication]) -> tuple[Publication, ...]:
        """Links each file from staging to its name, fsyncs the names, then deletes the files from staging. Returns the
        files that exist neither in staging nor under their names.

        Fsyncs the names even if another process linked them: that process may be killed before its fsync, and files
        deleted from staging here could then be lost.
        """
        missing = []
        published: list[tuple[Publication, Path]] = []
        for file in files:
            staged = self._staging.path(file.run_id, file.staged)
            is_staged = self._link(file, staged)
            if is_staged is None:
                missing.append(file)
            elif is_staged:
                published.append((file, staged))
        self._fsync_directories(file.name for file, _ in published)
        for _, staged in published:
            staged.unlink(missing_ok=True)
        return tuple(missing)

    def _link(self, file: Publication, staged: Path) -> bool | None:
        """Links a committed file from staging to its name. Returns True if the file is still in staging too, False if
        it has only its name, None if it has neither.

        Args:
            staged: the file's path in staging.
        """
        final = self._warehouse / file.name
        # The length is checked before the file is visible: a reader must never see a truncated file.
        staged_length = length_of(staged)
        if staged_length is not None and staged_length != file.length:
            raise PublishedFileLost(file.topic, str(staged), _length_error(staged_length, file.length))
        if staged_length is not None:
            _link_or_check(file, staged, final)
        final_length = length_of(final)
        if final_length is None:
            return None
        if final_length != file.length:
            raise PublishedFileLost(file.topic, str(final), _length_error(final_length, file.length))
        return staged_length is not None

    def _fsync_directories(self, names: Iterable[str]) -> None:
        """Fsyncs the directories of files, and the names of these directories up to the warehouse.

        Args:
            names: paths of the files, relative to the warehouse.
        """
        directories = {parent for name in names for parent in Path(name).parents}
        by_depth = sorted(directories, key=lambda directory: len(directory.parts), reverse=True)
        for _, same_depth in itertools.groupby(by_depth, key=lambda directory: len(directory.parts)):
            call_concurrently(fsync, [self._warehouse / directory for directory in same_depth])

    def link_or_copy(self, topic: str, source: str, target: str) -> None:
        source_path, target_path = self._warehouse / source, self._warehouse / target
        while length_of(target_path) is None:
            try:
                target_path.parent.mkdir(parents=True, exist_ok=True)
                os.link(source_path, target_path)
            except FileExistsError:
                pass
            except FileNotFoundError as error:
                # If the source exists, another process deleted the target's empty directory meanwhile.
                if length_of(source_path) is None and length_of(target_path) is None:
                    raise PublishedFileLost(topic, str(source_path), "it does not exist") from error
        self._fsync_directories([target])

    def move_uncommitted(self, source: str, target: str) -> bool:
        source_path, target_path = self._warehouse / source, self._warehouse / target
        try:
            is_directory = stat.S_ISDIR(source_path.lstat().st_mode)
        except FileNotFoundError:
            return False
        self._reserve(target_path, is_directory=is_directory)
        try:
            # A link and an unlink could delete a file created in between, and directories cannot be linked.
            # (`rename` works for both.)
            source_path.rename(target_path)
        except OSError as error:
            target_path.rmdir() if is_directory else target_path.unlink()
            self._remove_empty(Path(target).parent)
            if isinstance(error, FileNotFoundError):  # another process was faster
                return False
            raise
        self._fsync_directories([target])
        with contextlib.suppress(FileNotFoundError):
            self._fsync_directories([source])
        return True

    def _reserve(self, path: Path, *, is_directory: bool) -> None:
        """Creates an empty file or directory at the unused path `path`, so that no other process takes the name. The
        caller then renames another file or directory to this path, which replaces the empty one.

        Args:
            is_directory: whether to create a directory; otherwise a file.
        """
        while True:
            with contextlib.suppress(FileNotFoundError):  # another process deleted the empty directory
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir() if is_directory else path.touch(exist_ok=False)
                return

    def put(self, name: str, content: bytes) -> None:
        self.put_all({name: content})

    def put_all(self, contents: Mapping[str, bytes]) -> None:
        call_concurrently(self._replace, contents.items())
        # Also of existing files: their writer may have been killed before the fsync.
        self._fsync_directories(contents)

    def _replace(self, file: tuple[str, bytes]) -> None:
        """Writes and fsyncs a file, given by name and content, unless it has this content. The name is not fsynced."""
        name, content = file
        target = self._warehouse / name
        found = None
        with contextlib.suppress(FileNotFoundError):
            found = target.read_bytes()
        if found != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_temporary(target.parent, content, fsynced=True).replace(target)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self._warehouse / name).unlink(missing_ok=True)
        for directory in sorted({Path(name).parent for name in names}, reverse=True):
            self._remove_empty(directory)

    def _remove_empty(self, directory: Path) -> None:
        """Deletes a directory and those above it, as long as they are empty. Then fsyncs the first directory that
        remains, so that its deleted entries stay deleted after a power failure."""
        while directory.parts:
            try:
                (self._warehouse / directory).rmdir()
            except OSError:
                break
            directory = directory.parent
        while directory.parts and not (self._warehouse / directory).exists():  # another process was faster
            directory = directory.parent
        with contextlib.suppress(FileNotFoundError):
            fsync(self._warehouse / directory)

    def length(self, name: str) -> int | None:
        return length_of(self._warehouse / name)

    def open(self, name: str) -> IO[bytes]:
        return (self._warehouse / name).open("rb")

    def children(self, directory: str) -> tuple[str, ...]:
        return children_of(self._warehouse / directory)

    def lengths(self, directory: str) -> Mapping[str, int | None]:
        return lengths_in(self._warehouse / directory)

    @property
    def listings_at_once(self) -> int:
        return 1

    @property
    def root(self) -> str:
        return str(self._warehouse)

    def location(self, name: str) -> str:
        return local_location(self._warehouse / name)

    def describe(self, name: str) -> str:
        return str(self._warehouse / name)


def _length_error(found: int, wanted: int) -> str:
    return f"it has {found} bytes instead of {wanted}"


def _link_or_check(file: Publication, staged: Path, final: Path) -> None:
    while True:
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            os.link(staged, final)
        except FileExistsError:
            _check_same_content(file, staged, final)
        except FileNotFoundError:
            if length_of(staged) is not None:
                continue  # another process deleted the empty directory
            # Otherwise another process published the file between the two checks, or it is lost. The caller checks
            # which.
        return


def _check_same_content(file: Publication, staged: Path, final: Path) -> None:
    """Checks that the file at the path `final`, to which `file` is to be published, is the staged file itself (another
    link) or has the same content, as a copy from a restored backup has.

    Args:
        staged: the path of `file` in staging.

    Raises:
        PublishedNameTaken: it is another file.
    """
    with contextlib.suppress(FileNotFoundError):
        if final.samefile(staged):
            return
    with final.open("rb") as existing:
        checksum = checksum_as(file.checksum, existing)
    if checksum != file.checksum:
        raise PublishedNameTaken(file.topic, str(final), str(staged))
