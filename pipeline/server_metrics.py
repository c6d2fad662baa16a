"""Numbers of the servers of `headrace up` that are a Python process with a JVM: heap, and queries of the SQL server.

Each server writes them every `INTERVAL_S` to a file in the logs, such as `logs/sql.metrics.json`; `headrace status` and
the console's `/metrics` read it. So a JVM that hangs delays no reader: its file becomes old, and counts as missing.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 15.0
AGE_MS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True)
class QueryTotals:
    """Queries that run now, and that have ended since the start of the server."""

    running: int
    succeeded: int
    failed: int


@dataclass(frozen=True, slots=True)
class JvmMetrics:
    """The numbers of a server at a time, in milliseconds since 1970. `pid` is its process; `queries` is None for a
    server without queries."""

    pid: int
    time_ms: int
    heap_used_bytes: int
    heap_max_bytes: int
    queries: QueryTotals | None = None


class QueryCounts:
    """Counts queries. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = QueryTotals(0, 0, 0)

    def begin(self) -> None:
        self._add(running=1)

    def end(self, *, is_failed: bool) -> None:
        self._add(running=-1, failed=int(is_failed), succeeded=int(not is_failed))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts a query that runs while the context is open. It has failed if the context ends with an error."""
        self.begin()
        try:
            yield
        except BaseException:
            self.end(is_failed=True)
            raise
        self.end(is_failed=False)

    def totals(self) -> QueryTotals:
        return self._totals

    def _add(self, **changes: int) -> None:
        with self._lock:
            values = {name: getattr(self._totals, name) + number for name, number in changes.items()}
            self._totals = dataclasses.replace(self._totals, **values)


def metrics_path(log_dir: Path, part: str) -> Path:
    return log_dir / f"{part}.metrics.json"


def publish_metrics(path: Path, jvm: Any, stop: threading.Event, counts: QueryCounts | None = None) -> None:
    """Starts a thread that writes the metrics of this process until `stop` is set or the JVM has ended.

    Args:
        path: the file, of `metrics_path`.
        jvm: py4j's view of the JVM.
        stop: the event that ends the server.
        counts: the queries; None for a server without queries.
    """
    read = counts.totals if counts is not None else lambda: None
    threading.Thread(target=_publish, args=(path, jvm, stop, read), name="metrics", daemon=True).start()


def _publish(path: Path, jvm: Any, stop: threading.Event, queries: Callable[[], QueryTotals | None]) -> None:
    from py4j.protocol import Py4JError

    while True:
        try:
            runtime = jvm.java.lang.Runtime.getRuntime()
            used, most = int(runtime.totalMemory()) - int(runtime.freeMemory()), int(runtime.maxMemory())
        except (Py4JError, OSError):  # the JVM has ended, which the main thread reports
            return
        metrics = JvmMetrics(os.getpid(), time.time_ns() // 1_000_000, used, most, queries())
        try:
            partial = path.with_suffix(".part")
            partial.write_text(json.dumps(dataclasses.asdict(metrics)), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            logger.warning("metrics_not_written path=%s error=%s", path, error)
        if stop.wait(INTERVAL_S):
            return


def read_metrics(path: Path, pid: int, now_ms: int) -> JvmMetrics | None:
    """Returns the newest metrics of a server; None if it has written none for `AGE_MS_MAX`.

    Args:
        pid: the process of the server. Metrics of an earlier process are ignored.
        now_ms: the current time.
    """
    try:
        value = json.loads(path.read_bytes())
        queries = value.pop("queries")
        metrics = JvmMetrics(**value, queries=None if queries is None else QueryTotals(**queries))
        is_current = metrics.pid == pid and abs(now_ms - metrics.time_ms) <= AGE_MS_MAX
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return metrics if is_current else None
