"""Clients in a process that was forked off the one that made them: none of their threads is there, so that nothing of
them can be used, or ended. Each is told so before the child goes on."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Final, Protocol


class Client(Protocol):
    def leave(self) -> None:
        """This process is not the one that the client was made in."""


_CLIENTS: Final[weakref.WeakSet[Client]] = weakref.WeakSet()


def tell_when_forked(client: Client) -> None:
    _CLIENTS.add(client)


def leave_behind(kafka: Any) -> None:
    """A client of confluent-kafka is never ended here, neither when nothing refers to it nor when Python ends: that
    would wait for its threads, for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kafka))


def _leave_all() -> None:
    for client in list(_CLIENTS):
        client.leave()


os.register_at_fork(after_in_child=_leave_all)
