"""What the servers of `headrace up` share that are a Python process with a JVM.

Each prints one ready line. SIGTERM and SIGINT end it with code 0; what it cannot do is one line and code 2, and so is
the end of its JVM.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from headrace.hive_ddl.errors import HiveDdlError
from headrace.pipeline.java import JavaNotFoundError, ensure_java
from headrace.settings import Address, Settings, SettingsError, home_directory, load_settings
from headrace.settings.log_format import configure_logging

POLL_S = 0.1
OUT_OF_MEMORY_CODES = frozenset({3, 52})  # of a JVM told to end then, and of Spark's own handler
Options = TypeVar("Options")


class JvmServerError(Exception):
    """Why the server cannot serve, in one line."""


def run_server(
    parse: Callable[[Settings], Options],
    data_dir: Callable[[Options], Path],
    serve: Callable[[Options, threading.Event], None],
) -> int:
    """The exit code of a server's process.

    Args:
        parse: of the command line; given the settings, since on a command line the values of `[spark]`, passwords among
            them, would show in the process list.
        data_dir: of the options.
        serve: returns when the event is set.
    """
    try:
        options = parse(load_settings(environment=os.environ, working_dir=Path.cwd(), home=home_directory()))
    except SettingsError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    configure_logging()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        ensure_java(data_dir(options))
        serve(options, stop)
    except (JvmServerError, HiveDdlError, JavaNotFoundError) as error:
        if stop.is_set():
            return 0
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    return 0


def jvm_properties(settings: Settings, memory: str = "") -> dict[str, str]:
    """The Spark properties of the settings, for a JVM that ends when it has not enough memory: one that goes on answers
    some and not others.

    Args:
        memory: that it has; "" is what the properties say.
    """
    options = settings.spark.get("driver.extraJavaOptions", "")
    return {
        **{key.removeprefix("spark."): value for key, value in settings.spark.items()},
        **({"driver.memory": memory} if memory else {}),
        "driver.extraJavaOptions": f"{options} -XX:+ExitOnOutOfMemoryError".strip(),
    }


def wait_for_end(gateway: Any, stop: threading.Event, memory_key: str, memory: str) -> None:
    """Returns when `stop` is set.

    Raises:
        JvmServerError: the JVM behind the gateway ended.
    """
    process = getattr(gateway, "proc", None)
    while not stop.wait(POLL_S):
        if process is not None and process.poll() is not None:
            raise JvmServerError(jvm_end_reason(process.returncode, memory_key, memory))


def jvm_end_reason(code: int, memory_key: str, memory: str) -> str:
    """Why a JVM ended, for the user."""
    if code in OUT_OF_MEMORY_CODES:
        return f"its JVM had not enough memory with {memory}: give it more with {memory_key}"
    return f"its JVM ended with code {code}; see logs/spark.log"


def free_port(listen: Address, what: str, key: str) -> int:
    """The port to listen on: the one asked for if it is free, else for port 0 one that the system says is free.

    Starting a JVM takes seconds, so a taken port is found before.

    Raises:
        JvmServerError: it is taken.
    """
    try:
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((listen.host, listen.port))
            return int(trial.getsockname()[1])
    except OSError as error:
        raise JvmServerError(
            f"the {what} cannot listen on {listen}: {error.strerror}; choose another address with {key}"
        ) from error
