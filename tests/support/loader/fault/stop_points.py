"""Named points of a load at which a test stops the process, to kill it or to wake it up again.

Nothing of this is in the product: a launcher wraps the loader's own functions in the child process. Which point is
meant comes by the environment:

    HEADRACE_TEST_POINT     name of the point
    HEADRACE_TEST_NTH       at which passage, from 1
    HEADRACE_TEST_ANNOUNCE  file to which `<pid> <point>` is appended just before the process stops itself
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

POINT = os.environ.get("HEADRACE_TEST_POINT", "")
NTH = int(os.environ.get("HEADRACE_TEST_NTH", "1"))
ANNOUNCE = os.environ.get("HEADRACE_TEST_ANNOUNCE", "")

_passages = itertools.count(1)


def stop_at(point: str) -> None:
    """Stops this process here if this is the wanted passage of the wanted point; SIGCONT lets it go on."""
    if point != POINT or next(_passages) != NTH:
        return
    descriptor = os.open(ANNOUNCE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{os.getpid()} {point}\n".encode())
    os.close(descriptor)
    os.kill(os.getpid(), signal.SIGSTOP)


def wrap(owner: Any, name: str, point: str, applies: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Puts the points `<point>:before` and `<point>:after` around a function or method.

    Args:
        applies: judges the call's arguments; other calls pass.
    """
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def outer(*arguments: Any, **named: Any) -> Any:
        if not applies(*arguments, **named):
            return inner(*arguments, **named)
        stop_at(f"{point}:before")
        result = inner(*arguments, **named)
        stop_at(f"{point}:after")
        return result

    setattr(owner, name, outer)
