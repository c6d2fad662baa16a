"""A proxy in front of a broker that changes fetch responses, like a network device with a faulty memory."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

FETCH = 1
REQUEST_HEAD = struct.Struct(">ihhi")  # length, API key, API version, correlation id
RESPONSE_HEAD = struct.Struct(">ii")  # length, correlation id


class DamagingProxy:
    """Forwards connections after `lead_to` has set the broker, which must advertise this address.

    Args:
        change: returns the bytes to send instead of a fetch response without its length and correlation id; they have
            the same length.
    """

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target: tuple[str, int] = ("", 0)
        self._has_target = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

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
        fetches: set[int] = set()
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as broker:
            threading.Thread(target=self._copy_responses, args=(broker, client, fetches), daemon=True).start()
            received = client.makefile("rb")
            while head := received.read(REQUEST_HEAD.size):
                length, api, _, correlation = REQUEST_HEAD.unpack(head)
                if api == FETCH:
                    fetches.add(correlation)
                broker.sendall(head + received.read(length + 4 - REQUEST_HEAD.size))

    def _copy_responses(self, broker: socket.socket, client: socket.socket, fetches: set[int]) -> None:
        received = broker.makefile("rb")
        with contextlib.suppress(OSError):
            while head := received.read(RESPONSE_HEAD.size):
                length, correlation = RESPONSE_HEAD.unpack(head)
                body = received.read(length + 4 - RESPONSE_HEAD.size)
                client.sendall(head + (self._change(body) if correlation in fetches else body))
            client.shutdown(socket.SHUT_WR)
