"""Where a type that a file uses and does not define is looked for, when it is in none of the files that were named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.checking.inputs import SUFFIX, find_files, is_file, read_text

FILES_MAX = 20_000
"""Most files that are read in search of a type."""


def sibling_texts(path: str) -> Mapping[str, str]:
    """The texts of the other .avsc files in a file's folder."""
    folder = Path(path).parent
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(SUFFIX))
    except OSError:
        return {}
    prefix = path.rpartition("/")[0]
    others = [f"{prefix}/{name}" if prefix else name for name in names]
    return _texts([other for other in others if other != path and is_file(other)])


def neighbour_texts(path: str) -> Mapping[str, str]:
    """The texts of all .avsc files below the working folder, for a file that lies there itself."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        return {}
    return _texts([file.path for file in find_files(["."]).files])


def _texts(paths: list[str]) -> dict[str, str]:
    found = {}
    for path in paths[:FILES_MAX]:
        text = read_text(path)
        if isinstance(text, str):
            found[path] = text
    return found


SEARCHED = (sibling_texts, neighbour_texts)
