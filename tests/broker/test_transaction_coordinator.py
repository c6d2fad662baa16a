"""Transaction coordinator: ownership of transactional ids, transaction states, and recovery at start."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from headrace.broker import node as node_module
from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator import coordinator as coordinator_module
from headrace.broker.coordinator import transactions as transactions_module
from headrace.broker.coordinator.offsets import RETENTION_MS
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.coordinator.transaction import (
    EPOCH_MAX,
    ID_EXPIRATION_MS,
    NO_EPOCH,
    TIMEOUT_MS_MAX,
    ProducerIdAndEpoch,
    Transaction,
    TransactionStatus,
)
from headrace.broker.coordinator.transaction_records import decode_transaction, encode_transaction
from headrace.broker.data_directory import CLEAN_MARKER
from headrace.broker.errors import LogDamaged, RequestRefused
from headrace.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_offsets,
    list_transactions,
    offset_fetch,
    produce,
    txn_offset_commit,
)
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.node import OFFSETS_PARTITION, BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.broker.topics import TRANSACTIONS_TOPIC
from support.broker.broker_samples import NOW_MS, append, batch, committed, contents, header_of, keyed_batch
from support.logs import logged

ID, T0, T1 = "shop-1", ("t", 0), ("t", 1)
UNKNOWN_PRODUCER = ProducerIdAndEpoch(-1, -1)
Work = Callable[["World"], Awaitable[None]]


class World:
    """A node, its clock, and the producer's next sequence numbers."""

    def __init__(self, node: BrokerNode, clock: list[int]) -> None:
        self.node, self.clock = node, clock

    @property
    def coordinator(self) -> Any:
        return self.node.transactions

    async def begin(
        self, transactional_id: str = ID, *partitions: tuple[str, int], timeout_ms: int = 60_000
    ) -> ProducerIdAndEpoch:
        producer = await self.coordinator.init_producer(transactional_id, timeout_ms, None)
        await self.coordinator.add_partitions(transactional_id, producer, partitions or (T0, T1))
        return producer

    def send(
        self,
        producer: ProducerIdAndEpoch,
        value: bytes,
        sequence: int = 0,
        partition: tuple[str, int] = T0,
        name: str = ID,
    ) -> None:
        """Appends a batch like a produce request."""
        self.coordinator.check_transactional_write(name, producer, partition)
        raw = batch(
            value, producer_id=producer.producer_id, epoch=producer.epoch, sequence=sequence, is_transactional=True
        )
        append(self.node.log(*partition), raw)
        self.node.flusher.mark_dirty(self.node.log(*partition))

    def committed(self, partition: tuple[str, int] = T0) -> list[bytes]:
        return committed(self.node.log(*partition))

    def status(self, transactional_id: str = ID) -> TransactionStatus:
        found: Transaction = self.coordinator.all[transactional_id]
        return found.status


def run(directory: Path, work: Work, *, clock: list[int] | None = None, is_killed: bool = False, **config: Any) -> None:
    """Opens a node with topic t and runs the test with it; then closes it, or abandons it as by a kill."""
    clock = clock if clock is not None else [NOW_MS]

    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory, **config), now_ms=lambda: clock[0])
        if node.topics.get("t") is None:
            node.changes.create_topic("t", 2, {})
        try:
            await asyncio.wait_for(work(World(node, clock)), 30)
        finally:
            await node.close()
            if is_killed:
                (directory / CLEAN_MARKER).unlink()

    asyncio.run(main())


