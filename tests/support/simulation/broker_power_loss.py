"""The data directories of a broker that a power loss may leave, at any moment of its operations.

Extends `power_loss` to files that are written in place: `Tape` also records every write. Of the writes to a file since
its last fsync, any subset may be on the disk, and a single write may be there partially.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from headrace.broker.log import files, flusher
from support.simulation.power_loss import Forced, Image, Killed, Named, Node, Operation, Recorder, Survivors, pattern

PARTITION = re.compile(r"^[a-z_]+-[0-9]+")
HELPERS = {
    files.sync_file.__code__,
    files.sync_directory.__code__,
    files.write_atomically.__code__,
    flusher.sync_files.__code__,
}


class Inline(Executor):
    """An executor that runs each task at once in the calling thread, so that recorded operations have a fixed order."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@dataclass(frozen=True, slots=True)
class Wrote:
    """An operation: bytes were written to a file at a position. With `content` None the file was truncated there."""

    file: Node
    position: int
    content: bytes | None


@dataclass
class Tape(Recorder):
    """Records a broker's operations on the files below `root`, including writes."""

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        super()._patch(patch)
        real = {name: getattr(os, name) for name in ("pwritev", "pwrite", "ftruncate", "truncate")}

        def pwritev(fd: int, pieces: Sequence[Any], position: int) -> int:
            self._begin()
            written: int = real["pwritev"](fd, pieces, position)
            self._wrote(fd, position, b"".join(bytes(piece) for piece in pieces)[:written])
            return written

        def pwrite(fd: int, content: Any, position: int) -> int:
            self._begin()
            written: int = real["pwrite"](fd, content, position)
            self._wrote(fd, position, bytes(content)[:written])
            return written

        def ftruncate(fd: int, size: int) -> None:
            self._begin()
            real["ftruncate"](fd, size)
            self._wrote(fd, size, None)

        def truncate(path: Any, size: int) -> None:
            self._begin()
            real["truncate"](path, size)
            self._note(Wrote(self._node(self._inside(path)), size, None))  # type: ignore[arg-type]

        def write_bytes(path: Path, content: bytes) -> int:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                return os.pwrite(fd, content, 0)
            finally:
                os.close(fd)

        patch.setattr(Path, "write_bytes", write_bytes)
        patch.setattr(os, "fsync", self._force)
        patch.setattr(os, "fdatasync", self._force)
        for name, function in {"pwritev": pwritev, "pwrite": pwrite, "ftruncate": ftruncate}.items():
            patch.setattr(os, name, function)
        patch.setattr(os, "truncate", truncate)

    def _force(self, fd: int) -> None:
        found = self._descriptors.get(fd)
        if found is None:
            return
        self._begin()
        node, path = found
        site = f"{_caller()} {PARTITION.sub('<partition>', path)}"
        site = f"{pattern(site)}"
        if site != self.without:
            content = None
            if not node.is_directory:
                content = (self.root / path).read_bytes()
            self._note(Forced(node, content, site))
        else:
            self.left_out.append(len(self.operations))

    def _wrote(self, fd: int, position: int, content: bytes | None) -> None:
        found = self._descriptors.get(fd)
        if found is not None:
            self._note(Wrote(found[0], position, content))  # type: ignore[arg-type]

    def _written(self, path: str) -> None:
        known = self._lookup(path)
        if known is None:
            self._name(path, Node())
        elif not (self.root / path).stat().st_size:
            self._note(Wrote(known, 0, None))  # type: ignore[arg-type]


def _caller() -> str:
    """Returns the name of the broker's function that has called fsync."""
    frame = sys._getframe(1)
    while (
        "/broker/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename or frame.f_code in HELPERS
    ):
        assert frame.f_back is not None
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"


@dataclass
class Disk(Survivors):
    """Computes the disks that are possible after each operation: the durable content, and the names and writes that may
    or may not be durable."""

    writes: dict[Node, list[Wrote]] = field(default_factory=dict)

    def after(self, operation: Operation | Wrote) -> None:
        if isinstance(operation, Wrote):
            self.writes.setdefault(operation.file, []).append(operation)
            return
        if isinstance(operation, Forced) and operation.content is not None:
            self.writes.pop(operation.node, None)
        Survivors.after(self, operation)

    def left(
        self, top: Node, named: Callable[[Named], bool], durable_writes: Callable[[list[Wrote]], list[Wrote]]
    ) -> Image:
        """Returns the disk with some of the changes that may be durable.

        Args:
            top: the top directory.
            named: returns whether a change of a name is durable.
            durable_writes: returns those of a file's writes that are durable.
        """
        image = self.image(top, named)
        contents = {
            node: _written(content, durable_writes(self.writes.get(node, [])))
            for node, content in image.contents.items()
        }
        return Image(image.nodes, contents)


def _written(content: bytes, writes: list[Wrote]) -> bytes:
    after = bytearray(content)
    for one in writes:
        if one.content is None:
            after = after[: one.position] + bytes(max(one.position - len(after), 0))
        else:
            after += bytes(max(one.position - len(after), 0))
            after[one.position : one.position + len(one.content)] = one.content
    return bytes(after)


def no_names(_: object) -> bool:
    return False


def all_names(_: object) -> bool:
    return True


def renames(operations: Sequence[object]) -> dict[int, Named]:
    """Finds the renames among the operations. A rename adds the new name and then removes the old one. Returns the
    addition by the `id` of the removal."""
    return {
        id(removed): added
        for added, removed in pairwise(operations)
        if isinstance(added, Named)
        and isinstance(removed, Named)
        and removed.node is None
        and added.source == removed.path
    }


def images(
    disk: Disk, top: Node, chance: random.Random, mixes: int, whole: Mapping[int, Named] = MappingProxyType({})
) -> Iterator[tuple[str, Image]]:
    """Yields disks that a power loss may leave, with a name: everything, as after a kill; only fsynced data; names
    without content; only removals; and random mixes.

    Args:
        mixes: number of mixes.
        whole: additions of names by the `id` of the removal that belongs to the same rename. The two are durable
            together or not at all.
    """

    def random_writes(writes: list[Wrote]) -> list[Wrote]:
        durable = [one for one in writes if chance.random() < 0.6]
        at = chance.randrange(len(durable)) if durable else 0
        if durable and durable[at].content and chance.random() < 0.5:
            torn = durable[at]
            assert torn.content is not None
            durable[at] = Wrote(torn.file, torn.position, torn.content[: chance.randrange(len(torn.content))])
        return durable

    yield "killed", disk.left(top, all_names, list)
    yield "nothing unforced", disk.left(top, no_names, lambda _: [])
    yield "names without content", disk.left(top, all_names, lambda _: [])
    yield "only removals", disk.left(top, lambda change: whole.get(id(change), change).node is None, random_writes)
    for number in range(mixes):
        is_durable: dict[int, bool] = {}

        def mixed(change: Named, is_durable: dict[int, bool] = is_durable) -> bool:
            return is_durable.setdefault(id(whole.get(id(change), change)), chance.random() < 0.5)

        yield f"mix {number}", disk.left(top, mixed, random_writes)


__all__ = ["Disk", "Image", "Inline", "Killed", "Tape", "Wrote", "images", "renames"]
