"""Shared parts of the servers of `headrace up` that are a Python process with a JVM.

Each prints one ready line. SIGTERM and SIGINT end it with code 0. A failure, such as the end of its JVM, is one line on
standard error and code 2.
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
# exit codes of a JVM with -XX:+ExitOnOutOfMemoryError, and of Spark's own handler
OUT_OF_MEMORY_CODES = frozenset({3, 52})
Options = TypeVar("Options")


class JvmServerError(Exception):
    """The reason why a server of `headrace up` that runs a JVM cannot serve, in one line."""


def run_server(
    parse: Callable[[Settings], Options],
    data_dir: Callable[[Options], Path],
    serve: Callable[[Options, threading.Event], None],
) -> int:
    """Runs the process of a server until SIGTERM, SIGINT or a failure, and returns its exit code.

    Args:
        parse: parses the command line to options. It gets the settings, which this process loads itself: if they were
            passed on the command line, the process list would show the passwords of `[spark]`.
        data_dir: returns the data directory of the options.
        serve: serves until its second argument, an event, is set. SIGTERM and SIGINT set the event.
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
    """Returns the Spark properties of the settings, with the option that makes the JVM exit when it runs out of memory.
    A JVM without that option would continue and fail some requests.

    Args:
        memory: heap size of the JVM; "" takes the value of the properties.
    """
    options = settings.spark.get("driver.extraJavaOptions", "")
    return {
        **{key.removeprefix("spark."): value for key, value in settings.spark.items()},
        **({"driver.memory": memory} if memory else {}),
        "driver.extraJavaOptions": f"{options} -XX:+ExitOnOutOfMemoryError".strip(),
    }


def wait_for_end(gateway: Any, stop: threading.Event, memory_key: str, memory: str) -> None:
    """Waits until `stop` is set. Fails if the JVM ends before.

    Args:
        gateway: py4j's connection to the JVM.
        memory_key: the setting of the JVM's heap size, for the message.
        memory: the value of that setting.

    Raises:
        JvmServerError: the JVM ended.
    """
    process = getattr(gateway, "proc", None)
    while not stop.wait(POLL_S):
        if process is not None and process.poll() is not None:
            raise JvmServerError(jvm_end_reason(process.returncode, memory_key, memory))


def jvm_end_reason(code: int, memory_key: str, memory: str) -> str:
    """Returns a message that explains to the user why a JVM ended.

    Args:
        code: the JVM's exit code.
        memory_key: the setting of the JVM's heap size.
        memory: the value of that setting.
    """
    if code in OUT_OF_MEMORY_CODES:
        return f"its JVM ran out of memory with {memory}: increase {memory_key}"
    return f"its JVM ended with code {code}; see logs/spark.log"


def free_port(listen: Address, server: str, key: str) -> int:
    """Returns the port of a configured address, or a free port if that is 0. Fails before the JVM is started, which
    takes seconds, if a server cannot listen on the address.

    Args:
        listen: the configured address.
        server: name of the server, for the message.
        key: the setting of the address, for the message.

    Raises:
        JvmServerError: the port is in use, or the address does not belong to this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((listen.host, listen.port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise JvmServerError(
            f"the {server} cannot listen on {listen}: {error.strerror}; choose another address with {key}"
        ) from error
