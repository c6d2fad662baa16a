"""Servers that the tests of a module share, although some of these tests end them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def shared(
    start: Callable[[], T], is_running: Callable[[T], bool], end: Callable[[T], object]
) -> Iterator[Callable[[], T]]:
    """Yields a function that returns the running server. The first call starts it, and so does the first call after a
    test ended it: tests therefore pass in any order.

    Args:
        end: called at the end for each server that was started, including those that a test ended.
    """
    started: list[T] = []

    def get() -> T:
        if not started or not is_running(started[-1]):
            started.append(start())
        return started[-1]

    try:
        yield get
    finally:
        for server in reversed(started):
            end(server)
