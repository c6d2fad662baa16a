"""The broker as a server: its address, its start and its end."""

from __future__ import annotations

import asyncio
import logging
import os

from headrace.broker import descriptors
from headrace.broker.config import BrokerConfig
from headrace.broker.connection import Connection, Connections
from headrace.broker.errors import AddressUnusable, DiskFailed
from headrace.broker.node import BrokerNode

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that wait to be taken up."""
IDLE_LOOK_S = 30


class BrokerServer:
    """A broker that listens. `wait` serves until `stop` is called."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.node: BrokerNode
        self.connections = Connections()
        self._stopped = asyncio.Event()
        self._disk_failure: OSError | None = None
        self._server: asyncio.Server | None = None
        self._idle_look: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Takes the address, opens the logs, then listens; returns the address that clients are told.

        Raises:
            AddressUnusable: the address is taken, or not this machine's; no file was touched.
            StartError: the data folder cannot be used.
            CorruptFile: the data folder does not hold what it must.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self.node, self.connections),
                self.config.host,
                self.config.port,
                backlog=descriptors.ACCEPTED_AT_ONCE,
                start_serving=False,
            )
        except (OSError, OverflowError) as error:
            raise self._unusable(error) from error
        try:
            files_max, self.connections.count_max = descriptors.shares()
            self.node = BrokerNode(self.config, files_max=files_max, on_disk_failure=self._on_disk_failure)
        except BaseException:
            self._server.close()
            raise
        self.node.address = (self.config.host, self._server.sockets[0].getsockname()[1])
        self.node.start()
        try:
            await self._server.start_serving()
            for listener in self._server.sockets:
                # asyncio lets as many wait as it takes up at once.
                with listener.dup() as same:
                    same.listen(BACKLOG)
        except OSError as error:
            # Two can be bound to a port to which neither listens yet.
            await self.node.close()
            raise self._unusable(error) from error
        self._idle_look = loop.create_task(self._look_for_idle())
        return self.node.address

    def _unusable(self, error: OSError | OverflowError) -> AddressUnusable:
        # asyncio wraps the system's words in its own; a number below 1 is not the system's but a resolver's.
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(error)
        return AddressUnusable(f"{self.config.host}:{self.config.port}", reason)

    async def _look_for_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_LOOK_S)
            try:
                self.connections.close_idle(asyncio.get_running_loop().time())
            except Exception:
                logger.exception("idle connections not closed; tried again in seconds=%d", IDLE_LOOK_S)

    async def wait(self) -> None:
        """Serves until `stop`, then closes everything.

        Raises:
            DiskFailed: the disk failed while the broker ran or when it closed.
        """
        await self._stopped.wait()
        assert self._server is not None and self._idle_look is not None
        self._idle_look.cancel()
        self._server.close()
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
