"""Appends the results of a benchmark to `bench/results`: the flag `--keep`."""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"


def add_keep_flag(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--keep", action="store_true", help=f"append the results to bench/results/{name}.md")


def surroundings(*more: str) -> str:
    """Returns date and machine in one line."""
    here = (f"{os.cpu_count()} cores", platform.machine(), f"Python {platform.python_version()}")
    return ", ".join((time.strftime("%Y-%m-%d"), *here, *more))


def keep(name: str, about: str, body: str, directory: Path = RESULTS) -> None:
    """Appends results as Markdown, after the line `about`."""
    directory.mkdir(exist_ok=True)
    with (directory / f"{name}.md").open("a", encoding="utf-8") as file:
        file.write(f"{about}\n\n{body.rstrip()}\n\n")


def as_printed(lines: list[str]) -> str:
    """Formats plain lines as Markdown."""
    return "\n".join(("```", *lines, "```"))
