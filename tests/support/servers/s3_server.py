"""Runs an S3 server (moto) with injectable faults in this process, and returns Spark's settings for it."""

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
SPARK_JARS = ("slf4j", "commons-logging", "jackson")  # Spark has its own versions
CHANGES = ("PUT", "POST", "DELETE")
ERROR_RESPONSES: dict[str, tuple[str, bytes]] = {
    "slow": (
        "503 Slow Down",
        b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
    ),
    "expired": (
        "400 Bad Request",
        b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
    ),
    "denied": ("403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"),
}
"""Status and body of the store's error responses."""

Fault = Callable[[dict[str, Any]], str]
"""Returns the fault to inject into a request: "" for none, a key of `ERROR_RESPONSES`, or "lost" (the operation is
carried out, but the response is not sent)."""


class _SilentRequestHandler(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        pass


class S3Server:
    """A running S3 server.

    Attributes:
        is_conditional: whether the bucket supports `If-None-Match`.
        fault: returns the fault to inject into a request.
        fault_count: number of faults injected so far.
    """

    def __init__(self) -> None:
        self.is_conditional = True
        self.fault: Fault = lambda request: ""
        self.fault_count = 0
        self._store = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_SilentRequestHandler)
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
        self.fault_count += bool(fault)
        if fault in ERROR_RESPONSES:
            status, body = ERROR_RESPONSES[fault]
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]
        response: Iterable[bytes] = self._store(request, start)
        if fault == "lost":
            request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return response

    @contextmanager
    def inject_faults(self, fault: Fault) -> Iterator[None]:
        self.fault, self.fault_count = fault, 0
        yield
        self.fault = lambda request: ""

    def keys(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def fetch(self, prefix: str, target: Path) -> Path:
        """Copies all objects below a prefix to a local directory, which it empties first."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for key in self.keys(prefix):
            if not key.endswith("/"):
                local = target / key.removeprefix(f"{prefix}/")
                local.parent.mkdir(parents=True, exist_ok=True)
                local.write_bytes(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        return target

    def spark(self, directory: Path) -> dict[str, str]:
        """Returns the keys and values of the settings section `[spark]` with which loads use this server."""
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
        """Writes a `headrace.toml` with the settings of `spark` and further keys of `[spark]`, and returns its path."""
        path = directory / "headrace.toml"
        keys = {**self.spark(directory), **more}
        rows = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in keys.items())
        path.write_text(f"[spark]\n{rows}")
        return path


def s3a_jars() -> list[str]:
    """Returns the jars of the S3A file system that Spark lacks."""
    jars = classpath_of("s3a").split(":")
    return [jar for jar in jars if not Path(jar).name.startswith(SPARK_JARS)]
