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


def describe_run(*more: str) -> str:
    """Returns a line about the run: the date, the machine, Python's version, and further facts given by `more`."""
    machine = (f"{os.cpu_count()} cores", platform.machine(), f"Python {platform.python_version()}")
    return ", ".join((time.strftime("%Y-%m-%d"), *machine, *more))


def append_result(name: str, about: str, body: str, directory: Path = RESULTS) -> None:
    """Appends a result of a benchmark to its file in `bench/results`.

    Args:
        name: name of the file, without .md.
        about: the line above the result, see `describe_run`.
        body: the result as Markdown.
    """
    directory.mkdir(exist_ok=True)
    with (directory / f"{name}.md").open("a", encoding="utf-8") as file:
        file.write(f"{about}\n\n{body.rstrip()}\n\n")


def as_printed(lines: list[str]) -> str:
    """Returns printed lines as a code block of Markdown."""
    return "\n".join(("```", *lines, "```"))
