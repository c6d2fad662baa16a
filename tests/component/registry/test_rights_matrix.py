"""Every call of the API by every kind of user: each right, on what the call is about, on something else, everywhere.

Which calls there are is the table of needs; what each asks for is said here a second time, by what it does, so that a
mistake in the table is one between the two.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from headrace.registry.access.authenticator import UsersFile
from headrace.registry.access.needs import NEEDS
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.rights import Right
from headrace.registry.access.users import user_line
from headrace.registry.storage.database import sqlite_url
from registry_calls import Answer, Registry, registry_in_process

PLACES = {"everywhere": "*", "subject": "s", "other": "other", "context": ":.c:*"}
"""What a user has one right on; the calls are about the subject `s` of the default context."""

USERS = {f"{right}-{place}": (right, place) for right in Right for place in PLACES}
STRANGER, NOBODY = "stranger", ""

OPEN = {"/", "/healthz", "/readyz", "/openapi.json", "/schemas/types"}
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
    for method, route in NEEDS:
        yield Call(method, route)
        if method == "GET":
            yield Call("HEAD", route)
        if method == "DELETE" and route.startswith("/subjects"):
            yield Call(method, route, "?permanent=true")
        if method == "POST" and route.endswith("/versions"):
            yield Call(method, route, "?force=true")


def right_for(call: Call) -> Right:
    """What whoever makes a call must have: reading asks, writing adds or hides, all else is an administrator's."""
    asks = call.method in ("GET", "HEAD")
    only_asks = ("/follow", "/subjects/{subject}")
    if asks or call.route.startswith("/compatibility") or (call.method == "POST" and call.route in only_asks):
        return Right.READ
    if call.route.endswith("{_rest}"):
        return Right.READ  # nothing is there
    return Right.WRITE if call.route.startswith("/subjects") and not call.query else Right.ADMIN


def places_for(call: Call) -> set[str]:
    """Where that right must be."""
    if any(part in call.route for part in ("{subject}", "{id}", "{guid}")):
        return {"everywhere", "subject"}
    if call.method in ("GET", "HEAD") or call.route.endswith("{_rest}"):
        return set(PLACES)
    # The configuration, the mode or all of the default context.
    return {"everywhere"}


def is_open(call: Call) -> bool:
    return call.route in OPEN or call.route.startswith("/v1/metadata/")


class Users:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __call__(self, name: str, method: str, path: str, body: Any = None) -> Answer:
        token = base64.b64encode(f"{name}:{name}".encode()).decode()
        return self._registry.call(method, path, body, {"Authorization": f"Basic {token}"} if name else {})

    def make(self, name: str, call: Call) -> Answer:
        """The call in the name of a user, about `s`, which is there."""
        stored = self("admin-everywhere", "POST", "/subjects/s/versions", {"schema": TEXT}).json
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
        return self(name, call.method, f"{path}{call.query}", {} if call.route.endswith("/tags") else body)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    folder = tmp_path_factory.mktemp("rights")
    cost = Cost(log2_n=4, r=1, p=1)
    lines = [user_line(name, PasswordHash.of(name, b"salt", cost)) for name in (*USERS, STRANGER)]
    lines += [f"grant {name} {right} {PLACES[place]}" for name, (right, place) in USERS.items()]
    (folder / "users").write_text("\n".join(lines) + "\n")
    with registry_in_process(sqlite_url(folder / "registry.db"), users=UsersFile(folder / "users")) as registry:
        found = Users(registry)
        assert found("admin-everywhere", "POST", "/subjects/other/versions", {"schema": '"int"'}).status == 200
        yield found


@pytest.mark.parametrize("call", list(every_call()), ids=lambda call: " ".join(call))
def test_who_may_make_a_call(users: Users, call: Call) -> None:
    allowed = {
        name
        for name, (right, place) in USERS.items()
        if is_open(call) or (right >= right_for(call) and place in places_for(call))
    }
    statuses = {name: users.make(name, call).status for name in (*USERS, STRANGER, NOBODY)}
    assert {name for name in USERS if statuses[name] not in (401, 403)} == allowed
    assert {statuses[name] for name in set(USERS) - allowed} <= {403}
    if is_open(call):
        assert {statuses[STRANGER], statuses[NOBODY]} == {200}
    else:
        assert (statuses[STRANGER], statuses[NOBODY]) == (403, 401)


FOUND_ELSEWHERE = {"/contexts/{context}", "/mode/{subject}", "/config/{subject}", "/subjects/{subject}/metadata"}
"""What `s` does not have."""


def test_what_is_asked_is_there(users: Users) -> None:
    """Else the matrix would be one of paths that are nowhere."""
    for call in every_call():
        if call.method in ("GET", "HEAD") and not call.route.endswith("{_rest}") and call.route not in FOUND_ELSEWHERE:
            assert users.make("admin-everywhere", call).status == 200, call
