"""Serves the registry with granian: worker processes with an event loop each, on a port that this process reserves.

The workers bind the port with SO_REUSEPORT, which would let a second registry share it unnoticed. Therefore this
process first binds the port without that option. That detects another registry and resolves port 0. On Linux the socket
stays bound.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import resource
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any, Final

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops, RuntimeModes, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.common import AbstractServer

from headrace.registry.api.asgi_front import AsgiFront
from headrace.registry.api.listening import ReservedPort, ServerCertificate, print_when_ready
from headrace.registry.api.mtls import MtlsListener

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024  # connections that wait to be accepted, per worker
CONNECTIONS_MAX: Final = 4096  # per worker, including idle ones
OTHER_FILES: Final = 256  # open files of a worker other than connections
IDLE_S: Final = 60  # time limit for the headers of a connection's next request
HEADERS_BYTES_MAX: Final = 64 * 1024  # of a request; subjects in the path may be long
STALLED_S: Final = 30  # a client that reads nothing of its response for this long is disconnected
GRACEFUL_STOP_S: Final = 10  # time limit for running requests at shutdown
PARENT_POLL_S: Final = 0.5  # how often a worker checks that its parent process is alive
GARBAGE_THRESHOLDS: Final = (20_000, 20, 20)  # fewer collections: requests leave few reference cycles
SWITCH_INTERVAL_S: Final = 0.002  # longest wait of the event loop for a computing thread; less slows registrations


def serve(
    reserved: ReservedPort,
    make_front: Callable[[], AsgiFront],
    *,
    workers: int = 1,
    tls: ServerCertificate | None = None,
    mtls: MtlsListener | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT, or until the workers cannot start, and returns the exit code. Prints the ready
    line once requests are served, or logs an error if that takes longer than `READY_TIMEOUT_S`.

    SIGHUP reads the files of `tls` again and replaces the workers one by one. If the files cannot be used, it only logs
    an error.

    Args:
        reserved: the address to listen on.
        make_front: creates the ASGI application; called in each worker process.
        workers: number of processes.
        tls: the certificate for HTTPS; None serves HTTP.
        mtls: an additional listener for clients with certificates.
    """
    server = Granian(
        "registry",
        address=reserved.host,
        port=reserved.port,
        interface=Interfaces.ASGI,
        workers=workers,
        runtime_mode=RuntimeModes.mt,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(
            header_read_timeout=IDLE_S * 1000, max_buffer_size=HEADERS_BYTES_MAX, keep_alive=True
        ),
        websockets=False,
        backlog=BACKLOG,
        backpressure=connections_max(),
        respawn_failed_workers=True,
        workers_kill_timeout=GRACEFUL_STOP_S,
        log_level=LogLevels.warning,
        # Granian's handlers write to standard output, which is reserved for the ready line.
        log_dictconfig={"handlers": {}, "formatters": {}, "loggers": {"_granian": {"propagate": True}}},
    )
    if tls is not None:
        _read_tls(server, tls)
    server.on_startup(lambda: _reload_on_hangup(server, tls, mtls))
    # A signal to the process group ends the workers before this process stops them. That is not a failure.
    logging.getLogger("_granian").addFilter(lambda _: not server.interrupt_signal)
    url = reserved.url("http" if tls is None else "https")
    started = multiprocessing.Semaphore(0)
    ready = ("registry", url, "/readyz", workers, started)
    threading.Thread(target=print_when_ready, args=ready, daemon=True).start()
    parent = os.getpid()

    def load() -> AsgiFront:
        return _prepare(make_front(), parent, reserved.port, mtls, started)

    try:
        server.serve(target_loader=load, wrap_loader=False)
    except SystemExit as end:
        return 0 if server.interrupt_signal else int(end.code or 0)
    return 0


def _read_tls(server: AbstractServer[Any], tls: ServerCertificate) -> None:
    # Resolves symbolic links again, because certificates are often renewed by changing a link.
    server.build_ssl_context(tls.certificate, tls.key, None, SSLProtocols.tls12, None, [], client_verify=False)


def _reload_on_hangup(server: AbstractServer[Any], tls: ServerCertificate | None, mtls: MtlsListener | None) -> None:
    def reload(*_: object) -> None:
        if tls is not None:
            try:
                tls.check()
                if mtls is not None:
                    mtls.context()
                _read_tls(server, tls)
            except (OSError, ValueError) as error:
                # Workers that cannot read the files would exit, and the registry with them.
                logger.error(
                    "certificate_not_reloaded path=%s action=keeping the previous certificate cause=%s",
                    tls.certificate,
                    error,
                )
                return
        logger.info("workers_replaced cause=SIGHUP")
        server.signal_handler_reload()  # type: ignore[no-untyped-call]  # granian's own

    signal.signal(signal.SIGHUP, reload)


def connections_max() -> int:
    """Returns how many connections a worker may have: at most `CONNECTIONS_MAX`, and fewer if the limit of open files
    requires it. Raises that limit first if the system allows it.

    A worker without free file descriptors would retry accept() in a loop and use a whole core.
    """
    required = CONNECTIONS_MAX + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= required:
        return CONNECTIONS_MAX
    if hard == resource.RLIM_INFINITY or hard > soft:
        raised = required if hard == resource.RLIM_INFINITY else min(required, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return max(1, min(CONNECTIONS_MAX, soft - OTHER_FILES))


def _prepare(front: AsgiFront, parent: int, port: int, mtls: MtlsListener | None, started: Semaphore) -> AsgiFront:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Imported objects live forever. Excluding them saves a pause of 0.1 s in each full collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    front.on_start = lambda: _run_in_background(front, parent, port, mtls, started)
    return front


async def _run_in_background(
    front: AsgiFront, parent: int, port: int, mtls: MtlsListener | None, started: Semaphore
) -> None:
    """Runs in each worker, concurrently with its requests: serves the mTLS port, and ends the worker when the parent
    process has died.

    Args:
        front: the ASGI application to serve on the mTLS port.
        parent: the id of the parent process.
        port: the main port; clients that do not read their responses there are disconnected.
        mtls: the mTLS port; None without one.
        started: counts the started workers.
    """
    # Ctrl-C on a terminal reaches every process, but the parent stops this worker.
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    has_send_timeout = False
    listener = None if mtls is None else await mtls.listen(front)
    started.release()
    try:
        while os.getppid() == parent:
            has_send_timeout = has_send_timeout or _set_send_timeout(port)
            await asyncio.sleep(PARENT_POLL_S)
    finally:
        if listener is not None:
            listener.close()
    logger.warning("worker_stopped cause=parent_died")
    # Without the parent only this timer ends the process if a thread computes on, which would keep the port in use.
    end = threading.Timer(GRACEFUL_STOP_S, os._exit, (1,))
    end.daemon = True
    end.start()
    os.kill(os.getpid(), signal.SIGTERM)


def _set_send_timeout(port: int) -> bool:
    """Makes the kernel disconnect clients that do not read their responses, by a socket option of the listening socket
    of `port`. Returns False if that socket does not exist yet. On other systems than Linux it does nothing and returns
    True.

    Connections inherit the option from the listening socket, which granian creates after the start.
    """
    if sys.platform != "linux":
        return True
    for entry in Path("/proc/self/fd").iterdir():
        try:
            descriptor = int(entry.name)
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            listener = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue  # closed in the meantime
        with listener:
            is_internet = listener.family in (socket.AF_INET, socket.AF_INET6)
            accepts = is_internet and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if accepts and listener.getsockname()[1] == port:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_S * 1000)
                return True
    return False
