"""Where things are in this checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
"""Files that say what is expected, for people to read."""

PACKAGES = ROOT / ".make" / "packages"
"""The rooms as the package that they are when installed, for a Python without it; `make setup` leaves it."""
