"""Golden files: expected texts under tests/golden, which HEADRACE_REWRITE_GOLDEN=1 rewrites."""

from __future__ import annotations

import os
from collections.abc import Iterable

from support.checkout import GOLDEN

REWRITES = os.environ.get("HEADRACE_REWRITE_GOLDEN") == "1"


def golden(path: str, text: str) -> str:
    """Returns the expected text of a file under tests/golden, or "" if the file does not exist.

    With HEADRACE_REWRITE_GOLDEN=1 it writes `text` to the file first. A test asserts `text == golden(path, text)`.
    """
    file = GOLDEN / path
    if REWRITES:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return file.read_text(encoding="utf-8") if file.exists() else ""


def case_lines(cases: Iterable[tuple[object, object]]) -> str:
    """Returns the text of a golden file of cases: a line with the name of each case, and its result indented below.

    Several cases may have the same name. A result may have several lines.
    """
    return "".join(
        f"{case}\n" + "".join(f"    {line}".rstrip() + "\n" for line in str(result).splitlines())
        for case, result in cases
    )
