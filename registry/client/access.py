"""Which servers a client talks to, and how it shows them who it is.

Passwords, tokens and keys appear in no `repr`, no message and no log line: what is shown of a URL is `Server.url`,
which has no user part.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headrace.registry.errors import RegistryUnavailable

SERVERS_MAX = 32  # a list that is longer is a mistake
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """A user and password, as in RFC 7617."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if ":" in self.user or not is_text(self.user + self.password):
            raise ValueError("a user has no colon, and neither user nor password control characters")

    def header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class BearerAuth:
    """A token, as in RFC 6750; or a function that gives one, asked before every request, for tokens that expire."""

    token: str | Callable[[], str] = field(repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.token, str):
            self.header()

    def header(self) -> str:
        token = self.token if isinstance(self.token, str) else self.token()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError("a bearer token is printable ASCII without blanks")
        return f"Bearer {token}"


Auth = BasicAuth | BearerAuth


@dataclass(frozen=True, slots=True)
class Tls:
    """What a client trusts and shows on https; file names. Host names and certificates are always checked.

    With `ca_file` only the authorities in it are trusted, otherwise those of the system.
    """

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""  # "": the key is in `certificate_file`
    key_password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """
        Raises:
            ValueError: a file cannot be read or is not what it should be.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"the CA file {self.ca_file} cannot be used: {_cause(error)}") from error
        if self.certificate_file:
            try:
                # A function instead of the text, since OpenSSL would otherwise ask at the terminal for a missing one.
                context.load_cert_chain(self.certificate_file, self.key_file or None, lambda: self.key_password)
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"the client certificate {self.certificate_file} cannot be used: {_cause(error)}"
                ) from error
        return context


@dataclass(frozen=True, slots=True)
class Server:
    """One address of the registry. `url` is what may be shown."""

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
    """The servers that a list of URLs names, in its order.

    Args:
        urls: `http://host:port`, several of them joined by commas, or a sequence. A path is kept, and a user part is
            the basic credentials for that server (with `%2C` for a comma and `%40` for an `@` in it).
        auth: for the servers whose URL has no user part.

    Raises:
        RegistryUnavailable: one of them is no such URL.
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
        # The text behind the colon may be a piece of a password with a bare comma or slash in it: not shown.
        raise RegistryUnavailable(
            f"{parts.scheme}://{hostname}", "its port is not a number between 0 and 65535"
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
    """Whether it is free of what would end a line or a header."""
    return all(character.isprintable() for character in text)


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM, or its key does not fit"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
