"""Requests of web pages of other origins (CORS), with and without users."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.command import CommandError
from headrace.cli.registry import serve_registry
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from headrace.registry.api.cross_origin import CrossOriginPolicy
from headrace.settings import RegistrySettings, Settings
from support.cases import all_cases
from support.registry.registry_calls import STRING, RestResponse
from support.registry.registry_front import RegistryBehindFront

PAGE, OTHER = "https://ui.example.com", "https://evil.example.com"
ROOT = {"Authorization": "Basic " + base64.b64encode(b"root:root").decode()}
VERSIONS = "/subjects/a/versions"


def make_front(url: str, directory: Path, *origins: str) -> RegistryBehindFront:
    users = directory / "users"
    users.write_text(user_line("root", PasswordHash.of("root", b"salt", Cost(4, 1, 1))) + "\ngrant root admin *\n")
    front = RegistryBehindFront(url, users=RegistryUsersFile(users), cross_origin=CrossOriginPolicy.of(origins))
    assert front.call("POST", VERSIONS, {"schema": STRING}, ROOT).status == 200
    return front


@pytest.fixture
def front(sqlite_database_url: str, tmp_path: Path) -> Iterator[RegistryBehindFront]:
    front = make_front(sqlite_database_url, tmp_path, PAGE, "http://localhost:3000")
    yield front
    front.close()


def cors(response: RestResponse) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith(("Access-Control", "Vary"))}


def preflight(front: RegistryBehindFront, origin: str, **more: str) -> RestResponse:
    headers = {"Origin": origin, "Access-Control-Request-Method": "PUT"} | more
    return front.call("OPTIONS", "/config/a", None, headers)


def test_listed_origin_may_read_every_response(front: RegistryBehindFront) -> None:
    """Also cached responses, and errors of front and application."""
    allowed = {
        "Access-Control-Allow-Origin": PAGE,
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Expose-Headers": "Retry-After, X-Request-ID",
        "Vary": "Origin",
    }
    with all_cases() as case:
        for path, headers, status in [
            (VERSIONS, ROOT, 200),
            (VERSIONS, ROOT, 200),
            (VERSIONS, {}, 401),
            ("/subjects/none/versions", ROOT, 404),
            ("/healthz", {}, 200),
            (VERSIONS, {"Accept": "a" * 5000}, 431),
        ]:
            with case((path, status)):
                response = front.get(path, **headers, Origin=PAGE)
                assert (response.status, cors(response)) == (status, allowed)
    assert front.observer.cached[2]


def test_other_origins_may_not_read_responses(front: RegistryBehindFront) -> None:
    front.get(VERSIONS, **ROOT, Origin=PAGE)
    for origin in (OTHER, "null", "", PAGE + ":444", "https://ui.example.com.evil.example.com"):
        response = front.get(VERSIONS, **ROOT, Origin=origin)
        assert (response.status, cors(response)) == (200, {"Vary": "Origin"})
    assert cors(front.get(VERSIONS, **ROOT)) == {"Vary": "Origin"}
    assert "Access-Control-Allow-Methods" not in cors(preflight(front, OTHER))


def test_preflight_needs_no_credentials(front: RegistryBehindFront) -> None:
    names = "authorization,content-type,confluent-accept-unknown-properties"
    response = preflight(front, PAGE, **{"Access-Control-Request-Headers": names})
    assert (response.status, response.text) == (204, "")
    assert cors(response) == {
        "Access-Control-Allow-Origin": PAGE,
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, DELETE",
        "Access-Control-Allow-Headers": names,
        "Access-Control-Max-Age": "1800",
        "Access-Control-Expose-Headers": "Retry-After, X-Request-ID",
        "Vary": "Origin",
    }
    assert "Access-Control-Allow-Headers" not in cors(preflight(front, PAGE))
    # Without a requested method it is no preflight; without credentials the request itself is rejected.
    assert "POST" in front.call("OPTIONS", VERSIONS, None, {"Origin": PAGE}).headers["Allow"]
    assert front.call("PUT", "/config/a", {"compatibility": "NONE"}, {"Origin": PAGE}).status == 401


def test_other_origins_cannot_register_without_a_preflight(front: RegistryBehindFront) -> None:
    """A browser sends a POST without content type at once. The API accepts one from other clients."""
    authorization = ("authorization", ROOT["Authorization"])
    body = b'{"schema":"\\"int\\""}'
    for number, (origin, status) in enumerate(((OTHER, 415), ("null", 415), (PAGE, 200), (None, 200))):
        headers = [authorization, *([("origin", origin)] if origin else [])]
        assert front.call_with("POST", f"/subjects/n-{number}/versions", headers, body).status == status
    for content_type in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
        headers = [authorization, ("origin", OTHER), ("content-type", content_type)]
        assert front.call_with("POST", "/subjects/n-0/versions", headers, body).status == 415
    assert front.get("/subjects", **ROOT).json == ["a", "n-2", "n-3"]


def test_every_origin_is_allowed_without_stored_credentials(sqlite_database_url: str, tmp_path: Path) -> None:
    front = make_front(sqlite_database_url, tmp_path, "*")
    try:
        for response in (front.get(VERSIONS, **ROOT, Origin=OTHER), preflight(front, OTHER)):
            assert response.headers["Access-Control-Allow-Origin"] == "*"
            assert "Access-Control-Allow-Credentials" not in response.headers
    finally:
        front.close()


def test_no_origin_is_allowed_by_default(sqlite_database_url: str, tmp_path: Path) -> None:
    front = make_front(sqlite_database_url, tmp_path)
    try:
        assert cors(front.get(VERSIONS, **ROOT, Origin=PAGE)) == cors(preflight(front, PAGE)) == {}
    finally:
        front.close()


@pytest.mark.parametrize(
    "origins",
    [
        ["https://ui.example.com/"],
        ["ui.example.com"],
        ["null"],
        ["https://*.example.com"],
        ["*", PAGE],
        ["https://a b"],
    ],
)
def test_invalid_origins_prevent_the_start(origins: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(registry=RegistrySettings(access_control_allow_origin=tuple(origins)))
    monkeypatch.setattr("headrace.cli.registry.settings_from", lambda _: settings)
    arguments: Any = None
    with pytest.raises(CommandError, match=r"registry\.access_control_allow_origin"):
        serve_registry(arguments)
