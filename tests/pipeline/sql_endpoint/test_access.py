"""The users of the SQL endpoint and the settings with which it may start."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline.sql_endpoint.access import (
    BUSY,
    WRONG,
    AccessUnusable,
    EndpointAccess,
    LoginDenied,
    open_access,
)
from headrace.pipeline.sql_endpoint.wire import PlainCredentials
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.permissions import SqlPermission
from headrace.registry.access.required_permissions import TOO_BUSY, WRONG_CREDENTIALS
from headrace.registry.access.users import user_line
from headrace.settings import load_settings
from support.certificates import Authority

CHEAP = Cost(1, 1, 1)


def users_file(directory: Path, *grants: str, users: tuple[str, ...] = ("alice", "bob")) -> Path:
    path = directory / "users"
    lines = [user_line(name, PasswordHash.of(f"{name}'s", b"s" * 16, CHEAP)) for name in users]
    path.write_text("\n".join((*lines, *grants)))
    return path


def access(**flags: str) -> EndpointAccess:
    return open_access(load_settings(flags={key.replace("__", "."): value for key, value in flags.items()}))


@pytest.mark.parametrize("listen", ["127.0.0.1:10000", "[::1]:10000", "localhost:10000"])
def test_without_users_the_endpoint_is_on_loopback_and_read_only(listen: str) -> None:
    found = access(sql__listen=listen)
    assert found.log_in(PlainCredentials("anyone", "anything"), "127.0.0.1") == ""
    assert found.permission_of("") is SqlPermission.READ
    assert "registry.users" in found.grant_line("", SqlPermission.WRITE)


@pytest.mark.parametrize("listen", ["0.0.0.0:10000", "192.0.2.1:10000", "[::]:10000"])
def test_network_needs_users_and_tls_or_a_setting(tmp_path: Path, listen: str) -> None:
    users = str(users_file(tmp_path, "grant * sql-read *"))
    certificate, key = Authority(tmp_path).certificate("sql")
    tls = {"sql__tls_certificate": str(certificate), "sql__tls_key": str(key)}
    with pytest.raises(AccessUnusable, match=r"registry\.users"):
        access(sql__listen=listen)
    with pytest.raises(AccessUnusable, match=r"registry\.users"):
        access(sql__listen=listen, **tls)
    with pytest.raises(AccessUnusable, match=r"sql\.tls_certificate"):
        access(sql__listen=listen, registry__users=users)
    with pytest.raises(AccessUnusable, match=r"sql\.tls_certificate"):
        access(sql__listen=listen, registry__users=users, sql__allow_unauthenticated_from="network")
    assert access(sql__listen=listen, registry__users=users, **tls).tls is not None
    assert access(sql__listen=listen, sql__allow_unauthenticated_from="network").users is None


def test_unusable_files_are_named(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).certificate("sql", key_password="secret")
    with pytest.raises(AccessUnusable, match="no-such-file"):
        access(registry__users=str(tmp_path / "no-such-file"))
    with pytest.raises(AccessUnusable, match=r"sql\.tls_certificate .*no-such-file"):
        access(sql__tls_certificate=str(tmp_path / "no-such-file"))
    with pytest.raises(AccessUnusable, match=r"sql\.tls_key"):
        access(sql__tls_key=str(key))
    with pytest.raises(AccessUnusable, match="unencrypted key"):
        access(sql__tls_certificate=str(certificate), sql__tls_key=str(key))


def test_users_log_in_with_their_password(tmp_path: Path) -> None:
    found = access(registry__users=str(users_file(tmp_path, "grant alice sql-read *")))
    assert found.log_in(PlainCredentials("alice", "alice's"), "192.0.2.1") == "alice"
    for user, password in (("alice", "bob's"), ("alice", ""), ("carol", "alice's"), ("anonymous", ""), ("*", "")):
        with pytest.raises(LoginDenied, match="password"):
            found.log_in(PlainCredentials(user, password), f"192.0.2.{len(user + password)}")


def test_client_learns_whether_a_wrong_password_or_the_load_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = access(registry__users=str(users_file(tmp_path)))
    for result, expected in ((TOO_BUSY, BUSY), (WRONG_CREDENTIALS, WRONG)):
        monkeypatch.setattr(found.users, "authenticate", lambda *_, result=result: result)
        with pytest.raises(LoginDenied) as failure:
            found.log_in(PlainCredentials("alice", "x"), "192.0.2.1")
        assert str(failure.value) == expected


@pytest.mark.parametrize(
    ("grants", "permission"),
    [
        ((), None),
        (("grant alice admin *",), None),
        (("grant bob sql-write *",), None),
        (("grant alice sql-read *",), SqlPermission.READ),
        (("grant * sql-read *",), SqlPermission.READ),
        (("grant alice sql-write *", "grant alice sql-read *"), SqlPermission.WRITE),
        (("grant alice sql-read *", "grant * sql-write *"), SqlPermission.WRITE),
    ],
)
def test_permission_follows_from_grants(
    tmp_path: Path, grants: tuple[str, ...], permission: SqlPermission | None
) -> None:
    found = access(registry__users=str(users_file(tmp_path, *grants)))
    assert found.permission_of("alice") is permission


def test_changes_of_the_users_file_apply_to_users_that_are_logged_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.registry.access.authenticator.RELOAD_S", 0.0)
    path = users_file(tmp_path, "grant alice sql-write *")
    found = access(registry__users=str(path))
    assert found.permission_of("alice") is SqlPermission.WRITE
    users_file(tmp_path, "grant alice  sql-read *")
    assert found.permission_of("alice") is SqlPermission.READ
    users_file(tmp_path, "grant * sql-write *", users=("bob",))
    assert found.permission_of("alice") is None
    assert "grant alice sql-read *" in found.grant_line("alice", SqlPermission.READ)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("grant alice sql-read orders-*", "expected `\\*`"),
        ("grant anonymous sql-read *", "password"),
        ("grant @analysts sql-read *", "password"),
        ("grant carol sql-read *", "carol is not defined"),
        ("grant alice sql *", "expected read"),
    ],
)
def test_mistakes_in_sql_grants_are_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(AccessUnusable, match=reason):
        access(registry__users=str(users_file(tmp_path, line)))


def test_sql_grants_give_no_permission_in_the_registry(tmp_path: Path) -> None:
    users = access(registry__users=str(users_file(tmp_path, "grant alice sql-write *"))).users
    assert users is not None
    principal = users.principal_of_user("alice")
    assert principal is not None
    assert principal.permissions.grants == ()
