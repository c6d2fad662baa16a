"""Workers are forked while no other thread of the registry's parent process may hold a lock of OpenSSL."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.servers

WORKERS = 2
SERVER = textwrap.dedent(
    """
    import os
    import time

    from headrace.registry.api import listening, server
    from headrace.registry.api.asgi_front import AsgiFront

    class UnusedRevisionReader:
        async def close(self):
            pass

    def application(environ, start_response):
        start_response("200 OK", [])
        return [b""]

    checks = []
    check_readiness = listening._readiness

    def counted_check(*address):
        checks.append(address)
        return check_readiness(*address)

    listening._readiness = counted_check
    server._reload_on_hangup = lambda *_: time.sleep(0.3)  # runs before the forks: time for a check
    os.register_at_fork(before=lambda: print(f"fork after {{len(checks)}} checks", flush=True))
    reserved = listening.ReservedPort("127.0.0.1", 0)
    front = AsgiFront(application, UnusedRevisionReader(), request_bytes_max=1)
    server.serve(reserved, lambda: front, workers={workers})
    """
).format(workers=WORKERS)


@pytest.mark.timeout(60)
def test_readiness_is_checked_after_all_workers_were_forked() -> None:
    """With TLS the check uses OpenSSL. A worker that was forked during the check could never verify a password."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            lines = [server.stdout.readline() for _ in range(WORKERS + 1)]
        finally:
            server.terminate()
    assert lines[:WORKERS] == ["fork after 0 checks\n"] * WORKERS
    assert lines[WORKERS].startswith("ready registry=http://127.0.0.1:")
