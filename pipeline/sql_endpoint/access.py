"""The users of the SQL endpoint, from the file `registry.users` with its grants `sql-read` and `sql-write`.

Without `registry.users` every client may read and none may write, because a grant needs a name.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.pipeline.sql_endpoint.wire import PlainCredentials
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.permissions import SqlPermission
from headrace.registry.access.required_permissions import TOO_BUSY
from headrace.registry.access.users import Principal
from headrace.registry.errors import UsersFileUnusable
from headrace.settings import Settings
from headrace.settings.values import is_loopback

WRONG: Final = "wrong user or password"
BUSY: Final = "too many password checks at the moment; log in again in a second"


class AccessUnusable(Exception):
    """The settings of the SQL endpoint do not permit to start it; the message names the setting to change."""


class LoginDenied(Exception):
    """The client may not log in. The message does not reveal which users exist."""


@dataclass(frozen=True, slots=True)
class EndpointAccess:
    """The users and the certificate of the endpoint. `users` is None if it has no users, `tls` is None without TLS."""

    users: RegistryUsersFile | None
    users_path: str
    tls: ssl.SSLContext | None

    def log_in(self, credentials: PlainCredentials, address: str) -> str:
        """Checks a password. Returns the name of the user; "" if the endpoint has no users. It may take seconds.

        Args:
            address: the client's address, to limit password guessing.

        Raises:
            LoginDenied: the password is wrong or cannot be checked now.
        """
        if self.users is None:
            return ""
        encoded = base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()
        result = self.users.authenticate(f"Basic {encoded}", address)
        if isinstance(result, Principal):
            return result.name
        raise LoginDenied(BUSY if result is TOO_BUSY else WRONG)

    def permission_of(self, user: str) -> SqlPermission | None:
        """Returns the present permission of a user who has logged in; None if the file has no grant or no such user."""
        if self.users is None:
            return SqlPermission.READ
        principal = self.users.principal_of_user(user)
        return None if principal is None else principal.sql

    def grant_line(self, user: str, permission: SqlPermission) -> str:
        """Returns the remedy for a missing permission."""
        if self.users is None:
            return "writing requires users: set registry.users"
        return f"add the line `grant {user} {permission} *` to {self.users_path}"


def open_access(settings: Settings) -> EndpointAccess:
    """Reads the users and the certificate of the endpoint.

    Raises:
        AccessUnusable: the address is reachable from a network and clients would not be authenticated or would send
            their passwords unencrypted, or a file cannot be used.
    """
    listen, sql, users = settings.sql.listen, settings.sql, settings.registry.users
    is_local = listen is None or is_loopback(listen.host)
    if not users and not is_local and sql.allow_unauthenticated_from != "network":
        raise AccessUnusable(
            f"sql.listen is {listen}, where anonymous clients could read all tables; set registry.users to a file "
            "with users, or set sql.allow_unauthenticated_from to network"
        )
    if users and not is_local and not sql.tls_certificate:
        raise AccessUnusable(
            f"sql.listen is {listen}, and passwords would be sent unencrypted; set sql.tls_certificate, or listen on "
            "127.0.0.1"
        )
    try:
        known = RegistryUsersFile(Path(users)) if users else None
    except UsersFileUnusable as error:
        raise AccessUnusable(str(error)) from error
    return EndpointAccess(known, users, _tls_context(sql.tls_certificate, sql.tls_key))


def _tls_context(certificate: str, key: str) -> ssl.SSLContext | None:
    if not certificate:
        if key:
            raise AccessUnusable(f"sql.tls_key is {key}, but sql.tls_certificate is not set; set both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password function OpenSSL would prompt for a password at the terminal.
        context.load_cert_chain(certificate, key or None, lambda: "")
    except OSError as error:  # ssl.SSLError is one
        raise AccessUnusable(
            f"sql.tls_certificate {certificate} with sql.tls_key {key or 'in it'} cannot be used: "
            f"{error.strerror or error}; choose PEM files with certificate and unencrypted key"
        ) from error
    return context
