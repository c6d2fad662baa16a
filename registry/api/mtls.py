"""A separate port for clients with certificates (mutual TLS), because granian does not report client certificates.

Every worker also listens on this port, in the same event loop and with the same ASGI front. The certificate's subject
is added to the scope of each request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from headrace.registry.api.hooks import CERTIFICATE_KEY

BACKLOG: Final = 1024
HANDSHAKE_S: Final = 10.0
IDLE_S: Final = 60
HEADERS_BYTES_MAX: Final = 64 * 1024
SHORT_NAMES: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""RFC 4514 names of OpenSSL's attributes; other attributes keep OpenSSL's name."""

Application = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class MtlsListener:
    """The port for clients with certificates (mutual TLS): its address, and PEM files with the server's certificate and
    key, and with the trusted authorities of the clients' certificates."""

    host: str
    port: int
    certificate: Path
    key: Path
    authorities: Path

    def context(self) -> ssl.SSLContext:
        """The TLS settings, which require a client certificate.

        Raises:
            OSError, ValueError: a file cannot be read or used.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authorities))
        context.load_cert_chain(self.certificate, self.key, lambda: "")
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def listen(self, application: Application) -> asyncio.Server:
        """Starts to serve an ASGI application, until the returned server is closed. Other processes of this user may
        share the port."""
        config = Config(
            application,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_S,
            h11_max_incomplete_event_size=HEADERS_BYTES_MAX,
        )
        config.load()
        state = ServerState()
        return await asyncio.get_running_loop().create_server(
            lambda: _Protocol(config, state, {}),
            self.host,
            self.port,
            ssl=self.context(),
            ssl_handshake_timeout=HANDSHAKE_S,
            backlog=BACKLOG,
            reuse_port=True,
        )


class _Protocol(H11Protocol):
    """A connection whose client has a certificate of a trusted authority."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        subject, application = subject_text(transport.get_extra_info("peercert")["subject"]), self.app

        async def with_subject(scope: Any, receive: Any, send: Any) -> None:
            await application({**scope, CERTIFICATE_KEY: subject}, receive, send)

        self.app = with_subject


def subject_text(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A certificate subject in the notation of RFC 4514, last part first: `CN=shop,O=Example`."""
    return ",".join(
        "+".join(f"{SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{character}" if character in '\\,+"<>;=' else character for character in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text
