"""Audit log: one JSON line per change by an API request, with its user and client address.

It contains no schemas, metadata or rules, which may hold secrets. Of such settings it has only the name. Changes by
commands on the database and by replication are not in it. Rejected requests are not in it either: otherwise clients
without permissions could push the changes out of a log of limited size.

The line is written after the change is committed and before its response is sent. A line that cannot be written does
not undo the change; it goes to the server log and is counted.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from headrace.registry.names import DEFAULT_CONTEXT, scope_name, scopes_of
from headrace.registry.operation.shared_counts import SharedCounts
from headrace.settings.line_file import LineFile

logger = logging.getLogger(__name__)

STANDARD_ERROR: Final = "-"
BYTES_MAX: Final = 16 * 1024 * 1024
"""Size at which a file is rotated: about 60,000 changes."""
ROTATED_MAX: Final = 9
LINE_BYTES_MAX: Final = 1024 * 1024
LOST: Final = "lost"
FILE_MODE: Final = 0o640
"""The log has names of users and addresses of clients, so that other users of the host must not read it."""


def audit_file(path: Path) -> LineFile:
    """Returns the files of the audit log at `path`."""
    return LineFile(path, BYTES_MAX, ROTATED_MAX, FILE_MODE)


def new_lost_counts(processes: int) -> SharedCounts:
    """Allocates the shared memory in which all worker processes of a server count lines that could not be written. It
    must be created before the workers are forked."""
    return SharedCounts(processes, 1)


class AuditLog:
    """Writes the audit log. Thread-safe."""

    def __init__(
        self,
        target: str,
        lost: SharedCounts | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Opens the log.

        Args:
            target: a file, or "-" for standard error.
            lost: counts the lines that could not be written; shared by all worker processes.
            now_ms: the clock for timestamps, in milliseconds since 1970.

        Raises:
            OSError: the file cannot be opened.
        """
        self._file = None if target == STANDARD_ERROR else audit_file(Path(target))
        self._lost = lost or new_lost_counts(1)
        self._counts_losses = self._lost.claim()
        self._lock = threading.Lock()
        self._now_ms = now_ms
        if self._file is not None:
            self._file.check()

    def write(self, action: str, subject: str | None, details: Mapping[str, Any], origin: Mapping[str, str]) -> None:
        """Writes a line for a committed change of the registry.

        Args:
            action: such as `version_registered`.
            subject: the changed subject or scope; None is the default context.
            details: further fields of the change.
            origin: fields that identify the sender of the request.
        """
        timestamp = datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        changed = {"action": action, "subject": f":{DEFAULT_CONTEXT}:" if subject is None else subject}
        line = json.dumps({"time": timestamp, **origin, **changed, **details}, separators=(",", ":"))
        with self._lock:
            try:
                self._append(line.encode() + b"\n")
            except OSError as error:
                if self._counts_losses:
                    self._lost.numbers()[self._lost.row_offset(LOST)] += 1
                # The change is committed already, so it goes to the server log at least.
                logger.error(
                    "audit_log_not_written cause=%s remedy=append the line to the audit log line=%s", error, line
                )

    def _append(self, line: bytes) -> None:
        if self._file is None:
            os.write(2, line)
        else:
            self._file.append(line)

    def lost_lines(self) -> int:
        """Returns how many lines all worker processes could not write, since the server started."""
        return self._lost.totals().get(LOST, (0,))[0]


def read_history(path: Path, subject: str) -> Iterator[dict[str, Any]]:
    """Yields the changes in the audit log that affect a subject, oldest first: its own, and those of the settings of
    its context and of all contexts. Skips lines in another format.

    Args:
        path: the file of the audit log; rotated files are read too.
        subject: a subject, or a context such as `:.eu:`.

    Raises:
        InvalidSubject: the subject is not valid.
        OSError: a file cannot be read.
    """
    scopes = {f":{DEFAULT_CONTEXT}:" if scope is None else scope for scope in scopes_of(scope_name(subject))}
    for file in audit_file(path).files():
        with file.open("rb") as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                entry = _parsed(line)
                if entry.get("subject") in scopes:
                    yield entry


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}
