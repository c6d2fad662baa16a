"""File systems in memory with exactly the guarantees of HDFS and S3, for tests of code that depends on these."""

from __future__ import annotations

import errno
import io
import itertools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from headrace.loader.storage.hadoop.file_system import FoundFile


@dataclass
class _InMemory:
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    clock_ms: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000_000))

    def write(self, path: str, content: bytes) -> None:
        self.files[path] = (content, next(self.clock_ms))

    def read(self, path: str) -> bytes | None:
        with self.lock:
            found = self.files.get(path)
            return None if found is None else found[0]

    def open(self, path: str) -> IO[bytes]:
        content = self.read(path)
        if content is None:
            raise _error(errno.ENOENT, path)
        return io.BytesIO(content)

    def length(self, path: str) -> int | None:
        content = self.read(path)
        return None if content is None else len(content)

    def children(self, directory: str) -> tuple[str, ...]:
        with self.lock:
            below = [path.removeprefix(f"{directory}/") for path in self.files if path.startswith(f"{directory}/")]
            return tuple(sorted({path.split("/")[0] for path in below}))

    def lengths(self, directory: str) -> Mapping[str, int | None]:
        return {name: self.length(f"{directory}/{name}") for name in self.children(directory)}

    def below(self, path: str) -> list[str]:
        """Returns the file with this path, or the files in the directory with this path."""
        with self.lock:
            return [one for one in self.files if f"{one}/".startswith(f"{path}/")]

    def files_below(self, directory: str) -> tuple[FoundFile, ...]:
        with self.lock:
            found = sorted(self.files.items())
        return tuple(
            FoundFile(path, len(content), at) for path, (content, at) in found if path.startswith(f"{directory}/")
        )

    def upload(self, local: Path, target: str) -> None:
        with self.lock:
            self.write(target, local.read_bytes())

    def delete(self, path: str, *, tree: bool = False) -> None:
        with self.lock:
            for one in [one for one in self.files if one == path or (tree and one.startswith(f"{path}/"))]:
                del self.files[one]


@dataclass
class FakeHdfs(_InMemory):
    """A file system in memory with the guarantees of HDFS. Directories exist even if they are empty.

    Attributes:
        done: the calls that persisted or deleted a path, in order.
    """

    directories: set[str] = field(default_factory=set)
    done: list[tuple[str, str]] = field(default_factory=list)

    def put_if_absent(self, path: str, content: bytes, scratch: str) -> bool:
        with self.lock:
            if path in self.files:
                return False
            self.write(path, content)
        return True

    def replace(self, path: str, content: bytes, scratch: str) -> None:
        with self.lock:
            self.write(path, content)

    def persist(self, path: str) -> None:
        self.done.append(("persist", path))

    def write(self, path: str, content: bytes) -> None:
        super().write(path, content)
        self.make_directories_above(path)

    def make_directories_above(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        while not directory.endswith(":/"):
            self.directories.add(directory)
            directory = directory.rpartition("/")[0]

    def move(self, source: str, target: str) -> None:
        with self.lock:
            self.make_directories_above(target)
            if source not in self.files and source not in self.directories:
                raise _error(errno.ENOENT, source)
            if target in self.files or target in self.directories:
                raise _error(errno.EEXIST, target)
            for path in self.below(source):
                self.write(f"{target}{path.removeprefix(source)}", self.files.pop(path)[0])
            moved = {one for one in self.directories if f"{one}/".startswith(f"{source}/")}
            self.directories = (self.directories - moved) | {f"{target}{one.removeprefix(source)}" for one in moved}

    def copy(self, source: str, target: str, scratch: str) -> None:
        with self.lock:
            content = self.read(source)
            if content is None:
                raise _error(errno.ENOENT, source)
            if target not in self.files:
                self.write(target, content)

    def modified_ms(self, path: str) -> int | None:
        with self.lock:
            return self.files[path][1] if path in self.files else 0 if path in self.directories else None

    def delete(self, path: str, *, tree: bool = False) -> None:
        with self.lock:
            self.done.append(("delete", path))
            super().delete(path, tree=tree)
            if tree:
                self.directories -= {one for one in self.directories if f"{one}/".startswith(f"{path}/")}

    def delete_if_empty(self, directory: str) -> bool:
        with self.lock:
            above = f"{directory}/"
            if directory not in self.directories or any(
                one.startswith(above) for one in (*self.files, *self.directories)
            ):
                return False
            self.directories.remove(directory)
            return True

    def children(self, directory: str) -> tuple[str, ...]:
        with self.lock:
            names = {
                one.removeprefix(f"{directory}/").split("/")[0]
                for one in self.directories
                if one.startswith(f"{directory}/")
            }
            return tuple(sorted({*super().children(directory), *names}))


@dataclass
class FakeBucket(_InMemory):
    """A file system in memory with the guarantees of a bucket on S3. There are no directories. A move copies and then
    deletes, and calls of other threads may run in between.

    Attributes:
        is_conditional: whether the store rejects putting a name that exists.
        drops_replies: whether the response to the first attempt to put a file is lost. The client then repeats the
            request, which is rejected because the file exists.
    """

    is_conditional: bool = True
    drops_replies: bool = False

    def put_if_absent(self, path: str, content: bytes, scratch: str) -> bool:
        with self.lock:
            if self.is_conditional and path in self.files:
                return False
            self.write(path, content)
        return not self.drops_replies

    def replace(self, path: str, content: bytes, scratch: str) -> None:
        with self.lock:
            self.write(path, content)

    def persist(self, path: str) -> None:
        pass

    def move(self, source: str, target: str) -> None:
        content = {path: self.read(path) for path in self.below(source)}
        if not content:
            raise _error(errno.ENOENT, source)
        if self.below(target):
            raise _error(errno.EEXIST, target)
        for path, found in content.items():
            with self.lock:
                if found is None or path not in self.files:
                    raise _error(errno.ENOENT, path)
                self.write(f"{target}{path.removeprefix(source)}", found)
            self.delete(path)

    def copy(self, source: str, target: str, scratch: str) -> None:
        content = self.read(source)
        if content is None:
            raise _error(errno.ENOENT, source)
        with self.lock:
            self.write(target, content)

    def modified_ms(self, path: str) -> int | None:
        with self.lock:
            if path in self.files:
                return self.files[path][1]
            return next(self.clock_ms) if self.children(path) else None

    def delete_if_empty(self, directory: str) -> bool:
        return not self.children(directory)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
