"""A line of JSON for each answer: who asked what, and how it went.

Neither headers with credentials nor bodies are in it. Lines of several processes go to one file in append mode, each
with one write, so they do not mix. A file that was moved away, as log rotation does, is opened anew within a second.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

STANDARD_ERROR: Final = "-"
TEXT_CHARS_MAX: Final = 1000  # of a method, a path, a query and a header; what is longer is cut
REOPEN_S: Final = 1.0
HEADERS: Final = {b"user-agent": "agent", b"x-request-id": "request_id", b"x-forwarded-for": "forwarded_for"}
"""Headers that are written, and what they are called in a line."""


class AccessLog:
    """Used by one thread."""

    def __init__(
        self,
        target: str,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """
        Args:
            target: a file, or `STANDARD_ERROR`.
            clock: for looking whether the file was moved.
            now_ms: the time that lines tell, in milliseconds since 1970.

        Raises:
            OSError: the file cannot be opened.
        """
        self._path = None if target == STANDARD_ERROR else Path(target)
        self._clock = clock
        self._now_ms = now_ms
        self._second = -1
        self._second_text = ""
        self._look_at = clock() + REOPEN_S
        self._fails = False
        self._descriptor = 2 if self._path is None else _opened(self._path)

    def write(self, scope: Any, status: int, size: int, seconds: float, user: str, *, cached: bool) -> None:
        """One line.

        Args:
            scope: the request as ASGI has it.
            status: of the answer.
            size: of its body, in bytes.
            seconds: that it took.
            user: who asked; "" for nobody known.
            cached: whether the answer was one from before.
        """
        client = (scope.get("client") or ("",))[0]
        # Put together by hand, since the encoder takes half as long as answering from the cache does.
        parts = [
            f'{{"time":"{self._time()}","client":{_quoted(client)},"user":{_quoted(user)}',
            f'"method":{_quoted(scope["method"][:TEXT_CHARS_MAX])},"path":{_text(scope["raw_path"])},"query":{_text(scope["query_string"])}',
            f'"status":{status},"bytes":{size},"ms":{seconds * 1000:.3f},"cached":{"true" if cached else "false"}',
        ]
        # Of a header that comes twice the last, since readers of JSON differ about a key that comes twice.
        said = {name: value for name, value in scope["headers"] if name in HEADERS}
        parts += [f'"{HEADERS[name]}":{_text(value)}' for name, value in said.items()]
        self._put((",".join(parts) + "}\n").encode())

    def _time(self) -> str:
        second, millisecond = divmod(self._now_ms(), 1000)
        if second != self._second:
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_text}.{millisecond:03d}Z"

    def close(self) -> None:
        if self._path is not None:
            os.close(self._descriptor)

    def _put(self, line: bytes) -> None:
        try:
            self._follow_rotation()
            os.write(self._descriptor, line)
        except OSError as error:
            # The registry goes on without a log rather than not at all.
            if not self._fails:
                logger.error("access log not written: cause=%s", error)
            self._fails = True
        else:
            self._fails = False

    def _follow_rotation(self) -> None:
        now = self._clock()
        if self._path is None or now < self._look_at:
            return
        self._look_at = now + REOPEN_S
        if not _is_at(self._descriptor, self._path):
            opened = _opened(self._path)
            os.close(self._descriptor)
            self._descriptor = opened


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _text(value: bytes) -> str:
    return _quoted(value[:TEXT_CHARS_MAX].decode("latin-1"))


def _quoted(text: str) -> str:
    """As JSON, in ASCII."""
    return json.dumps(text)
