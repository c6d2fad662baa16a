"""Requests of unauthenticated clients and slow requests do not delay or weaken the handling of others."""

from __future__ import annotations

import asyncio
import base64
import encodings
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from headrace.compat import resolution
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from headrace.registry.api import client_queues
from headrace.registry.api.asgi_front import OFFLOADED_COMPARISONS_MAX, THREADS
from headrace.registry.api.client_queues import RUNNING_MAX
from headrace.registry.api.services import services_of
from headrace.registry.domain import SchemaRequest
from headrace.registry.service.compatibility import Comparison, ComparisonResult, Compatibility
from support.registry.registry_calls import STRING
from support.registry.registry_front import RegistryBehindFront

MEGABYTE = 1024 * 1024


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


GRANTS = "grant root admin *\ngrant anonymous read public-*\n"
ROOT = {"Authorization": basic("root", "root")}


@pytest.fixture
def front(sqlite_database_url: str, tmp_path: Path) -> Iterator[RegistryBehindFront]:
    users = tmp_path / "users"
    users.write_text(user_line("root", PasswordHash.of("root", b"salt", Cost(4, 1, 1))) + "\n" + GRANTS)
    front = RegistryBehindFront(sqlite_database_url, users=RegistryUsersFile(users))
    assert front.call("POST", "/subjects/a/versions", {"schema": STRING}, ROOT).status == 200
    yield front
    front.close()


def test_slow_passwords_do_not_delay_known_users(front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch) -> None:
    may_continue = threading.Event()
    monkeypatch.setattr(PasswordHash, "matches", lambda *_: may_continue.wait(60) and False)
    wrong = {"Authorization": basic("root", "wrong")}
    with ThreadPoolExecutor(2 * THREADS) as clients:
        responses = [clients.submit(front.call, "GET", "/subjects", None, wrong) for _ in range(2 * THREADS)]
        try:
            assert front.call("GET", "/subjects", headers=ROOT).status == 200
            assert not any(response.done() for response in responses)
        finally:
            may_continue.set()
        assert {response.result().status for response in responses} == {401}


@pytest.fixture
def may_continue(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compatibility checks wait until this event is set."""
    event = threading.Event()
    checked = Compatibility._checked

    def wait(*arguments: Any) -> Any:
        assert event.wait(60)
        return checked(*arguments)

    monkeypatch.setattr(Compatibility, "_checked", wait)
    yield event
    event.set()


class SlowPool:
    """Replaces the pool of processes by one that waits before it runs deferred comparisons."""

    def __init__(self, front: RegistryBehindFront, may_continue: threading.Event) -> None:
        self._compatibility = services_of(front._front._application).compatibility
        self._may_continue = may_continue

    def is_ready(self) -> bool:
        return False

    async def run_comparison(self, comparison: Comparison) -> ComparisonResult | None:
        assert await asyncio.to_thread(self._may_continue.wait, 60)
        return await asyncio.to_thread(self._compatibility.run_comparison, comparison)

    def close(self) -> None:
        pass


CHECK, REGISTER = "/compatibility/subjects/a/versions", "/subjects/a/versions"


@pytest.mark.parametrize("prefix", ["", "/contexts/."])
@pytest.mark.parametrize("what", [CHECK, REGISTER])
def test_slow_checks_and_registrations_do_not_delay_others(
    front: RegistryBehindFront, may_continue: threading.Event, monkeypatch: pytest.MonkeyPatch, what: str, prefix: str
) -> None:
    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)
    monkeypatch.setattr(front._front, "_compute_pool", SlowPool(front, may_continue))
    path = "/subjects/a/versions/1"
    assert front.call("GET", path, headers=ROOT).status == 200
    check = prefix + what
    count = THREADS + RUNNING_MAX
    with ThreadPoolExecutor(count) as clients:
        bodies = [{"schema": f'{{"type":"string","n":{number}}}'} for number in range(count)]
        responses = [clients.submit(front.call, "POST", check, body, ROOT) for body in bodies]
        try:
            assert [front.call("GET", path, headers=ROOT).status for path in (path, f"{path}/schema")] == [200, 200]
            assert [front.call("GET", path).json["status"] for path in ("/readyz", "/healthz")] == ["ready", "ok"]
            assert front.register("public", STRING).status == 401
            # Other registrations do not wait either, even for the same subject.
            assert front.call("POST", "/subjects/b/versions", {"schema": STRING}, ROOT).status == 200
            assert front.call("POST", "/subjects/a/versions", {"schema": STRING}, ROOT).status == 200
            # The check of another client has its own slot; anonymous clients may read `public-*`.
            other = clients.submit(front.call, "POST", "/compatibility/subjects/public-a/versions", bodies[0])
            assert not any(response.done() for response in (*responses, other))
        finally:
            may_continue.set()
        assert {response.result().status for response in (*responses, other)} == {200}


def test_slow_registration_has_the_usual_result(front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads if there are no processes, and only with the permission."""
    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)
    wider = {"schema": '["null","string"]'}
    refused = front.call("POST", REGISTER, {"schema": '"int"'}, ROOT)
    assert refused.error[:2] == (409, 40901)
    assert "reader type: INT not compatible with writer type: STRING" in refused.text
    assert front.call("POST", REGISTER, wider).status == 401
    registered = front.call("POST", REGISTER, wider, ROOT)
    assert (registered.status, registered.json["version"]) == (200, 2)
    tagged = front.call("POST", f"{REGISTER}/latest/tags", {"metadata": {"properties": {"x": "y"}}}, ROOT)
    assert (tagged.status, tagged.json["version"]) == (200, 3)


