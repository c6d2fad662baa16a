"""Bearer tokens: signed by an issuer's key, for this registry, and what they say of who sent them (RFC 7519, OIDC).

Keys come from a JSON Web Key Set, of a file or of a URL. A key that is not known is asked for anew, though not more
often than `REFRESH_S`, since anybody may send tokens that name one. While the URL does not answer, the keys of before
serve.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt

from headrace.registry.errors import TokenKeysUnusable

logger = logging.getLogger(__name__)

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures alone: with a shared secret whoever checks a token could make one, and "none" is nobody's."""

KEY_KINDS: Final = frozenset({"RSA", "EC", "OKP"})
REFRESH_S: Final = 30.0  # between two looks for keys, however many tokens name an unknown one
KEYS_AGE_S: Final = 3600.0  # then keys are read again: one that was withdrawn serves so long
FETCH_TIMEOUT_S: Final = 5.0
KEYS_BYTES_MAX: Final = 1024 * 1024
LEEWAY_S: Final = 60.0  # that the clocks of issuer and registry may differ by
ROLES_MAX: Final = 1000  # of one token


class TokenRefused(Exception):
    """The message says why, for the log: whoever sent the token is only told that it is refused."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which tokens are believed, and in which of their claims user and roles stand.

    `roles_claim` may lead into objects with dots, as `realm_access.roles`.
    """

    issuer: str
    audience: str
    user_claim: str = "sub"
    roles_claim: str = "roles"


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who sent a token; it is believed until `expires_s`, in seconds since 1970."""

    name: str
    roles: tuple[str, ...]
    expires_s: float


class TokenKeys:
    """A key set by its file or its `https://` or `http://` URL. Thread-safe; may wait for the network."""

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Raises:
            TokenKeysUnusable: the file cannot be read or is none. A URL is not asked before there is a token.
        """
        self._source = source
        self._is_url = source.startswith(("https://", "http://"))
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._read_at = float("-inf")
        if not self._is_url:
            self._read(clock())

    def key(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key of that name; a token that names none means the only one."""
        with self._lock:
            age = self._clock() - self._read_at
            if age >= KEYS_AGE_S or (self._find(key_id) is None and age >= REFRESH_S):
                try:
                    self._read(self._clock())
                except TokenKeysUnusable as error:
                    logger.error("token_keys_refused cause=%s", error)
            return self._find(key_id)

    def _find(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _read(self, now: float) -> None:
        self._read_at = now  # also of an attempt in vain, which is not made again at once
        try:
            found = jwt.PyJWKSet.from_json(self._text())
        except (OSError, urllib.error.URLError) as error:
            cause = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            raise TokenKeysUnusable(f"the token keys {self._source} cannot be read: {cause}") from error
        except (jwt.PyJWTError, ValueError, AttributeError, TypeError) as error:
            raise TokenKeysUnusable(f"the token keys {self._source} are no JSON Web Key Set: {error}") from error
        self._keys = {key.key_id: key for key in found.keys if key.key_type in KEY_KINDS}
        if not self._keys:
            raise TokenKeysUnusable(f"the token keys {self._source} have no public key, expected RSA, EC or Ed25519")

    def _text(self) -> str:
        if not self._is_url:
            return Path(self._source).read_text(encoding="utf-8")
        with urllib.request.urlopen(self._source, timeout=FETCH_TIMEOUT_S) as response:  # noqa: S310  (checked above)
            return str(response.read(KEYS_BYTES_MAX).decode("utf-8"))


class Tokens:
    """Checks tokens. Thread-safe; may wait for the network."""

    def __init__(self, keys: TokenKeys, rules: TokenRules) -> None:
        self._keys = keys
        self._rules = rules

    def bearer(self, token: str) -> Bearer:
        """
        Raises:
            TokenRefused: it is not signed by the issuer, not for this registry, over, or names no user.
        """
        rules = self._rules
        try:
            key = self._keys.key(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise TokenRefused("no key of the issuer has the name that it says")
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=rules.audience,
                issuer=rules.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise TokenRefused(str(error)) from error
        name = claims.get(rules.user_claim)
        if not isinstance(name, str) or not name:
            raise TokenRefused(f"it has no claim {rules.user_claim} that names a user")
        return Bearer(name, _roles(claims, rules.roles_claim), float(claims["exp"]) + LEEWAY_S)


def _roles(claims: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """A list of texts, or one text of words as `scope` has them; nothing where it is something else."""
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        found = found.split()
    if not isinstance(found, list):
        return ()
    return tuple(role for role in found[:ROLES_MAX] if isinstance(role, str))
