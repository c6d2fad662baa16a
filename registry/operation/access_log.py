"""Access log: one JSON line per response.

It never contains credentials or bodies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from headrace.registry.operation.log_file import LogFile

TEXT_CHARS_MAX: Final = 1000  # per method, path, query and header; longer texts are truncated
HEADERS: Final = {b"user-agent": "agent", b"x-request-id": "request_id", b"x-forwarded-for": "forwarded_for"}
"""Request headers in the log, and their keys in a line."""


class AccessLog:
    """Writes the access log. To be used by one thread only."""

    def __init__(
        self,
        target: str,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Opens the log.

        Args:
            target: a file, or "-" for standard error.
            clock: for the checks whether the file was rotated.
            now_ms: the clock for timestamps, in milliseconds since 1970.

        Raises:
            OSError: the file cannot be opened.
        """
        self._file = LogFile(target, "access log", clock)
        self._now_ms = now_ms
        self._second = -1
        self._second_text = ""

    def write(
        self, scope: Any, status: int, size: int, seconds: float, user: str, *, cached: bool | None = None
    ) -> None:
        """Writes a line for a request and its response.

        Args:
            scope: the ASGI scope of the request.
            status: the status of the response.
            size: the size of the response body, in bytes.
            seconds: the duration of the request.
            user: the user; "" for clients that are anonymous or not authenticated.
            cached: whether the response came from the cache; None of a server without one.
        """
        client = (scope.get("client") or ("",))[0]
        # Formatted without the JSON encoder, which would take half as long as a response from the cache.
        parts = [
            f'{{"time":"{self._time()}","client":{_quoted(client)},"user":{_quoted(user)}',
            f'"method":{_quoted(scope["method"][:TEXT_CHARS_MAX])},"path":{_text(scope["raw_path"])},"query":{_text(scope["query_string"])}',
            f'"status":{status},"bytes":{size},"ms":{seconds * 1000:.3f}',
        ]
        if cached is not None:
            parts.append(f'"cached":{"true" if cached else "false"}')
        # The last value of a repeated header, because JSON parsers disagree about repeated keys.
        found = {name: value for name, value in scope["headers"] if name in HEADERS}
        parts += [f'"{HEADERS[name]}":{_text(value)}' for name, value in found.items()]
        self._file.write_line((",".join(parts) + "}\n").encode())

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
    """Returns the text as a JSON string of ASCII characters."""
    return json.dumps(text)
