"""Requests of those who are not known yet, or say twice who they are, and what they cost the others."""

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
from headrace.registry.access.authenticator import UsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from headrace.registry.api import client_queues
from headrace.registry.api.client_queues import RUNNING_MAX
from headrace.registry.api.asgi_front import OFFLOADED_COMPARISONS_MAX, THREADS
from headrace.registry.api.services import services_of
from headrace.registry.domain import SchemaRequest
from headrace.registry.service.compatibility import Comparison, Compatibility, ComparisonResult
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
    front = RegistryBehindFront(sqlite_database_url, users=UsersFile(users))
    assert front.call("POST", "/subjects/a/versions", {"schema": STRING}, ROOT).status == 200
    yield front
    front.close()


def test_passwords_that_are_waited_for_hold_up_nobody_who_is_known(
    front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(PasswordHash, "matches", lambda *_: goes_on.wait(60) and False)
    wrong = {"Authorization": basic("root", "wrong")}
    with ThreadPoolExecutor(2 * THREADS) as strangers:
        answers = [strangers.submit(front.call, "GET", "/subjects", None, wrong) for _ in range(2 * THREADS)]
        try:
            assert front.call("GET", "/subjects", headers=ROOT).status == 200
            assert not any(answer.done() for answer in answers)
        finally:
            goes_on.set()
        assert {answer.result().status for answer in answers} == {401}


@pytest.fixture
def goes_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """When checks of schemas that are only tried go on."""
    event = threading.Event()
    checked = Compatibility._checked

    def wait(*arguments: Any) -> Any:
        assert event.wait(60)
        return checked(*arguments)

    monkeypatch.setattr(Compatibility, "_checked", wait)
    yield event
    event.set()


class HeldUp:
    """In the place of the processes that check: one that takes long for what registrations leave to it."""

    def __init__(self, front: RegistryBehindFront, goes_on: threading.Event) -> None:
        self._compatibility = services_of(front._front._application).compatibility
        self._goes_on = goes_on

    def is_ready(self) -> bool:
        return False

    async def run_comparison(self, comparison: Comparison) -> ComparisonResult | None:
        assert await asyncio.to_thread(self._goes_on.wait, 60)
        return await asyncio.to_thread(self._compatibility.run_comparison, comparison)

    def close(self) -> None:
        pass


CHECK, REGISTER = "/compatibility/subjects/a/versions", "/subjects/a/versions"


@pytest.mark.parametrize("prefix", ["", "/contexts/."])
@pytest.mark.parametrize("what", [CHECK, REGISTER])
def test_checks_that_take_long_hold_up_nothing_else(
    front: RegistryBehindFront, goes_on: threading.Event, monkeypatch: pytest.MonkeyPatch, what: str, prefix: str
) -> None:
    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)
    monkeypatch.setattr(front._front, "_checkers", HeldUp(front, goes_on))
    path = "/subjects/a/versions/1"
    assert front.call("GET", path, headers=ROOT).status == 200
    check = prefix + what
    count = THREADS + RUNNING_MAX
    with ThreadPoolExecutor(count) as clients:
        bodies = [{"schema": f'{{"type":"string","n":{number}}}'} for number in range(count)]
        answers = [clients.submit(front.call, "POST", check, body, ROOT) for body in bodies]
        try:
            assert [front.call("GET", path, headers=ROOT).status for path in (path, f"{path}/schema")] == [200, 200]
            assert [front.call("GET", path).json["status"] for path in ("/readyz", "/healthz")] == ["ready", "ok"]
            assert front.register("public", STRING).status == 401
            # Even of those who may register nobody waits, under the same subject neither.
            assert front.call("POST", "/subjects/b/versions", {"schema": STRING}, ROOT).status == 200
            assert front.call("POST", "/subjects/a/versions", {"schema": STRING}, ROOT).status == 200
            # Somebody else's check has a place, as anonymous reads of `public-*` show.
            other = clients.submit(front.call, "POST", "/compatibility/subjects/public-a/versions", bodies[0])
            assert not any(answer.done() for answer in (*answers, other))
        finally:
            goes_on.set()
        assert {answer.result().status for answer in (*answers, other)} == {200}


