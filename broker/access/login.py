"""SASL login of one connection: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 (KIP-43, KIP-84, KIP-152).

Neither the error of a refused login nor its timing reveals whether a user exists. An unknown user gets a SCRAM
challenge too, and no password fits it. It is derived from the user name and a key in the data directory, so that it is
the same after a restart, and has the iterations and salt length of one of the known users.

PLAIN costs the broker one password hash per check. These checks share one thread. A verified password is remembered in
memory as a keyed digest, so later logins skip the hash.
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

from headrace.broker.access.permissions import ALL_PERMISSIONS, NO_PERMISSIONS, BrokerPermissions
from headrace.broker.access.scram import (
    HASHES,
    WRONG_CREDENTIALS,
    ClientFirstMessage,
    LoginRefused,
    ScramExchange,
    Verifier,
)
from headrace.broker.access.users import BrokerAccessPolicy, BrokerUsersFile

logger = logging.getLogger(__name__)

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *HASHES)
PLAIN_HASH: Final = "SCRAM-SHA-256"
PASSWORD_BYTES_MAX: Final = 1024
"""Longer passwords in a PLAIN message are refused before they are hashed."""
FAILED_LOGIN_DELAY_S: Final = 0.2
"""A failed login gets its response after this delay; then the connection is closed."""
KEY_BYTES: Final = 32
_ChallengeShape = tuple[tuple[str, tuple[int, int]], ...]
"""Parameters of a user's SCRAM challenges: for each mechanism, the iterations and the length of the salt in bytes."""


class Users:
    """The users of a broker, and the state that their logins share.

    `key` makes the challenges of unknown users and the digests of verified passwords unpredictable. It is random until
    the caller sets the data directory's key.
    """

    def __init__(self, file: BrokerUsersFile) -> None:
        self.file = file
        self.key = secrets.token_bytes(KEY_BYTES)
        self._shapes: tuple[_ChallengeShape, ...] = ()
        self._shapes_of: BrokerAccessPolicy | None = None
        self._verified_digests: dict[str, bytes] = {}
        self._password_executor = ThreadPoolExecutor(1, thread_name_prefix="broker-login")

    def verifiers(self, user: str) -> Mapping[str, Verifier]:
        """Returns the verifiers (stored passwords) of a user, by SASL mechanism. Those of an unknown user match no
        password."""
        known = self.file.policy.users.get(user)
        if known is not None:
            return known
        shape = max(self._known_shapes(), key=lambda each: self._digest(user, repr(each)))
        return {mechanism: self._unusable(user, mechanism, *parameters) for mechanism, parameters in shape}

    def _known_shapes(self) -> tuple[_ChallengeShape, ...]:
        """Returns the different challenge parameters of the known users; cached, since computing them takes long for
        many users."""
        policy = self.file.policy
        if self._shapes_of is not policy:
            found = {
                tuple((mechanism, (each.iterations, len(each.salt))) for mechanism, each in sorted(known.items()))
                for known in policy.users.values()
            }
            self._shapes, self._shapes_of = tuple(found), policy
        return self._shapes

    def _unusable(self, user: str, mechanism: str, iterations: int, salt_bytes: int) -> Verifier:
        salt, stored_key, server_key = (
            hashlib.shake_256(self._digest(user, f"{mechanism} {purpose}")) for purpose in ("salt", "stored", "server")
        )
        size = hashlib.new(HASHES[mechanism]).digest_size
        return Verifier(
            mechanism, iterations, salt.digest(salt_bytes), stored_key.digest(size), server_key.digest(size)
        )

    def _digest(self, user: str, purpose: str) -> bytes:
        return hmac.digest(self.key, f"{purpose}\0{user}".encode("utf-8", "surrogatepass"), "sha512")

    async def check_password(self, user: str, password: str) -> bool:
        """Returns whether this is the user's password; False for an unknown user."""
        verifier = self.verifiers(user)[PLAIN_HASH]
        password_digest = hmac.digest(self.key, f"{verifier}\0{password}".encode("utf-8", "surrogatepass"), "sha256")
        if hmac.compare_digest(self._verified_digests.get(user, b""), password_digest):
            return True
        loop = asyncio.get_running_loop()
        is_correct = await loop.run_in_executor(self._password_executor, verifier.matches, password)
        if is_correct and user in self.file.policy.users:
            self._verified_digests[user] = password_digest
            return True
        return False

    def close(self) -> None:
        self._password_executor.shutdown(wait=False, cancel_futures=True)


