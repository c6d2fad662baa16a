"""Formats rows as an aligned text table."""

from __future__ import annotations

from collections.abc import Sequence


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Formats rows of text as a table with aligned columns; returns its lines without line ends, the header first.
    `right` are the indexes of the columns that are aligned to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
