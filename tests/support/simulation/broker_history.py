"""The life of a broker for power-loss tests: its operations on the disk, the acknowledgements that its clients got at
each moment, and a check that a disk has everything acknowledged."""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import random
import shutil
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import node as node_module
from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator import coordinator
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.log import files
from headrace.broker.log.decoding import decode_records
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.node import BrokerNode
from headrace.kafka_wire.errors import CorruptBatch
from support.broker.broker_samples import NOW_MS, append, batch, contents, keyed_batch
from support.simulation.broker_power_loss import Disk, Inline, Killed, Tape, images, no_names, renames
from support.simulation.power_loss import Image

Key = tuple[str, int]


class Lost(AssertionError):
    """Acknowledged data is missing on a disk."""


@dataclass
class Promises:
    """What a broker has acknowledged to clients until a moment, and what it may have stored beyond that.

    Attributes:
        records: by partition: the records that must be on disk.
        stored: the records in the log, on disk or not.
        sent: the records that may be stored.
        starts_least, starts_most: bounds of the log start offset.
        deleted_topics: deleted topics.
        committed_least, committed_most: the largest group offset that was acknowledged, and that was requested.
    """

    records: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    stored: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    sent: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    starts_least: dict[Key, int] = field(default_factory=dict)
    starts_most: dict[Key, int] = field(default_factory=dict)
    ends: dict[Key, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    deleted_topics: set[str] = field(default_factory=set)
    committed_least: int = -1
    committed_most: int = -1
    producer_ids: set[int] = field(default_factory=set)
    epoch: int = -1
    tables: dict[Key, dict[bytes, int]] = field(default_factory=dict)
    """By compacted partition and key: the offset of the newest record that is on disk. `tables_stored` has the same for
    the log."""
    tables_stored: dict[Key, dict[bytes, int]] = field(default_factory=dict)
    tables_sent: dict[Key, dict[int, tuple[bytes, bytes | None]]] = field(default_factory=dict)
    sequences: list[tuple[int, int]] = field(default_factory=list)
    """(sequence, offset) of the last acknowledged batches of the idempotent producer."""


class Life:
    """Runs brokers on one disk, one after another, and records every operation on the disk and every acknowledgement.

    Args:
        without: the fsync to omit, see `Recorder`; "" for none.
    """

    def __init__(self, root: Path, fsync: FsyncMode, without: str = "") -> None:
        self.root, self.fsync = root, fsync
        self.promises = Promises()
        self.clock_ms = NOW_MS
        self.tape = Tape(root, without=without, note=lambda: copy.deepcopy(self.promises))
        self.repairs_corruption = False
        self._number = 0
        self.node: BrokerNode

    def live(self, work: Callable[[Life], Coroutine[Any, Any, None]]) -> Life:
        self.root.mkdir(parents=True)
        with self.tape.recording(), pytest.MonkeyPatch.context() as patch:
            make_small(patch)
            asyncio.run(work(self))
        return self

    # Operations of tests

    def start(self) -> None:
        self.clock_ms += 5000
        self.node = opened(self.root, self.fsync, self.clock_ms, repairs_corruption=self.repairs_corruption)
        self.promises.epoch = self.node.topics.leader_epoch
        if self.fsync is FsyncMode.ALWAYS:
            # Consumers only see fsynced records, acknowledged or not.
            for key in [key for key in self.promises.stored if key[0] in self.promises.topics]:
                assert self.log(key).high_watermark == self.log(key).log_end_offset
                self._acknowledge(key)

    def kill(self) -> None:
        abandon(self.node)

    async def stop(self) -> None:
        await self.node.close()
        for key in self.promises.stored:
            self._acknowledge(key)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        self.promises.deleted_topics.discard(name)
        self.node.changes.create_topic(
            name, partitions, {key.replace("_", "."): value for key, value in configs.items()}
        )
        self.promises.topics.add(name)

    async def delete(self, name: str) -> None:
        self.promises.topics.discard(name)
        for table in (self.promises.records, self.promises.stored, self.promises.sent, self.promises.ends):
            for key in [key for key in table if key[0] == name]:
                del table[key]
        await self.node.changes.delete_topic(self.node.topic(name))
        self.promises.deleted_topics.add(name)

    def log(self, key: Key) -> PartitionLog:
        return self.node.log(*key)

    async def send(self, key: Key, count: int = 1, *, acknowledged: bool = True, **fields: int) -> int:
        """Appends a batch of numbered messages to a partition and returns its offset.

        Args:
            acknowledged: whether to wait until the broker would acknowledge the batch.
            fields: arguments of `broker_samples.batch`.
        """
        log, values = self.log(key), []
        for _ in range(count):
            self._number += 1
            values.append(b"value %d" % self._number)
        located = {log.log_end_offset + delta: value for delta, value in enumerate(values)}
        self.promises.sent.setdefault(key, {}).update(located)
        offset = append(log, batch(*values, timestamp_ms=self.clock_ms, **fields), self.clock_ms)
        self.promises.stored.setdefault(key, {}).update(located)
        self.node.flusher.mark_dirty(log)
        if acknowledged:
            await self.acknowledge(key)
        return offset

    async def set(self, place: Key, acknowledged: bool = True, **values: str | None) -> None:
        """Appends a batch of keys and values to a compacted partition; None deletes a key."""
        log = self.log(place)
        entries = [(key.encode(), value.encode() if value is not None else None) for key, value in values.items()]
        located = {log.log_end_offset + delta: entry for delta, entry in enumerate(entries)}
        self.promises.tables_sent.setdefault(place, {}).update(located)
        append(log, keyed_batch(*entries, timestamp_ms=self.clock_ms), self.clock_ms)
        self.promises.tables_stored.setdefault(place, {}).update({key: at for at, (key, _) in located.items()})
        self.node.flusher.mark_dirty(log)
        if acknowledged:
            if self.fsync is FsyncMode.ALWAYS:
                await self.node.flusher.flush(log)
            else:
                await self.node.flusher.flush_dirty()
            self.promises.tables[place] = dict(self.promises.tables_stored[place])

    async def clean(self) -> None:
        """Runs the log cleaner. If the broker is killed meanwhile, as the recorder may request, starts the next one."""
        try:
            await self.node.maintenance.clean()
        except Killed:
            self.tape.revive()
            self.kill()
            self.start()

    async def acknowledge(self, key: Key) -> None:
        # Records appended during an fsync are not acknowledged with it.
        stored = dict(self.promises.stored[key])
        if self.fsync is FsyncMode.ALWAYS:
            await self.node.flusher.flush(self.log(key))
        else:
            await self.node.flusher.flush_dirty()
        self._acknowledge(key, stored)

    def _acknowledge(self, key: Key, stored: Mapping[int, bytes] | None = None) -> None:
        known = self.promises.stored[key] if stored is None else stored
        self.promises.records[key] = {**self.promises.records.get(key, {}), **known}
        self.promises.ends[key] = max(self.promises.records[key]) + 1

    async def send_idempotent(self, key: Key, sequence: int, producer_id: int) -> None:
        offset = await self.send(key, producer_id=producer_id, epoch=0, sequence=sequence)
        # One of the five batches in flight may have been stored without an acknowledgement.
        self.promises.sequences = [*self.promises.sequences[-3:], (sequence, offset)]

    async def commit(self, offset: int) -> None:
        self.promises.committed_most = offset
        await self.node.groups.commits.store("group", {("kept", 0): CommittedOffset(offset, 0, "", self.clock_ms)})
        self.promises.committed_least = offset

    async def take_producer_id(self) -> int:
        producer_id = await self.node.producer_ids.allocate()
        self.promises.producer_ids.add(producer_id)
        return producer_id

    def delete_records(self, key: Key, offset: int) -> None:
        self.promises.starts_most[key] = offset
        self.log(key).advance_log_start(offset)
        self.node.checkpoints.write_log_starts()
        self.promises.starts_least[key] = offset

    async def run_housekeeping(self, expiring: Key | None = None) -> None:
        """Runs housekeeping, which deletes old segments.

        Args:
            expiring: a partition whose records are all older than the retention time; the last segment remains.
        """
        if expiring is not None:
            log = self.log(expiring)
            self.promises.starts_most[expiring] = log.log_end_offset
        await self.node.maintenance.run_housekeeping()

    # Results

    def promised_after(self, count: int) -> Promises:
        """Returns the acknowledgements at the time after the first `count` operations."""
        notes = self.tape.notes
        found = notes[count] if count < len(notes) else self.promises
        assert isinstance(found, Promises)
        return found

    def disks(
        self, seed: int, mixes: int, step: int = 1, *, first: int = 0, renames_whole: bool = False
    ) -> Iterator[tuple[str, Image, Promises]]:
        """Yields the disks that a power loss may leave, each with a name and the acknowledgements at that time.

        Args:
            seed: seed of the mixes.
            mixes: number of random mixes of durable and lost changes, for each moment.
            step: interval of operations after which power is lost, from the operation `first` on.
            renames_whole: whether a renamed file always has its old or its new name, as all file systems guarantee. The
                disks then include one with all content but without the changes of names.
        """
        disk, chance, seen = Disk(), random.Random(seed), set()
        whole = renames(self.tape.operations) if renames_whole else {}
        for count, operation in enumerate([None, *self.tape.operations]):
            if operation is not None:
                disk.after(operation)
            if count < first or (count - first) % step:
                continue
            left = [*images(disk, self.tape.top, chance, mixes, whole)]
            if renames_whole:
                left.append(("content without names", disk.left(self.tape.top, no_names, list)))
            for name, image in left:
                if (key := (image.key, name == "killed")) not in seen:
                    seen.add(key)
                    yield f"after {count}, {name}", image, self.promised_after(count)


def make_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_module, "ThreadPoolExecutor", Inline)
    patch.setattr(coordinator, "COMPACT_BYTES", 600)


