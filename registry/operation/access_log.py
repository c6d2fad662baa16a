"""A line of JSON for each answer: who asked what, and how it went.

Neither headers with credentials nor bodies are in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from headrace.registry.operation.log_file import LogFile

TEXT_CHARS_MAX: Final = 1000  # of a method, a path, a query and a header; what is longer is cut
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
            target: a file, or "-" for standard error.
            clock: for looking whether the file was moved.
            now_ms: the time that lines tell, in milliseconds since 1970.

        Raises:
            OSError: the file cannot be opened.
        """
        self._file = LogFile(target, "access log", clock)
        self._now_ms = now_ms
        self._second = -1
        self._second_text = ""

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
        self._file.put((",".join(parts) + "}\n").encode())

    def _time(self) -> str:
        second, millisecond = divmod(self._now_ms(), 1000)
        if second != self._second:
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_text}.{millisecond:03d}Z"

    def close(self) -> None:
        self._file.close()


def _text(value: bytes) -> str:
    return _quoted(value[:TEXT_CHARS_MAX].decode("latin-1"))


def _quoted(text: str) -> str:
    """As JSON, in ASCII."""
    return json.dumps(text)
