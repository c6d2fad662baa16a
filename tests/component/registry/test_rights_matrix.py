"""Every call of the API by every kind of user: each right, on what the call is about, on something else, everywhere;
and by each way to say who one is: a password, a token whose role has the right, a client certificate, or nothing.

Which calls there are is the table of needs; what each asks for is said here a second time, by what it does, so that a
mistake in the table is one between the two.
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

from headrace.registry.access.authenticator import UsersFile
from headrace.registry.access.required_permissions import REQUIRED_PERMISSIONS
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.permissions import Permission
from headrace.registry.access.tokens import TokenKeys, TokenRules, TokenVerifier
from headrace.registry.access.users import user_line
from headrace.registry.api.hooks import CERTIFICATE_KEY
from headrace.registry.storage.database import sqlite_url
from support.cases import all_cases
from support.registry.registry_calls import CONTENT_TYPE, Answer, RegistryInProcess, registry_in_process

RUNNING_MAX = {"everywhere": "*", "subject": "s", "other": "other", "context": ":.c:*"}
"""What a user has one right on; the calls are about the subject `s` of the default context."""

USERS = {f"{permission}-{place}": (permission, place) for permission in Permission for place in RUNNING_MAX}
STRANGER, NOBODY = "stranger", ""
WAYS = ("password", "token", "certificate")
KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://id.example.com", "registry"

PUBLIC = {"/", "/healthz", "/readyz", "/openapi.json", "/schemas/types"}
TEXT = '{"type":"fixed","name":"S","size":4}'
BODIES: dict[str, Any] = {
    "config": {"compatibility": "BACKWARD"},
    "mode": {"mode": "READWRITE"},
    "subjects": {"schema": TEXT},
    "compatibility": {"schema": TEXT},
    "follow": {},
}
"""Of calls that change or ask something, by the first part of the path."""


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


def right_for(call: Call) -> Permission:
    """What whoever makes a call must have: reading asks, writing adds or hides, all else is an administrator's."""
    asks = call.method in ("GET", "HEAD")
    only_asks = ("/replication", "/subjects/{subject}")
    if asks or call.route.startswith("/compatibility") or (call.method == "POST" and call.route in only_asks):
        return Permission.READ
    if call.route.endswith("{_rest}"):
        return Permission.READ  # nothing is there
    return Permission.WRITE if call.route.startswith("/subjects") and not call.query else Permission.ADMIN


def places_for(call: Call) -> set[str]:
    """Where that right must be."""
    if any(part in call.route for part in ("{subject}", "{id}", "{guid}")):
        return {"everywhere", "subject"}
    if call.method in ("GET", "HEAD") or call.route.endswith("{_rest}"):
        return set(RUNNING_MAX)
    # The configuration, the mode or all of the default context.
    return {"everywhere"}


def is_open(call: Call) -> bool:
    return call.route in PUBLIC or call.route.startswith("/v1/metadata/")


