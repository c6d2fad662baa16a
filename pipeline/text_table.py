"""Formats rows as an aligned text table.

Cells may be any text, such as the name of a registry's subject: control and formatting characters are escaped, and the
columns are aligned by the columns of a terminal that the characters take (Unicode Standard Annex #11).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

CELL_WIDTH_MIN = 12  # of a shortened cell: enough of the begin and the end of a name to recognize it
GAP = "  "


def printable(text: str) -> str:
    """Escapes characters that could control the terminal or reorder its text, such as ESC and U+202E, in Python's
    notation."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def display_width(text: str) -> int:
    """Returns the number of terminal columns that printable text takes: two for wide characters such as those of
    Chinese, none for combining characters."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def shortened(text: str, width: int) -> str:
    """Replaces the middle of a text by an ellipsis so that it takes at most `width` columns (at least 1)."""
    if display_width(text) <= width:
        return text
    begin_width = width // 2  # begin and ellipsis; the end of a name tells more than its begin
    begin = _fitting(text, begin_width - 1) if begin_width else ""
    end = _fitting(text[::-1], width - begin_width)[::-1] if begin else _fitting(text[::-1], width - 1)[::-1]
    return f"{begin}…{end}"


def table_lines(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    width_max: int | None = None,
    fixed: Sequence[int] = (),
) -> list[str]:
    """Formats rows of text as a table with aligned columns; returns its lines without line ends, the header first.

    Args:
        right: the indexes of the columns that are aligned to the right.
        width_max: the number of columns of the terminal. Wider tables get shorter cells in the columns that are aligned
            to the left, the widest columns first, but not shorter than `CELL_WIDTH_MIN`. None for no limit.
        fixed: the indexes of the other columns whose cells are never shortened, such as times.
    """
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(display_width(row[i]) for row in cells) for i in range(len(header))]
    if width_max is not None:
        left = [i for i in range(len(header)) if i not in {*right, *fixed}]
        shrunk = _shrunk_widths(widths, left, width_max)
        cells = [[shortened(cell, width) for cell, width in zip(row, shrunk, strict=True)] for row in cells]
        widths = shrunk
    cells.insert(1, ["-" * width for width in widths])
    return [
        GAP.join(
            _padded(cell, width, i in right) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _shrunk_widths(widths: Sequence[int], shrinkable: Sequence[int], width_max: int) -> list[int]:
    """Returns the widths of the columns of a table with at most `width_max` columns, if the shrinkable ones suffice."""
    shrunk = list(widths)
    surplus = sum(widths) + len(GAP) * (len(widths) - 1) - width_max
    while surplus > 0:
        widest = max((i for i in shrinkable if shrunk[i] > CELL_WIDTH_MIN), key=lambda i: shrunk[i], default=None)
        if widest is None:
            break
        shrunk[widest] -= 1
        surplus -= 1
    return shrunk


def _padded(cell: str, width: int, is_right: bool) -> str:
    padding = " " * (width - display_width(cell))
    return padding + cell if is_right else cell + padding


def _fitting(text: str, width: int) -> str:
    """Returns the longest prefix of the text that takes at most `width` columns."""
    taken = 0
    for number, char in enumerate(text):
        taken += _char_width(char)
        if taken > width:
            return text[:number]
    return text


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
