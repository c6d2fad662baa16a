"""`headrace load serve`: one load after the other in one process, as `headrace up` asks for them.

What takes most of the time of a small load is the start of Python and of Spark, so both stay for the next one. The
process does nothing by itself:

    <- ready load=waiting      it has begun, without Spark: that is started by the first load that needs it
    -> load                    a line on standard input asks for a load
    <- ended code=0            how it ended: 0 or 1, as the command does

All else, the report among it, goes to standard error. One load at a time holds the lease, opens the commit log, asks
brokers, registry and metastore and reads the settings as the command does; only the JVM stays. Whatever speaks against
going on ends the process, for whoever started it to start another: a load that could not run, with its own code;
settings that are others than at the start, a JVM that has ended, and `loader.spark_idle_timeout` after the last load
that needed Spark, with `EXIT_RESTART`. In the middle of a load SIGTERM ends it on the spot, as it does the command.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import signal
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

EXIT_RESTART: Final = 75  # EX_TEMPFAIL of sysexits.h; `pipeline.up.schedule` starts another one, and asks that
WORD_BYTES_MAX: Final = 4096


def serve(args: argparse.Namespace, settings: Settings, run_once: RunOnce) -> int:
    """Serves until standard input ends; the exit code."""
    from headrace.pipeline.load_session import LoadSession, may_outlive_load

    environment = dict(os.environ)  # a load puts secrets into it, for its tasks, which are not the settings of the next
    closing = contextlib.closing(LoadSession(outlives_load=True))
    with _at_sigterm(_end), closing as session, _answers() as answers:
        _import_all()
        print("ready load=waiting", file=answers, flush=True)
        used_at = time.monotonic()
        while (is_asked := _is_asked(_rest_s(settings, session, used_at))) is not None:
            if not is_asked or settings_from(args, environment) != settings or _has_died(session):
                return EXIT_RESTART
            metastore_uses = session.metastore_uses
            with _at_sigterm(signal.SIG_DFL):
                code = run_once(args, settings, session)
            sys.stdout.flush()  # the report, before anybody looks for it
            print(f"ended code={code}", file=answers, flush=True)
            if session.metastore_uses > metastore_uses:
                used_at = time.monotonic()
            if session.is_open and not (session.is_alive and may_outlive_load(settings)):
                return EXIT_RESTART
            _tidy(session)
        return EXIT_OK


def _tidy(session: LoadSession) -> None:
    """SIGTERM is heard at its end: what is raised where garbage is collected is lost."""
    heard: list[int] = []
    with _at_sigterm(lambda number, _: heard.append(number)):
        session.tidy()
        gc.collect()
    if heard:
        _end(signal.SIGTERM, None)


def _answers() -> TextIO:
    """Where answers go; what else is printed goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _import_all() -> None:
    """What every load imports, or one that has something to read, before anybody waits for it."""
    import headrace.hive_ddl.executors.session
    import headrace.hive_ddl.executors.spark
    import headrace.loader.job
    import headrace.loader.run
    import headrace.pipeline.load  # noqa: F401


def _rest_s(settings: Settings, session: LoadSession, used_at: float) -> float | None:
    """For how long the session may still idle; None without one."""
    if not session.is_open:
        return None
    return max(0.0, used_at + settings.loader.spark_idle_timeout.ms / 1000 - time.monotonic())


def _has_died(session: LoadSession) -> bool:
    return session.is_open and not session.is_alive


def _is_asked(wait_s: float | None) -> bool | None:
    """Whether a load is asked for within the time; None at the end of the input."""
    # Not poll(2), whose time is over after 25 days at most.
    if not select.select([sys.stdin], (), (), wait_s)[0]:
        return False
    return True if os.read(sys.stdin.fileno(), WORD_BYTES_MAX) else None


@contextlib.contextmanager
def _at_sigterm(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Between loads there is time to end the JVM, which clears up after itself. A load that was asked for in just this
    moment has not begun."""
    raise SystemExit(EXIT_RESTART)
