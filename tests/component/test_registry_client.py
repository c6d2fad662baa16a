"""The client of the other rooms against a real registry, and against servers that fail."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from registry_calls import STRING, USER_1, USER_2, USER_INCOMPATIBLE

from avro_schema import Fixed, Reference
from registry import errors
from registry.client import ATTEMPTS_MAX, RegistryClient, SchemaReference


@pytest.fixture
def client(registry_url: str) -> Iterator[RegistryClient]:
    with RegistryClient(registry_url) as opened:
        yield opened


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/ä"


def test_register_and_find(client: RegistryClient, subject: str) -> None:
    registered = client.register(subject, USER_1, metadata={"headrace.time": "id"})
    assert (registered.subject, registered.version, registered.text) == (subject, 1, USER_1)
    assert registered.metadata == {"headrace.time": "id"}
    assert client.register(subject, USER_1).schema_id == registered.schema_id
    assert client.lookup(subject, USER_1) == registered
    assert client.version(subject, 1) == registered
    assert client.version(subject, "latest") == registered
    by_id = client.schema_by_id(registered.schema_id)
    assert (by_id.text, by_id.subject, by_id.version) == (USER_1, None, None)
    assert by_id.metadata == {"headrace.time": "id"}
    assert subject in client.subjects()
    assert client.versions(subject) == [1]
    assert client.register(subject, USER_2).version == 2
    assert client.version(subject, "latest").version == 2


def test_parsed_fetches_references(client: RegistryClient, subject: str) -> None:
    client.register(f"{subject}-a", '{"type":"fixed","name":"A","size":4}')
    client.register(
        f"{subject}-b", '{"type":"array","items":"A"}', references=[SchemaReference("A", f"{subject}-a", 1)]
    )
    record = '{"type":"record","name":"R","fields":[{"name":"a","type":"A"}]}'
    registered = client.register(subject, record, references=[SchemaReference("A", f"{subject}-a", 1)])
    schema = client.parsed(registered)
    node = schema.root.fields[0].type  # type: ignore[union-attr]
    assert isinstance(node, Reference)
    assert isinstance(schema.resolve(node), Fixed)
    assert client.parsed(client.schema_by_id(registered.schema_id)) == schema


def test_errors_come_back_as_they_were(client: RegistryClient, subject: str) -> None:
    with pytest.raises(errors.SubjectNotFound, match="not found") as unknown:
        client.version(subject, "latest")
    assert unknown.value.subject == subject
    with pytest.raises(errors.SchemaNotFound, match="Schema 999999 not found") as missing:
        client.schema_by_id(999_999)
    assert missing.value.schema_id == 999_999
    with pytest.raises(errors.InvalidSchema, match="line 1, column 2: expected a key"):
        client.register(subject, "{")
    client.register(subject, USER_1)
    with pytest.raises(errors.SchemaNotFound, match="Schema not found"):
        client.lookup(subject, STRING)
    with pytest.raises(errors.VersionNotFound, match="Version 7"):
        client.version(subject, 7)
    with pytest.raises(errors.InvalidVersion):
        client.version(subject, 0)
    with pytest.raises(errors.IncompatibleSchema, match="'age' at path '/fields/1'"):
        client.register(subject, USER_INCOMPATIBLE)
    with pytest.raises(errors.InvalidCompatibilityLevel):
        client.set_compatibility("SIDEWAYS")
    with pytest.raises(errors.InvalidSubject):
        client.register("\ud800", STRING)
    with pytest.raises(errors.SubjectNotSoftDeleted):
        client.delete_subject(subject, permanent=True)


def test_compatibility(client: RegistryClient, subject: str) -> None:
    client.register(subject, USER_1)
    assert client.check_compatibility(subject, USER_2) == (True, [])
    is_compatible, messages = client.check_compatibility(subject, USER_INCOMPATIBLE, version="latest")
    assert not is_compatible
    assert messages[0].startswith("{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'")
    assert client.compatibility() == client.compatibility(subject) == "BACKWARD"
    client.set_compatibility("none", subject)
    assert client.compatibility(subject) == "NONE"
    assert client.register(subject, USER_INCOMPATIBLE).version == 2


def test_deletes(client: RegistryClient, subject: str) -> None:
    registered = client.register(subject, f'{{"type":"fixed","name":"F","size":1,"of":"{subject}"}}')
    assert client.delete_version(subject, "latest") == 1
    assert client.schema_by_id(registered.schema_id).text == registered.text
    assert client.version(subject, 1).schema_id == registered.schema_id
    assert client.delete_subject(subject, permanent=True) == [1]
    with pytest.raises(errors.SchemaNotFound):
        client.schema_by_id(registered.schema_id)


def test_threads_share_a_client(client: RegistryClient, subject: str) -> None:
    def work(number: int) -> int:
        return client.register(subject, f'{{"type":"fixed","name":"F","size":1,"of":{number % 5}}}').schema_id

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(work, range(200)))) == 5


def test_immutable_answers_are_asked_for_once() -> None:
    answer = {"id": 3, "version": 1, "schema": STRING, "subject": "s"}
    with server(lambda _: (200, answer)) as (url, requests):
        client = RegistryClient(url)
        for _ in range(3):
            client.register("s", STRING)
            client.schema_by_id(3)
            client.version("s", 1)
        assert len(requests) == 3
        client.version("s", "latest")
        client.version("s", "latest")
        assert len(requests) == 5


def test_older_registries_answer_with_the_id_alone() -> None:
    def answer(request: str) -> tuple[int, Any]:
        if request.startswith("POST /subjects/s/versions"):
            return 200, {"id": 3}
        return 200, {"subject": "s", "version": 2, "id": 3, "schema": STRING}

    with server(answer) as (url, _):
        registered = RegistryClient(url).register("s", STRING)
    assert (registered.schema_id, registered.version) == (3, 2)


def test_passing_failures_are_tried_again() -> None:
    statuses = [503, 429, 200]
    with server(lambda _: (statuses.pop(0), [])) as (url, requests):
        assert RegistryClient(url).subjects() == []
    assert len(requests) == 3


def test_lasting_failures_are_reported() -> None:
    with server(lambda _: (500, {"error_code": 50001, "message": "Error while listing"})) as (url, requests):
        with pytest.raises(errors.StoreError, match="Error while listing"):
            RegistryClient(url).subjects()
        assert len(requests) == ATTEMPTS_MAX
    with pytest.raises(errors.RegistryUnavailable, match=f"schema registry at {url} cannot be reached: "):
        RegistryClient(url).subjects()
    for wrong in ("ftp://x", "127.0.0.1:8081", "http://x:99999", ""):
        with pytest.raises(errors.RegistryUnavailable):
            RegistryClient(wrong)


def test_other_servers_are_recognized() -> None:
    with server(lambda _: (404, "<html>")) as (url, _), pytest.raises(errors.ServiceError, match="HTTP 404"):
        RegistryClient(url).subjects()
    with server(lambda _: (401, {"error_code": 40101, "message": "Unauthorized"})) as (url, _):
        with pytest.raises(errors.ServiceError, match="Unauthorized") as refused:
            RegistryClient(url).subjects()
        assert (refused.value.status, refused.value.error_code) == (401, 40101)


def test_a_connection_that_the_server_closed_while_idle_is_replaced() -> None:
    with server(lambda _: (200, ["a"]), closes=True) as (url, requests):
        client = RegistryClient(url)
        for _ in range(5):
            assert client.subjects() == ["a"]
    assert len(requests) == 5


@contextmanager
def server(answer: Callable[[str], tuple[int, Any]], *, closes: bool = False) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server that gives canned answers; yields its URL and the requests as they come.

    With `closes` it ends each connection after one answer without having said so.
    """
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests.append(f"{self.command} {self.path}")
            status, value = answer(requests[-1])
            body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = closes

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.daemon_threads = True
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_address[1]}", requests
        finally:
            serving.shutdown()
            thread.join()
