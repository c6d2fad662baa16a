"""Named points of a load at which a test stops the process, to kill or resume it.

The product contains no stop points: a launcher wraps the loader's functions in the child process. Variables of the
environment select the point:

    HEADRACE_TEST_POINT     name of the point
    HEADRACE_TEST_NTH       at which passage, from 1
    HEADRACE_TEST_ANNOUNCE  file to which `<pid> <point>` is appended just before the process stops itself
    HEADRACE_TEST_CONTROL   file with these three values, instead of the variables, for processes that run several loads
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
    """The selected stop point.

    Attributes:
        point: its name.
        nth: at which passage the process stops, from 1.
        announce: the file to which the stopped process appends its id and the point.
        load: number of the load that stops, for a process that runs several.
    """

    point: str
    nth: int
    announce: str
    load: int = 0


_passages: Counter[Stop] = Counter()


def write_control(path: Path, stop: Stop) -> None:
    """Replaces the control file atomically."""
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
    """Stops this process with SIGSTOP if `point` is the selected one and this is the selected passage. SIGCONT resumes
    it."""
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
        applies: returns, for the call's arguments, whether the call is a passage.
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
