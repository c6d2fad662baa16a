"""A disk that is full at one moment of a broker's life: one call that needs space fails, or several in a row."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

NO_CALL = -1


class FullDisk:
    """Simulates a disk that is full: counts the calls below `root` that need space, and makes one of them fail (or it
    and all later ones).

    Attributes:
        full_at: number of the call that fails.
        fails_once: whether later calls succeed.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self.calls: list[str] = []
        self.full_at, self.fails_once = NO_CALL, True
        self.is_watched = False
        self.has_failed = False
        """Since `make_space`."""

    def make_space(self) -> None:
        self.full_at = NO_CALL if self.has_failed else self.full_at
        self.has_failed = False

    def _refuses(self, operation: str, path: object) -> bool:
        if not self.is_watched or not str(path).startswith(self._root):
            return False
        number = len(self.calls)
        self.calls.append(f"{operation} {str(path)[len(self._root) :]}")
        refuses = self.full_at == number or (NO_CALL < self.full_at <= number and not self.fails_once)
        self.has_failed = self.has_failed or refuses
        return refuses

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        real = {
            name: getattr(os, name)
            for name in ("open", "pwritev", "pwrite", "mkdir", "rename", "replace", "link", "unlink")
        }
        real_write_bytes = Path.write_bytes

        def open_file(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & os.O_CREAT and not Path(path).exists() and self._refuses("create", path):
                raise full()
            descriptor: int = real["open"](path, flags, *rest, **named)
            return descriptor

        def pwritev(fd: int, pieces: Sequence[Any], position: int) -> int:
            if self._refuses("write", Path(f"/proc/self/fd/{fd}").readlink()):
                whole = b"".join(map(bytes, pieces))
                real["pwrite"](fd, whole[: len(whole) // 2], position)
                raise full()
            written: int = real["pwritev"](fd, pieces, position)
            return written

        def write_bytes(path: Path, content: bytes) -> int:
            if self._refuses("write", path):
                # The file is created and truncated before the space runs out.
                real_write_bytes(path, content[: len(content) // 2])
                raise full()
            return real_write_bytes(path, content)

        def unlink(path: Any, *rest: Any, **named: Any) -> None:
            if Path(path).exists() and self._refuses("unlink", path):
                raise full()
            real["unlink"](path, *rest, **named)

        def named(name: str) -> Any:
            def call(path: Any, *rest: Any, **named: Any) -> None:
                if self._refuses(name, rest[0] if name != "mkdir" else path):
                    raise full()
                real[name](path, *rest, **named)

            return call

        patch.setattr(os, "open", open_file)
        patch.setattr(os, "pwritev", pwritev)
        patch.setattr(Path, "write_bytes", write_bytes)
        patch.setattr(os, "unlink", unlink)
        for name in ("mkdir", "rename", "replace", "link"):
            patch.setattr(os, name, named(name))


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
