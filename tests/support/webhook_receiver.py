"""An HTTP server that receives notifications of alerts, and fails as a test requires."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class WebhookReceiver:
    """A running receiver.

    Attributes:
        url: its address, without a path.
        responses: status codes of the next requests; 0 accepts a request and does not respond. Then 200.
        trickles: responds byte by byte, without an end.
        body: the content of each response.
        requests: the paths, headers and bodies of all requests.
        released: ends requests without a response.
    """

    url: str = ""
    responses: list[int] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    trickles: bool = False
    body: bytes = b"a\x1bb\nc\n"
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.requests]

    def events(self) -> list[tuple[str, str]]:
        """Subject and status of all alerts, in order of their arrival."""
        alerts = [alert for body in self.bodies for alert in body["alerts"]]
        return [(alert["labels"]["subject"], alert["status"]) for alert in alerts]


@contextmanager
def webhook_receiver() -> Iterator[WebhookReceiver]:
    """Starts a receiver on a free port of 127.0.0.1."""
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            code = receiver.responses.pop(0) if receiver.responses else 200
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append((self.path, dict(self.headers), json.loads(body)))
            if not code:
                receiver.released.wait(60)
                return
            if receiver.trickles:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                while not receiver.released.wait(0.05):
                    self.wfile.write(b"x")
                return
            self.send_response(code)
            if code in (301, 302, 307, 308):
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", str(len(receiver.body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # a client need not read it
                self.wfile.write(receiver.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
