"""Serving with granian: worker processes with an event loop each, on a port that is taken here first.

The workers bind the port for themselves with SO_REUSEPORT, by which a second registry would join in without a word. So
the port is first bound without it, which finds out who else has it and which one port 0 is, and is kept bound.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import logging
import os
import resource
import signal
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops, RuntimeModes, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.common import AbstractServer

from headrace.registry.api.certified import CertifiedPort
from headrace.registry.api.front import Front

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024  # connections that wait to be accepted, of each worker
CONNECTIONS_MAX: Final = 4096  # of one worker, idle ones included
OTHER_FILES: Final = 256  # that a worker may have open beside its connections
IDLE_S: Final = 60  # a client has so long for the head of its next request
HEADERS_BYTES_MAX: Final = 64 * 1024  # of the head of a request, in which subjects may be long
STALLED_S: Final = 30  # a client that takes nothing of its answer for so long is cut off
GRACEFUL_STOP_S: Final = 10  # requests under way at a stop get this long
READY_TIMEOUT_S: Final = 60.0
READY_POLL_S: Final = 0.05
PARENT_POLL_S: Final = 0.5  # how often a worker looks whether the process that watches over it is there
GARBAGE_THRESHOLDS: Final = (20_000, 20, 20)  # few collections: requests leave little behind that refers to itself
SWITCH_INTERVAL_S: Final = 0.002  # the event loop waits no longer for a thread that computes; less costs registrations


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of the server's certificate, with its chain, and of its key."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """
        Raises:
            OSError, ValueError: they cannot be read, do not belong together, or the key is encrypted.
        """
        # With a password that is none, since OpenSSL would ask for one at the terminal.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key, lambda: "")


class TakenPort:
    """An address that nobody else can listen on until this is closed; port 0 takes a free one.

    Raises:
        OSError: the address is taken or is not of this machine.
    """

    def __init__(self, host: str, port: int) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            # A port whose last connections are still closing can be bound again; one that is bound or listened on not.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            if sys.platform == "linux":
                # Only from here on may others bind it: those of this user that say SO_REUSEPORT, which are the workers.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except BaseException:
            self._socket.close()
            raise
        self.host, self.port = self._socket.getsockname()[:2]
        if sys.platform != "linux":
            self.close()  # there the workers share a socket, which is bound without more ado

    def close(self) -> None:
        self._socket.close()

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def serve(
    taken: TakenPort,
    make_front: Callable[[], Front],
    *,
    workers: int = 1,
    tls: Tls | None = None,
    certified: CertifiedPort | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit code; prints the ready line when requests are answered.

    On SIGHUP new workers, which have read the files of `tls` anew, take the place of the old ones, one by one.

    Args:
        taken: where to listen.
        make_front: called in each worker process.
        workers: how many processes.
        tls: speaks HTTPS with it.
        certified: where clients show certificates too.
    """
    server = Granian(
        "registry",
        address=taken.host,
        port=taken.port,
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
        # Its own handlers write to standard output, which is for the ready line.
        log_dictconfig={"handlers": {}, "formatters": {}, "loggers": {"_granian": {"propagate": True}}},
    )
    if tls is not None:
        _read_tls(server, tls)
    server.on_startup(lambda: _reload_on_hangup(server, tls, certified))
    # A signal to the whole group ends the workers before they are told to by this process, which is no failure.
    logging.getLogger("_granian").addFilter(lambda _: not server.interrupt_signal)
    url = taken.url("http" if tls is None else "https")
    threading.Thread(target=_print_when_ready, args=(url,), daemon=True).start()
    parent = os.getpid()
    try:
        server.serve(target_loader=lambda: _started(make_front(), parent, taken.port, certified), wrap_loader=False)
    except SystemExit as end:
        return 0 if server.interrupt_signal else int(end.code or 0)
    return 0


def _read_tls(server: AbstractServer[Any], tls: Tls) -> None:
    # Finds the files that links lead to now, which is how renewed ones come.
    server.build_ssl_context(tls.certificate, tls.key, None, SSLProtocols.tls12, None, [], client_verify=False)


def _reload_on_hangup(server: AbstractServer[Any], tls: Tls | None, certified: CertifiedPort | None) -> None:
    def reload(*_: object) -> None:
        if tls is not None:
            try:
                tls.check()
                if certified is not None:
                    certified.context()
                _read_tls(server, tls)
            except (OSError, ValueError) as error:
                # Workers that cannot read it would end one after the other, and the registry with them.
                logger.error("certificate_refused path=%s cause=%s", tls.certificate, error)
                return
        logger.info("workers are replaced: cause=SIGHUP")
        server.signal_handler_reload()  # type: ignore[no-untyped-call]  # granian's own

    signal.signal(signal.SIGHUP, reload)


def connections_max() -> int:
    """As many connections as a worker may have open files for, which the system is asked to allow enough of.

    A worker that cannot accept for want of a file would try again and again, and take a core for it.
    """
    wanted = CONNECTIONS_MAX + OTHER_FILES
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        return CONNECTIONS_MAX
    if most == resource.RLIM_INFINITY or most > allowed:
        more = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, most))
            allowed = more
    return max(1, min(CONNECTIONS_MAX, allowed - OTHER_FILES))


def _started(front: Front, parent: int, port: int, certified: CertifiedPort | None) -> Front:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What has been imported stays for good: looking through it for garbage would stop all requests for 0.1 s.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    front.on_start = lambda: _accompany(front, parent, port, certified)
    return front


async def _accompany(front: Front, parent: int, port: int, certified: CertifiedPort | None) -> None:
    """Runs beside the requests of a worker."""
    # Ctrl-C on a terminal reaches every process, and the one that started this worker will stop it.
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    is_bounded = False
    beside = None if certified is None else await certified.listen(front)
    try:
        while os.getppid() == parent:
            is_bounded = is_bounded or _bound_slow_readers(port)
            await asyncio.sleep(PARENT_POLL_S)
    finally:
        if beside is not None:
            beside.close()
    logger.warning("worker stopped: cause=parent_gone")
    # Nobody is there to end it if its threads do not: until they had computed to their end it would keep the port.
    end = threading.Timer(GRACEFUL_STOP_S, os._exit, (1,))
    end.daemon = True
    end.start()
    os.kill(os.getpid(), signal.SIGTERM)


def _bound_slow_readers(port: int) -> bool:
    """Lets the system cut off clients that take nothing of their answers; True once that is set.

    Connections inherit it from the socket that accepts them, which the server makes for itself after the start.
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
            continue  # closed meanwhile
        with listener:
            is_internet = listener.family in (socket.AF_INET, socket.AF_INET6)
            accepts = is_internet and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if accepts and listener.getsockname()[1] == port:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_S * 1000)
                return True
    return False


def _print_when_ready(url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    status: int | str = 0
    while time.monotonic() < deadline:
        status = _readiness(url)
        if status == 200:
            print(f"ready registry={url}", flush=True)
            return
        time.sleep(READY_POLL_S)
    logger.error("registry not ready: after_s=%.0f status=%s", READY_TIMEOUT_S, status)


def _readiness(url: str) -> int | str:
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host).strip("[]")  # noqa: S104  (compared, not bound)
    connection: http.client.HTTPConnection
    if scheme == "https":
        # This process asks itself: there is nobody to be mistaken for.
        context = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    finally:
        connection.close()
