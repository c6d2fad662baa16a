"""Memory of process groups and connections to ports, from /proc."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.pipeline.status.processes import connections_by_port, resident_bytes

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")


def test_memory_is_that_of_all_processes_of_a_group() -> None:
    program = "import os, time; b = b'x' * 20_000_000; os.fork(); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline(), process.stdout.readline()
        found = resident_bytes({process.pid, 2**22 + 1})
        assert found.keys() == {process.pid}
        assert found[process.pid] > 40_000_000
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_are_counted_by_port_of_the_server_alone(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        clients = [socket.create_connection((host, port)) for _ in range(3)]
        try:
            found = connections_by_port()
            assert found[port] == 3
            assert all(client.getsockname()[1] not in found for client in clients)
        finally:
            for client in clients:
                client.close()
