"""Rows in any order reach the files in ranges with growing offsets."""

from __future__ import annotations

from typing import Any, cast

from headrace.loader.rewrite.replayed_rows import _adding_rows
from headrace.loader.work_unit import FileKind


class Rows:
    """Replaces `RangeRows`, which requires growing offsets. Records the offsets and the number of `limit_memory`
    calls."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.limited = 0

    def add(self, kind: FileKind, time_partition: str, offset: int, row: bytes) -> None:
        self.offsets.append(offset)

    def limit_memory(self) -> None:
        self.limited += 1

    def finish_into(self, into: Any) -> None:
        into.append(self.offsets)


def test_a_repeated_offset_begins_another_range_and_buffers_are_flushed_after_each_row() -> None:
    """Merged files may contain an offset twice: of the log before and after its truncation."""
    finished: list[list[int]] = []
    made: list[Rows] = []

    def new_rows(partition: int) -> Any:
        made.append(Rows())
        return made[-1]

    with _adding_rows(cast(Any, finished), new_rows) as add:
        for partition, offset in ((0, 1), (0, 2), (1, 2), (0, 2), (0, 3), (0, 1)):
            add(partition, FileKind.DATA, "b", offset, b"")
    assert sorted(finished) == [[1], [1, 2], [2], [2, 3]]
    assert [rows.limited for rows in made] == [len(rows.offsets) for rows in made]
