"""The user's own directories. There may be none: a container may run as a number without a name, and no HOME."""

from __future__ import annotations

import os
from pathlib import Path


def home_directory() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


def state_directory() -> Path | None:
    """For what is kept between two runs: XDG_STATE_HOME, or where it is without that."""
    given, home = os.environ.get("XDG_STATE_HOME", ""), home_directory()
    if given:
        return Path(given)
    return None if home is None else home / ".local" / "state"
