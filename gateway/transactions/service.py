"""The transactions of one gateway: its spool, its lanes of the ledger, and the steps of a transaction."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.gateway.audit import GatewayAudit
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.request_body import BodyReader
from headrace.gateway.sessions.lanes import Lanes, LaneTopic, url_of
from headrace.gateway.sessions.request import Encode
from headrace.gateway.sessions.routes import OpenRequest
from headrace.gateway.sessions.service import CLEANUP_POLICY, cluster_of
from headrace.gateway.transactions.conversion import convert
from headrace.gateway.transactions.identity import (
    AHEAD_MS_MAX,
    DAY_MS,
    LEDGER_MS,
    USABLE_MS,
    TransactionKey,
    created_ms,
    new_transaction_id,
    transaction_key,
)
from headrace.gateway.transactions.ledger import CommitRequest, Committed, LedgerLane
from headrace.gateway.transactions.spool import (
    RETRY_AFTER_S,
    SPOOL_DIRECTORY,
    ChunkSpool,
    StoredChunk,
    sync,
    write_fields,
)
from headrace.settings import Settings

logger = logging.getLogger(__name__)

CHUNK_BYTES_MAX: Final = 64 * 1024 * 1024
EXPIRE_S: Final = 10.0
"""How often expired chunks are deleted."""
ID_ATTEMPTS: Final = 1_000
RETENTION_MS, RETENTION_BYTES, UNLIMITED = "retention.ms", "retention.bytes", "-1"
LEDGER_CONFIG: Final = {
    CLEANUP_POLICY: "delete",
    RETENTION_MS: str(LEDGER_MS),
    RETENTION_BYTES: UNLIMITED,
    "segment.ms": str(DAY_MS),
}
"""Each row has a key of its own, so compaction would remove none."""


class Transactions:
    """The transactions of one gateway, for the coroutines of one event loop.

    Args:
        lanes: the lanes of the ledger.
        expiry_ms: how long a chunk is kept after it was stored or requested.
    """

    def __init__(self, lanes: Lanes, spool: ChunkSpool, expiry_ms: int) -> None:
        self.spool = spool
        self._lanes = lanes
        self._expiry_ms = expiry_ms
        self._conversions: dict[Path, asyncio.Task[StoredChunk]] = {}
        # One thread: a conversion has the whole chunk in memory.
        self._converter = ThreadPoolExecutor(1, "headrace-gateway-converter")

    @property
    def url(self) -> str:
        return self._lanes.url

    @property
    def serving_count(self) -> int:
        """How many lanes this gateway serves."""
        return self._lanes.serving_count

    def new_id(self, client: str) -> str:
        """Returns an id for a new transaction of a client, whose lane this gateway serves if it serves any."""
        for _ in range(ID_ATTEMPTS):
            found = new_transaction_id(now_ms())
            if self._lanes.serves(transaction_key(client, found)):
                break
        return found

    async def key(self, client: str, transaction_id: str) -> TransactionKey:
        """Returns the key of a transaction, whose lane this gateway owns.

        Raises:
            GatewayError: the id is invalid or too old.
            NotOwner, LaneUnavailable: see `Lanes.require`.
        """
        try:
            age_ms = now_ms() - created_ms(transaction_id)
        except ValueError as error:
            raise GatewayError(Kind.BAD_REQUEST, str(error)) from None
        if age_ms < -AHEAD_MS_MAX:
            raise GatewayError(
                Kind.BAD_REQUEST, f"{transaction_id} was not created by a gateway: its time has not come"
            )
        if age_ms > USABLE_MS:
            raise GatewayError(
                Kind.TRANSACTION_TOO_OLD,
                f"transaction {transaction_id} is older than {USABLE_MS // DAY_MS} days, and the ledger may have "
                "forgotten it; find out by its records whether it was committed",
            )
        found = transaction_key(client, transaction_id)
        await self._lanes.require(found)
        return found

    def chunk(self, key: TransactionKey, transaction_id: str) -> StoredChunk:
        """Raises:
        GatewayError: this gateway has no chunk of the transaction.
        """
        found = self.spool.find(key, now_ms())
        if found is None:
            raise self.missing(transaction_id)
        return found

    def missing(self, transaction_id: str) -> GatewayError:
        """Returns the error for a transaction without a chunk that is not committed."""
        if created_ms(transaction_id) + self._expiry_ms < now_ms():
            return GatewayError(
                Kind.CHUNK_EXPIRED, f"the chunk of transaction {transaction_id} has expired; store it again"
            )
        return GatewayError(
            Kind.TRANSACTION_UNKNOWN, f"this gateway has no chunk of transaction {transaction_id}; store it again"
        )

    async def store(
        self,
        key: TransactionKey,
        owner: str,
        wanted: OpenRequest,
        partition: int,
        media_type: str,
        reader: BodyReader,
        check: Callable[[int], None],
    ) -> StoredChunk:
        """Writes a body to disk and returns the chunk, in place of an earlier one of the transaction.

        Args:
            check: raises `GatewayError` if the CRC-32 of the body is not that of the request.

        Raises:
            GatewayError: the body is damaged or too large, or there is no space for it.
        """
        with _disk_errors(), self.spool.reserve(owner) as take:
            self.spool.open(now_ms(), creates=True)
            path, length, crc32 = self.spool.new_file(), 0, 0
            try:
                with path.open("wb") as file:
                    async for part in reader.chunks():
                        length += len(part)
                        if length > CHUNK_BYTES_MAX:
                            raise GatewayError(
                                Kind.BODY_TOO_LARGE,
                                f"the chunk has more than {CHUNK_BYTES_MAX:,} bytes; store it as several chunks",
                            )
                        take(len(part))
                        crc32 = zlib.crc32(part, crc32)
                        await asyncio.to_thread(file.write, part)
                    check(crc32)
                    await asyncio.to_thread(sync, file)
                expires_ms = now_ms() + self._expiry_ms
                chunk = StoredChunk(key, owner, wanted, partition, media_type, length, crc32, expires_ms, path, length)
                await asyncio.to_thread(write_fields, chunk)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        self.spool.put(chunk)
        return chunk

    async def convert(self, chunk: StoredChunk, encode: Encode, record_bytes_max: int) -> StoredChunk:
        """Returns the converted chunk. A conversion that runs is awaited, so that requests can be repeated.

        Raises:
            RecordsRejected, GatewayError: see `conversion.convert`.
        """
        running = self._conversions.get(chunk.data)
        if running is None:
            running = asyncio.create_task(self._convert(chunk, encode, record_bytes_max))
            self._conversions[chunk.data] = running
            running.add_done_callback(partial(self._converted, chunk))
        return await asyncio.shield(running)

    def _converted(self, chunk: StoredChunk, task: asyncio.Task[StoredChunk]) -> None:
        del self._conversions[chunk.data]
        if not task.cancelled():
            task.exception()  # the client may not wait for it any more

    async def _convert(self, chunk: StoredChunk, encode: Encode, record_bytes_max: int) -> StoredChunk:
        with _disk_errors(), self.spool.reserve(chunk.owner) as take:
            converted = await asyncio.get_running_loop().run_in_executor(
                self._converter, convert, chunk, encode, record_bytes_max, now_ms(), now_ms() + self._expiry_ms, take
            )
        if not self.spool.replace(chunk, converted):
            raise self.missing(chunk.transaction_id)
        return converted

    async def commit(self, client: str, transaction_id: str, chunk: StoredChunk | None) -> Committed:
        """Commits a transaction, or returns the result of an earlier commit; deletes its chunk.

        Raises:
            NotOwner, LaneUnavailable: see `Lanes.submit`.
            Exception: the errors of `ledger`.
        """
        commit = CommitRequest(client, transaction_id, chunk)
        committed = await self._lanes.submit(commit.key, commit, commit.result)
        if chunk is not None:
            self.spool.delete(chunk)
        return committed

    async def delete_expired(self) -> None:
        """Deletes expired chunks until it is cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_S)
            try:
                self.spool.expire(now_ms())
            except OSError as error:
                logger.error("spool_failed directory=%s cause=%s", self.spool.root, error)

    def close(self) -> None:
        """Leaves the lanes to other gateways, and the chunks to the next process."""
        self._lanes.close()
        self._converter.shutdown(wait=True, cancel_futures=True)
        self.spool.close()


