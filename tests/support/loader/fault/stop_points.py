"""Named points of a load at which a test stops the process, to kill it or to wake it up again.

Nothing of this is in the product: a launcher wraps the loader's own functions in the child process. Which point is
meant comes by the environment:

    HEADRACE_TEST_POINT     name of the point
    HEADRACE_TEST_NTH       at which passage, from 1
    HEADRACE_TEST_ANNOUNCE  file to which `<pid> <point>` is appended just before the process stops itself
    HEADRACE_TEST_CONTROL   file with all of that, in place of the other three, for processes that see several loads
"""

from __future__ import annotations

import functools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

CONTROL = "HEADRACE_TEST_CONTROL"


class Stop(NamedTuple):
    """Where to stop in the load of that number."""

    point: str
    nth: int
    announce: str
    load: int = 0


_passages: Counter[Stop] = Counter()


def write_control(path: Path, stop: Stop) -> None:
    """Replaces the control file as a whole, so that a reader finds the old or the new one."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps(stop))
    written.replace(path)


def wanted() -> Stop:
    control = os.environ.get(CONTROL)
    if control:
        return Stop(*json.loads(Path(control).read_text()))
    nth = int(os.environ.get("HEADRACE_TEST_NTH", "1"))
    return Stop(os.environ.get("HEADRACE_TEST_POINT", ""), nth, os.environ.get("HEADRACE_TEST_ANNOUNCE", ""))


def stop_at(point: str) -> None:
    """Stops this process here if this is the wanted passage of the wanted point; SIGCONT lets it go on."""
    stop = wanted()
    if point != stop.point:
        return
    _passages[stop] += 1
    if _passages[stop] != stop.nth:
        return
    descriptor = os.open(stop.announce, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
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
