"""Fixtures of the broker's in-process tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.memory_directory import memory_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory. A broker fsyncs most of its writes, and each would take milliseconds on a disk."""
    with memory_directory("broker") as directory:
        yield directory
