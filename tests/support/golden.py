"""Golden files: expected text in `tests/golden/`, for reports and for the messages of many error cases.

`HEADRACE_REWRITE_GOLDEN=1` rewrites the files of the tests that run; their diff is reviewed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from support.checkout import GOLDEN


def check_golden(name: str, found: str) -> None:
    """Compares text with a golden file.

    Args:
        name: the file's path below `tests/golden/`.
        found: the text of this run, without anything that differs between runs.
    """
    path = GOLDEN / name
    if os.environ.get("HEADRACE_REWRITE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    assert found == expected, f"{path} differs; HEADRACE_REWRITE_GOLDEN=1 rewrites it"


def check_messages(name: str, messages: Mapping[str, str]) -> None:
    """Compares the messages of many cases with `tests/golden/messages/<name>.txt`, which has a line per case.

    Args:
        name: the file's name without its suffix.
        messages: the message of each case by the case's name.
    """
    lines = (f"{case}: {message.replace(chr(10), chr(10) + '    ')}\n" for case, message in messages.items())
    check_golden(f"messages/{name}.txt", "".join(lines))
