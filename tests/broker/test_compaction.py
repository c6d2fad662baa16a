"""Compaction: the newest record of each key stays at its offset."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker import cleaner as cleaner_module
from headrace.broker.cleaner import Cleaner
from headrace.broker.config import BrokerConfig
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers import produce
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log import compaction
from headrace.broker.log.checkpoints import CLEAN_TO, RECOVERY_POINTS, read_checkpoint, write_checkpoint
from headrace.broker.log.compaction import CleaningRules, CompactionCancelled, DutyCycle
from headrace.broker.log.decoding import decode_records
from headrace.broker.log.index import TimeEntry
from headrace.broker.log.partition_log import LogLimits, PartitionLog
from headrace.broker.log.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX, base_offsets, segment_path
from headrace.broker.log.transactions import TransactionOutcomes
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.broker.topic_config import check_config
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import DELETE_HORIZON, decode_batch, read_batch_header, rebuild_batch
from support.broker.broker_samples import (
    NOW_MS,
    append,
    batch,
    contents,
    find_timestamp,
    keyed_batch,
    open_sample_log,
    replace_segments,
    with_attributes,
)
from support.examples import examples
from support.logs import logged

SMALL = LogLimits(segment_bytes_max=400)
DAY_MS = 86_400_000
LogContents = list[tuple[int, bytes | None, bytes | None]]


def unthrottled() -> DutyCycle:
    """A duty cycle without pauses."""
    return DutyCycle(pause=lambda rest_s: None)


def contents_of(log: PartitionLog) -> LogContents:
    """Returns offset, key and value of every record of a log."""
    return [
        (offset, key, value)
        for _, raw in log.batches(log.log_start_offset)
        for offset, _, key, value, _ in decode_records(raw)
    ]


def clean(log: PartitionLog, start: int = 0, now_ms: int = NOW_MS, limits: LogLimits = SMALL) -> int:
    """Compacts all closed segments; returns the end offset of the clean part."""
    segments = [segment for segment in log.closed if segment.next_offset <= log.last_stable_offset]
    if not segments:
        return start
    outcomes = TransactionOutcomes(log.aborted(segments[0].base_offset, segments[-1].next_offset))
    found = compaction.build_offset_map(segments, start, outcomes, unthrottled())
    rules = CleaningRules(now_ms + DAY_MS, now_ms, log.producers.last_offsets())
    for group in compaction.group_segments(segments, limits.segment_bytes_max):
        facts = compaction.write_cleaned_segment(group, found, rules, outcomes, unthrottled())
        if facts is not None:
            replace_segments(log, group, facts)
    return found.end


def filled(directory: Path, count: int, keys: int = 5, codec: int = 0) -> PartitionLog:
    log = open_sample_log(directory, limits=SMALL).log
    for number in range(count):
        append(log, keyed_batch((b"k%d" % (number % keys), b"value %d" % number), codec=codec))
    return log


def test_newest_record_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    active = log.active.base_offset
    clean(log)
    below = [record for record in contents_of(log) if record[0] < active]
    assert below == [(at, b"k%d" % (at % 5), b"value %d" % at) for at in range(active - 5, active)]
    assert [record[0] for record in contents_of(log) if record[0] >= active] == list(range(active, 40))
    assert log.log_end_offset == 40 and log.log_start_offset == 0
    assert log.size < 1500


def test_epoch_ends_survive_compaction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for leader_epoch in (5, 7, 8, 9):
        log = open_sample_log(tmp_path, limits=SMALL, leader_epoch=leader_epoch).log
        for _ in range(3 if leader_epoch == 8 else 12):
            append(log, keyed_batch((b"key", b"value")))
        log.close()
    log = open_sample_log(tmp_path, limits=SMALL, leader_epoch=12, is_clean=True).log
    before = {epoch: log.epoch_end(epoch) for epoch in range(4, 13)}
    assert before[6] == (5, 12) and before[7] == (7, 24) and before[8] == (8, 27)
    clean(log)
    assert {located.header.last_offset for located, _ in log.batches(0)}.isdisjoint([11, 12, 23, 26, 27])
    assert {epoch: log.epoch_end(epoch) for epoch in range(4, 13)} == before
    assert not caplog.records


def test_small_segments_are_merged_and_their_files_deleted(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    before = len(log.closed)
    # Segments are grouped by size before compaction, as in Kafka, so only the second pass finds them small.
    clean(log, clean(log))
    assert before > 10 and len(log.closed) <= 4
    for suffix in (LOG, INDEX, TIME_INDEX):
        bases = [segment.base_offset for segment in log.closed]
        assert [base for base in base_offsets(tmp_path, suffix) if base < log.active.base_offset] == bases
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".cleaned", ".swap"))]


def test_compacted_segment_is_not_read_with_its_old_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing the new indexes may fail on a full disk, and the old ones point to positions that no longer exist."""
    log = open_sample_log(tmp_path).log
    for number in range(40):
        append(log, keyed_batch((b"k%d" % (number % 5), b"v" * 2000)))
    log.roll(NOW_MS)
    assert len(log.closed) == 1 and log.closed[0].path(INDEX).stat().st_size > 50

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.broker.log.partition_log.write_indexes", fails)
    clean(log)
    assert not log.closed[0].path(INDEX).exists() and not log.closed[0].path(TIME_INDEX).exists()
    assert [located.header.base_offset for located, _ in log.batches(37)] == [37, 38, 39]


