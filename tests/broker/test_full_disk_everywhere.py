"""The disk is full at some point of a broker's life, for one call or for some time, and then has space again.

A refused operation can be retried and then succeeds. Everything acknowledged before and afterwards is available:
immediately, in a broker that starts after a kill at that point, and in one that starts after a clean shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import node as node_module
from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator import coordinator
from headrace.broker.coordinator import transactions as transactions_module
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.coordinator.transaction import ProducerIdAndEpoch
from headrace.broker.data_directory import CLEAN_MARKER
from headrace.broker.errors import RequestRefused, StartError
from headrace.broker.log import compaction, files
from headrace.broker.log.decoding import decode_records
from headrace.broker.node import OFFSETS_PARTITION, BrokerNode
from support.broker.broker_samples import NOW_MS, append, batch, committed, contents, keyed_batch
from support.simulation.broker_history import abandon
from support.simulation.broker_power_loss import Inline
from support.simulation.extent import IS_FULL
from support.simulation.full_disk import NO_CALL, FullDisk

Key = tuple[str, int]
Step = Callable[[], Awaitable[Any]]

PLAIN, GROWN, AGED, DOOMED, TABLE, PAID = (
    ("plain", 0),
    ("plain", 1),
    ("aged", 0),
    ("doomed", 0),
    ("table", 0),
    ("paid", 0),
)
PAID_VALUES = "paid values"
LEFTOVERS = ("*-delete", "*-stray*", "*/*.deleted", "*/*.cleaned", "*/*.swap")


class BrokenGuarantee(AssertionError):
    """The broker broke a guarantee."""


class NotDoneYet(AssertionError):
    """A periodic task has not succeeded although there is space."""


class Life:
    """Successive brokers on one directory, and the data they acknowledged. `uncertain`: possibly done operations."""

    def __init__(self, root: Path, disk: FullDisk, fsync: FsyncMode) -> None:
        self.root, self.disk, self.fsync = root, disk, fsync
        self.clock_ms = NOW_MS
        self.node: BrokerNode | None = None
        self.failures: list[OSError] = []
        self.topics: dict[str, int] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.records: dict[Key, dict[int, bytes]] = {}
        self.starts: dict[Key, tuple[int, int]] = {}
        self.tables: dict[Key, dict[bytes, bytes | None]] = {}
        self.paid: list[bytes] = []
        self.offsets: dict[Key, int] = {}
        self.sequences: dict[Key, int] = {}
        self.repeatable: dict[Key, tuple[bytes, int]] = {}
        self.user = ProducerIdAndEpoch(-1, -1)
        self.producer_id = -1
        self.uncertain: set[Any] = set()
        """Topics by name, offsets by partition, and `PAID_VALUES`."""
        self._number = 0

    @property
    def up(self) -> BrokerNode:
        assert self.node is not None
        return self.node

    def open_node(self, root: Path) -> BrokerNode:
        return BrokerNode(
            BrokerConfig(root, fsync=self.fsync, segment_bytes_max=400),
            now_ms=lambda: self.clock_ms,
            on_disk_failure=self.failures.append,
        )

    # Steps; a refused one may be repeated

    async def start(self) -> None:
        self.clock_ms += 5000
        self.node = self.open_node(self.root)

    async def close(self) -> None:
        if self.node is not None:
            await self.node.close()
        self.node = None

    async def kill(self) -> None:
        abandon(self.up)
        self.node = None

    def create(self, name: str, partitions: int = 1, **configs: str) -> Step:
        async def step() -> None:
            expected = {key.replace("_", "."): value for key, value in configs.items()}
            self.uncertain.add(name)
            self.up.changes.create_topic(name, partitions, expected)
            self.uncertain.discard(name)
            self.topics[name], self.configs[name] = partitions, expected

        return step

    def grow(self, name: str, partitions: int) -> Step:
        async def step() -> None:
            self.uncertain.add(name)
            await self.up.changes.add_partitions(name, partitions)
            self.uncertain.discard(name)
            self.topics[name] = partitions

        return step

    def alter(self, name: str, **configs: str) -> Step:
        async def step() -> None:
            expected = {key.replace("_", "."): value for key, value in configs.items()}
            self.uncertain.add(name)
            await self.up.changes.alter_topic(name, lambda _: expected)
            self.uncertain.discard(name)
            self.configs[name] = expected

        return step

    def delete(self, name: str) -> Step:
        async def step() -> None:
            self.uncertain.add(name)
            await self.up.changes.delete_topic(self.up.topic(name))
            self.uncertain.discard(name)
            del self.topics[name]
            tables: tuple[dict[Key, Any], ...] = (self.records, self.starts, self.offsets, self.repeatable)
            for table in tables:
                for key in [key for key in table if key[0] == name]:
                    del table[key]

        return step

    def send(self, key: Key, count: int = 1) -> Step:
        async def step() -> None:
            await self._append(key, batch(*self._values(count), timestamp_ms=self.clock_ms))

        return step

    def send_idempotent(self, key: Key) -> Step:
        async def step() -> None:
            sequence = self.sequences.get(key, 0)
            raw = batch(
                b"idempotent %d" % sequence,
                timestamp_ms=self.clock_ms,
                producer_id=self.producer_id,
                epoch=0,
                sequence=sequence,
            )
            self.repeatable[key] = raw, await self._append(key, raw)
            self.sequences[key] = sequence + 1

        return step

    def set(self, key: Key, **values: str | None) -> Step:
        async def step() -> None:
            entries = [(name.encode(), value.encode() if value is not None else None) for name, value in values.items()]
            append(self.up.log(*key), keyed_batch(*entries, timestamp_ms=self.clock_ms), self.clock_ms)
            self.tables.setdefault(key, {}).update(entries)
            await self._force(key)

        return step

    async def _append(self, key: Key, raw: bytes) -> int:
        offset = append(self.up.log(*key), raw, self.clock_ms)
        for at, _, _, value, _ in decode_records(raw):
            self.records.setdefault(key, {})[offset + at] = value or b""
        await self._force(key)
        return offset

    async def _force(self, key: Key) -> None:
        log = self.up.log(*key)
        self.up.flusher.mark_dirty(log)
        if self.fsync is FsyncMode.ALWAYS:
            await self.up.flusher.flush(log)

    def _values(self, count: int) -> list[bytes]:
        self._number += count
        return [b"value %d" % (self._number - at) for at in range(count)]

    async def flush(self) -> None:
        await self.up.flusher.flush_dirty()

    def commit(self, key: Key, offset: int) -> Step:
        async def step() -> None:
            self.uncertain.add(("offset", key))
            await self.up.groups.commits.store("g", {key: CommittedOffset(offset, -1, "", self.clock_ms)})
            self.uncertain.discard(("offset", key))
            self.offsets[key] = offset

        return step

    async def allocate_producer_id(self) -> None:
        self.producer_id = await self.up.producer_ids.allocate()

    async def init_transactional_producer(self) -> None:
        self.user = await self.up.transactions.init_producer("user", 60_000, None)
        self.sequences[PAID] = 0

    async def begin(self) -> None:
        await self.up.transactions.add_partitions("user", self.user, [PAID, OFFSETS_PARTITION])

    def pay(self, value: bytes) -> Step:
        async def step() -> None:
            sequence = self.sequences.get(PAID, 0)
            self.up.transactions.check_transactional_write("user", self.user, PAID)
            raw = batch(
                value,
                timestamp_ms=self.clock_ms,
                producer_id=self.user.producer_id,
                epoch=self.user.epoch,
                sequence=sequence,
                is_transactional=True,
            )
            append(self.up.log(*PAID), raw, self.clock_ms)
            self.sequences[PAID] = sequence + 1
            await self._force(PAID)

        return step

    def commit_in_transaction(self, offset: int) -> Step:
        async def step() -> None:
            expected = {PAID: CommittedOffset(offset, -1, "", self.clock_ms)}
            await self.up.groups.commits.store_pending("g", expected, *self.user)

        return step

    def end(self, values: list[bytes], offset: int, *, is_commit: bool) -> Step:
        async def step() -> None:
            if is_commit:
                self.uncertain |= {PAID_VALUES, ("offset", PAID)}
            await self.up.transactions.end_transaction("user", self.user, is_commit=is_commit)
            self.uncertain -= {PAID_VALUES, ("offset", PAID)}
            if is_commit:
                self.paid += values
                self.offsets[PAID] = offset

        return step

    def delete_records(self, key: Key, offset: int) -> Step:
        async def step() -> None:
            self.starts[key] = (self.starts.get(key, (0, 0))[0], offset)
            self.up.log(*key).advance_log_start(offset)
            await self.up.maintenance.drop_below_log_start(key)
            await asyncio.wrap_future(self.up.checkpoints.write_log_starts())
            self.starts[key] = (offset, offset)

        return step

    async def run_transaction_maintenance(self) -> None:
        await self.up.transactions.run_maintenance()

    async def run_housekeeping(self) -> None:
        await self.up.maintenance.run_housekeeping()

    async def expire(self) -> None:
        """Checks that everything old enough has been deleted."""
        log = self.up.log(*AGED)
        if AGED not in self.starts:
            self.clock_ms += 200_000
            self.starts[AGED] = (0, log.log_end_offset)
        await self.up.maintenance.run_housekeeping()
        end = self.starts[AGED][1]
        if log.log_start_offset != end:
            raise NotDoneYet(f"{AGED} begins at {log.log_start_offset} and not at {end}")
        self.starts[AGED] = (end, end)

    async def clean(self) -> None:
        self.clock_ms += 700
        await self.up.maintenance.clean()

    async def compact_groups(self) -> None:
        await self.up.groups.store.compact()

    async def meanwhile(self, step: Step) -> None:
        """Runs periodic work while the disk is as full as it was for another step."""
        self.disk.is_watched = True
        try:
            await step()
        finally:
            self.disk.is_watched = False

    # Checks

    async def check_live(self) -> None:
        _expect(not self.failures, f"the broker reported a disk failure: {self.failures}")
        if self.node is not None:
            self.check(self.node)

    async def check_start(self, directory: Path, *, is_killed: bool) -> None:
        """Checks another broker on a copy of the directory."""
        shutil.copytree(self.root, directory)
        watched, self.disk.is_watched = self.disk.is_watched, False
        try:
            if is_killed:
                (directory / CLEAN_MARKER).unlink(missing_ok=True)
            try:
                node = self.open_node(directory)
            except Exception as error:
                raise BrokenGuarantee(
                    f"the start after a {'kill' if is_killed else 'clean shutdown'} fails: {error!r}"
                ) from error
            try:
                await node.transactions.run_maintenance()
                self.check(node)
            except BrokenGuarantee as wrong:
                raise BrokenGuarantee(f"after a {'kill' if is_killed else 'clean shutdown'}: {wrong}") from wrong
            finally:
                abandon(node)
        finally:
            self.disk.is_watched = watched
            shutil.rmtree(directory)

    def check(self, node: BrokerNode) -> None:
        found = {topic.name: topic for topic in node.topics if not topic.is_internal}
        names = {name for name in {*self.topics, *found} if name not in self.uncertain}
        for name in names:
            partitions = found[name].partitions if name in found else 0
            _expect(
                partitions == self.topics.get(name, 0),
                f"{name} has {partitions} partitions, not {self.topics.get(name, 0)}",
            )
            _expect(dict(found[name].configs) == self.configs[name], f"{name} has configs {found[name].configs}")
            for index in range(partitions):
                self._check_log(node, (name, index))
        group = node.groups.offsets.of_group("g")
        # Commits of a deleted topic may remain; they are deleted before a topic of that name is created.
        for key in [key for key in {*self.offsets, *group} if key[0] in names]:
            offset = group[key].offset if key in group else -1
            _expect(
                ("offset", key) in self.uncertain or offset == self.offsets.get(key, -1),
                f"offset {offset} is committed in {key}",
            )

    def _check_log(self, node: BrokerNode, key: Key) -> None:
        log = node.log(*key)
        if key == PAID:
            found = committed(log)
            is_complete = found[: len(self.paid)] == self.paid and (found == self.paid or PAID_VALUES in self.uncertain)
            _expect(is_complete, f"{found} is committed, not {self.paid}")
            return
        if key in self.tables:
            table = {name: value for _, raw in log.batches(0) for _, _, name, value, _ in decode_records(raw)}
            for name, value in self.tables[key].items():
                _expect(table.get(name) == value, f"{name!r} is {table.get(name)!r}, not {value!r}")
            return
        least, most = self.starts.get(key, (0, 0))
        start = log.log_start_offset
        _expect(least <= start <= most, f"{key} begins at {start}, not in [{least}, {most}]")
        expected = [(at, value) for at, value in self.records.get(key, {}).items() if at >= start]
        _expect(contents(log) == expected, f"{key} has {contents(log)}, not {expected}")
        if key in self.repeatable:
            raw, offset = self.repeatable[key]
            repeated_at = append(log, raw, self.clock_ms)
            _expect(repeated_at == offset, f"{key}: a retry is stored at {repeated_at}, not {offset}")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise BrokenGuarantee(message)


def steps(life: Life) -> list[Step]:
    table = {"cleanup_policy": "compact", "delete_retention_ms": "1000", "min_cleanable_dirty_ratio": "0.0"}
    return [
        life.start,
        life.create("plain"),
        life.create("aged", retention_ms="100000"),
        life.create("table", **table),
        life.create("paid"),
        life.allocate_producer_id,
        *[life.send_idempotent(PLAIN) for _ in range(5)],
        *[life.send_idempotent(AGED) for _ in range(6)],
        life.create("doomed", 2),
        *[life.send(DOOMED, 2) for _ in range(4)],
        life.commit(PLAIN, 1),
        life.commit(DOOMED, 3),
        life.init_transactional_producer,
        life.begin,
        life.pay(b"one"),
        life.commit_in_transaction(1),
        life.pay(b"two"),
        life.end([b"one", b"two"], 1, is_commit=True),
        life.begin,
        life.pay(b"three"),
        life.commit_in_transaction(3),
        life.end([], 3, is_commit=False),
        life.flush,
        life.run_housekeeping,
        *[life.set(TABLE, a=f"{at}", b="x" * 60, **{f"once{at}": "1"}) for at in range(6)],
        life.set(TABLE, once1=None),
        life.flush,
        life.clean,
        life.grow("plain", 2),
        life.send(GROWN),
        life.alter("aged", retention_ms="50000"),
        life.compact_groups,
        life.delete("doomed"),
        life.create("doomed"),
        life.send(DOOMED),
        life.commit(DOOMED, 1),
        life.close,
        life.start,
        life.run_transaction_maintenance,
        *[life.send_idempotent(PLAIN) for _ in range(4)],
        life.delete_records(PLAIN, 6),
        life.send_idempotent(AGED),
        life.expire,
        life.begin,
        life.pay(b"four"),
        life.end([b"four"], 1, is_commit=True),
        *[life.set(TABLE, a=f"{at} again", c="y" * 90) for at in range(5)],
        life.flush,
        life.clean,
        life.compact_groups,
        life.init_transactional_producer,
        life.begin,
        life.pay(b"five"),
        life.flush,
        life.kill,
        life.start,
        life.run_transaction_maintenance,
        life.end([b"five"], 1, is_commit=True),
        *[life.send_idempotent(PLAIN) for _ in range(2)],
        life.delete("aged"),
        life.clean,
        life.run_housekeeping,
    ]


def afterwards(life: Life) -> list[Step]:
    """Returns final steps, which show that nothing is blocked."""
    return [
        *[life.send(key) for key in (PLAIN, GROWN, DOOMED) for _ in range(5)],
        life.set(TABLE, a="last", d="z" * 300),
        life.set(TABLE, a="the very last", d="z" * 300),
        life.flush,
        life.clean,
        life.run_housekeeping,
        life.run_transaction_maintenance,
        life.compact_groups,
        life.create("aged"),
        life.send(AGED),
        life.delete("aged"),
        life.commit(PLAIN, 2),
        life.run_housekeeping,
    ]


async def run_life(life: Life, directory: Path) -> None:
    """Runs all steps and checks.

    Raises:
        Wrong: the broker broke a guarantee.
    """
    for number, step in enumerate([*steps(life), *afterwards(life)]):
        try:
            await run_step(life, step, directory)
        except Exception as error:
            raise BrokenGuarantee(f"step {number} {getattr(step, '__qualname__', step)}: {error!r}") from error
    await life.check_live()
    await life.check_start(directory, is_killed=True)
    for pattern in LEFTOVERS:
        _expect(not [*life.root.glob(pattern)], f"leftovers: {[*life.root.glob(pattern)]}")
    await life.close()
    _expect((life.root / CLEAN_MARKER).exists(), "there is no marker of a clean shutdown")
    await life.check_start(directory, is_killed=False)


async def run_step(life: Life, step: Step, directory: Path) -> None:
    life.disk.is_watched = True
    refusal: Exception | None = None
    try:
        await step()
    except (OSError, RequestRefused, StartError) as error:
        if not life.disk.has_failed:
            raise
        refusal = error
    except NotDoneYet as error:
        if not life.disk.has_failed:
            raise
        refusal = error
    finally:
        life.disk.is_watched = False
    if life.disk.has_failed:
        # Periodic work runs meanwhile too.
        for other in (
            (life.run_housekeeping, life.clean, life.run_transaction_maintenance, life.compact_groups)
            if life.node is not None
            else ()
        ):
            with contextlib.suppress(OSError, RequestRefused):
                await life.meanwhile(other)
        life.disk.make_space()
        await life.check_live()
        await life.check_start(directory, is_killed=True)
    if refusal is not None:
        await step()


def record_life(root: Path, disk: FullDisk, fsync: FsyncMode) -> None:
    try:
        asyncio.run(run_life(Life(root / "disk", disk, fsync), root / "copy"))
    finally:
        shutil.rmtree(root / "disk", ignore_errors=True)
        shutil.rmtree(root / "copy", ignore_errors=True)


def broken_guarantees(
    memory_path: Path, fsync: FsyncMode, *, fails_once: bool, first: int = 0, stride: int = 1
) -> list[str]:
    """Returns the broken guarantees, by the first call that fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "ThreadPoolExecutor", Inline)
        patch.setattr(node_module, "boot_id", lambda: "one")
        patch.setattr(coordinator, "COMPACT_BYTES", 600)
        patch.setattr(transactions_module, "COMPACT_BYTES", 1500)
        patch.setattr(compaction, "BURST_S", 60.0)  # no pauses: there is no other work
        patch.setattr(files.os, "fsync", lambda fd: None)
        patch.setattr(files.os, "fdatasync", lambda fd: None)
        disk = FullDisk(memory_path / "disk")
        disk.patch(patch)
        record_life(memory_path, disk, fsync)
        calls, found = [*disk.calls], []
        assert len(calls) > 200
        for number in range(first, len(calls), stride):
            disk.calls.clear()
            disk.has_failed = False
            disk.full_at, disk.fails_once = number, fails_once
            try:
                record_life(memory_path, disk, fsync)
                assert disk.full_at == NO_CALL
            except Exception as error:
                found.append(f"{number} {calls[number]}: {error}")
        return found


