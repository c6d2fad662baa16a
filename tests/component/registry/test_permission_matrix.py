"""Every API call by every kind of user: each permission on the subject of the call, on another one, and on everything.

Users authenticate by password, by a token with a role that has the permission, by a client certificate, or not at all.
The calls are those of the table of required permissions. This test derives the required permission a second time, from
the effect of the call, so that an error in the table becomes a difference.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.permissions import Permission
from headrace.registry.access.required_permissions import REQUIRED_PERMISSIONS
from headrace.registry.access.tokens import TokenKeys, TokenRules, TokenVerifier
from headrace.registry.access.users import user_line
from headrace.registry.api.hooks import CERTIFICATE_KEY
from headrace.registry.storage.database import sqlite_url
from support.cases import all_cases
from support.registry.registry_calls import CONTENT_TYPE, RegistryInProcess, RestResponse, registry_in_process

SCOPE_PATTERNS = {"everywhere": "*", "subject": "s", "other": "other", "context": ":.c:*"}
"""The pattern of a user's one permission. The calls are about the subject `s` of the default context."""

USERS = {f"{permission}-{scope}": (permission, scope) for permission in Permission for scope in SCOPE_PATTERNS}
UNGRANTED, ANONYMOUS = "stranger", ""
CREDENTIALS = ("password", "token", "certificate")
KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://id.example.com", "registry"

PUBLIC = {"/", "/healthz", "/readyz", "/openapi.json", "/schemas/types"}
TEXT = '{"type":"fixed","name":"S","size":4}'
BODIES: dict[str, Any] = {
    "config": {"compatibility": "BACKWARD"},
    "mode": {"mode": "READWRITE"},
    "subjects": {"schema": TEXT},
    "compatibility": {"schema": TEXT},
    "replication": {},
}
"""Request bodies, by the first part of the path."""


class Call(NamedTuple):
    method: str
    route: str
    query: str = ""


def every_call() -> Iterator[Call]:
    for method, route in REQUIRED_PERMISSIONS:
        yield Call(method, route)
        if method == "GET":
            yield Call("HEAD", route)
        if method == "DELETE" and route.startswith("/subjects"):
            yield Call(method, route, "?permanent=true")
        if method == "POST" and route.endswith("/versions"):
            yield Call(method, route, "?force=true")


def required_permission(call: Call) -> Permission:
    """The permission that a call requires: READ to read, WRITE to add or hide versions, ADMIN for everything else."""
    is_read = call.method in ("GET", "HEAD")
    read_routes = ("/replication", "/subjects/{subject}")
    if is_read or call.route.startswith("/compatibility") or (call.method == "POST" and call.route in read_routes):
        return Permission.READ
    if call.route.endswith("{_rest}"):
        return Permission.READ  # the route does not exist
    return Permission.WRITE if call.route.startswith("/subjects") and not call.query else Permission.ADMIN


def required_scopes(call: Call) -> set[str]:
    """The scopes in which a user must have that permission."""
    if any(part in call.route for part in ("{subject}", "{id}", "{guid}")):
        return {"everywhere", "subject"}
    if call.method in ("GET", "HEAD") or call.route.endswith("{_rest}"):
        return set(SCOPE_PATTERNS)
    # Configuration, mode, or the whole default context.
    return {"everywhere"}


def is_public(call: Call) -> bool:
    return call.route in PUBLIC or call.route.startswith("/v1/metadata/")


def token(role: str) -> str:
    """A token of a user without an entry in the users file."""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, "sub": "somebody", "roles": [role]}
    return jwt.encode(claims, KEY, algorithm="ES256", headers={"kid": "k"})


class Users:
    def __init__(self, registry: RegistryInProcess) -> None:
        self._client = registry._client
        self._stored: dict[str, Any] | None = None
        """The registered version of `s`; None if the last call is_permitted have changed it."""

    def __call__(
        self, name: str, method: str, path: str, body: Any = None, credential: str = "password"
    ) -> RestResponse:
        headers, environ = {"Content-Type": CONTENT_TYPE}, {}
        if credential == "certificate":
            environ[CERTIFICATE_KEY] = f"CN={name or 'nobody'}"
        elif credential == "token" and name:
            headers["Authorization"] = f"Bearer {token(name)}"
        elif name:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{name}:{name}".encode()).decode()
        data = None if body is None else json.dumps(body)
        response = self._client.open(path, method=method, data=data, headers=headers, environ_overrides=environ)
        if method not in ("GET", "HEAD") and response.status_code < 400:
            self._stored = None
        return RestResponse(response.status_code, dict(response.headers), response.get_data(as_text=True))

    def make(self, name: str, call: Call, credential: str = "password") -> RestResponse:
        """Makes a call about the existing subject `s` as a user."""
        if self._stored is None:
            self._stored = self("admin-everywhere", "POST", "/subjects/s/versions", {"schema": TEXT}).json
        stored = self._stored
        values = {
            "subject": "s",
            "version": stored["version"],
            "id": stored["id"],
            "guid": stored["guid"],
            "context": ".none",
        }
        # A path behind an invalid context name.
        path = "/contexts/a%3Ab/subjects" if "{_rest}" in call.route else call.route.format(**values)
        body = BODIES.get(call.route.split("/")[1]) if call.method in ("POST", "PUT") else None
        return self(name, call.method, f"{path}{call.query}", {} if call.route.endswith("/tags") else body, credential)


