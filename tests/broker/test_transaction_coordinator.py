"""Transactional ids: who may use them, what becomes of their transactions, and what a start makes of them."""

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
    EXPIRATION_MS,
    NO_EPOCH,
    TIMEOUT_MS_MAX,
    Identity,
    Status,
    Transaction,
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
from headrace.broker.node import OFFSETS_PARTITION, BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.broker.topics import TRANSACTIONS_TOPIC
from support.broker.broker_samples import NOW_MS, append, batch, committed, contents, header_of, keyed_batch
from support.logs import logged

ID, T0, T1 = "shop-1", ("t", 0), ("t", 1)
NOBODY = Identity(-1, -1)
Work = Callable[["World"], Awaitable[None]]


class World:
    """A node, its clock, and a producer's next sequence numbers."""

    def __init__(self, node: BrokerNode, clock: list[int]) -> None:
        self.node, self.clock = node, clock

    @property
    def coordinator(self) -> Any:
        return self.node.transactions

    async def begin(
        self, transactional_id: str = ID, *partitions: tuple[str, int], timeout_ms: int = 60_000
    ) -> Identity:
        user = await self.coordinator.take(transactional_id, timeout_ms, None)
        await self.coordinator.add(transactional_id, user, partitions or (T0, T1))
        return user

    def send(
        self, user: Identity, value: bytes, sequence: int = 0, partition: tuple[str, int] = T0, name: str = ID
    ) -> None:
        """As a produce request does."""
        self.coordinator.check_part(name, user, partition)
        raw = batch(value, producer_id=user.producer_id, epoch=user.epoch, sequence=sequence, is_transactional=True)
        append(self.node.log(*partition), raw)
        self.node.flusher.note(self.node.log(*partition))

    def committed(self, partition: tuple[str, int] = T0) -> list[bytes]:
        return committed(self.node.log(*partition))

    def status(self, transactional_id: str = ID) -> Status:
        found: Transaction = self.coordinator.all[transactional_id]
        return found.status


def run(directory: Path, work: Work, *, clock: list[int] | None = None, is_killed: bool = False, **config: Any) -> None:
    """Opens a node with topic t, works with it, and closes it, or drops it as a kill would."""
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


