"""Makes clients unusable in forked child processes.

A forked child has none of the threads of the parent's clients, so it can neither use nor close them. Each registered
client is informed in the child, directly after the fork.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Final, Protocol


class ForkAware(Protocol):
    """A client that must know when its process has forked."""

    def abandon_after_fork(self) -> None:
        """Called in the forked child process, in which the client has no threads. Must make the client unusable
        there."""


_CLIENTS: Final[weakref.WeakSet[ForkAware]] = weakref.WeakSet()


def register_for_fork(client: ForkAware) -> None:
    """Registers a client: its `abandon_after_fork` is called in each forked child process."""
    _CLIENTS.add(client)


def prevent_free(kafka: Any) -> None:
    """Prevents Python from freeing a confluent-kafka client in a forked child: this would wait for ever for threads
    that only the parent has."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kafka))


def _abandon_all() -> None:
    for client in list(_CLIENTS):
        client.abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_all)
