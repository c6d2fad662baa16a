"""Cached responses: which requests use them, and that a change by any process invalidates them in every process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.registry.api import wsgi_call
from headrace.registry.api.asgi_front import KEY_HEADERS
from support.cases import all_cases
from support.registry.registry_calls import CONTENT_TYPE, STRING, USER_1, USER_2, Registry, RestResponse
from support.registry.registry_front import RegistryBehindFront

FRONTS = 2


@pytest.fixture
def fronts(database_url: str) -> Iterator[tuple[RegistryBehindFront, ...]]:
    """Several fronts on one database, like worker processes. The last one caches nothing."""
    made = tuple(RegistryBehindFront(database_url, caches=number < FRONTS) for number in range(FRONTS + 1))
    yield made
    for front in made:
        front.close()


@pytest.fixture
def front(fronts: tuple[RegistryBehindFront, ...]) -> RegistryBehindFront:
    return fronts[0]


@pytest.fixture(scope="module")
def filled(registry_database_url: str) -> Iterator[RegistryBehindFront]:
    front = RegistryBehindFront(registry_database_url)
    front.registered("a", USER_1)
    front.registered(":.c:a", USER_1)
    yield front
    front.close()


def is_cached(front: RegistryBehindFront, method: str, path: str, body: Any = None, **headers: str) -> bool:
    """Whether the second of two equal requests is served from the cache, with an equal response."""
    first = front.call(method, path, body, headers)
    second = front.call(method, path, body, headers)
    assert (second.status, second.text, second.headers) == (first.status, first.text, first.headers)
    return front.observer.cached[-1]


CACHED = [
    ("GET", "/schemas/ids/1", None),
    ("GET", "/schemas/ids/1?fetchMaxId=false&subject=a", None),
    ("GET", "/schemas/ids/1/schema", None),
    ("GET", "/subjects", None),
    ("GET", "/subjects?deleted=true&subjectPrefix=:.c:", None),
    ("GET", "/subjects/a/versions", None),
    ("GET", "/subjects/a/versions/1", None),
    ("GET", "/subjects/a/versions/latest", None),
    ("GET", "/subjects/a/versions/-1/schema", None),
    ("GET", "/contexts/.c/subjects/a/versions/1", None),
    ("POST", "/subjects/a", {"schema": USER_1}),
    ("POST", "/subjects/a/versions", {"schema": USER_1}),
    ("POST", "/compatibility/subjects/a/versions/latest?verbose=true", {"schema": USER_2}),
    ("GET", "/config", None),
    ("GET", "/mode", None),
]
NOT_CACHED = [
    # These lists change with every registration.
    ("GET", "/contexts", None),
    ("GET", "/schemas", None),
    ("GET", "/schemas/ids/1/versions", None),
    ("GET", "/schemas/ids/1?fetchMaxId=true", None),
    ("GET", "/subjects/a/versions/1/referencedby", None),
    # These depend on the process.
    ("GET", "/readyz", None),
    ("GET", "/schemas/types", None),
    # These are errors with possibly temporary causes.
    ("GET", "/schemas/ids/9", None),
    ("GET", "/subjects/nothing/versions", None),
    ("POST", "/subjects/a", {"schema": STRING}),
    ("GET", "/config/none", None),
    # These are changes.
    ("PUT", "/config/a", {"compatibility": "NONE"}),
    ("DELETE", "/subjects/a/versions/7", None),
]


def test_reads_and_repeated_registrations_are_cached(filled: RegistryBehindFront) -> None:
    with all_cases() as case:
        for method, path, body in CACHED:
            with case((method, path, body)):
                assert is_cached(filled, method, path, body)


def test_changes_errors_and_process_state_are_not_cached(filled: RegistryBehindFront) -> None:
    with all_cases() as case:
        for method, path, body in NOT_CACHED:
            with case((method, path, body)):
                assert not is_cached(filled, method, path, body)


def test_verdict_of_an_aborted_check_is_not_cached(front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front.registered("a", USER_1)
    check = ("POST", "/compatibility/subjects/a/versions", {"schema": USER_2})
    monkeypatch.setattr("headrace.registry.service.compatibility.CHECK_S", -1)
    assert not is_cached(front, *check)
    monkeypatch.undo()
    assert is_cached(front, *check)


def delete(path: str) -> Callable[[Registry], RestResponse]:
    return lambda registry: registry.delete(path)


def put(path: str, body: Any) -> Callable[[Registry], RestResponse]:
    return lambda registry: registry.put(path, body)


def register(subject: str, text: str) -> Callable[[Registry], RestResponse]:
    return lambda registry: registry.register(subject, text)


def register_reference(subject: str) -> Callable[[Registry], RestResponse]:
    references = [{"name": "F", "subject": "b", "version": 1}]
    return lambda registry: registry.register(subject, '{"type":"array","items":"F"}', references=references)


def import_version(subject: str, version: int) -> Callable[[Registry], RestResponse]:
    return lambda registry: registry.register(subject, STRING, version=version, id=70 + version)


FIXED = '{"type":"fixed","name":"F","size":4}'
HARD = "?permanent=true"
CHANGES: list[tuple[str, list[Callable[[Registry], RestResponse]]]] = [
    ("soft delete of a version", [delete("/subjects/a/versions/1")]),
    ("permanent delete of a version", [delete("/subjects/a/versions/2"), delete(f"/subjects/a/versions/2{HARD}")]),
    ("delete of a subject", [delete("/subjects/a"), delete(f"/subjects/a{HARD}")]),
    ("number given again", [delete("/subjects/a"), delete(f"/subjects/a{HARD}"), register("a", STRING)]),
    ("a new version", [put("/config/a", {"compatibility": "NONE"}), register("a", STRING)]),
    ("revival", [delete("/subjects/a"), register("b", USER_1), register("a", USER_1)]),
    ("a new subject", [register("b", USER_1), register(":.c:b", STRING)]),
    ("a subject again", [delete("/subjects/a"), register("a", STRING)]),
    ("a subject again, with references", [register("b", FIXED), delete("/subjects/a"), register_reference("a")]),
    (
        "a subject again, by an import",
        [delete("/subjects/a"), put("/mode/a?force=true", {"mode": "IMPORT"}), import_version("a", 9)],
    ),
    ("level", [put("/config/a", {"compatibility": "FULL"})]),
    ("level of all", [put("/config", {"compatibility": "NONE"})]),
    ("mode", [put("/mode/a", {"mode": "READONLY"})]),
    ("alias", [register("other", STRING), put("/config/a", {"alias": "other"})]),
    ("default metadata", [put("/config/a", {"defaultMetadata": {"properties": {"owner": "x"}}})]),
]
REQUESTS = [
    ("GET", "/schemas/ids/1", None),
    ("GET", "/schemas/ids/2", None),
    ("GET", "/schemas/ids/1?subject=a", None),
    ("GET", "/subjects", None),
    ("GET", "/subjects?deleted=true", None),
    ("GET", "/subjects?deletedOnly=true&subjectPrefix=a", None),
    ("GET", "/subjects/a/versions", None),
    ("GET", "/subjects/a/versions?deleted=true", None),
    ("GET", "/subjects/a/versions/1", None),
    ("GET", "/subjects/a/versions/1?deleted=true", None),
    ("GET", "/subjects/a/versions/2", None),
    ("GET", "/subjects/a/versions/latest", None),
    ("POST", "/subjects/a", {"schema": USER_1}),
    ("POST", "/subjects/a?deleted=true", {"schema": USER_2}),
    ("POST", "/compatibility/subjects/a/versions", {"schema": STRING}),
    ("GET", "/config/a?defaultToGlobal=true", None),
    ("GET", "/mode/a?defaultToGlobal=true", None),
]


@pytest.mark.parametrize("changes", [row[1] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_every_change_invalidates_cached_responses(fronts: tuple[RegistryBehindFront, ...], changes: list[Any]) -> None:
    """After each change by one process, every process gives the same responses as the one without a cache."""
    for text in (USER_1, USER_2):
        fronts[0].registered("a", text)
    *caching, uncached = fronts
    for step in [None, *changes]:
        if step is not None:
            changed = step(caching[0])
            assert changed.status == 200, changed.text
        for request in REQUESTS * 2:
            # The fronts with cached responses come first, without a pause.
            found = [front.call(*request) for front in reversed(caching)]
            expected = uncached.call(*request)
            assert [(response.status, response.text) for response in found] == [
                (expected.status, expected.text)
            ] * FRONTS
    assert all(any(front.observer.cached) for front in caching)
    assert not any(uncached.observer.cached)


def test_key_headers_select_different_cached_responses(front: RegistryBehindFront) -> None:
    path = f"/schemas/ids/{front.registered('a', STRING)}"
    for accepted in ("application/json", "application/vnd.schemaregistry+json", CONTENT_TYPE):
        for _ in range(2):
            assert front.get(path, Accept=accepted).headers["Content-Type"] == accepted
    assert front.get(path, Accept="text/html").status == 406
    known = {"schema": STRING}
    assert is_cached(front, "POST", "/subjects/a", known)
    assert front.call("POST", "/subjects/a", known, {"Content-Type": "text/plain"}).status == 415
    assert front.call("POST", "/subjects/a", known, {"Content-Encoding": "gzip"}).status == 400
    assert front.call("POST", "/subjects/a", {"schema": USER_1}).status == 404
    assert front.call("GET", "/subjects/a", known).status == 405


def test_unchanged_configuration_does_not_invalidate_responses(front: RegistryBehindFront) -> None:
    """kafkajs sets the level before each registration."""
    path = f"/schemas/ids/{front.registered('a', STRING)}"
    for level, is_new in (("FULL", True), ("FULL", False), ("full", False), ("NONE", True)):
        front.get(path)
        assert front.put("/config/a", {"compatibility": level}).status == 200
        front.get(path)
        assert front.observer.cached[-1] != is_new


class ReadEnviron(dict[str, Any]):
    """Records which headers are read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def test_responses_depend_on_the_key_headers_only(front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()

    def call_and_note(application: Any, environ: dict[str, Any]) -> Any:
        recorded = ReadEnviron(environ)
        response = wsgi_call.call(application, recorded)
        seen.update(key for key in recorded.read if key.startswith("HTTP_") or key == "CONTENT_TYPE")
        return response

    monkeypatch.setattr("headrace.registry.api.asgi_front.call", call_and_note)
    front.registered("a", USER_1)
    front.registered(":.c:a", USER_1)
    for method, path, body in CACHED:
        front.call(method, path, body)
    known = {"HTTP_" + name.decode().upper().replace("-", "_") for name in KEY_HEADERS} | {"CONTENT_TYPE"}
    # No response contains the host, because there are no redirects and links. The server itself uses the last two.
    others = {"HTTP_AUTHORIZATION", "HTTP_HOST", "HTTP_CONNECTION", "HTTP_TRANSFER_ENCODING"}
    assert seen - others <= known
    assert seen & known


def test_head_uses_the_cached_response_of_get(front: RegistryBehindFront) -> None:
    path = f"/schemas/ids/{front.registered('a', STRING)}"
    assert not is_cached(front, "HEAD", path)
    whole = front.get(path)
    head = front.call("HEAD", path)
    assert front.observer.cached[-1]
    assert (head.status, head.headers, head.text) == (200, whole.headers, "")
    assert front.observer.sizes[-2:] == [len(whole.text), 0]


def test_observer_receives_the_route_of_cached_responses(front: RegistryBehindFront) -> None:
    front.registered("a", STRING)
    front.observer.routes.clear()
    for path in ("/subjects/a/versions", "/subjects/a/versions", "/nowhere", "/schemas/ids/x"):
        front.get(path)
    known = "/subjects/<subject:subject>/versions"
    assert front.observer.routes == [known, known, "", ""]


def test_deleted_version_is_never_served_after_the_deletion(fronts: tuple[RegistryBehindFront, ...]) -> None:
    """Requests that start after the response to a deletion never see the deleted version, under concurrent load."""
    stop = threading.Event()
    deleted: dict[int, float] = {}
    wrong: list[int] = []
    record = [0]
    ids = list(range(1, 13))
    for number in ids:
        assert fronts[0].registered(f"s{number}", f'{{"type":"fixed","name":"F{number}","size":4}}') == number

    def read(front: RegistryBehindFront) -> None:
        while not stop.is_set():
            for schema_id in ids:
                deleted_at, began = deleted.get(schema_id), time.monotonic()
                status = front.get(f"/schemas/ids/{schema_id}").status
                record[0] += 1
                if deleted_at is not None and deleted_at < began and status != 404:
                    wrong.append(schema_id)

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, front) for front in fronts[:FRONTS] * 2]
        for schema_id in ids:
            front = fronts[schema_id % FRONTS]
            for query in ("", HARD):
                assert front.delete(f"/subjects/s{schema_id}{query}").status == 200
            deleted[schema_id] = time.monotonic()
        stop.set()
        for reader in readers:
            reader.result(60)
    assert wrong == []
    assert record[0] > len(ids)
    assert any(fronts[0].observer.cached)
    assert any(fronts[1].observer.cached)


