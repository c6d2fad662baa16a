"""The transaction coordinator: all transactional ids of this node, their log, and the completion of transactions.

Transactional ids are rows of a table in the log of the internal topic `__transaction_state`, like groups in
`__consumer_offsets`. A change is one append, whatever the number of ids; a start reads the log; Kafka's tools find the
data where Kafka stores it. The topic is created for the first transactional id.

Order of writes, each fsynced before the next unless fsync is `none`:

1. A partition is in the row before its client may write to it.

2. Before a commit is decided, everything that the transaction wrote is on disk, so a power failure never leaves a part
of it.

3. The decision is in the row before the first marker is written.

4. All markers are written before the row says that the transaction is complete.

So a start completes every transaction that is decided in its row. It may write a marker a second time, which changes
nothing. Other transactions continue, since their client may still be alive, until the client ends
them or they time out.

After a power failure, which may have lost acknowledged records, open transactions are aborted and their producers
fenced: no client could detect the loss. This requires a boot id, which only Linux provides: a start after an unclean
shutdown compares it with the stored one. A transaction that is open in a partition but not in a row with that partition
(possible after corruption or with fsync `none`) is aborted at the start.

Requests for one transactional id run one at a time. Writes to partitions only check the state and do not wait for them.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from weakref import WeakValueDictionary

from headrace.broker.config import FsyncMode
from headrace.broker.coordinator.commits import OffsetCommits
from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.coordinator.table import LogTable, TableEntry
from headrace.broker.coordinator.transaction import (
    EPOCH_MAX,
    IDLE,
    ProducerIdAndEpoch,
    Transaction,
    TransactionStatus,
    check_timeout,
)
from headrace.broker.coordinator.transaction_records import (
    BOOT_KEY,
    decode_key,
    decode_transaction,
    encode_boot_key,
    encode_id_key,
    encode_transaction,
)
from headrace.broker.errors import RequestRefused
from headrace.broker.log.decoding import decode_records
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.errors import CorruptBatch, MalformedMessage

logger = logging.getLogger(__name__)

COMPACT_BYTES = 4 * 1024 * 1024
"""The log is compacted when it has grown by this much since its last compaction, about 10,000 transactions, or if it is
larger than this after a start."""
IDS_MAX = 10_000
"""Maximum number of transactional ids, which are all in memory. When a new id would exceed it, the
EVICTED_IDS_PER_BATCH least recently used idle ids are deleted; requests of their producers are then refused."""
EVICTED_IDS_PER_BATCH = 100
ID_CHARS_MAX = 1000
TIMEOUT_CHECK_INTERVAL_MS = 1000
"""Interval of the check for timed-out transactions: a transaction may exceed its timeout by this much."""


class TransactionCoordinator:
    """Coordinates all transactions of the node. Not thread-safe.

    Args:
        logs: all partition logs.
        offsets: topic and number of the partition of `__consumer_offsets`.
        open_table: creates the table of transactional ids; called for the first id, unless `table` is given.
        was_clean_shutdown: whether the last broker on this directory shut down cleanly.
        boot_id: identifies the current boot of the machine; "" if the system does not provide it.
    """

    def __init__(
        self,
        logs: Mapping[TopicPartition, PartitionLog],
        commits: OffsetCommits,
        offsets: TopicPartition,
        flusher: Flusher,
        fsync: FsyncMode,
        producer_ids: ProducerIds,
        now_ms: Callable[[], int],
        *,
        table: LogTable | None,
        open_table: Callable[[], Awaitable[LogTable]],
        was_clean_shutdown: bool,
        boot_id: str,
    ) -> None:
        self._logs, self._commits, self._offsets = logs, commits, offsets
        self._flusher, self._fsync, self._producer_ids, self._now_ms = flusher, fsync, producer_ids, now_ms
        self._table, self._open_table = table, open_table
        self._boot_id, self._stored_boot_id = boot_id, ""
        self._transactions: dict[str, Transaction] = {}
        self._opening = asyncio.Lock()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._ending: set[str] = set()
        self._marked: dict[str, set[TopicPartition]] = {}
        """By transactional id, the partitions in which an unfinished completion has written its markers. Retries omit
        them, so that a retry each second does not fill logs with markers."""
        self._has_orphans = True
        if table is not None:
            self._load(table)
            if not was_clean_shutdown and self._stored_boot_id != boot_id:
                self._fence_ongoing()
            self._store_boot_id(table)
        self._abort_orphans()

    @property
    def all(self) -> Mapping[str, Transaction]:
        return MappingProxyType(self._transactions)

    # Producers

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, claimed: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        """Assigns a transactional id to a producer, after its previous transaction was aborted or completed. Returns
        the producer id and epoch.

        Args:
            timeout_ms: after this time the broker aborts an open transaction of the producer.
            claimed: the producer id and epoch in the request of a client that continues as the current producer; None
                for a new producer.

        Raises:
            RequestRefused: the claimed identity is not current, the transactional id or the timeout is invalid, there
                are too many ids, no producer id could be allocated, or a change could not be stored.
        """
        if not transactional_id or len(transactional_id) > ID_CHARS_MAX:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST,
                f"the transactional id has {len(transactional_id)} characters; expected 1 to {ID_CHARS_MAX}",
            )
        check_timeout(timeout_ms)
        async with self._locked(transactional_id):
            current = self._transactions.get(transactional_id)
            if current is None:
                await self._ensure_table()
                producer_id = await self._next_id()
                self._evict_unused()
                updated = Transaction.new(producer_id, timeout_ms, self._now_ms())
            else:
                current.check_claim(claimed)
                if not current.is_retry_of(claimed):
                    # A valid claim shows that the same producer continues; without one its predecessor must be fenced.
                    current = await self._end_previous(transactional_id, current, is_fenced=claimed is None)
                    next_id = await self._next_id() if current.epoch >= EPOCH_MAX else None
                    updated = current.with_next_epoch(claimed, timeout_ms, self._now_ms(), next_id=next_id)
                else:
                    updated = current
            if updated is not current:
                self._store(transactional_id, updated)
            await self._wait_until_durable()
            return ProducerIdAndEpoch(updated.producer_id, updated.epoch)

    async def _end_previous(self, transactional_id: str, current: Transaction, *, is_fenced: bool) -> Transaction:
        if current.status is TransactionStatus.ONGOING:
            now_ms = self._now_ms()
            aborted = current.prepare_fence(now_ms) if is_fenced else current.prepare_end(now_ms, is_commit=False)
            self._store(transactional_id, aborted)
        await self._write_markers(transactional_id)
        return self._transactions[transactional_id]

    async def _next_id(self) -> int:
        try:
            return await self._producer_ids.allocate()
        except OSError as error:
            logger.error(
                "producer ids could not be allocated, clients retry; check the disk of the data directory error=%s",
                error,
            )
            raise RequestRefused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no producer id could be allocated: {error.strerror}"
            ) from error

    def _evict_unused(self) -> None:
        """Deletes the EVICTED_IDS_PER_BATCH least recently used idle transactional ids if there are IDS_MAX ids.

        Raises:
            RequestRefused: all ids are in use, or a deletion could not be stored.
        """
        if len(self._transactions) < IDS_MAX:
            return
        unused = (
            (each.changed_at_ms, transactional_id)
            for transactional_id, each in self._transactions.items()
            if each.status in IDLE and transactional_id not in self._locks
        )
        evicted = heapq.nsmallest(EVICTED_IDS_PER_BATCH, unused)
        if not evicted:
            raise RequestRefused(
                ErrorCode.POLICY_VIOLATION,
                f"{IDS_MAX} transactional ids are in use, which is the limit; retry when transactions have ended",
            )
        for _, transactional_id in evicted:
            self._store(transactional_id, None)

    async def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        """Adds partitions to the transaction of a transactional id, and starts the transaction if none is open.

        Raises:
            RequestRefused: the id does not exist, the producer is not current, the previous transaction is still being
                completed, or the change could not be stored.
        """
        async with self._locked(transactional_id):
            current = self._existing(transactional_id)
            current.check_producer(producer)
            updated = current.with_partitions(partitions, self._now_ms())
            if updated is not current:
                self._store(transactional_id, updated)
            await self._wait_until_durable()

    def check_transactional_write(
        self, transactional_id: str | None, producer: ProducerIdAndEpoch, topic_partition: TopicPartition
    ) -> None:
        """Checks that a producer may write to a partition in its open transaction.

        Raises:
            RequestRefused: `transactional_id` is None or does not exist, the producer is not current, the partition is
                not in an open transaction, or the transaction is being committed.
        """
        if transactional_id is None:
            raise RequestRefused(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "the batch is transactional, but the request has no transactional id",
            )
        self._existing(transactional_id).check_transactional_write(producer, topic_partition)
        if transactional_id in self._ending:
            raise RequestRefused(
                ErrorCode.INVALID_TXN_STATE, "the transaction is being completed; begin a new transaction"
            )

    async def end_transaction(self, transactional_id: str, producer: ProducerIdAndEpoch, *, is_commit: bool) -> None:
        """Commits the open transaction of a transactional id, or aborts it if `is_commit` is False; returns when
        consumers can see the outcome.

        Raises:
            RequestRefused: the id does not exist, the producer is not current, it has no transaction to end, the
                opposite is decided, or the change could not be stored.
        """
        async with self._locked(transactional_id):
            current = self._existing(transactional_id)
            current.check_producer(producer)
            prepared = current.prepare_end(self._now_ms(), is_commit=is_commit)
            if prepared is not current:
                if is_commit:
                    await self._fsync_partitions(transactional_id, current.partitions)
                self._store(transactional_id, prepared)
            await self._write_markers(transactional_id)

    async def _fsync_partitions(self, transactional_id: str, partitions: Collection[TopicPartition]) -> None:
        self._ending.add(transactional_id)
        try:
            await self._fsync_logs(partitions)
        finally:
            self._ending.discard(transactional_id)

    # Completion

    async def _write_markers(self, transactional_id: str) -> None:
        """Writes the markers of a transaction if its commit or abort is decided.

        Raises:
            RequestRefused: a write failed; `run_maintenance` will retry it.
        """
        prepared = self._transactions[transactional_id]
        if not prepared.is_prepared:
            return
        await self._wait_until_durable()
        marked = self._marked.setdefault(transactional_id, set())
        producer = ProducerIdAndEpoch(prepared.producer_id, prepared.epoch)
        yielder = LoopYielder()
        for topic_partition in sorted(prepared.partitions - marked):
            await yielder.yield_if_due()
            self._write_marker(topic_partition, producer, is_commit=prepared.is_commit)
            marked.add(topic_partition)
        await self._fsync_logs(prepared.partitions)
        self._store(transactional_id, prepared.complete(self._now_ms()))
        del self._marked[transactional_id]

    def _write_marker(self, topic_partition: TopicPartition, producer: ProducerIdAndEpoch, *, is_commit: bool) -> None:
        log = self._logs.get(topic_partition)
        if log is None:
            # The topic was deleted, so there are no records to commit or abort.
            return
        if topic_partition == self._offsets:
            self._commits.end_transaction(producer.producer_id, is_commit=is_commit)
        try:
            log.end_transaction(producer.producer_id, producer.epoch, is_commit=is_commit, now_ms=self._now_ms())
        except RequestRefused as refused:
            raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused
        self._flusher.mark_dirty(log)

    def _abort_orphans(self) -> None:
        """Aborts transactions that are open in a partition, but have no row with that partition in the table of
        transactional ids."""
        known = {each.producer_id: each for each in self._transactions.values() if each.status not in IDLE}
        try:
            for topic_partition, log in self._logs.items():
                for producer_id, one in tuple(log.producers.open.items()):
                    if producer_id not in known or topic_partition not in known[producer_id].partitions:
                        logger.warning(
                            "orphaned transaction aborted partition=%s-%d producer=%d offset=%d",
                            *topic_partition,
                            producer_id,
                            one.first_offset,
                        )
                        self._write_marker(topic_partition, ProducerIdAndEpoch(producer_id, one.epoch), is_commit=False)
            self._has_orphans = False
        except RequestRefused as refused:
            logger.error("orphaned transaction not aborted reason=%s; will be retried", refused)

    async def _fsync_logs(self, partitions: Collection[TopicPartition]) -> None:
        logs = [log for log in map(self._logs.get, partitions) if log is not None]
        if self._fsync is not FsyncMode.NONE:
            await asyncio.gather(*(self._flusher.flush(log) for log in logs))

    async def _wait_until_durable(self) -> None:
        if self._table is not None:
            await self._table.wait_until_durable()

    # Time

    async def run_maintenance(self) -> None:
        """Completes the transactions whose commit or abort is decided, aborts timed-out ones, deletes expired
        transactional ids, and compacts the log that stores the ids when it is due."""
        if self._has_orphans:
            self._abort_orphans()
        for transactional_id, each in tuple(self._transactions.items()):
            now_ms = self._now_ms()
            if each.is_prepared or each.is_timed_out(now_ms) or each.is_expired(now_ms):
                try:
                    await self._check_transaction(transactional_id)
                except (OSError, RequestRefused) as error:
                    logger.error("transaction not completed id=%s reason=%s; will be retried", transactional_id, error)
                except Exception:
                    logger.exception("transaction not completed id=%s; will be retried", transactional_id)
        if self._table is not None and self._table.is_compaction_due:
            try:
                before, after = await self._table.compact(self._keys(), self._row_for)
                logger.info("log of transactions compacted bytes_before=%d bytes_after=%d", before, after)
            except (OSError, RequestRefused) as error:
                logger.error("log of transactions not compacted; check the disk of the data directory reason=%s", error)

    async def _check_transaction(self, transactional_id: str) -> None:
        async with self._locked(transactional_id):
            current, now_ms = self._transactions.get(transactional_id), self._now_ms()
            if current is None:
                return
            if current.is_expired(now_ms):
                self._store(transactional_id, None)
                return
            if current.is_timed_out(now_ms):
                logger.warning(
                    "transaction aborted id=%s producer=%d reason=timeout timeout_ms=%d",
                    transactional_id,
                    current.producer_id,
                    current.timeout_ms,
                )
                self._store(transactional_id, current.prepare_fence(now_ms))
            await self._write_markers(transactional_id)

    # The table

    @asynccontextmanager
    async def _locked(self, transactional_id: str) -> AsyncIterator[None]:
        lock = self._locks.get(transactional_id)
        if lock is None:
            lock = self._locks[transactional_id] = asyncio.Lock()
        async with lock:
            yield

    def _existing(self, transactional_id: str) -> Transaction:
        current = self._transactions.get(transactional_id)
        if current is None:
            raise RequestRefused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"transactional id {transactional_id!r} does not exist"
            )
        return current

    async def _ensure_table(self) -> None:
        """Creates the table of transactional ids if it does not exist.

        Raises:
            RequestRefused: the table could not be created.
        """
        async with self._opening:
            if self._table is None:
                try:
                    self._table = await self._open_table()
                except RequestRefused as refused:
                    raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused
                self._store_boot_id(self._table)

    def _store(self, transactional_id: str, changed: Transaction | None) -> None:
        """Stores the state of a transactional id, or deletes the id if `changed` is None. The change is durable only
        after `_wait_until_durable`."""
        assert self._table is not None
        value = encode_transaction(changed) if changed is not None else None
        self._table.append([(encode_id_key(transactional_id), value)])
        if changed is None:
            del self._transactions[transactional_id]
        else:
            self._transactions[transactional_id] = changed

    def _keys(self) -> Iterator[str | None]:
        """Yields the keys of all rows in the table of transactional ids: each id, and None for the row that stores the
        boot id."""
        yield None
        yield from tuple(self._transactions)

    def _row_for(self, transactional_id: str | None) -> TableEntry | None:
        if transactional_id is None:
            return encode_boot_key(), self._boot_id.encode()
        current = self._transactions.get(transactional_id)
        return (encode_id_key(transactional_id), encode_transaction(current)) if current is not None else None

    def _load(self, table: LogTable) -> None:
        unknown: Counter[int] = Counter()
        for located, batch in table.batches():
            try:
                for _, _, raw_key, value, _ in decode_records(batch, is_own_batch=True):
                    key = decode_key(raw_key or b"")
                    if key == BOOT_KEY and value is not None:
                        self._stored_boot_id = value.decode()
                    elif isinstance(key, str) and value is None:
                        self._transactions.pop(key, None)
                    elif isinstance(key, str) and value is not None:
                        self._transactions[key] = decode_transaction(value)
                    elif isinstance(key, int) and key != BOOT_KEY:
                        unknown[key] += 1
            except (MalformedMessage, CorruptBatch) as error:
                logger.error(
                    "batch of transaction records skipped, changes may be lost offset=%d reason=%s",
                    located.header.base_offset,
                    error,
                )
        for kind, count in unknown.items():
            logger.error(
                "records of transactions skipped kind=%d count=%d reason=unknown record kind, written by a newer "
                "version",
                kind,
                count,
            )

    def _fence_ongoing(self) -> None:
        """Decides, after a power failure, to abort all open transactions; `run_maintenance` writes their markers."""
        now_ms = self._now_ms()
        for transactional_id, each in self._transactions.items():
            if each.status is TransactionStatus.ONGOING:
                logger.warning(
                    "transaction aborted id=%s reason=the machine went down while the transaction was open",
                    transactional_id,
                )
                self._transactions[transactional_id] = each.prepare_fence(now_ms)

    def _store_boot_id(self, table: LogTable) -> None:
        """Stores the machine's current boot id in `table`, in one batch with the aborts that a power failure caused."""
        if self._stored_boot_id == self._boot_id:
            return
        prepared = [key for key, each in self._transactions.items() if each.status is TransactionStatus.PREPARE_ABORT]
        rows = [row for row in map(self._row_for, [None, *prepared]) if row is not None]
        try:
            table.append(rows)
            self._stored_boot_id = self._boot_id
        except RequestRefused as refused:
            logger.error("boot id of the machine not stored, the next start tries again reason=%s", refused)
