"""Sessions of signed-in browsers, in SQL.

The browser has a random 256-bit id in a cookie, the database only its SHA-256. A session ends after `IDLE_MS` without a
request, after `AGE_MS_MAX`, at sign-out, and when the user is deleted from the users file or its password changes. A
session of a user of an OpenID provider has the roles that the provider stated, and no token. The permissions are read
from the users file for each request. Several consoles may share a database.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from headrace.console.database import METADATA, ConsoleDatabase

IDLE_MS: Final = 8 * 3_600_000
AGE_MS_MAX: Final = 24 * 3_600_000
SEEN_MS: Final = 60_000
"""How often the time of the last request of a session is stored."""
ID_CHARS_MAX: Final = 128

_session = sa.Table(
    "console_login",
    METADATA,
    sa.Column("id_sha256", sa.String(64), primary_key=True),
    sa.Column("user_name", sa.Text, nullable=False),
    sa.Column("password_stamp", sa.String(64), nullable=False),
    sa.Column("roles", sa.Text),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("seen_at_ms", sa.BigInteger, nullable=False),
)


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A session. `user` is "" for a browser that has not signed in at a console without users; `secret` is the id in
    its cookie. `roles` are the roles stated by an OpenID provider; None for a user of the users file."""

    secret: str
    user: str
    password_stamp: str
    roles: tuple[str, ...] | None = None

    @property
    def form_token(self) -> str:
        """The token that each form of the session must send."""
        return hmac.new(self.secret.encode(), b"form", hashlib.sha256).hexdigest()


class SessionStore:
    """The sessions in the console's database. Thread-safe. Its table is created if it does not exist.

    Raises:
        ConsoleUnusable: the database cannot be used.
    """

    def __init__(self, database: ConsoleDatabase) -> None:
        self._database = database
        database.create(_session)

    def begin(
        self, user: str, password_stamp: str, now_ms: int, roles: tuple[str, ...] | None = None
    ) -> ConsoleSession:
        """Creates a session with a new id, and deletes sessions that have ended."""
        created = ConsoleSession(secrets.token_urlsafe(32), user, password_stamp, roles)
        with self._database.writing() as connection:
            connection.execute(
                sa.delete(_session).where(
                    (_session.c.seen_at_ms < now_ms - IDLE_MS) | (_session.c.created_at_ms < now_ms - AGE_MS_MAX)
                )
            )
            connection.execute(
                sa.insert(_session).values(
                    id_sha256=_digest(created.secret),
                    user_name=user,
                    password_stamp=password_stamp,
                    roles=None if roles is None else json.dumps(roles),
                    created_at_ms=now_ms,
                    seen_at_ms=now_ms,
                )
            )
        return created

    def find(self, secret: str, now_ms: int) -> ConsoleSession | None:
        """Returns the session with this id; None if it does not exist or has ended."""
        if not secret or len(secret) > ID_CHARS_MAX:
            return None
        digest = _digest(secret)
        with self._database.reading() as connection:
            row = connection.execute(sa.select(_session).where(_session.c.id_sha256 == digest)).one_or_none()
        if row is None or now_ms - row.seen_at_ms > IDLE_MS or now_ms - row.created_at_ms > AGE_MS_MAX:
            return None
        if now_ms - row.seen_at_ms > SEEN_MS:
            with self._database.writing() as connection:
                connection.execute(sa.update(_session).where(_session.c.id_sha256 == digest).values(seen_at_ms=now_ms))
        roles = None if row.roles is None else tuple(json.loads(row.roles))
        return ConsoleSession(secret, row.user_name, row.password_stamp, roles)

    def end(self, secret: str) -> None:
        with self._database.writing() as connection:
            connection.execute(sa.delete(_session).where(_session.c.id_sha256 == _digest(secret)))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
