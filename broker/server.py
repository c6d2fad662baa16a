"""The broker as a server: its address, its start and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker import descriptors
from headrace.broker.access.login import Users
from headrace.broker.access.users import UsersFile
from headrace.broker.config import BrokerConfig
from headrace.broker.connection import Connection, Connections
from headrace.broker.counts import RequestCounts
from headrace.broker.errors import AddressUnusable, DiskFailed, TlsUnusable
from headrace.broker.node import BrokerNode
from headrace.broker.rates import Rates

if TYPE_CHECKING:
    from headrace.broker.metrics import MetricsListener

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that wait to be taken up."""
IDLE_LOOK_S = 30
USERS_LOOK_S = 1
HANDSHAKE_S = 10
"""For a client to prove itself with TLS."""
EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound
"""To listen on; nobody can be reached there."""


def tls_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """What connections are secured with; None where they are not.

    Raises:
        TlsUnusable: a file cannot be read, is not what it should be, or is for a TLS that there is not.
    """
    if not config.tls_certificate:
        # Whoever named one of these means that nobody is served in clear, nor without having shown a certificate.
        for setting, path in (("tls_client_ca", config.tls_client_ca), ("tls_key", config.tls_key)):
            if path:
                raise TlsUnusable(setting, path, "there is no TLS without broker.tls_certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A function instead of nothing, since OpenSSL would otherwise ask at the terminal for a password.
        context.load_cert_chain(config.tls_certificate, config.tls_key or None, lambda: "")
    except OSError as error:  # ssl.SSLError is one
        path = f"{config.tls_certificate} with broker.tls_key {config.tls_key or 'in it'}"
        raise TlsUnusable("tls_certificate", path, error.strerror or str(error)) from error
    if config.tls_client_ca:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except OSError as error:
            raise TlsUnusable("tls_client_ca", config.tls_client_ca, error.strerror or str(error)) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class BrokerServer:
    """A broker that listens. `wait` serves until `stop` is called."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.node: BrokerNode
        self.connections = Connections(
            of_address_max=config.connections_per_address_max,
            rates=Rates(config.bytes_per_second_max) if config.bytes_per_second_max else None,
        )
        self._stopped = asyncio.Event()
        self._disk_failure: OSError | None = None
        self._server: asyncio.Server | None = None
        self._looks: list[asyncio.Task[None]] = []
        self._metrics: MetricsListener | None = None
        self.metrics_address: tuple[str, int] | None = None

    async def start(self) -> tuple[str, int]:
        """Takes the address, opens the logs, then listens; returns the address that it listens on.

        Raises:
            TlsUnusable: a certificate or key cannot be used.
            UsersUnusable: the users file cannot be read, or has a mistake.
            AddressUnusable: the address is taken, or not this machine's; no file was touched.
            StartError: the data directory cannot be used.
            CorruptFile: the data directory does not hold what it must.
        """
        loop = asyncio.get_running_loop()
        tls = tls_context(self.config)
        users = Users(UsersFile(Path(self.config.users))) if self.config.users else None
        self.connections.users = users
        try:
            self._server = await loop.create_server(
                lambda: Connection(self.node, self.connections),
                self.config.host,
                self.config.port,
                backlog=descriptors.ACCEPTED_AT_ONCE,
                start_serving=False,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
            )
        except (OSError, OverflowError) as error:
            raise self._unusable(error) from error
        try:
            files_max, self.connections.count_max = descriptors.shares()
            self.node = BrokerNode(self.config, files_max=files_max, on_disk_failure=self._on_disk_failure)
        except BaseException:
            self._server.close()
            raise
        port = int(self._server.sockets[0].getsockname()[1])
        self.node.address = (self.config.advertised_host or self.config.host, self.config.advertised_port or port)
        if self.node.address[0] in EVERY_ADDRESS:
            logger.warning("clients elsewhere are told host=%s; set broker.advertised_host", self.node.address[0])
        self.node.start()
        try:
            await self._serve_metrics()
            await self._server.start_serving()
            for listener in self._server.sockets:
                # asyncio lets as many wait as it takes up at once.
                with listener.dup() as same:
                    same.listen(BACKLOG)
        except AddressUnusable:
            self._server.close()
            await self.node.close()
            raise
        except OSError as error:
            # Two can be bound to a port to which neither listens yet.
            await self.node.close()
            raise self._unusable(error) from error
        self._looks = [loop.create_task(self._repeat(IDLE_LOOK_S, self._look_for_idle))]
        if users is not None:
            self._looks.append(loop.create_task(self._repeat(USERS_LOOK_S, self._look_for_users)))
        return self.config.host, port

    async def _serve_metrics(self) -> None:
        if not self.config.metrics_host:
            return
        # Here, since whoever serves none need not have the library.
        from headrace.broker.metrics import MetricsListener, MetricsPage

        counts = self.connections.counts = RequestCounts(self._topic_name)
        self._metrics = MetricsListener(MetricsPage(self.node, self.connections, counts))
        self.metrics_address = await self._metrics.start(self.config.metrics_host, self.config.metrics_port)

    def _topic_name(self, topic_id: UUID) -> str:
        topic = self.node.topics.by_id(topic_id)
        return topic.name if topic is not None else ""

    def _unusable(self, error: OSError | OverflowError) -> AddressUnusable:
        # asyncio wraps the system's words in its own; a number below 1 is not the system's but a resolver's.
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(error)
        return AddressUnusable(f"{self.config.host}:{self.config.port}", reason)

    async def _repeat(self, interval_s: int, look: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                look()
            except Exception:
                logger.exception("look failed; tried again in seconds=%d", interval_s)

    def _look_for_idle(self) -> None:
        self.connections.close_idle(asyncio.get_running_loop().time())

    def _look_for_users(self) -> None:
        assert self.connections.users is not None
        self.connections.close_changed(self.connections.users.file.look())

    async def wait(self) -> None:
        """Serves until `stop`, then closes everything.

        Raises:
            DiskFailed: the disk failed while the broker ran or when it closed.
        """
        await self._stopped.wait()
        assert self._server is not None
        for look in self._looks:
            look.cancel()
        if self.connections.users is not None:
            self.connections.users.close()
        self._server.close()
        if self._metrics is not None:
            self._metrics.close()
        for connection in tuple(self.connections.open):
            connection.close()
        # Connections notice that they are closed in the loop's next rounds; none may append after the logs are closed.
        for _ in range(100):
            if not self.connections.open:
                break
            await asyncio.sleep(0.01)
        try:
            await self.node.close()
        except OSError as error:
            self._disk_failure = self._disk_failure or error
        if self._disk_failure is not None:
            raise DiskFailed(self._disk_failure)

    def stop(self) -> None:
        self._stopped.set()

    def _on_disk_failure(self, error: OSError) -> None:
        self._disk_failure = error
        self.stop()
