"""Loads forked from a process with a running Spark: `python load_forks.py load …` with the flags of the loads.

The process opens one Spark session. For each line of JSON on standard input it forks a driver. The driver runs
`headrace` with the arguments of the line on the same JVM, over separate connections. The process waits until the driver
has ended.

    -> {"arguments": ["load", …], "log": "/tmp/1.log", "point": "commit:link:before", "nth": 1, "announce": "/tmp/1"}
    <- forked 4711
    <- ended 0             the exit code, negative for a signal
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections import deque
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from load_launcher import add_points, let_workers_stop  # noqa: E402
from stop_points import CONTROL, Stop, write_control  # noqa: E402

import headrace.cli.load  # noqa: E402
import headrace.hive_ddl.executors.spark  # noqa: E402
import headrace.loader.job  # noqa: E402
import headrace.loader.run  # noqa: E402
import headrace.pipeline.load  # noqa: E402
from headrace.cli import main  # noqa: E402
from headrace.cli.command import CommandParser, settings_from  # noqa: E402
from headrace.pipeline.load_session import LoadSession  # noqa: E402
from headrace.settings.log_format import configure_logging  # noqa: E402

_of_the_first_process: list[Any] = []
"""Connections to the JVM of the process that forks. A forked process must not close them; this list prevents that they
are garbage collected."""


def open_session(arguments: list[str]) -> LoadSession:
    """Opens the session that `headrace load` would open for these flags."""
    parser = CommandParser()
    headrace.cli.load.configure(parser)
    session = LoadSession(outlives_load=True)
    session.with_metastore(settings_from(parser.parse_args(arguments)))
    return session


def open_own_connections(session: LoadSession) -> None:
    """Makes a forked process open its own connections to the JVM."""
    client = session._gateway()._gateway_client
    _of_the_first_process.append((client.thread_connection, client.deque))
    client.thread_connection, client.deque = threading.local(), deque()


def run_forked(session: LoadSession, order: dict[str, Any]) -> int:
    """Runs one command in the forked process and returns its exit code.

    Args:
        order: the line of JSON that requested it.
    """
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    open_own_connections(session)
    headrace.pipeline.load.LoadSession = lambda: session  # type: ignore[assignment,misc]
    code = main(order["arguments"])
    sys.stdout.flush()
    return code


def serve(session: LoadSession) -> None:
    stop_file = Path(os.environ[CONTROL])
    for number, line in enumerate(sys.stdin):
        order = json.loads(line)
        write_control(stop_file, Stop(order["point"], order["nth"], order["announce"], number))
        pid = os.fork()
        if not pid:
            code = 70
            try:
                code = run_forked(session, order)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(f"forked {pid}", flush=True)
        print(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}", flush=True)


if __name__ == "__main__":
    configure_logging()  # First: py4j would add a handler that drops the INFO lines of all drivers.
    let_workers_stop()
    add_points()
    opened = open_session(sys.argv[2:])
    print("ready", flush=True)
    serve(opened)
    opened.close()