def test_log_that_ends_with_a_compacted_segment_is_read_to_its_end(tmp_path: Path) -> None:
    """The last segment was closed by its age, and nothing has been appended since."""
    log = open_sample_log(tmp_path, limits=LogLimits(fsynced_reads_only=True)).log
    woken: list[int] = []
    log.waiters.add(woken.append)
    for number in range(20):
        append(log, keyed_batch((b"k%d" % (number % 5), os.urandom(20_000))))
    log.flushed(log.flush_job())
    size, woken[:] = log.size, []
    log.roll(NOW_MS)
    clean(log)
    assert log.size < size / 3
    for offset in (0, 17, 19):
        for records in (
            log.read(offset, size, min_one_batch=True),
            log.read_committed(offset, size, min_one_batch=True)[0],
        ):
            assert 20_000 < len(records) == len(bytes(records)) <= log.size
    append(log, batch(b"one more"))
    log.flushed(log.flush_job())
    assert woken == [log.active.size]
    # The same with an empty segment.
    log.roll(NOW_MS)
    log.drop_segments(len(log.closed))
    append(log, batch(b"another one"))
    log.flushed(log.flush_job())
    assert woken[1:] == [log.active.size] and contents(log) == [(21, b"another one")]


def test_segments_are_grouped_up_to_the_size_limits() -> None:
    from headrace.broker.log.segment import ClosedSegment

    def segments(*sizes: int, span: int = 10) -> list[ClosedSegment]:
        return [ClosedSegment(Path(), at * span, (at + 1) * span, size, None) for at, size in enumerate(sizes)]

    def sizes(*groups: tuple[ClosedSegment, ...]) -> list[list[int]]:
        return [[segment.size for segment in group] for group in groups]

    assert sizes(*compaction.group_segments(segments(50, 50, 1, 200, 10), 100)) == [[50, 50], [1], [200], [10]]
    wide = segments(1, 1, 1, span=compaction.OFFSET_SPAN_MAX // 2)
    assert sizes(*compaction.group_segments(wide, 100)) == [[1, 1], [1]]
    assert sizes(*compaction.group_segments([], 100)) == []


def test_tombstone_removes_its_key_and_expires(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    append(log, keyed_batch((b"gone", b"value"), (b"other", b"value")))
    append(log, keyed_batch((b"gone", None)))
    for number in range(8):
        append(log, keyed_batch((b"filler", b"value %d" % number)))
    end = clean(log)
    assert contents_of(log)[:2] == [(1, b"other", b"value"), (2, b"gone", None)]
    [stamped] = [located.header for located, _ in log.batches(0) if located.header.base_offset == 2]
    assert stamped.attributes & DELETE_HORIZON and stamped.base_timestamp == NOW_MS + DAY_MS
    # The record's timestamp is unchanged, and the deadline is not extended.
    assert next(iter(decode_records(next(raw for _, raw in log.batches(2)))))[1] == NOW_MS
    end = clean(log, end, NOW_MS + DAY_MS)
    assert (2, b"gone", None) in contents_of(log)
    clean(log, end, NOW_MS + DAY_MS + 1)
    assert b"gone" not in [key for _, key, _ in contents_of(log)]


def test_key_written_after_its_tombstone_stays(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    for value in (b"first", None, b"second"):
        append(log, keyed_batch((b"k", value)))
    for number in range(8):
        append(log, keyed_batch((b"filler", b"value %d" % number)))
    clean(log, now_ms=NOW_MS + 9 * DAY_MS)
    assert [record for record in contents_of(log) if record[1] == b"k"] == [(2, b"k", b"second")]


def test_records_without_a_key_are_removed(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    append(log, keyed_batch((None, b"lost"), (b"k", b"stays")))
    for number in range(8):
        append(log, keyed_batch((b"filler", b"value %d" % number)))
    clean(log)
    assert contents_of(log)[0] == (1, b"k", b"stays")


def test_unchanged_segment_is_not_rewritten(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    for number in range(3):
        append(log, keyed_batch((b"k%d" % number, b"v" * 250)))
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert clean(log) == log.active.base_offset
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before


def test_long_keys_are_distinguished(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    keys = [b"k" * 100, b"k" * 101, b"k" * 16, b"k" * 17]
    for round_ in range(3):
        for key in keys:
            append(log, keyed_batch((key, b"%d" % round_)))
    log.roll(NOW_MS)
    clean(log)
    assert [(key, value) for _, key, value in contents_of(log)] == [(key, b"2") for key in keys]


def test_keys_over_the_pass_limit_wait_for_the_next_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "KEYS_MAX", 3)
    log = filled(tmp_path, 60, keys=7)
    log.roll(NOW_MS)
    start, ends = 0, []
    while start < log.log_end_offset:
        start = clean(log, start)
        ends.append(start)
    assert len(ends) > 5 and ends == sorted(set(ends))
    assert contents_of(log) == [(at, b"k%d" % (at % 7), b"value %d" % at) for at in range(53, 60)]


@pytest.mark.parametrize("codec", range(5))
def test_compacted_batch_has_its_codec_and_is_read_by_an_independent_client(codec: int) -> None:
    from kafka.record import MemoryRecords

    raw = keyed_batch(*((b"key %d" % at, b"v" * 100) for at in range(1000)), codec=codec, producer_id=7, sequence=3)
    header = read_batch_header(raw)
    records = decode_batch(memoryview(raw), header, "", 1 << 30)
    rebuilt = rebuild_batch(header, [records[3], records[998]], delete_horizon_ms=NOW_MS + DAY_MS)
    changed = read_batch_header(rebuilt)
    assert changed.attributes == header.attributes | DELETE_HORIZON
    assert (changed.base_offset, changed.last_offset_delta, changed.producer_id, changed.base_sequence) == (
        0,
        999,
        7,
        3,
    )
    assert changed.max_timestamp == NOW_MS + 998 and changed.size == len(rebuilt)
    seen = list(MemoryRecords(rebuilt).next_batch())
    assert [(one.offset, one.key, one.value, one.timestamp, one.headers) for one in seen] == [
        (at, b"key %d" % at, b"v" * 100, NOW_MS + at, [("h", b"1")]) for at in (3, 998)
    ]
    assert MemoryRecords(rebuilt).next_batch().validate_crc()
    empty = rebuild_batch(header, ())
    assert list(MemoryRecords(empty).next_batch()) == [] and read_batch_header(empty).max_timestamp == NOW_MS + 999


def test_a_compacted_log_is_found_through_its_indexes_and_by_time(tmp_path: Path) -> None:
    limits = LogLimits(segment_bytes_max=60_000)
    log = open_sample_log(tmp_path, limits=limits).log
    for number in range(3000):
        key = b"hot" if number % 3 else b"k%d" % number
        append(log, keyed_batch((key, b"value %d" % number), timestamp_ms=NOW_MS + number))
    clean(log, limits=limits)
    expected = contents_of(log)
    for at in (0, 1, 299, 300, 301, 1500, 2999):
        raw = log.read(at, 1, min_one_batch=True)
        assert read_batch_header(raw).base_offset == min(offset for offset, _, _ in expected if offset >= at)
        found = find_timestamp(log, NOW_MS + at)
        assert found is not None and found.offset == min(offset for offset, _, _ in expected if offset >= at)
    log.close()
    reopened = open_sample_log(tmp_path, limits=limits, is_clean=True).log
    assert contents_of(reopened) == expected


def test_idempotent_producer_state_survives_compaction(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    for sequence in range(6):
        append(log, keyed_batch((b"k", b"%d" % sequence), producer_id=4, sequence=sequence))
    for number in range(20):
        append(log, keyed_batch((b"k", b"other %d" % number)))
    log.roll(NOW_MS)
    clean(log)
    assert len(contents_of(log)) == 1
    for base in base_offsets(tmp_path, SNAPSHOT):
        segment_path(tmp_path, base, SNAPSHOT).unlink()
    reopened = open_sample_log(tmp_path, limits=SMALL, recovery_point=log.log_end_offset).log
    for sequence in range(1, 6):
        assert append(reopened, keyed_batch((b"k", b"again"), producer_id=4, sequence=sequence)) == sequence
    assert append(reopened, keyed_batch((b"k", b"next"), producer_id=4, sequence=6)) == 26


@given(st.data())
@settings(max_examples=examples(0.25))
def test_any_history_keeps_the_newest_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log, start, now_ms = open_sample_log(directory, limits=SMALL).log, 0, NOW_MS
    written: dict[int, tuple[bytes, bytes | None]] = {}
    values = itertools.count()
    keys = st.sampled_from([b"a", b"b", b"c", b"d" * 40])
    for _ in range(data.draw(st.integers(5, 40))):
        match data.draw(st.sampled_from(["append"] * 6 + ["clean", "reopen", "later"])):
            case "append":
                names = data.draw(st.lists(keys, min_size=1, max_size=4))
                entries = [(key, None if data.draw(st.booleans()) else b"%d" % next(values)) for key in names]
                base = append(log, keyed_batch(*entries, codec=data.draw(st.integers(0, 4))))
                written.update({base + delta: entry for delta, entry in enumerate(entries)})
            case "clean":
                start = clean(log, start, now_ms)
            case "later":
                now_ms += DAY_MS // 2
            case "reopen":
                end = log.log_end_offset
                log = open_sample_log(directory, limits=SMALL, recovery_point=end).log
                assert log.log_end_offset == end
        found = contents_of(log)
        assert all(written[offset] == (key, value) for offset, key, value in found)
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        # A complete read finds the last value of each key.
        read = {key: value for _, key, value in found}
        state = {key: value for _, (key, value) in sorted(written.items())}
        assert {key: value for key, value in read.items() if value is not None} == {
            key: value for key, value in state.items() if value is not None
        }
        clean_keys = [key for offset, key, _ in found if offset < start]
        assert len(clean_keys) == len(set(clean_keys))


@pytest.mark.parametrize("done", ["cleaned", "swap", "one gone", "all gone", "in its place", "in its place and more"])
def test_start_completes_an_interrupted_swap(tmp_path: Path, done: str) -> None:
    log = filled(tmp_path, 40)
    log.roll(NOW_MS)
    before = contents_of(log)
    group = next(compaction.group_segments(log.closed, 1 << 30))
    found = compaction.build_offset_map(group, 0, TransactionOutcomes(), unthrottled())
    compaction.write_cleaned_segment(
        group, found, CleaningRules(NOW_MS, NOW_MS, frozenset()), TransactionOutcomes(), unthrottled()
    )
    path = segment_path(tmp_path, 0, LOG)
    cleaned = path.with_name(path.name + ".cleaned")
    if done != "cleaned":
        cleaned.rename(path.with_name(path.name + ".swap"))
    for segment in () if done in ("cleaned", "swap") else group[1:2] if done == "one gone" else group[1:]:
        segment.path().unlink()
    if done.startswith("in its place"):
        path.unlink()
        os.link(path.with_name(path.name + ".swap"), path)
    if done == "in its place and more":
        os.link(path, path.with_name(path.name + ".tmp"))
    reopened = open_sample_log(tmp_path, limits=SMALL, recovery_point=40).log
    assert contents_of(reopened) == (before if done == "cleaned" else before[-5:])
    assert reopened.log_end_offset == 40
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".cleaned", ".swap", ".tmp"))]
    assert append(reopened, keyed_batch((b"k", b"next"))) == 40
    reopened.roll(NOW_MS)
    clean(reopened, limits=LogLimits())
    assert len(reopened.closed) == 1 and [key for _, key, _ in contents_of(reopened)].count(b"k") == 1


def test_duty_cycle_sleeps_as_long_as_it_worked_and_can_be_cancelled() -> None:
    times, rests, should_continue = iter([0.0, 0.001, 0.005, 0.010, 0.0101]), [], [True]
    duty_cycle = DutyCycle(lambda: should_continue[0], lambda: next(times), rests.append)
    duty_cycle.pause_if_due()
    duty_cycle.pause_if_due()
    duty_cycle.pause_if_due()
    assert rests == [0.005]
    should_continue[0] = False
    with pytest.raises(CompactionCancelled):
        duty_cycle.pause_if_due()


# The broker


def with_node(directory: Path, work: Callable[[BrokerNode], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory, segment_bytes_max=400, **config), now_ms=lambda: NOW_MS)
        try:
            await asyncio.wait_for(work(node), 30)
        finally:
            await node.close()

    asyncio.run(main())


def produced(node: BrokerNode, raw: bytes) -> Any:
    request = ProduceRequest(None, 1, 1, (ProduceTopic("t", (ProducePartition(0, memoryview(raw)),)),))
    [topic] = produce.handle(RequestContext(node, 9, "c", "127.0.0.1"), request)  # type: ignore[misc]
    return topic.partitions[0]


def written(node: BrokerNode, count: int = 60) -> PartitionLog:
    for number in range(count):
        assert produced(node, keyed_batch((b"k%d" % (number % 5), b"value %d" % number))).error == 0
    return node.log("t", 0)


def test_cleaner_compacts_due_logs_of_compacted_topics(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        await node.maintenance.clean()
        assert len(contents_of(log)) == 60  # nothing is fsynced yet
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        assert len(contents_of(log)) < 15
        assert node.cleaner.clean_to == {("t", 0): log.active.base_offset}
        written(node)
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        assert len(contents_of(log)) < 15 and log.log_end_offset == 120
        # Retention by age does not apply.
        node.now_ms = lambda: NOW_MS + 365 * DAY_MS
        await node.maintenance.run_housekeeping()
        assert {key for _, key, _ in contents_of(log)} == {b"k%d" % number for number in range(5)}

    with_node(tmp_path, work)

    async def after_restart(node: BrokerNode) -> None:
        assert node.cleaner.clean_to["t", 0] == node.log("t", 0).active.base_offset
        assert {key for _, key, _ in contents_of(node.log("t", 0))} == {b"k%d" % number for number in range(5)}

    with_node(tmp_path, after_restart)
    write_checkpoint(tmp_path / CLEAN_TO, {("t", 0): 10_000, ("gone", 0): 5})

    async def after_a_loss(node: BrokerNode) -> None:
        assert node.cleaner.clean_to == {("t", 0): 120}
        await node.changes.delete_topic(node.topic("t"))
        assert node.cleaner.clean_to == {}

    with_node(tmp_path, after_a_loss)


def test_compaction_merges_segments_without_records(tmp_path: Path) -> None:
    """Values so large that no two segments fit into one: each segment is compacted alone."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact", "segment.bytes": "1024"})
        for number in range(60):
            key = b"first" if number == 0 else b"k%d" % (number % 3)
            assert produced(node, keyed_batch((key, os.urandom(400)))).error == 0
        await node.flusher.flush_dirty()
        log = node.log("t", 0)
        before = {key: value for _, key, value in contents_of(log)}
        assert len(log.closed) == 29
        await node.maintenance.clean()
        headers = [located.header for located, _ in log.batches(0)]
        # The first segment still has a record before its last batch.
        assert [header.last_offset for header in headers if not header.record_count] == [1]
        assert len(log.closed) < 5
        assert {key: value for _, key, value in contents_of(log)} == before

    with_node(tmp_path, work)


def test_closed_segment_is_found_by_its_base_offset(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=SMALL).log
    assert log.segments.closed_at(0) is None
    for number in range(20):
        append(log, keyed_batch((b"k", b"value %d" % number)))
    for segment in log.closed:
        assert log.segments.closed_at(segment.base_offset) is segment
        assert log.segments.closed_at(segment.base_offset + 1) is None
    first = log.closed[0]
    log.drop_segments(1)
    assert log.segments.closed_at(first.base_offset) is None


@pytest.mark.parametrize("codec", [0, 3])
def test_reads_skip_batches_without_records(tmp_path: Path, codec: int) -> None:
    log = filled(tmp_path, 60, codec=codec)
    log.roll(NOW_MS)
    clean(log)  # merges no segments, as compactions did before they removed empty ones
    empty = [located.header for located, _ in log.batches(0) if not located.header.record_count]
    assert len(empty) > 10
    for offset in (0, 7, empty[-1].last_offset):
        for read in (log.read, log.read_committed):
            found = read(offset, 1, min_one_batch=True)
            header = read_batch_header(bytes(found[0] if isinstance(found, tuple) else found))
            assert header.record_count and header.base_offset == 55
        assert not log.read(offset, 1, min_one_batch=False)


def test_reads_return_the_last_batch_without_records_at_the_end(tmp_path: Path) -> None:
    """A consumer that reads to the end, such as a Kafka Streams restore, advances past it."""
    log = open_sample_log(tmp_path, limits=SMALL).log
    for number in range(12):
        append(log, keyed_batch((b"k", b"v" * 100 if number == 0 else None)))
    log.roll(NOW_MS)
    clean(log, clean(log), NOW_MS + 2 * DAY_MS)
    clean(log, 12, NOW_MS + 2 * DAY_MS)
    assert contents_of(log) == []
    for offset in (0, 11):
        header = read_batch_header(bytes(log.read(offset, 1 << 20, min_one_batch=True)))
        assert (header.record_count, header.last_offset) == (0, 11)
    assert log.read(12, 1 << 20, min_one_batch=True) == b""


def test_recovery_point_is_persisted_before_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the recovery point a start treats a gap between batches as data loss and truncates the log."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        node.checkpoints.write().result()
        written(node)
        await node.flusher.flush_dirty()
        putting, seen = PartitionLog.replace_segments, []

        def recording_replace(log: PartitionLog, group: Any, facts: Any) -> Any:
            on_disk = read_checkpoint(tmp_path / RECOVERY_POINTS)["t", 0]
            seen.append(group[-1].next_offset <= on_disk)
            return putting(log, group, facts)

        monkeypatch.setattr(PartitionLog, "replace_segments", recording_replace)
        await node.maintenance.clean()
        assert seen and all(seen)

    with_node(tmp_path, work)


def test_compaction_starts_at_the_dirty_ratio_or_the_maximum_lag(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        for name, configs in (
            ("share", {"min.cleanable.dirty.ratio": "1"}),
            ("age", {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"}),
            ("young", {"min.compaction.lag.ms": "2000"}),
            ("deleted", {}),
        ):
            node.changes.create_topic(
                name, 1, {"cleanup.policy": "compact" if name != "deleted" else "delete", **configs}
            )
            log = node.log(name, 0)
            node.cleaner.clean_to[name, 0] = 10
            for number in range(40):
                append(log, keyed_batch((b"k", b"value %d" % number)))
            node.flusher.mark_dirty(log)
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        assert {name: len(contents_of(node.log(name, 0))) for name in ("share", "age", "young", "deleted")} == {
            "share": 40,
            "age": 40,
            "young": 40,
            "deleted": 40,
        }
        node.now_ms = lambda: NOW_MS + 1500
        await node.maintenance.clean()
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        assert len(contents_of(node.log("age", 0))) < 14 and len(contents_of(node.log("share", 0))) == 40
        assert node.log("age", 0).active.size == 0
        assert len(contents_of(node.log("young", 0))) == 40
        node.now_ms = lambda: NOW_MS + 2500
        await node.maintenance.clean()
        assert len(contents_of(node.log("young", 0))) < 20

    with_node(tmp_path, work)


def test_topic_with_both_policies_is_compacted_and_expires(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact,delete", "retention.ms": "100000"})
        log = written(node)
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        assert len(contents_of(log)) < 15
        node.now_ms = lambda: NOW_MS + 200_000
        await node.maintenance.run_housekeeping()
        assert contents_of(log) == []

    with_node(tmp_path, work)


@pytest.mark.parametrize("step", ["fsync_staged_swap", "complete_swap"])
def test_retention_waits_for_a_compaction_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Otherwise a start after a power failure would find segments next to a gap, which it treats as data loss."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact,delete", "retention.ms": "100000"})
        log, loop, real, seen = written(node), asyncio.get_running_loop(), getattr(compaction, step), []
        await node.flusher.flush_dirty()

        def meanwhile(group: Any) -> None:
            real(group)
            node.now_ms = lambda: NOW_MS + 200_000
            before = list(log.closed)
            asyncio.run_coroutine_threadsafe(node.maintenance.run_housekeeping(), loop).result(20)
            node.now_ms = lambda: NOW_MS
            seen.append(log.closed[: len(before)] == before)

        with monkeypatch.context() as patch:
            patch.setattr(compaction, step, meanwhile)
            await node.maintenance.clean()
        assert seen and all(seen)
        node.now_ms = lambda: NOW_MS + 200_000
        await node.maintenance.run_housekeeping()
        assert contents_of(log) == []

    with_node(tmp_path, work)


def test_retention_rechecks_for_a_swap_after_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact,delete", "retention.ms": "100000"})
        log = written(node)
        await node.flusher.flush_dirty()
        node.now_ms = lambda: NOW_MS + 200_000
        before = list(log.closed)
        real = node.flusher.sync_directory

        async def meanwhile(directory: Path) -> None:
            await real(directory)
            log.is_swapping = True

        monkeypatch.setattr(node.flusher, "sync_directory", meanwhile)
        await node.maintenance.run_housekeeping()
        assert log.closed[: len(before)] == before

    with_node(tmp_path, work)


def values_after_a_start(directory: Path) -> dict[bytes | None, bytes | None]:
    """Returns the last value of each key of topic t after a start."""
    found: dict[bytes | None, bytes | None] = {}

    async def read_table(node: BrokerNode) -> None:
        found.update({key: value for _, key, value in contents_of(node.log("t", 0))})

    with_node(directory, read_table)
    return found


@pytest.mark.parametrize("step", ["fsync_staged_swap", "install_swap", "rename_to_deleted", "complete_swap"])
def test_disk_failure_during_a_swap_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The names on disk are unknown; the next start repairs them."""

    async def main() -> None:
        failures: list[OSError] = []
        config = BrokerConfig(tmp_path, segment_bytes_max=400)
        node = BrokerNode(config, now_ms=lambda: NOW_MS, on_disk_failure=failures.append)
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        written(node).limits = LogLimits()  # merges all into one segment
        await node.flusher.flush_dirty()

        def fails(_: Any) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(compaction, step, fails)
            with pytest.raises(OSError, match="Input/output error"):
                await node.maintenance.clean()
        assert len(failures) == 1 and node.cleaner.clean_to.get(("t", 0), 0) == 0
        await node.close()

    asyncio.run(main())
    assert values_after_a_start(tmp_path) == {b"k%d" % key: b"value %d" % (55 + key) for key in range(5)}


@pytest.mark.parametrize(("refused", "is_one"), [("replace", True), ("replace", False), ("link", False)])
def test_full_disk_during_a_swap_leaves_segments_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, is_one: bool
) -> None:
    failures: list[OSError] = []

    async def main() -> None:
        config = BrokerConfig(tmp_path, segment_bytes_max=400)
        node = BrokerNode(config, now_ms=lambda: NOW_MS, on_disk_failure=failures.append)
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        if not is_one:
            log.limits = LogLimits()  # merges all into one segment
        await node.flusher.flush_dirty()
        before, real = contents_of(log), getattr(os, refused)

        def full(source: Any, target: Any) -> None:
            if str(target).endswith((".log", ".log.tmp")):
                raise OSError(28, "No space left on device")
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, refused, full)
            with pytest.raises(OSError, match="No space"):
                await node.maintenance.clean()
        assert (failures, log.is_swapping, contents_of(log)) == ([], False, before)
        assert not [path for path in log.directory.iterdir() if path.name.endswith((".cleaned", ".swap", ".tmp"))]
        await node.maintenance.clean()
        assert len(contents_of(log)) < len(before)
        await node.close()

    asyncio.run(main())
    assert values_after_a_start(tmp_path) == {b"k%d" % key: b"value %d" % (55 + key) for key in range(5)}


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize("policy", ["compact,delete", "delete"])
def test_swap_is_completed_later_if_a_full_disk_cannot_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool, policy: str
) -> None:
    """Btrfs and ZFS may fail to delete on a full disk. Until the `.swap` file is deleted no segment is dropped.
    Afterwards the log works as before, even if its topic is no longer compacted."""
    failures: list[OSError] = []

    async def main() -> None:
        config = BrokerConfig(tmp_path, segment_bytes_max=400)
        node = BrokerNode(config, now_ms=lambda: NOW_MS, on_disk_failure=failures.append)
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact,delete", "retention.ms": "100000"})
        log = written(node)
        log.limits = LogLimits()  # merges all into one segment
        await node.flusher.flush_dirty()
        before, unlink, link = contents_of(log), os.unlink, os.link

        def full(name: str, real: Callable[..., None], path: Any, *rest: Any, **named: Any) -> None:
            if str(path).endswith(name):
                raise OSError(28, "No space left on device")
            real(path, *rest, **named)

        def standing() -> list[Path]:
            return [path for path in log.directory.iterdir() if path.name.endswith((".cleaned", ".swap"))]

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", partial(full, ".swap", unlink))
            if not is_replaced:
                patch.setattr(os, "link", partial(full, ".swap", link))
            for _ in range(2):
                with pytest.raises(OSError, match="No space"):
                    await node.maintenance.clean()
                assert failures == [] and len(standing()) == 1
                await node.changes.alter_topic("t", lambda topic: {**topic.configs, "cleanup.policy": policy})
            node.now_ms = lambda: NOW_MS + 200_000
            await node.maintenance.run_housekeeping()
            assert contents_of(log) == before if not is_replaced else 0 < len(contents_of(log)) < 15
        await node.maintenance.clean()
        assert (standing(), failures) == ([], [])
        await node.maintenance.run_housekeeping()
        assert contents_of(log) == []
        await node.close()
        assert not [*log.directory.glob("*.deleted")]

    asyncio.run(main())


def test_shutdown_completes_a_swap_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise retention, which also finishes its work, might drop a segment that a start would restore."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        log.limits = LogLimits()  # merges all into one segment
        await node.flusher.flush_dirty()
        loop, real = asyncio.get_running_loop(), compaction.fsync_staged_swap

        def ends(group: Any) -> None:
            loop.call_soon_threadsafe(node._closing.set)
            real(group)

        monkeypatch.setattr(compaction, "fsync_staged_swap", ends)
        await node.maintenance.clean()
        assert len(log.closed) == 1 and len(contents_of(log)) < 15
        assert not [path for path in log.directory.iterdir() if path.name.endswith((".cleaned", ".swap"))]

    with_node(tmp_path, work)


def test_segments_deleted_by_retention_are_no_disk_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        await node.flusher.flush_dirty()
        real = compaction.build_offset_map

        def too_late(segments: Any, *rest: Any) -> Any:
            for path in log.drop_segments(1):
                path.unlink()
            return real(segments, *rest)

        def lost(*_: Any) -> Any:
            raise FileNotFoundError(2, "No such file or directory")

        with monkeypatch.context() as patch:
            patch.setattr(compaction, "build_offset_map", too_late)
            await node.maintenance.clean()
            patch.setattr(compaction, "build_offset_map", lost)
            with pytest.raises(FileNotFoundError):
                await node.maintenance.clean()  # no segment was deleted
        assert node.cleaner.compactions == 0

    with_node(tmp_path, work)


def test_failed_rename_leaves_the_log_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        await node.flusher.flush_dirty()
        before = contents_of(log)

        def full(group: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(compaction, "stage_swap", full)
            with pytest.raises(OSError, match="No space"):
                await node.maintenance.clean()
        assert contents_of(log) == before
        assert not [path for path in log.directory.iterdir() if path.name.endswith((".cleaned", ".swap"))]
        await node.maintenance.clean()
        assert len(contents_of(log)) < 15

    with_node(tmp_path, work)


def test_full_directory_does_not_stop_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: replaced files are deleted at once instead of being renamed first."""
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if target.name.endswith(".deleted"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        written(node)
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        log = written(node)
        await node.flusher.flush_dirty()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", full)
            await node.maintenance.clean()
        assert node.cleaner.compactions == 2 and not log.is_swapping
        assert [segment.base_offset for segment in [*log.closed, log.active]] == base_offsets(log.directory)
        assert {key for _, key, _ in contents_of(log)} == {b"k%d" % number for number in range(5)}
        await node.flusher.flush(log)

    with_node(tmp_path, work)


def test_swap_replaces_a_segment_whose_indexes_were_just_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader finds a corrupt index during the fsync and rebuilds it, which replaces the segment's object."""
    fsync_staged_swap, largest = compaction.fsync_staged_swap, TimeEntry(NOW_MS - 1, 0)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        await node.flusher.flush_dirty()
        log.closed[0] = replace(log.closed[0], largest=largest)

        def rebuild_meanwhile(group: Any) -> None:
            fsync_staged_swap(group)
            if log.closed[0].largest == largest:
                log.segments.rebuild_indexes(log.closed[0])

        monkeypatch.setattr(compaction, "fsync_staged_swap", rebuild_meanwhile)
        await node.maintenance.clean()
        assert node.cleaner.compactions == 1 and not log.is_swapping
        assert [segment.size for segment in log.closed] == [segment.path().stat().st_size for segment in log.closed]
        assert {key for _, key, _ in contents_of(log)} == {b"k%d" % number for number in range(5)}

    with_node(tmp_path, work)


def test_segment_closed_by_age_is_fsynced_soon(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact", "max.compaction.lag.ms": "1000"})
        log = written(node, 3)
        await node.flusher.flush_dirty()
        node.now_ms = lambda: NOW_MS + 5000
        await node.maintenance.clean()
        assert log.closed and log.has_dirty_segments
        await node.flusher.flush_dirty()
        assert not log.has_dirty_segments

    with_node(tmp_path, work)


def test_records_without_a_key_are_refused_by_a_compacted_topic(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        for raw in (batch(b"v"), keyed_batch((b"k", b"v"), (None, b"v"), codec=3)):
            refused = produced(node, raw)
            assert refused.error == ErrorCode.INVALID_RECORD and "1" in refused.error_message
        refused = produced(node, with_attributes(keyed_batch((b"k", b"v")), 1))
        assert refused.error == ErrorCode.INVALID_RECORD
        assert produced(node, keyed_batch((b"k", None), codec=4)).base_offset == 0
        assert produced(node, keyed_batch((b"", b"v"))).base_offset == 1
        await node.changes.alter_topic("t", lambda _: {"cleanup.policy": "delete"})
        assert produced(node, batch(b"v")).base_offset == 2

    with_node(tmp_path, work)


def test_compaction_stops_for_a_deleted_topic_and_a_shutdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        topic = node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        await node.flusher.flush_dirty()
        write_cleaned_segment = compaction.write_cleaned_segment
        loop = asyncio.get_running_loop()

        def slow(*arguments: Any) -> Any:
            facts = write_cleaned_segment(*arguments)
            asyncio.run_coroutine_threadsafe(node.changes.delete_topic(topic), loop).result()
            return facts

        monkeypatch.setattr(cleaner_module.compaction, "write_cleaned_segment", slow)
        await node.maintenance.clean()
        assert node.cleaner.clean_to == {} and node.logs.keys() == {("__consumer_offsets", 0)}
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        assert contents_of(node.log("t", 0)) == [] and log is not node.log("t", 0)

    with_node(tmp_path, work)


def test_segments_deleted_during_compaction_stay_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        await node.flusher.flush_dirty()
        write_cleaned_segment = compaction.write_cleaned_segment

        def slow(*arguments: Any) -> Any:
            facts = write_cleaned_segment(*arguments)
            log.drop_segments(1)
            return facts

        monkeypatch.setattr(cleaner_module.compaction, "write_cleaned_segment", slow)
        await node.maintenance.clean()
        start = log.log_start_offset
        assert start > 0 and [offset for offset, _, _ in contents_of(log)] == list(range(start, 60))
        assert not [path for path in log.directory.iterdir() if path.name.endswith((".cleaned", ".swap"))]

    with_node(tmp_path, work)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_corrupt_log_is_not_compacted_but_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_zeros: bool
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {"cleanup.policy": "compact"})
        for index in range(2):
            log = node.log("t", index)
            for number in range(20):
                raw = keyed_batch((b"k", b"v" * 40))
                log.append(raw, read_batch_header(raw), NOW_MS)
                if index == 0 and number == 3:
                    with segment_path(log.directory, 0, LOG).open("r+b") as file:
                        file.seek(-len(raw) if has_zeros else -3, 2)
                        file.write(bytes(len(raw)) if has_zeros else b"?")
            node.flusher.mark_dirty(log)
        await node.flusher.flush_dirty()
        before = node.log("t", 0).size
        await node.maintenance.clean()
        await node.maintenance.clean()
        assert node.log("t", 0).size == before and len(contents_of(node.log("t", 1))) < 6
        assert len(logged(caplog, "broker.cleaner", "t-0")) == 1

    with_node(tmp_path, work)


def test_cleaner_state_is_dropped_with_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its corruption and its clean offset are dropped, also when they are determined during the deletion."""

    async def work(node: BrokerNode) -> None:
        loop, clean_to = asyncio.get_running_loop(), {("kept", 0): 7}
        node.cleaner.clean_to.update(clean_to)

        def damaged(*_: Any) -> None:
            raise CorruptBatch("damaged")

        def deleted_meanwhile(call: Callable[..., Any]) -> Callable[..., Any]:
            def meanwhile(*arguments: Any) -> Any:
                asyncio.run_coroutine_threadsafe(node.changes.delete_topic(node.topic("t")), loop).result(20)
                return call(*arguments)

            return meanwhile

        # The last two steps run before and after the swap.
        for module, name, call in (
            (compaction, "build_offset_map", damaged),
            (compaction, "build_offset_map", deleted_meanwhile(damaged)),
            (compaction, "fsync_staged_swap", deleted_meanwhile(compaction.fsync_staged_swap)),
            (compaction, "complete_swap", deleted_meanwhile(compaction.complete_swap)),
        ):
            node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
            written(node).limits = LogLimits()  # merges all into one segment
            await node.flusher.flush_dirty()
            with monkeypatch.context() as patch:
                patch.setattr(module, name, call)
                await node.maintenance.clean()
            if call is damaged:
                assert node.cleaner.uncleanable_count == 1
                await node.changes.delete_topic(node.topic("t"))
            assert (node.cleaner.uncleanable_count, node.cleaner.clean_to) == (0, clean_to)
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = written(node)
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        assert len(contents_of(log)) < 15

    with_node(tmp_path, work)


def test_truncated_log_is_not_clean_beyond_its_end() -> None:
    class Log:
        log_end_offset = 7

    cleaner = Cleaner(
        None, None, {("t", 0): 20, ("gone", 0): 3}, before_change=lambda: None, unlink=print, is_closing=bool
    )  # type: ignore[arg-type]
    cleaner.limit_clean_to({("t", 0): Log()})  # type: ignore[dict-item]
    assert cleaner.clean_to == {("t", 0): 7}


def test_event_loop_runs_during_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run between any two batches that are read."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        written(node)
        await node.flusher.flush_dirty()
        served = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(duty_cycle: DutyCycle) -> None:
            loop.call_soon_threadsafe(served.set)
            asyncio.run_coroutine_threadsafe(served.wait(), loop).result(20)

        monkeypatch.setattr(DutyCycle, "pause_if_due", wait)
        await node.maintenance.clean()
        assert len(contents_of(node.log("t", 0))) < 15

    with_node(tmp_path, work)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cleanup.policy", "compact", "compact"),
        ("cleanup.policy", "compact,delete", "compact,delete"),
        ("min.cleanable.dirty.ratio", "0.01", "0.01"),
        ("delete.retention.ms", "100", "100"),
    ],
)
def test_compaction_settings_are_accepted(name: str, value: str, expected: str) -> None:
    assert check_config(name, value) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "squeeze"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "much"),
        ("max.compaction.lag.ms", "0"),
        ("delete.retention.ms", "-1"),
    ],
)
def test_invalid_compaction_settings_are_refused(name: str, value: str) -> None:
    with pytest.raises(RequestRefused, match=name) as refused:
        check_config(name, value)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