def test_registration_succeeds_although_comparison_processes_die(
    front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparisons: list[Comparison] = []

    class DyingPool(SlowPool):
        async def run_comparison(self, comparison: Comparison) -> ComparisonResult | None:
            comparisons.append(comparison)
            raise BrokenProcessPool

    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)
    monkeypatch.setattr(front._front, "_compute_pool", DyingPool(front, threading.Event()))
    assert front.call("POST", REGISTER, {"schema": '["null","string"]'}, ROOT).status == 200
    assert len(comparisons) == OFFLOADED_COMPARISONS_MAX


def test_registration_is_compared_with_concurrently_registered_version(
    front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparisons: list[Comparison] = []
    services = services_of(front._front._application)

    class LatePool(SlowPool):
        async def run_comparison(self, comparison: Comparison) -> ComparisonResult | None:
            comparisons.append(comparison)
            if len(comparisons) == 1:
                union = SchemaRequest('["null","string"]')
                await asyncio.to_thread(services.registration.register, "a", union, normalize=False)
            return await super().run_comparison(comparison)

    may_continue = threading.Event()
    may_continue.set()
    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)
    monkeypatch.setattr(front._front, "_compute_pool", LatePool(front, may_continue))
    # The schema is compatible with the first version and not with the second.
    refused = front.call("POST", REGISTER, {"schema": '{"type":"string","n":1}'}, ROOT)
    assert (refused.status, [comparison.versions[0][0] for comparison in comparisons]) == (409, [1, 2])
    assert "oldSchemaVersion: 2" in refused.text


def test_too_many_checks_get_retry_after(
    front: RegistryBehindFront, may_continue: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_queues, "CLIENT_WAITING_MAX", 0)
    with ThreadPoolExecutor(1) as clients:
        path = "/compatibility/subjects/a/versions"
        first = clients.submit(front.call, "POST", path, {"schema": STRING}, ROOT)
        while not front._front._checks._running:
            time.sleep(0.001)
        refused = front.call("POST", path, {"schema": '"int"'}, ROOT)
        may_continue.set()
        assert first.result().status == 200
    assert refused.error[:2] == (503, 503)
    assert refused.headers["Retry-After"] == "1"


