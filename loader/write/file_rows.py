"""Passes the blocks of a task's files to Spark as rows, for storage that only Spark's JVM can write.

A row is (file, number, block). Spark's text sink writes the rows of each file ordered by number, with the sync marker
as line separator, so blocks are passed without their sync markers. The files are byte for byte those of a local sink.
All files of a write have the same marker, which consists of letters and digits because Spark treats it as text.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import string
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from headrace.loader.write.container import SYNC_BYTES

ROWS_WAITING_MAX = 8  # of about a megabyte each, so that reading and writing overlap
PUT_TIMEOUT_S = 1.0  # interval of checks whether the consumer has stopped

Row = tuple[str, int, bytes]


def new_text_sync() -> str:
    """Returns a sync marker that consists of letters and digits: 95 random bits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(SYNC_BYTES))


def row_file(path: str) -> str:
    """Returns the path of a staged file as one name without directories, which identifies the file in a row."""
    return path.replace("/", "-")


class RowSink:
    """A `BlockSink` that writes no files: it passes the header and the blocks of each file to `put`, as rows (file,
    number, block) of a Spark task. Spark then writes the files."""

    def __init__(self, put: Callable[[Row], None], sync: bytes, task: int) -> None:
        self.directory = f"task-{task:05d}-{secrets.token_hex(8)}"
        self._put = put
        self._sync = sync
        self._number = 0

    def append(self, file: str, data: bytes) -> None:
        assert data.endswith(self._sync), "pieces of a file are its header and whole blocks"
        self._number += 1
        self._put((row_file(f"{self.directory}/{file}"), self._number, data[: -len(self._sync)]))

    def finish(self, files: Sequence[str]) -> None:
        """Does nothing: Spark commits the files with the task."""

    def abandon(self) -> None:
        """Does nothing: no file is open."""

    def scratch(self) -> IO[bytes]:
        return tempfile.TemporaryFile()


class ConsumerStopped(Exception):
    """Raised in the thread that produces rows for `rows_of`, if the consumer of the rows has stopped."""


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


def rows_of(work: Callable[[Callable[[Row], None]], None]) -> Iterator[Row]:
    """Calls `work` in a thread and passes it a function that receives rows. Yields these rows. Raises the exception of
    `work`."""
    rows: queue.Queue[Row | _End] = queue.Queue(ROWS_WAITING_MAX)
    is_stopped = threading.Event()

    def put(row: Row | _End) -> None:
        while not is_stopped.is_set():
            with contextlib.suppress(queue.Full):
                return rows.put(row, timeout=PUT_TIMEOUT_S)
        raise ConsumerStopped

    def run() -> None:
        error: BaseException | None = None
        try:
            work(put)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(ConsumerStopped):
            put(_End(error))

    threading.Thread(target=run, name="headrace-task", daemon=True).start()
    try:
        while not isinstance(row := rows.get(), _End):
            yield row
        if row.error is not None:
            raise row.error
    finally:
        is_stopped.set()