def opened(root: Path, fsync: FsyncMode, now_ms: int, *, repairs_corruption: bool = False) -> BrokerNode:
    config = BrokerConfig(root, fsync=fsync, segment_bytes_max=400, repairs_corrupt_logs=repairs_corruption)
    return BrokerNode(config, now_ms=lambda: now_ms)


def abandon(node: BrokerNode) -> None:
    """Closes the files of a broker that was killed in the simulation, without the work of an orderly stop."""
    node._files.close()
    os.close(node._lock_fd)


def check(root: Path, promises: Promises, fsync: FsyncMode, *, was_killed: bool) -> None:
    """Starts a broker on a disk that a power loss has left, and checks its data.

    Args:
        promises: the acknowledgements at the time of the power loss.
        was_killed: whether only the process was killed, so that everything written is on the disk.

    Raises:
        Lost: acknowledged data is missing, or the broker does not start.
    """
    try:
        node = opened(root, fsync, NOW_MS + 1000)
    except Exception as error:
        raise Lost(f"it does not start: {error!r}") from error
    try:
        _check_node(node, promises, was_killed)
    except CorruptBatch as error:
        raise Lost(f"a record cannot be read: {error}") from error
    finally:
        abandon(node)


def _check_node(node: BrokerNode, promises: Promises, was_killed: bool) -> None:
    names = {topic.name for topic in node.topics}
    _expect(promises.topics <= names, f"topics {promises.topics - names} are missing")
    _expect(not promises.deleted_topics & names, f"topics {promises.deleted_topics & names} are back")
    _expect(node.topics.leader_epoch > promises.epoch or promises.epoch < 0, "a leader epoch is used again")
    _expect(_loop().run(node.producer_ids.allocate()) not in promises.producer_ids, "a producer id is given out again")
    # By default a message is acknowledged when it is in the log; a kill does not remove it.
    for key, records in (promises.stored if was_killed else promises.records).items():
        if key[0] in promises.topics:
            _check_log(node.log(*key), key, records, promises)
    for key, table in (promises.tables_stored if was_killed else promises.tables).items():
        _check_table(node.log(*key), table, promises.tables_sent[key])
    committed = node.groups.offsets.of_group("group").get(("kept", 0))
    offset = committed.offset if committed is not None else -1
    _expect(promises.committed_least <= offset <= promises.committed_most, f"offset {offset} is committed")