async def refusal(wanted: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        await wanted
    return refused.value.code


def context(node: BrokerNode, version: int) -> RequestContext:
    return RequestContext(node, version, "test", "127.0.0.1")


# Decisions


NEW = Transaction.new(7, 60_000, NOW_MS)
ONGOING = NEW.with_partitions([T0], NOW_MS + 1)


@pytest.mark.parametrize(
    ("status", "commits", "aborts"),
    [
        (Status.EMPTY, None, None),
        (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT),
        (Status.PREPARE_COMMIT, Status.PREPARE_COMMIT, None),
        (Status.PREPARE_ABORT, None, Status.PREPARE_ABORT),
        (Status.COMPLETE_COMMIT, Status.COMPLETE_COMMIT, None),
        (Status.COMPLETE_ABORT, None, Status.COMPLETE_ABORT),
    ],
)
def test_what_an_end_makes_of_each_state(status: Status, commits: Status | None, aborts: Status | None) -> None:
    present = {
        Status.EMPTY: NEW,
        Status.ONGOING: ONGOING,
        Status.PREPARE_COMMIT: ONGOING.ended(0, is_commit=True),
        Status.PREPARE_ABORT: ONGOING.ended(0, is_commit=False),
        Status.COMPLETE_COMMIT: ONGOING.ended(0, is_commit=True).completed(0),
        Status.COMPLETE_ABORT: ONGOING.ended(0, is_commit=False).completed(0),
    }[status]
    for is_commit, expected in ((True, commits), (False, aborts)):
        if expected is None:
            with pytest.raises(RequestRefused) as refused:
                present.ended(1, is_commit=is_commit)
            assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        else:
            assert present.ended(1, is_commit=is_commit).status is expected


def test_an_end_leaves_no_partition_behind_and_the_next_transaction_begins_anew() -> None:
    ended = ONGOING.ended(NOW_MS + 2, is_commit=True).completed(NOW_MS + 3)
    assert ended.partitions == frozenset()
    again = ended.with_partitions([T1], NOW_MS + 9)
    assert (again.partitions, again.started_at_ms) == (frozenset([T1]), NOW_MS + 9)
    assert again.with_partitions([T1], NOW_MS + 10) is again
    more = again.with_partitions([T0], NOW_MS + 11)
    assert (more.started_at_ms, more.partitions) == (NOW_MS + 9, frozenset([T0, T1])), "time runs from the first one"


@pytest.mark.parametrize(
    "transaction",
    [NEW, ONGOING, ONGOING.fenced(5), ONGOING.ended(4, is_commit=True).completed(9)],
)
def test_a_row_is_read_as_it_was_written(transaction: Transaction) -> None:
    assert decode_transaction(encode_transaction(transaction)) == transaction


def test_a_row_is_what_kafka_writes() -> None:
    """Version, producer, epoch, timeout, status, no partitions (null), changed and started at."""
    raw = struct.pack(">hqhibiqq", 0, 7, 0, 60_000, 0, -1, NOW_MS, -1)
    assert encode_transaction(NEW)[: len(raw)] == raw


# Producers


def test_the_last_one_to_ask_has_the_id_and_what_the_one_before_had_begun_is_aborted(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        old = await world.begin()
        world.send(old, b"of the old one")
        new = await world.coordinator.take(ID, 60_000, None)
        assert new.producer_id == old.producer_id and new.epoch == old.epoch + 2
        assert world.node.log(*T0).last_stable_offset == 2 and world.committed() == []
        add = world.coordinator.add(ID, old, [T0])
        assert await refusal(add) is ErrorCode.PRODUCER_FENCED
        assert await refusal(world.coordinator.end(ID, old, is_commit=True)) is ErrorCode.PRODUCER_FENCED
        with pytest.raises(RequestRefused) as refused:
            world.send(old, b"late", 1)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        await world.coordinator.add(ID, new, [T0])
        world.send(new, b"of the new one")
        await world.coordinator.end(ID, new, is_commit=True)
        assert world.committed() == [b"of the new one"]

    run(tmp_path, work)


def test_a_producer_may_raise_its_own_epoch_and_ask_again_for_it_until_another_one_comes(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        take = world.coordinator.take
        first = await world.begin()
        world.send(first, b"lost its place")
        second = await take(ID, 60_000, first)
        assert second == (first.producer_id, first.epoch + 1)
        assert world.committed() == [] and world.status() is Status.EMPTY
        assert await take(ID, 60_000, first) == second, "it was not told"
        assert await take(ID, 60_000, second) == (first.producer_id, first.epoch + 2)
        assert await refusal(take(ID, 60_000, first)) is ErrorCode.PRODUCER_FENCED
        other = await take(ID, 60_000, None)
        assert (
            await refusal(take(ID, 60_000, Identity(other.producer_id, other.epoch - 1))) is ErrorCode.PRODUCER_FENCED
        )
        assert await refusal(take(ID, 60_000, Identity(99, other.epoch))) is ErrorCode.PRODUCER_FENCED

    run(tmp_path, work)


def test_a_fenced_producer_does_not_disturb_the_transaction_of_the_next(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        old = await world.coordinator.take(ID, 60_000, None)
        new = await world.begin()
        world.send(new, b"going on")
        assert await refusal(world.coordinator.take(ID, 60_000, old)) is ErrorCode.PRODUCER_FENCED
        await world.coordinator.end(ID, new, is_commit=True)
        assert world.committed() == [b"going on"]

    run(tmp_path, work)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_producer_whose_epochs_are_used_up_is_given_another_id(tmp_path: Path, is_open: bool) -> None:
    async def work(world: World) -> None:
        first = await world.coordinator.take(ID, 60_000, None)
        used_up = world.coordinator.all[ID].taken_over(None, 60_000, NOW_MS, next_id=None)
        world.coordinator._put(ID, _at_epoch(used_up, EPOCH_MAX))
        if is_open:
            await world.coordinator.add(ID, Identity(first.producer_id, EPOCH_MAX), [T0])
            world.send(Identity(first.producer_id, EPOCH_MAX), b"open")
        next_ = await world.coordinator.take(ID, 60_000, None)
        assert next_.producer_id != first.producer_id and next_.epoch == 0
        assert world.node.log(*T0).last_stable_offset == (2 if is_open else 0)

    run(tmp_path, work)


def test_a_producer_that_used_up_its_epochs_goes_on_with_another_id(tmp_path: Path) -> None:
    """Whoever asks with the old one afterwards is not taken for one that was not told its new epoch."""

    async def work(world: World) -> None:
        first = await world.coordinator.take(ID, 60_000, None)
        last = Identity(first.producer_id, EPOCH_MAX)
        world.coordinator._put(ID, _at_epoch(world.coordinator.all[ID], EPOCH_MAX))
        next_ = await world.coordinator.take(ID, 60_000, last)
        assert next_.producer_id != first.producer_id and next_.epoch == 0
        assert world.coordinator.all[ID].last_epoch == NO_EPOCH
        assert await refusal(world.coordinator.take(ID, 60_000, last)) is not None

    run(tmp_path, work)


def _at_epoch(transaction: Transaction, epoch: int) -> Transaction:
    import dataclasses

    return dataclasses.replace(transaction, epoch=epoch)


@pytest.mark.parametrize(
    ("timeout_ms", "is_allowed"), [(0, False), (1, True), (TIMEOUT_MS_MAX, True), (TIMEOUT_MS_MAX + 1, False)]
)
def test_a_transaction_may_not_take_as_long_as_somebody_likes(
    tmp_path: Path, timeout_ms: int, is_allowed: bool
) -> None:
    async def work(world: World) -> None:
        if is_allowed:
            assert (await world.coordinator.take(ID, timeout_ms, None)).epoch == 0
        else:
            assert await refusal(world.coordinator.take(ID, timeout_ms, None)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert await refusal(world.coordinator.take("", 1000, None)) is ErrorCode.INVALID_REQUEST

    run(tmp_path, work)


def test_ids_and_producers_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        user = await world.coordinator.take(ID, 60_000, None)
        for wrong in (world.coordinator.add("other", user, [T0]), world.coordinator.add(ID, Identity(99, 0), [T0])):
            assert await refusal(wrong) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await refusal(world.coordinator.end(ID, user, is_commit=True)) is ErrorCode.INVALID_TXN_STATE
        with pytest.raises(RequestRefused) as refused:
            world.send(user, b"no transaction has begun")
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        await world.coordinator.add(ID, user, [T0])
        with pytest.raises(RequestRefused) as refused:
            world.send(user, b"the partition was not added", partition=T1)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE

    run(tmp_path, work)


# Time


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        user = await world.begin(timeout_ms=5000)
        world.send(user, b"slow")
        world.clock[0] += 5000
        await world.coordinator.look()
        assert world.status() is Status.ONGOING
        world.clock[0] += 1
        await world.coordinator.look()
        assert world.status() is Status.COMPLETE_ABORT and world.committed() == []
        assert world.node.log(*T0).last_stable_offset == 2
        assert await refusal(world.coordinator.end(ID, user, is_commit=True)) is ErrorCode.PRODUCER_FENCED
        assert (await world.coordinator.take(ID, 5000, None)).epoch == user.epoch + 2

    run(tmp_path, work)


def test_a_clock_that_is_set_back_keeps_no_transaction_open(tmp_path: Path) -> None:
    """As that of a machine which starts years ahead, before it has asked what time it is."""
    clock = [NOW_MS]

    async def ahead(world: World) -> None:
        world.send(await world.begin(timeout_ms=5000), b"nobody will end it")

    async def back(world: World) -> None:
        world.clock[0] = NOW_MS - 5000
        await world.coordinator.look()
        assert world.status() is Status.ONGOING
        world.clock[0] -= 10 * 365 * 86_400_000
        await world.coordinator.look()
        assert world.status() is Status.COMPLETE_ABORT and world.committed() == []
        assert world.node.log(*T0).last_stable_offset == 2

    run(tmp_path, ahead, clock=clock)
    run(tmp_path, back, clock=clock)


@pytest.mark.parametrize("error", [RequestRefused(ErrorCode.STORAGE_ERROR, "full"), OSError("EIO"), KeyError("ours")])
def test_a_transaction_that_cannot_be_ended_keeps_no_other_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def work(world: World) -> None:
        for name, partition in (("first", T0), ("second", T1)):
            await world.begin(name, partition, timeout_ms=5000)
        world.clock[0] += 5001
        finish = world.coordinator._finish

        async def failing(transactional_id: str) -> None:
            if transactional_id == "first":
                raise error
            await finish(transactional_id)

        with monkeypatch.context() as patched:
            patched.setattr(world.coordinator, "_finish", failing)
            await world.coordinator.look()
        assert [world.status(name) for name in ("first", "second")] == [Status.PREPARE_ABORT, Status.COMPLETE_ABORT]
        assert len(logged(caplog, "broker.coordinator.transactions", "first", level=logging.ERROR)) == 1
        await world.coordinator.look()
        assert world.status("first") is Status.COMPLETE_ABORT

    run(tmp_path, work)


def test_ids_that_nobody_uses_are_forgotten(tmp_path: Path) -> None:
    clock = [NOW_MS]

    async def first(world: World) -> None:
        await world.coordinator.take("unused", 60_000, None)
        user = await world.begin("used")
        await world.coordinator.end("used", user, is_commit=True)
        world.clock[0] += EXPIRATION_MS
        await world.coordinator.add("used", user, [T0])
        world.clock[0] += 1
        await world.coordinator.look()
        assert set(world.coordinator.all) == {"used"}

    async def second(world: World) -> None:
        assert set(world.coordinator.all) == {"used"}

    run(tmp_path, first, clock=clock)
    run(tmp_path, second, clock=clock)


def test_of_too_many_ids_the_oldest_unused_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions_module, "IDS_MAX", 5)
    monkeypatch.setattr(transactions_module, "FORGOTTEN_AT_ONCE", 2)

    async def work(world: World) -> None:
        await world.begin("busy")
        for number in range(6):
            world.clock[0] += 1
            await world.coordinator.take(f"id-{number}", 60_000, None)
        assert set(world.coordinator.all) == {"busy", "id-2", "id-3", "id-4", "id-5"}

    run(tmp_path, work)


def test_nothing_is_compacted_before_it_is_due(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.coordinator.look()
        assert TRANSACTIONS_TOPIC not in {topic.name for topic in world.node.topics}, "nobody asked for an id"
        await world.begin()
        before = contents(world.node.log(TRANSACTIONS_TOPIC, 0))
        await world.coordinator.look()
        assert contents(world.node.log(TRANSACTIONS_TOPIC, 0)) == before

    run(tmp_path, work)


def test_where_the_topic_of_ids_cannot_be_made_a_client_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(world: World) -> None:
        def refused() -> None:
            raise RequestRefused(ErrorCode.STORAGE_ERROR, "no space")

        with monkeypatch.context() as full:
            full.setattr(world.coordinator, "_open_table", refused)
            assert await refusal(world.coordinator.take(ID, 60_000, None)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await world.coordinator.take(ID, 60_000, None)).epoch == 0

    run(tmp_path, work)


def test_the_log_of_ids_does_not_grow_with_their_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions_module, "COMPACT_BYTES", 20_000)

    async def first(world: World) -> None:
        user = await world.begin()
        open_ = await world.begin("open", T1)
        world.send(open_, b"open", partition=T1, name="open")
        for number in range(300):
            await world.coordinator.add(ID, user, [T0])
            world.send(user, b"%d" % number, number)
            await world.coordinator.end(ID, user, is_commit=True)
            await world.coordinator.look()
        assert world.node.log(TRANSACTIONS_TOPIC, 0).size < 30_000

    async def second(world: World) -> None:
        assert world.status() is Status.COMPLETE_COMMIT and world.status("open") is Status.ONGOING
        assert len(world.committed()) == 300

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


# Starts


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_transaction_goes_on_after_a_start(tmp_path: Path, is_killed: bool) -> None:
    users: list[Identity] = []

    async def first(world: World) -> None:
        users.append(await world.begin())
        world.send(users[0], b"before")

    async def second(world: World) -> None:
        await world.coordinator.look()
        world.send(users[0], b"after", 1)
        await world.coordinator.end(ID, users[0], is_commit=True)
        assert world.committed() == [b"before", b"after"]

    run(tmp_path, first, is_killed=is_killed)
    run(tmp_path, second)


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("markers", [0, 1, 2])
def test_an_end_that_was_decided_is_carried_out_by_the_next_start(
    tmp_path: Path, markers: int, is_commit: bool
) -> None:
    async def first(world: World) -> None:
        user = await world.begin()
        for partition in (T0, T1):
            world.send(user, b"decided", partition=partition)
        decided = world.coordinator.all[ID].ended(NOW_MS, is_commit=is_commit)
        world.coordinator._put(ID, decided)
        for partition in (T0, T1)[:markers]:
            world.coordinator._end_in(partition, user, is_commit=is_commit)

    async def second(world: World) -> None:
        await world.coordinator.look()
        assert world.status() is (Status.COMPLETE_COMMIT if is_commit else Status.COMPLETE_ABORT)
        for partition in (T0, T1):
            assert world.node.log(*partition).log_end_offset == 2, "one record, one marker"
            assert world.committed(partition) == ([b"decided"] if is_commit else [])

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_where_the_machine_went_down_what_was_ongoing_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that had been acknowledged may be gone with the power, and no client could tell."""
    users: list[Identity] = []

    async def first(world: World) -> None:
        users.append(await world.begin())
        world.send(users[0], b"perhaps not all of it")

    async def second(world: World) -> None:
        assert await refusal(world.coordinator.end(ID, users[0], is_commit=True)) is ErrorCode.PRODUCER_FENCED
        await world.coordinator.look()
        assert world.status() is Status.COMPLETE_ABORT and world.committed() == []
        users.append(await world.begin())
        world.send(users[1], b"all")

    async def third(world: World) -> None:
        await world.coordinator.end(ID, users[1], is_commit=True)
        assert world.committed() == [b"all"]

    monkeypatch.setattr(node_module, "boot_id", lambda: "one")
    run(tmp_path, first, is_killed=True)
    monkeypatch.setattr(node_module, "boot_id", lambda: "two")
    run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


def test_after_a_clean_stop_the_machine_may_go_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users: list[Identity] = []

    async def first(world: World) -> None:
        users.append(await world.begin())
        world.send(users[0], b"all")

    async def second(world: World) -> None:
        await world.coordinator.end(ID, users[0], is_commit=True)
        assert world.committed() == [b"all"]

    run(tmp_path, first)
    monkeypatch.setattr(node_module, "boot_id", lambda: "another")
    run(tmp_path, second)


def test_a_flipped_bit_in_a_row_lets_no_fenced_producer_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    users: list[Identity] = []

    async def first(world: World) -> None:
        users.extend([await world.coordinator.take(ID, 60_000, None) for _ in range(3)])
        # A kind that this version does not know.
        append(world.node.log(TRANSACTIONS_TOPIC, 0), keyed_batch((b"\0\7?", b"")))

    async def second(world: World) -> None:
        # What is set aside is the newest row alone, and said.
        assert world.coordinator.all[ID].epoch == users[1].epoch

    run(tmp_path, first)
    path = tmp_path / f"{TRANSACTIONS_TOPIC}-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[raw.index(struct.pack(">qh", *users[2])) + 9] ^= 2
    path.write_bytes(raw)
    with pytest.raises(LogDamaged, match="CRC") as error:
        run(tmp_path, second)
    assert error.value.path == path
    run(tmp_path, second, sets_damaged_aside=True)
    assert path.with_name(path.name + ".corrupt").exists() and logged(caplog, "broker.log.damage", path.name)
    assert [record.args for record in logged(caplog, "broker.coordinator.transactions")] == [(7, 1)]


def test_what_is_open_and_of_nobody_is_aborted_at_the_start(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        user = await world.begin()
        world.send(user, b"mine")
        stranger = batch(b"nobody's", producer_id=999, epoch=0, sequence=0, is_transactional=True)
        append(world.node.log(*T0), stranger)

    async def second(world: World) -> None:
        log = world.node.log(*T0)
        assert list(log.producers.open) == [0]
        assert [one.producer_id for one in log.aborted(0, 10)] == [999]

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_a_topic_that_is_deleted_meanwhile_holds_no_transaction_up(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        user = await world.begin()
        world.send(user, b"gone")
        await world.node.changes.delete_topic(world.node.topic("t"))
        await world.coordinator.end(ID, user, is_commit=True)
        assert world.status() is Status.COMPLETE_COMMIT

    run(tmp_path, work)


@pytest.mark.parametrize("fsync", list(FsyncMode))
def test_in_every_mode_a_commit_is_seen_when_it_is_answered(tmp_path: Path, fsync: FsyncMode) -> None:
    async def work(world: World) -> None:
        user = await world.begin()
        world.send(user, b"value")
        await world.coordinator.end(ID, user, is_commit=True)
        log = world.node.log(*T0)
        assert world.committed() == [b"value"] and log.last_stable_offset == log.log_end_offset == 2
        if fsync is not FsyncMode.NONE:
            assert log.recovery_point == 2, "with its marker"
            assert world.node.log(TRANSACTIONS_TOPIC, 0).recovery_point > 0

    run(tmp_path, work, fsync=fsync)


def test_the_cleaner_stays_before_what_is_open_and_removes_what_was_aborted(tmp_path: Path) -> None:
    table = ("c", 0)

    def values(world: World) -> list[bytes]:
        return [value or b"" for _, value in contents(world.node.log(*table)) if value != b"\0" * 6]

    async def work(world: World) -> None:
        world.node.changes.create_topic("c", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        log = world.node.log(*table)

        async def clean() -> None:
            log.roll(NOW_MS)
            world.node.flusher.note(log)
            await world.node.flusher.flush_dirty()
            await world.node.upkeep.clean()

        def send(value: bytes) -> None:
            append(log, keyed_batch((b"key", value)))

        send(b"first")
        user = await world.begin(ID, table)
        raw = keyed_batch((b"key", b"aborted"), producer_id=0, sequence=0, is_transactional=True)
        world.coordinator.check_part(ID, user, table)
        append(log, raw)
        for number in range(10):
            send(b"%d" % number)
        await clean()
        assert len(values(world)) == 12, "the first segment, of the first record and what is open, is not touched"
        await world.coordinator.end(ID, user, is_commit=False)
        await clean()
        assert b"aborted" not in values(world) and values(world)[-1] == b"9"
        assert world.committed(table) == [b"9"]

    run(tmp_path, work, segment_bytes_max=400)


# Offsets


def offset(value: int) -> CommittedOffset:
    return CommittedOffset(value, -1, "", NOW_MS)


async def commit_later(world: World, user: Identity, value: int, group: str = "g") -> None:
    await world.coordinator.add(ID, user, [OFFSETS_PARTITION])
    await world.node.groups.commits.store_later(group, {T0: offset(value)}, *user)


def committed_offset(world: World, group: str = "g") -> int | None:
    found = world.node.groups.offsets.of_group(group).get(T0)
    return found.offset if found is not None else None


@pytest.mark.parametrize("restart", ["none", "stopped", "killed"])
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_offsets_of_a_transaction_count_when_it_is_committed(tmp_path: Path, is_commit: bool, restart: str) -> None:
    users: list[Identity] = []

    async def first(world: World) -> None:
        users.append(await world.begin())
        await world.node.groups.commits.store("g", {T0: offset(3)})
        await commit_later(world, users[0], 7)
        assert committed_offset(world) == 3
        if restart == "none":
            await second(world)

    async def second(world: World) -> None:
        assert committed_offset(world) == 3 and world.node.groups.offsets.pending_of("g") == {T0}
        assert [stable(world, version) for version in (6, 7, 9)] == [(3, 0), (-1, 88), (-1, 88)]
        await world.coordinator.end(ID, users[0], is_commit=is_commit)
        assert committed_offset(world) == (7 if is_commit else 3)
        assert not world.node.groups.offsets.pending_of("g")
        assert stable(world, 9) == (7 if is_commit else 3, 0)

    async def third(world: World) -> None:
        assert committed_offset(world) == (7 if is_commit else 3)
        assert not world.node.groups.offsets.pending_of("g")

    run(tmp_path, first, is_killed=restart == "killed")
    if restart != "none":
        run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


def stable(world: World, version: int) -> tuple[int, int]:
    """(offset, error) that a consumer is told that wants what is stable, where it can say so."""
    if version >= 8:
        wanted = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [wanted.OffsetFetchRequestTopics(version=version, name="t", partition_indexes=[0])]
        groups = [wanted(version=version, group_id="g", member_id=None, member_epoch=-1, topics=topics)]
        answer = offset_fetch.handle(
            context(world.node, version), OffsetFetchRequest(version=version, groups=groups, require_stable=True)
        )
        told = answer.groups[0].topics[0].partitions[0]
    else:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(version=version, name="t", partition_indexes=[0])
        flag: dict[str, Any] = {"require_stable": True} if version >= 7 else {}
        request = OffsetFetchRequest(version=version, group_id="g", topics=[topic], **flag)
        told = offset_fetch.handle(context(world.node, version), request).topics[0].partitions[0]
    return told.committed_offset, told.error_code


def test_an_offset_that_was_committed_since_is_not_set_back(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        user = await world.begin()
        await commit_later(world, user, 7)
        await world.node.groups.commits.store("g", {T0: offset(9)})
        await world.coordinator.end(ID, user, is_commit=True)
        assert committed_offset(world) == 9

    async def second(world: World) -> None:
        assert committed_offset(world) == 9

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


@pytest.mark.parametrize("is_killed", [False, True], ids=["at-once", "after-a-kill"])
@pytest.mark.parametrize("stores", [((0, 7), (1, 9)), ((1, 8), (0, 7), (1, 9))], ids=["once", "again"])
@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_two_transactions_that_commit_an_offset_the_one_that_stored_it_last_counts(
    tmp_path: Path, first_to_end: int, stores: tuple[tuple[int, int], ...], is_killed: bool
) -> None:
    """As by Kafka, in whatever order they end: a consumer that took over goes on from where it was, not from before."""
    names, users = ("shop-1", "shop-2"), []

    async def first(world: World) -> None:
        users.extend([await world.begin(name, OFFSETS_PARTITION) for name in names])
        for who, value in stores:
            await world.node.groups.commits.store_later("g", {T0: offset(value)}, *users[who])
        await world.coordinator.end(names[first_to_end], users[first_to_end], is_commit=True)
        assert committed_offset(world) == (7, 9)[first_to_end]
        if not is_killed:
            await second(world)

    async def second(world: World) -> None:
        await world.coordinator.end(names[1 - first_to_end], users[1 - first_to_end], is_commit=True)
        await third(world)

    async def third(world: World) -> None:
        assert committed_offset(world) == 9 and not world.node.groups.offsets.pending_of("g")

    run(tmp_path, first, is_killed=True)
    if is_killed:
        run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


def test_which_of_two_transactions_stored_an_offset_last_outlives_compaction(tmp_path: Path) -> None:
    names, users = ("shop-1", "shop-2"), []

    async def first(world: World) -> None:
        for name in names:
            users.append(await world.begin(name, OFFSETS_PARTITION))
        later = world.node.groups.commits.store_later
        await later("g", {T1: offset(1)}, *users[0])
        await later("g", {T0: offset(7)}, *users[1])
        await later("g", {T0: offset(8)}, *users[0])
        await world.node.groups.store.compact()

    async def second(world: World) -> None:
        for name, user in zip(names, users, strict=True):
            await world.coordinator.end(name, user, is_commit=True)
            assert committed_offset(world) == 8

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_offsets_that_are_not_committed_yet_outlive_compaction(tmp_path: Path, is_commit: bool) -> None:
    users: list[Identity] = []

    async def first(world: World) -> None:
        users.append(await world.begin())
        await world.node.groups.commits.store("g", {T0: offset(3)})
        await commit_later(world, users[0], 7)
        await world.node.groups.store.compact()
        assert len(world.node.log(*OFFSETS_PARTITION).closed) == 0

    async def second(world: World) -> None:
        assert committed_offset(world) == 3
        compacting = asyncio.ensure_future(world.node.groups.store.compact())
        await asyncio.sleep(0)
        await world.coordinator.end(ID, users[0], is_commit=is_commit)
        await compacting

    async def third(world: World) -> None:
        assert committed_offset(world) == (7 if is_commit else 3)

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


@pytest.mark.parametrize("begun", ["before", "meanwhile"])
def test_offsets_that_are_not_committed_yet_outlive_a_compaction_that_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    """What is written anew of the rows is no commit: it comes behind what a transaction is to commit in their place."""
    users: list[Identity] = []

    async def first(world: World) -> None:
        groups = world.node.groups
        users.append(await world.begin())
        for group in "fg":
            await groups.commits.store(group, {T0: offset(3)})
        if begun == "before":
            await commit_later(world, users[0], 7)
        monkeypatch.setattr("headrace.broker.coordinator.table.BATCH_RECORDS_MAX", 1)
        monkeypatch.setattr(groups.store, "_append_pending", fails)
        compacting = asyncio.ensure_future(groups.store.compact())
        await asyncio.sleep(0)
        if begun == "meanwhile":
            await commit_later(world, users[0], 7)
        with pytest.raises(OSError, match="No space"):
            await compacting

    def fails() -> None:
        raise OSError(28, "No space left on device")

    async def second(world: World) -> None:
        assert committed_offset(world) == 3 and world.node.groups.offsets.pending_of("g") == {T0}
        await world.coordinator.end(ID, users[0], is_commit=True)
        assert committed_offset(world) == 7

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_a_group_for_which_a_transaction_is_to_commit_is_not_deleted(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        user = await world.begin()
        await commit_later(world, user, 7)
        assert await refusal(world.node.groups.delete_group("g")) is ErrorCode.NON_EMPTY_GROUP
        world.clock[0] += 10 * coordinator_module.EMPTY_GROUP_MS
        await world.node.groups.keep_house()
        assert "g" in world.node.groups.groups
        await world.node.changes.delete_topic(world.node.topic("t"))
        await world.coordinator.end(ID, user, is_commit=True)
        assert committed_offset(world) is None, "there is no such topic any more"
        await world.node.groups.delete_group("g")

    run(tmp_path, work)


def test_what_a_transaction_is_to_commit_does_not_expire_with_what_was_committed_before(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        await world.node.groups.commits.store("g", {T0: offset(3), T1: offset(3)})
        world.clock[0] += RETENTION_MS + 1
        user = await world.begin()
        await commit_later(world, user, 7)
        await world.node.groups.keep_house()
        assert dict(world.node.groups.offsets.of_group("g")) == {T0: offset(3)}
        await world.coordinator.end(ID, user, is_commit=True)
        assert committed_offset(world) == 7

    async def second(world: World) -> None:
        assert committed_offset(world) == 7

    clock = [NOW_MS]
    run(tmp_path, first, clock=clock, is_killed=True)
    run(tmp_path, second, clock=clock)


def test_what_a_transaction_is_to_commit_stays_where_its_group_is_just_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may have thousands of offsets, which go some at a time, and the others have their turn in between."""
    monkeypatch.setattr("headrace.broker.coordinator.table.BATCH_RECORDS_MAX", 1)

    async def work(world: World) -> None:
        groups, user = world.node.groups, await world.begin()
        await world.coordinator.add(ID, user, [OFFSETS_PARTITION])
        await groups.commits.store("g", {("u", index): offset(3) for index in range(5)} | {T0: offset(3)})
        deleting = asyncio.ensure_future(groups.delete_group("g"))
        while len(groups.offsets.of_group("g")) == 6:
            await asyncio.sleep(0)
        await groups.commits.store_later("g", {T0: offset(7)}, *user)
        assert await refusal(deleting) is ErrorCode.NON_EMPTY_GROUP
        await world.coordinator.end(ID, user, is_commit=True)
        assert committed_offset(world) == 7

    run(tmp_path, work)


# Requests


def test_a_whole_transaction_request_by_request(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        node = world.node
        begun = await _init(node, 4)
        assert (begun.error_code, begun.producer_epoch) == (0, 0)
        user = {"producer_id": begun.producer_id, "producer_epoch": 0}
        assert _produced(node, begun.producer_id, 0) is ErrorCode.INVALID_TXN_STATE
        assert _produced(node, begun.producer_id, 0, version=11) is ErrorCode.TRANSACTION_ABORTABLE
        assert await _added(node, begun.producer_id, {"t": [0, 1]}) == {("t", 0): 0, ("t", 1): 0}
        assert await _added(node, begun.producer_id, {"t": [0, 9]}) == {("t", 0): 55, ("t", 9): 3}
        assert _produced(node, begun.producer_id, 0) is ErrorCode.NONE
        unnamed = _produced(node, begun.producer_id, 1, transactional_id=None)
        assert unnamed is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        group = {"transactional_id": ID, "group_id": "g", **user}
        answer = await txn_offset_commit.handle(context(node, 3), _offsets(group, 5))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TXN_STATE
        added = await add_offsets_to_txn.handle(context(node, 3), AddOffsetsToTxnRequest(version=3, **group))
        assert added.error_code == 0
        answer = await txn_offset_commit.handle(context(node, 3), _offsets(group, 5))
        assert answer.topics[0].partitions[0].error_code == 0
        answer = await txn_offset_commit.handle(context(node, 3), _offsets(group, 5, generation_id=4, member_id="m"))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert _listed(node, is_committed=True) == 0 and _listed(node, is_committed=False) == 1
        ended = EndTxnRequest(version=3, transactional_id=ID, committed=True, **user)
        assert (await end_txn.handle(context(node, 3), ended)).error_code == 0
        assert (await end_txn.handle(context(node, 3), ended)).error_code == 0, "it was not told"
        assert _listed(node, is_committed=True) == 2
        assert committed_offset(world) == 5
        for version, code in ((1, 47), (2, 90)):
            await _init(node, 4)
            late = EndTxnRequest(version=version, transactional_id=ID, committed=True, **user)
            assert (await end_txn.handle(context(node, version), late)).error_code == code

    run(tmp_path, work)


def test_who_claims_a_producer_without_a_transactional_id_is_given_another_one(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        user = await world.begin()
        world.send(user, b"one")
        for claimed in (user, user._replace(epoch=EPOCH_MAX - 1), Identity(user.producer_id + 5000, 3)):
            told = await _init(world.node, 4, transactional_id=None, claimed=claimed)
            assert (told.error_code, told.producer_epoch) == (ErrorCode.NONE, 0)
            assert told.producer_id not in (user.producer_id, claimed.producer_id)
        world.send(user, b"two", 1)
        await world.coordinator.end(ID, user, is_commit=True)
        assert world.committed() == [b"one", b"two"]

    run(tmp_path, work)


async def _init(
    node: BrokerNode, version: int, *, transactional_id: str | None = ID, claimed: Identity = NOBODY
) -> Any:
    request = InitProducerIdRequest(
        version=version,
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=claimed.producer_id,
        producer_epoch=claimed.epoch,
    )
    return await init_producer_id.handle(context(node, version), request)


async def _added(node: BrokerNode, producer_id: int, topics: dict[str, list[int]]) -> dict[tuple[str, int], int]:
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
    answer = await add_partitions_to_txn.handle(context(node, 3), request)
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }


def _produced(
    node: BrokerNode, producer_id: int, sequence: int, transactional_id: str | None = ID, version: int = 9
) -> ErrorCode:
    raw = batch(b"x", producer_id=producer_id, epoch=0, sequence=sequence, is_transactional=True)
    assert header_of(raw).producer_id == producer_id
    partition = ProducePartition(0, memoryview(raw))
    request = ProduceRequest(transactional_id, -1, 1000, (ProduceTopic("t", (partition,)),))
    answer = produce.handle(context(node, version), request)
    assert isinstance(answer, tuple)
    return answer[0].partitions[0].error


def _offsets(group: dict[str, Any], value: int, **member: Any) -> Any:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition(
        version=3, partition_index=0, committed_offset=value, committed_leader_epoch=-1, committed_metadata=""
    )
    return TxnOffsetCommitRequest(
        version=3, topics=[topic(version=3, name="t", partitions=[partition])], **group, **member
    )


def _listed(node: BrokerNode, *, is_committed: bool) -> int:
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


def test_what_is_going_on_is_told(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        node = world.node
        user = await world.begin()
        world.send(user, b"x")
        idle = await world.coordinator.take("idle", 60_000, None)
        world.clock[0] += 500
        request = DescribeTransactionsRequest(version=0, transactional_ids=[ID, "nobody's"])
        mine, none = describe_transactions.handle(context(node, 0), request).transaction_states
        assert (mine.transaction_state, mine.producer_id, mine.transaction_timeout_ms) == ("Ongoing", 0, 60_000)
        assert [(topic.topic, list(topic.partitions)) for topic in mine.topics] == [("t", [0, 1])]
        assert none.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

        def listed(version: int = 1, **filters: Any) -> list[str]:
            wanted: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], **filters}
            answer = list_transactions.handle(
                context(node, version), ListTransactionsRequest(version=version, **wanted)
            )
            assert answer.unknown_state_filters == [one for one in wanted["state_filters"] if one == "Odd"]
            return [one.transactional_id for one in answer.transaction_states]

        assert listed(0) == listed() == [ID, "idle"]
        assert listed(state_filters=["Empty", "Odd"]) == ["idle"]
        assert listed(producer_id_filters=[user.producer_id]) == [ID] != [idle]
        assert listed(duration_filter=499) == [ID] and listed(duration_filter=500) == []
        topic = DescribeProducersRequest.TopicRequest(version=0, name="t", partition_indexes=[0, 1, 2])
        answer = describe_producers.handle(context(node, 0), DescribeProducersRequest(version=0, topics=[topic]))
        first, second, third = answer.topics[0].partitions
        (told,) = first.active_producers
        assert (told.producer_id, told.last_sequence, told.current_txn_start_offset) == (0, 0, 0)
        assert (second.active_producers, third.error_code) == ([], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    run(tmp_path, work)
