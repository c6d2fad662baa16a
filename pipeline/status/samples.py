"""Samples of numbers over time, which a status compares with the present: a file of JSON lines in the logs.

    {"time_ms":1769845204512,"values":{"data_dir":107374182400}}

Evaluations of the alerts append to it; a status only reads it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.settings.line_file import LineFile

logger = logging.getLogger(__name__)

BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class StatusSample:
    """Numbers by name at a time, in milliseconds since 1970."""

    time_ms: int
    values: Mapping[str, int]


def append_sample(path: Path, now_ms: int, interval_ms: int, read: Callable[[], Mapping[str, int]]) -> None:
    """Appends a sample of the values that `read` returns, unless the newest one is younger than the interval. A failure
    is logged."""
    samples = read_samples(path)
    if samples and 0 <= now_ms - samples[-1].time_ms < interval_ms:
        return
    try:
        values = read()
        path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"time_ms": now_ms, "values": dict(values)}, separators=(",", ":"))
        LineFile(path, BYTES_MAX).append(line.encode() + b"\n")
    except OSError as error:
        logger.warning("sample_not_recorded path=%s error=%s", path, error)


def read_samples(path: Path) -> list[StatusSample]:
    """Returns the recorded samples, oldest first. Ignores lines in another format."""
    found = []
    for file in LineFile(path, BYTES_MAX).files():
        try:
            lines = file.read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                value = json.loads(line)
                values = {str(name): int(number) for name, number in value["values"].items()}
                found.append(StatusSample(int(value["time_ms"]), values))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
    return found
