"""Permissions of clients by the users file of the registry."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.gateway.access import Caller, GatewayAccess
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.schemas import SchemaChoice
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.required_permissions import TOO_BUSY, Denial
from headrace.settings import LoaderSettings

NAMES = ("writer", "reader", "consumer", "admin", "nobody")
GRANTS = """
grant writer write orders-*
grant reader read *
grant consumer payload orders
grant admin admin orders-value
grant anonymous read public-value
"""


def access_of(path: Path) -> GatewayAccess:
    hashed = PasswordHash.of("secret", bytes(16), Cost(log2_n=4, r=1, p=1))
    users = path / "users"
    users.write_text("".join(f"user {name} {hashed}\n" for name in NAMES) + GRANTS)
    return GatewayAccess(RegistryUsersFile(users), LoaderSettings())


def caller(access: GatewayAccess, user: str = "", password: str = "secret") -> Caller:
    token = base64.b64encode(f"{user}:{password}".encode())
    headers = [(b"accept", b"x"), *([(b"authorization", b"Basic " + token)] if user else [])]
    return asyncio.run(access.caller({"client": ("10.0.0.1", 1), "headers": headers}))


def foreign(**fields: Any) -> Callable[[Caller], None]:
    return lambda one: one.require_schema("orders", SchemaChoice(**fields))


REQUESTS: dict[str, tuple[Callable[[Caller], None], set[str]]] = {
    "produce": (lambda one: one.require_produce("orders"), {"writer", "admin"}),
    "produce elsewhere": (lambda one: one.require_produce("other"), set()),
    "consume": (lambda one: one.require_consume("orders"), {"consumer"}),
    "describe": (lambda one: one.require_describe("orders"), {"writer", "reader", "admin"}),
    "describe public": (lambda one: one.require_describe("public"), {"reader", ""}),
    "administer": (lambda one: one.require_administer("orders"), {"admin"}),
    "anything": (lambda one: one.require_any(), {"writer", "reader", "admin", ""}),
    "no schema": (lambda one: one.require_schema("orders", None), {*NAMES, ""}),
    "own subject": (foreign(subject="orders-value", text='"int"'), {*NAMES, ""}),
    "register key": (foreign(subject="orders-key", text='"int"'), {"writer"}),
    "use key": (foreign(subject="orders-key", schema_id=1), {"writer", "reader"}),
    "use latest of another subject": (foreign(subject="public-value"), {"reader", ""}),
}


def test_requests_need_the_permissions_of_the_table(tmp_path: Path) -> None:
    access = access_of(tmp_path)
    callers = {name: caller(access, name) for name in NAMES} | {"": caller(access)}
    found = {}
    for request, (check, _) in REQUESTS.items():
        found[request] = set(callers)
        for name, one in callers.items():
            try:
                check(one)
            except GatewayError as error:
                found[request].discard(name)
                assert error.kind is (Kind.NOT_AUTHORIZED if name else Kind.NOT_AUTHENTICATED)
    assert found == {request: permitted for request, (_, permitted) in REQUESTS.items()}
    assert {name for name, one in callers.items() if one.may_describe("orders")} == {"writer", "reader", "admin"}
    access.close()


def test_wrong_credentials_are_refused_and_limits_are_by_user_or_address(tmp_path: Path) -> None:
    access = access_of(tmp_path)
    assert [caller(access, name).key for name in ("writer", "")] == ["user writer", "address 10.0.0.1"]
    for user, password in (("writer", "x"), ("unknown", "secret")):
        with pytest.raises(GatewayError) as error:
            caller(access, user, password)
        assert error.value.kind is Kind.NOT_AUTHENTICATED
    access.close()


def test_password_that_cannot_be_checked_in_time_is_no_wrong_one() -> None:
    class BusyUsers:
        def cached_principal(self, authorization: str | None) -> None:
            return None

        def authenticate(self, authorization: str | None, address: str) -> Denial:
            return TOO_BUSY

    access = GatewayAccess(BusyUsers(), LoaderSettings())  # type: ignore[arg-type]
    with pytest.raises(GatewayError) as error:
        caller(access, "writer")
    assert (error.value.kind, error.value.retry_after_s) == (Kind.TOO_MANY_REQUESTS, 1)
    access.close()


def test_without_a_users_file_every_client_may_do_everything() -> None:
    access = GatewayAccess(None, LoaderSettings())
    one = caller(access)
    for check, _ in REQUESTS.values():
        check(one)
    assert asyncio.run(access.caller({"client": None, "headers": []})).key == "address "
    access.close()
