"""Power is lost at every moment of a broker's life, and no more is left than was forced to disk.

All that brokers do to their files is recorded, write by write. For every prefix of that the data directory is built as
it may be after a loss of power, and another broker starts on it: without a word, and with all that was promised.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.config import FsyncMode
from headrace.broker.log import compaction
from support.simulation.broker_history import Life, check, look_at, loses_something
from support.simulation.extent import IS_FULL
from support.simulation.power_loss import Forced, Named

SEED = 20260101
MIXES = 4 if IS_FULL else 2  # of each moment, beside the extremes
HOURLY_STEP = 40
KEPT, AGED, DOOMED, TABLE = ("kept", 0), ("aged", 0), ("doomed", 0), ("table", 0)


async def whole_life(life: Life) -> None:
    life.start()
    life.create("kept", 2)
    life.create("aged", 1, retention_ms="100000")
    producer_id = await life.take_producer_id()
    for number in range(7):
        await life.send_idempotent(KEPT, number, producer_id)
        await life.send(AGED, 2)
    await life.commit(1)
    life.create("doomed", 1)
    for _ in range(3):
        await life.send(DOOMED, 2)
    await life.run_housekeeping()
    await life.send(("kept", 1), acknowledged=False)
    for _ in range(4):
        await life.send(DOOMED, 2, acknowledged=False)
    life.kill()

    life.start()
    await life.send(("kept", 1), 3)
    await life.send(DOOMED)
    await life.delete("doomed")
    life.create("doomed", 2)
    await life.send(DOOMED)
    for number in range(7, 10):
        await life.send_idempotent(KEPT, number, producer_id)
    for number in range(2, 14):
        await life.commit(number)
    await life.node.groups.store.compact()
    await life.stop()

    life.start()
    await life.send(KEPT, 2)
    life.delete_records(("kept", 1), 2)
    for _ in range(14):
        await life.send(AGED, 2)
    life.clock_ms += 200_000
    life.node.now_ms = lambda: life.clock_ms
    await life.run_housekeeping(AGED)
    await life.send(AGED)
    for _ in range(6):
        await life.send(KEPT, 2, acknowledged=False)
    await life.acknowledge(KEPT)
    await life.run_housekeeping(AGED)
    await life.stop()

    life.start()
    for _ in range(14):
        await life.send(AGED, acknowledged=False)
        await life.send(KEPT, acknowledged=False)
    await life.stop()


async def crowded_life(life: Life) -> None:
    """Several producers at once: segments are appended to and closed while the disk works."""
    life.start()
    life.create("kept", 1)

    async def produce(pauses: int) -> None:
        for number in range(5):
            for _ in range((pauses + number) % 4):
                await asyncio.sleep(0)
            await life.send(KEPT, 1 + number % 2)

    await asyncio.gather(*map(produce, range(5)))
    life.kill()
    life.start()
    await asyncio.gather(*map(produce, range(3)))
    await life.stop()


Lived = Callable[[Life], Coroutine[Any, Any, None]]


async def compacted_life(life: Life) -> None:
    """Keys are set and deleted, and compacted again and again; segments become one."""
    life.start()
    life.create("table", 1, cleanup_policy="compact", delete_retention_ms="1000", min_cleanable_dirty_ratio="0")
    for round_ in range(3):
        life.node.now_ms = lambda: life.clock_ms
        await life.set(TABLE, a=f"{round_}", b=f"{round_}", c="x" * 20)
        await life.set(TABLE, once=f"{round_}" if round_ == 0 else None, d="y" * 150)
        await life.set(TABLE, a=f"{round_} again", filler="z" * 150)
        await life.set(TABLE, hot="1")
        await life.set(TABLE, hot="2")
        await life.set(TABLE, hot="3")
        await life.set(TABLE, b=None, filler="z" * 150, acknowledged=False)
        await life.clean()
        await life.node.flusher.flush_dirty()
        life.clock_ms += 700
        if round_ == 1:
            life.kill()
            life.start()
    await life.set(TABLE, filler="z" * 300)
    await life.set(TABLE, filler="z" * 300)
    await life.clean()
    life.clock_ms += 5000
    await life.set(TABLE, filler="z" * 300)
    await life.set(TABLE, a=None)
    await life.clean()
    await life.stop()


def looked_at(life: Life, directory: Path, *, mixes: int, step: int = 1, first: int = 0) -> int:
    """
    Returns:
        How many disks were looked at.

    Raises:
        Lost: one does not hold what it should.
    """
    shutil.rmtree(directory, ignore_errors=True)  # of a disk on which something was lost
    return look_at(life.disks(SEED, mixes, step, first=first), directory, life.fsync, check)


FINISHED = "compaction._finish <partition>"
SPARES_TIME = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")
"""What is not on the disk of these is made anew from the batches: forcing them spares the next start that time."""
SPARES_IDS = "producer_ids.begin_above "
"""The name of a file with no more in it than where ids begin: without it they begin there again, or far above."""


@pytest.mark.simulation
@pytest.mark.parametrize("lived", [whole_life, compacted_life])
def test_no_call_that_forces_something_to_disk_may_be_left_out(memory_path: Path, lived: Lived) -> None:
    """Each one in turn does nothing; then some promise is broken at some moment."""
    life = Life(memory_path / "disk", FsyncMode.ALWAYS).live(lived)
    sites = {operation.site for operation in life.tape.operations if isinstance(operation, Forced)}
    if lived is compacted_life:
        # The cleaner's own, of one group before the next, matters only where the power fails twice: see the next test.
        sites = {site for site in sites if site.startswith("compaction.")}
    needless = []
    for site in sorted(site for site in sites if not site.endswith(SPARES_TIME) and site != SPARES_IDS):
        shutil.rmtree(memory_path)
        memory_path.mkdir()
        careless = Life(memory_path / "disk", FsyncMode.ALWAYS, without=site).live(lived)
        if not loses_something(careless, partial(looked_at, directory=memory_path / "left")):
            needless.append(site)
    assert len(sites) > (12 if lived is whole_life else 2)
    assert needless == []


def test_what_was_cleaned_is_in_its_place_for_certain_before_what_follows(memory_path: Path) -> None:
    """Or power that fails twice brings back a key: its tombstone is dropped from a later segment when it has gone from
    all earlier ones."""
    life = Life(memory_path / "disk", FsyncMode.INTERVAL).live(compacted_life)
    cleaned, is_certain = 0, True
    for operation in life.tape.operations:
        if isinstance(operation, Forced) and operation.content is None and "<partition>" in operation.site:
            is_certain = True
        elif isinstance(operation, Named) and operation.source.endswith(compaction.CLEANED):
            assert is_certain, operation
            cleaned, is_certain = cleaned + 1, False
        elif isinstance(operation, Named) and operation.source.endswith(".log.tmp"):
            assert is_certain, operation  # by the name that a start knows
            is_certain = False
    assert cleaned > 5


def killed_while_compacting(root: Path, without: str = "") -> Life:
    """Just when the files go whose segments have become one, which the next start ends."""
    whole = Life(root / "whole", FsyncMode.INTERVAL).live(compacted_life).tape.operations
    begun = [isinstance(each, Forced) and each.site.startswith("compaction.fsync_staged_swap") for each in whole]
    life = Life(root / "disk", FsyncMode.INTERVAL, without)
    life.tape.kill_before = begun.index(True) + 3
    return life.live(compacted_life)


@pytest.mark.simulation
def test_a_compaction_that_a_kill_cut_short_outlives_the_power_at_any_moment(memory_path: Path) -> None:
    life = killed_while_compacting(memory_path)
    forced = [operation for operation in life.tape.operations if isinstance(operation, Forced)]
    assert FINISHED in {operation.site for operation in forced}
    assert looked_at(life, memory_path / "left", mixes=1, step=2) > 200


@pytest.mark.simulation
def test_what_ends_a_compaction_at_the_start_may_not_be_left_out_either(memory_path: Path) -> None:
    careless = killed_while_compacting(memory_path, FINISHED)
    assert loses_something(careless, partial(looked_at, directory=memory_path / "left"))


@pytest.mark.parametrize("lived", [whole_life, compacted_life])
def test_what_was_promised_outlives_the_power_at_some_moments(memory_path: Path, lived: Lived) -> None:
    """The small case for every hour: it notices 15 of the 17 fsyncs below when they are missing. The tests below go
    through all moments of more."""
    life = Life(memory_path / "disk", FsyncMode.ALWAYS).live(lived)
    assert looked_at(life, memory_path / "left", mixes=1, step=HOURLY_STEP) > 50


@pytest.mark.simulation
@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_what_was_promised_outlives_the_power_at_any_moment(memory_path: Path, fsync: FsyncMode) -> None:
    life = Life(memory_path / "disk", fsync).live(whole_life)
    assert looked_at(life, memory_path / "left", mixes=MIXES) > 500


@pytest.mark.simulation
@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_what_producers_were_told_at_once_outlives_the_power_at_any_moment(memory_path: Path, fsync: FsyncMode) -> None:
    life = Life(memory_path / "disk", fsync).live(crowded_life)
    assert len(life.log(KEPT).closed) > 8
    assert looked_at(life, memory_path / "left", mixes=MIXES) > 300


@pytest.mark.simulation
@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_a_compacted_topic_outlives_the_power_at_any_moment(memory_path: Path, fsync: FsyncMode) -> None:
    life = Life(memory_path / "disk", fsync).live(compacted_life)
    assert life.node.cleaner.clean_to[TABLE] > 25
    assert looked_at(life, memory_path / "left", mixes=1, step=3) > 200
