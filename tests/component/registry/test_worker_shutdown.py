"""Workers end after a kill of their parent, whatever their threads compute."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from support.processes import is_running

pytestmark = pytest.mark.servers

GRACEFUL_STOP_S = 2  # instead of the server's own, which is longer
SERVER = textwrap.dedent(
    """
    import os
    import time

    from headrace.registry.api import server
    from headrace.registry.api.asgi_front import AsgiFront

    class UnusedRevisionReader:
        async def close(self):
            pass

    def application(environ, start_response):
        start_response("200 OK", [])
        if environ["PATH_INFO"] == "/compute":
            print(os.getpid(), flush=True)
            ends_at = time.monotonic() + 120
            while time.monotonic() < ends_at:
                pass
        return [b""]

    server.GRACEFUL_STOP_S = {graceful_stop_s}
    reserved = server.ReservedPort("127.0.0.1", 0)
    server.serve(reserved, lambda: AsgiFront(application, UnusedRevisionReader(), request_bytes_max=1000))
    """
).format(graceful_stop_s=GRACEFUL_STOP_S)


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()


def test_computing_worker_ends_after_its_parent(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    port = int(server.stdout.readline().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /compute HTTP/1.1\r\nHost: registry\r\n\r\n")
        worker = int(server.stdout.readline())
        server.kill()
        server.wait()
        killed_at = time.monotonic()
        try:
            while is_running(worker):
                assert time.monotonic() < killed_at + 20
                time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    # Requests in progress had their time.
    assert time.monotonic() > killed_at + GRACEFUL_STOP_S
