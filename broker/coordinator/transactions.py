"""The transaction coordinator: all transactional ids of this node, their log, and the ends of their transactions.

Ids are rows of a table in the log of an internal topic, `__transaction_state`, as groups are of `__consumer_offsets`: a
row is changed by one append whatever the number of ids, a start folds the log, tools that know Kafka's find it where
Kafka has it. The topic is made for the first client that asks for a transactional id.

What is forced to disk, and in which order, unless fsync is `none`:

1. a partition is in the row before its client may write to it;
2. to commit, all that the transaction has written comes first, so that no power failure leaves a part of it;
3. the row says how it ends before the first marker is written;
4. all markers come before the row says that it is complete.

So whenever the broker ends, a transaction whose end is in its row is ended by the next start, where a partition that
has its marker has nothing open any more; and any other one goes on, since its client may be there still, until it
ends it or its time is up. Only where the power failed meanwhile, and acknowledged records with it, it is aborted and
its producer fenced: no client could tell that something of it is missing. What is open in a partition and in no row,
which takes damage or fsync `none`, is aborted at the start.

Requests for one id wait for each other; those that write to a partition ask without waiting.
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
from headrace.broker.coordinator.commits import Commits
from headrace.broker.coordinator.table import Entry, LogTable
from headrace.broker.coordinator.transaction import (
    EPOCH_MAX,
    IDLE,
    Identity,
    Partition,
    Status,
    Transaction,
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
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.opened import opened
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.errors import CorruptBatch, MalformedMessage

logger = logging.getLogger(__name__)

COMPACT_BYTES = 4 * 1024 * 1024
"""The log is compacted when it has grown by this much: some ten thousand transactions."""
IDS_MAX = 10_000
"""They are all in memory. Of more, those go that were not used for the longest time; their producers are refused."""
FORGOTTEN_AT_ONCE = 100
ID_CHARS_MAX = 1000
LOOK_MS = 1000
"""Between looks for transactions whose time is up: by so much it may be exceeded."""


class TransactionCoordinator:
    """Not for use by threads.

    Args:
        logs: of all partitions there are.
        offsets: the partition that groups have their log in.
        open_table: makes the table; called for the first transactional id.
        is_clean: whether the broker was closed in order before.
        boot_id: what this start of the machine is called; "" where the system does not say.
    """

    def __init__(
        self,
        logs: Mapping[Partition, PartitionLog],
        commits: Commits,
        offsets: Partition,
        flusher: Flusher,
        fsync: FsyncMode,
        producer_ids: ProducerIds,
        now_ms: Callable[[], int],
        *,
        table: LogTable | None,
        open_table: Callable[[], Awaitable[LogTable]],
        is_clean: bool,
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
        self._has_strangers = True
        if table is not None:
            self._load(table)
            if not is_clean and self._stored_boot_id != boot_id:
                self._fence_all()
            self._note_boot(table)
        self._end_strangers()

    @property
    def all(self) -> Mapping[str, Transaction]:
        return MappingProxyType(self._transactions)

    # Producers

    async def take(self, transactional_id: str, timeout_ms: int, claimed: Identity | None) -> Identity:
        """Gives the id to whoever asks, ending what the last one had begun; returns which producer that is from now on.

        Raises:
            RequestRefused: it is not given, or that could not be stored.
        """
        if not transactional_id or len(transactional_id) > ID_CHARS_MAX:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"a transactional id of {len(transactional_id)} characters")
        check_timeout(timeout_ms)
        async with self._locked(transactional_id):
            present = self._transactions.get(transactional_id)
            if present is None:
                await self._ensure_table()
                producer_id = await self._next_id()
                self._make_room()
                taken = Transaction.new(producer_id, timeout_ms, self._now_ms())
            else:
                present.check_claim(claimed)
                if not present.is_repeated_by(claimed):
                    # Its own producer may go on with the next epoch; any other one must be kept from going on.
                    present = await self._ended(transactional_id, present, is_fenced=claimed is None)
                    next_id = await self._next_id() if present.epoch >= EPOCH_MAX else None
                    taken = present.taken_over(claimed, timeout_ms, self._now_ms(), next_id=next_id)
                else:
                    taken = present
            if taken is not present:
                self._put(transactional_id, taken)
            await self._forced()
            return Identity(taken.producer_id, taken.epoch)

    async def _ended(self, transactional_id: str, present: Transaction, *, is_fenced: bool) -> Transaction:
        if present.status is Status.ONGOING:
            now_ms = self._now_ms()
            aborted = present.fenced(now_ms) if is_fenced else present.ended(now_ms, is_commit=False)
            self._put(transactional_id, aborted)
        await self._finish(transactional_id)
        return self._transactions[transactional_id]

    async def _next_id(self) -> int:
        try:
            return await self._producer_ids.take()
        except OSError as error:
            logger.error("no producer ids claimed error=%s", error)
            raise RequestRefused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no producer id could be claimed: {error.strerror}"
            ) from error

    def _make_room(self) -> None:
        """Forgets ids that are not used, where there are too many.

        Raises:
            RequestRefused: all of them are used.
        """
        if len(self._transactions) < IDS_MAX:
            return
        unused = (
            (each.changed_at_ms, transactional_id)
            for transactional_id, each in self._transactions.items()
            if each.status in IDLE and transactional_id not in self._locks
        )
        oldest = heapq.nsmallest(FORGOTTEN_AT_ONCE, unused)
        if not oldest:
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, f"there are {IDS_MAX} transactions already")
        for _, transactional_id in oldest:
            self._put(transactional_id, None)

    async def add(self, transactional_id: str, user: Identity, partitions: Collection[Partition]) -> None:
        """Takes partitions into the transaction, which begins with its first ones.

        Raises:
            RequestRefused: the producer may not, or it could not be stored.
        """
        async with self._locked(transactional_id):
            present = self._of(transactional_id)
            present.check_user(user)
            grown = present.with_partitions(partitions, self._now_ms())
            if grown is not present:
                self._put(transactional_id, grown)
            await self._forced()

    def check_part(self, transactional_id: str | None, user: Identity, partition: Partition) -> None:
        """Is what a producer is about to write to a partition a part of its transaction?

        Raises:
            RequestRefused: it is not.
        """
        if transactional_id is None:
            raise RequestRefused(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a part of a transaction, without a transactional id"
            )
        self._of(transactional_id).check_part(user, partition)
        if transactional_id in self._ending:
            raise RequestRefused(ErrorCode.INVALID_TXN_STATE, "the transaction is being ended")

    async def end(self, transactional_id: str, user: Identity, *, is_commit: bool) -> None:
        """Commits or aborts the transaction; when this returns, readers see what it was.

        Raises:
            RequestRefused: there is nothing to end for this producer, or it could not be stored.
        """
        async with self._locked(transactional_id):
            present = self._of(transactional_id)
            present.check_user(user)
            decided = present.ended(self._now_ms(), is_commit=is_commit)
            if decided is not present:
                if is_commit:
                    await self._force_parts(transactional_id, present.partitions)
                self._put(transactional_id, decided)
            await self._finish(transactional_id)

    async def _force_parts(self, transactional_id: str, partitions: Collection[Partition]) -> None:
        self._ending.add(transactional_id)
        try:
            await self._force(partitions)
        finally:
            self._ending.discard(transactional_id)

    # Ends

    async def _finish(self, transactional_id: str) -> None:
        """Writes the markers of a transaction whose end is decided; of any other, nothing happens.

        Raises:
            RequestRefused: something could not be written, which will be tried again.
        """
        decided = self._transactions[transactional_id]
        if not decided.is_decided:
            return
        await self._forced()
        for partition in sorted(decided.partitions):
            self._end_in(partition, Identity(decided.producer_id, decided.epoch), is_commit=decided.is_commit)
        await self._force(decided.partitions)
        self._put(transactional_id, decided.completed(self._now_ms()))

    def _end_in(self, partition: Partition, user: Identity, *, is_commit: bool) -> None:
        log = self._logs.get(partition)
        if log is None:
            # Its topic was deleted, and there is nothing left that could be seen or not.
            return
        if partition == self._offsets:
            self._commits.end_transaction(user.producer_id, is_commit=is_commit)
        try:
            log.end_transaction(user.producer_id, user.epoch, is_commit=is_commit, now_ms=self._now_ms())
        except RequestRefused as refused:
            raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused
        self._flusher.note(log)

    def _end_strangers(self) -> None:
        """Aborts what is open in a partition and in no row."""
        known = {each.producer_id: each for each in self._transactions.values() if each.status not in IDLE}
        try:
            for partition, log in self._logs.items():
                for producer_id, one in tuple(log.producers.open.items()):
                    if producer_id not in known or partition not in known[producer_id].partitions:
                        logger.warning(
                            "transaction of nobody aborted partition=%s-%d producer=%d offset=%d",
                            *partition,
                            producer_id,
                            one.first_offset,
                        )
                        self._end_in(partition, Identity(producer_id, one.epoch), is_commit=False)
            self._has_strangers = False
        except RequestRefused as refused:
            logger.error("transaction of nobody not aborted reason=%s; tried again", refused)

    async def _force(self, partitions: Collection[Partition]) -> None:
        logs = [log for log in map(self._logs.get, partitions) if log is not None]
        if self._fsync is not FsyncMode.NONE:
            await asyncio.gather(*(self._flusher.force(log) for log in logs))

    async def _forced(self) -> None:
        if self._table is not None:
            await self._table.forced()

    # Time

    async def look(self) -> None:
        """Ends what is to be ended, forgets ids that nobody uses, compacts the log when it is due."""
        if self._has_strangers:
            self._end_strangers()
        for transactional_id, each in tuple(self._transactions.items()):
            now_ms = self._now_ms()
            if each.is_decided or each.is_timed_out(now_ms) or each.is_expired(now_ms):
                try:
                    await self._look_at(transactional_id)
                except (OSError, RequestRefused) as error:
                    logger.error("transaction stuck id=%s reason=%s; tried again", transactional_id, error)
                except Exception:
                    logger.exception("transaction stuck id=%s; tried again", transactional_id)
        if self._table is not None and self._table.is_due:
            try:
                before, after = await self._table.compact(self._keys(), self._row_of)
                logger.info("transactions compacted bytes_before=%d bytes_after=%d", before, after)
            except (OSError, RequestRefused) as error:
                logger.error("transactions not compacted reason=%s", error)

    async def _look_at(self, transactional_id: str) -> None:
        async with self._locked(transactional_id):
            present, now_ms = self._transactions.get(transactional_id), self._now_ms()
            if present is None:
                return
            if present.is_expired(now_ms):
                self._put(transactional_id, None)
                return
            if present.is_timed_out(now_ms):
                logger.warning(
                    "transaction aborted id=%s producer=%d reason=it took longer than timeout_ms=%d",
                    transactional_id,
                    present.producer_id,
                    present.timeout_ms,
                )
                self._put(transactional_id, present.fenced(now_ms))
            await self._finish(transactional_id)

    # The table

    @asynccontextmanager
    async def _locked(self, transactional_id: str) -> AsyncIterator[None]:
        lock = self._locks.get(transactional_id)
        if lock is None:
            lock = self._locks[transactional_id] = asyncio.Lock()
        async with lock:
            yield

    def _of(self, transactional_id: str) -> Transaction:
        present = self._transactions.get(transactional_id)
        if present is None:
            raise RequestRefused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"there is no transactional id {transactional_id!r}"
            )
        return present

    async def _ensure_table(self) -> None:
        """
        Raises:
            RequestRefused: the disk refused it.
        """
        async with self._opening:
            if self._table is None:
                try:
                    self._table = await self._open_table()
                except RequestRefused as refused:
                    raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused
                self._note_boot(self._table)

    def _put(self, transactional_id: str, changed: Transaction | None) -> None:
        """Stores a row, or that it is gone; nobody may count on it before it is forced."""
        assert self._table is not None
        value = encode_transaction(changed) if changed is not None else None
        self._table.append([(encode_id_key(transactional_id), value)])
        if changed is None:
            del self._transactions[transactional_id]
        else:
            self._transactions[transactional_id] = changed

    def _keys(self) -> Iterator[str | None]:
        """Of all rows; None is that of the machine's start."""
        yield None
        yield from tuple(self._transactions)

    def _row_of(self, transactional_id: str | None) -> Entry | None:
        if transactional_id is None:
            return encode_boot_key(), self._boot_id.encode()
        present = self._transactions.get(transactional_id)
        return (encode_id_key(transactional_id), encode_transaction(present)) if present is not None else None

    def _load(self, table: LogTable) -> None:
        unknown: Counter[int] = Counter()
        for placed, batch in table.batches():
            try:
                for _, _, raw_key, value, _ in opened(batch, is_our_own=True):
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
                logger.error("transactional ids skipped offset=%d reason=%s", placed.header.base_offset, error)
        for kind, count in unknown.items():
            logger.error("records of transactions skipped kind=%d count=%d reason=no kind that is known", kind, count)

    def _fence_all(self) -> None:
        """Decides that all ongoing transactions are aborted; their markers are written by the first look."""
        now_ms = self._now_ms()
        for transactional_id, each in self._transactions.items():
            if each.status is Status.ONGOING:
                logger.warning("transaction aborted id=%s reason=the machine went down meanwhile", transactional_id)
                self._transactions[transactional_id] = each.fenced(now_ms)

    def _note_boot(self, table: LogTable) -> None:
        """Stores on which start of the machine this is, in one batch with what was decided because of it."""
        if self._stored_boot_id == self._boot_id:
            return
        decided = [key for key, each in self._transactions.items() if each.status is Status.PREPARE_ABORT]
        rows = [row for row in map(self._row_of, [None, *decided]) if row is not None]
        try:
            table.append(rows)
            self._stored_boot_id = self._boot_id
        except RequestRefused as refused:
            logger.error("start of the machine not noted reason=%s", refused)
