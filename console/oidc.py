"""Sign-in through an OpenID provider: OpenID Connect's code flow with PKCE (RFC 7636, S256).

The state, the nonce and the PKCE verifier of a sign-in are derived from a random secret in a cookie of the browser, so
that only the browser that began a sign-in can end it. Nothing is stored before the sign-in. After it, the session has
the user's name and roles, and the provider's tokens are dropped.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from authlib.common.errors import AuthlibBaseError
from authlib.integrations.requests_client import OAuth2Session

from headrace.console.errors import OidcSignInFailed
from headrace.registry.access.tokens import TokenIdentity, TokenKeys, TokenRejected, TokenRules, TokenVerifier
from headrace.settings import Settings
from headrace.settings.values import is_loopback

logger = logging.getLogger(__name__)

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
TIMEOUT_S: Final = 5.0
METADATA_AGE_S: Final = 3600.0
SIGN_IN_AGE_MS_MAX: Final = 600_000
STATE_CHARS_MAX: Final = 2048
CODE_CHARS_MAX: Final = 4096
USER_CHARS_MAX: Final = 200
TARGET_CHARS_MAX: Final = 1000
ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


EXPIRED: Final = "The sign-in has expired, or was begun in another browser. Try again."
UNREACHABLE: Final = "The identity provider cannot be reached. The log of the console has the cause."
REFUSED: Final = "The identity provider did not confirm the sign-in. The log of the console has the cause."


@dataclass(frozen=True, slots=True)
class _Provider:
    """The endpoints of the provider, and the verifier of its id tokens."""

    authorization_url: str
    token_url: str
    token_auth: str
    verifier: TokenVerifier
    read_at_s: float


class OidcLogin:
    """Sign-ins through the provider of `console.oidc_issuer`. Thread-safe; waits for the network.

    Raises:
        OSError: the file with the client's secret cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        own = settings.console
        self._settings = settings
        self._lock = threading.Lock()
        self._provider: _Provider | None = None
        path = own.oidc_client_secret_file
        self._client_secret = Path(path).read_text(encoding="utf-8").strip() if path else ""

    @property
    def name(self) -> str:
        """The host name of the provider."""
        return urlsplit(self._settings.console.oidc_issuer).hostname or ""

    def authorization_url(self, secret: str, target: str, redirect_uri: str, now_ms: int) -> str:
        """Returns the URL of the provider that begins a sign-in.

        Args:
            secret: the random secret in the browser's cookie.
            target: the path to show after the sign-in.
            redirect_uri: the URL to which the provider sends the browser back.

        Raises:
            OidcSignInFailed: the provider cannot be reached.
        """
        provider = self._read_provider()
        state = _new_state(secret, target if len(target) <= TARGET_CHARS_MAX else "/", now_ms)
        with self._client(provider) as client:
            url, _ = client.create_authorization_url(
                provider.authorization_url,
                state=state,
                code_verifier=_derived(secret, "verifier", state),
                nonce=_derived(secret, "nonce", state),
                redirect_uri=redirect_uri,
            )
        return str(url)

    def finish(
        self, secret: str, parameters: Mapping[str, str], redirect_uri: str, now_ms: int
    ) -> tuple[TokenIdentity, str]:
        """Ends a sign-in: exchanges the code, and returns the user and the path to show.

        Args:
            secret: the secret in the browser's cookie, "" without one.
            parameters: the parameters of the URL with which the provider sent the browser back.
            redirect_uri: the same as in `authorization_url`.

        Raises:
            OidcSignInFailed: the state, the issuer, or the id token is not valid, or the provider refused the sign-in.
        """
        state = parameters.get("state", "")
        target = _target_of(secret, state, now_ms)
        if parameters.get("iss", self._settings.console.oidc_issuer) != self._settings.console.oidc_issuer:
            raise OidcSignInFailed(REFUSED, "the response is of another issuer")
        if "error" in parameters:
            raise OidcSignInFailed(REFUSED, f"the provider's response is {parameters['error'][:200]!r}")
        provider = self._read_provider()
        id_token = self._exchange(provider, parameters.get("code", ""), redirect_uri, secret, state)
        try:
            identity = provider.verifier.verify(id_token, nonce=_derived(secret, "nonce", state))
        except TokenRejected as error:
            raise OidcSignInFailed(REFUSED, f"the id token was rejected: {error}") from error
        if len(identity.name) > USER_CHARS_MAX:
            raise OidcSignInFailed(REFUSED, "the user's name is too long")
        return identity, target

    def _exchange(self, provider: _Provider, code: str, redirect_uri: str, secret: str, state: str) -> str:
        """Returns the id token for a code."""
        if not code or len(code) > CODE_CHARS_MAX:
            raise OidcSignInFailed(REFUSED, "the response has no code")
        try:
            with self._client(provider) as client:
                token = client.fetch_token(
                    provider.token_url,
                    grant_type="authorization_code",
                    code=code,
                    redirect_uri=redirect_uri,
                    code_verifier=_derived(secret, "verifier", state),
                    allow_redirects=False,
                )
        except OSError as error:  # that of `requests`
            raise OidcSignInFailed(UNREACHABLE, f"code not exchanged: {error}", is_unreachable=True) from error
        except (AuthlibBaseError, ValueError) as error:
            raise OidcSignInFailed(REFUSED, f"the code was not accepted: {error}") from error
        id_token = token.get("id_token") if isinstance(token, Mapping) else None
        if not isinstance(id_token, str):
            raise OidcSignInFailed(REFUSED, "the response of the token endpoint has no id token")
        return id_token

    def _client(self, provider: _Provider) -> Any:
        own = self._settings.console
        return OAuth2Session(
            own.oidc_client_id,
            self._client_secret or None,
            scope=own.oidc_scopes,
            token_endpoint_auth_method=provider.token_auth if self._client_secret else "none",
            code_challenge_method="S256",
            default_timeout=TIMEOUT_S,
        )

    def _read_provider(self) -> _Provider:
        """Returns the provider. Its metadata is cached for `METADATA_AGE_S`."""
        with self._lock:
            known = self._provider
        if known is not None and time.monotonic() - known.read_at_s < METADATA_AGE_S:
            return known
        try:
            with OAuth2Session(default_timeout=TIMEOUT_S) as session:
                url = self._settings.console.oidc_issuer.rstrip("/") + DISCOVERY_PATH
                response = session.request("GET", url, withhold_token=True, allow_redirects=False)
                response.raise_for_status()
                found = self._provider_of(response.json())
        except (OSError, ValueError) as error:
            if known is not None:
                logger.warning("oidc_metadata_not_read action=keeping the previous metadata cause=%s", error)
                return known
            raise OidcSignInFailed(UNREACHABLE, f"metadata not read: {error}", is_unreachable=True) from error
        with self._lock:
            self._provider = found
        return found

    def _provider_of(self, metadata: Any) -> _Provider:
        """Checks the metadata of the provider (OpenID Connect Discovery 1.0).

        Raises:
            ValueError: they are of another issuer, or lack an endpoint.
        """
        own, registry = self._settings.console, self._settings.registry
        if not isinstance(metadata, Mapping) or metadata.get("issuer") != own.oidc_issuer:
            raise ValueError("the metadata state another issuer than console.oidc_issuer")
        for name in ENDPOINTS:
            if not is_provider_url(metadata.get(name)):
                raise ValueError(f"{name} in the metadata is no https URL")
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        rules = TokenRules(own.oidc_issuer, own.oidc_client_id, registry.user_claim, registry.roles_claim)
        return _Provider(
            metadata["authorization_endpoint"],
            metadata["token_endpoint"],
            "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post",
            TokenVerifier(TokenKeys(metadata["jwks_uri"]), rules),
            time.monotonic(),
        )


