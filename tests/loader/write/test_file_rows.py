"""Rows with their sync markers, concatenated, equal the files of a local sink byte for byte."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.storage.protocols import BlockSink
from headrace.loader.work_unit import FileKind, FileRange
from headrace.loader.write.container import ContainerFormat
from headrace.loader.write.file_rows import ROWS_WAITING_MAX, Row, RowSink, new_text_sync, row_file, rows_of
from headrace.loader.write.task_files import TaskFiles

SYNC = b"0123456789abcdef"


def write(sink: BlockSink) -> list[str]:
    """Writes three files of several blocks alternately."""
    files = TaskFiles(
        sink, lambda *_: ContainerFormat('"bytes"', "deflate", SYNC), {}, block_bytes=20, file_bytes_target=10**6
    )
    for number in range(12):
        key = (FileKind.DATA, "t", f"dt={number % 3}")
        files.add_rows(key, bytes([14, number, *SYNC[:6]]) * 3, FileRange(0, number, number, 3))
    return [file.path for file in files.finish()]


def test_rows_with_sync_markers_equal_the_local_files(tmp_path: Path) -> None:
    local = LocalSink(str(tmp_path), 7)
    expected = [(tmp_path / path).read_bytes() for path in write(local)]
    rows: list[Row] = []
    paths = write(RowSink(rows.append, SYNC, 7))
    written: dict[str, bytes] = defaultdict(bytes)
    for file, _, block in sorted(rows, key=lambda row: row[:2]):
        written[file] += block + SYNC
    assert [written[row_file(path)] for path in paths] == expected
    assert len({row[:2] for row in rows}) == len(rows)
    assert not any(block.endswith(SYNC) for _, _, block in rows)


def test_file_names_of_attempts_differ() -> None:
    first, second = (RowSink(lambda row: None, SYNC, 4).directory for _ in "ab")
    assert first != second
    assert re.fullmatch(r"task-00004-[0-9a-f]{16}-000001\.avro", row_file(f"{first}/000001.avro"))


def test_sync_markers_are_text_and_differ() -> None:
    one, other = new_text_sync(), new_text_sync()
    assert one != other
    assert re.fullmatch(r"[A-Za-z0-9]{16}", one)


def test_rows_are_in_order_and_few_are_buffered(tmp_path: Path) -> None:
    put_so_far = []

    def work(put: Callable[[Row], None]) -> None:
        for number in range(100):
            put(("a", number, b""))
            put_so_far.append(number)

    for consumed, row in enumerate(rows_of(work), 1):
        assert row[1] == consumed - 1
        assert len(put_so_far) <= consumed + ROWS_WAITING_MAX


def test_errors_of_the_task_are_raised() -> None:
    def work(put: Callable[[Row], None]) -> None:
        put(("a", 1, b""))
        raise ValueError("no")

    rows = rows_of(work)
    assert next(rows)[1] == 1
    with pytest.raises(ValueError, match="no"):
        next(rows)


def test_a_task_ends_when_its_rows_are_not_consumed() -> None:
    ended = threading.Event()

    def work(put: Callable[[Row], None]) -> None:
        try:
            for number in range(1_000):
                put(("a", number, b""))
        finally:
            ended.set()

    rows = rows_of(work)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert ended.wait(30)
