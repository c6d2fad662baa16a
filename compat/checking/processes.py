"""Work on many schemas in several processes, where that pays.

Processes are forked, so that what was read so far is there without being copied, and only answers travel.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import BinaryIO, TypeVar

ITEMS_PER_PROCESS_MIN = 25
"""Fewer are done before a second process has started (some 10 ms)."""

PROCESSES_MAX = 16

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def answers_of(function: Callable[[Item], Answer], items: Sequence[Item], processes: int | None = None) -> list[Answer]:
    """The answers of a function for items, in their order; every answer must be one that can be pickled.

    What a process that ended without answers (killed, out of memory) should have done is done here, where errors show.
    """
    count = min(processes or usable_cores(), PROCESSES_MAX, max(1, len(items) // ITEMS_PER_PROCESS_MIN))
    if count < 2 or not hasattr(os, "fork"):
        return [function(item) for item in items]
    children = [_forked(function, items[share::count]) for share in range(1, count)]
    found: list[list[Answer]] = [[function(item) for item in items[::count]]]
    for share, (process, stream) in enumerate(children, 1):
        with stream:
            data = stream.read()
        _, status = os.waitpid(process, 0)
        # One that was killed may have written a part.
        part = pickle.loads(data) if status == 0 else [function(item) for item in items[share::count]]  # noqa: S301 - our own child's
        found.append(part)
    return [found[place % count][place // count] for place in range(len(items))]


def _forked(function: Callable[[Item], Answer], items: Sequence[Item]) -> tuple[int, BinaryIO]:
    """A process that writes its answers to the stream."""
    readable, writable = os.pipe()
    process = os.fork()
    if process:
        os.close(writable)
        return process, os.fdopen(readable, "rb")
    code = 1
    try:
        os.close(readable)
        data = pickle.dumps([function(item) for item in items], pickle.HIGHEST_PROTOCOL)
        with os.fdopen(writable, "wb") as stream:
            stream.write(data)
        code = 0
    finally:
        # Not the interpreter's exit: buffers and handlers are the parent's.
        os._exit(code)
