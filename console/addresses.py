"""Names and paths under which browsers reach the console, from its settings. Pure functions."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from headrace.console.errors import ConsoleUnusable
from headrace.settings import ConsoleSettings

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")


def public_path(settings: ConsoleSettings) -> str:
    """Returns the path prefix of the pages for browsers, without a trailing slash; "" without a prefix.

    Raises:
        ConsoleUnusable: `console.public_url` is no http or https URL.
    """
    if not settings.public_url:
        return ""
    try:
        parts = urlsplit(settings.public_url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or parts.username is not None:
        raise ConsoleUnusable(
            f"console.public_url is {settings.public_url!r}; expected a URL such as https://ops.example.com/headrace"
        )
    return parts.path.rstrip("/")


def is_secure_for_browsers(settings: ConsoleSettings) -> bool:
    """Returns whether browsers use TLS. The console or a reverse proxy may provide it."""
    if settings.public_url:
        return settings.public_url.startswith("https:")
    return bool(settings.tls_certificate)


def trusted_hosts(settings: ConsoleSettings) -> frozenset[str]:
    """Returns the host names that requests may use. Others are rejected: a page of another name that resolves to
    this address cannot read the console (DNS rebinding).

    Raises:
        ConsoleUnusable: the console listens on all addresses, and `console.public_url` does not name the one to use.
    """
    host = settings.listen.host
    names = list(LOOPBACK_NAMES)
    if settings.public_url:
        names.append(urlsplit(settings.public_url).hostname or "")
    try:
        is_unspecified = ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        is_unspecified = not host
    if is_unspecified and not settings.public_url:
        raise ConsoleUnusable(
            f"console.listen is {settings.listen}; set console.public_url to the URL that browsers use, such as "
            "https://ops.example.com"
        )
    if not is_unspecified:
        names.append(host.strip("[]"))
    return frozenset(name.lower() for name in names)


def host_name(host: str) -> str:
    """Returns the name or address in a Host header, without brackets and port."""
    name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.strip("[]").lower()
