"""Files of the commit log on a local file system.

The one primitive that exactly-once rests on is `put_if_absent`: of any number of threads, processes and machines
that put the same name, exactly one wins, and the file is whole from the first moment it exists. It is a temporary
file, forced to disk, then hard-linked to its name. `open(…, O_EXCL)` would show an empty file before its content,
and Hadoop's `create(overwrite=false)` and `rename` on local files check and then act: both let two writers win.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from headrace.loader.errors import NoHardLinks, UnwritableWarehouse
from headrace.loader.storage.local.disk import children_of, force, force_names_above, is_older, write_temporary

NO_LINK_ERRORS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV})
"""What `link` answers on a file system that has no hard links (FAT, exFAT, some network and container mounts)."""

NO_ROOM_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})

TEMPORARY_DIRECTORY = "tmp"  # on the file system of everything else, since hard links do not cross file systems


class LocalCommitStorage:
    """A `CommitStorage` in the directory `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Makes the directory and proves that put-if-absent works here.

        Raises:
            UnwritableWarehouse: it cannot be made or written to.
            NoHardLinks: the file system has none, or lets a second link of the same name succeed.
        """
        probe = f"{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}"
        try:
            (self.root / TEMPORARY_DIRECTORY).mkdir(parents=True, exist_ok=True)
            if not self._link(probe, b"1", forced=False) or self._link(probe, b"2", forced=False):
                raise NoHardLinks(str(self.root), "a name could be linked twice")
            force_names_above(self.root)  # what is committed in a new warehouse must not go with its name
        except OSError as error:
            is_full = error.errno in NO_ROOM_ERRORS
            raise UnwritableWarehouse(str(self.root), error.strerror or str(error), is_full=is_full) from error
        finally:
            # On a read-only file system even a name that is not there cannot be removed.
            with contextlib.suppress(OSError):
                (self.root / probe).unlink(missing_ok=True)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """See `CommitStorage`.

        Raises:
            NoHardLinks: see there.
            OSError: the outcome is unknown; read the file to see whose it is.
        """
        made = self._link(name, content, forced=True)
        if made:
            self.keep(name)
        return made

    def keep(self, name: str) -> None:
        """The content was forced before it got the name; here it is about that, and that of its directory, which may be
        new, whoever made it."""
        force((self.root / name).parent)
        force(self.root)

    def replace(self, name: str, content: bytes, *, forced: bool = True) -> None:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self._write_temporary(content, forced=forced).replace(target)

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

    def sweep(self, now_ms: int, age_ms: int) -> None:
        directory = self.root / TEMPORARY_DIRECTORY
        for name in children_of(directory):
            # Whoever still wants such a file finds it gone, and its put fails without having made anything.
            if is_older(directory / name, now_ms, age_ms):
                (directory / name).unlink(missing_ok=True)

    def describe(self, name: str) -> str:
        return str(self.root / name)

    def _link(self, name: str, content: bytes, *, forced: bool) -> bool:
        """Gives the content a name that is free; whether it was."""
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._write_temporary(content, forced=forced)
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

    def _write_temporary(self, content: bytes, *, forced: bool) -> Path:
        directory = self.root / TEMPORARY_DIRECTORY
        directory.mkdir(parents=True, exist_ok=True)
        return write_temporary(directory, content, forced=forced)
