"""Addresses of registry servers, credentials and TLS settings of a client.

Passwords, tokens and keys appear in no `repr`, message or log line. `Server.url` has no user part and is safe to show.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headrace.registry.errors import RegistryUnavailable

SERVERS_MAX = 32  # a longer list is probably a mistake
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """A user and password, as in RFC 7617."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if ":" in self.user or not is_text(self.user + self.password):
            raise ValueError(
                "user name and password must be printable characters, and the user name cannot contain a colon"
            )

    def header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class BearerAuth:
    """A token as in RFC 6750, or a function that returns the current token and is called before every request."""

    token: str | Callable[[], str] = field(repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.token, str):
            self.header()

    def header(self) -> str:
        token = self.token if isinstance(self.token, str) else self.token()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError("the bearer token is empty, or has a blank or a character that is not printable ASCII")
        return f"Bearer {token}"


Auth = BasicAuth | BearerAuth


@dataclass(frozen=True, slots=True)
class Tls:
    """Names of PEM files for HTTPS connections. Host names and certificates are always verified.

    `ca_file` replaces the system's trusted authorities.
    """

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""  # "": the key is in `certificate_file`
    key_password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """The settings for HTTPS connections, with the certificates loaded from the files.

        Raises:
            ValueError: a file cannot be read or is invalid.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"the CA file {self.ca_file} cannot be used: {_cause(error)}") from error
        if self.certificate_file:
            try:
                # A function, because without a password OpenSSL would prompt for one on the terminal.
                context.load_cert_chain(self.certificate_file, self.key_file or None, lambda: self.key_password)
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"the client certificate {self.certificate_file} cannot be used: {_cause(error)}"
                ) from error
        return context


@dataclass(frozen=True, slots=True)
class Server:
    """One address of the registry. `url` has no credentials and may be shown."""

    url: str
    host: str
    port: int | None
    is_secure: bool
    base_path: str
    auth: Auth | None = field(default=None, repr=False)

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK_HOSTS


def parse_servers(urls: str | Sequence[str], auth: Auth | None = None) -> tuple[Server, ...]:
    """Parses a list of URLs and preserves its order. Omits duplicates.

    Args:
        urls: `http://host:port`, several of them separated by commas, or a sequence. A URL may have a path. A user part
            is the basic credentials for that server, with `%2C` for a comma and `%40` for an `@`.
        auth: the credentials for servers without a user part in the URL.

    Raises:
        RegistryUnavailable: a URL is malformed, or the number of URLs is 0 or more than `SERVERS_MAX`.
    """
    texts = urls.split(",") if isinstance(urls, str) else list(urls)
    servers = tuple(dict.fromkeys(_parse_server(text.strip(), auth) for text in texts if text.strip()))
    if not servers:
        raise RegistryUnavailable("", "expected a URL such as http://127.0.0.1:8081")
    if len(servers) > SERVERS_MAX:
        raise RegistryUnavailable(servers[0].url, f"expected at most {SERVERS_MAX} URLs, found {len(servers)}")
    return servers


def _parse_server(text: str, auth: Auth | None) -> Server:
    try:
        parts = urlsplit(text)
        hostname = parts.hostname
    except ValueError:
        raise RegistryUnavailable(_without_user(text), "expected a URL such as http://127.0.0.1:8081") from None
    shown = _without_user(text)
    if parts.scheme not in ("http", "https") or not hostname or not is_text(text) or " " in text:
        raise RegistryUnavailable(shown, "expected a URL such as http://127.0.0.1:8081")
    if parts.query or parts.fragment:
        raise RegistryUnavailable(shown.partition("?")[0], "expected a URL without query and fragment")
    try:
        port = parts.port
    except ValueError:
        # The text after the colon may be part of a password with an unescaped comma or slash, so it is not shown.
        raise RegistryUnavailable(
            f"{parts.scheme}://{hostname}", "the port is not a number between 0 and 65535"
        ) from None
    if parts.username is not None:
        try:
            auth = BasicAuth(unquote(parts.username), unquote(parts.password or ""))
        except ValueError as error:
            raise RegistryUnavailable(shown, str(error)) from None
    return Server(shown, hostname, port, parts.scheme == "https", parts.path.rstrip("/"), auth)


def _without_user(text: str) -> str:
    scheme, separator, rest = text.rpartition("://")
    return (scheme + separator + rest.rpartition("@")[2]).rstrip("/")


def is_text(text: str) -> bool:
    """Whether a text has only printable characters, so that it fits in a line or a header."""
    return all(character.isprintable() for character in text)


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM, or the key does not match"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
