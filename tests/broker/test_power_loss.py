"""Power is lost at every moment of a broker's life, and no more is left than was forced to disk.

All that brokers do to their files is recorded, write by write. For every prefix of that the data folder is built as it
may be after a loss of power, and another broker starts on it: without a word, and with all that was promised.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker_history import Life, Lost, check
from broker_power_loss import Inline
from headrace.broker import node as node_module
from headrace.broker.config import FsyncMode
from headrace.broker.log import files
from power_loss import Forced

SEED = 20260101
KEPT, AGED, DOOMED = ("kept", 0), ("aged", 0), ("doomed", 0)


async def whole_life(life: Life) -> None:
    life.start()
    life.create("kept", 2)
    life.create("aged", 1, retention_ms="100000")
    producer_id = life.take_producer_id()
    for number in range(7):
        await life.send_idempotent(KEPT, number, producer_id)
        await life.send(AGED, 2)
    await life.commit(1)
    life.create("doomed", 1)
    for _ in range(3):
        await life.send(DOOMED, 2)
    await life.keep_house()
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
    await life.node.groups._compact()
    await life.stop()

    life.start()
    await life.send(KEPT, 2)
    life.delete_records(("kept", 1), 2)
    life.clock_ms += 200_000
    life.node.now_ms = lambda: life.clock_ms
    await life.keep_house(AGED)
    await life.send(AGED)
    for _ in range(6):
        await life.send(KEPT, 2, acknowledged=False)
    await life.acknowledge(KEPT)
    await life.keep_house(AGED)
    await life.stop()

    life.start()
    for _ in range(8):
        await life.send(AGED, acknowledged=False)
        await life.send(KEPT, acknowledged=False)
    await life.stop()


def looked_at(life: Life, folder: Path, *, mixes: int, step: int = 1) -> int:
    """
    Returns:
        How many disks were looked at.

    Raises:
        Lost: one does not hold what it should.
    """
    count = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "ThreadPoolExecutor", Inline)
        # Of the brokers that look: their disk is not lost.
        patch.setattr(files.os, "fsync", lambda fd: None)
        patch.setattr(files.os, "fdatasync", lambda fd: None)
        for name, image, promises in life.disks(SEED, mixes, step):
            folder.mkdir(parents=True)
            image.write(folder)
            try:
                check(folder, promises, life.fsync, was_killed=name.endswith("killed"))
            except Lost as lost:
                raise Lost(f"{name}: {lost}") from lost
            shutil.rmtree(folder)
            count += 1
    return count


SPARES_TIME = (".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint")
"""What is not on the disk of these is made anew from the batches: forcing them spares the next start that time."""


@pytest.mark.fault
def test_no_call_that_forces_something_to_disk_may_be_left_out(memory_path: Path) -> None:
    """Each one in turn does nothing; then some promise is broken at some moment."""
    life = Life(memory_path / "disk", FsyncMode.ALWAYS).live(whole_life)
    sites = {operation.site for operation in life.tape.operations if isinstance(operation, Forced)}
    needless = []
    for site in sorted(site for site in sites if not site.endswith(SPARES_TIME)):
        shutil.rmtree(memory_path)
        memory_path.mkdir()
        try:
            looked_at(
                Life(memory_path / "disk", FsyncMode.ALWAYS, without=site).live(whole_life),
                memory_path / "left",
                mixes=1,
            )
            needless.append(site)
        except Lost:
            continue
    assert len(sites) > 12
    assert needless == []


@pytest.mark.parametrize("fsync", [FsyncMode.ALWAYS, FsyncMode.INTERVAL])
def test_what_was_promised_outlives_the_power_at_any_moment(memory_path: Path, fsync: FsyncMode) -> None:
    life = Life(memory_path / "disk", fsync).live(whole_life)
    assert looked_at(life, memory_path / "left", mixes=2) > 500
