"""Authenticates requests by their Authorization header, or without one by the client certificate of the connection.

The header has a user and password (HTTP basic authentication, RFC 7617) or a bearer token (RFC 6750).

A password hash takes a fifth of a second. The result of a check is therefore cached under a keyed digest of the header;
the cache contains no passwords. `cached_principal` computes no hash and waits for none. A changed users file is read
again. If it cannot be read or has a mistake, the previous policy stays in force and the error is logged.

A client that guesses passwords must not lock out others. Checks run in the order of arrival. All addresses that have
just sent a wrong password share one check at a time. A request that cannot be checked in time is denied with
`TOO_BUSY`, and its password is checked in the background, unless such a check is pending: one for each user with a
password, and one for all other names. After a background check succeeds, the next request with that password is
accepted. The failure of a background check is neither reported nor cached, because different responses or times would
reveal which users exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import logging
import math
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.registry.access.passwords import DEFAULT_COST, HASH_BYTES, PASSWORD_BYTES_MAX, SALT_BYTES, PasswordHash
from headrace.registry.access.required_permissions import (
    NO_CREDENTIALS,
    TOO_BUSY,
    WRONG_CREDENTIALS,
    WRONG_TOKEN,
    Denial,
)
from headrace.registry.access.users import Principal, RegistryAccessPolicy, UsersFileInvalid, parse_users
from headrace.registry.errors import UsersFileUnusable

if TYPE_CHECKING:
    from headrace.registry.access.tokens import TokenVerifier

logger = logging.getLogger(__name__)

RELOAD_S: Final = 1.0  # between checks whether the users file has changed
ACCEPTED_MAX: Final = 4096  # cached headers with valid credentials
REJECTED_MAX: Final = 1024  # cached headers with wrong credentials
REJECTED_S: Final = 10.0  # how long a wrong password stays cached; a new user may have to wait this long
CHECKS_MAX: Final = 2  # concurrent hash computations of 16 MB each; more would slow down other requests
CHECK_WAIT_S: Final = 3.0  # longest wait for a check
CHECKS_WAITING_MAX: Final = 6  # waiting checks; each occupies a thread that other requests need
GUESSES_MAX: Final = 1  # concurrent checks for all addresses that have just sent a wrong password
GUESSERS_MAX: Final = 16_384  # addresses in memory that have sent a wrong password within `REJECTED_S`
IPV6_NETWORK_BITS: Final = 64  # prefix that identifies a client; its network can choose the other bits freely
HEADER_CHARS_MAX: Final = 4096
TOKEN_CHARS_MAX: Final = 16_384  # tokens with many roles are long

AuthenticationResult = Principal | Denial


class RegistryUsersFile:
    """Authenticates requests with the users, roles and certificates of a users file. Thread-safe."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        tokens: TokenVerifier | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Reads the users file.

        Args:
            path: the users file.
            clock: a monotonic clock for caches and reloads.
            tokens: verifies bearer tokens; None rejects them.
            now_s: the time in seconds since 1970, for the expiry of tokens.

        Raises:
            UsersFileUnusable: the file cannot be read or has a mistake.
        """
        self._path = path
        self._clock = clock
        self._tokens = tokens
        self._now_s = now_s
        self._lock = threading.Lock()
        self._checks = _FairSemaphore(CHECKS_MAX, CHECKS_WAITING_MAX)
        self._guesses = 0
        self._wrong_at: OrderedDict[str, float] = OrderedDict()
        self._background_checks: OrderedDict[str, tuple[bytes, str, str]] = OrderedDict()
        self._has_background_thread = False
        self._key = secrets.token_bytes(32)
        self._state = _PolicyState(RegistryAccessPolicy())
        self._stamp: tuple[int, ...] = ()
        self._reload_at = 0.0
        self._load(_stamp(path))

    @property
    def accepts_tokens(self) -> bool:
        return self._tokens is not None

    def cached_principal(self, authorization: str | None, certificate: str = "") -> Principal | None:
        """Returns the principal if it is known without waiting. Returns None if only `authenticate` can find it, or if
        the credentials are wrong.

        Args:
            authorization: the value of the Authorization header; None without one.
            certificate: the subject of a verified client certificate; "" without one.
        """
        self._reload_if_due()
        state = self._state
        if authorization is None:
            name = state.policy.subjects.get(certificate) if certificate else None
            return state.policy.anonymous if name is None else state.policy.principals[name]
        digest = self._digest(authorization)
        with_token = state.tokens.get(digest)
        if with_token is not None:
            return with_token[0] if self._now_s() < with_token[1] else None
        return state.accepted.get(digest)

    def principal_of_user(self, name: str) -> Principal | None:
        """Returns the principal of a user with a password, as of the present users file; None if there is none. It is
        for connections that stay open after a change of the file."""
        self._reload_if_due()
        policy = self._state.policy
        return policy.principals[name] if name in policy.hashes else None

    def principal_with_roles(self, name: str, roles: Sequence[str]) -> Principal:
        """Returns the principal of a user of an OpenID provider: with the permissions of its roles as of the present
        users file."""
        self._reload_if_due()
        return self._state.policy.with_roles(name, roles)

    def password_stamp(self, name: str) -> str:
        """Returns a text that changes when the password of a user changes; "" if the user does not exist or has no
        password. A console's session is valid while the stamp stays the same."""
        self._reload_if_due()
        known = self._state.policy.hashes.get(name)
        return "" if known is None else hashlib.sha256(str(known).encode()).hexdigest()

    @property
    def anonymous(self) -> Principal:
        """The principal of clients without credentials, as of the present users file."""
        self._reload_if_due()
        return self._state.policy.anonymous

    def authenticate(self, authorization: str | None, address: str = "", certificate: str = "") -> AuthenticationResult:
        """Checks the credentials of a request. Returns the principal (the authenticated sender), or the denial to send.

        It may wait for seconds, so it must not run in an event loop.

        Args:
            authorization: the value of the Authorization header; None without one.
            address: the address of the client, to limit password guessing.
            certificate: the subject of a verified client certificate; "" without one.
        """
        found = self.cached_principal(authorization, certificate)
        if found is not None or authorization is None:
            return found or NO_CREDENTIALS
        state = self._state
        scheme, _, token = authorization.partition(" ")
        if self._tokens is not None and scheme.lower() == "bearer":
            return self._verify_token(self._tokens, state, authorization, token.strip())
        digest = self._digest(authorization)
        with self._lock:
            known = state.accepted.get(digest)
            if known is not None:
                return known
            if self._clock() - state.rejected.get(digest, -math.inf) < REJECTED_S:
                return WRONG_CREDENTIALS
            pending = state.pending.get(digest)
            is_first = pending is None
            if pending is None:
                pending = state.pending[digest] = Future()
        if not is_first:
            return pending.result()
        # Fifty clients that start with the same password share one check.
        result: AuthenticationResult = TOO_BUSY
        try:
            result = self._check(state, digest, authorization, address)
            self._cache_result(state, digest, result)
        finally:
            with self._lock:
                del state.pending[digest]
            pending.set_result(result)
        return result

    def _verify_token(
        self, tokens: TokenVerifier, state: _PolicyState, authorization: str, token: str
    ) -> AuthenticationResult:
        # The SQL endpoint has users and no tokens, in an installation without PyJWT.
        from headrace.registry.access.tokens import TokenRejected

        try:
            identity = tokens.verify(token if len(token) <= TOKEN_CHARS_MAX else "")
        except TokenRejected as rejection:
            logger.info("token_rejected cause=%s", rejection)
            return WRONG_TOKEN
        principal = state.policy.with_roles(identity.name, identity.roles)
        with self._lock:
            state.tokens[self._digest(authorization)] = principal, identity.expires_s
            while len(state.tokens) > ACCEPTED_MAX:
                state.tokens.popitem(last=False)
        return principal

    def _check(self, state: _PolicyState, digest: bytes, authorization: str, address: str) -> AuthenticationResult:
        credentials = _credentials(authorization)
        if credentials is None:
            return WRONG_CREDENTIALS
        network = _network(address)
        with self._lock:
            is_guess = self._has_guessed(network)
            may_wait = not is_guess or self._guesses < GUESSES_MAX
            self._guesses += is_guess and may_wait
        result: AuthenticationResult = TOO_BUSY
        if may_wait:
            try:
                result = self._check_in_order(state, network, is_guess, *credentials)
            finally:
                with self._lock:
                    self._guesses -= is_guess
        if result is TOO_BUSY:
            self._check_in_background(digest, *credentials)
        return result

    def _has_guessed(self, network: str) -> bool:
        return self._clock() - self._wrong_at.get(network, -math.inf) < REJECTED_S

    def _check_in_order(
        self, state: _PolicyState, network: str, is_guess: bool, name: str, password: str
    ) -> AuthenticationResult:
        if not self._checks.acquire(CHECK_WAIT_S):
            return TOO_BUSY
        try:
            with self._lock:
                # Another request of this address was checked during the wait, and its password was wrong.
                if not is_guess and self._has_guessed(network):
                    return TOO_BUSY
            result = _check_password(state, name, password)
            if result is WRONG_CREDENTIALS:
                with self._lock:
                    self._wrong_at[network] = self._clock()
                    self._wrong_at.move_to_end(network)
                    while len(self._wrong_at) > GUESSERS_MAX:
                        self._wrong_at.popitem(last=False)
            return result
        finally:
            self._checks.release()

    def _check_in_background(self, digest: bytes, name: str, password: str) -> None:
        with self._lock:
            key = name if name in self._state.policy.hashes else ""
            if key in self._background_checks:
                return
            self._background_checks[key] = digest, name, password
            if self._has_background_thread:
                return
            self._has_background_thread = True
        threading.Thread(target=self._run_background_checks, name="passwords", daemon=True).start()

    def _run_background_checks(self) -> None:
        while True:
            with self._lock:
                if not self._background_checks:
                    self._has_background_thread = False
                    return
                _, (digest, name, password) = self._background_checks.popitem(last=False)
                state = self._state
            try:
                result = _check_password(state, name, password)
            except Exception:
                logger.exception("password_not_checked")
                continue
            if isinstance(result, Principal):
                self._cache_result(state, digest, result)

    def _cache_result(self, state: _PolicyState, digest: bytes, result: AuthenticationResult) -> None:
        with self._lock:
            if isinstance(result, Principal):
                state.accepted[digest] = result
                while len(state.accepted) > ACCEPTED_MAX:
                    state.accepted.popitem(last=False)
            elif result is WRONG_CREDENTIALS:
                state.rejected[digest] = self._clock()
                while len(state.rejected) > REJECTED_MAX:
                    state.rejected.popitem(last=False)

    def _digest(self, authorization: str) -> bytes:
        return hashlib.blake2b(authorization.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()

    def _reload_if_due(self) -> None:
        now = self._clock()
        if now >= self._reload_at:
            self._reload_if_changed(now)

    def _reload_if_changed(self, now: float) -> None:
        with self._lock:
            if now < self._reload_at:
                return
            self._reload_at = now + RELOAD_S
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._load(stamp)
            logger.info("users_file_read path=%s users=%d", self._path, len(self._state.policy.principals))
        except UsersFileUnusable as error:
            logger.error("users_file_not_read action=keeping the previous users and grants cause=%s", error)

    def _load(self, stamp: tuple[int, ...]) -> None:
        # Set first, so that a file with a mistake is read and logged only once.
        self._stamp = stamp
        try:
            policy = parse_users(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsersFileUnusable(f"the users file {self._path} cannot be read: {error.strerror}") from error
        except (UsersFileInvalid, UnicodeDecodeError) as error:
            raise UsersFileUnusable(f"the users file {self._path} is invalid: {error}") from error
        with self._lock:
            self._state = self._state.with_policy(policy)


class _PolicyState:
    """The parsed users file (`policy`) as of its last valid change, and cached results of authentication with it."""

    def __init__(self, policy: RegistryAccessPolicy) -> None:
        self.policy = policy
        self.accepted: OrderedDict[bytes, Principal] = OrderedDict()
        self.rejected: OrderedDict[bytes, float] = OrderedDict()
        self.tokens: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        """Principals and expiry times of valid tokens. A new policy starts empty, because verification is fast."""
        self.pending: dict[bytes, Future[AuthenticationResult]] = {}
        self.dummy_hashes = [
            PasswordHash(cost, secrets.token_bytes(SALT_BYTES), secrets.token_bytes(HASH_BYTES))
            for cost in {known.cost for known in policy.hashes.values()} or {DEFAULT_COST}
        ]
        """Random hashes, one for each cost in the file; without passwords, one of the default cost. Each check computes
        one hash per cost: the user's own hash for its cost, and these for other costs. So its time does not reveal
        whether the user exists."""

    def with_policy(self, policy: RegistryAccessPolicy) -> _PolicyState:
        """Returns the state to use after a change of the users file; `policy` is the new content of the file.

        The accepted Authorization headers of a user remain cached if the user's password hash has not changed.
        """
        found = _PolicyState(policy)
        for digest, principal in self.accepted.items():
            name = principal.name
            if name in policy.hashes and policy.hashes[name] == self.policy.hashes[name]:
                found.accepted[digest] = policy.principals[name]
        return found


class _FairSemaphore:
    """A semaphore that serves waiting threads in their order of arrival. Thread-safe."""

    def __init__(self, count: int, waiting_max: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Event] = deque()
        self._waiting_max = waiting_max

    def acquire(self, timeout_s: float) -> bool:
        """Waits for a permit. Returns False if too many threads wait, or after the timeout; after True the caller must
        `release`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            if len(self._waiting) >= self._waiting_max:
                return False
            acquired = threading.Event()
            self._waiting.append(acquired)
        if acquired.wait(timeout_s):
            return True
        with self._lock:
            if acquired.is_set():
                return True  # acquired between the timeout and the lock
            self._waiting.remove(acquired)
            return False

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


def _check_password(state: _PolicyState, name: str, password: str) -> AuthenticationResult:
    expected = state.policy.hashes.get(name)
    # One hash of each cost for every name, known or not, so that the time does not reveal which users exist.
    matches = [
        (expected if expected is not None and expected.cost == dummy.cost else dummy).matches(password)
        for dummy in state.dummy_hashes
    ]
    return state.policy.principals[name] if any(matches) and expected is not None else WRONG_CREDENTIALS


def _network(address: str) -> str:
    """Returns the key under which a wrong password of a client is remembered: the IPv4 address, the network of an IPv6
    address, or another text unchanged."""
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), IPV6_NETWORK_BITS), strict=False))


def _stamp(path: Path) -> tuple[int, ...]:
    """A value that changes when the file at `path` is written, replaced or removed."""
    try:
        status = path.stat()
    except OSError as error:
        return (error.errno or -1,)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _credentials(authorization: str) -> tuple[str, str] | None:
    """Returns the (user, password) of the value of an `Authorization` header. Returns None for a scheme other than
    basic authentication, and for a malformed or too long value."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic" or len(authorization) > HEADER_CHARS_MAX:
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    name, colon, password = text.partition(":")
    if not colon or len(password.encode()) > PASSWORD_BYTES_MAX:
        return None
    return name, password
