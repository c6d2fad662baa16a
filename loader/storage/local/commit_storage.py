"""Stores the commit log's files on a local file system.

Exactly-once depends on the primitive `put_if_absent`: of any number of threads, processes and machines that put the
same name, exactly one succeeds, and the file is complete from the moment it exists. It is implemented by a temporary
file, which is fsynced and then hard-linked to its name. `open(…, O_EXCL)` would show an empty file before its content,
and Hadoop's `create(overwrite=false)` and `rename` on local files first check and then act, so two writers can succeed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from headrace.loader.errors import NoHardLinks, UnwritableWarehouse
from headrace.loader.storage.local.disk import children_of, fsync, fsync_directories_above, is_older, write_temporary

NO_LINK_ERRORS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV})
"""Errors of `link` on a file system without hard links (FAT, exFAT, some network and container mounts)."""

DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})

TEMPORARY_DIRECTORY = "tmp"  # on the same file system, because hard links do not cross file systems


class LocalCommitStorage:
    """A `CommitStorage` (the files of the commit log) in the local directory `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Creates the directory of the commit log and tests put-if-absent.

        Raises:
            UnwritableWarehouse: the directory cannot be created or written.
            NoHardLinks: the file system has no hard links, or the test failed: of two links with a new name, only the
                first may succeed.
        """
        probe = f"{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}"
        try:
            (self.root / TEMPORARY_DIRECTORY).mkdir(parents=True, exist_ok=True)
            if not self._link(probe, b"1", fsynced=False) or self._link(probe, b"2", fsynced=False):
                raise NoHardLinks(str(self.root), "a test could create two hard links with the same name")
            fsync_directories_above(
                self.root
            )  # otherwise a power failure could delete a new warehouse with its commits
        except OSError as error:
            is_full = error.errno in DISK_FULL_ERRORS
            raise UnwritableWarehouse(str(self.root), error.strerror or str(error), is_full=is_full) from error
        finally:
            # A read-only file system refuses to delete even a missing name.
            with contextlib.suppress(OSError):
                (self.root / probe).unlink(missing_ok=True)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Creates the file `name` with this content by a hard link to a complete and fsynced file, unless the name
        exists. Returns True if this call created it.

        Raises:
            NoHardLinks: the file system has no hard links.
            OSError: it is unknown whether the file was created; read it to find out.
        """
        made = self._link(name, content, fsynced=True)
        if made:
            self.persist(name)
        return made

    def persist(self, name: str) -> None:
        """Fsyncs the name of a file and the names of its directories. The content was fsynced before the file got its
        name."""
        fsync((self.root / name).parent)
        fsync(self.root)

    def replace(self, name: str, content: bytes, *, fsynced: bool = True) -> None:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self._write_temporary(content, fsynced=fsynced).replace(target)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def children(self, directory: str) -> tuple[str, ...]:
        return children_of(self.root / directory)

    def delete_temporary_files(self, now_ms: int, age_ms: int) -> None:
        directory = self.root / TEMPORARY_DIRECTORY
        for name in children_of(directory):
            # If the writer of such a file is only paused, its later link fails, and it has created nothing.
            if is_older(directory / name, now_ms, age_ms):
                (directory / name).unlink(missing_ok=True)

    def describe(self, name: str) -> str:
        return str(self.root / name)

    def _link(self, name: str, content: bytes, *, fsynced: bool) -> bool:
        """Writes the content to a temporary file and links it to the name. Returns whether the name was free.

        Args:
            fsynced: whether the content is fsynced; the name never is.
        """
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._write_temporary(content, fsynced=fsynced)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in NO_LINK_ERRORS:
                raise NoHardLinks(str(self.root), error.strerror or str(error)) from error
            raise
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _write_temporary(self, content: bytes, *, fsynced: bool) -> Path:
        directory = self.root / TEMPORARY_DIRECTORY
        directory.mkdir(parents=True, exist_ok=True)
        return write_temporary(directory, content, fsynced=fsynced)
