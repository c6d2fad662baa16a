"""Files of the decision log on a local file system.

The one primitive that exactly-once rests on is `put_if_absent`: of any number of threads, processes and machines
that put the same name, exactly one wins, and the file is whole from the first moment it exists. It is a temporary
file, forced to disk, then hard-linked to its name. `open(…, O_EXCL)` would show an empty file before its content,
and Hadoop's `create(overwrite=false)` and `rename` on local files check and then act: both let two writers win.

Paths are relative to the folder the storage was opened on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from headrace.loader.errors import NoHardLinks, PublishedFileLost, StorageError, UnwritableWarehouse

NO_LINK_ERRORS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV})
"""What `link` answers on a file system that has no hard links (FAT, exFAT, some network and container mounts)."""

NO_ROOM_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})

TEMPORARY_FOLDER = "tmp"  # on the file system of everything else, since hard links do not cross file systems


class LocalStorage:
    """The folder `root` of a local file system."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Makes the folder and proves that put-if-absent works here.

        Raises:
            UnwritableWarehouse: it cannot be made or written to.
            NoHardLinks: the file system has none, or lets a second link of the same name succeed.
        """
        probe = f"{TEMPORARY_FOLDER}/probe-{secrets.token_hex(8)}"
        try:
            (self.root / TEMPORARY_FOLDER).mkdir(parents=True, exist_ok=True)
            if not self.put_if_absent(probe, b"1") or self.put_if_absent(probe, b"2"):
                raise NoHardLinks(str(self.root), "a name could be linked twice")
        except OSError as error:
            is_full = error.errno in NO_ROOM_ERRORS
            raise UnwritableWarehouse(str(self.root), error.strerror or str(error), is_full=is_full) from error
        finally:
            # On a read-only file system even a name that is not there cannot be removed.
            with contextlib.suppress(OSError):
                (self.root / probe).unlink(missing_ok=True)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Makes the file with this content unless the name is taken; True when it was made by this call.

        Both the content and the name are on disk when this returns True.

        Raises:
            NoHardLinks: see there.
            OSError: the outcome is unknown; read the file to see whose it is.
        """
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._write_temporary(content)
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
        _sync_folder(target.parent)
        return True

    def replace(self, path: str, content: bytes) -> None:
        """Puts the content in place of whatever was there, atomically; for hints, where the last writer may win."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        self._write_temporary(content).replace(target)

    def read(self, path: str) -> bytes | None:
        """The content, or None when there is no such file."""
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def children(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted; none when there is no such folder."""
        try:
            return tuple(sorted(entry.name for entry in (self.root / path).iterdir()))
        except FileNotFoundError:
            return ()

    def modified_at_ms(self, path: str) -> int | None:
        """When the newest entry of a tree was changed, in ms since 1970; None when there is no such path."""
        newest: int | None = None
        for entry in self._tree(self.root / path):
            try:
                changed = int(entry.stat().st_mtime * 1000)
            except FileNotFoundError:
                continue
            newest = changed if newest is None else max(newest, changed)
        return newest

    def remove_tree(self, path: str) -> None:
        """Deletes a folder and all in it; fine when it is gone or going."""
        shutil.rmtree(self.root / path, ignore_errors=True)

    def remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def path(self, path: str) -> Path:
        return self.root / path

    def _write_temporary(self, content: bytes) -> Path:
        folder = self.root / TEMPORARY_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def _tree(self, path: Path) -> Iterator[Path]:
        yield path
        for folder, folders, files in os.walk(path):
            yield from (Path(folder) / name for name in (*folders, *files))


def force_to_disk(path: Path, length: int) -> None:
    """Checks that a finished file has its length and forces it to disk.

    Raises:
        StorageError: it is missing or has another length.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"the staged file {path} cannot be opened: {error.strerror}") from error
    try:
        found = os.fstat(descriptor).st_size
        if found != length:
            raise StorageError(f"the staged file {path} has {found} bytes and should have {length}")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(topic: str, staged: Path, final: Path, length: int) -> bool:
    """Gives a decided file its final name; True when this call did, False when it was there already.

    May be repeated and may run in several processes at once: the file is linked to its name and then taken out of
    staging, so that at every moment it has one of the two, and whoever finds the name taken checks the length only.

    Raises:
        PublishedFileLost: it is in neither place, or has another length.
    """
    made = False
    found = _size(final)
    if found is None:
        # The length is judged before the file can be seen: a reader must never meet a cut one.
        in_staging = _size(staged)
        if in_staging is not None and in_staging != length:
            raise PublishedFileLost(topic, str(staged), f"it has {in_staging} bytes and should have {length}")
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(staged, final)
            made = True
        except FileExistsError:
            pass
        except FileNotFoundError:
            # Either another process published it between our two looks, or it is lost; the next line tells.
            pass
        found = _size(final)
    if found is None:
        raise PublishedFileLost(topic, str(final), f"nor is it at {staged}")
    if found != length:
        raise PublishedFileLost(topic, str(final), f"it has {found} bytes and should have {length}")
    staged.unlink(missing_ok=True)
    if made:
        _sync_folder(final.parent)
    return made


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(target: Path, content: bytes) -> None:
    """Puts the content in place of whatever was there; readers see the old or the new, never a part.

    The temporary name begins with a dot, which hides it from readers of the folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    temporary.write_bytes(content)
    temporary.replace(target)