def test_liveness_bypasses_all_queues(front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = front.call("GET", "/healthz", headers=ROOT)
    monkeypatch.setattr(front._front, "_application", None)
    for accept in ("*/*", "application/json", "text/html"):
        health = front.call("GET", "/healthz", headers={"accept": accept})
        assert (health.status, health.text) == (200, expected.text)
    assert front.call("GET", "/healthz").headers == expected.headers
    assert front.observer.routes[-1] == "/healthz"


def test_two_authorization_headers_are_rejected(front: RegistryBehindFront) -> None:
    root, wrong = ("authorization", ROOT["Authorization"]), ("authorization", basic("root", "wrong"))
    statuses = [
        front.call_with("GET", "/subjects/a/versions/1", headers).status
        for headers in ([root], [root], [wrong, root], [root, wrong], [root, root])
    ]
    assert front.observer.cached[-4]
    assert statuses == [200, 200, 401, 401, 401]


LARGE, SMALL = ("content-length", "1000000"), ("content-length", "10")
WRONG = ("authorization", basic("root", "wrong"))


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "is_received"),
    [
        ("POST", "/subjects/a/versions", [LARGE], 401, False),
        ("POST", "/subjects/public-a/versions", [LARGE], 401, False),
        ("POST", "/subjects/a", [LARGE], 401, False),
        ("POST", "/subjects/public-a", [LARGE], 404, True),
        ("PUT", "/config", [LARGE], 401, False),
        ("POST", "/nowhere", [LARGE], 404, False),
        ("POST", "/", [LARGE], 200, False),
        ("POST", "/subjects/a/versions", [("transfer-encoding", "chunked")], 401, False),
        ("POST", "/subjects/a/versions", [("transfer-encoding", "chunked"), SMALL], 401, False),
        ("POST", "/subjects/a/versions", [LARGE, WRONG], 401, False),
        # Small bodies are received, because many of them do not fill the memory for bodies.
        ("POST", "/subjects/a/versions", [SMALL], 401, True),
    ],
)
def test_body_without_permission_is_not_received(
    front: RegistryBehindFront,
    method: str,
    path: str,
    headers: list[tuple[str, str]],
    status: int,
    is_received: bool,
) -> None:
    response = front.call_with(method, path, headers, b'{"schema":"\\"int\\""}')
    assert (response.status, set(response.json)) == (status, set() if status == 200 else {"error_code", "message"})
    assert front.received_body_first is is_received


def test_body_of_an_authenticated_user_is_received(front: RegistryBehindFront) -> None:
    root = ("authorization", ROOT["Authorization"])
    assert front.call_with("POST", "/subjects/b/versions", [LARGE, root], b'{"schema":"\\"int\\""}').status == 200
    assert front.observer.routes[-1] == "/subjects/<subject:subject>/versions"
    too_large = front.call_with("POST", "/subjects/b/versions", [("content-length", "99999999"), root], b"")
    assert too_large.error[1] == 42209
    assert not front.received_body_first


@pytest.mark.parametrize("headers", [[("accept", "a/b," * 2000)], [("accept", "a/b;q=0.1")] * 500])
def test_too_long_accept_headers_are_rejected(front: RegistryBehindFront, headers: list[tuple[str, str]]) -> None:
    for method in ("GET", "POST"):
        assert front.call_with(method, "/subjects", headers).error[:2] == (431, 431)


def test_long_requests_have_short_cache_keys(front: RegistryBehindFront) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(80):
            path = f"/subjects/a/versions/1?pad={number}-{'x' * 50_000}"
            for _ in range(2):
                assert front.call("GET", path, headers=ROOT).status == 200
            assert front.observer.cached[-1]
        assert tracemalloc.get_traced_memory()[0] - before < MEGABYTE
    finally:
        tracemalloc.stop()


def test_unknown_character_sets_are_not_cached(front: RegistryBehindFront) -> None:
    codec_cache = encodings._cache  # type: ignore[attr-defined]

    def status(charset: str) -> int:
        headers = {"content-type": f"application/json; charset={charset}", **ROOT}
        return front.call("POST", "/subjects/public-none", b'{"schema":"\\"int\\""}', headers).status

    assert [status(charset) for charset in ("utf-8", "UTF-8", "utf_8_sig", "ISO-8859-1", "cp1252")] == [404] * 5
    before = len(codec_cache)
    assert {status(f"x-{number}") for number in range(50)} == {400}
    # Different names of an existing character set.
    assert {status(f"utf{'-' * number}8") for number in range(1, 50)} == {404}
    assert len(codec_cache) == before


@pytest.mark.parametrize("path", ["/x://y/subjects/a/versions", "/://subjects/a/versions"])
def test_url_within_a_path_is_not_found(front: RegistryBehindFront, path: str) -> None:
    assert front.call("GET", path, headers=ROOT).status == 404


def test_request_target_may_be_a_url(front: RegistryBehindFront) -> None:
    for scheme in ("http", "https", "HTTP"):
        assert front.call("GET", f"{scheme}://proxied/subjects/a/versions", headers=ROOT).json == [1]


def test_request_target_without_a_path_is_the_root(front: RegistryBehindFront) -> None:
    # As servers parse `GET host HTTP/1.1`.
    response = front.call("GET", "")
    assert (response.status, response.json) == (200, {})
