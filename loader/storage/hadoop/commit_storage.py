"""Files of the commit log on HDFS or S3."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Mapping

from headrace.loader.errors import NoPutIfAbsent, UnwritableWarehouse
from headrace.loader.storage.hadoop.file_system import RemoteFileSystem

CURES: Mapping[int, str] = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EACCES: "make the directory writable for this user or set loader.warehouse",
    errno.EROFS: "",
    errno.EPERM: "",
    errno.ENOSYS: "",
}
"""What to do about what a file system answers; "" where the answer says it."""

TEMPORARY_DIRECTORY = "tmp"


class HadoopCommitStorage:
    """A `CommitStorage` in the directory `root`."""

    def __init__(self, file_system: RemoteFileSystem, root: str) -> None:
        self._files = file_system
        self.root = root

    def prepare(self) -> None:
        """See `CommitStorage`.

        Raises:
            UnwritableWarehouse: it cannot be made or written to.
            NoPutIfAbsent: a name that was taken could be taken again.
        """
        probe = f"{self.root}/{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}"
        try:
            is_first_made = self._files.put_if_absent(probe, b"1", self._scratch)
            is_second_made = self._files.put_if_absent(probe, b"2", self._scratch)
            found = self._files.read(probe)
            self._files.delete(probe)
        except OSError as error:
            cure = CURES.get(error.errno or 0, "see whether its servers run and answer this machine, then load again")
            raise UnwritableWarehouse(self.root, error.strerror or str(error), cure=cure) from error
        if not is_first_made or is_second_made or found != b"1":
            raise NoPutIfAbsent(self.root, "it lets a second put of the same name succeed")

    def put_if_absent(self, name: str, content: bytes) -> bool:
        return self._files.put_if_absent(self.describe(name), content, self._scratch)

    def keep(self, name: str) -> None:
        self._files.persist(self.describe(name))

    def replace(self, name: str, content: bytes, *, forced: bool = True) -> None:
        """See `CommitStorage`; there is nothing to be saved here by not forcing it."""
        self._files.replace(self.describe(name), content, self._scratch)

    def read(self, name: str) -> bytes | None:
        return self._files.read(self.describe(name))

    def exists(self, name: str) -> bool:
        return self._files.length(self.describe(name)) is not None

    def remove(self, name: str) -> None:
        self._files.delete(self.describe(name))

    def children(self, directory: str) -> tuple[str, ...]:
        return self._files.children(self.describe(directory))

    def sweep(self, now_ms: int, age_ms: int) -> None:
        for file in self._files.files_below(self._scratch):
            # Whoever still wants such a file finds it gone, and its put fails without having made anything.
            if now_ms - file.modified_ms > age_ms:
                self._files.delete(file.path)

    def describe(self, name: str) -> str:
        return f"{self.root}/{name}"

    @property
    def _scratch(self) -> str:
        return f"{self.root}/{TEMPORARY_DIRECTORY}"
