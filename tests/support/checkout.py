"""Paths in this checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
"""Expected output, in files that are reviewed when they change."""

PACKAGE_LINKS = ROOT / ".make" / "packages"
"""Contains `headrace` with links to all packages, for a Python without the distribution; `make setup` creates it."""
