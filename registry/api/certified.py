"""A port of its own for clients that show a certificate, since granian does not tell whose one was.

Every worker answers there too, in its event loop and by the same front; the certificate's subject goes along in the
scope of each request.
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
"""OpenSSL's names of attributes, as RFC 4514 writes them; the others stay as they are."""

Application = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CertifiedPort:
    """Where clients show certificates, and PEM files: the server's own with its key, and whose are believed."""

    host: str
    port: int
    certificate: Path
    key: Path
    authorities: Path

    def context(self) -> ssl.SSLContext:
        """
        Raises:
            OSError, ValueError: a file cannot be read or used.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authorities))
        context.load_cert_chain(self.certificate, self.key, lambda: "")
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def listen(self, application: Application) -> asyncio.Server:
        """Answers by an ASGI application until it is closed; other processes of this user may listen there too."""
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
    """One connection, whose client has shown a certificate of one of the authorities."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        subject, answer = subject_text(transport.get_extra_info("peercert")["subject"]), self.app

        async def as_certified(scope: Any, receive: Any, send: Any) -> None:
            await answer({**scope, CERTIFICATE_KEY: subject}, receive, send)

        self.app = as_certified


def subject_text(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A certificate's subject as RFC 4514 writes it, the last part first: `CN=shop,O=Example`."""
    return ",".join(
        "+".join(f"{SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{character}" if character in '\\,+"<>;=' else character for character in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text
