"""A gateway in this process with the sessions of the push protocol alone: it stores records in lists, checks
requests, and fails on demand."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class StoredSource:
    """A source: its records by ascending seqno, and its current session."""

    records: list[tuple[int, bytes, str]] = field(default_factory=list)  # seqno, value, part
    session: str = ""
    opened: list[dict[str, Any]] = field(default_factory=list)

    @property
    def last_seqno(self) -> int:
        return self.records[-1][0] if self.records else 0


@dataclass(frozen=True)
class Failure:
    """A response instead of the usual one; or with `status` 0 a closed connection. `after` closes it after storing."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    after: bool = False


class SessionGateway:
    """The stored sources by id, and the failures to come, by path prefix in order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sources: dict[str, StoredSource] = defaultdict(StoredSource)
        self.sessions: dict[str, str] = {}
        self.failures: list[tuple[str, Failure]] = []
        self.always: Failure | None = None
        self.reject_when = b""
        self.closes_connections = False
        self.problems: list[str] = []
        self.requests = 0
        self.chunk_sizes: list[int] = []
        self.max_chunk_bytes = 4_194_304
        self.url = ""

    def lines(self) -> list[bytes]:
        """All values, by source in order of the sources' first session."""
        with self.lock:
            return [value for source in self.sources.values() for _, value, _ in source.records]

    def by_file(self) -> dict[str, list[bytes]]:
        """Values by the name of the file at the first session of the source."""
        with self.lock:
            found: dict[str, list[bytes]] = defaultdict(list)
            for source in self.sources.values():
                if source.records:
                    name = source.opened[0]["file"].rpartition("/")[2]
                    found[name] += [value for _, value, _ in source.records]
            return dict(found)

    def fail(self, path: str, *failures: Failure) -> None:
        with self.lock:
            self.failures += [(path, failure) for failure in failures]

    def lose(self, records: int) -> None:
        """Loses the last records of each source and all sessions, as a power cut does."""
        with self.lock:
            for source in self.sources.values():
                del source.records[max(0, len(source.records) - records) :]
            self.sessions.clear()

    def forget_sessions(self) -> None:
        with self.lock:
            self.sessions.clear()

    def next_failure(self, path: str) -> Failure | None:
        if self.always is not None:
            return self.always
        for at, (prefix, failure) in enumerate(self.failures):
            if path.startswith(prefix):
                del self.failures[at]
                return failure
        return None

    def open(self, wanted: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "source_id" not in wanted:
            return 422, {"error_code": 42200, "message": "source_id is missing"}
        source = self.sources[wanted["source_id"]]
        number = len(source.opened)
        if wanted.get("previous", number) != number:
            return 412, {"error_code": 41270, "message": "session changed", "session_number": number}
        if source.session:
            self.sessions.pop(source.session, None)
        source.session = f"s{len(source.opened)}-{len(self.sessions)}-{self.requests}"
        source.opened.append(wanted)
        self.sessions[source.session] = wanted["source_id"]
        return 200, {
            "session": source.session,
            "session_number": number + 1,
            "topic": wanted.get("topic") or "by-log-type",
            "partition": 0,
            "last_seqno": source.last_seqno,
            "max_chunk_bytes": self.max_chunk_bytes,
            "lease_seconds": 60,
        }

    def store(self, session: str, query: dict[str, list[str]], headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        if session not in self.sessions:
            return 404, {"error_code": 40470, "message": "session unknown"}
        if headers.get("Headrace-Checksum") != f"crc32={zlib.crc32(body):08x}":
            self.problems.append("wrong checksum")
        if len(body) > self.max_chunk_bytes:
            return 413, {"error_code": 41300, "message": "chunk too large"}
        self.chunk_sizes.append(len(body))
        source = self.sources[self.sessions[session]]
        answer: dict[str, Any] = {"written": 0, "skipped": 0, "rejected": []}
        previous = 0
        for seqno, value, part in parse_chunk(headers["Content-Type"], query, body):
            if seqno <= previous:
                self.problems.append(f"seqno {seqno} after {previous}")
            previous = seqno
            if seqno <= source.last_seqno:
                answer["skipped"] += 1
            elif self.reject_when and self.reject_when in value:
                answer["rejected"].append({"seqno": seqno, "error_code": 42203, "message": "field n: not a number"})
            else:
                source.records.append((seqno, value, part))
                answer["written"] += 1
        return 200, {"last_seqno": source.last_seqno, **answer}


def parse_chunk(content_type: str, query: dict[str, list[str]], body: bytes) -> Iterator[tuple[int, bytes, str]]:
    if content_type == "text/plain":
        seqno = int(query["begin"][0])
        assert body.endswith(b"\n"), "a text chunk has whole lines"
        for line in body.split(b"\n")[:-1]:
            seqno += len(line) + 1
            yield seqno, line, ""
    elif content_type == "application/json":
        for record in json.loads(body)["records"]:
            yield record["seqno"], json.dumps(record["value"]).encode(), ""
    else:
        assert content_type == "application/vnd.headrace.records"
        while body:
            head, _, body = body.partition(b"\n")
            seqno_text, length, *part = head.decode().split(" ")
            yield int(seqno_text), body[: int(length)], "".join(part)
            assert body[int(length) : int(length) + 1] == b"\n"
            body = body[int(length) + 1 :]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65_536  # otherwise two packets, and the second one waits for the client's acknowledgement
    gateway: SessionGateway

    def log_message(self, *_: object) -> None:
        pass

    def do_DELETE(self) -> None:
        self.gateway.sessions.pop(self.path.rpartition("/")[2], None)
        self.answer(204, {}, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if len(body) < int(self.headers.get("Content-Length", 0)):
            self.close_connection = True  # the client was killed
            return
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        parts = urlsplit(self.path)
        with self.gateway.lock:
            self.gateway.requests += 1
            failure = self.gateway.next_failure(parts.path)
            if failure is None or failure.after:
                if parts.path == "/v1/sessions":
                    status, found = self.gateway.open(json.loads(body))
                else:
                    session = parts.path.split("/")[3]
                    status, found = self.gateway.store(session, parse_qs(parts.query), self.headers, body)
        if failure is None:
            self.answer(status, found, {})
        elif failure.status:
            self.answer(failure.status, failure.body, failure.headers)
        else:
            self.close_connection = True

    def answer(self, status: int, found: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(found).encode() if status != 204 else b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        if self.gateway.closes_connections:
            self.close_connection = True  # as after a keep-alive time-out


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def session_gateway(certificate: tuple[Path, Path] | None = None) -> Iterator[SessionGateway]:
    """Runs a gateway, with the files of a certificate and its key by HTTPS."""
    gateway = SessionGateway()
    handler = type("Handler", (_Handler,), {"gateway": gateway})
    server = _Server(("127.0.0.1", 0), handler)
    gateway.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