def test_new_version_is_latest_in_every_process_at_once(fronts: tuple[RegistryBehindFront, ...]) -> None:
    """After a registration, the next read in any process returns the new version as the latest."""
    fronts[0].put("/config", {"compatibility": "NONE"})
    for number in range(1, 30):
        writer, reader = fronts[number % 2], fronts[(number + 1) % 2]
        writer.registered("a", f'{{"type":"fixed","name":"F","size":{number}}}')
        assert reader.get("/subjects/a/versions/latest").json["version"] == number
        assert reader.get("/subjects/a/versions").json == list(range(1, number + 1))
        assert reader.get("/subjects/a/versions").status == 200
        assert reader.observer.cached[-1]


def test_cached_response_has_the_request_id_of_its_request(filled: RegistryBehindFront) -> None:
    for request_id in ("first", "second", "third"):
        response = filled.call("GET", "/schemas/ids/1", None, {"X-Request-ID": request_id})
        assert {name.lower(): value for name, value in response.headers.items()}["x-request-id"] == request_id
    assert filled.observer.cached[-1]
    without = filled.call("GET", "/schemas/ids/1")
    assert "x-request-id" not in {name.lower() for name in without.headers}
    long = filled.call("GET", "/schemas/ids/1", None, {"X-Request-ID": "x" * 201})
    assert "x-request-id" not in {name.lower() for name in long.headers}


def test_request_after_shutdown_gets_503(front: RegistryBehindFront, caplog: pytest.LogCaptureFixture) -> None:
    schema_id = front.registered("a", STRING)
    assert is_cached(front, "GET", f"/schemas/ids/{schema_id}")
    front.end()
    for method, path, body in (
        ("GET", f"/schemas/ids/{schema_id}", None),
        ("GET", "/subjects/a/versions/latest", None),
        ("POST", "/subjects/a/versions", {"schema": USER_1}),
    ):
        assert front.call(method, path, body).error == (503, 503, "HTTP 503 Service Unavailable")
    assert not caplog.records
