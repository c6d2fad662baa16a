"""Which requests the console accepts, and the headers of its responses."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from headrace.console.addresses import trusted_hosts
from headrace.console.database import DATABASE_NAME
from headrace.console.errors import ConsoleUnusable
from headrace.console.server import check_settings
from headrace.console.sessions import AGE_MS_MAX, IDLE_MS, SEEN_MS
from headrace.settings import Address, ConsoleSettings, Settings
from support.console import NOW_MS, PASSWORD, SAME_ORIGIN, console_world, user_line

READER = user_line("lea") + "grant lea read *\n"
UNLISTED = user_line("max")  # a user without a grant


def form_token(client: FlaskClient) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', client.get("/").text)
    assert found is not None
    return found[1]


def test_every_response_forbids_foreign_content(tmp_path: Path) -> None:
    client = console_world(tmp_path).client()
    for path in ("/", "/nope", "/healthz", "/static/console.css"):
        headers = client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"


def test_other_host_name_is_rejected(tmp_path: Path) -> None:
    client = console_world(tmp_path).client()
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"Host": "127.0.0.1.evil.example"}).status_code == 400
    for name in ("localhost:8080", "127.0.0.1:8080", "[::1]:8080"):
        assert client.get("/healthz", headers={"Host": name}).status_code == 200


@pytest.mark.parametrize(
    ("own", "names"),
    [
        ({"listen": Address("10.0.0.7", 8080)}, {"10.0.0.7"}),
        ({"listen": Address("0.0.0.0", 8080), "public_url": "https://ops.example.com/x"}, {"ops.example.com"}),
    ],
)
def test_trusted_hosts_are_loopback_and_own_names(own: dict[str, object], names: set[str]) -> None:
    assert set(trusted_hosts(ConsoleSettings(**own))) == names | {"localhost", "127.0.0.1", "::1"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "own",
    [
        {"listen": Address("0.0.0.0", 8080), "allow_unauthenticated_from": "network"},  # without a name
        {"listen": Address("10.0.0.7", 8080)},  # anonymous clients of a network
        {"public_url": "ops.example.com"},
        {"public_url": "https://lea:secret@ops.example.com"},
    ],
)
def test_settings_that_expose_the_console_are_refused(own: dict[str, object]) -> None:
    with pytest.raises(ConsoleUnusable, match="console"):
        check_settings(Settings(console=ConsoleSettings(**own)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-site"},  # another port of 127.0.0.1
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "null"},
        {},
    ],
)
def test_form_of_another_origin_is_rejected(tmp_path: Path, headers: dict[str, str]) -> None:
    world = console_world(tmp_path, READER)
    client = world.signed_in("lea")
    token = form_token(client)
    assert client.post("/sign-out", data={"form_token": token}, headers=headers).status_code == 403
    assert client.post("/sign-in", data={"user": "lea", "password": PASSWORD}, headers=headers).status_code == 403
    assert client.get("/").status_code == 200  # still signed in


def test_form_of_same_origin_needs_token_of_its_session(tmp_path: Path) -> None:
    world = console_world(tmp_path, READER)
    client, other = world.signed_in("lea"), world.signed_in("lea")
    for token in ("", "00", form_token(other)):
        assert client.post("/sign-out", data={"form_token": token}, headers=SAME_ORIGIN).status_code == 403
    origin = {"Origin": "http://localhost"}  # of a browser without Sec-Fetch-Site
    assert client.post("/sign-out", data={"form_token": form_token(client)}, headers=origin).status_code == 303
    assert client.get("/").status_code == 302
    assert other.get("/").status_code == 200


def test_page_without_permission_leads_to_sign_in_and_back(tmp_path: Path) -> None:
    client = console_world(tmp_path, READER).client()
    response = client.get("/?range=7d")
    assert (response.status_code, response.headers["Location"]) == (302, "/sign-in?next=/?range%3D7d")
    assert client.get("/healthz").status_code == 200
    form = {"user": "lea", "password": "wrong", "next": "/?range=7d"}
    refused = client.post("/sign-in", data=form, headers=SAME_ORIGIN)
    assert refused.status_code == 401
    assert "wrong" in refused.text
    accepted = client.post("/sign-in", data={**form, "password": PASSWORD}, headers=SAME_ORIGIN)
    # A wrong password of this address just before may delay the check of the next one.
    assert accepted.status_code in (303, 503)


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)"]
)
def test_sign_in_never_leads_to_another_site(tmp_path: Path, target: str) -> None:
    client = console_world(tmp_path, READER).client()
    form = {"user": "lea", "password": PASSWORD, "next": target}
    assert client.post("/sign-in", data=form, headers=SAME_ORIGIN).headers["Location"] == "/"


def test_user_without_grant_sees_nothing(tmp_path: Path) -> None:
    client = console_world(tmp_path, READER + UNLISTED).signed_in("max")
    assert client.get("/").status_code == 403


def test_session_cookie_is_unreadable_and_changes_at_sign_in(tmp_path: Path) -> None:
    world = console_world(tmp_path, READER, public_url="https://localhost/headrace")
    client = world.client()
    secrets = []
    for _ in range(2):
        response = client.post(
            "/headrace/sign-in",
            data={"user": "lea", "password": PASSWORD},
            headers=SAME_ORIGIN,
            base_url="https://localhost",
        )
        cookie = response.headers["Set-Cookie"]
        assert cookie.startswith("__Host-headrace=")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=Lax"} <= set(cookie.split("; "))
        secrets.append(cookie.split("=")[1].split(";")[0])
    assert secrets[0] != secrets[1]
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        rows = database.execute("SELECT * FROM console_login").fetchall()
    assert len(rows) == 1  # the first session has ended
    assert not any(secret in str(row) for secret in secrets for row in rows)


@pytest.mark.parametrize(("idle_ms", "status"), [(IDLE_MS - 1, 200), (IDLE_MS + 1, 302)])
def test_session_ends_when_idle(tmp_path: Path, idle_ms: int, status: int) -> None:
    world = console_world(tmp_path, READER)
    client = world.signed_in("lea")
    world.now_ms += idle_ms
    assert client.get("/").status_code == status


def test_session_ends_after_a_day_although_it_is_used(tmp_path: Path) -> None:
    world = console_world(tmp_path, READER)
    client = world.signed_in("lea")
    statuses = []
    while world.now_ms <= NOW_MS + AGE_MS_MAX:
        world.now_ms += IDLE_MS // 2
        statuses.append(client.get("/").status_code)
    assert statuses == [200] * (len(statuses) - 1) + [302]


def test_time_of_the_last_request_is_stored_once_a_minute(tmp_path: Path) -> None:
    world = console_world(tmp_path, READER)
    client = world.signed_in("lea")

    def seen_ms() -> int:
        with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
            return int(database.execute("SELECT seen_at_ms FROM console_login").fetchone()[0])

    for after_ms, stored_ms in ((SEEN_MS, 0), (SEEN_MS + 1, SEEN_MS + 1)):
        world.now_ms = NOW_MS + after_ms
        client.get("/")
        assert seen_ms() == NOW_MS + stored_ms


@pytest.mark.parametrize(
    ("users", "status"),
    [
        (READER + "# a comment\n", 200),
        (user_line("lea", "another") + "grant lea read *\n", 302),
        (user_line("max") + "grant max read *\n", 302),
        (user_line("lea"), 403),  # the grant was deleted
    ],
)
def test_changed_users_file_applies_to_sessions(
    tmp_path: Path, users: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.registry.access.authenticator.RELOAD_S", 0.0)
    world = console_world(tmp_path, READER)
    client = world.signed_in("lea")
    world.users_path.write_text(users)
    assert client.get("/").status_code == status


def test_program_authenticates_each_request_without_session(tmp_path: Path) -> None:
    client = console_world(tmp_path, READER).client()
    response = client.get("/", auth=("lea", PASSWORD))
    assert response.status_code == 200
    assert "Set-Cookie" not in response.headers
    assert client.get("/", auth=("max", PASSWORD)).status_code == 401


def test_payload_is_a_permission_of_its_own(tmp_path: Path) -> None:
    users = user_line("lea") + "grant lea admin *\n" + user_line("max") + "grant max payload orders*\n"
    world = console_world(tmp_path, users)
    access = world.app.extensions["headrace-console"].access
    lea, maximilian = access.log_in("lea", PASSWORD, ""), access.log_in("max", PASSWORD, "")
    assert (lea.may_read, lea.may_read_payload("orders"), lea.may_administer("orders")) == (True, False, True)
    assert (maximilian.may_read, maximilian.may_read_payload("orders.eu")) == (False, True)
    assert not maximilian.may_read_payload("payments")


@pytest.mark.parametrize(("host", "everything"), [("127.0.0.1", True), ("10.0.0.7", False)])
def test_console_without_users_permits_everything_on_loopback_only(tmp_path: Path, host: str, everything: bool) -> None:
    world = console_world(tmp_path, listen=Address(host, 8080))
    found = world.app.extensions["headrace-console"].access.anonymous()
    assert (found.may_read, found.may_read_payload("t"), found.may_administer("t")) == (True, everything, everything)


@pytest.mark.parametrize("path", ["/", "/headrace/", "/headrace"])
def test_links_have_the_path_of_the_public_url(tmp_path: Path, path: str) -> None:
    client = console_world(tmp_path, public_url="https://ops.example.com/headrace/").client()
    text = client.get(path).text
    targets = re.findall(r'(?:href|src|action)="([^"#]+)"', text)
    assert targets
    assert all(target.startswith("/headrace/") for target in targets)


def test_forwarded_address_counts_only_from_configured_proxies(tmp_path: Path) -> None:
    for proxies, expected in ((0, "127.0.0.1"), (1, "9.9.9.9")):
        (tmp_path / str(proxies)).mkdir()
        world = console_world(tmp_path / str(proxies), proxies=proxies)
        seen: list[str | None] = []

        def note() -> None:
            from flask import request

            seen.append(request.remote_addr)  # noqa: B023

        world.app.before_request(note)
        world.client().get("/healthz", headers={"X-Forwarded-For": "9.9.9.9"})
        assert seen == [expected]
