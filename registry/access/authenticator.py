"""Who sent a request: by the value of its Authorization header, else by the client certificate of its connection.

The header has a user and password (HTTP basic authentication, RFC 7617) or a bearer token (RFC 6750).

A password's hash takes a fifth of a second, so what was once found right, or wrong a moment ago, is remembered by a
keyed digest of the header; no password is kept. `recall` answers from that alone and never waits. The users file is
read again when it changes; one that cannot be read or has a mistake changes nothing, and is logged.

Guessing is not to keep others out. Turns go to who has waited longest, and addresses that have just sent a wrong
password have one of them for all together. Whoever gets none is told at once to come again, and the check is made
meanwhile in a place that is the name's own, one for each name of the file and one for all others, so that who comes
again with the right password is let in. What those places find wrong is not told, nor remembered: with answers or
times of their own they would tell which names there are.
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
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from headrace.registry.access.needs import NO_CREDENTIALS, TOO_BUSY, WRONG_CREDENTIALS, WRONG_TOKEN, Refusal
from headrace.registry.access.passwords import DEFAULT_COST, HASH_BYTES, PASSWORD_BYTES_MAX, SALT_BYTES, PasswordHash
from headrace.registry.access.tokens import TokenRefused, Tokens
from headrace.registry.access.users import Policy, Principal, UsersFileInvalid, parse_users
from headrace.registry.errors import UsersFileUnusable

logger = logging.getLogger(__name__)

RELOAD_S: Final = 1.0  # between looks at the users file
REMEMBERED_MAX: Final = 4096  # headers found right
REJECTED_MAX: Final = 1024  # headers found wrong
REJECTED_S: Final = 10.0  # so long a wrong password is not computed again; a new user waits at most that
CHECKS_MAX: Final = 2  # hashes computed at once, of 16 MB each; more would only take the cores from other requests
CHECK_WAIT_S: Final = 3.0  # for a turn
CHECKS_WAITING_MAX: Final = 6  # at once; they take threads that other requests need
GUESSES_MAX: Final = 1  # checks at once of all addresses that have just sent a wrong password; others have the rest
GUESSERS_MAX: Final = 16_384  # addresses that are known to have sent one, for `REJECTED_S`
IPV6_NETWORK_BITS: Final = 64  # of an address; the others are chosen by whoever has the network
HEADER_CHARS_MAX: Final = 4096
TOKEN_CHARS_MAX: Final = 16_384  # those with many roles are long

Answer = Principal | Refusal


class UsersFile:
    """The users of a file. Thread-safe."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        tokens: Tokens | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            path: the file.
            clock: for all that is remembered for a while.
            tokens: checks bearer tokens; None refuses them.
            now_s: the time in seconds since 1970, for when tokens end.

        Raises:
            UsersFileUnusable: the file cannot be read or has a mistake.
        """
        self._path = path
        self._clock = clock
        self._tokens = tokens
        self._now_s = now_s
        self._lock = threading.Lock()
        self._turns = _Turns(CHECKS_MAX, CHECKS_WAITING_MAX)
        self._guesses = 0
        self._wrong_of: OrderedDict[str, float] = OrderedDict()
        self._put_off: OrderedDict[str, tuple[bytes, str, str]] = OrderedDict()
        self._checks_put_off = False
        self._key = secrets.token_bytes(32)
        self._state = _State(Policy())
        self._stamp: tuple[int, ...] = ()
        self._look_at = 0.0
        self._load(_stamp(path))

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    def recall(self, authorization: str | None, certificate: str = "") -> Principal | None:
        """At once, or None when that needs `authenticate`. `certificate` is the subject of one that was checked."""
        now = self._clock()
        if now >= self._look_at:
            self._look(now)
        state = self._state
        if authorization is None:
            name = state.policy.subjects.get(certificate) if certificate else None
            return state.policy.anonymous if name is None else state.policy.principals[name]
        digest = self._digest(authorization)
        known = state.bearers.get(digest)
        if known is not None:
            return known[0] if self._now_s() < known[1] else None
        return state.right.get(digest)

    def authenticate(self, authorization: str | None, address: str = "", certificate: str = "") -> Answer:
        """May take a fraction of a second, so not for an event loop. `address` is the client's."""
        found = self.recall(authorization, certificate)
        if found is not None or authorization is None:
            return found or NO_CREDENTIALS
        state = self._state
        scheme, _, token = authorization.partition(" ")
        if self._tokens is not None and scheme.lower() == "bearer":
            return self._check_token(self._tokens, state, authorization, token.strip())
        digest = self._digest(authorization)
        with self._lock:
            known = state.right.get(digest)
            if known is not None:
                return known
            if self._clock() - state.wrong.get(digest, -math.inf) < REJECTED_S:
                return WRONG_CREDENTIALS
            pending = state.pending.get(digest)
            mine = pending is None
            if pending is None:
                pending = state.pending[digest] = Future()
        if not mine:
            return pending.result()
        # Fifty clients that start with the same password have it computed once.
        answer: Answer = TOO_BUSY
        try:
            answer = self._check(state, digest, authorization, address)
            self._remember(state, digest, answer)
        finally:
            with self._lock:
                del state.pending[digest]
            pending.set_result(answer)
        return answer

    def _check_token(self, tokens: Tokens, state: _State, authorization: str, token: str) -> Answer:
        try:
            bearer = tokens.bearer(token if len(token) <= TOKEN_CHARS_MAX else "")
        except TokenRefused as refusal:
            logger.info("token_refused cause=%s", refusal)
            return WRONG_TOKEN
        principal = state.policy.with_roles(bearer.name, bearer.roles)
        with self._lock:
            state.bearers[self._digest(authorization)] = principal, bearer.expires_s
            while len(state.bearers) > REMEMBERED_MAX:
                state.bearers.popitem(last=False)
        return principal

    def _check(self, state: _State, digest: bytes, authorization: str, address: str) -> Answer:
        credentials = _credentials(authorization)
        if credentials is None:
            return WRONG_CREDENTIALS
        network = _network(address)
        with self._lock:
            is_guess = self._has_guessed(network)
            may_wait = not is_guess or self._guesses < GUESSES_MAX
            self._guesses += is_guess and may_wait
        answer: Answer = TOO_BUSY
        if may_wait:
            try:
                answer = self._check_in_turn(state, network, is_guess, *credentials)
            finally:
                with self._lock:
                    self._guesses -= is_guess
        if answer is TOO_BUSY:
            self._check_later(digest, *credentials)
        return answer

    def _has_guessed(self, network: str) -> bool:
        return self._clock() - self._wrong_of.get(network, -math.inf) < REJECTED_S

    def _check_in_turn(self, state: _State, network: str, is_guess: bool, name: str, password: str) -> Answer:
        if not self._turns.take(CHECK_WAIT_S):
            return TOO_BUSY
        try:
            with self._lock:
                # Many at once of an address that nobody knew; the first of them was wrong.
                if not is_guess and self._has_guessed(network):
                    return TOO_BUSY
            answer = _compared(state, name, password)
            if answer is WRONG_CREDENTIALS:
                with self._lock:
                    self._wrong_of[network] = self._clock()
                    self._wrong_of.move_to_end(network)
                    while len(self._wrong_of) > GUESSERS_MAX:
                        self._wrong_of.popitem(last=False)
            return answer
        finally:
            self._turns.give_back()

    def _check_later(self, digest: bytes, name: str, password: str) -> None:
        with self._lock:
            place = name if name in self._state.policy.hashes else ""
            if place in self._put_off:
                return
            self._put_off[place] = digest, name, password
            if self._checks_put_off:
                return
            self._checks_put_off = True
        threading.Thread(target=self._check_what_is_put_off, name="passwords", daemon=True).start()

    def _check_what_is_put_off(self) -> None:
        while True:
            with self._lock:
                if not self._put_off:
                    self._checks_put_off = False
                    return
                _, (digest, name, password) = self._put_off.popitem(last=False)
                state = self._state
            try:
                answer = _compared(state, name, password)
            except Exception:
                logger.exception("password_not_checked")
                continue
            if isinstance(answer, Principal):
                self._remember(state, digest, answer)

    def _remember(self, state: _State, digest: bytes, answer: Answer) -> None:
        with self._lock:
            if isinstance(answer, Principal):
                state.right[digest] = answer
                while len(state.right) > REMEMBERED_MAX:
                    state.right.popitem(last=False)
            elif answer is WRONG_CREDENTIALS:
                state.wrong[digest] = self._clock()
                while len(state.wrong) > REJECTED_MAX:
                    state.wrong.popitem(last=False)

    def _digest(self, authorization: str) -> bytes:
        return hashlib.blake2b(authorization.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()

    def _look(self, now: float) -> None:
        with self._lock:
            if now < self._look_at:
                return
            self._look_at = now + RELOAD_S
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._load(stamp)
            logger.info("users_file_read path=%s users=%d", self._path, len(self._state.policy.principals))
        except UsersFileUnusable as error:
            logger.error("users_file_refused cause=%s", error)

    def _load(self, stamp: tuple[int, ...]) -> None:
        # A file with a mistake is not read, and complained of, every second.
        self._stamp = stamp
        try:
            policy = parse_users(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsersFileUnusable(f"the users file {self._path} cannot be read: {error.strerror}") from error
        except (UsersFileInvalid, UnicodeDecodeError) as error:
            raise UsersFileUnusable(f"the users file {self._path} is not understood: {error}") from error
        with self._lock:
            self._state = self._state.under(policy)


class _State:
    """What one version of the file says, and what was found with it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.right: OrderedDict[bytes, Principal] = OrderedDict()
        self.wrong: OrderedDict[bytes, float] = OrderedDict()
        self.bearers: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        """Of tokens that were found right: until when. Under another policy they are read again, which is quick."""
        self.pending: dict[bytes, Future[Answer]] = {}
        self.nobodies = [
            PasswordHash(cost, secrets.token_bytes(SALT_BYTES), secrets.token_bytes(HASH_BYTES))
            for cost in {known.cost for known in policy.hashes.values()} or {DEFAULT_COST}
        ]
        """No password's hashes, one of each cost that the file has."""

    def under(self, policy: Policy) -> _State:
        """The state under another policy: only those whose password has not changed are known from the start."""
        found = _State(policy)
        for digest, principal in self.right.items():
            name = principal.name
            if name in policy.hashes and policy.hashes[name] == self.policy.hashes[name]:
                found.right[digest] = policy.principals[name]
        return found


class _Turns:
    """So many at once, and then whoever has waited longest: newcomers never pass those who wait. Thread-safe."""

    def __init__(self, count: int, waiting_max: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Event] = deque()
        self._waiting_max = waiting_max

    def take(self, timeout_s: float) -> bool:
        """Whether it is the caller's turn, who then has to give it back; False when too many wait, or for too long."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            if len(self._waiting) >= self._waiting_max:
                return False
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(timeout_s):
            return True
        with self._lock:
            if turn.is_set():
                return True  # just now
            self._waiting.remove(turn)
            return False

    def give_back(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


def _compared(state: _State, name: str, password: str) -> Answer:
    expected = state.policy.hashes.get(name)
    # One hash of each cost whoever it is, known or not, so that names cannot be found out by the time.
    found = [
        (expected if expected is not None and expected.cost == nobody.cost else nobody).matches(password)
        for nobody in state.nobodies
    ]
    return state.policy.principals[name] if any(found) and expected is not None else WRONG_CREDENTIALS


def _network(address: str) -> str:
    """What one sender has of addresses: itself, or of IPv6 the network that it is in."""
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), IPV6_NETWORK_BITS), strict=False))


def _stamp(path: Path) -> tuple[int, ...]:
    """Differs when the file was written, replaced or removed."""
    try:
        status = path.stat()
    except OSError as error:
        return (error.errno or -1,)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _credentials(authorization: str) -> tuple[str, str] | None:
    """(user, password) of a header's value; None when it is of another scheme or malformed."""
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
