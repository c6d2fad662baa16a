"""Power fails again while a start repairs the logs, or soon afterwards.

Like `test_power_loss`, with files that are corrupted between two lives, as by a torn write or a bad disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.config import FsyncMode
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.repair import CORRUPT
from headrace.broker.log.scan import walk_batches
from headrace.broker.log.segment import LOG, SNAPSHOT, base_offsets, segment_path
from headrace.kafka_wire.record_batch import read_batch_header
from support.broker.broker_samples import NOW_MS, contents
from support.simulation.broker_history import (
    Key,
    Life,
    Lost,
    Promises,
    abandon,
    look_at,
    loses_data,
    opened,
)
from support.simulation.extent import IS_FULL
from support.simulation.power_loss import Forced

SEED = 20260101
RANDOM_DISKS = 4 if IS_FULL else 2  # random disks per point, besides the extremes
SAMPLE_STEP = 15
RETAINED, SHORT, EMPTY = ("kept", 0), ("kept", 1), ("kept", 2)
CRC_AT, MAGIC_AT = 17, 16


@dataclass
class HarmedPromises(Promises):
    """`preserved` are bytes of batches that must be in a log or in a `.corrupt` file; `is_intact`: a start needs no
    permission to repair."""

    preserved: list[bytes] = field(default_factory=list)
    is_intact: bool = True


class HarmedLife(Life):
    def __init__(self, root: Path, without: str = "") -> None:
        super().__init__(root, FsyncMode.INTERVAL, without)
        self.harmed = self.promises = HarmedPromises()

    def directory(self, key: Key) -> Path:
        return self.root / f"{key[0]}-{key[1]}"

    def segments(self, key: Key) -> list[tuple[Path, list[bytes]]]:
        """Returns the file and the batches of each segment."""
        found = []
        for base in base_offsets(self.directory(key)):
            path = segment_path(self.directory(key), base, LOG)
            raw = path.read_bytes()
            found.append((path, [raw[at : at + header.size] for at, header in walk_batches(memoryview(raw))]))
        return found

    def harm(self, path: Path, content: bytes) -> None:
        """Corrupts a file; it and the whole directory count as fsynced."""
        before = len(self.tape.operations)
        path.write_bytes(content)
        del self.tape.operations[before:], self.tape.notes[before:]  # intermediate states are not checked
        for each in path.parent.iterdir():
            node = self.tape._node(str(each.relative_to(self.root)))
            self.tape._note(Forced(node, each.read_bytes(), ""))
        self.tape._note(Forced(self.tape._node(path.parent.name), None, ""))

    def lose(self, key: Key, *batches: bytes) -> None:
        """Removes these batches from the guarantees."""
        for header in map(read_batch_header, batches):
            for offset in range(header.base_offset, header.last_offset + 1):
                self.promises.stored[key].pop(offset, None)
                self.promises.records[key].pop(offset, None)


async def truncated_life(life: HarmedLife, *, has_snapshots: bool = False) -> None:
    """Data that was never fsynced is corrupted: the log is truncated there, and the removed bytes are saved."""
    life.start()
    life.create("kept", 1)
    producer_id = await life.take_producer_id()
    for number in range(4):
        await life.send_idempotent(RETAINED, number, producer_id)
    await life.run_housekeeping()
    life.kill()
    life.start()
    for number in range(4, 26):
        await life.send(RETAINED, acknowledged=False, producer_id=producer_id, epoch=0, sequence=number)
    life.kill()
    segments = life.segments(RETAINED)
    path, batches = segments[-3]
    harmed = bytearray(batches[1])
    harmed[CRC_AT] ^= 1
    lost = [*batches[1:], *(each for _, later in segments[-2:] for each in later)]
    cut_at = read_batch_header(batches[1]).base_offset
    life.lose(RETAINED, *lost)
    if not has_snapshots:
        for snapshot in life.directory(RETAINED).glob(f"*{SNAPSHOT}"):
            snapshot.unlink()
    life.harm(path, b"".join([batches[0], harmed, *batches[2:]]))
    life.harmed.preserved = [each[CRC_AT + 4 :] for each in lost]
    life.start()
    # The truncated batches must not reappear from here on.
    life.promises.sent[RETAINED] = {at: value for at, value in life.promises.sent[RETAINED].items() if at < cut_at}
    # New batches at the same positions: one of the same length, and others up to where the next segment began.
    await life.send(RETAINED, acknowledged=False)
    following = read_batch_header(segments[-2][1][0]).base_offset
    await life.send(RETAINED, following - cut_at - 1, acknowledged=False)
    for number in range(cut_at, cut_at + 8):
        await life.send_idempotent(RETAINED, number, producer_id)
    await life.run_housekeeping()
    life.kill()
    life.start()
    await life.send(RETAINED)
    await life.stop()


async def truncated_life_with_snapshots(life: HarmedLife) -> None:
    """The same with fsynced producer snapshots that cover the truncated batches."""
    await truncated_life(life, has_snapshots=True)


async def repaired_life(life: HarmedLife) -> None:
    """Fsynced data is corrupted and repaired: a batch, the end of a segment, the end of a log, a whole log."""
    life.start()
    life.create("kept", 3)
    for key, count in ((RETAINED, 14), (SHORT, 8), (EMPTY, 2)):
        for _ in range(count):
            await life.send(key)
    await life.run_housekeeping()
    life.kill()
    life.harmed.is_intact = False
    (ending_early, early), *_, (active, batches) = life.segments(RETAINED)
    harmed = bytearray(batches[1])
    harmed[MAGIC_AT] = 9
    life.lose(RETAINED, early[-1], batches[1])
    life.harm(ending_early, b"".join(early[:-1]))
    life.harm(active, b"".join([batches[0], harmed, *batches[2:]]))
    life.harmed.preserved = [batches[1][CRC_AT:]]
    *_, (last, batches) = life.segments(SHORT)
    life.lose(SHORT, batches[-1])
    life.harm(last, b"".join(batches[:-1]))
    [(only, batches)] = life.segments(EMPTY)
    life.lose(EMPTY, *batches)
    life.harm(only, b"")
    life.repairs_corruption = True
    life.start()
    life.harmed.is_intact = True
    for key in (RETAINED, SHORT, EMPTY):
        await life.send(key)
    life.kill()
    life.repairs_corruption = False
    life.start()
    await life.send(RETAINED, 2)
    await life.stop()


def check(root: Path, promises: HarmedPromises, fsync: FsyncMode, *, was_killed: bool) -> None:
    """Starts a broker on the remaining disk.

    Raises:
        Lost: guaranteed data is missing.
    """
    _check_preserved(root, promises)
    try:
        node = opened(root, fsync, NOW_MS + 1000, repairs_corruption=not promises.is_intact)
    except Exception as error:
        raise Lost(f"the start fails: {error!r}") from error
    try:
        for key, records in (promises.stored if was_killed else promises.records).items():
            _check_log(node.log(*key), key, records, promises)
    finally:
        abandon(node)
    _check_preserved(root, promises)


def _check_preserved(root: Path, promises: HarmedPromises) -> None:
    files = [path for path in root.glob("kept-*/*") if path.name.endswith((LOG, CORRUPT))]
    corrupt_content = b" ".join(path.read_bytes() for path in files)
    if any(each not in corrupt_content for each in promises.preserved):
        raise Lost(f"no `.corrupt` file has the bytes removed from a log: {sorted(path.name for path in files)}")


def _check_log(log: PartitionLog, key: Key, records: dict[int, bytes], promises: HarmedPromises) -> None:
    found = dict(contents(log))
    if log.log_end_offset < promises.ends.get(key, 0):
        raise Lost(f"{key} ends at {log.log_end_offset}, so offsets are assigned again")
    if missing := {at: value for at, value in records.items() if found.get(at) != value}:
        raise Lost(f"{key} lost {missing}")
    if strange := {at: value for at, value in found.items() if promises.sent[key].get(at) != value}:
        raise Lost(f"{key} has {strange}")
    headers = [located.header for located, _ in log.batches(log.log_start_offset)]
    for header in headers:
        response = log.epoch_end(header.leader_epoch)
        if response is None or response[0] != header.leader_epoch or response[1] <= header.last_offset:
            raise Lost(f"{key} lost epoch {header.leader_epoch}: {response}")
    stored = {(header.producer_id, header.base_offset, header.base_sequence) for header in headers}
    for producer_id, producer in log.producers:
        for each in producer.batches:
            if (producer_id, each.base_offset, each.first_sequence) not in stored:
                raise Lost(f"{key} reports {each} of producer {producer_id} as stored, but it is not")


def check_disks(life: HarmedLife, directory: Path, *, mixes: int, step: int = 1, first: int = 0) -> int:
    """Checks the disks of a life.

    Returns:
        The number of checked disks.

    Raises:
        Lost: a disk lacks guaranteed data.
    """
    shutil.rmtree(directory, ignore_errors=True)  # left by a failed check
    return look_at(life.disks(SEED, mixes, step, first=first, renames_whole=True), directory, life.fsync, check)


Scenario = Callable[[HarmedLife], Coroutine[Any, Any, None]]


def test_truncated_log_survives_a_second_power_loss_at_some_points(memory_path: Path) -> None:
    """A small sample; the simulations below cover all points."""
    life = HarmedLife(memory_path / "disk").live(truncated_life)
    assert check_disks(life, memory_path / "left", mixes=1, step=SAMPLE_STEP) > 50


@pytest.mark.simulation
@pytest.mark.parametrize("scenario", [truncated_life, truncated_life_with_snapshots, repaired_life])
def test_repaired_log_survives_a_second_power_loss(memory_path: Path, scenario: Scenario) -> None:
    life = HarmedLife(memory_path / "disk").live(scenario)
    assert check_disks(life, memory_path / "left", mixes=RANDOM_DISKS) > 100


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("scenario", "parts"),
    [
        (truncated_life, ("repair._copy", "repair.truncate_log")),
        (truncated_life_with_snapshots, ("recovery._producer_states",)),
        (repaired_life, ("repair.pad_segment", "repair.repair_segment", "recovery.check_end")),
    ],
)
def test_every_fsync_of_a_repair_is_necessary(memory_path: Path, scenario: Scenario, parts: tuple[str, ...]) -> None:
    """Each fsync is removed in turn; then a check must fail."""
    life = HarmedLife(memory_path / "disk").live(scenario)
    found = {operation.site for operation in life.tape.operations if isinstance(operation, Forced)}
    sites = sorted(site for site in found if site.startswith(parts))
    assert {site.split()[0] for site in sites} == set(parts)
    needless = []
    for site in sites:
        shutil.rmtree(memory_path)
        memory_path.mkdir()
        careless = HarmedLife(memory_path / "disk", without=site).live(scenario)
        if not loses_data(careless, partial(check_disks, directory=memory_path / "left")):
            needless.append(site)
    assert needless == []