@asynccontextmanager
async def running_transactions(
    settings: Settings, options: dict[str, Any], audit: GatewayAudit
) -> AsyncIterator[Transactions]:
    """Runs the transactions of a gateway.

    Args:
        options: librdkafka's options: addresses and security.
        audit: counts the records for the audit.

    Raises:
        SettingsError: the settings of the brokers contradict each other.
    """
    own, cluster = settings.gateway, cluster_of(settings)
    topic = LaneTopic(own.ledger_topic, LEDGER_CONFIG, ledger_problem)
    lanes = Lanes(
        options,
        cluster,
        topic,
        own.lanes,
        url_of(own),
        lambda number, sleep: LedgerLane(cluster(), topic.name, number, audit),
    )
    spool = ChunkSpool(settings.data_dir / SPOOL_DIRECTORY, own.spool_bytes_max, own.spool_client_bytes_max)
    try:
        spool.open(now_ms(), creates=False)
    except OSError as error:  # requests to store a chunk try again
        logger.error("spool_failed directory=%s cause=%s", spool.root, error)
    transactions = Transactions(lanes, spool, own.transaction_expiry.ms)
    deleting = asyncio.create_task(transactions.delete_expired())
    try:
        yield transactions
    finally:
        deleting.cancel()
        with suppress(asyncio.CancelledError):
            await deleting
        await asyncio.to_thread(transactions.close)


def ledger_problem(config: Mapping[str, str]) -> str:
    """Returns why a ledger with a configuration would forget transactions too early; "" if it would not."""
    policy = config.get(CLEANUP_POLICY)
    if policy is None:
        return "does not show its configuration, so it may forget transactions; permit the gateway to describe it"
    if "delete" not in policy:
        return ""
    retention_ms = config.get(RETENTION_MS, "0")
    if retention_ms != UNLIMITED and int(retention_ms) < LEDGER_MS:
        return f"has {RETENTION_MS} {retention_ms}, so it would forget transactions; set it to {LEDGER_MS} or more"
    if config.get(RETENTION_BYTES, UNLIMITED) != UNLIMITED:
        return f"has a limit {RETENTION_BYTES}, so it would forget transactions; set it to {UNLIMITED}"
    return ""


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Translates errors of the disk."""
    try:
        yield
    except OSError as error:
        logger.error("spool_failed cause=%s", error)
        raise GatewayError(
            Kind.DISK_FULL,
            f"the gateway cannot write to its disk: {error.strerror or error}; try again later",
            retry_after_s=RETRY_AFTER_S,
        ) from error


def now_ms() -> int:
    return time.time_ns() // 1_000_000
