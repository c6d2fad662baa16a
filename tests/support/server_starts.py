"""How long the servers of the tests took to start, by kind, for the end of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from statistics import median

START_SECONDS: dict[str, list[float]] = {}
"""What this process noted. `tests/conftest.py` brings together what the workers of pytest-xdist did."""


@contextmanager
def timed_start(kind: str) -> Iterator[None]:
    """Notes how long the block takes, unless it fails: that is no start."""
    began = time.monotonic()
    yield
    note_starts({kind: [time.monotonic() - began]})


def note_starts(seconds: Mapping[str, Sequence[float]]) -> None:
    for kind, more in seconds.items():
        START_SECONDS.setdefault(kind, []).extend(more)


def kind_of(arguments: Sequence[str]) -> str:
    """What a command of ours starts: `headrace registry serve`, whatever its flags."""
    return " ".join(takewhile(lambda word: not word.startswith("-"), arguments))


def start_lines(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """One line per kind of server. `tools/run_tiers.py` looks for their first words."""
    return [f"servers started: {kind} {_times(noted)}" for kind, noted in sorted(seconds.items())]


def _times(seconds: Sequence[float]) -> str:
    if len(seconds) == 1:
        return f"once, {seconds[0]:.1f} s"
    return f"{len(seconds)} times, {median(seconds):.1f} s in the middle, {max(seconds):.1f} s at most"
