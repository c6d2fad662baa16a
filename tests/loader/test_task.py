"""A complete task over a log in memory: its result, its staged files, and the result of each failure."""

from __future__ import annotations

import json
import random
import re
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from headrace import avro_codec
from headrace.audit.count import message_hash
from headrace.audit.window import OUT_OF_RANGE_MS
from headrace.avro_codec.encode import encode_long
from headrace.avro_codec.readable import GREGORIAN_DAY
from headrace.avro_schema import frame, parse_schema
from headrace.kafka_wire.cluster import FetchSlice, KafkaCluster
from headrace.kafka_wire.errors import KafkaUnavailable, LogChanged, OffsetOutOfRange
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader import task as task_module
from headrace.loader.build import current_build
from headrace.loader.commit.reconcile import ReconciledTopic, reconcile
from headrace.loader.inspect.quarantine import read_rows
from headrace.loader.load_schema import EMPTY, fold
from headrace.loader.plan.packing import split
from headrace.loader.plan.ranges import PlannedRange, TopicRanges
from headrace.loader.project.topic_projection import FUTURE_TIME, NO_TIME, OUT_OF_RANGE_TIME
from headrace.loader.storage.local import sink
from headrace.loader.task import run_work_unit
from headrace.loader.work_unit import (
    CorruptBatchStop,
    FileKind,
    ImplausibleTimeCount,
    ImplausibleTimeKind,
    OffsetRange,
    RangeCounts,
    StagedFile,
    TaskSettings,
    TopicPlan,
    UnitResult,
    WorkUnit,
)
from headrace.loader.write.time_partitions import TimePartitions
from support.broker.record_batches import make_batch
from support.loader.compiled_core import required_core
from support.loader.loader_samples import POLICY
from support.loader.projection_oracle import encode

HOUR_MS = 3_600_000
T0 = 1_357_002_000_000  # 2013-01-01T01:00Z
FETCH_BYTES = 1 << 20  # the reader fetches more to see the batches after a corrupt one
SCHEMA = json.dumps(
    {"type": "record", "name": "Event", "fields": [{"name": "timestamp", "type": "long"}, {"name": "n", "type": "int"}]}
)
PARSED = parse_schema(SCHEMA)
LOAD = fold(EMPTY, 1, PARSED).text
PLAN = TopicPlan("orders", LOAD, {1: SCHEMA}, POLICY, absent_ids=frozenset({404}))


def message(n: int, time_ms: int = T0, schema_id: int = 1) -> bytes:
    return frame(schema_id, encode(PARSED, {"timestamp": time_ms, "n": n}))


class Cluster:
    """Serves partitions from memory, one batch per fetch unless `max_bytes` is larger than usual. `failures` maps an
    offset to the error of fetching it.

    A partition is readable to the end of its last batch, or up to `ends`.
    """

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        self.failures: dict[tuple[TopicPartition, int], Exception] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.requested: list[dict[str, Any]] = []
        self.fetches: list[tuple[TopicPartition, int, int, dict[str, Any]]] = []
        self.prefetched: list[tuple[TopicPartition, int, int, dict[str, Any]]] = []
        self.expected: list[str] = []

    def expect_topics(self, topics: Iterable[str]) -> None:
        self.expected += topics

    def put(self, partition: int, values: Mapping[int, bytes | None], topic: str = "orders", **more: Any) -> None:
        batch = make_batch(sorted(values), value=values.get, **more)
        self.logs.setdefault(TopicPartition(topic, partition), []).append((max(values) + 1, batch))

    def prefetch(self, topic_partition: TopicPartition, offset: int, max_bytes: int, **named: Any) -> None:
        self.prefetched.append((topic_partition, offset, max_bytes, named))

    def fetch(self, topic_partition: TopicPartition, offset: int, max_bytes: int, **named: Any) -> FetchSlice:
        self.requested.append(named)
        self.fetches.append((topic_partition, offset, max_bytes, named))
        if (topic_partition, offset) in self.failures:
            raise self.failures[topic_partition, offset]
        log = self.logs.get(topic_partition, [])
        rest = [batch for end, batch in log if end > offset]
        records = b"".join(rest if max_bytes > FETCH_BYTES else rest[:1])
        readable_end = self.ends.get(topic_partition, max((end for end, _ in log), default=0))
        return FetchSlice(records, readable_end, readable_end, 0, (), "b:1")

    def close(self) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = Cluster()
    monkeypatch.setattr(task_module, "KafkaCluster", lambda servers, timeout_s, security: found)
    return found


Run = Callable[..., UnitResult]


