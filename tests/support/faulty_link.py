"""A TCP proxy in front of servers, with the failures of networks and balancers: it cuts connections, loses responses to
requests that have arrived, and hangs."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Sequence

CONNECT_TIMEOUT_S = 5.0
READ_BYTES = 1 << 16


class _Connection:
    """A client's connection and the one to a server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.loses_response = False

    def cut(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class FaultyLink:
    """Forwards each connection to the next of its targets that accepts one, as a balancer does.

    Args:
        targets: addresses, HOST:PORT; may be set later.
    """

    def __init__(self, targets: Sequence[str] = ()) -> None:
        self.targets = targets
        self._turn = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._flows = threading.Event()
        self._flows.set()
        self._connections: set[_Connection] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Closes all connections."""
        for connection in self._open():
            connection.cut()

    def lose_responses(self) -> None:
        """Closes each open connection when its server next sends something, which the client does not get."""
        for connection in self._open():
            connection.loses_response = True

    def hang(self) -> None:
        """Holds all bytes back until `resume`, which forwards them, also those of clients that have given up."""
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._listener.close()
        self.resume()
        self.cut()

    def _open(self) -> list[_Connection]:
        with self._lock:
            return list(self._connections)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client:
            server = self._connect()
            if server is None:
                return
            with server:
                connection = _Connection(client, server)
                with self._lock:
                    self._connections.add(connection)
                responses = threading.Thread(target=self._copy, args=(connection, server, client), daemon=True)
                responses.start()
                self._copy(connection, client, server)
                responses.join()
                with self._lock:
                    self._connections.discard(connection)

    def _connect(self) -> socket.socket | None:
        for _ in self.targets:
            host, _, port = self.targets[next(self._turn) % len(self.targets)].rpartition(":")
            with contextlib.suppress(OSError):
                server = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
                server.settimeout(None)
                return server
        return None

    def _copy(self, connection: _Connection, source: socket.socket, sink: socket.socket) -> None:
        """Copies what `source` sends until one of the ends closes. A client that closes while the link hangs has sent
        its request all the same."""
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                self._flows.wait()
                if connection.loses_response and source is connection.server:
                    break
                sink.sendall(data)
            if source is connection.client:
                self._flows.wait()
        connection.cut()
