"""Power fails at every point of a broker's life, and only fsynced data is left.

All file operations of the brokers are recorded, write by write. For every prefix of the recording the data directory is
built as a power failure may leave it, and another broker starts on it: without errors, and with everything that was
guaranteed.
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
from support.simulation.broker_history import Life, check, look_at, loses_data
from support.simulation.extent import IS_FULL, every
from support.simulation.power_loss import Forced, Named

SEED = 20260101
RANDOM_DISKS = 4 if IS_FULL else 2  # random disks per point, besides the extremes
SAMPLE_STEP = 40
RETAINED, AGED, DOOMED, TABLE = ("kept", 0), ("aged", 0), ("doomed", 0), ("table", 0)


async def whole_life(life: Life) -> None:
    life.start()
    life.create("kept", 2)
    life.create("aged", 1, retention_ms="100000")
    producer_id = await life.take_producer_id()
    for number in range(7):
        await life.send_idempotent(RETAINED, number, producer_id)
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
        await life.send_idempotent(RETAINED, number, producer_id)
    for number in range(2, 14):
        await life.commit(number)
    await life.node.groups.store.compact()
    await life.stop()

    life.start()
    await life.send(RETAINED, 2)
    life.delete_records(("kept", 1), 2)
    for _ in range(14):
        await life.send(AGED, 2)
    life.clock_ms += 200_000
    life.node.now_ms = lambda: life.clock_ms
    await life.run_housekeeping(AGED)
    await life.send(AGED)
    for _ in range(6):
        await life.send(RETAINED, 2, acknowledged=False)
    await life.acknowledge(RETAINED)
    await life.run_housekeeping(AGED)
    await life.stop()

    life.start()
    for _ in range(14):
        await life.send(AGED, acknowledged=False)
        await life.send(RETAINED, acknowledged=False)
    await life.stop()


async def crowded_life(life: Life) -> None:
    """Several producers at once: segments are appended to and closed during an fsync."""
    life.start()
    life.create("kept", 1)

    async def produce(pauses: int) -> None:
        for number in range(5):
            for _ in range((pauses + number) % 4):
                await asyncio.sleep(0)
            await life.send(RETAINED, 1 + number % 2)

    await asyncio.gather(*map(produce, range(5)))
    life.kill()
    life.start()
    await asyncio.gather(*map(produce, range(3)))
    await life.stop()


Scenario = Callable[[Life], Coroutine[Any, Any, None]]


async def compacted_life(life: Life) -> None:
    """Keys are set, deleted and compacted repeatedly; segments are merged."""
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


def check_disks(life: Life, directory: Path, *, mixes: int, step: int = 1, first: int = 0) -> int:
    """Checks the disks of a life.

    Returns:
        The number of checked disks.

    Raises:
        Lost: a disk lacks guaranteed data.
    """
    shutil.rmtree(directory, ignore_errors=True)  # left by a failed check
    return look_at(life.disks(SEED, mixes, step, first=first), directory, life.fsync, check)


FINISHED = "compaction._recover_swap <partition>"
SPARES_TIME = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")
"""These are rebuilt from the batches if they are missing; their fsyncs only save time at the next start."""
SPARES_IDS = "producer_ids.skip_past "
"""The first write of the producer ids file contains no more than the first id: without it the next start computes it
again."""


@pytest.mark.simulation
@pytest.mark.parametrize("scenario", [whole_life, compacted_life])
def test_every_fsync_is_necessary(memory_path: Path, scenario: Scenario) -> None:
    """Each fsync is removed in turn; then a check must fail."""
    life = Life(memory_path / "disk", FsyncMode.ALWAYS).live(scenario)
    sites = {operation.site for operation in life.tape.operations if isinstance(operation, Forced)}
    if scenario is compacted_life:
        # The cleaner's fsync between two groups only matters if the power fails twice: see the next test.
        sites = {site for site in sites if site.startswith("compaction.")}
    needless = []
    for site in sorted(site for site in sites if not site.endswith(SPARES_TIME) and site != SPARES_IDS):
        shutil.rmtree(memory_path)
        memory_path.mkdir()
        careless = Life(memory_path / "disk", FsyncMode.ALWAYS, without=site).live(scenario)
        if not loses_data(careless, partial(check_disks, directory=memory_path / "left")):
            needless.append(site)
    assert len(sites) > (12 if scenario is whole_life else 2)
    assert needless == []


def test_compacted_segment_is_durable_before_the_next_swap(memory_path: Path) -> None:
    """Otherwise two power failures bring back a deleted key: its tombstone is removed from a later segment once all
    earlier segments lack the key."""
    life = Life(memory_path / "disk", FsyncMode.INTERVAL).live(compacted_life)
    cleaned, is_certain = 0, True
    for operation in life.tape.operations:
        if isinstance(operation, Forced) and operation.content is None and "<partition>" in operation.site:
            is_certain = True
        elif isinstance(operation, Named) and operation.source.endswith(compaction.CLEANED):
            assert is_certain, operation
            cleaned, is_certain = cleaned + 1, False
        elif isinstance(operation, Named) and operation.source.endswith(".log.tmp"):
            assert is_certain, operation  # by the `.swap` name, which a start recognizes
            is_certain = False
    assert cleaned > 5


def killed_while_compacting(root: Path, without: str = "") -> Life:
    """Killed while the files of merged segments are being deleted, which the next start completes."""
    complete_life = Life(root / "whole", FsyncMode.INTERVAL).live(compacted_life).tape.operations
    is_staged_swap = [
        isinstance(each, Forced) and each.site.startswith("compaction.fsync_staged_swap") for each in complete_life
    ]
    life = Life(root / "disk", FsyncMode.INTERVAL, without)
    life.tape.kill_before = is_staged_swap.index(True) + 3
    return life.live(compacted_life)


@pytest.mark.simulation
def test_killed_compaction_survives_power_loss_at_any_point(memory_path: Path) -> None:
    life = killed_while_compacting(memory_path)
    forced = [operation for operation in life.tape.operations if isinstance(operation, Forced)]
    assert FINISHED in {operation.site for operation in forced}
    assert check_disks(life, memory_path / "left", mixes=1, step=2) > 200


@pytest.mark.simulation
def test_fsync_of_a_recovered_swap_is_necessary(memory_path: Path) -> None:
    careless = killed_while_compacting(memory_path, FINISHED)
    assert loses_data(careless, partial(check_disks, directory=memory_path / "left"))


@pytest.mark.parametrize("scenario", [whole_life, compacted_life])
def test_guarantees_survive_power_loss_at_some_points(memory_path: Path, scenario: Scenario) -> None:
    """A small sample: it detects 15 of the 17 missing fsyncs below. The simulations cover all points."""
    life = Life(memory_path / "disk", FsyncMode.ALWAYS).live(scenario)
    assert check_disks(life, memory_path / "left", mixes=1, step=SAMPLE_STEP) > 50


@pytest.mark.simulation
@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_guarantees_survive_power_loss_at_any_point(memory_path: Path, fsync: FsyncMode) -> None:
    life = Life(memory_path / "disk", fsync).live(whole_life)
    assert check_disks(life, memory_path / "left", mixes=RANDOM_DISKS, step=every(3)) > 500


@pytest.mark.simulation
@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_concurrent_producers_survive_power_loss_at_any_point(memory_path: Path, fsync: FsyncMode) -> None:
    life = Life(memory_path / "disk", fsync).live(crowded_life)
    assert len(life.log(RETAINED).closed) > 8
    assert check_disks(life, memory_path / "left", mixes=RANDOM_DISKS, step=every(2)) > 300


@pytest.mark.simulation
@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_compacted_topic_survives_power_loss_at_any_point(memory_path: Path, fsync: FsyncMode) -> None:
    life = Life(memory_path / "disk", fsync).live(compacted_life)
    assert life.node.cleaner.clean_to[TABLE] > 25
    assert check_disks(life, memory_path / "left", mixes=1, step=3) > 200
