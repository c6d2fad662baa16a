"""Free ports for servers of tests whose port must be known before the start or be the same after a restart."""

from __future__ import annotations

import random
import socket

# Linux assigns ports from 32768 on to sockets bound to port 0 and to outgoing connections. Such a port could be taken
# by another process before its server starts, or while the server is down.
PORTS = range(10_000, 32_000)
ATTEMPTS_MAX = 100


def free_port() -> int:
    """Returns a port on which no server of 127.0.0.1 listens, outside the range from which the system assigns ports."""
    random_source = random.SystemRandom()
    for _ in range(ATTEMPTS_MAX):
        port = random_source.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"none of {ATTEMPTS_MAX} ports in {PORTS} is free")