def test_full_disk_at_some_calls_loses_no_acknowledged_data(memory_path: Path) -> None:
    """A small sample; the simulations below cover more calls."""
    assert broken_guarantees(memory_path, FsyncMode.INTERVAL, fails_once=False, first=30, stride=100) == []


@pytest.mark.simulation
@pytest.mark.parametrize(("fails_once", "first"), [(True, 0), (False, 9)])
def test_full_disk_loses_no_acknowledged_data(memory_path: Path, fails_once: bool, first: int) -> None:
    assert broken_guarantees(memory_path, FsyncMode.INTERVAL, fails_once=fails_once, first=first, stride=29) == []


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("fsync", "fails_once", "first"),
    [
        (FsyncMode.ALWAYS, True, 0),
        (FsyncMode.ALWAYS, False, 2),
        (FsyncMode.INTERVAL, True, 4),
        (FsyncMode.INTERVAL, False, 5),
    ],
)
def test_full_disk_at_more_calls_loses_no_acknowledged_data(
    memory_path: Path, fsync: FsyncMode, fails_once: bool, first: int
) -> None:
    """One case in eleven, since all of them take ten minutes; `make test-full` runs all."""
    first, stride = (0, 1) if IS_FULL else (first, 11)
    assert broken_guarantees(memory_path, fsync, fails_once=fails_once, first=first, stride=stride) == []
