"""Verifies bearer tokens and reads the user and roles from their claims (RFC 7519, OIDC).

The keys are a JSON Web Key Set in a file or at a URL. The registry reads it again for the first token after
`KEYS_AGE_S`. An unknown key id also makes it read the key set again, but at most every `REFRESH_S`, because any client
can send tokens with unknown key ids. While the key set cannot be read, the previous keys remain in use.
"""

from __future__ import annotations

import hmac
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
"""Asymmetric signatures only. With a shared secret every verifier could issue tokens, and "none" has no signature."""

KEY_KINDS: Final = frozenset({"RSA", "EC", "OKP"})
REFRESH_S: Final = 30.0  # minimum time between two reads because of unknown key ids
KEYS_AGE_S: Final = 3600.0  # maximum age of the keys; a withdrawn key is accepted until then
FETCH_TIMEOUT_S: Final = 5.0
KEYS_BYTES_MAX: Final = 1024 * 1024
LEEWAY_S: Final = 60.0  # maximum clock difference between issuer and registry
ROLES_MAX: Final = 1000  # per token


class TokenRejected(Exception):
    """The token was rejected. The message gives the reason, for the log; the client does not receive it."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The issuer and audience that a token must have, and the names of the claims that contain its user and roles.

    `roles_claim` may be a path with dots, such as `realm_access.roles`.
    """

    issuer: str
    audience: str
    user_claim: str = "sub"
    roles_claim: str = "roles"


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """User and roles of a token, valid until `expires_s` (seconds since 1970)."""

    name: str
    roles: tuple[str, ...]
    expires_s: float


class TokenKeys:
    """The public keys that verify tokens: a JSON Web Key Set in a file or at an `https://` or `http://` URL.
    Thread-safe; may wait for the network."""

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the key set if it is a file. A URL is read when the first token is verified.

        Args:
            source: the name of the file, or the URL.
            clock: a monotonic clock, for the age of the keys.

        Raises:
            TokenKeysUnusable: the file cannot be read, is not a key set, or has no public key of a kind in `KEY_KINDS`.
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
        """Returns the key with this id, or None if the set does not have it. Without a key id, returns the only key of
        the set; if it has several, the one without an id, or None."""
        with self._lock:
            age = self._clock() - self._read_at
            if age >= KEYS_AGE_S or (self._find(key_id) is None and age >= REFRESH_S):
                try:
                    self._read(self._clock())
                except TokenKeysUnusable as error:
                    logger.error("token_keys_not_read keys_in_use=%d cause=%s", len(self._keys), error)
            return self._find(key_id)

    def _find(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _read(self, now: float) -> None:
        self._read_at = now  # set before the attempt, so that a failed one is not repeated at once
        try:
            found = jwt.PyJWKSet.from_json(self._text())
        except (OSError, urllib.error.URLError) as error:
            cause = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            raise TokenKeysUnusable(f"the token keys {self._source} cannot be read: {cause}") from error
        except (jwt.PyJWTError, ValueError, AttributeError, TypeError) as error:
            raise TokenKeysUnusable(f"the token keys {self._source} are not a JSON Web Key Set: {error}") from error
        keys = {key.key_id: key for key in found.keys if key.key_type in KEY_KINDS}
        if not keys:
            raise TokenKeysUnusable(
                f"the token keys {self._source} contain no public RSA, EC or Ed25519 key; use the key set of the issuer"
            )
        self._keys = keys

    def _text(self) -> str:
        if not self._is_url:
            return Path(self._source).read_text(encoding="utf-8")
        with urllib.request.urlopen(self._source, timeout=FETCH_TIMEOUT_S) as response:  # noqa: S310  (checked above)
            return str(response.read(KEYS_BYTES_MAX).decode("utf-8"))


class TokenVerifier:
    """Verifies tokens. Thread-safe; may wait for the network."""

    def __init__(self, keys: TokenKeys, rules: TokenRules) -> None:
        self._keys = keys
        self._rules = rules

    def verify(self, token: str, nonce: str | None = None) -> TokenIdentity:
        """Returns the identity in a token.

        Args:
            nonce: the nonce of a sign-in, for an id token (OpenID Connect Core 1.0, 3.1.3.7); None for other tokens.

        Raises:
            TokenRejected: the token is malformed, the issuer did not sign it, it has another issuer, audience or nonce,
                has expired, is not valid yet, or lacks the expiry or the user.
        """
        rules = self._rules
        try:
            key = self._keys.key(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise TokenRejected("the key id (kid) of the token is missing or is not that of a key of the issuer")
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
            raise TokenRejected(str(error)) from error
        if nonce is not None:
            _check_sign_in(claims, nonce, rules.audience)
        name = claims.get(rules.user_claim)
        if not isinstance(name, str) or not name:
            raise TokenRejected(f"the token has no claim {rules.user_claim} with a user name")
        return TokenIdentity(name, _roles(claims, rules.roles_claim), float(claims["exp"]) + LEEWAY_S)


def _check_sign_in(claims: Mapping[str, Any], nonce: str, client_id: str) -> None:
    """Checks the claims that only id tokens have.

    Raises:
        TokenRejected: the token is of another sign-in, or was issued to another client.
    """
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode("utf-8", "replace"), nonce.encode()):
        raise TokenRejected("the nonce is not that of the sign-in")
    audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    if claims.get("azp", client_id if len(audiences) == 1 else None) != client_id:
        raise TokenRejected("the token was issued to another client (azp)")


def _roles(claims: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Reads the roles from the claim at `path`: a list of texts, or one text of words separated by blanks, like
    `scope`. Reads only the first `ROLES_MAX` items. Empty for other values."""
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
