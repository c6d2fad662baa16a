"""What a bench measured, kept in `bench/results` below what earlier runs did: the flag `--keep`."""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"


def add_keep_flag(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--keep", action="store_true", help=f"add what is measured to bench/results/{name}.md")


def surroundings(*more: str) -> str:
    """When and on what this runs, in one line."""
    here = (f"{os.cpu_count()} cores", platform.machine(), f"Python {platform.python_version()}")
    return ", ".join((time.strftime("%Y-%m-%d"), *here, *more))


def keep(name: str, about: str, body: str, directory: Path = RESULTS) -> None:
    """Adds what was measured, as Markdown; `about` is a line above it."""
    directory.mkdir(exist_ok=True)
    with (directory / f"{name}.md").open("a", encoding="utf-8") as file:
        file.write(f"{about}\n\n{body.rstrip()}\n\n")


def as_printed(lines: list[str]) -> str:
    """Lines that are no table."""
    return "\n".join(("```", *lines, "```"))
