"""The version of this distribution, which only this module states, and the git commit that it was built from.

`setup.py` reads this module before anything is installed, so it imports the standard library only.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

VERSION = "0.1.0"

COMMIT_FILE = "commit.txt"
"""File in the installed package `headrace` with the commit; written when a wheel is built."""

GIT_TIMEOUT_S = 10.0


@cache
def commit_id() -> str:
    """Returns the git commit of this installation, 40 hexadecimal digits; with `-dirty` if files of the commit were
    changed; "" if it is not known. In a checkout it is that of the checkout, as of the first call."""
    package = Path(__file__).resolve().parent
    try:
        return (package / COMMIT_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return checkout_commit(package.parent)


def checkout_commit(checkout: Path) -> str:
    """Returns the git commit of a checkout, see `commit_id`; "" if the directory is no checkout or git is missing."""
    if not (checkout / ".git").exists():  # git would search the parent directories
        return ""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(
            command, cwd=checkout, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.decode("ascii", "replace").strip()
