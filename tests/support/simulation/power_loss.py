"""The directories that a power loss may leave, at any moment of a process.

`Recorder` records a process's operations on the files below a directory: added and removed names, and fsyncs. For the
first n operations, `Survivors` computes the disks that POSIX permits. A file has the content of its last fsync; it is
empty if it was never fsynced. A directory has the names of its last fsync, with any subset of the later changes.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.storage.local import disk

HELPERS = {disk.fsync.__code__, disk.write_temporary.__code__, disk.call_concurrently.__code__}
NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")


class Killed(BaseException):
    """Simulates the death of the process: raised by a file operation and by all later ones."""


class OneByOne:
    """An executor that runs each task at once in the calling thread, so that recorded operations have a fixed order."""

    def __init__(self, threads: int) -> None:
        pass

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], values: Collection[Any]) -> list[Any]:
        return [function(value) for value in values]


@dataclass(eq=False, repr=False, slots=True)
class Node:
    """A file or directory as such; it may have several names or none. `entries` has the names in a directory, as the
    process sees them."""

    entries: dict[str, Node] | None = None

    @property
    def is_directory(self) -> bool:
        return self.entries is not None


@dataclass(frozen=True, slots=True)
class Named:
    """An operation: a name in a directory was set to `node`, or removed if that is None.

    Attributes:
        path: the full path of the name.
        source: the path from which the node was linked or renamed, "" for a new node.
    """

    directory: Node
    name: str
    node: Node | None
    path: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Spoiled:
    """An operation: a file was opened for writing. Its content is undefined until the next fsync."""

    file: Node


@dataclass(frozen=True, slots=True)
class Forced:
    """An operation: the content of a file, or the names in a directory (`content` None), were fsynced.

    Attributes:
        site: the function that has called fsync, and the kind of path.
    """

    node: Node
    content: bytes | None
    site: str


Operation = Named | Spoiled | Forced


@dataclass
class Recorder:
    """Records the operations of processes on the files below `root`, an empty directory.

    Args:
        without: the `site` (see `Forced`) whose fsyncs are omitted; "" for none.
        kill_before: number of the operation, from 0, before which the process dies.
        note: returns the state of other things than the disk; called at the end of every operation.
    """

    root: Path
    without: str = ""
    kill_before: int | None = None
    note: Callable[[], Any] = lambda: None
    operations: list[Operation] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    top: Node = field(default_factory=lambda: Node({}))
    left_out: list[int] = field(default_factory=list)
    """The numbers of the operations before which an fsync was omitted because of `without`."""
    _is_dead: bool = False
    _descriptors: dict[int, tuple[Node, str]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def revive(self) -> None:
        """Simulates the start of another process on the same running machine, after the recorded process has died."""
        if self._is_dead:
            self._is_dead, self.kill_before = False, None

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorder]:
        with pytest.MonkeyPatch.context() as patch:
            self._patch(patch)
            yield self

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        real_open, real = io.open, {name: getattr(os, name) for name in ("open", "link", "unlink", "rmdir", "mkdir")}
        real["replace"] = os.replace

        def open_file(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            path = None if isinstance(file, int) else self._below(file)
            if path is None or named.get("opener"):
                handle = real_open(file, mode, *rest, **named)
                if not isinstance(file, int):
                    self._descriptors.pop(handle.fileno(), None)
                return handle
            with self._lock:
                writes = bool(set(mode) & set("wax+"))
                if writes:
                    self._begin()
                handle = real_open(file, mode, *rest, **named)
                if writes:
                    self._written(path)
                self._descriptors[handle.fileno()] = (self._node(path), path)
                return handle

        def open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            below = self._below(path, dir_fd)
            with self._lock:
                makes = below is not None and flags & os.O_CREAT
                if makes:
                    self._begin()
                descriptor: int = real["open"](path, flags, mode, dir_fd=dir_fd)
                self._descriptors.pop(descriptor, None)
                if below is not None and flags & os.O_TMPFILE != os.O_TMPFILE:
                    if makes:
                        self._written(below)
                    self._descriptors[descriptor] = (self._node(below), below)
                return descriptor

        def fsync(descriptor: int) -> None:
            found = self._descriptors.get(descriptor)
            if found is None:
                return
            with self._lock:
                self._begin()
                node, path = found
                site = f"{_caller()} {pattern(path) or '.'}"
                if site != self.without:
                    content = None
                    if not node.is_directory:
                        with real_open(self.root / path, "rb") as file:
                            content = file.read()
                    self._note(Forced(node, content, site))
                else:
                    self.left_out.append(len(self.operations))

        def link(source: Any, target: Any) -> None:
            with self._lock:
                self._begin()
                real["link"](source, target)
                self._name(self._inside(target), self._node(self._inside(source)), self._inside(source))

        def replace(source: Any, target: Any) -> None:
            with self._lock:
                self._begin()
                real["replace"](source, target)
                node = self._node(self._inside(source))
                self._name(self._inside(target), node, self._inside(source))
                self._name(self._inside(source), None)

        def removing(name: str) -> Callable[..., None]:
            def remove(path: Any, *, dir_fd: int | None = None) -> None:
                below = self._below(path, dir_fd)
                with self._lock:
                    if below is not None:
                        self._begin()
                    real[name](path, dir_fd=dir_fd)
                    if below is not None:
                        self._name(below, None)

            return remove

        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            below = self._below(path, dir_fd)
            with self._lock:
                if below is not None:
                    self._begin()
                real["mkdir"](path, mode, dir_fd=dir_fd)
                if below is not None:
                    self._name(below, Node({}))

        patch.setattr(io, "open", open_file)
        patch.setattr(builtins, "open", open_file)
        for name, function in {
            "open": open_descriptor,
            "fsync": fsync,
            "link": link,
            "replace": replace,
            "rename": replace,
            "unlink": removing("unlink"),
            "remove": removing("unlink"),
            "rmdir": removing("rmdir"),
            "mkdir": mkdir,
        }.items():
            patch.setattr(os, name, function)

    def _begin(self) -> None:
        if self._is_dead or len(self.operations) == self.kill_before:
            self._is_dead = True
            raise Killed

    def _note(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.notes.append(self.note())

    def _written(self, path: str) -> None:
        known = self._lookup(path)
        if known is None:
            self._name(path, Node())
        else:
            self._note(Spoiled(known))

    def _name(self, path: str, node: Node | None, source: str = "") -> None:
        above, _, name = path.rpartition("/")
        directory = self._node(above)
        assert directory.entries is not None
        if node is None:
            del directory.entries[name]
        else:
            directory.entries[name] = node
        self._note(Named(directory, name, node, path, source))

    def _below(self, path: Any, directory: int | None = None) -> str | None:
        """Returns a path relative to the root; None if it is outside.

        Args:
            directory: descriptor of the directory to which the path is relative.
        """
        text = os.fspath(path)
        if directory is not None and not text.startswith("/"):
            known = self._descriptors.get(directory)
            return None if known is None else f"{known[1]}/{text}".lstrip("/")
        found = os.path.relpath(text, self.root)
        return None if found.startswith("..") else "" if found == "." else found

    def _inside(self, path: Any) -> str:
        found = self._below(path)
        assert found is not None, path
        return found

    def _lookup(self, path: str) -> Node | None:
        node = self.top
        for name in path.split("/") if path else ():
            assert node.entries is not None, path
            if name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def _node(self, path: str) -> Node:
        found = self._lookup(path)
        assert found is not None, f"{path} was made unseen"
        return found


def pattern(path: str) -> str:
    """Returns a path with its numbers replaced by `*`, so that paths with the same role are equal."""
    return NUMBERS.sub("*", path)


def _caller() -> str:
    """Returns the name of the storage function that has called fsync."""
    frame = sys._getframe(2)
    while frame.f_code in HELPERS or frame.f_code.co_filename == __file__:
        assert frame.f_back is not None
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"


@dataclass(slots=True)
class Survivors:
    """Computes the disks that are possible after each operation.

    Attributes:
        contents: the durable content of files.
        entries: the durable names in directories.
        pending: the later changes of names, each of which may be durable or not.
    """

    contents: dict[Node, bytes] = field(default_factory=dict)
    entries: dict[Node, dict[str, Node]] = field(default_factory=dict)
    pending: dict[Node, list[Named]] = field(default_factory=dict)

    def after(self, operation: Operation) -> None:
        match operation:
            case Named(directory=directory):
                self.pending.setdefault(directory, []).append(operation)
            case Spoiled(file=file):
                self.contents.pop(file, None)
            case Forced(node=node, content=None):
                _apply(self.entries.setdefault(node, {}), self.pending.pop(node, ()))
            case Forced(node=node, content=content):
                assert content is not None
                self.contents[node] = content

    def image(self, top: Node, happened: Callable[[Named], bool]) -> Image:
        """Returns the disk on which exactly those of the pending changes are durable that `happened` selects."""
        found: dict[str, Node] = {}
        waiting = [("", top)]
        while waiting:
            path, node = waiting.pop()
            entries = dict(self.entries.get(node, {}))
            _apply(entries, (one for one in self.pending.get(node, ()) if happened(one)))
            for name, below in entries.items():
                found[f"{path}{name}"] = below
                if below.is_directory:
                    waiting.append((f"{path}{name}/", below))
        return Image(found, {node: self.contents.get(node, b"") for node in found.values() if not node.is_directory})


def _apply(entries: dict[str, Node], changes: Any) -> None:
    for change in changes:
        if change.node is None:
            entries.pop(change.name, None)
        else:
            entries[change.name] = change.node


@dataclass(frozen=True, slots=True)
class Image:
    """The files and directories of a disk by path. A file that was never fsynced has a name but no content."""

    nodes: Mapping[str, Node]
    contents: Mapping[Node, bytes]

    @property
    def key(self) -> Any:
        """A value that is equal for images that differ only in temporary files, which no process reads."""
        return frozenset(
            (path, id(node), self.contents.get(node))
            for path, node in self.nodes.items()
            if not path.rpartition("/")[2].startswith(".")
        )

    def write(self, root: Path) -> None:
        """Creates the files and directories of the image in an empty directory."""
        written: dict[Node, str] = {}
        for path, node in sorted(self.nodes.items(), key=lambda named: named[0]):
            target = f"{root}/{path}"
            if node.is_directory:
                os.mkdir(target)  # noqa: PTH102  (pathlib would take a tenth of the time of a test)
            elif node in written:
                os.link(written[node], target)
            else:
                with open(target, "wb", buffering=0) as file:  # noqa: PTH123
                    file.write(self.contents[node])
                written[node] = target


# That all of it happened is what a killed process leaves, which is tried elsewhere.
EXTREMES: Mapping[str, Callable[[Named], bool]] = {
    "nothing unforced": lambda change: False,
    "only unforced removals": lambda change: change.node is None,
}


def images(survivors: Survivors, top: Node, chance: random.Random, mixes: int) -> Iterator[tuple[str, Image]]:
    """Yields disks that a power loss may leave, with a name: the extremes, and random mixes of durable and lost
    changes."""
    for name, happened in EXTREMES.items():
        yield name, survivors.image(top, happened)
    for number in range(mixes):
        yield f"mix {number}", survivors.image(top, lambda change: chance.random() < 0.5)