@contextmanager
def registry_with(directory: Path, *more: str) -> Iterator[Users]:
    """A registry with these users and more lines in its users file."""
    cost = Cost(log2_n=4, r=1, p=1)
    lines = [user_line(name, PasswordHash.of(name, b"salt", cost)) for name in (*USERS, UNGRANTED)]
    lines += [f"certificate {name} CN={name}" for name in (*USERS, UNGRANTED)]
    for name, (permission, scope) in USERS.items():
        lines += [f"grant {grantee} {permission} {SCOPE_PATTERNS[scope]}" for grantee in (name, f"@{name}")]
    (directory / "users").write_text("\n".join([*lines, *more]) + "\n")
    public = {**jwt.get_algorithm_by_name("ES256").to_jwk(KEY.public_key(), as_dict=True), "kid": "k"}
    (directory / "keys").write_text(json.dumps({"keys": [public]}))
    tokens = TokenVerifier(TokenKeys(str(directory / "keys")), TokenRules(ISSUER, AUDIENCE))
    authenticator = RegistryUsersFile(directory / "users", tokens=tokens)
    with registry_in_process(sqlite_url(directory / "registry.db"), users=authenticator) as registry:
        found = Users(registry)
        assert found("admin-everywhere", "POST", "/subjects/other/versions", {"schema": '"int"'}).status == 200
        yield found


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    with registry_with(tmp_path_factory.mktemp("rights")) as users:
        yield users


def is_permitted(permission: Permission, scope: str, call: Call) -> bool:
    return is_public(call) or (permission >= required_permission(call) and scope in required_scopes(call))


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_call_requires_its_permission_on_its_subject(users: Users, credential: str) -> None:
    with all_cases() as case:
        for call in every_call():
            with case(" ".join(call)):
                allowed = {name for name, (permission, scope) in USERS.items() if is_permitted(permission, scope, call)}
                statuses = {name: users.make(name, call, credential).status for name in (*USERS, UNGRANTED, ANONYMOUS)}
                assert {name for name in USERS if statuses[name] not in (401, 403)} == allowed
                assert {statuses[name] for name in set(USERS) - allowed} <= {403}
                if is_public(call):
                    assert {statuses[UNGRANTED], statuses[ANONYMOUS]} == {200}
                else:
                    assert (statuses[UNGRANTED], statuses[ANONYMOUS]) == (403, 401)


@pytest.fixture(scope="module", params=SCOPE_PATTERNS)
def anonymous_scope(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Users]]:
    """The scope in which anonymous clients is_permitted read, and the registry."""
    with registry_with(
        tmp_path_factory.mktemp("anonymous_scope"), f"grant anonymous read {SCOPE_PATTERNS[request.param]}"
    ) as users:
        yield request.param, users


def test_anonymous_clients_have_their_own_grants_only(anonymous_scope: tuple[str, Users]) -> None:
    scope, users = anonymous_scope
    with all_cases() as case:
        for call in every_call():
            with case(" ".join(call)):
                for credential in ("password", "certificate"):  # a certificate without a user
                    status = users.make(ANONYMOUS, call, credential).status
                    assert (status not in (401, 403)) if is_permitted(Permission.READ, scope, call) else status == 401
                # Grants of anonymous clients are not grants of users.
                assert users.make(UNGRANTED, call).status == (200 if is_public(call) else 403)


ROUTES_WITHOUT_RESOURCE = {
    "/contexts/{context}",
    "/mode/{subject}",
    "/config/{subject}",
    "/subjects/{subject}/metadata",
}
"""Routes without an existing resource for `s`."""


def test_calls_reach_existing_resources(users: Users) -> None:
    """Otherwise the calls would not reach existing resources."""
    for call in every_call():
        if (
            call.method in ("GET", "HEAD")
            and not call.route.endswith("{_rest}")
            and call.route not in ROUTES_WITHOUT_RESOURCE
        ):
            assert users.make("admin-everywhere", call).status == 200, call