def token(role: str) -> str:
    """Of somebody whose name is in no file."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, "sub": "somebody", "roles": [role]}
    return jwt.encode(said, KEY, algorithm="ES256", headers={"kid": "k"})


class Users:
    def __init__(self, registry: RegistryInProcess) -> None:
        self._client = registry._client
        self._stored: dict[str, Any] | None = None
        """The version of `s`; None when the last call may have changed it."""

    def __call__(self, name: str, method: str, path: str, body: Any = None, way: str = "password") -> Answer:
        headers, environ = {"Content-Type": CONTENT_TYPE}, {}
        if way == "certificate":
            environ[CERTIFICATE_KEY] = f"CN={name or 'nobody'}"
        elif way == "token" and name:
            headers["Authorization"] = f"Bearer {token(name)}"
        elif name:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{name}:{name}".encode()).decode()
        data = None if body is None else json.dumps(body)
        answer = self._client.open(path, method=method, data=data, headers=headers, environ_overrides=environ)
        if method not in ("GET", "HEAD") and answer.status_code < 400:
            self._stored = None
        return Answer(answer.status_code, dict(answer.headers), answer.get_data(as_text=True))

    def make(self, name: str, call: Call, way: str = "password") -> Answer:
        """The call in the name of a user, about `s`, which is there."""
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
        # What stands behind the name of what can be no context.
        path = "/contexts/a%3Ab/subjects" if "{_rest}" in call.route else call.route.format(**values)
        body = BODIES.get(call.route.split("/")[1]) if call.method in ("POST", "PUT") else None
        return self(name, call.method, f"{path}{call.query}", {} if call.route.endswith("/tags") else body, way)


@contextmanager
def registry_with(directory: Path, *more: str) -> Iterator[Users]:
    """A registry of these users, with more lines in their file."""
    cost = Cost(log2_n=4, r=1, p=1)
    lines = [user_line(name, PasswordHash.of(name, b"salt", cost)) for name in (*USERS, STRANGER)]
    lines += [f"certificate {name} CN={name}" for name in (*USERS, STRANGER)]
    for name, (permission, place) in USERS.items():
        lines += [f"grant {who} {permission} {RUNNING_MAX[place]}" for who in (name, f"@{name}")]
    (directory / "users").write_text("\n".join([*lines, *more]) + "\n")
    public = {**jwt.get_algorithm_by_name("ES256").to_jwk(KEY.public_key(), as_dict=True), "kid": "k"}
    (directory / "keys").write_text(json.dumps({"keys": [public]}))
    tokens = TokenVerifier(TokenKeys(str(directory / "keys")), TokenRules(ISSUER, AUDIENCE))
    authenticator = UsersFile(directory / "users", tokens=tokens)
    with registry_in_process(sqlite_url(directory / "registry.db"), users=authenticator) as registry:
        found = Users(registry)
        assert found("admin-everywhere", "POST", "/subjects/other/versions", {"schema": '"int"'}).status == 200
        yield found


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    with registry_with(tmp_path_factory.mktemp("rights")) as users:
        yield users


def may(permission: Permission, place: str, call: Call) -> bool:
    return is_open(call) or (permission >= right_for(call) and place in places_for(call))


@pytest.mark.parametrize("way", WAYS)
def test_a_call_needs_its_right_on_what_it_is_about(users: Users, way: str) -> None:
    with all_cases() as case:
        for call in every_call():
            with case(" ".join(call)):
                allowed = {name for name, (permission, place) in USERS.items() if may(permission, place, call)}
                statuses = {name: users.make(name, call, way).status for name in (*USERS, STRANGER, NOBODY)}
                assert {name for name in USERS if statuses[name] not in (401, 403)} == allowed
                assert {statuses[name] for name in set(USERS) - allowed} <= {403}
                if is_open(call):
                    assert {statuses[STRANGER], statuses[NOBODY]} == {200}
                else:
                    assert (statuses[STRANGER], statuses[NOBODY]) == (403, 401)


@pytest.fixture(scope="module", params=RUNNING_MAX)
def visited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Users]]:
    """Where who comes with nothing may read, and the registry."""
    with registry_with(tmp_path_factory.mktemp("visited"), f"grant anonymous read {RUNNING_MAX[request.param]}") as users:
        yield request.param, users


def test_anonymous_clients_may_do_what_is_granted_to_them_alone(visited: tuple[str, Users]) -> None:
    place, users = visited
    with all_cases() as case:
        for call in every_call():
            with case(" ".join(call)):
                for way in ("password", "certificate"):  # one that is nobody's
                    status = users.make(NOBODY, call, way).status
                    assert (status not in (401, 403)) if may(Permission.READ, place, call) else status == 401
                # What is granted to anonymous clients is not granted to users without a grant.
                assert users.make(STRANGER, call).status == (200 if is_open(call) else 403)


FOUND_ELSEWHERE = {"/contexts/{context}", "/mode/{subject}", "/config/{subject}", "/subjects/{subject}/metadata"}
"""What `s` does not have."""


def test_what_is_asked_is_there(users: Users) -> None:
    """Else the matrix would be one of paths that are nowhere."""
    for call in every_call():
        if call.method in ("GET", "HEAD") and not call.route.endswith("{_rest}") and call.route not in FOUND_ELSEWHERE:
            assert users.make("admin-everywhere", call).status == 200, call
