"""An S3 server in this process (moto), which can be told to misbehave, and what Spark needs to reach it."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from support.servers.maven_jars import classpath_of

BUCKET = "lake"
NOT_OF_S3A = ("slf4j", "commons-logging", "jackson")  # Spark has its own
CHANGES = ("PUT", "POST", "DELETE")
REFUSALS: dict[str, tuple[str, bytes]] = {
    "slow": (
        "503 Slow Down",
        b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
    ),
    "expired": (
        "400 Bad Request",
        b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
    ),
}
"""Status and body of what the store answers instead of doing it."""

Fault = Callable[[dict[str, Any]], str]
"""Given a request, "" for none, a key of `REFUSALS` or "lost" for a reply that gets lost."""


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        pass


class S3Server:
    """`is_conditional` says whether the bucket honours `If-None-Match`."""

    def __init__(self) -> None:
        self.is_conditional = True
        self.fault: Fault = lambda request: ""
        self.met = 0
        self._store = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not self.is_conditional:
            request.pop("HTTP_IF_NONE_MATCH", None)
        fault = self.fault(request)
        self.met += bool(fault)
        if fault in REFUSALS:
            status, body = REFUSALS[fault]
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]
        answer: Iterable[bytes] = self._store(request, start)
        if fault == "lost":
            request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer

    @contextmanager
    def faulty(self, fault: Fault) -> Iterator[None]:
        self.fault, self.met = fault, 0
        yield
        self.fault = lambda request: ""

    def keys(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def fetch(self, prefix: str, target: Path) -> Path:
        """Brings all objects below a prefix to a local directory, which is emptied before."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for key in self.keys(prefix):
            if not key.endswith("/"):
                local = target / key.removeprefix(f"{prefix}/")
                local.parent.mkdir(parents=True, exist_ok=True)
                local.write_bytes(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        return target

    def spark(self, directory: Path) -> dict[str, str]:
        """Keys of `[spark]` that reach this server."""
        return {
            "jars": ",".join(s3a_jars()),
            "hadoop.fs.s3a.endpoint": self.endpoint,
            "hadoop.fs.s3a.endpoint.region": "us-east-1",
            "hadoop.fs.s3a.path.style.access": "true",
            "hadoop.fs.s3a.access.key": "test",
            "hadoop.fs.s3a.secret.key": "test",
            "hadoop.fs.s3a.connection.ssl.enabled": "false",
        }

    def settings_file(self, directory: Path, **more: str) -> Path:
        """A `headrace.toml` with these, and more of them."""
        path = directory / "headrace.toml"
        keys = {**self.spark(directory), **more}
        rows = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in keys.items())
        path.write_text(f"[spark]\n{rows}")
        return path


def s3a_jars() -> list[str]:
    """The jars in Maven's own cache, fetched where they are missing."""
    jars = classpath_of("s3a").split(":")
    return [jar for jar in jars if not Path(jar).name.startswith(NOT_OF_S3A)]
