"""A proxy in front of a broker that never answers one client's fetch request, like a network that drops packets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

FETCH = 1
LENGTH_AND_API = struct.Struct(">ih")


class StallingProxy:
    """Accepts connections at once and forwards them after `lead_to` has set the broker, which must advertise this
    address.

    The first connection that sends a fetch request is stalled; all others are forwarded. `has_stalled` is set when that
    happens, and `was_given_up` when the client closes the stalled connection.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target: tuple[str, int] = ("", 0)
        self._has_target = threading.Event()
        self.has_stalled, self.was_given_up = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def lead_to(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._has_target.set()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._has_target.wait()
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as broker:
            threading.Thread(target=_copy, args=(broker, client), daemon=True).start()
            received = client.makefile("rb")
            while head := received.read(LENGTH_AND_API.size):
                length, api = LENGTH_AND_API.unpack(head)
                request = head + received.read(length + 4 - LENGTH_AND_API.size)
                if api == FETCH and self._is_first():
                    with contextlib.suppress(OSError):
                        received.read(1)  # until the client closes the connection
                    self.was_given_up.set()
                    return
                broker.sendall(request)

    def _is_first(self) -> bool:
        with self._lock:
            is_first = not self.has_stalled.is_set()
            self.has_stalled.set()
            return is_first


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
