"""Publishes and reads the files of a warehouse on HDFS or S3. Staging is on the same file system."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import IO

from headrace.loader.checksum import checksum_as
from headrace.loader.errors import PublishedFileLost, PublishedNameTaken
from headrace.loader.storage.hadoop.file_system import RemoteFileSystem
from headrace.loader.storage.hadoop.staging import CONCURRENT_CALLS_MAX, HadoopStaging, call_concurrently
from headrace.loader.storage.protocols import Publication


class HadoopFiles:
    """A `WarehouseFiles` (the files that queries read) in the directory `warehouse` of a Hadoop file system."""

    def __init__(self, file_system: RemoteFileSystem, warehouse: str, staging: HadoopStaging) -> None:
        self._files = file_system
        self._warehouse = warehouse
        self._staging = staging

    def publish(self, files: Sequence[Publication]) -> tuple[Publication, ...]:
        """Moves each file from staging to its name. If the name exists already, an earlier or concurrent process moved
        the file. Returns the files that exist neither in staging nor under their names."""
        missing: list[Publication] = []
        already_published: list[Publication] = []

        def publish_one(file: Publication) -> None:
            if self._move(file):
                return
            length = self.length(file.name)
            if length is None:
                missing.append(file)
            elif length != file.length:
                raise PublishedFileLost(file.topic, self.describe(file.name), _length_error(length, file.length))
            else:
                already_published.append(file)

        call_concurrently(publish_one, files)
        if already_published:
            self._files.persist(self.describe(already_published[-1].name))
        return tuple(file for file in files if file in missing)

    def _move(self, file: Publication) -> bool:
        """Moves a file from staging to its name and returns True. Returns False if it was not moved: the name exists
        already, or the file is not in staging.

        Raises:
            PublishedFileLost: a file under one of the two paths is not the committed one.
        """
        staged, final = self._staging.path(file.run_id, file.staged), self.describe(file.name)
        length = self._files.length(staged)
        if length is None:
            return False
        # The length is checked before the file is visible: a reader must never see a truncated file.
        if length != file.length:
            raise PublishedFileLost(file.topic, staged, _length_error(length, file.length))
        try:
            self._files.move(staged, final)
        except FileNotFoundError:
            return False
        except FileExistsError:
            self._check_same_content(file, staged, final)
            self._files.persist(final)
            self._files.delete(staged)
            return False
        return True

    def _check_same_content(self, file: Publication, staged: str, final: str) -> None:
        """Checks that the file at the path `final`, to which `file` is to be published, has the content of `file`. It
        may be a copy that a killed process made, or that was restored from a backup.

        Args:
            staged: the path of `file` in staging, for the error.

        Raises:
            PublishedNameTaken: it has other content.
        """
        with self._files.open(final) as existing:
            checksum = checksum_as(file.checksum, existing)
        if checksum != file.checksum:
            raise PublishedNameTaken(file.topic, final, staged)

    def link_or_copy(self, topic: str, source: str, target: str) -> None:
        source_path, target_path = self.describe(source), self.describe(target)
        if self._files.length(target_path) is None:
            try:
                self._files.copy(source_path, target_path, self._staging.scratch)
            except FileNotFoundError as error:
                raise PublishedFileLost(topic, source_path, "it does not exist") from error
        else:
            self._files.persist(target_path)

    def move_uncommitted(self, source: str, target: str) -> bool:
        target_path = self.describe(target)
        # A rename on S3A moves a file into an existing directory of that name.
        if self._files.modified_ms(target_path) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target_path)
        try:
            self._files.move(self.describe(source), target_path)
        except FileNotFoundError:
            self._remove_empty(_parent(target))
            return False
        return True

    def put(self, name: str, content: bytes) -> None:
        path = self.describe(name)
        if self._files.read(path) != content:
            self._files.replace(path, content, self._staging.scratch)
        else:
            self._files.persist(path)

    def put_all(self, contents: Mapping[str, bytes]) -> None:
        call_concurrently(lambda name: self.put(name, contents[name]), contents)

    def remove(self, names: Sequence[str]) -> None:
        call_concurrently(lambda name: self._files.delete(self.describe(name)), names)
        for directory in sorted({_parent(name) for name in names}, reverse=True):
            self._remove_empty(directory)

    def _remove_empty(self, directory: str) -> None:
        """Deletes a directory and those above it, as long as they are empty."""
        while directory and self._files.delete_if_empty(self.describe(directory)):
            directory = _parent(directory)

    def length(self, name: str) -> int | None:
        return self._files.length(self.describe(name))

    def open(self, name: str) -> IO[bytes]:
        return self._files.open(self.describe(name))

    def children(self, directory: str) -> tuple[str, ...]:
        return self._files.children(self.describe(directory))

    def lengths(self, directory: str) -> Mapping[str, int | None]:
        return self._files.lengths(self.describe(directory))

    @property
    def listings_at_once(self) -> int:
        return CONCURRENT_CALLS_MAX

    @property
    def root(self) -> str:
        return self._warehouse

    def location(self, name: str) -> str:
        return self.describe(name)

    def describe(self, name: str) -> str:
        return f"{self._warehouse}/{name}"


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _length_error(found: int, wanted: int) -> str:
    return f"it has {found} bytes instead of {wanted}"