def is_provider_url(url: object) -> bool:
    """Whether a provider may have this URL: https, or http on loopback."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        host = parts.hostname if parts is not None else None
    except ValueError:
        return False
    if parts is None or not host:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def _new_state(secret: str, target: str, now_ms: int) -> str:
    payload = _encoded(json.dumps([now_ms, secrets.token_urlsafe(16), target]).encode())
    return f"{payload}.{_derived(secret, 'state', payload)}"


def _target_of(secret: str, state: str, now_ms: int) -> str:
    """Returns the target in a state that this browser began.

    Raises:
        OidcSignInFailed: the state is of another browser, or too old.
    """
    payload, _, code = state.partition(".")
    expected = _derived(secret, "state", payload)
    if (
        not secret
        or len(state) > STATE_CHARS_MAX
        or not hmac.compare_digest(code.encode("utf-8", "replace"), expected.encode())
    ):
        raise OidcSignInFailed(EXPIRED, "the state is not that of the browser's cookie")
    began_ms, _, target = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    if not 0 <= now_ms - began_ms <= SIGN_IN_AGE_MS_MAX:
        raise OidcSignInFailed(EXPIRED, "the state has expired")
    return str(target)


def _derived(secret: str, purpose: str, text: str) -> str:
    """Returns 43 characters that only a holder of the secret can compute."""
    message = f"{purpose}\0{text}".encode("utf-8", "surrogatepass")
    return _encoded(hmac.new(secret.encode("utf-8", "surrogatepass"), message, hashlib.sha256).digest())


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
