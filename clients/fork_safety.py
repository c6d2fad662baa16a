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
    """A client that handles forks of its process."""

    def abandon_after_fork(self) -> None:
        """Called in a forked child process."""


_CLIENTS: Final[weakref.WeakSet[ForkAware]] = weakref.WeakSet()


def register_for_fork(client: ForkAware) -> None:
    """Registers a client for a call of `abandon_after_fork` in forked children."""
    _CLIENTS.add(client)


def never_free(kafka: Any) -> None:
    """Prevents the finalization of a confluent-kafka client, which would wait for its missing threads for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kafka))


def _abandon_all() -> None:
    for client in list(_CLIENTS):
        client.abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_all)