def test_registrations_that_compare_for_long_are_made_as_others_are(
    front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads where there are no processes, and by nobody else than who may."""
    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)
    wider = {"schema": '["null","string"]'}
    refused = front.call("POST", REGISTER, {"schema": '"int"'}, ROOT)
    assert refused.problem[:2] == (409, 40901)
    assert "reader type: INT not compatible with writer type: STRING" in refused.text
    assert front.call("POST", REGISTER, wider).status == 401
    registered = front.call("POST", REGISTER, wider, ROOT)
    assert (registered.status, registered.json["version"]) == (200, 2)
    tagged = front.call("POST", f"{REGISTER}/latest/tags", {"metadata": {"properties": {"x": "y"}}}, ROOT)
    assert (tagged.status, tagged.json["version"]) == (200, 3)


def test_processes_that_die_of_a_comparison_keep_nothing_from_being_registered(
    front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Comparison] = []

    class Dying(HeldUp):
        async def run_comparison(self, comparison: Comparison) -> ComparisonResult | None:
            asked.append(comparison)
            raise BrokenProcessPool

    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)
    monkeypatch.setattr(front._front, "_checkers", Dying(front, threading.Event()))
    assert front.call("POST", REGISTER, {"schema": '["null","string"]'}, ROOT).status == 200
    assert len(asked) == OFFLOADED_COMPARISONS_MAX


def test_who_registers_while_others_do_is_compared_with_what_they_registered(
    front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Comparison] = []
    services = services_of(front._front._application)

    class Late(HeldUp):
        async def run_comparison(self, comparison: Comparison) -> ComparisonResult | None:
            asked.append(comparison)
            if len(asked) == 1:
                union = SchemaRequest('["null","string"]')
                await asyncio.to_thread(services.registration.register, "a", union, normalize=False)
            return await super().run_comparison(comparison)

    goes_on = threading.Event()
    goes_on.set()
    monkeypatch.setattr(resolution, "PAIRS_BETWEEN_TIME_CHECKS", 1)
    monkeypatch.setattr(front._front, "_checkers", Late(front, goes_on))
    # It can read the first version and cannot read the second one.
    refused = front.call("POST", REGISTER, {"schema": '{"type":"string","n":1}'}, ROOT)
    assert (refused.status, [comparison.versions[0][0] for comparison in asked]) == (409, [1, 2])
    assert "oldSchemaVersion: 2" in refused.text


def test_too_many_checks_are_told_so(
    front: RegistryBehindFront, goes_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_lane, "CLIENT_WAITING_MAX", 0)
    with ThreadPoolExecutor(1) as clients:
        path = "/compatibility/subjects/a/versions"
        first = clients.submit(front.call, "POST", path, {"schema": STRING}, ROOT)
        while not front._front._checks._running:
            time.sleep(0.001)
        refused = front.call("POST", path, {"schema": '"int"'}, ROOT)
        goes_on.set()
        assert first.result().status == 200
    assert refused.problem[:2] == (503, 503)
    assert refused.headers["Retry-After"] == "1"


def test_liveness_is_answered_before_all_queues(front: RegistryBehindFront, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = front.call("GET", "/healthz", headers=ROOT)
    monkeypatch.setattr(front._front, "_application", None)
    for accept in ("*/*", "application/json", "text/html"):
        alive = front.call("GET", "/healthz", headers={"accept": accept})
        assert (alive.status, alive.text) == (200, expected.text)
    assert front.call("GET", "/healthz").headers == expected.headers
    assert front.observed.routes[-1] == "/healthz"


def test_who_sends_two_authorizations_is_nobody(front: RegistryBehindFront) -> None:
    root, wrong = ("authorization", ROOT["Authorization"]), ("authorization", basic("root", "wrong"))
    statuses = [
        front.call_with("GET", "/subjects/a/versions/1", headers).status
        for headers in ([root], [root], [wrong, root], [root, wrong], [root, root])
    ]
    assert front.observed.cached[-4]
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
        # Many of these would not take all the place that there is for bodies.
        ("POST", "/subjects/a/versions", [SMALL], 401, True),
    ],
)
def test_bodies_of_strangers_who_may_not_make_the_call_are_not_received(
    front: RegistryBehindFront,
    method: str,
    path: str,
    headers: list[tuple[str, str]],
    status: int,
    is_received: bool,
) -> None:
    answer = front.call_with(method, path, headers, b'{"schema":"1"}')
    assert (answer.status, set(answer.json)) == (status, set() if status == 200 else {"error_code", "message"})
    assert front.body_came_first is is_received


def test_a_body_is_received_once_its_sender_is_known(front: RegistryBehindFront) -> None:
    root = ("authorization", ROOT["Authorization"])
    assert front.call_with("POST", "/subjects/b/versions", [LARGE, root], b'{"schema":"\\"int\\""}').status == 200
    assert front.observed.routes[-1] == "/subjects/<subject:subject>/versions"
    too_large = front.call_with("POST", "/subjects/b/versions", [("content-length", "99999999"), root], b"")
    assert too_large.problem[1] == 42209
    assert not front.body_came_first


@pytest.mark.parametrize("headers", [[("accept", "a/b," * 2000)], [("accept", "a/b;q=0.1")] * 500])
def test_what_is_accepted_is_said_briefly(front: RegistryBehindFront, headers: list[tuple[str, str]]) -> None:
    for method in ("GET", "POST"):
        assert front.call_with(method, "/subjects", headers).problem[:2] == (431, 431)


def test_requests_as_long_as_can_be_are_not_kept_as_they_are(front: RegistryBehindFront) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(80):
            path = f"/subjects/a/versions/1?pad={number}-{'x' * 50_000}"
            for _ in range(2):
                assert front.call("GET", path, headers=ROOT).status == 200
            assert front.observed.cached[-1]
        assert tracemalloc.get_traced_memory()[0] - before < MEGABYTE
    finally:
        tracemalloc.stop()


def test_character_sets_that_there_are_not_are_not_remembered(front: RegistryBehindFront) -> None:
    kept = encodings._cache  # type: ignore[attr-defined]

    def status(charset: str) -> int:
        headers = {"content-type": f"application/json; charset={charset}", **ROOT}
        return front.call("POST", "/subjects/public-none", b'{"schema":"1"}', headers).status

    assert [status(charset) for charset in ("utf-8", "UTF-8", "utf_8_sig", "ISO-8859-1", "cp1252")] == [404] * 5
    before = len(kept)
    assert {status(f"x-{number}") for number in range(50)} == {400}
    # Different names of one that there is.
    assert {status(f"utf{'-' * number}8") for number in range(1, 50)} == {404}
    assert len(kept) == before


@pytest.mark.parametrize("path", ["/x://y/subjects/a/versions", "/://subjects/a/versions"])
def test_what_looks_like_a_url_within_a_path_is_none(front: RegistryBehindFront, path: str) -> None:
    assert front.call("GET", path, headers=ROOT).status == 404


def test_targets_may_be_urls(front: RegistryBehindFront) -> None:
    for scheme in ("http", "https", "HTTP"):
        assert front.call("GET", f"{scheme}://proxied/subjects/a/versions", headers=ROOT).json == [1]


def test_a_target_without_a_path_is_the_root(front: RegistryBehindFront) -> None:
    # What servers make of `GET host HTTP/1.1`.
    answer = front.call("GET", "")
    assert (answer.status, answer.json) == (200, {})
