"""Selects the proxy for a server: `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` with rules similar to curl's and Go's.

Lower-case names have priority, and an empty value means no proxy. Loopback servers never use a proxy. For HTTPS the
proxy only forwards a tunnel (CONNECT) and sees host names; for HTTP it sees everything.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headrace.registry.client.access import Server, is_text
from headrace.registry.errors import RegistryUnavailable

DEFAULT_PORTS = {False: 80, True: 443}  # of a server, by `is_secure`
PROXY_PORT = 80  # if the URL of the proxy has no port


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. `headers` are sent to the proxy itself, such as its credentials."""

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(server: Server, environment: Mapping[str, str]) -> Proxy | None:
    """Returns the proxy for a server, or None for a direct connection.

    Args:
        server: the registry's server.
        environment: the environment variables.

    Raises:
        RegistryUnavailable: the environment variable with the proxy has an unusable value.
    """
    name = "https_proxy" if server.is_secure else "http_proxy"
    text, variable = _variable(environment, name)
    # In a CGI program HTTP_PROXY is the `Proxy` header of the request, so clients control it.
    if not text or (variable == "HTTP_PROXY" and "REQUEST_METHOD" in environment):
        return None
    if _is_direct(server, _variable(environment, "no_proxy")[0]):
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme != "http" or not is_text(unquote(text)):
        raise RegistryUnavailable(server.url, f"{variable}: expected a proxy such as http://proxy.example.com:3128")
    headers = {}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    return Proxy(host, port or PROXY_PORT, headers)


def _variable(environment: Mapping[str, str], name: str) -> tuple[str, str]:
    """Returns the value of an environment variable, and its actual name. The variable may be in lower case, like
    `name`, or in upper case; lower case has priority."""
    written = name if name in environment else name.upper()
    return environment.get(written, "").strip(), written


def _is_direct(server: Server, no_proxy: str) -> bool:
    host = server.host.lower().rstrip(".")
    address = _address(host)
    if host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback):
        return True
    port = str(server.port or DEFAULT_PORTS[server.is_secure])
    return any(_covers(entry.strip().lower(), host, port, address) for entry in no_proxy.split(","))


def _covers(entry: str, host: str, port: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    """Whether an entry of NO_PROXY matches a host.

    Args:
        entry: `*`, a network, or a domain (which includes its subdomains) or address, optionally with a port.
        host: the host name of the server.
        port: the port of the server.
        address: the host as an IP address; None if it is a name.
    """
    if entry == "*":
        return True
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            pass
    name, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdigit():
        if entry_port != port:
            return False
        entry = name.strip("[]")
    entry = entry.removeprefix("*").removeprefix(".").rstrip(".")
    return bool(entry) and (host == entry or (address is None and host.endswith(f".{entry}")))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
