"""The broker as a network server: start, periodic tasks and shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker import file_descriptors
from headrace.broker.access.login import KEY_BYTES, Users
from headrace.broker.access.users import BrokerUsersFile
from headrace.broker.config import BrokerConfig
from headrace.broker.connection import ClientConnection, ClientConnections
from headrace.broker.data_directory import hold_reserve, login_key, release_reserve
from headrace.broker.errors import AddressUnusable, DiskFailed, TlsUnusable
from headrace.broker.log.files import DISK_FULL_ERRNOS
from headrace.broker.node import BrokerNode
from headrace.broker.rate_limiter import ByteRateLimiter
from headrace.broker.request_counts import RequestCounts
from headrace.broker.snapshot import SnapshotServer

if TYPE_CHECKING:
    from headrace.broker.metrics import MetricsListener

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""
IDLE_CHECK_INTERVAL_S = 30
USERS_CHECK_INTERVAL_S = 1
TLS_HANDSHAKE_TIMEOUT_S = 10
"""Maximum duration of a TLS handshake; then the connection is closed."""
WILDCARD_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound
"""Addresses that a server can listen on but to which no remote client can connect."""


def load_tls_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """Builds the TLS context of client connections; None if TLS is off.

    Raises:
        TlsUnusable: a file cannot be read or is invalid, or a TLS setting is given without a certificate.
    """
    if not config.tls_certificate:
        # These settings show that TLS is intended, but without a certificate the broker would serve plaintext.
        for setting, path in (("tls_client_ca", config.tls_client_ca), ("tls_key", config.tls_key)):
            if path:
                raise TlsUnusable(setting, path, "broker.tls_certificate is not set; set broker.tls_certificate too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password function OpenSSL would prompt for a password at the terminal.
        context.load_cert_chain(config.tls_certificate, config.tls_key or None, lambda: "")
    except OSError as error:  # ssl.SSLError is an OSError
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
    """A broker that listens on a port. `start` begins to serve clients; `wait` returns after `stop` is called or the
    disk fails."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.node: BrokerNode
        self.connections = ClientConnections(
            per_address_max=config.connections_per_address_max,
            rates=ByteRateLimiter(config.bytes_per_second_max) if config.bytes_per_second_max else None,
        )
        self._stopped = asyncio.Event()
        self._disk_failure: OSError | None = None
        self._server: asyncio.Server | None = None
        self._periodic_tasks: list[asyncio.Task[None]] = []
        self._metrics: MetricsListener | None = None
        self.metrics_address: tuple[str, int] | None = None
        self._snapshots = SnapshotServer(config.data_dir, lambda: self.node.snapshot())

    async def start(self) -> tuple[str, int]:
        """Binds the address, opens the logs, then listens. Returns the address on which it listens.

        Raises:
            TlsUnusable: a certificate or key cannot be used.
            UsersUnusable: the users file cannot be read, or has an error.
            AddressUnusable: the broker or its metrics page cannot listen on its address, for example because it is in
                use.
            StartError: the data directory cannot be used, or a log in it is damaged.
            CorruptFile: a file in the data directory is corrupt.
            RequestRefused: the internal topic of the groups could not be created.
            OSError: another file in the data directory cannot be read or written.
        """
        loop = asyncio.get_running_loop()
        tls = load_tls_context(self.config)
        users = Users(BrokerUsersFile(Path(self.config.users))) if self.config.users else None
        self.connections.users = users
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(self.node, self.connections),
                self.config.host,
                self.config.port,
                backlog=file_descriptors.ACCEPTED_AT_ONCE,
                start_serving=False,
                ssl=tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if tls is not None else None,
            )
        except (OSError, OverflowError) as error:
            raise self._address_error(error) from error
        try:
            self.node = self._open_node()
            if users is not None:
                users.key = login_key(self.config.data_dir, KEY_BYTES)
        except BaseException:
            self._server.close()
            raise
        port = int(self._server.sockets[0].getsockname()[1])
        self.node.address = (self.config.advertised_host or self.config.host, self.config.advertised_port or port)
        if self.node.address[0] in WILDCARD_ADDRESSES:
            logger.warning(
                "advertised host is a wildcard, remote clients cannot connect host=%s; set broker.advertised_host",
                self.node.address[0],
            )
        self.node.start()
        try:
            await self._serve_metrics()
            await self._server.start_serving()
            for listener in self._server.sockets:
                # asyncio uses one number for the kernel's queue and for the connections accepted per iteration.
                with listener.dup() as duplicate:
                    duplicate.listen(BACKLOG)
        except AddressUnusable:
            self._server.close()
            await self.node.close()
            raise
        except OSError as error:
            # Two sockets can be bound to one port as long as neither listens; then listen fails.
            await self.node.close()
            raise self._address_error(error) from error
        await self._snapshots.start()
        self._periodic_tasks = [loop.create_task(self._run_periodically(IDLE_CHECK_INTERVAL_S, self._close_idle))]
        if users is not None:
            self._periodic_tasks.append(
                loop.create_task(self._run_periodically(USERS_CHECK_INTERVAL_S, self._reload_users))
            )
        return self.config.host, port

    def _open_node(self) -> BrokerNode:
        """Opens the logs. If the disk is too full for the files that a start writes, deletes the reserve and opens them
        again, so that clients can read, and retention and deleted records free space."""
        files_max, self.connections.count_max = file_descriptors.descriptor_limits()
        directory = self.config.data_dir
        try:
            node = BrokerNode(self.config, files_max=files_max, on_disk_failure=self._on_disk_failure)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS or not release_reserve(directory):
                raise
            logger.error(
                "disk is full, started with the space of the reserve directory=%s; clients can read, and delete "
                "records; free space",
                directory,
            )
            node = BrokerNode(self.config, files_max=files_max, on_disk_failure=self._on_disk_failure)
        hold_reserve(directory)
        return node

    async def _serve_metrics(self) -> None:
        if not self.config.metrics_host:
            return
        # Imported here, because prometheus_client is needed only if metrics are served.
        from headrace.broker.metrics import BrokerMetricsPage, MetricsListener

        counts = self.connections.counts = RequestCounts(self._topic_name)
        self._metrics = MetricsListener(BrokerMetricsPage(self.node, self.connections, counts))
        self.metrics_address = await self._metrics.start(self.config.metrics_host, self.config.metrics_port)

    def _topic_name(self, topic_id: UUID) -> str:
        topic = self.node.topics.by_id(topic_id)
        return topic.name if topic is not None else ""

    def _address_error(self, error: OSError | OverflowError) -> AddressUnusable:
        # asyncio wraps the system's message in its own. A number below 1 comes from the resolver, not from the system.
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(error)
        return AddressUnusable(f"{self.config.host}:{self.config.port}", reason)

    async def _run_periodically(self, interval_s: int, check: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                check()
            except Exception:
                logger.exception("periodic task failed; next run in seconds=%d", interval_s)

    def _close_idle(self) -> None:
        self.connections.close_idle(asyncio.get_running_loop().time())

    def _reload_users(self) -> None:
        assert self.connections.users is not None
        self.connections.close_users(self.connections.users.file.reload_if_changed())

    async def wait(self) -> None:
        """Serves clients until `stop` is called or the disk fails, then closes all connections and files.

        Raises:
            DiskFailed: the disk failed while the broker ran or when it closed.
        """
        await self._stopped.wait()
        assert self._server is not None
        for check in self._periodic_tasks:
            check.cancel()
        if self.connections.users is not None:
            self.connections.users.close()
        self._server.close()
        if self._metrics is not None:
            self._metrics.close()
        self._snapshots.close()
        for connection in tuple(self.connections.open):
            connection.close()
        # Connections end a few event loop iterations after `close`. None may append to a log after the logs are closed.
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