def _check_log(log: PartitionLog, key: Key, records: dict[int, bytes], promises: Promises) -> None:
    start = log.log_start_offset
    least, most = promises.starts_least.get(key, 0), promises.starts_most.get(key, 0)
    _expect(least <= start <= most, f"{key} begins at {start}, not in [{least}, {most}]")
    _expect(log.log_end_offset >= promises.ends.get(key, 0), f"{key} ends at {log.log_end_offset}")
    found = contents(log)
    if [at for at, _ in found] != list(range(start, log.log_end_offset)):
        raise Lost(f"{key} has holes: {found}")
    stored, sent = dict(found), promises.sent.get(key, {})
    for at, value in records.items():
        if at >= start and stored.get(at) != value:
            raise Lost(f"{key} lost {at}: {value!r}")
    for at, value in found:
        if sent.get(at) != value:
            raise Lost(f"{key} has {value!r} at {at}")
    ends = {located.header.leader_epoch: located.header.last_offset for located, _ in log.batches(start)}
    for epoch, last in ends.items():
        epoch_end = log.epoch_end(epoch)
        _expect(
            epoch_end is not None and epoch_end[0] == epoch and epoch_end[1] > last,
            f"{key} lost epoch {epoch}: {epoch_end}",
        )
    for sequence, offset in promises.sequences if key == ("kept", 0) else ():
        repeated_at = append(log, batch(b"again", producer_id=0, epoch=0, sequence=sequence))
        _expect(repeated_at == offset, f"{key}: a repetition is stored at {repeated_at}, not {offset}")


