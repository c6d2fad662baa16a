"""Power fails, or the broker is killed, at every point of its transactions: each transaction is complete or absent.

Like `test_power_loss`; each disk is checked with another broker, in the same boot of the machine after a kill, and in
the next one after a power failure.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import node as node_module
from headrace.broker.config import FsyncMode
from headrace.broker.coordinator import transactions as transactions_module
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.coordinator.transaction import TIMEOUT_MS_MAX, ProducerIdAndEpoch
from headrace.broker.coordinator.transactions import TransactionCoordinator
from headrace.broker.errors import RequestRefused
from headrace.broker.log import files
from headrace.broker.node import OFFSETS_PARTITION, BrokerNode
from support.broker.broker_samples import NOW_MS, append, batch, committed
from support.simulation.broker_history import COARSE_STEP, Life, Lost, Promises, abandon, opened
from support.simulation.broker_power_loss import Inline
from support.simulation.extent import IS_FULL

SEED = 20260101
STEP = 1 if IS_FULL else 4
SAMPLE_STEP = 60
PLACES = (("a", 0), ("a", 1), ("b", 0))
NEVER, PERHAPS, SURELY = "never", "perhaps", "surely"


@dataclass
class TransactionPromises(Promises):
    """By transaction number: whether it must be visible, and its value in each partition."""

    seen: dict[int, str] = field(default_factory=dict)
    parts: dict[int, dict[tuple[str, int], bytes]] = field(default_factory=dict)
    offset_of: dict[int, int] = field(default_factory=dict)
    open: dict[int, tuple[str, ProducerIdAndEpoch]] = field(default_factory=dict)
    """Everything was sent, and the end was not requested."""


class TransactionalLife(Life):
    def __init__(self, root: Path, fsync: FsyncMode) -> None:
        super().__init__(root, fsync)
        self.promises = TransactionPromises()
        self.sequences: dict[tuple[tuple[str, int], ProducerIdAndEpoch], int] = {}

    async def begin(
        self, number: int, name: str, user: ProducerIdAndEpoch, *topic_partitions: tuple[str, int], offset: int = -1
    ) -> None:
        """Writes one record to each partition and commits an offset, in a transaction that stays open."""
        self.promises.seen[number], self.promises.parts[number] = NEVER, {}
        if offset >= 0:
            self.promises.offset_of[number] = offset
        coordinator = self.node.transactions
        await coordinator.add_partitions(name, user, topic_partitions)
        for topic_partition in topic_partitions:
            sequence = self.sequences.get((topic_partition, user), 0)
            self.sequences[topic_partition, user] = sequence + 1
            value = b"%d" % number
            self.promises.parts[number][topic_partition] = value
            coordinator.check_transactional_write(name, user, topic_partition)
            raw = batch(value, producer_id=user.producer_id, epoch=user.epoch, sequence=sequence, is_transactional=True)
            append(self.node.log(*topic_partition), raw)
            self.node.flusher.mark_dirty(self.node.log(*topic_partition))
        if offset >= 0:
            await coordinator.add_partitions(name, user, [OFFSETS_PARTITION])
            await self.node.groups.commits.store_pending(
                "g", {PLACES[0]: CommittedOffset(offset, -1, "", NOW_MS)}, *user
            )
        self.promises.open[number] = (name, user)

    async def end(self, number: int, name: str, user: ProducerIdAndEpoch, *, is_commit: bool) -> None:
        self.promises.open.pop(number, None)
        self.promises.seen[number] = PERHAPS if is_commit else NEVER
        await self.node.transactions.end_transaction(name, user, is_commit=is_commit)
        self.promises.seen[number] = SURELY if is_commit else NEVER


async def transactional_life(life: Life) -> None:
    assert isinstance(life, TransactionalLife)
    life.start()
    for name, partitions in (("a", 2), ("b", 1)):
        life.node.changes.create_topic(name, partitions, {})
    one = await life.node.transactions.init_producer("one", 60_000, None)
    two = await life.node.transactions.init_producer("two", 60_000, None)
    await life.begin(1, "one", one, *PLACES, offset=1)
    await life.begin(2, "two", two, *PLACES)
    await life.end(1, "one", one, is_commit=True)
    await life.node.flusher.flush_dirty()
    await life.end(2, "two", two, is_commit=False)
    await life.begin(3, "two", two, *PLACES[:2])
    await life.begin(4, "one", one, *PLACES[1:], offset=4)
    await life.end(4, "one", one, is_commit=False)
    await life.begin(5, "one", one, *PLACES, offset=5)
    life.kill()

    life.start()
    await life.node.transactions.run_maintenance()
    await life.end(3, "two", two, is_commit=True)
    await life.end(5, "one", one, is_commit=True)
    await life.node.groups.store.compact()
    await life.begin(6, "one", one, PLACES[0], offset=6)
    one = await life.node.transactions.init_producer("one", 60_000, None)
    await life.begin(7, "one", one, *PLACES, offset=7)
    await life.begin(8, "two", two, PLACES[2])
    await life.node.flusher.flush_dirty()
    await life.stop()

    life.start()
    await life.node.transactions.run_maintenance()
    await life.end(7, "one", one, is_commit=True)
    await life.end(8, "two", two, is_commit=True)


def check(root: Path, promises: TransactionPromises, fsync: FsyncMode) -> None:
    """Starts a broker on the remaining disk, completes decided transactions, and then ends all others.

    Raises:
        Lost: a transaction has the wrong state or is incomplete.
    """
    clock = [NOW_MS + 20_000]

    async def check_broker() -> None:
        try:
            node = opened(root, fsync, 0)
        except Exception as error:
            raise Lost(f"the start fails: {error!r}") from error
        node.transactions._now_ms = node.now_ms = lambda: clock[0]
        try:
            await node.transactions.run_maintenance()
            _check(node, promises)
            extended = await _continue_clients(node, promises)
            clock[0] += TIMEOUT_MS_MAX + 1
            await node.transactions.run_maintenance()
            await node.flusher.flush_dirty()
            _check(node, extended)
            for topic_partition in (*PLACES, OFFSETS_PARTITION):
                log = node.logs.get(topic_partition)
                if log is not None and log.last_stable_offset != log.log_end_offset:
                    raise Lost(f"{topic_partition} is blocked at {log.last_stable_offset} of {log.log_end_offset}")
        except RequestRefused as refused:
            raise Lost(f"it refuses: {refused}") from refused
        finally:
            abandon(node)

    asyncio.run(check_broker())


async def _continue_clients(node: BrokerNode, promises: TransactionPromises) -> TransactionPromises:
    """Clients that survived the broker commit their sent records, if permitted; returns the new guarantees."""
    seen = dict(promises.seen)
    for number, (name, user) in promises.open.items():
        try:
            await node.transactions.end_transaction(name, user, is_commit=True)
        except RequestRefused:
            continue
        seen[number] = SURELY
    return replace(promises, seen=seen)


def _check(node: BrokerNode, promises: TransactionPromises) -> None:
    found = {
        topic_partition: committed(node.logs[topic_partition]) if topic_partition in node.logs else []
        for topic_partition in PLACES
    }
    committed_offset = node.groups.offsets.of_group("g").get(PLACES[0])
    newest = committed_offset.offset if committed_offset is not None else -1
    for number, parts in promises.parts.items():
        seen = [found[topic_partition].count(value) for topic_partition, value in parts.items()]
        allowed = {NEVER: (0,), SURELY: (1,), PERHAPS: (0, 1)}[promises.seen[number]]
        if len(set(seen)) > 1 or not set(seen) <= set(allowed):
            raise Lost(f"transaction {number} must be visible: {promises.seen[number]}; it is: {seen}")
        if number in promises.offset_of:
            offset, is_seen = promises.offset_of[number], bool(seen and seen[0])
            if (is_seen and newest < offset) or (not is_seen and newest == offset):
                raise Lost(f"transaction {number} is visible: {seen}; committed offset: {newest}")


def check_disks(life: Life, directory: Path, patch: pytest.MonkeyPatch, *, mixes: int, step: int = 1) -> int:
    patch.setattr(node_module, "ThreadPoolExecutor", Inline)
    patch.setattr(files.os, "fsync", lambda fd: None)
    patch.setattr(files.os, "fdatasync", lambda fd: None)
    count = 0
    for name, image, promises in life.disks(SEED, mixes, step):
        assert isinstance(promises, TransactionPromises)
        directory.mkdir(parents=True)
        image.write(directory)
        patch.setattr(node_module, "boot_id", lambda name=name: "one" if name.endswith("killed") else "two")
        try:
            check(directory, promises, life.fsync)
        except Lost as lost:
            raise Lost(f"{name}: {lost}") from lost
        shutil.rmtree(directory)
        count += 1
    return count


@pytest.fixture
def life_with(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def live(fsync: FsyncMode) -> Life:
        monkeypatch.setattr(node_module, "boot_id", lambda: "one")
        monkeypatch.setattr(transactions_module, "COMPACT_BYTES", 1500)
        return TransactionalLife(memory_path / "disk", fsync).live(transactional_life)

    return live


def test_transactions_are_atomic_under_power_loss_at_some_points(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, life_with: Any
) -> None:
    """A small sample; the simulations below cover more points."""
    life = life_with(FsyncMode.ALWAYS)
    assert check_disks(life, memory_path / "left", monkeypatch, mixes=0, step=SAMPLE_STEP) > 20


@pytest.mark.simulation
@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_transactions_are_atomic_under_power_loss(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, life_with: Any, fsync: FsyncMode
) -> None:
    assert check_disks(life_with(fsync), memory_path / "left", monkeypatch, mixes=0, step=STEP) > 300


async def _do_nothing(*_: object) -> None:
    return


@pytest.mark.simulation
@pytest.mark.parametrize("left_out", ["_fsync_partitions", "_wait_until_durable", "_fsync_logs", "boot"])
def test_every_fsync_of_a_transaction_is_necessary(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, life_with: Any, left_out: str
) -> None:
    with monkeypatch.context() as patch:
        if left_out == "boot":
            patch.setattr(TransactionCoordinator, "_fence_ongoing", lambda self: None)
        else:
            patch.setattr(TransactionCoordinator, left_out, _do_nothing)
        life = life_with(FsyncMode.INTERVAL)
        with pytest.raises(Lost):
            for step in (COARSE_STEP, 2):
                check_disks(life, memory_path / "left", monkeypatch, mixes=0, step=step)
