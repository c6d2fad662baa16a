"""`headrace load serve`: runs loads one after another in one process, for `headrace up`.

Most of the time of a small load is the start of Python and Spark, so the process and its JVM serve further loads. The
process runs a load only on request:

    <- ready load=waiting      started, without Spark; the first load that needs Spark starts it
    -> load                    a line on standard input requests a load
    <- ended code=0            the load's exit code: 0 or 1, as of `headrace load`
    -> compact                 requests a compaction turn, which ends early if a load is requested
    <- ended code=0            its exit code, as of `headrace compact`

All other output, including the report, goes to standard error. Each load takes the lease, opens the commit log,
connects to brokers, registry and metastore, and reads the settings, as `headrace load` does; only the JVM is reused.

The process ends with exit code 0 at the end of its input. It also ends in these cases, and its parent then starts
another one: after a failed load, with the load's exit code; and with `EXIT_RESTART` when the settings have changed
since the start, when the JVM has ended, when Spark must not stay open after a load (see `may_outlive_load`), when no
load has needed Spark for `loader.spark_idle_timeout`, or at SIGTERM between loads. SIGTERM during a load ends the
process at once, as it ends `headrace load`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from headrace.cli.command import EXIT_OK, settings_from
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.pipeline.load_session import LoadSession

    RunOnce = Callable[[argparse.Namespace, Settings, LoadSession], int]
    """Runs one load in the session, prints its report and returns its exit code."""

    RunTurn = Callable[[argparse.Namespace, Settings, LoadSession, Callable[[], bool]], int]
    """Runs a compaction turn in the session until it is done or the function returns True. Returns its exit code."""

# EX_TEMPFAIL of sysexits.h; `pipeline.up.schedule` then starts another process and repeats the request
EXIT_RESTART: Final = 75
REQUEST_BYTES_MAX: Final = 4096
COMPACT_REQUEST: Final = "compact"


def serve(args: argparse.Namespace, settings: Settings, run_once: RunOnce, run_turn: RunTurn) -> int:
    """Runs a load or a compaction turn for each request on standard input, until the input ends or the process must be
    started again. Returns the exit code.

    Args:
        run_once: runs one load with the given Spark session and returns the exit code of `headrace load`.
        run_turn: runs a compaction turn with this session and returns the exit code of `headrace compact`.
    """
    from headrace.pipeline.load_session import LoadSession, may_outlive_load

    # The environment of the start: a load adds secrets for its tasks, which must not count as changed settings.
    environment = dict(os.environ)
    closing = contextlib.closing(LoadSession(outlives_load=True))
    with (
        _wakeup_by_signals() as wakeup,
        _sigterm_handled_by(_exit_for_restart),
        closing as session,
        _response_stream() as responses,
    ):
        _import_all()
        print("ready load=waiting", file=responses, flush=True)
        last_used_at = time.monotonic()
        requests = _Requests(wakeup)
        while True:
            request = requests.next(_idle_time_left_s(settings, session, last_used_at))
            if request is None:
                return EXIT_OK
            if not request or settings_from(args, environment) != settings or _has_ended(session):
                return EXIT_RESTART
            use_count = session.use_count
            with _sigterm_handled_by(signal.SIG_DFL):
                code = (
                    run_turn(args, settings, session, requests.is_waiting)
                    if request == COMPACT_REQUEST
                    else run_once(args, settings, session)
                )
            sys.stdout.flush()  # print the report before the response
            print(f"ended code={code}", file=responses, flush=True)
            if session.use_count > use_count:
                last_used_at = time.monotonic()
            if session.is_open and not (session.is_alive and may_outlive_load(settings)):
                return EXIT_RESTART
            _collect_garbage(session)


def _collect_garbage(session: LoadSession) -> None:
    """Collects garbage in the JVM of the Spark session and in Python. A SIGTERM that arrives meanwhile is handled
    afterwards, because Python discards an exception that a signal handler raises during a garbage collection."""
    received: list[int] = []
    with _sigterm_handled_by(lambda number, _: received.append(number)):
        session.collect_garbage()
        gc.collect()
    if received:
        _exit_for_restart(signal.SIGTERM, None)


def _response_stream() -> TextIO:
    """Returns a stream on standard output for the responses to load requests. Redirects all other output of this
    process to standard error."""
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return responses


def _import_all() -> None:
    """Imports the modules that loads need. Called before the first request arrives, so that the first load does not
    wait for it."""
    import headrace.hive_ddl.executors.session
    import headrace.hive_ddl.executors.spark
    import headrace.loader.job
    import headrace.loader.run
    import headrace.pipeline.load  # noqa: F401


def _idle_time_left_s(settings: Settings, session: LoadSession, last_used_at: float) -> float | None:
    """Returns the seconds until Spark has been idle for `loader.spark_idle_timeout`, or None if Spark is not running.

    Args:
        last_used_at: time on the monotonic clock at which a load last used Spark.
    """
    if not session.is_open:
        return None
    return max(0.0, last_used_at + settings.loader.spark_idle_timeout.ms / 1000 - time.monotonic())


def _has_ended(session: LoadSession) -> bool:
    return session.is_open and not session.is_alive


class _Requests:
    """The lines on standard input.

    Args:
        wakeup: as `_wakeup_by_signals` gives it.
    """

    def __init__(self, wakeup: socket.socket) -> None:
        self._wakeup = wakeup
        self._lines: list[str] = []

    def next(self, wait_s: float | None) -> str | None:
        """Waits up to `wait_s`, or until a signal arrives, for a request. Returns it, "" if none arrived, or None at
        the end of the input."""
        if not self._lines:
            # Not poll(2): its timeout is limited to 25 days.
            readable, _, _ = select.select([sys.stdin, self._wakeup], (), (), wait_s)
            if sys.stdin not in readable:
                return ""
            self._lines = os.read(sys.stdin.fileno(), REQUEST_BYTES_MAX).decode().split()
        return self._lines.pop(0) if self._lines else None

    def is_waiting(self) -> bool:
        """Whether there is a further request, or the input has ended."""
        return bool(self._lines or select.select([sys.stdin], (), (), 0)[0])


@contextlib.contextmanager
def _wakeup_by_signals() -> Iterator[socket.socket]:
    """Gives a socket that becomes readable when a signal arrives. Without it, select(2) would not end for a signal
    that arrives just before it starts: Python runs the handler only after the call."""
    wakeup, writer = socket.socketpair()
    with wakeup, writer:
        writer.setblocking(False)
        previous = signal.set_wakeup_fd(writer.fileno())
        try:
            yield wakeup
        finally:
            signal.set_wakeup_fd(previous)


@contextlib.contextmanager
def _sigterm_handled_by(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _exit_for_restart(number: int, frame: FrameType | None) -> NoReturn:
    """Handles SIGTERM between loads: ends the process normally, so that the JVM can clean up. A load may have been
    requested just before; it has not started, so the parent can request it again. The arguments are those of every
    signal handler, and are not used."""
    raise SystemExit(EXIT_RESTART)
