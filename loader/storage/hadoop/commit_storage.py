"""Stores the commit log's files on HDFS or S3."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Mapping

from headrace.loader.errors import NoPutIfAbsent, UnwritableWarehouse
from headrace.loader.storage.hadoop.file_system import RemoteFileSystem

REMEDIES: Mapping[int, str] = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.EACCES: "make the directory writable for this user or set loader.warehouse",
    errno.EROFS: "",
    errno.EPERM: "",
    errno.ENOSYS: "",
}
"""What the operator can do if the directory cannot be written, by error number; "" if the error's message states it."""

TEMPORARY_DIRECTORY = "tmp"


class HadoopCommitStorage:
    """A `CommitStorage` (the files of the commit log) in the directory `root` of a Hadoop file system."""

    def __init__(self, file_system: RemoteFileSystem, root: str) -> None:
        self._files = file_system
        self.root = root

    def prepare(self) -> None:
        """Creates the directory of the commit log and tests put-if-absent.

        Raises:
            UnwritableWarehouse: the directory cannot be created or written.
            NoPutIfAbsent: the file system has no put-if-absent, or the test failed: of two puts of a new name, only the
                first may succeed.
        """
        probe = f"{self.root}/{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}"
        try:
            is_first_created = self._files.put_if_absent(probe, b"1", self._scratch)
            is_second_created = self._files.put_if_absent(probe, b"2", self._scratch)
            found = self._files.read(probe)
            self._files.delete(probe)
        except OSError as error:
            remedy = REMEDIES.get(
                error.errno or 0, "check that its servers run and are reachable from here, then load again"
            )
            raise UnwritableWarehouse(self.root, error.strerror or str(error), remedy=remedy) from error
        if not is_first_created or is_second_created or found != b"1":
            raise NoPutIfAbsent(self.root, "a test could create the same file twice")

    def put_if_absent(self, name: str, content: bytes) -> bool:
        return self._files.put_if_absent(self.describe(name), content, self._scratch)

    def persist(self, name: str) -> None:
        self._files.persist(self.describe(name))

    def replace(self, name: str, content: bytes, *, fsynced: bool = True) -> None:
        """Creates or replaces the file `name` with this content. The change is durable even if `fsynced` is False,
        because writing without an fsync would save no time here."""
        self._files.replace(self.describe(name), content, self._scratch)

    def read(self, name: str) -> bytes | None:
        return self._files.read(self.describe(name))

    def exists(self, name: str) -> bool:
        return self._files.length(self.describe(name)) is not None

    def remove(self, name: str) -> None:
        self._files.delete(self.describe(name))

    def children(self, directory: str) -> tuple[str, ...]:
        return self._files.children(self.describe(directory))

    def delete_temporary_files(self, now_ms: int, age_ms: int) -> None:
        for file in self._files.files_below(self._scratch):
            # If the writer of such a file is only paused, its later rename fails, and it has created nothing.
            if now_ms - file.modified_ms > age_ms:
                self._files.delete(file.path)

    def describe(self, name: str) -> str:
        return f"{self.root}/{name}"

    @property
    def _scratch(self) -> str:
        return f"{self.root}/{TEMPORARY_DIRECTORY}"
