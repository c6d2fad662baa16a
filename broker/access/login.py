"""The login of one connection: SASL with PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 (KIP-43, KIP-84, KIP-152).

Whether a name is a user's shows neither in an answer nor in the time that it takes: an unknown user is asked for a
proof of a password that nobody has. PLAIN costs the broker as much as the password's hash; such checks have one
thread, and what was right once is known by a keyed digest in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headrace.broker.access.rights import NOTHING, UNLIMITED, Rights
from headrace.broker.access.scram import (
    HASHES,
    ITERATIONS,
    SALT_BYTES,
    WRONG,
    Exchange,
    FirstMessage,
    LoginRefused,
    Verifier,
)
from headrace.broker.access.users import UsersFile

logger = logging.getLogger(__name__)

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *HASHES)
PLAIN_HASH: Final = "SCRAM-SHA-256"
PASSWORD_BYTES_MAX: Final = 1024
"""What is longer is refused, since it is hashed for whoever sends it."""
REFUSED_DELAY_S: Final = 0.2
"""A wrong password is answered only then, and its connection closed."""


class Users:
    """The users of a broker, and what their logins share. `key` is random, and made anew at every start."""

    def __init__(self, file: UsersFile, key: bytes = b"") -> None:
        self.file = file
        self._key = key or secrets.token_bytes(32)
        self._proven: dict[str, bytes] = {}
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="broker-login")

    def verifiers(self, user: str) -> Mapping[str, Verifier]:
        """What a user's password is checked with; of an unknown one, what no password fits."""
        known = self.file.policy.users.get(user)
        if known is not None:
            return known
        made = {}
        for mechanism, name in HASHES.items():
            digest = hmac.digest(self._key, f"{mechanism}\0{user}".encode("utf-8", "surrogatepass"), "sha512")
            size = hashlib.new(name).digest_size
            made[mechanism] = Verifier(mechanism, ITERATIONS, digest[:SALT_BYTES], digest[-size:], digest[-size:])
        return made

    async def is_password(self, user: str, password: str) -> bool:
        """Whether it is the password of this user; an unknown user has none."""
        verifier = self.verifiers(user)[PLAIN_HASH]
        proof = hmac.digest(self._key, f"{verifier}\0{password}".encode("utf-8", "surrogatepass"), "sha256")
        if hmac.compare_digest(self._proven.get(user, b""), proof):
            return True
        loop = asyncio.get_running_loop()
        is_right = await loop.run_in_executor(self._checks, verifier.matches, password)
        if is_right and user in self.file.policy.users:
            self._proven[user] = proof
            return True
        return False

    def close(self) -> None:
        self._checks.shutdown(wait=False, cancel_futures=True)


class Login:
    """Who one connection is. Without users it is anybody, who may do everything."""

    __slots__ = ("_exchange", "_mechanism", "_users", "has_failed", "is_in", "user")

    def __init__(self, users: Users | None) -> None:
        self._users = users
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self.user = ""
        self.is_in = users is None
        self.has_failed = False

    @property
    def rights(self) -> Rights:
        if self._users is None:
            return UNLIMITED
        return self._users.file.policy.rights.get(self.user, NOTHING)

    def begin(self, mechanism: str) -> bool:
        """Takes note of the mechanism that the client is about to use; False where it is none of ours."""
        if mechanism not in MECHANISMS:
            return False
        self._mechanism, self._exchange = mechanism, None
        return True

    @property
    def may_begin(self) -> bool:
        """Is there somebody to log in, who is not yet?"""
        return self._users is not None and not self.is_in

    async def go_on(self, message: bytes) -> bytes:
        """Our answer to a message of the mechanism; with the last one `is_in` is set.

        Raises:
            LoginRefused: the client did not prove who it is; the connection must be closed.
        """
        try:
            if self._users is None or self.is_in or not self._mechanism:
                raise LoginRefused("no mechanism was agreed on")
            if self._mechanism == PLAIN:
                user, answer = await _plain(self._users, message)
            elif self._exchange is None:
                first = FirstMessage.parse(message)
                verifier = self._users.verifiers(first.user)[self._mechanism]
                self._exchange = Exchange(first, verifier, secrets.token_urlsafe(24))
                return self._exchange.challenge.encode()
            else:
                user, answer = self._exchange.user, self._exchange.finish(message)
                if user not in self._users.file.policy.users:
                    raise LoginRefused(WRONG)
        except LoginRefused:
            self.has_failed = True
            # Longer than it takes to find out, so that the time says nothing, and a guess costs some.
            await asyncio.sleep(REFUSED_DELAY_S)
            raise
        self.user, self.is_in = user, True
        return answer

    @property
    def mechanism(self) -> str:
        return self._mechanism


ANYBODY: Final = Login(None)


async def _plain(users: Users, message: bytes) -> tuple[str, bytes]:
    parts = message.split(b"\0")
    if len(parts) != 3 or len(parts[2]) > PASSWORD_BYTES_MAX:
        raise LoginRefused("expected a user name and a password with a zero byte before each")
    try:
        acting_for, user, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError:
        raise LoginRefused("the message is not UTF-8") from None
    if acting_for not in ("", user):
        raise LoginRefused("nobody acts for another user here")
    if not await users.is_password(user, password):
        raise LoginRefused(WRONG)
    return user, b""
