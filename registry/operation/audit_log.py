"""A line of JSON for each change: who made it, from where, and what it was.

There is no schema, no metadata and no rule in it, since those may hold secrets: of such a setting only the name.
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
    """Thread-safe."""

    def __init__(self, target: str, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        """
        Args:
            target: a file, or "-" for standard error.
            now_ms: the time that lines tell, in milliseconds since 1970.

        Raises:
            OSError: the file cannot be opened.
        """
        self._file = LogFile(target, "audit log")
        self._now_ms = now_ms

    def write(self, action: str, what: Mapping[str, Any], *, user: str, client: str, request_id: str) -> None:
        """One change that has been made.

        Args:
            action: such as `version_registered`.
            what: on what, and how.
            user: who; "" where nobody has to say so.
            client: the address that it came from.
            request_id: as the client called its request; "" for nothing.
        """
        moment = datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        said = {"request_id": request_id} if request_id else {}
        entry = {"time": moment, "user": user, "client": client, **said, "action": action, **what}
        line = json.dumps(entry, separators=(",", ":"))
        if not self._file.put(line.encode() + b"\n"):
            # What was done is done; it must at least be told somewhere.
            logger.error("change not in the audit log: %s", line)

    def close(self) -> None:
        self._file.close()
