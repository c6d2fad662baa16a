"""The blocks of a task's files as rows, for Spark to write where only its JVM can.

A row is (file, number, block): Spark's text sink writes the rows of each file in the order of their numbers, with the
sync marker after each, so a block goes without its own. Files are byte for byte what a local sink would have written.
The marker is one for all files of a write, and of letters and digits, since Spark takes it for text.
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

ROWS_WAITING_MAX = 8  # of about a megabyte, so that reading and writing go on beside each other
LOOK_S = 1.0  # at whether anybody still takes the rows

Row = tuple[str, int, bytes]


def new_text_sync() -> str:
    """A sync marker that is text: 95 bits of chance."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(SYNC_BYTES))


def row_file(path: str) -> str:
    """What rows call a staged file: its path as one name."""
    return path.replace("/", "-")


class RowSink:
    """A `BlockSink` that hands rows on."""

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
        """Spark commits them with the task."""

    def abandon(self) -> None:
        """Nothing is open."""

    def scratch(self) -> IO[bytes]:
        return tempfile.TemporaryFile()


class NobodyReads(Exception):
    """The rows are not wanted any more."""


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


def rows_of(work: Callable[[Callable[[Row], None]], None]) -> Iterator[Row]:
    """The rows that the work puts, while it goes on in a thread of its own; what it raises is raised here."""
    rows: queue.Queue[Row | _End] = queue.Queue(ROWS_WAITING_MAX)
    is_left = threading.Event()

    def put(row: Row | _End) -> None:
        while not is_left.is_set():
            with contextlib.suppress(queue.Full):
                return rows.put(row, timeout=LOOK_S)
        raise NobodyReads

    def run() -> None:
        error: BaseException | None = None
        try:
            work(put)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(NobodyReads):
            put(_End(error))

    threading.Thread(target=run, name="headrace-task", daemon=True).start()
    try:
        while not isinstance(row := rows.get(), _End):
            yield row
        if row.error is not None:
            raise row.error
    finally:
        is_left.set()
