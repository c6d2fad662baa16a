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
    return f"headrace {release}, Python {python}, {native.build()} projection"


def why_slow() -> tuple[str, ...]:
    """A sentence where the compiled core is missing, nothing where it is there."""
    if native.the_core() is not None:
        return ()
    return (
        f"rows are made by the Python reference, which takes several times as long as the compiled core: "
        f"{native.why_no_core()}; `make setup` or a wheel for this machine brings it",
    )