def _check_table(log: PartitionLog, table: dict[bytes, int], sent: dict[int, tuple[bytes, bytes | None]]) -> None:
    found = [(offset, key, value) for _, raw in log.batches(0) for offset, _, key, value, _ in decode_records(raw)]
    offsets = [offset for offset, _, _ in found]
    if offsets != sorted(set(offsets)):
        raise Lost(f"records are doubled: {offsets}")
    if any(sent.get(offset) != (key, value) for offset, key, value in found):
        raise Lost(f"{found} is not what was sent")
    _expect(log.log_end_offset > max(table.values(), default=-1), f"the table ends at {log.log_end_offset}")
    newest = {key: offset for offset, key, _ in found}
    for name, at in table.items():
        if name not in newest:
            _expect(sent[at][1] is None, f"{name!r} of offset {at} is lost")
        else:
            _expect(newest[name] >= at, f"{name!r} is what it was at {newest[name]}, and not at {at}")
    log_end = log.log_end_offset
    _expect(append(log, keyed_batch((b"next", b"v"))) == log_end, "nothing can be appended")


@functools.cache
def _loop() -> asyncio.Runner:
    """Returns an event loop that all checked brokers share. Creating one for each would take a tenth of the time."""
    return asyncio.Runner()


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise Lost(message)


COARSE_STEP = 12


def loses_data(life: Life, looked_at: Callable[..., object]) -> bool:
    """Returns whether acknowledged data is missing on a disk that a power loss may leave, after a life without one of
    its fsyncs. This shows that the fsync is needed.

    Disks before the first omitted fsync are those of a complete life, so later ones are checked. A loss is mostly
    visible until the next fsync of the same file or directory; therefore a few moments, and all moments after the last
    omitted fsync, are checked first. Before the result is False, all moments are checked.

    Args:
        looked_at: checks disks and raises `Lost`; called with the arguments `mixes`, `first` and `step` of
        `Life.disks`.
    """
    assert life.tape.left_out, "this force is not part of the life"
    since, newest = life.tape.left_out[0], life.tape.left_out[-1]
    try:
        looked_at(life, mixes=1, first=since, step=COARSE_STEP)
        looked_at(life, mixes=1, first=newest, step=1)
        looked_at(life, mixes=4, first=since, step=1)
    except Lost:
        return True
    return False


def look_at(
    disks: Iterable[tuple[str, Image, Any]], directory: Path, fsync: FsyncMode, check_one: Callable[..., None]
) -> int:
    """Starts a broker on each of the disks that a power loss may have left, and checks its data.

    Args:
        disks: as of `Life.disks`.
        directory: the directory in which the disks are restored, one after another.
        check_one: checks a disk, with the arguments of `check`.

    Returns:
        The number of disks checked.

    Raises:
        Lost: acknowledged data is missing.
    """
    count = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "ThreadPoolExecutor", Inline)
        # For the checking brokers, whose disk is not lost.
        patch.setattr(files.os, "fsync", lambda fd: None)
        patch.setattr(files.os, "fdatasync", lambda fd: None)
        for name, image, promises in disks:
            directory.mkdir(parents=True)
            image.write(directory)
            try:
                check_one(directory, promises, fsync, was_killed=name.endswith("killed"))
            except Lost as lost:
                raise Lost(f"{name}: {lost}") from lost
            shutil.rmtree(directory)
            count += 1
    return count
