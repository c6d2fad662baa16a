"""Ports for servers of tests that must have a certain one: to be told it beforehand, or to come back to it."""

from __future__ import annotations

import random
import socket

# The system gives ports from 32768 on to whoever asks for any and to the near end of every connection, so that one from
# there may be somebody else's a moment later, or while its server is down.
CHOICE = range(10_000, 32_000)
TRIES = 100


def free_port() -> int:
    """One that nobody listens on at 127.0.0.1, and that the system gives to nobody."""
    chance = random.SystemRandom()
    for _ in range(TRIES):
        port = chance.choice(CHOICE)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"none of {TRIES} ports in {CHOICE} is free")
