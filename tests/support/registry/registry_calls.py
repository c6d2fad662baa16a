"""Requests of the registry's REST API without a client library."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flask.testing import FlaskClient

from headrace.registry.api.app import create_app
from headrace.registry.storage.database import Database
from headrace.version import VERSION

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

STRING = '"string"'
USER_1 = '{"type":"record","name":"User","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
USER_2 = (
    '{"type":"record","name":"User","namespace":"shop","fields":[{"name":"id","type":"long"},'
    '{"name":"mail","type":"string","default":""}]}'
)
USER_INCOMPATIBLE = (
    '{"type":"record","name":"User","namespace":"shop","fields":[{"name":"id","type":"long"},'
    '{"name":"age","type":"int"}]}'
)


@dataclass(frozen=True)
class RestResponse:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> tuple[int, int, str]:
        assert set(self.json) == {"error_code", "message"}
        return self.status, self.json["error_code"], self.json["message"]


class Registry:
    def __init__(self, url: str) -> None:
        self.url = url
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 0

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> RestResponse:
        """Sends bytes unchanged and other bodies as JSON."""
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, payload, {"Content-Type": CONTENT_TYPE, **(headers or {})})
            response = connection.getresponse()
            return RestResponse(response.status, dict(response.getheaders()), response.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> RestResponse:
        return self.call("GET", path, headers=headers)

    def delete(self, path: str) -> RestResponse:
        return self.call("DELETE", path)

    def put(self, path: str, body: Any) -> RestResponse:
        return self.call("PUT", path, body)

    def post(self, path: str, body: Any) -> RestResponse:
        return self.call("POST", path, body)

    def register(self, subject: str, text: str, query: str = "", **more: Any) -> RestResponse:
        return self.call("POST", f"/subjects/{subject}/versions{query}", {"schema": text, **more})

    def registered(self, subject: str, text: str, **more: Any) -> int:
        """Registers a valid schema and returns its id."""
        response = self.register(subject, text, **more)
        assert response.status == 200, response.text
        return int(response.json["id"])


class RegistryInProcess(Registry):
    """Sends requests to the application without a socket."""

    def __init__(self, client: FlaskClient) -> None:
        super().__init__("http://localhost")
        self._client = client

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> RestResponse:
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        response = self._client.open(
            path, method=method, data=payload, headers={"Content-Type": CONTENT_TYPE, **(headers or {})}
        )
        return RestResponse(response.status_code, dict(response.headers), response.get_data(as_text=True))


@contextmanager
def registry_in_process(database_url: str, **options: Any) -> Iterator[RegistryInProcess]:
    """Yields a registry on a database, which may be empty. It is called without a server, in this process.

    Its clock advances by a millisecond with every reading. No response is cached, so a change is visible at once.
    """
    database = Database(database_url, lease_s=0)
    try:
        database.upgrade()
        clock = itertools.count(1_000)
        app = create_app(database, **{"version": VERSION, "commit": "c0ffee", "now_ms": lambda: next(clock), **options})
        yield RegistryInProcess(app.test_client())
    finally:
        database.close()