@pytest.fixture
def unit(tmp_path: Path) -> Callable[..., WorkUnit]:
    def unit(
        *ranges: OffsetRange, plan: TopicPlan = PLAN, build: str | None = None, task: int = 3, **settings: Any
    ) -> WorkUnit:
        base = TaskSettings(
            bootstrap_servers="b:1",
            staging=str(tmp_path / "staging" / "w"),
            file_bytes_target=1 << 30,
            fetch_timeout_ms=0,
            fetch_bytes=FETCH_BYTES,
        )
        of_topic = {name: settings.pop(name) for name in list(settings) if hasattr(plan.policy, name)}
        plan = replace(plan, policy=replace(plan.policy, **of_topic))
        return WorkUnit(
            "w", task, ranges, {"orders": plan}, replace(base, **settings), current_build() if build is None else build
        )

    return unit


@pytest.fixture(params=["core", "reference"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The decoder that makes the rows."""
    if request.param == "reference":
        monkeypatch.setattr(avro_codec, "_CORE", None)
    else:
        required_core()
    return str(request.param)


@pytest.fixture
def run(decoder: str, cluster: Cluster, unit: Callable[..., WorkUnit]) -> Run:
    return lambda *ranges, **more: run_work_unit(unit(*ranges, **more))


def offsets(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange(TopicPartition("orders", partition), start, end, "0e1f", 5)


def rows(tmp_path: Path, file: StagedFile) -> list[dict[str, Any]]:
    with (tmp_path / "staging" / "w" / file.path).open("rb") as handle:
        return list(fastavro.reader(handle))


def test_messages_become_rows_in_the_partition_of_their_hour(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    cluster.put(0, {n: message(n, T0 + n * HOUR_MS // 2) for n in range(4)})
    result = run(offsets(0, 4))
    assert result.error == "" and result.task == 3 and result.build == current_build()
    assert [file.time_partition for file in result.files] == ["dt=2013-01-01/hr=01", "dt=2013-01-01/hr=02"]
    first = rows(tmp_path, result.files[0])
    assert [row["n"] for row in first] == [0, 1]
    assert (first[1]["kafka"]["partition"], first[1]["kafka"]["offset"]) == (0, 1)
    assert first[1]["kafka"]["timestamp"].timestamp() == 1.001
    assert result.ranges[0].time_sources == {"timestamp": 4}
    assert result.ranges[0].bytes_read > 0
    assert cluster.requested[0] == {"topic_id": "0e1f", "leader_epoch": 5}


def test_every_offset_is_classified(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    cluster.put(0, {0: message(0), 2: None, 3: b"junk", 4: message(4, schema_id=404), 5: message(5) + b"x"})
    cluster.put(0, {6: b"", 7: b""}, control=1, producer_id=1)
    (result,) = run(offsets(0, 8)).ranges
    counts = result.counts
    assert (counts.records, counts.tombstones, counts.control, counts.gaps, counts.quarantined) == (1, 1, 2, 1, 3)
    assert counts.total == 8 and result.gaps == ((1, 2),) and result.error == ""


def test_bad_messages_go_to_the_quarantine_by_record_time(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    cluster.put(0, {0: b"junk", 1: message(1, schema_id=404), 2: message(2) + b"x"}, headers=[("h", b"v")])
    before_ms = time.time_ns() // 1_000_000
    result = run(offsets(0, 3))
    assert before_ms <= result.started_at_ms <= time.time_ns() // 1_000_000
    (file,) = result.files
    assert (file.kind, file.time_partition, file.records) == (FileKind.QUARANTINE, "dt=1970-01-01/hr=00", 3)
    with (tmp_path / "staging" / "w" / file.path).open("rb") as opened:
        found = list(read_rows(opened))
    assert [row.code for row in found] == ["framing", "schema_not_found", "malformed"]
    assert result.ranges[0].quarantine_codes == {"framing": 1, "schema_not_found": 1, "malformed": 1}
    assert [row.schema_id for row in found] == [None, 404, 1]
    assert (found[0].value, found[0].key, found[0].timestamp_ms) == (b"junk", b"k0", 1000)
    assert found[0].headers == (("h", b"v"),)
    assert re.search(r"\b1 bytes\b", found[2].reason)


def test_audit_counts_by_window_of_message_time(run: Run, cluster: Cluster) -> None:
    late = T0 + 600_000
    values = {0: message(0), 1: message(1, late), 2: message(2), 3: message(3) + b"x", 4: b"junk", 5: None}
    cluster.put(0, values)
    (result,) = run(offsets(0, 6)).ranges
    rows = {
        (row.tier, row.outcome, row.window_start_ms): (row.count, row.bytes, row.fingerprint) for row in result.audit
    }

    def counted(*numbers: int) -> tuple[int, int, int]:
        pairs = [(b"k%d" % n, values[n] or b"") for n in numbers]
        size = sum(len(key) + len(value) for key, value in pairs)
        return len(pairs), size, sum(message_hash(key, value) for key, value in pairs) % 2**64

    assert rows == {
        ("broker", "", 0): counted(4),
        ("broker", "", T0): counted(0, 2, 3),
        ("broker", "", late): counted(1),
        ("loader", "written", T0): counted(0, 2),
        ("loader", "written", late): counted(1),
        ("loader", "quarantined", 0): counted(4),
        ("loader", "quarantined", T0): counted(3),
    }


def test_texts_and_fallbacks_decide_the_time_partition_and_window(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    """A text with a zone is a time. Null and other text fall back to the next time field, then to the record."""
    fields = [{"name": "at", "type": ["null", "string"]}, {"name": "timestamp", "type": ["null", "long"]}]
    text = json.dumps({"type": "record", "name": "Event", "fields": fields})
    schema = parse_schema(text)
    messages = [
        ("2013-01-01T02:00:00Z", T0),
        ("2013-01-01T02:00:00", T0),
        (None, T0),
        ("yesterday", None),
        (None, None),
    ]
    bodies = [encode(schema, {"at": at, "timestamp": timestamp}) for at, timestamp in messages]
    cluster.put(0, {n: frame(1, body) for n, body in enumerate(bodies)})
    plan = TopicPlan("orders", fold(EMPTY, 1, schema).text, {1: text}, POLICY)
    result = run(offsets(0, 5), plan=plan, time_fields=("at", "timestamp"))
    found = {file.time_partition: [row["kafka"]["offset"] for row in rows(tmp_path, file)] for file in result.files}
    assert found == {"dt=2013-01-01/hr=02": [0], "dt=2013-01-01/hr=01": [1, 2], "dt=1970-01-01/hr=00": [3, 4]}
    (read,) = result.ranges
    assert read.time_sources == {"at": 1, "timestamp": 2, NO_TIME: 2}
    assert read.implausible_times == (ImplausibleTimeCount(ImplausibleTimeKind.NO_TIME, "at", "", 2, 0),)
    assert {one.window_start_ms: one.count for one in read.audit if one.tier == "broker"} == {
        0: 2,
        T0: 2,
        T0 + HOUR_MS: 1,
    }


def test_time_field_renamed_by_an_alias_is_found_in_messages_of_both_versions(run: Run, cluster: Cluster) -> None:
    old = json.dumps({"type": "record", "name": "Event", "fields": [{"name": "ts", "type": "long"}]})
    renamed = [{"name": "timestamp", "type": "long", "aliases": ["ts"]}]
    new = json.dumps({"type": "record", "name": "Event", "fields": renamed})
    state = fold(fold(EMPTY, 1, parse_schema(old), 1), 2, parse_schema(new), 2)
    plan = TopicPlan("orders", state.text, {1: old, 2: new}, POLICY, routes=state.routes, newest_id=state.newest)
    cluster.put(0, {0: frame(1, encode_long(T0)), 1: frame(2, encode_long(T0))})
    result = run(offsets(0, 2), plan=plan)
    assert [file.time_partition for file in result.files] == ["dt=2013-01-01/hr=01"]
    assert result.ranges[0].time_sources == {"timestamp": 2}


@pytest.mark.parametrize("time_ms", [-1, 253_402_300_800_000, 2**62])
def test_a_time_out_of_range_is_replaced_by_the_record_time_and_audited_as_such(
    run: Run, cluster: Cluster, time_ms: int
) -> None:
    cluster.put(0, {0: message(0, time_ms)})
    result = run(offsets(0, 1))
    assert result.files[0].time_partition == "dt=1970-01-01/hr=00"
    assert result.ranges[0].time_sources == {"record (field out of range)": 1}
    assert {row.window_start_ms for row in result.ranges[0].audit} == {OUT_OF_RANGE_MS}
    assert result.ranges[0].implausible_times == (
        ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "timestamp", "millis", 1, time_ms),
    )


def test_a_value_on_which_queries_fail_is_quarantined_and_audited_at_its_time(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fields = [{"name": "price", "type": price}, {"name": "timestamp", "type": "long"}]
    text = json.dumps({"type": "record", "name": "Event", "fields": fields})
    schema = parse_schema(text)
    plan = TopicPlan("orders", fold(EMPTY, 1, schema).text, {1: text}, POLICY)
    bodies = [encode(schema, {"price": price, "timestamp": T0}) for price in (b"\x01", b"", b"\x02")]
    cluster.put(0, {n: frame(1, body) for n, body in enumerate(bodies)})
    result = run(offsets(0, 3), plan=plan)
    (found,) = result.ranges
    assert (found.counts.records, found.counts.quarantined) == (2, 1)
    bad = next(file for file in result.files if file.kind is FileKind.QUARANTINE)
    with (tmp_path / "staging" / "w" / bad.path).open("rb") as opened:
        (row,) = read_rows(opened)
    assert (row.code, row.schema_id, row.offset) == ("unreadable", 1, 1)
    assert row.reason.startswith("price: ")
    counted = {(row.tier, row.outcome): (row.window_start_ms, row.count) for row in found.audit}
    assert counted == {("broker", ""): (T0, 3), ("loader", "written"): (T0, 2), ("loader", "quarantined"): (T0, 1)}


def test_rows_with_days_before_1582_10_15_are_counted(run: Run, cluster: Cluster) -> None:
    day, at = {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-millis"}
    local, listed = {"type": "long", "logicalType": "local-timestamp-millis"}, {"type": "array", "items": ["null", day]}
    text = json.dumps(
        {
            "type": "record",
            "name": "Event",
            "fields": [
                {"name": name, "type": kind}
                for name, kind in (
                    ("day", day),
                    ("seen", at),
                    ("local", local),
                    ("listed", listed),
                    ("last", "boolean"),
                )
            ],
        }
    )
    schema = parse_schema(text)
    first_ms = GREGORIAN_DAY * 86_400_000
    fine = {
        "day": GREGORIAN_DAY,
        "seen": first_ms,
        "local": first_ms - 1,
        "listed": [None, GREGORIAN_DAY],
        "last": True,
    }
    old = (
        {"day": GREGORIAN_DAY - 1},
        {"seen": first_ms - 1},
        {"listed": [0, -719_162]},
        {"day": -719_162, "seen": -(2**52)},
    )
    bodies = [encode(schema, {**fine, **one}) for one in ({}, *old, {"day": 20_000})]
    bodies.append(bodies[1][:-1] + b"\x02")  # quarantined, because the boolean is invalid
    cluster.put(0, {n: frame(1, body) for n, body in enumerate(bodies)})
    result = run(offsets(0, len(bodies)), plan=TopicPlan("orders", fold(EMPTY, 1, schema).text, {1: text}, POLICY))
    (found,) = result.ranges
    assert (found.counts.records, found.counts.quarantined) == (6, 1)
    assert found.implausible_times == (ImplausibleTimeCount(ImplausibleTimeKind.OLD_DAY, "", "", 4, 0),)


def test_an_unknown_schema_id_stops_the_range_before_it(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    cluster.put(0, {0: message(0), 1: None, 3: message(3), 5: message(5, schema_id=9), 7: message(7)})
    result = run(offsets(0, 8))
    (found,) = result.ranges
    assert (found.done.start, found.done.end, found.unknown_ids, found.error) == (0, 5, (9,), "")
    assert found.counts.total == 5 and found.gaps == ((2, 3), (4, 5))
    assert [row["n"] for row in rows(tmp_path, result.files[0])] == [0, 3]
    assert sum(row.count for row in found.audit if row.tier == "broker") == 2


def test_unknown_ids_after_the_stop_are_reported_too(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [1, 9, 404, 7, 9, 8]
    cluster.put(0, {n: message(n, schema_id=schema_id) for n, schema_id in enumerate(ids)})
    cluster.put(1, {0: message(0, schema_id=9), 1: None, 2: b"no Avro", 3: message(3), 4: message(4, schema_id=6)})
    cluster.failures[TopicPartition("orders", 1), 5] = OffsetOutOfRange("lost")
    result = run(offsets(0, 5), offsets(0, 9, partition=1))
    assert [(one.done.end, one.unknown_ids, one.error) for one in result.ranges] == [(1, (9, 7), ""), (0, (9, 6), "")]
    monkeypatch.setattr(task_module, "UNKNOWN_IDS_MAX", 2)
    assert run(offsets(0, 6)).ranges[0].unknown_ids == (9, 7)


def test_reading_ahead_for_unknown_ids_is_limited(run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "LOOK_AHEAD_BYTES_MAX", 1)
    for n, schema_id in enumerate((9, 8, 7)):
        cluster.put(0, {n: message(n, schema_id=schema_id)})
    assert run(offsets(0, 3)).ranges[0].unknown_ids == (9,)


def test_an_error_within_a_range_returns_the_prefix(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    cluster.put(0, {n: message(n) for n in range(3)})
    cluster.failures[TopicPartition("orders", 0), 3] = OffsetOutOfRange("broker b:1 has lost it")
    cluster.put(1, {n: message(n) for n in range(2)})
    result = run(offsets(0, 6), offsets(0, 2, partition=1))
    assert result.error == ""
    assert (result.ranges[0].done.end, result.ranges[0].counts.records) == (3, 3)
    assert result.ranges[0].error == "topic orders partition 0 offset 3: broker b:1 has lost it"
    assert result.ranges[1].error == "" and result.ranges[1].done.end == 2
    assert [(piece.partition, piece.records) for piece in result.files[0].ranges] == [(0, 3), (1, 2)]


def test_a_log_that_ends_early_is_reported_with_its_end(run: Run, cluster: Cluster) -> None:
    cluster.put(0, {0: message(0)})
    (found,) = run(offsets(0, 4)).ranges
    assert found.done.end == 1
    assert re.match(r".*\bb:1\b.*\borders\b.*\b0\b.*\b1: .*\b4\b", found.error)


def test_a_tail_without_records_is_a_gap_of_the_range(run: Run, cluster: Cluster) -> None:
    cluster.put(0, {0: message(0)})
    cluster.ends = {TopicPartition("orders", 0): 4}
    (found,) = run(offsets(0, 4)).ranges
    assert (found.done.end, found.error, found.gaps) == (4, "", ((1, 4),))
    assert (found.counts.records, found.counts.gaps) == (1, 3)


def test_a_changed_log_drops_all_rows_of_the_range(run: Run, cluster: Cluster) -> None:
    cluster.put(0, {0: message(0)})
    cluster.failures[TopicPartition("orders", 0), 1] = LogChanged("the topic was re-created")
    result = run(offsets(0, 4))
    (found,) = result.ranges
    assert (found.done.start, found.done.end, found.counts.total, found.audit) == (0, 0, 0, ())
    assert found.error == "the topic was re-created" and result.files == ()


def reconciled(units: Sequence[WorkUnit]) -> ReconciledTopic:
    """The committed result of these units, for partitions that begin at 0 and were never read."""
    ends: dict[int, int] = defaultdict(int)
    for one in (one for unit in units for one in unit.ranges):
        ends[one.topic_partition.partition] = max(ends[one.topic_partition.partition], one.end)
    ranges = tuple(PlannedRange(partition, None, 0, end, 5, 100) for partition, end in ends.items())
    planned = {"orders": TopicRanges("0e1f", False, ranges, ())}
    return reconcile(planned, units, [run_work_unit(unit) for unit in units], {})["orders"]


@pytest.mark.parametrize("is_spread", [True, False], ids=["two tasks", "one task"])
def test_a_corrupt_batch_stops_only_its_partition_at_its_offset(
    cluster: Cluster, unit: Callable[..., WorkUnit], is_spread: bool
) -> None:
    for n in range(0, 30, 2):
        cluster.put(0, {n: message(n), n + 1: message(n + 1)})
        cluster.put(1, {n: message(n), n + 1: message(n + 1)})
    end, batch = cluster.logs[TopicPartition("orders", 0)][2]
    cluster.logs[TopicPartition("orders", 0)][2] = (end, batch[:-1] + bytes([batch[-1] ^ 1]))
    whole = [replace(offsets(0, 30), bytes_estimate=300), replace(offsets(0, 30, partition=1), bytes_estimate=300)]
    first, second, third, *healthy = [piece for one in whole for piece in split(one, 100)]
    tasks = [[first, second], [third, *healthy]] if is_spread else [[first, second, third, *healthy]]
    found = reconciled([unit(*ranges, task=number) for number, ranges in enumerate(tasks)])
    assert {one.partition: one.end for one in found.ranges} == {0: 4, 1: 30}
    (problem,) = found.problems
    assert re.search(r"\borders\b.*\b0\b.*\b4: .*\bchecksum\b", problem)
    assert problem.endswith(
        ", so no later offset is read; elect another replica as leader, whose copy may be intact; else set "
        "loader.corrupt_batches for the topic, or skip this batch: "
        "headrace offsets skip orders 0 4 --to 6 --reason TEXT"
    )
    assert sum(file.records for file in found.files) == 34


def test_corrupt_first_batch_of_a_partition_without_loads_gives_a_command_that_sets_its_start(
    cluster: Cluster, unit: Callable[..., WorkUnit]
) -> None:
    """`headrace offsets skip` rejects partitions that were never loaded."""
    for n in (0, 2):
        cluster.put(0, {n: message(n), n + 1: message(n + 1)})
    end, batch = cluster.logs[TopicPartition("orders", 0)][0]
    cluster.logs[TopicPartition("orders", 0)][0] = (end, batch[:-1] + bytes([batch[-1] ^ 1]))
    (problem,) = reconciled([unit(offsets(0, 4))]).problems
    assert problem.endswith("skip this batch: headrace offsets set orders 0 2")


@pytest.mark.parametrize("policy", ["quarantine", "skip"])
@pytest.mark.parametrize("parts", [1, 15], ids=["one range", "ranges that share batches"])
def test_a_corrupt_batch_is_skipped_if_the_policy_permits(
    cluster: Cluster, unit: Callable[..., WorkUnit], tmp_path: Path, policy: str, parts: int
) -> None:
    for n in range(0, 30, 3):
        cluster.put(0, {n + at: message(n + at) for at in range(3)})
    log = cluster.logs[TopicPartition("orders", 0)]
    log[2] = (9, log[2][1][:-1] + bytes([log[2][1][-1] ^ 1]))
    pieces = split(replace(offsets(0, 30), bytes_estimate=30), 30 // parts)
    found = reconciled([unit(*pieces, corrupt_batches=policy)])
    (committed,) = found.ranges
    assert (committed.end, committed.counts, found.problems) == (30, RangeCounts(records=27, corrupt=3), ())
    assert committed.gaps == ()
    passed = committed.skipped
    assert (passed[0].start, passed[-1].end, sum(one.end - one.start for one in passed)) == (6, 9, 3)
    assert {one.is_quarantined for one in passed} == {policy == "quarantine"}
    assert re.search(r"\b6: .*\bchecksum\b.*\b0x", passed[0].reason)
    quarantine_files = [file for file in found.files if file.kind is FileKind.QUARANTINE]
    quarantined = []
    for file in quarantine_files:
        with (tmp_path / "staging" / "w" / file.staged).open("rb") as opened:
            quarantined += read_rows(opened)
    quarantined.sort(key=lambda row: row.offset)
    if policy == "skip":
        assert quarantine_files == []
    else:
        assert {row.value for row in quarantined} == {log[2][1]}
        assert [(row.offset, row.code) for row in quarantined] == [(one.start, "corrupt_batch") for one in passed]
        assert quarantined[0].reason.startswith(
            f"offsets 6 to {passed[0].end - 1}: broker b:1, topic orders partition 0"
        )
        assert quarantined[0].timestamp_ms == 1008  # of its last record
    assert sum(series.windows[0].messages for series in found.audit if series.tier == "broker") == 27


def test_a_batch_that_decompresses_beyond_the_limit_follows_the_same_policy(run: Run, cluster: Cluster) -> None:
    cluster.put(0, {0: message(0)})
    cluster.put(0, {n: message(n) * 2_000 for n in range(1, 5)}, codec=1)
    cluster.put(0, {5: message(5)})
    (found,) = run(offsets(0, 6), record_bytes_max=65_536).ranges
    assert found.done.end == 1 and found.corrupt_stop == CorruptBatchStop(1, 5)
    assert re.search(r"\b65536 bytes\b", found.error)
    (found,) = run(offsets(0, 6), record_bytes_max=65_536, corrupt_batches="skip").ranges
    assert found.done.end == 6 and found.counts == RangeCounts(records=2, corrupt=4)
    (found,) = run(offsets(0, 6)).ranges
    assert found.counts.corrupt == 0 and found.done.end == 6


def test_a_corrupt_batch_with_a_time_out_of_range_goes_to_the_partition_of_invalid_times(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.put(0, {0: message(0)})
    cluster.put(0, {1: message(1)})
    log = cluster.logs[TopicPartition("orders", 0)]
    batch = bytearray(log[0][1])
    batch[35] ^= 0x40  # the uppermost bits of the greatest time
    log[0] = (1, bytes(batch))
    result = run(offsets(0, 2), corrupt_batches="quarantine")
    (quarantine_file,) = [file for file in result.files if file.kind is FileKind.QUARANTINE]
    assert quarantine_file.time_partition == "dt=1970-01-01/hr=00"


def test_a_range_that_follows_another_shares_no_file(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    for partition in range(3):
        cluster.put(partition, {n: message(n) for n in range(4)})
    first, follows, other = offsets(0, 2), replace(offsets(2, 4), follows_another=True), offsets(0, 4, partition=1)
    result = run(first, follows, other, replace(offsets(1, 4, partition=2), follows_another=True))
    held = [[(one.partition, one.first, one.last) for one in file.ranges] for file in result.files]
    assert sorted(held) == [[(0, 0, 1), (1, 0, 3)], [(0, 2, 3)], [(2, 1, 3)]]
    assert [len(rows(tmp_path, file)) for file in result.files] == [file.records for file in result.files]
    assert len({file.path for file in result.files}) == 3


def test_an_unavailable_broker_is_a_result_without_an_exception(run: Run, cluster: Cluster) -> None:
    cluster.failures[TopicPartition("orders", 0), 0] = KafkaUnavailable("cannot connect to broker b:1")
    (found,) = run(offsets(0, 4)).ranges
    assert found.done.end == 0 and "cannot connect" in found.error and found.is_broker_error


def test_an_unexpected_exception_fails_only_its_range(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(0, {0: message(0)})
    cluster.put(1, {0: message(0)})
    cluster.failures[TopicPartition("orders", 0), 0] = RuntimeError("a defect")
    broken, fine = run(offsets(0, 1), offsets(0, 1, partition=1)).ranges
    assert "topic orders partition 0 offset 0: RuntimeError: a defect" in broken.error and not broken.is_broker_error
    assert fine.counts.records == 1


def test_the_next_partition_is_prefetched_while_the_last_batch_is_processed(run: Run, cluster: Cluster) -> None:
    partitions = (0, 4, 2)
    for partition in partitions:
        for n in (0, 1, 2):
            cluster.put(partition, {n: message(n)})
    run(*(offsets(0, 3, partition=partition) for partition in partitions))
    assert [(at.partition, offset) for at, offset, _, _ in cluster.fetches] == [
        (partition, n) for partition in partitions for n in (0, 1, 2)
    ]
    assert cluster.prefetched == cluster.fetches[1:], "with the same arguments as the later fetches"
    assert cluster.expected == ["orders"]


def test_an_empty_range_is_done(run: Run) -> None:
    (found,) = run(offsets(7, 7)).ranges
    assert (found.done.start, found.done.end, found.error) == (7, 7, "")


def test_a_foreign_build_reads_nothing(run: Run, cluster: Cluster) -> None:
    result = run(offsets(0, 1), build="headrace 9.9, Python 2.7")
    assert "headrace 9.9, Python 2.7" in result.error and current_build() in result.error
    assert result.ranges[0].done.end == 0 and not cluster.requested


def test_staging_that_cannot_be_written_fails_the_unit(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cluster.put(0, {0: message(0)})
    result = run(offsets(0, 1), staging=str(tmp_path / "file"))
    assert str(tmp_path / "file") in result.disk_error and result.error == ""
    assert result.ranges[0].done.end == 0 and result.files == ()


def test_settings_that_no_task_can_start_with_fail_the_load(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "KafkaCluster", KafkaCluster)
    result = run(offsets(0, 1), bootstrap_servers="b:port")
    assert re.match(r"task 3 .*\bb:port: ", result.error)
    assert result.disk_error == ""


def test_an_invalid_load_schema_fails_the_topic(run: Run, cluster: Cluster) -> None:
    (found,) = run(offsets(0, 1), plan=TopicPlan("orders", "{", {}, POLICY)).ranges
    assert re.search(r"\borders:1:2: ", found.error)


def test_a_load_schema_that_no_file_can_have_fails_its_topic_and_not_the_others(
    cluster: Cluster, unit: Callable[..., WorkUnit]
) -> None:
    load_schema = json.dumps({**json.loads(LOAD), "namespace": "com.my-company"})  # as earlier releases folded it
    cluster.put(0, {0: message(0)})
    cluster.put(0, {0: message(1)}, topic="clicks")
    both = unit(offsets(0, 1), OffsetRange(TopicPartition("clicks", 0), 0, 1))
    clicks = replace(PLAN, topic="clicks", load_schema=load_schema)
    result = run_work_unit(replace(both, topics={**both.topics, "clicks": clicks}))
    assert [file.topic for file in result.files] == ["orders"]
    assert [one.counts.records for one in result.ranges] == [1, 0]
    assert '"my-company"' in result.ranges[1].error


@pytest.mark.parametrize("column", ["none", "full"])
def test_the_kafka_column_has_the_configured_fields(run: Run, cluster: Cluster, tmp_path: Path, column: str) -> None:
    cluster.put(0, {0: message(0)}, headers=[("h", b"v")])
    result = run(offsets(0, 1), kafka_column=column, partition_by="day")
    assert result.files[0].time_partition == "dt=2013-01-01"
    (row,) = rows(tmp_path, result.files[0])
    if column == "none":
        assert list(row) == ["timestamp", "n"]
    else:
        assert (row["kafka"]["key"], row["kafka"]["headers"]) == (b"k0", [{"key": "h", "value": b"v"}])


def test_a_future_message_is_stored_by_record_time_if_the_policy_says_so(run: Run, cluster: Cluster) -> None:
    cluster.put(0, {0: message(0, T0 + 3 * HOUR_MS), 1: message(1, T0 + 5 * HOUR_MS)})  # records of 1970
    (file,) = run(offsets(0, 1), now_ms=T0).files
    assert file.time_partition == "dt=2013-01-01/hr=04"
    result = run(offsets(0, 2), now_ms=T0, future_ms_max=HOUR_MS)
    assert [one.time_partition for one in result.files] == ["dt=1970-01-01/hr=00"]
    (found,) = result.ranges
    assert found.time_sources == {FUTURE_TIME: 2}
    windows = {count.window_start_ms for count in found.audit}
    assert windows == {T0 + 3 * HOUR_MS, T0 + 5 * HOUR_MS}
    assert [one.time_partition for one in run(offsets(0, 2), now_ms=T0, future_ms_max=10**15).files] == [
        "dt=2013-01-01/hr=04",
        "dt=2013-01-01/hr=06",
    ]


def test_each_topic_of_a_task_has_files_of_its_own_format(
    run: Run, cluster: Cluster, unit: Callable[..., WorkUnit], tmp_path: Path
) -> None:
    cluster.put(0, {0: message(0)})
    cluster.put(0, {0: message(1)}, topic="clicks")
    clicks = replace(
        PLAN, topic="clicks", policy=replace(POLICY, partition_by="day", codec="null", kafka_column="none")
    )
    both = unit(offsets(0, 1), OffsetRange(TopicPartition("clicks", 0), 0, 1))
    found = {file.topic: file for file in run_work_unit(replace(both, topics={**both.topics, "clicks": clicks})).files}
    assert {topic: file.time_partition for topic, file in found.items()} == {
        "orders": "dt=2013-01-01/hr=01",
        "clicks": "dt=2013-01-01",
    }
    assert [list(row) for row in rows(tmp_path, found["clicks"])] == [["timestamp", "n"]]
    assert [list(row) for row in rows(tmp_path, found["orders"])] == [["timestamp", "n", "kafka"]]
    with (tmp_path / "staging" / "w" / found["clicks"].path).open("rb") as handle:
        assert fastavro.reader(handle).codec == "null"


def test_a_schema_id_in_a_header_wins_over_the_value(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    body = message(5)[5:]
    cluster.put(0, {0: body}, headers=[("__value_schema_id", b"\x00\x00\x00\x00\x01")])
    cluster.put(0, {1: message(6)}, headers=[("trace", b"x")])
    result = run(offsets(0, 2))
    assert [row["n"] for row in rows(tmp_path, result.files[0])] == [5, 6]


def test_a_disk_error_on_finish_returns_no_files_and_counts(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(sink, "fsync", fail)
    cluster.put(0, {0: message(0)})
    result = run(offsets(0, 1))
    assert "No space left on device" in result.disk_error and result.error == "" and result.files == ()
    assert result.ranges[0].done.end == 0 and result.ranges[0].counts.total == 0


def test_file_names_contain_run_and_task(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    cluster.put(0, {0: message(0)})
    (file,) = run(offsets(0, 1)).files
    with (tmp_path / "staging" / "w" / file.path).open("rb") as handle:
        metadata = fastavro.reader(handle).metadata
    assert (metadata["headrace.run_id"], metadata["headrace.task"]) == ("w", "3")


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
@pytest.mark.parametrize("block_bytes", [1, 1_000, 1 << 20])
def test_core_and_reference_write_identical_files(
    cluster: Cluster,
    unit: Callable[..., WorkUnit],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    codec: str,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    chance = random.Random(1)
    for first in range(0, 400, 40):
        values: dict[int, bytes | None] = {
            n: chance.choice((None, b"bad", message(n, -1), *[message(n, T0 + n % 7 * HOUR_MS)] * 20))
            for n in range(first, first + 40)
        }
        cluster.put(0, values, headers=[("h", b"v")] * (first % 3))

    required_core()

    def made() -> tuple[UnitResult, list[bytes]]:
        result = run_work_unit(unit(offsets(3, 395), codec=codec, block_bytes=block_bytes))
        files = [(tmp_path / "staging" / "w" / file.path).read_bytes() for file in result.files]
        shutil.rmtree(tmp_path / "staging")  # the random part of the names is patched, so they repeat
        return result, files

    by_core, core_files = made()
    monkeypatch.setattr(avro_codec, "_CORE", None)
    by_reference, reference_files = made()
    assert core_files == reference_files
    assert len(core_files) > 7
    assert by_core.ranges == by_reference.ranges
    assert [one.by_reference for one in by_reference.ranges] == [0], "only counted if the core makes the other rows"
    (one,) = by_core.ranges
    irregular = one.counts.quarantined + one.time_sources[OUT_OF_RANGE_TIME]
    # The reference makes the odd messages, and the first message while its program is compiled.
    assert 0 < one.by_reference <= irregular + 1
    assert by_core.build != by_reference.build


def test_a_retried_task_writes_separate_files(run: Run, cluster: Cluster) -> None:
    cluster.put(0, {0: message(0)})
    first, second = run(offsets(0, 1)), run(offsets(0, 1))
    assert first.files[0].path != second.files[0].path
    assert first.files[0].records == second.files[0].records


def test_time_partitions_of_hour_and_day() -> None:
    hours, days = TimePartitions("hour"), TimePartitions("day")
    assert (hours(T0 + 1), days(T0)) == ("dt=2013-01-01/hr=01", "dt=2013-01-01")
    assert hours(253_402_300_799_999) == "dt=9999-12-31/hr=23"
    assert hours(-1) == hours(2**62) == "dt=1970-01-01/hr=00"