class Login:
    """Login state of one connection. On a broker without a users file, every connection is logged in and has all
    permissions."""

    __slots__ = ("_exchange", "_mechanism", "_users", "has_failed", "is_authenticated", "user")

    def __init__(self, users: Users | None) -> None:
        self._users = users
        self._mechanism = ""
        self._exchange: ScramExchange | None = None
        self.user = ""
        self.is_authenticated = users is None
        self.has_failed = False

    @property
    def permissions(self) -> BrokerPermissions:
        if self._users is None:
            return ALL_PERMISSIONS
        return self._users.file.policy.permissions.get(self.user, NO_PERMISSIONS)

    def choose_mechanism(self, mechanism: str) -> bool:
        """Sets the SASL mechanism with which the client will log in. Returns False if the broker does not support it,
        else True."""
        if mechanism not in MECHANISMS:
            return False
        self._mechanism, self._exchange = mechanism, None
        return True

    @property
    def can_log_in(self) -> bool:
        """True if the broker requires a login and this connection has not completed one."""
        return self._users is not None and not self.is_authenticated

    async def authenticate(self, message: bytes) -> bytes:
        """Processes a SASL message and returns the server's reply. `is_authenticated` is True after the last message of
        a login.

        Raises:
            LoginRefused: the client did not prove its identity, or sent the message in the wrong state; the connection
                must be closed. Raised after FAILED_LOGIN_DELAY_S.
        """
        try:
            if self._users is None or self.is_authenticated or not self._mechanism:
                raise LoginRefused("no SASL mechanism was chosen; send SaslHandshake first")
            if self._mechanism == PLAIN:
                user, server_message = await _authenticate_plain(self._users, message)
            elif self._exchange is None:
                first = ClientFirstMessage.parse(message)
                verifier = self._users.verifiers(first.user)[self._mechanism]
                self._exchange = ScramExchange(first, verifier, secrets.token_urlsafe(24))
                return self._exchange.challenge.encode()
            else:
                user, server_message = self._exchange.user, self._exchange.finish(message)
                if user not in self._users.file.policy.users:
                    raise LoginRefused(WRONG_CREDENTIALS)
        except LoginRefused:
            self.has_failed = True
            # The delay is longer than every check, so that timing reveals nothing. It also slows down password
            # guessing.
            await asyncio.sleep(FAILED_LOGIN_DELAY_S)
            raise
        self.user, self.is_authenticated = user, True
        return server_message

    @property
    def mechanism(self) -> str:
        return self._mechanism


ANONYMOUS: Final = Login(None)


async def _authenticate_plain(users: Users, message: bytes) -> tuple[str, bytes]:
    parts = message.split(b"\0")
    if len(parts) != 3 or len(parts[2]) > PASSWORD_BYTES_MAX:
        raise LoginRefused(
            "malformed PLAIN message: expected AUTHZID NUL USER NUL PASSWORD, and a password of at most "
            f"{PASSWORD_BYTES_MAX} bytes"
        )
    try:
        authorization_id, user, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError:
        raise LoginRefused("the PLAIN message is not UTF-8") from None
    if authorization_id not in ("", user):
        raise LoginRefused("a user cannot act for another user; leave the authorization id empty")
    if not await users.check_password(user, password):
        raise LoginRefused(WRONG_CREDENTIALS)
    return user, b""
