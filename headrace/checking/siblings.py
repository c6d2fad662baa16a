"""The schema files beside a file: where a type that it uses and does not define is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.checking.inputs import SUFFIX, read_text

FILES_MAX = 20_000
"""Most files of a folder that are read in search of a type."""


def sibling_texts(path: str) -> Mapping[str, str]:
    """The texts of the other .avsc files in a file's folder."""
    folder = Path(path).parent
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(SUFFIX))[:FILES_MAX]
    except OSError:
        return {}
    prefix = path.rpartition("/")[0]
    found = {}
    for name in names:
        other = f"{prefix}/{name}" if prefix else name
        text = read_text(other) if other != path else None
        if isinstance(text, str):
            found[other] = text
    return found
