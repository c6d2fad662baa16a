"""Audit log: one JSON line per change by an API request, with its user and client address.

It contains no schemas, metadata or rules, which may hold secrets. Of such settings it has only the name. Changes by
commands on the database and by replication are not in it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.registry.operation.log_file import LogFile

logger = logging.getLogger(__name__)


class AuditLog:
    """Writes the audit log. Thread-safe."""

    def __init__(self, target: str, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        """Opens the log.

        Args:
            target: a file, or "-" for standard error.
            now_ms: the clock for timestamps, in milliseconds since 1970.

        Raises:
            OSError: the file cannot be opened.
        """
        self._file = LogFile(target, "audit log")
        self._now_ms = now_ms

    def write(self, action: str, details: Mapping[str, Any], *, user: str, client: str, request_id: str) -> None:
        """Writes a line for a committed change of the registry.

        Args:
            action: such as `version_registered`.
            details: the changed object and its new values.
            user: the user; "" in a registry without a users file.
            client: the address of the client.
            request_id: the client's X-Request-ID; "" without one.
        """
        timestamp = datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        ids = {"request_id": request_id} if request_id else {}
        entry = {"time": timestamp, "user": user, "client": client, **ids, "action": action, **details}
        line = json.dumps(entry, separators=(",", ":"))
        if not self._file.write_line(line.encode() + b"\n"):
            # The change is committed already, so it goes to the server log at least.
            logger.error("audit_log_not_written remedy=append the line to the audit log line=%s", line)

    def close(self) -> None:
        self._file.close()