async def refusal(awaitable: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        await awaitable
    return refused.value.code


def context(node: BrokerNode, version: int) -> RequestContext:
    return RequestContext(node, version, "test", "127.0.0.1")


# State transitions


NEW = Transaction.new(7, 60_000, NOW_MS)
ONGOING = NEW.with_partitions([T0], NOW_MS + 1)


@pytest.mark.parametrize(
    ("status", "commits", "aborts"),
    [
        (TransactionStatus.EMPTY, None, None),
        (TransactionStatus.ONGOING, TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT),
        (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_COMMIT, None),
        (TransactionStatus.PREPARE_ABORT, None, TransactionStatus.PREPARE_ABORT),
        (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_COMMIT, None),
        (TransactionStatus.COMPLETE_ABORT, None, TransactionStatus.COMPLETE_ABORT),
    ],
)
def test_prepare_end_in_each_status(
    status: TransactionStatus, commits: TransactionStatus | None, aborts: TransactionStatus | None
) -> None:
    present = {
        TransactionStatus.EMPTY: NEW,
        TransactionStatus.ONGOING: ONGOING,
        TransactionStatus.PREPARE_COMMIT: ONGOING.prepare_end(0, is_commit=True),
        TransactionStatus.PREPARE_ABORT: ONGOING.prepare_end(0, is_commit=False),
        TransactionStatus.COMPLETE_COMMIT: ONGOING.prepare_end(0, is_commit=True).complete(0),
        TransactionStatus.COMPLETE_ABORT: ONGOING.prepare_end(0, is_commit=False).complete(0),
    }[status]
    for is_commit, expected in ((True, commits), (False, aborts)):
        if expected is None:
            with pytest.raises(RequestRefused) as refused:
                present.prepare_end(1, is_commit=is_commit)
            assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        else:
            assert present.prepare_end(1, is_commit=is_commit).status is expected


def test_completed_transaction_has_no_partitions_and_next_one_starts_fresh() -> None:
    ended = ONGOING.prepare_end(NOW_MS + 2, is_commit=True).complete(NOW_MS + 3)
    assert ended.partitions == frozenset()
    extended = ended.with_partitions([T1], NOW_MS + 9)
    assert (extended.partitions, extended.started_at_ms) == (frozenset([T1]), NOW_MS + 9)
    assert extended.with_partitions([T1], NOW_MS + 10) is extended
    more = extended.with_partitions([T0], NOW_MS + 11)
    assert (more.started_at_ms, more.partitions) == (NOW_MS + 9, frozenset([T0, T1])), "time runs from the first one"


@pytest.mark.parametrize(
    "transaction",
    [NEW, ONGOING, ONGOING.prepare_fence(5), ONGOING.prepare_end(4, is_commit=True).complete(9)],
)
def test_transaction_record_round_trips(transaction: Transaction) -> None:
    assert decode_transaction(encode_transaction(transaction)) == transaction


def test_transaction_record_has_kafkas_layout() -> None:
    """Version, producer id, epoch, timeout, status, no partitions (null), changed, started."""
    raw = struct.pack(">hqhibiqq", 0, 7, 0, 60_000, 0, -1, NOW_MS, -1)
    assert encode_transaction(NEW)[: len(raw)] == raw


# Producers


def test_new_producer_fences_previous_one_and_aborts_its_transaction(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        old = await world.begin()
        world.send(old, b"of the old one")
        new = await world.coordinator.init_producer(ID, 60_000, None)
        assert new.producer_id == old.producer_id and new.epoch == old.epoch + 2
        assert world.node.log(*T0).last_stable_offset == 2 and world.committed() == []
        add = world.coordinator.add_partitions(ID, old, [T0])
        assert await refusal(add) is ErrorCode.PRODUCER_FENCED
        assert await refusal(world.coordinator.end_transaction(ID, old, is_commit=True)) is ErrorCode.PRODUCER_FENCED
        with pytest.raises(RequestRefused) as refused:
            world.send(old, b"late", 1)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        await world.coordinator.add_partitions(ID, new, [T0])
        world.send(new, b"of the new one")
        await world.coordinator.end_transaction(ID, new, is_commit=True)
        assert world.committed() == [b"of the new one"]

    run(tmp_path, work)


def test_producer_may_raise_and_retry_epoch_until_another_takes_over(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        take = world.coordinator.init_producer
        first = await world.begin()
        world.send(first, b"lost its place")
        second = await take(ID, 60_000, first)
        assert second == (first.producer_id, first.epoch + 1)
        assert world.committed() == [] and world.status() is TransactionStatus.EMPTY
        assert await take(ID, 60_000, first) == second, "it did not get the response"
        assert await take(ID, 60_000, second) == (first.producer_id, first.epoch + 2)
        assert await refusal(take(ID, 60_000, first)) is ErrorCode.PRODUCER_FENCED
        other = await take(ID, 60_000, None)
        assert (
            await refusal(take(ID, 60_000, ProducerIdAndEpoch(other.producer_id, other.epoch - 1)))
            is ErrorCode.PRODUCER_FENCED
        )
        assert await refusal(take(ID, 60_000, ProducerIdAndEpoch(99, other.epoch))) is ErrorCode.PRODUCER_FENCED

    run(tmp_path, work)


def test_fenced_producer_does_not_affect_next_transaction(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        old = await world.coordinator.init_producer(ID, 60_000, None)
        new = await world.begin()
        world.send(new, b"going on")
        assert await refusal(world.coordinator.init_producer(ID, 60_000, old)) is ErrorCode.PRODUCER_FENCED
        await world.coordinator.end_transaction(ID, new, is_commit=True)
        assert world.committed() == [b"going on"]

    run(tmp_path, work)


@pytest.mark.parametrize("is_open", [True, False])
def test_exhausted_epochs_give_new_producer_id(tmp_path: Path, is_open: bool) -> None:
    async def work(world: World) -> None:
        first = await world.coordinator.init_producer(ID, 60_000, None)
        used_up = world.coordinator.all[ID].with_next_epoch(None, 60_000, NOW_MS, next_id=None)
        world.coordinator._store(ID, _at_epoch(used_up, EPOCH_MAX))
        if is_open:
            await world.coordinator.add_partitions(ID, ProducerIdAndEpoch(first.producer_id, EPOCH_MAX), [T0])
            world.send(ProducerIdAndEpoch(first.producer_id, EPOCH_MAX), b"open")
        next_ = await world.coordinator.init_producer(ID, 60_000, None)
        assert next_.producer_id != first.producer_id and next_.epoch == 0
        assert world.node.log(*T0).last_stable_offset == (2 if is_open else 0)

    run(tmp_path, work)


def test_same_producer_continues_with_new_id_after_exhausted_epochs(tmp_path: Path) -> None:
    """A later request with the old id is not taken for a retry."""

    async def work(world: World) -> None:
        first = await world.coordinator.init_producer(ID, 60_000, None)
        last = ProducerIdAndEpoch(first.producer_id, EPOCH_MAX)
        world.coordinator._store(ID, _at_epoch(world.coordinator.all[ID], EPOCH_MAX))
        next_ = await world.coordinator.init_producer(ID, 60_000, last)
        assert next_.producer_id != first.producer_id and next_.epoch == 0
        assert world.coordinator.all[ID].last_epoch == NO_EPOCH
        assert await refusal(world.coordinator.init_producer(ID, 60_000, last)) is not None

    run(tmp_path, work)


def _at_epoch(transaction: Transaction, epoch: int) -> Transaction:
    import dataclasses

    return dataclasses.replace(transaction, epoch=epoch)


@pytest.mark.parametrize(
    ("timeout_ms", "is_allowed"), [(0, False), (1, True), (TIMEOUT_MS_MAX, True), (TIMEOUT_MS_MAX + 1, False)]
)
def test_transaction_timeout_is_limited(tmp_path: Path, timeout_ms: int, is_allowed: bool) -> None:
    async def work(world: World) -> None:
        if is_allowed:
            assert (await world.coordinator.init_producer(ID, timeout_ms, None)).epoch == 0
        else:
            assert (
                await refusal(world.coordinator.init_producer(ID, timeout_ms, None))
                is ErrorCode.INVALID_TRANSACTION_TIMEOUT
            )
        assert await refusal(world.coordinator.init_producer("", 1000, None)) is ErrorCode.INVALID_REQUEST

    run(tmp_path, work)


def test_mismatched_transactional_and_producer_ids_are_refused(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        producer = await world.coordinator.init_producer(ID, 60_000, None)
        for wrong in (
            world.coordinator.add_partitions("other", producer, [T0]),
            world.coordinator.add_partitions(ID, ProducerIdAndEpoch(99, 0), [T0]),
        ):
            assert await refusal(wrong) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (
            await refusal(world.coordinator.end_transaction(ID, producer, is_commit=True))
            is ErrorCode.INVALID_TXN_STATE
        )
        with pytest.raises(RequestRefused) as refused:
            world.send(producer, b"no transaction has begun")
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        await world.coordinator.add_partitions(ID, producer, [T0])
        with pytest.raises(RequestRefused) as refused:
            world.send(producer, b"the partition was not added", partition=T1)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE

    run(tmp_path, work)


# Time


def test_timed_out_transaction_is_aborted_and_producer_fenced(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        producer = await world.begin(timeout_ms=5000)
        world.send(producer, b"slow")
        world.clock[0] += 5000
        await world.coordinator.run_maintenance()
        assert world.status() is TransactionStatus.ONGOING
        world.clock[0] += 1
        await world.coordinator.run_maintenance()
        assert world.status() is TransactionStatus.COMPLETE_ABORT and world.committed() == []
        assert world.node.log(*T0).last_stable_offset == 2
        assert (
            await refusal(world.coordinator.end_transaction(ID, producer, is_commit=True)) is ErrorCode.PRODUCER_FENCED
        )
        assert (await world.coordinator.init_producer(ID, 5000, None)).epoch == producer.epoch + 2

    run(tmp_path, work)


def test_clock_set_back_does_not_extend_transaction(tmp_path: Path) -> None:
    """For example a machine whose clock is years ahead until its first NTP update."""
    clock = [NOW_MS]

    async def ahead(world: World) -> None:
        world.send(await world.begin(timeout_ms=5000), b"no client will end it")

    async def back(world: World) -> None:
        world.clock[0] = NOW_MS - 5000
        await world.coordinator.run_maintenance()
        assert world.status() is TransactionStatus.ONGOING
        world.clock[0] -= 10 * 365 * 86_400_000
        await world.coordinator.run_maintenance()
        assert world.status() is TransactionStatus.COMPLETE_ABORT and world.committed() == []
        assert world.node.log(*T0).last_stable_offset == 2

    run(tmp_path, ahead, clock=clock)
    run(tmp_path, back, clock=clock)


@pytest.mark.parametrize("error", [RequestRefused(ErrorCode.STORAGE_ERROR, "full"), OSError("EIO"), KeyError("ours")])
def test_failed_completion_does_not_block_other_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def work(world: World) -> None:
        for name, partition in (("first", T0), ("second", T1)):
            await world.begin(name, partition, timeout_ms=5000)
        world.clock[0] += 5001
        finish = world.coordinator._write_markers

        async def failing(transactional_id: str) -> None:
            if transactional_id == "first":
                raise error
            await finish(transactional_id)

        with monkeypatch.context() as patched:
            patched.setattr(world.coordinator, "_write_markers", failing)
            await world.coordinator.run_maintenance()
        assert [world.status(name) for name in ("first", "second")] == [
            TransactionStatus.PREPARE_ABORT,
            TransactionStatus.COMPLETE_ABORT,
        ]
        assert len(logged(caplog, "broker.coordinator.transactions", "first", level=logging.ERROR)) == 1
        await world.coordinator.run_maintenance()
        assert world.status("first") is TransactionStatus.COMPLETE_ABORT

    run(tmp_path, work)


def test_unused_transactional_ids_expire(tmp_path: Path) -> None:
    clock = [NOW_MS]

    async def first(world: World) -> None:
        await world.coordinator.init_producer("unused", 60_000, None)
        producer = await world.begin("used")
        await world.coordinator.end_transaction("used", producer, is_commit=True)
        world.clock[0] += ID_EXPIRATION_MS
        await world.coordinator.add_partitions("used", producer, [T0])
        world.clock[0] += 1
        await world.coordinator.run_maintenance()
        assert set(world.coordinator.all) == {"used"}

    async def second(world: World) -> None:
        assert set(world.coordinator.all) == {"used"}

    run(tmp_path, first, clock=clock)
    run(tmp_path, second, clock=clock)


def test_oldest_unused_ids_are_evicted_at_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions_module, "IDS_MAX", 5)
    monkeypatch.setattr(transactions_module, "EVICTED_IDS_PER_BATCH", 2)

    async def work(world: World) -> None:
        await world.begin("busy")
        for number in range(6):
            world.clock[0] += 1
            await world.coordinator.init_producer(f"id-{number}", 60_000, None)
        assert set(world.coordinator.all) == {"busy", "id-2", "id-3", "id-4", "id-5"}

    run(tmp_path, work)


def test_transaction_log_is_not_compacted_before_due(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.coordinator.run_maintenance()
        assert TRANSACTIONS_TOPIC not in {topic.name for topic in world.node.topics}, "no client requested an id"
        await world.begin()
        before = contents(world.node.log(TRANSACTIONS_TOPIC, 0))
        await world.coordinator.run_maintenance()
        assert contents(world.node.log(TRANSACTIONS_TOPIC, 0)) == before

    run(tmp_path, work)


def test_failed_creation_of_transaction_topic_is_retriable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        def refused() -> None:
            raise RequestRefused(ErrorCode.STORAGE_ERROR, "no space")

        with monkeypatch.context() as full:
            full.setattr(world.coordinator, "_open_table", refused)
            assert (
                await refusal(world.coordinator.init_producer(ID, 60_000, None)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        assert (await world.coordinator.init_producer(ID, 60_000, None)).epoch == 0

    run(tmp_path, work)


def test_transaction_log_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions_module, "COMPACT_BYTES", 20_000)

    async def first(world: World) -> None:
        producer = await world.begin()
        open_ = await world.begin("open", T1)
        world.send(open_, b"open", partition=T1, name="open")
        for number in range(300):
            await world.coordinator.add_partitions(ID, producer, [T0])
            world.send(producer, b"%d" % number, number)
            await world.coordinator.end_transaction(ID, producer, is_commit=True)
            await world.coordinator.run_maintenance()
        assert world.node.log(TRANSACTIONS_TOPIC, 0).size < 30_000

    async def second(world: World) -> None:
        assert world.status() is TransactionStatus.COMPLETE_COMMIT and world.status("open") is TransactionStatus.ONGOING
        assert len(world.committed()) == 300

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_retries_repeat_no_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PartitionLog.end_transaction

    async def work(world: World) -> None:
        producer = await world.begin()
        failing = world.node.log(*T1)

        def end(log: PartitionLog, *args: Any, **fields: Any) -> None:
            if log is failing:
                raise RequestRefused(ErrorCode.STORAGE_ERROR, "no space")
            real(log, *args, **fields)

        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "end_transaction", end)
            code = await refusal(world.coordinator.end_transaction(ID, producer, is_commit=False))
            assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            for _ in range(3):
                await world.coordinator.run_maintenance()
        assert [world.node.log(*each).log_end_offset for each in (T0, T1)] == [1, 0]
        await world.coordinator.run_maintenance()
        assert [world.node.log(*each).log_end_offset for each in (T0, T1)] == [1, 1]
        assert world.status() is TransactionStatus.COMPLETE_ABORT

    run(tmp_path, work)


# Restarts


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_open_transaction_continues_after_restart(tmp_path: Path, is_killed: bool) -> None:
    producers: list[ProducerIdAndEpoch] = []

    async def first(world: World) -> None:
        producers.append(await world.begin())
        world.send(producers[0], b"before")

    async def second(world: World) -> None:
        await world.coordinator.run_maintenance()
        world.send(producers[0], b"after", 1)
        await world.coordinator.end_transaction(ID, producers[0], is_commit=True)
        assert world.committed() == [b"before", b"after"]

    run(tmp_path, first, is_killed=is_killed)
    run(tmp_path, second)


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("markers", [0, 1, 2])
def test_prepared_end_is_completed_after_restart(tmp_path: Path, markers: int, is_commit: bool) -> None:
    async def first(world: World) -> None:
        producer = await world.begin()
        for partition in (T0, T1):
            world.send(producer, b"decided", partition=partition)
        prepared = world.coordinator.all[ID].prepare_end(NOW_MS, is_commit=is_commit)
        world.coordinator._store(ID, prepared)
        for partition in (T0, T1)[:markers]:
            world.coordinator._write_marker(partition, producer, is_commit=is_commit)

    async def second(world: World) -> None:
        await world.coordinator.run_maintenance()
        assert world.status() is (TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT)
        for number, partition in enumerate((T0, T1)):
            # One record, one marker, and the same marker again if the first broker had written it.
            assert world.node.log(*partition).log_end_offset == (3 if number < markers else 2)
            assert world.committed(partition) == ([b"decided"] if is_commit else [])

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_open_transactions_are_aborted_after_machine_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged records may be lost in a power failure, and no client could detect it."""
    producers: list[ProducerIdAndEpoch] = []

    async def first(world: World) -> None:
        producers.append(await world.begin())
        world.send(producers[0], b"perhaps not all of it")

    async def second(world: World) -> None:
        assert (
            await refusal(world.coordinator.end_transaction(ID, producers[0], is_commit=True))
            is ErrorCode.PRODUCER_FENCED
        )
        await world.coordinator.run_maintenance()
        assert world.status() is TransactionStatus.COMPLETE_ABORT and world.committed() == []
        producers.append(await world.begin())
        world.send(producers[1], b"all")

    async def third(world: World) -> None:
        await world.coordinator.end_transaction(ID, producers[1], is_commit=True)
        assert world.committed() == [b"all"]

    monkeypatch.setattr(node_module, "boot_id", lambda: "one")
    run(tmp_path, first, is_killed=True)
    monkeypatch.setattr(node_module, "boot_id", lambda: "two")
    run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


def test_open_transactions_survive_reboot_after_clean_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    producers: list[ProducerIdAndEpoch] = []

    async def first(world: World) -> None:
        producers.append(await world.begin())
        world.send(producers[0], b"all")

    async def second(world: World) -> None:
        await world.coordinator.end_transaction(ID, producers[0], is_commit=True)
        assert world.committed() == [b"all"]

    run(tmp_path, first)
    monkeypatch.setattr(node_module, "boot_id", lambda: "another")
    run(tmp_path, second)


def test_corrupt_transaction_row_does_not_unfence_producer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    producers: list[ProducerIdAndEpoch] = []

    async def first(world: World) -> None:
        producers.extend([await world.coordinator.init_producer(ID, 60_000, None) for _ in range(3)])
        # An unknown record kind.
        append(world.node.log(TRANSACTIONS_TOPIC, 0), keyed_batch((b"\0\7?", b"")))

    async def second(world: World) -> None:
        # Only the newest row is skipped, with a log line.
        assert world.coordinator.all[ID].epoch == producers[1].epoch

    run(tmp_path, first)
    path = tmp_path / f"{TRANSACTIONS_TOPIC}-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[raw.index(struct.pack(">qh", *producers[2])) + 9] ^= 2
    path.write_bytes(raw)
    with pytest.raises(LogDamaged, match="CRC") as error:
        run(tmp_path, second)
    assert error.value.path == path
    run(tmp_path, second, repairs_corrupt_logs=True)
    assert path.with_name(path.name + ".corrupt").exists() and logged(caplog, "broker.log.repair", path.name)
    assert [record.args for record in logged(caplog, "broker.coordinator.transactions")] == [(7, 1)]


def test_orphaned_transactions_are_aborted_at_start(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        producer = await world.begin()
        world.send(producer, b"mine")
        orphaned_batch = batch(b"nobody's", producer_id=999, epoch=0, sequence=0, is_transactional=True)
        append(world.node.log(*T0), orphaned_batch)

    async def second(world: World) -> None:
        log = world.node.log(*T0)
        assert list(log.producers.open) == [0]
        assert [one.producer_id for one in log.aborted(0, 10)] == [999]

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_deleted_topic_does_not_block_transaction(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        producer = await world.begin()
        world.send(producer, b"gone")
        await world.node.changes.delete_topic(world.node.topic("t"))
        await world.coordinator.end_transaction(ID, producer, is_commit=True)
        assert world.status() is TransactionStatus.COMPLETE_COMMIT

    run(tmp_path, work)


@pytest.mark.parametrize("fsync", list(FsyncMode))
def test_committed_records_are_visible_when_response_is_sent(tmp_path: Path, fsync: FsyncMode) -> None:
    async def work(world: World) -> None:
        producer = await world.begin()
        world.send(producer, b"value")
        await world.coordinator.end_transaction(ID, producer, is_commit=True)
        log = world.node.log(*T0)
        assert world.committed() == [b"value"] and log.last_stable_offset == log.log_end_offset == 2
        if fsync is not FsyncMode.NONE:
            assert log.recovery_point == 2, "with its marker"
            assert world.node.log(TRANSACTIONS_TOPIC, 0).recovery_point > 0

    run(tmp_path, work, fsync=fsync)


def test_cleaner_stops_at_open_transaction_and_removes_aborted_records(tmp_path: Path) -> None:
    table = ("c", 0)

    def values(world: World) -> list[bytes]:
        return [value or b"" for _, value in contents(world.node.log(*table)) if (value or b"")[:6] != b"\0" * 6]

    async def work(world: World) -> None:
        world.node.changes.create_topic("c", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        log = world.node.log(*table)

        async def clean() -> None:
            log.roll(NOW_MS)
            world.node.flusher.mark_dirty(log)
            await world.node.flusher.flush_dirty()
            await world.node.maintenance.clean()

        def send(value: bytes) -> None:
            append(log, keyed_batch((b"key", value)))

        send(b"first")
        producer = await world.begin(ID, table)
        raw = keyed_batch((b"key", b"aborted"), producer_id=0, sequence=0, is_transactional=True)
        world.coordinator.check_transactional_write(ID, producer, table)
        append(log, raw)
        for number in range(10):
            send(b"%d" % number)
        await clean()
        assert len(values(world)) == 12, (
            "the first segment, with the first record and an open transaction, is unchanged"
        )
        await world.coordinator.end_transaction(ID, producer, is_commit=False)
        await clean()
        assert b"aborted" not in values(world) and values(world)[-1] == b"9"
        assert world.committed(table) == [b"9"]

    run(tmp_path, work, segment_bytes_max=400)


# Offsets


def offset(value: int) -> CommittedOffset:
    return CommittedOffset(value, -1, "", NOW_MS)


async def store_pending(world: World, producer: ProducerIdAndEpoch, value: int, group: str = "g") -> None:
    await world.coordinator.add_partitions(ID, producer, [OFFSETS_PARTITION])
    await world.node.groups.commits.store_pending(group, {T0: offset(value)}, *producer)


def committed_offset(world: World, group: str = "g") -> int | None:
    found = world.node.groups.offsets.of_group(group).get(T0)
    return found.offset if found is not None else None


@pytest.mark.parametrize("restart", ["none", "stopped", "killed"])
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_transactional_offsets_take_effect_on_commit(tmp_path: Path, is_commit: bool, restart: str) -> None:
    producers: list[ProducerIdAndEpoch] = []

    async def first(world: World) -> None:
        producers.append(await world.begin())
        await world.node.groups.commits.store("g", {T0: offset(3)})
        await store_pending(world, producers[0], 7)
        assert committed_offset(world) == 3
        if restart == "none":
            await second(world)

    async def second(world: World) -> None:
        assert committed_offset(world) == 3 and world.node.groups.offsets.pending_partitions("g") == {T0}
        assert [stable(world, version) for version in (6, 7, 9)] == [(3, 0), (-1, 88), (-1, 88)]
        await world.coordinator.end_transaction(ID, producers[0], is_commit=is_commit)
        assert committed_offset(world) == (7 if is_commit else 3)
        assert not world.node.groups.offsets.pending_partitions("g")
        assert stable(world, 9) == (7 if is_commit else 3, 0)

    async def third(world: World) -> None:
        assert committed_offset(world) == (7 if is_commit else 3)
        assert not world.node.groups.offsets.pending_partitions("g")

    run(tmp_path, first, is_killed=restart == "killed")
    if restart != "none":
        run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


def stable(world: World, version: int) -> tuple[int, int]:
    """Returns (offset, error) of an offset fetch that requires stable offsets, if the version supports that."""
    if version >= 8:
        awaitable = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [awaitable.OffsetFetchRequestTopics(version=version, name="t", partition_indexes=[0])]
        groups = [awaitable(version=version, group_id="g", member_id=None, member_epoch=-1, topics=topics)]
        response = offset_fetch.handle(
            context(world.node, version), OffsetFetchRequest(version=version, groups=groups, require_stable=True)
        )
        response = response.groups[0].topics[0].partitions[0]
    else:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(version=version, name="t", partition_indexes=[0])
        flag: dict[str, Any] = {"require_stable": True} if version >= 7 else {}
        request = OffsetFetchRequest(version=version, group_id="g", topics=[topic], **flag)
        response = offset_fetch.handle(context(world.node, version), request).topics[0].partitions[0]
    return response.committed_offset, response.error_code


def test_later_commit_is_not_overwritten_by_transaction(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        producer = await world.begin()
        await store_pending(world, producer, 7)
        await world.node.groups.commits.store("g", {T0: offset(9)})
        await world.coordinator.end_transaction(ID, producer, is_commit=True)
        assert committed_offset(world) == 9

    async def second(world: World) -> None:
        assert committed_offset(world) == 9

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


@pytest.mark.parametrize("is_killed", [False, True], ids=["at-once", "after-a-kill"])
@pytest.mark.parametrize("stores", [((0, 7), (1, 9)), ((1, 8), (0, 7), (1, 9))], ids=["once", "again"])
@pytest.mark.parametrize("first_to_end", [0, 1])
def test_last_stored_pending_offset_wins_between_transactions(
    tmp_path: Path, first_to_end: int, stores: tuple[tuple[int, int], ...], is_killed: bool
) -> None:
    """As in Kafka, for any end order: a consumer that took over continues from its own position."""
    names, producers = ("shop-1", "shop-2"), []

    async def first(world: World) -> None:
        producers.extend([await world.begin(name, OFFSETS_PARTITION) for name in names])
        for index, value in stores:
            await world.node.groups.commits.store_pending("g", {T0: offset(value)}, *producers[index])
        await world.coordinator.end_transaction(names[first_to_end], producers[first_to_end], is_commit=True)
        assert committed_offset(world) == (7, 9)[first_to_end]
        if not is_killed:
            await second(world)

    async def second(world: World) -> None:
        await world.coordinator.end_transaction(names[1 - first_to_end], producers[1 - first_to_end], is_commit=True)
        await third(world)

    async def third(world: World) -> None:
        assert committed_offset(world) == 9 and not world.node.groups.offsets.pending_partitions("g")

    run(tmp_path, first, is_killed=True)
    if is_killed:
        run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


def test_order_of_pending_offsets_survives_compaction(tmp_path: Path) -> None:
    names, producers = ("shop-1", "shop-2"), []

    async def first(world: World) -> None:
        for name in names:
            producers.append(await world.begin(name, OFFSETS_PARTITION))
        later = world.node.groups.commits.store_pending
        await later("g", {T1: offset(1)}, *producers[0])
        await later("g", {T0: offset(7)}, *producers[1])
        await later("g", {T0: offset(8)}, *producers[0])
        await world.node.groups.store.compact()

    async def second(world: World) -> None:
        for name, producer in zip(names, producers, strict=True):
            await world.coordinator.end_transaction(name, producer, is_commit=True)
            assert committed_offset(world) == 8

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_pending_offsets_survive_compaction(tmp_path: Path, is_commit: bool) -> None:
    producers: list[ProducerIdAndEpoch] = []

    async def first(world: World) -> None:
        producers.append(await world.begin())
        await world.node.groups.commits.store("g", {T0: offset(3)})
        await store_pending(world, producers[0], 7)
        await world.node.groups.store.compact()
        assert len(world.node.log(*OFFSETS_PARTITION).closed) == 0

    async def second(world: World) -> None:
        assert committed_offset(world) == 3
        compacting = asyncio.ensure_future(world.node.groups.store.compact())
        await asyncio.sleep(0)
        await world.coordinator.end_transaction(ID, producers[0], is_commit=is_commit)
        await compacting

    async def third(world: World) -> None:
        assert committed_offset(world) == (7 if is_commit else 3)

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


@pytest.mark.parametrize("stored_when", ["before", "meanwhile"])
def test_pending_offsets_survive_interrupted_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored_when: str
) -> None:
    """A row rewritten by compaction is not a new commit, although it comes after the pending offset in the log."""
    producers: list[ProducerIdAndEpoch] = []

    async def first(world: World) -> None:
        groups = world.node.groups
        producers.append(await world.begin())
        for group in "fg":
            await groups.commits.store(group, {T0: offset(3)})
        if stored_when == "before":
            await store_pending(world, producers[0], 7)
        monkeypatch.setattr("headrace.broker.coordinator.table.BATCH_RECORDS_MAX", 1)
        monkeypatch.setattr(groups.store, "_append_pending", fails)
        compacting = asyncio.ensure_future(groups.store.compact())
        await asyncio.sleep(0)
        if stored_when == "meanwhile":
            await store_pending(world, producers[0], 7)
        with pytest.raises(OSError, match="No space"):
            await compacting

    def fails() -> None:
        raise OSError(28, "No space left on device")

    async def second(world: World) -> None:
        assert committed_offset(world) == 3 and world.node.groups.offsets.pending_partitions("g") == {T0}
        await world.coordinator.end_transaction(ID, producers[0], is_commit=True)
        assert committed_offset(world) == 7

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_group_with_pending_offsets_is_not_deleted(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        producer = await world.begin()
        await store_pending(world, producer, 7)
        assert await refusal(world.node.groups.delete_group("g")) is ErrorCode.NON_EMPTY_GROUP
        world.clock[0] += 10 * coordinator_module.EMPTY_GROUP_MS
        await world.node.groups.run_housekeeping()
        assert "g" in world.node.groups.groups
        await world.node.changes.delete_topic(world.node.topic("t"))
        await world.coordinator.end_transaction(ID, producer, is_commit=True)
        assert committed_offset(world) is None, "there is no such topic any more"
        await world.node.groups.delete_group("g")

    run(tmp_path, work)


def test_pending_offset_does_not_expire_with_committed_offset(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        await world.node.groups.commits.store("g", {T0: offset(3), T1: offset(3)})
        world.clock[0] += RETENTION_MS + 1
        producer = await world.begin()
        await store_pending(world, producer, 7)
        await world.node.groups.run_housekeeping()
        assert dict(world.node.groups.offsets.of_group("g")) == {T0: offset(3)}
        await world.coordinator.end_transaction(ID, producer, is_commit=True)
        assert committed_offset(world) == 7

    async def second(world: World) -> None:
        assert committed_offset(world) == 7

    clock = [NOW_MS]
    run(tmp_path, first, clock=clock, is_killed=True)
    run(tmp_path, second, clock=clock)


def test_pending_offset_survives_concurrent_group_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may have thousands of offsets, which are deleted in batches; other requests run in between."""
    monkeypatch.setattr("headrace.broker.coordinator.table.BATCH_RECORDS_MAX", 1)

    async def work(world: World) -> None:
        groups, producer = world.node.groups, await world.begin()
        await world.coordinator.add_partitions(ID, producer, [OFFSETS_PARTITION])
        await groups.commits.store("g", {("u", index): offset(3) for index in range(5)} | {T0: offset(3)})
        deleting = asyncio.ensure_future(groups.delete_group("g"))
        while len(groups.offsets.of_group("g")) == 6:
            await asyncio.sleep(0)
        await groups.commits.store_pending("g", {T0: offset(7)}, *producer)
        assert await refusal(deleting) is ErrorCode.NON_EMPTY_GROUP
        await world.coordinator.end_transaction(ID, producer, is_commit=True)
        assert committed_offset(world) == 7

    run(tmp_path, work)


# Requests


def test_complete_transaction_through_requests(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        node = world.node
        begun = await _init(node, 4)
        assert (begun.error_code, begun.producer_epoch) == (0, 0)
        producer = {"producer_id": begun.producer_id, "producer_epoch": 0}
        assert _produce_request(node, begun.producer_id, 0) is ErrorCode.INVALID_TXN_STATE
        assert _produce_request(node, begun.producer_id, 0, version=11) is ErrorCode.TRANSACTION_ABORTABLE
        assert await _add_partitions(node, begun.producer_id, {"t": [0, 1]}) == {("t", 0): 0, ("t", 1): 0}
        assert await _add_partitions(node, begun.producer_id, {"t": [0, 9]}) == {("t", 0): 55, ("t", 9): 3}
        assert _produce_request(node, begun.producer_id, 0) is ErrorCode.NONE
        unnamed = _produce_request(node, begun.producer_id, 1, transactional_id=None)
        assert unnamed is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        group = {"transactional_id": ID, "group_id": "g", **producer}
        response = await txn_offset_commit.handle(context(node, 3), _offset_commit_request(group, 5))
        assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_TXN_STATE
        added = await add_offsets_to_txn.handle(context(node, 3), AddOffsetsToTxnRequest(version=3, **group))
        assert added.error_code == 0
        response = await txn_offset_commit.handle(context(node, 3), _offset_commit_request(group, 5))
        assert response.topics[0].partitions[0].error_code == 0
        response = await txn_offset_commit.handle(
            context(node, 3), _offset_commit_request(group, 5, generation_id=4, member_id="m")
        )
        assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert _list_offsets(node, is_committed=True) == 0 and _list_offsets(node, is_committed=False) == 1
        ended = EndTxnRequest(version=3, transactional_id=ID, committed=True, **producer)
        assert (await end_txn.handle(context(node, 3), ended)).error_code == 0
        assert (await end_txn.handle(context(node, 3), ended)).error_code == 0, "it did not get the response"
        assert _list_offsets(node, is_committed=True) == 2
        assert committed_offset(world) == 5
        for version, code in ((1, 47), (2, 90)):
            await _init(node, 4)
            late = EndTxnRequest(version=version, transactional_id=ID, committed=True, **producer)
            assert (await end_txn.handle(context(node, version), late)).error_code == code

    run(tmp_path, work)


def test_claimed_producer_id_without_transactional_id_gets_new_id(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        producer = await world.begin()
        world.send(producer, b"one")
        for claimed in (
            producer,
            producer._replace(epoch=EPOCH_MAX - 1),
            ProducerIdAndEpoch(producer.producer_id + 5000, 3),
        ):
            response = await _init(world.node, 4, transactional_id=None, claimed=claimed)
            assert (response.error_code, response.producer_epoch) == (ErrorCode.NONE, 0)
            assert response.producer_id not in (producer.producer_id, claimed.producer_id)
        world.send(producer, b"two", 1)
        await world.coordinator.end_transaction(ID, producer, is_commit=True)
        assert world.committed() == [b"one", b"two"]

    run(tmp_path, work)


async def _init(
    node: BrokerNode, version: int, *, transactional_id: str | None = ID, claimed: ProducerIdAndEpoch = UNKNOWN_PRODUCER
) -> Any:
    request = InitProducerIdRequest(
        version=version,
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=claimed.producer_id,
        producer_epoch=claimed.epoch,
    )
    return await init_producer_id.handle(context(node, version), request)


async def _add_partitions(
    node: BrokerNode, producer_id: int, topics: dict[str, list[int]]
) -> dict[tuple[str, int], int]:
    request = AddPartitionsToTxnRequest(
        version=3,
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(version=3, name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
    response = await add_partitions_to_txn.handle(context(node, 3), request)
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }


def _produce_request(
    node: BrokerNode, producer_id: int, sequence: int, transactional_id: str | None = ID, version: int = 9
) -> ErrorCode:
    raw = batch(b"x", producer_id=producer_id, epoch=0, sequence=sequence, is_transactional=True)
    assert header_of(raw).producer_id == producer_id
    partition = ProducePartition(0, memoryview(raw))
    request = ProduceRequest(transactional_id, -1, 1000, (ProduceTopic("t", (partition,)),))
    response = produce.handle(context(node, version), request)
    assert isinstance(response, tuple)
    return response[0].partitions[0].error


def _offset_commit_request(group: dict[str, Any], value: int, **member: Any) -> Any:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition(
        version=3, partition_index=0, committed_offset=value, committed_leader_epoch=-1, committed_metadata=""
    )
    return TxnOffsetCommitRequest(
        version=3, topics=[topic(version=3, name="t", partitions=[partition])], **group, **member
    )


def _list_offsets(node: BrokerNode, *, is_committed: bool) -> int:
    topic = ListOffsetsRequest.ListOffsetsTopic
    partition = topic.ListOffsetsPartition(version=5, partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(
        version=5,
        replica_id=-1,
        isolation_level=int(is_committed),
        topics=[topic(version=5, name="t", partitions=[partition])],
    )
    found = list_offsets.handle(context(node, 5), request).topics[0].partitions[0].offset
    assert isinstance(found, int)
    return found


def test_open_transactions_are_described(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        node = world.node
        producer = await world.begin()
        world.send(producer, b"x")
        idle = await world.coordinator.init_producer("idle", 60_000, None)
        world.clock[0] += 500
        request = DescribeTransactionsRequest(version=0, transactional_ids=[ID, "nobody's"])
        ongoing, none = describe_transactions.handle(context(node, 0), request).transaction_states
        assert (ongoing.transaction_state, ongoing.producer_id, ongoing.transaction_timeout_ms) == (
            "Ongoing",
            0,
            60_000,
        )
        assert [(topic.topic, list(topic.partitions)) for topic in ongoing.topics] == [("t", [0, 1])]
        assert none.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

        def listed(version: int = 1, **filters: Any) -> list[str]:
            awaitable: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], **filters}
            response = list_transactions.handle(
                context(node, version), ListTransactionsRequest(version=version, **awaitable)
            )
            assert response.unknown_state_filters == [one for one in awaitable["state_filters"] if one == "Odd"]
            return [one.transactional_id for one in response.transaction_states]

        assert listed(0) == listed() == [ID, "idle"]
        assert listed(state_filters=["Empty", "Odd"]) == ["idle"]
        assert listed(producer_id_filters=[producer.producer_id]) == [ID] != [idle]
        assert listed(duration_filter=499) == [ID, "idle"] and listed(duration_filter=500) == ["idle"]
        topic = DescribeProducersRequest.TopicRequest(version=0, name="t", partition_indexes=[0, 1, 2])
        response = describe_producers.handle(context(node, 0), DescribeProducersRequest(version=0, topics=[topic]))
        first, second, third = response.topics[0].partitions
        (response,) = first.active_producers
        assert (response.producer_id, response.last_sequence, response.current_txn_start_offset) == (0, 0, 0)
        assert (second.active_producers, third.error_code) == ([], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    run(tmp_path, work)
