"""In which pieces rows of any order reach the files."""

from __future__ import annotations

from typing import Any, cast

from headrace.loader.rewrite.replayed_rows import _adding
from headrace.loader.work_unit import FileKind


class Rows:
    """Stands in for `RangeRows`, which wants growing offsets: what it was given, and how often it could make room."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.limited = 0

    def add(self, kind: FileKind, time_partition: str, offset: int, row: bytes) -> None:
        self.offsets.append(offset)

    def limit_memory(self) -> None:
        self.limited += 1

    def finish_into(self, into: Any) -> None:
        into.append(self.offsets)


def test_an_offset_that_comes_again_begins_another_piece_and_room_is_made_behind_every_row() -> None:
    """Files that were merged hold an offset of a log before and after it was cut back."""
    finished: list[list[int]] = []
    made: list[Rows] = []

    def new_rows(partition: int) -> Any:
        made.append(Rows())
        return made[-1]

    with _adding(cast(Any, finished), new_rows) as add:
        for partition, offset in ((0, 1), (0, 2), (1, 2), (0, 2), (0, 3), (0, 1)):
            add(partition, FileKind.DATA, "b", offset, b"")
    assert sorted(finished) == [[1], [1, 2], [2], [2, 3]]
    assert [rows.limited for rows in made] == [len(rows.offsets) for rows in made]
