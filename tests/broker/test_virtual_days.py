"""Simulates days of a broker's life in seconds, with the test's clocks and no disk waits.

Producers of every kind write, stop and die. Topics are created and deleted. Groups of both protocols lose and gain
members. The broker is stopped and killed, and the wall clock is set back an hour and forward a day. The clients'
knowledge determines what must be readable, what must be deleted, and what must not grow.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headrace.broker import node as node_module
from headrace.broker.coordinator import coordinator, transactions
from headrace.broker.coordinator.offsets import RETENTION_MS as OFFSETS_MS
from headrace.broker.coordinator.transaction import ID_EXPIRATION_MS as TRANSACTIONAL_IDS_MS
from headrace.broker.log.producer_state import EXPIRATION_MS as PRODUCERS_MS
from support.broker.broker_samples import batch, keyed_batch
from support.simulation.broker_power_loss import Inline
from support.simulation.virtual_days import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SESSION_MS,
    Classic,
    Clock,
    Consumers,
    Partition,
    VirtualBroker,
    folded,
    grown,
)

RETENTION_MS, SEGMENT_MS = 6 * HOUR_MS, HOUR_MS
SIZED_BYTES, SIZED_SEGMENT_BYTES = 20_000, 4000
TOMBSTONES_MS = 2 * HOUR_MS
SET_BACK_MS, SET_FORWARD_MS = HOUR_MS, DAY_MS
COMPACT_BYTES = 20_000


class Idempotent:
    """One idempotent producer after another; each stops at some time without notice.

    Args:
        seen_ms: last activity of every producer, including other tests' producers.
    """

    def __init__(self, seen_ms: dict[int, int]) -> None:
        self.user = (-1, -1)
        self.sequence = 0
        self.last: tuple[bytes, int] | None = None
        self.seen_ms = seen_ms

    async def step(self, days: Days) -> None:
        if self.user[0] < 0 or days.chance.random() < 0.05:
            self.user, self.sequence, self.last = await days.broker.producer(), 0, None
            assert self.user[0] not in self.seen_ms, "a producer id is assigned twice"
        if self.last is not None and days.chance.random() < 0.3:
            raw, offset = self.last
            assert await days.broker.produce("exact", raw) == (0, offset)
        values = days.values()
        fields = {"producer_id": self.user[0], "epoch": self.user[1], "sequence": self.sequence}
        raw = batch(*values, timestamp_ms=days.now_ms, **fields)
        code, offset = await days.broker.produce("exact", raw)
        assert code == 0
        days.partitions["exact", 0].wrote(offset, days.now_ms, *values)
        self.sequence += len(values)
        self.last, self.seen_ms[self.user[0]] = (raw, offset), days.now_ms

    def check(self, days: Days) -> None:
        known = {producer_id for producer_id, _ in days.broker.node.log("exact", 0).producers}
        recent = {each for each, at_ms in self.seen_ms.items() if days.latest_ms - at_ms < PRODUCERS_MS}
        assert recent <= known, f"producers {recent - known} are missing"
        # A start after a kill treats producers that wrote after the last segment was closed as new.
        killed_ms = days.broker.killed_at_ms
        for producer_id in known - recent:
            seen_ms = self.seen_ms[producer_id]
            if killed_ms - seen_ms < 2 * SEGMENT_MS + SET_BACK_MS:
                seen_ms = max(seen_ms, killed_ms)
            assert days.now_ms - seen_ms <= PRODUCERS_MS + SET_BACK_MS + days.step_ms, (
                f"producer {producer_id} has not expired"
            )


class Transactions:
    """Producers with transactional ids; `stored` has the committed values by offset."""

    def __init__(self) -> None:
        self.used_ms: dict[str, int] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.offset = -1
        self.open_until_ms = 0
        self.span: tuple[str, tuple[int, int], dict[int, bytes]] | None = None
        self.outcomes: set[str] = set()

    async def step(self, days: Days) -> None:
        broker, chance = days.broker, days.chance
        if self.span is not None:
            name, user, written = self.span
            code = await broker.end(name, user, is_commit=True)
            self._ended(days, written, is_committed=code == 0)
            self.outcomes.add("late" if code == 0 else "too late")
            self.span = None
        kind = chance.choice(["commit", "commit", "abort", "die", "fence", "span"])
        name = "steady" if kind in ("commit", "abort") else f"{kind}-{len(self.used_ms)}"
        timeout_ms = 15 * MINUTE_MS if kind == "span" else MINUTE_MS
        user = await broker.producer(name, timeout_ms)
        self.used_ms[name] = days.now_ms
        assert await broker.add(name, user, "txn") == 0
        written = await self._write(days, name, user)
        self.outcomes.add(kind)
        if kind == "commit":
            await broker.commit_in_transaction(name, user, "copies", "txn", max(written))
            assert await broker.end(name, user, is_commit=True) == 0
            self._ended(days, written, is_committed=True)
            self.offset = max(written)
        elif kind == "abort":
            await broker.commit_in_transaction(name, user, "copies", "txn", 10**9)
            assert await broker.end(name, user, is_commit=False) == 0
        elif kind == "fence":
            await broker.producer(name, timeout_ms)
            raw = batch(b"late", producer_id=user[0], epoch=user[1], sequence=50, is_transactional=True)
            assert (await broker.produce("txn", raw, transactional_id=name))[0] != 0
        else:
            self.open_until_ms = max(self.open_until_ms, days.now_ms + timeout_ms + 2 * days.step_ms)
            if kind == "span":
                self.span = (name, user, written)

    async def _write(self, days: Days, name: str, user: tuple[int, int]) -> dict[int, bytes]:
        written, sequence = {}, 0
        for _ in range(days.chance.randint(1, 3)):
            values = days.values()
            fields = {"producer_id": user[0], "epoch": user[1], "sequence": sequence}
            raw = batch(*values, timestamp_ms=days.now_ms, is_transactional=True, **fields)
            code, offset = await days.broker.produce("txn", raw, transactional_id=name)
            assert code == 0
            written.update({offset + delta: value for delta, value in enumerate(values)})
            sequence += len(values)
        return written

    def _ended(self, days: Days, written: dict[int, bytes], *, is_committed: bool) -> None:
        if is_committed:
            self.committed.update({offset: (days.now_ms, value) for offset, value in written.items()})

    async def check(self, days: Days) -> None:
        broker = days.broker
        start = await broker.offset("txn", -2)
        found = {offset: value for offset, _, value in await broker.read("txn", is_committed=True)}
        # Records after an open transaction are not visible yet.
        stable = await broker.offset("txn", -1, is_committed=True)
        expected = {offset: value for offset, (_, value) in self.committed.items() if start <= offset < stable}
        assert found == expected
        if days.now_ms > self.open_until_ms + SET_BACK_MS:
            assert stable == await broker.offset("txn", -1), "a transaction never ends"
        assert await broker.committed("copies", "txn") == self.offset
        known = set(broker.node.transactions.all)
        recent = {name for name, at_ms in self.used_ms.items() if days.now_ms - at_ms < TRANSACTIONAL_IDS_MS - DAY_MS}
        assert recent <= known
        old = {name for name in known if days.now_ms - self.used_ms[name] > TRANSACTIONAL_IDS_MS + 2 * HOUR_MS}
        assert not old, f"transactional ids {old} have not expired"


class Table:
    """A compacted topic: keys are set and deleted, some of them for good."""

    def __init__(self) -> None:
        self.table: dict[bytes, bytes] = {}
        self.deleted_ms: dict[bytes, int] = {}
        self.written = 0

    async def step(self, days: Days) -> None:
        chance, entries = days.chance, []
        for _ in range(4):
            key = b"key-%d" % chance.randrange(20) if chance.random() < 0.8 else b"once-%d" % self.written
            value = None if key in self.table and chance.random() < 0.4 else b"value %d" % self.written
            entries.append((key, value))
            self.written += 1
            if value is None:
                self.table.pop(key)
                self.deleted_ms[key] = days.clock.monotonic_ms
            else:
                self.table[key] = value
                self.deleted_ms.pop(key, None)
            if key.startswith(b"once") and chance.random() < 0.9:
                entries.append((key, None))
                self.table.pop(key)
                self.deleted_ms[key] = days.clock.monotonic_ms
        assert (await days.broker.produce("table", keyed_batch(*entries, timestamp_ms=days.now_ms)))[0] == 0

    async def check(self, days: Days) -> None:
        found = await days.broker.read("table")
        assert folded(found) == self.table
        keys = {key for _, key, _ in found}
        # The broker had no chance to run during a day by which the clock was set forward.
        long_ago_ms = days.clock.monotonic_ms - TOMBSTONES_MS - 10 * HOUR_MS
        expired = {key for key, at_ms in self.deleted_ms.items() if at_ms < long_ago_ms}
        assert not keys & expired, f"tombstones of {keys & expired} are still there"
        assert len(found) < 700, f"{len(found)} records for {len(self.table)} keys"


class Days:
    """Runs the whole simulation, one step of the clock at a time."""

    def __init__(self, directory: Path, chance: random.Random, step_ms: int) -> None:
        self.chance, self.step_ms = chance, step_ms
        self.clock = Clock()
        self.latest_ms = 0  # latest time the wall clock has shown
        self.broker = VirtualBroker(directory, self.clock)
        # A segment expires with its newest record, and was written to for this long.
        slack_ms = SEGMENT_MS + SET_BACK_MS + 2 * step_ms
        self.partitions = {
            (topic, index): Partition(topic, index, retention_ms, retention_ms + slack_ms)
            for topic, index, retention_ms in (
                ("aged", 0, RETENTION_MS),
                ("aged", 1, RETENTION_MS),
                ("exact", 0, 2 * RETENTION_MS),
                ("sized", 0, -1 << 60),
            )
        }
        self.partitions["sized", 0].latest_ms = 1 << 60
        seen_ms: dict[int, int] = {}
        self.idempotent = [Idempotent(seen_ms), Idempotent(seen_ms)]
        self.transactions, self.table = Transactions(), Table()
        self.classic, self.consumers = Classic("classic", "shared", 4, 3), Consumers("modern", "shared", 4, 3)
        self.simple_ms: dict[str, int] = {}
        self.forgotten: set[str] = set()
        self.temporary: int | None = None
        self._number = 0

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms

    def values(self) -> list[bytes]:
        self._number += 1
        return [b"value %d-%d" % (self._number, at) + b"x" * 40 for at in range(self.chance.randint(1, 4))]

    async def begin(self) -> None:
        segments = {"segment_ms": str(SEGMENT_MS)}
        create = self.broker.create
        assert await create("aged", 2, retention_ms=str(RETENTION_MS), segment_bytes="4000", **segments) == 0
        assert await create("exact", 1, retention_ms=str(2 * RETENTION_MS), **segments) == 0
        sized = {"retention_bytes": str(SIZED_BYTES), "segment_bytes": str(SIZED_SEGMENT_BYTES), "retention_ms": "-1"}
        assert await create("sized", 1, **sized) == 0
        assert await create("txn", 1, retention_ms=str(2 * RETENTION_MS), **segments) == 0
        compaction = {"delete_retention_ms": str(TOMBSTONES_MS), "min_cleanable_dirty_ratio": "0.1"}
        assert await create("table", 1, cleanup_policy="compact", **compaction, **segments) == 0
        assert await create("shared", 4) == 0

    async def step(self, number: int) -> None:
        self.clock.advance(self.step_ms)
        self.latest_ms = max(self.latest_ms, self.now_ms)
        for key in (("aged", 0), ("aged", 1), ("sized", 0)):
            values = self.values()
            code, offset = await self.broker.produce(key[0], batch(*values, timestamp_ms=self.now_ms), key[1])
            assert code == 0
            self.partitions[key].wrote(offset, self.now_ms, *values)
        for producer in self.idempotent:
            await producer.step(self)
        await self.transactions.step(self)
        await self.table.step(self)
        await self._groups(number)
        await self._temporary_topic(number)
        await self.broker.look()
        for partition in self.partitions.values():
            partition.looked_at(self.now_ms)

    async def _groups(self, number: int) -> None:
        broker, chance = self.broker, self.chance
        for group in (self.classic, self.consumers):
            count = len(self.classic.members) if group is self.classic else len(self.consumers.readers)
            if chance.random() < 0.03 and count:
                group.remove_member(chance)
            elif chance.random() < 0.04 and count < 5:
                group.add_member()
            await group.step(broker)
            await broker.node.groups.run_due(self.clock.monotonic_ms)
        await self.classic.commit(broker, number)
        for name in ("steady", f"once-{number}") if number % 5 == 0 else ("steady",):
            assert await broker.commit(name, "aged", number) == 0
            self.simple_ms[name] = self.now_ms

    async def _temporary_topic(self, number: int) -> None:
        broker = self.broker
        if self.temporary is None and number % 30 == 10:
            assert await broker.create_by_metadata("temporary") == 2
            assert await broker.read("temporary") == []
            assert await broker.committed("steady", "temporary") == -1
            self.temporary = number
        elif self.temporary is not None:
            assert (await broker.produce("temporary", batch(b"v" * 500, timestamp_ms=self.now_ms)))[0] == 0
            assert await broker.commit("steady", "temporary", number) == 0
            if number - self.temporary > 15:
                assert await broker.delete("temporary") == 0
                assert not list(broker.directory.glob("temporary-*"))
                self.temporary = None

    async def restart(self, *, is_killed: bool) -> None:
        """Stops or kills the broker and starts another one on its directory."""
        if is_killed:
            self.broker.kill()
        else:
            await self.broker.stop()
        await self.classic.broker_ended()
        self.broker.start()

    async def check(self) -> None:
        broker = self.broker
        for (topic, index), partition in self.partitions.items():
            partition.check(await broker.read(topic, index))
        size = broker.node.log("sized", 0).size
        written = self.partitions["sized", 0].records
        assert size < SIZED_BYTES + 2 * SIZED_SEGMENT_BYTES
        assert size >= SIZED_BYTES or len(await broker.read("sized")) == len(written)
        self.idempotent[0].check(self)
        await self.transactions.check(self)
        await self.table.check(self)
        self.classic.check(broker)
        self.consumers.check(broker)
        for partition_index, offset in self.classic.committed.items():
            assert await broker.committed("classic", "shared", partition_index) == offset
        await self._check_simple()

    async def _check_simple(self) -> None:
        """Offsets of groups without members stay for seven days after the last commit, and then expire."""
        for name, at_ms in list(self.simple_ms.items()):
            found = await self.broker.committed(name, "aged")
            if self.now_ms - at_ms > OFFSETS_MS + SET_BACK_MS + 2 * self.step_ms:
                assert found == -1 and name not in self.broker.node.groups.groups, f"offsets of {name} have not expired"
                del self.simple_ms[name]
                self.forgotten.add(name)
            elif self.now_ms - at_ms <= OFFSETS_MS - SET_BACK_MS:
                assert found >= 0, f"offsets of {name} are missing"

    def sizes(self) -> dict[str, int]:
        return self.broker.sizes()


def size_limit(size: int) -> float:
    return 1.5 * size + 40


@pytest.mark.parametrize(
    ("hours", "step_minutes", "seed"),
    [
        pytest.param(6, 10, 3, id="6 hours"),  # a small sample
        pytest.param(72, 10, 1, id="72 hours", marks=pytest.mark.simulation),
        pytest.param(8 * 24, 20, 2, id="8 days", marks=pytest.mark.simulation),
    ],
)
def test_guarantees_hold_for_days_and_nothing_grows(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int, step_minutes: int, seed: int
) -> None:
    monkeypatch.setattr(node_module, "ThreadPoolExecutor", Inline)
    monkeypatch.setattr(coordinator, "COMPACT_BYTES", COMPACT_BYTES)
    monkeypatch.setattr(transactions, "COMPACT_BYTES", COMPACT_BYTES)
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("os.fdatasync", lambda fd: None)
    print(f"seed={seed}")
    chance = random.Random(seed)
    assert step_minutes * MINUTE_MS < SESSION_MS
    steps = hours * 60 // step_minutes

    async def live() -> None:
        days = Days(memory_path / "data", chance, step_minutes * MINUTE_MS)
        await days.begin()
        early: dict[str, int] = {}
        for number in range(steps):
            try:
                if number == steps * 4 // 10:
                    days.clock.wall_ms -= SET_BACK_MS
                if number == steps * 7 // 10:
                    days.clock.wall_ms += SET_FORWARD_MS
                await days.step(number)
                if chance.random() < 0.03:
                    await days.restart(is_killed=chance.random() < 0.6)
                if number % 7 == 0:
                    await days.check()
            except AssertionError as error:
                raise AssertionError(f"seed={seed} step={number} of {steps}: {error}") from error
            if steps // 4 < number < steps // 2:
                early = {name: max(size, early.get(name, 0)) for name, size in days.sizes().items()}
            elif number > steps * 9 // 10:
                assert list(grown(early, days.sizes(), size_limit)) == []
        assert days.transactions.outcomes >= {"commit", "abort", "die", "fence", "span"}
        if hours > 24:
            assert len(days.broker.node.log("exact", 0).producers) < len(days.idempotent[0].seen_ms)
        if hours > 7 * 24 + 1:
            assert days.forgotten and len(days.broker.node.transactions.all) < len(days.transactions.used_ms)
        await days.broker.stop()

    asyncio.run(live())
