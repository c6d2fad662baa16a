"""Sign-in through an OpenID provider, against a provider with a real key."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from flask.testing import FlaskClient

from headrace.console.errors import ConsoleUnusable
from headrace.console.server import check_settings
from headrace.settings import ConsoleSettings, RegistrySettings, Settings
from support.console import ConsoleWorld, console_world, user_line
from support.openid_provider import CLIENT_ID, CLIENT_SECRET, OpenIdProvider, serve_provider

USERS = user_line("admin") + "grant @ops read *\ngrant @ops payload orders*\ngrant @night read clicks-value\n"
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.fixture
def provider() -> Iterator[OpenIdProvider]:
    with serve_provider() as found:
        yield found


def world_of(directory: Path, provider: OpenIdProvider, **own: Any) -> ConsoleWorld:
    secret = directory / "secret"
    secret.write_text(f"{CLIENT_SECRET}\n")
    given = {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT_ID, "oidc_client_secret_file": str(secret)}
    return console_world(directory, USERS, **{**given, **own})


def at_provider(client: FlaskClient, target: str = "/topics") -> str:
    """Begins a sign-in, and returns the URL at the console to which the provider sends the browser back."""
    response = client.get(f"/sign-in/oidc?next={target}")
    assert response.status_code == 302, response.text
    try:
        urllib.request.build_opener(_NoRedirect).open(response.headers["Location"])
    except urllib.error.HTTPError as answer:
        assert answer.code == 302, answer.read()
        return str(answer.headers["Location"])
    raise AssertionError("the provider did not redirect")


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def test_user_signs_in_with_the_roles_of_the_provider_and_no_token_is_stored(
    tmp_path: Path, provider: OpenIdProvider
) -> None:
    world = world_of(tmp_path, provider)
    client = world.client()
    assert f'href="/sign-in/oidc?next=/topics">Sign in with {urlsplit(provider.issuer).hostname}' in (
        client.get("/sign-in?next=/topics").text
    )
    back = at_provider(client)
    assert back.startswith("http://localhost/sign-in/oidc/done?")
    response = client.get(path_of(back))
    assert (response.status_code, response.headers["Location"]) == (303, "/topics")
    cookies = {one.partition("=")[0]: one for one in response.headers.getlist("Set-Cookie")}
    assert set(cookies) == {"headrace", "headrace-sign-in"}
    assert all("HttpOnly" in one and "SameSite=Lax" in one for one in cookies.values())
    page = client.get("/topics")
    assert page.status_code == 200
    assert '<span class="user">lea</span>' in page.text
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("console.db*"))
    assert b"lea" in stored
    assert len(provider.issued) == 3
    assert not any(token.encode() in stored for token in provider.issued if token != "Bearer")


def test_permissions_are_those_of_the_roles_in_the_present_users_file(tmp_path: Path, provider: OpenIdProvider) -> None:
    world = world_of(tmp_path, provider)
    provider.claims["roles"] = "night unknown"
    client = world.client()
    client.get(path_of(at_provider(client)))
    assert client.get("/topics").status_code == 200
    assert client.get("/schemas/subject?name=orders-value").status_code == 403
    provider.claims["roles"] = []
    other = world.client()
    other.get(path_of(at_provider(other)))
    assert other.get("/topics").status_code == 403


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"iss": "https://evil.example"},
        {"aud": "another client"},
        {"aud": [CLIENT_ID, "another client"]},
        {"azp": "another client"},
        {"exp": int(time.time()) - 3600},
        {"exp": None},
        {"sub": ""},
        {"sub": "x" * 201},
    ],
    ids=lambda claims: next(iter(claims)),  # without the time, so that all workers have the same ids
)
def test_id_token_with_a_wrong_claim_is_refused(
    tmp_path: Path, provider: OpenIdProvider, claims: dict[str, Any]
) -> None:
    provider.claims |= claims
    provider.claims = {name: value for name, value in provider.claims.items() if value is not None}
    if claims.get("nonce", "") is None:
        provider.claims["nonce"] = ""
    if claims.get("exp", 0) is None:
        provider.claims["exp"] = "soon"
    assert_refused(world_of(tmp_path, provider))


def assert_refused(world: ConsoleWorld) -> None:
    client = world.client()
    response = client.get(path_of(at_provider(client)))
    assert response.status_code == 401
    assert "did not confirm the sign-in" in response.text
    assert client.get("/topics").status_code == 302


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_id_token_without_an_asymmetric_signature_is_refused(
    tmp_path: Path, provider: OpenIdProvider, algorithm: str
) -> None:
    provider.algorithm = algorithm
    provider.metadata["id_token_signing_alg_values_supported"] = ["RS256", "none", "HS256"]
    assert_refused(world_of(tmp_path, provider))


def test_id_token_of_another_key_and_missing_id_token_are_refused(tmp_path: Path, provider: OpenIdProvider) -> None:
    world = world_of(tmp_path, provider)
    key, provider.key = provider.key, OTHER_KEY
    assert_refused(world)
    provider.key = key
    provider.leaves_out = {"id_token"}
    assert_refused(world)


def test_sign_in_of_another_browser_or_of_ten_minutes_ago_is_refused(tmp_path: Path, provider: OpenIdProvider) -> None:
    world = world_of(tmp_path, provider)
    client, other = world.client(), world.client()
    back = path_of(at_provider(client))
    assert other.get(back).status_code == 401
    at_provider(other)
    assert other.get(back).status_code == 401
    assert client.get(back.replace("state=", "state=A")).status_code == 401
    assert client.get("/sign-in/oidc/done").status_code == 401
    world.now_ms += 600_001
    assert "expired" in client.get(back).text
    world.now_ms -= 1
    assert client.get(back).status_code == 303
    assert client.get(back).status_code == 401  # the cookie of the sign-in is deleted


def test_response_of_another_issuer_or_with_an_error_is_refused(tmp_path: Path, provider: OpenIdProvider) -> None:
    client = world_of(tmp_path, provider).client()
    back = path_of(at_provider(client))
    assert client.get(f"{back}&iss=https://evil.example").status_code == 401
    state = parse_qs(urlsplit(back).query)["state"][0]
    page = client.get(f"/sign-in/oidc/done?state={state}&error=<script>alert(1)</script>")
    assert page.status_code == 401
    assert "<script>alert" not in page.text
    assert client.get(f"/sign-in/oidc/done?state={state}&code=wrong").status_code == 401
    assert client.get(f"{back}&iss={provider.issuer}").status_code == 303


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_target_outside_of_the_console_becomes_the_first_page(
    tmp_path: Path, provider: OpenIdProvider, target: str
) -> None:
    client = world_of(tmp_path, provider).client()
    assert client.get(path_of(at_provider(client, target))).headers["Location"] == "/"


def test_public_url_is_where_the_provider_sends_browsers(tmp_path: Path, provider: OpenIdProvider) -> None:
    world = world_of(tmp_path, provider, public_url="https://ops.example.com/headrace")
    client = world.client()
    response = client.get("/headrace/sign-in/oidc")
    asked = parse_qs(urlsplit(response.headers["Location"]).query)
    assert asked["redirect_uri"] == ["https://ops.example.com/headrace/sign-in/oidc/done"]
    assert "Secure" in response.headers["Set-Cookie"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": None},
    ],
    ids=str,
)
def test_wrong_metadata_are_refused(tmp_path: Path, provider: OpenIdProvider, metadata: dict[str, Any]) -> None:
    provider.metadata = metadata
    response = world_of(tmp_path, provider).client().get("/sign-in/oidc")
    assert response.status_code == 503
    assert "cannot be reached" in response.text


def test_provider_that_does_not_respond_leaves_the_password_form(tmp_path: Path) -> None:
    with serve_provider() as provider:
        world = world_of(tmp_path, provider)
    response = world.client().get("/sign-in/oidc")
    assert response.status_code == 503
    assert 'name="password"' in response.text
    assert world.signed_in("admin").get("/topics").status_code == 403  # signed in, without a grant


def test_sessions_end_when_the_provider_is_no_longer_in_the_settings(tmp_path: Path, provider: OpenIdProvider) -> None:
    client = world_of(tmp_path, provider).client()
    client.get(path_of(at_provider(client)))
    cookie = client.get_cookie("headrace")
    assert cookie is not None
    without = console_world(tmp_path, USERS).client()
    without.set_cookie("headrace", cookie.value)
    assert without.get("/topics").status_code == 302
    assert without.get("/sign-in/oidc").status_code == 404


@pytest.mark.parametrize(
    ("changes", "users", "words"),
    [
        ({}, "", "registry.users"),
        ({"oidc_client_id": ""}, "users", "console.oidc_client_id"),
        ({"oidc_issuer": "http://sso.example.com"}, "users", "https"),
        ({"oidc_issuer": "sso"}, "users", "https"),
        ({"oidc_scopes": "profile"}, "users", "openid"),
        ({"oidc_client_secret_file": "/nonexistent/secret"}, "users", "oidc_client_secret_file"),
    ],
)
def test_wrong_settings_are_refused_with_the_setting_to_change(changes: dict[str, str], users: str, words: str) -> None:
    own = ConsoleSettings(oidc_issuer="https://sso.example.com", oidc_client_id="headrace")
    settings = Settings(console=replace(own, **changes), registry=RegistrySettings(users=users))
    with pytest.raises(ConsoleUnusable, match=words):
        check_settings(settings)
