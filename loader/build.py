"""Which build runs here: drivers put it into their work units and tasks compare it with their own."""

from __future__ import annotations

import importlib.metadata
import sys

from headrace.loader import native


def current_build() -> str:
    """Release, Python and projection of this process; rows must not depend on which of a pool's machines made them."""
    try:
        release = importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        release = "not installed"
    python = ".".join(str(part) for part in sys.version_info[:2])
    return f"headrace {release}, Python {python}, {native.BUILD} projection"
