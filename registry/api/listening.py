"""The address, the certificate and the ready line of a server. Imports no other part of the registry: the console uses
this module too and must stay small."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

READY_TIMEOUT_S: Final = 60.0
READY_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """PEM files of the server's certificate, including its chain, and its key."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Checks that the files can be used.

        Raises:
            OSError, ValueError: the files cannot be read or do not match, or the key is encrypted.
        """
        # The empty password keeps OpenSSL from prompting for one on the terminal.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key, lambda: "")


class ReservedPort:
    """On Linux, reserves an address until `close`; only processes of this user can listen on it, such as the registry's
    workers. On other systems, checks the address and reserves nothing. Port 0 chooses a free port.

    Raises:
        OSError: the address is in use, does not belong to this machine, cannot be resolved or is not permitted.
    """

    def __init__(self, host: str, port: int) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            # Allows a port with closing connections, but not one that is bound or listened on.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            if sys.platform == "linux":
                # From now on processes of this user may bind the port with SO_REUSEPORT. These are the workers.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except BaseException:
            self._socket.close()
            raise
        self.host, self.port = self._socket.getsockname()[:2]
        if sys.platform != "linux":
            self.close()  # on other systems the workers share a socket, which needs no reservation

    def close(self) -> None:
        self._socket.close()

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def print_when_ready(name: str, url: str, path: str, workers: int, started: Semaphore) -> None:
    """Prints the ready line of a server once all workers have started and one responds, or logs an error after
    `READY_TIMEOUT_S`.

    Args:
        name: the name of the server in the line.
        url: the URL of the server.
        path: the path that responds with status 200 when the server is ready.
        workers: number of processes.
        started: counts the started workers.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    status: int | str = "not all workers have started"
    # A fork while this thread uses OpenSSL would copy locked locks, and the worker would wait for them forever.
    are_started = all(started.acquire(timeout=max(0.0, deadline - time.monotonic())) for _ in range(workers))
    while are_started and time.monotonic() < deadline:
        status = _readiness(url, path)
        if status == 200:
            print(f"ready {name}={url}", flush=True)
            return
        time.sleep(READY_POLL_S)
    logger.error("%s_not_ready url=%s%s after_s=%.0f status=%s", name, url, path, READY_TIMEOUT_S, status)


def _readiness(url: str, path: str) -> int | str:
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host).strip("[]")  # noqa: S104  (compared, not bound)
    connection: http.client.HTTPConnection
    if scheme == "https":
        # The process connects to itself, so the certificate need not be verified.
        context = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    finally:
        connection.close()
