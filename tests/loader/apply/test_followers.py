"""Followers alone and together: order, cursors, failures and repetition."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.audit.row import Outcome
from headrace.audit.window import OUT_OF_RANGE_MS, WINDOW_MS
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.apply import group_offsets
from headrace.loader.apply.audit import audit_rows
from headrace.loader.apply.base import Step
from headrace.loader.apply.engine import FollowerEngine, cursor_path, read_cursor
from headrace.loader.apply.files import FilesFollower
from headrace.loader.apply.group_offsets import GROUP, GroupOffsetsFollower
from headrace.loader.apply.layout import bucket_folder
from headrace.loader.commit.decision import Decision, WindowCount
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.errors import PublishedFileLost
from headrace.loader.storage.local import local_storage
from headrace.loader.storage.local.slots import LocalSlots
from headrace.loader.storage.local.staging import LocalStaging
from headrace.loader.work_unit import FileKind, PassedOver
from support.loader.file_checksums import checksum_of
from support.loader.loader_samples import (
    BUCKET,
    clean,
    decided_file,
    decided_range,
    decisions_of,
    load,
    step_of,
    topic_decision,
)


@dataclass
class Recorder:
    """A follower that notes what it applied; it fails for the topics in `failing`."""

    name: str
    seen: list[tuple[str, str, tuple[int, ...]]]
    failing: set[str] = field(default_factory=set)
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        if step.topic in self.failing:
            raise KafkaUnavailable("it is down")
        self.seen.append((self.name, step.topic, tuple(decision.slot for decision in step.decisions)))


@pytest.fixture
def log(tmp_path: Path) -> DecisionLog:
    log = DecisionLog(LocalSlots(tmp_path / "_headrace"))
    log.open()
    return log


def decide(log: DecisionLog, work: str, *topics: str, new: bool = False) -> Decision:
    state = log.read_state()
    decisions = {}
    for topic in topics:
        known = state.topics.get(topic)
        previous = known.partitions[0].next_offset if known else None
        start = previous or 0
        content = b"x" * 1000
        checksum = checksum_of(content)
        files = [dataclasses.replace(decided_file("0-0.avro", 0, start, start + 1), checksum=checksum)]
        staged = log.storage.root / "staging" / work / files[0].staged
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(content)
        decisions[topic] = topic_decision(
            decided_range(0, previous, start, start + 1), files=files, new=known is None, table=topic
        )
    offered = log.offer(load(work, decisions))
    assert offered.decision is not None
    return offered.decision


def test_each_topic_follows_in_order_and_only_once(log: DecisionLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    engine = FollowerEngine(log, LocalStaging(log.storage.root), (Recorder("schema", seen), Recorder("files", seen)))
    decide(log, "w1", "a", "b")
    decide(log, "w2", "b")
    log.offer(clean("c1", "w0"))
    assert engine.follow().topics == ("a", "b")
    assert seen == [("schema", "a", (1,)), ("schema", "b", (1, 2)), ("files", "a", (1,)), ("files", "b", (1, 2))]
    seen.clear()
    assert engine.follow().topics == ()
    assert seen == []


def test_a_failing_topic_is_held_and_goes_on_where_it_stopped(log: DecisionLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    schema = Recorder("schema", seen, {"a"})
    engine = FollowerEngine(log, LocalStaging(log.storage.root), (schema, Recorder("files", seen)))
    decide(log, "w1", "a", "b")
    followed = engine.follow()
    assert followed.failures["a"].follower == "schema"
    assert seen == [("schema", "b", (1,)), ("files", "b", (1,))]
    assert log.storage.exists("staging/w1")
    decide(log, "w2", "b")
    engine.follow()
    schema.failing.clear()
    seen.clear()
    assert (
        FollowerEngine(log, LocalStaging(log.storage.root), (schema, Recorder("files", seen))).follow().failures == {}
    )
    assert seen == [("schema", "a", (1,)), ("files", "a", (1,))]
    assert not log.storage.exists("staging/w1")


def test_an_advisory_follower_warns_and_is_tried_again(log: DecisionLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    advisory = Recorder("group_offsets", seen, {"a"}, is_advisory=True)
    engine = FollowerEngine(log, LocalStaging(log.storage.root), (Recorder("files", seen), advisory))
    decide(log, "w1", "a")
    followed = engine.follow()
    assert followed.failures == {}
    (warning,) = followed.warnings
    assert re.match(r"group_offsets .*\ba: it is down$", warning)
    advisory.failing.clear()
    seen.clear()
    engine.follow()
    assert seen == [("group_offsets", "a", (1,))]
    assert read_cursor(log.storage, "group_offsets").behind == {}, "though no slot came since"


def test_a_topic_that_is_behind_costs_its_own_decisions_only(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a follower that only advises: what it is refused for months must not make every run read everything."""
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    advisory = Recorder("group_offsets", seen, {"a"}, is_advisory=True)
    engine = FollowerEngine(log, LocalStaging(log.storage.root), (Recorder("files", seen), advisory))
    decide(log, "w0", "a", "b")
    for number in range(1, 20):
        decide(log, f"w{number}", "b")
    decide(log, "w20", "a", "b")
    engine.follow()
    decide(log, "w21", "b")
    read: list[int] = []
    document = DecisionLog.document
    monkeypatch.setattr(DecisionLog, "document", lambda log, slot: read.append(slot) or document(log, slot))
    advisory.failing.clear()
    seen.clear()
    engine.follow()
    assert seen == [("files", "b", (22,)), ("group_offsets", "a", (1, 21)), ("group_offsets", "b", (22,))]
    assert set(read) == {1, 21, 22}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"upto":"x"}',
        '{"upto":99,"work_id":"w1","behind":{}}',
        '{"upto":1,"work_id":"of a log that was replaced","behind":{}}',
    ],
)
def test_a_cursor_that_cannot_be_right_is_begun_again(log: DecisionLog, content: str) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    decide(log, "w1", "a")
    engine = FollowerEngine(log, LocalStaging(log.storage.root), (Recorder("files", seen),))
    engine.follow()
    log.storage.replace(cursor_path("files"), content.encode())
    engine.follow()
    assert seen == [("files", "a", (1,))] * 2


def test_a_process_that_woke_up_late_leaves_a_newer_cursor_alone(log: DecisionLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    decide(log, "w1", "a")

    class Overtaken(Recorder):
        def apply(self, step: Step) -> None:
            log.storage.replace(cursor_path("files"), json.dumps({"upto": 5, "work_id": "w5", "behind": {}}).encode())

    FollowerEngine(log, LocalStaging(log.storage.root), (Overtaken("files", seen),)).follow()
    assert read_cursor(log.storage, "files").upto == 5


def test_a_cursor_of_a_process_that_was_faster_is_believed(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides, and follows, between this one's look at the log and at the cursor."""
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    staging = LocalStaging(log.storage.root)
    other = DecisionLog(LocalSlots(log.storage.root))
    decide(other, "w1", "a", "b")
    FollowerEngine(other, staging, (Recorder("files", []),)).follow()
    known = log.read_state()
    decide(other, "w2", "b")
    FollowerEngine(other, staging, (Recorder("files", []),)).follow()
    monkeypatch.setattr(log, "read_state", lambda: known)
    FollowerEngine(log, staging, (Recorder("files", seen),)).follow()
    assert seen == []
    assert read_cursor(log.storage, "files").upto == 2


def test_a_rewound_follower_begins_again_even_after_a_crash(log: DecisionLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    decide(log, "w1", "a")

    class Rewinding(Recorder):
        def apply(self, step: Step) -> None:
            step.rewind("partitions")

    class Dying(Recorder):
        def apply(self, step: Step) -> None:
            raise KeyboardInterrupt

    partitions = Recorder("partitions", seen)
    FollowerEngine(log, LocalStaging(log.storage.root), (Recorder("schema", []), partitions)).follow()
    decide(log, "w2", "a")
    with pytest.raises(KeyboardInterrupt):
        FollowerEngine(log, LocalStaging(log.storage.root), (Rewinding("schema", []), Dying("partitions", []))).follow()
    seen.clear()
    FollowerEngine(log, LocalStaging(log.storage.root), (Recorder("schema", []), partitions)).follow()
    assert seen == [("partitions", "a", (1, 2))]


def test_files_are_published_by_several_processes_at_once(log: DecisionLog, tmp_path: Path) -> None:
    for number in range(30):
        decide(log, f"w{number}", "orders")
    failures: list[object] = []

    def drive() -> None:
        own = DecisionLog(LocalSlots(tmp_path / "_headrace"))
        follower = FilesFollower(local_storage(tmp_path).files, FileIndex(own))
        engine = FollowerEngine(own, LocalStaging(own.storage.root), (follower,))
        failures.extend(engine.follow().failures.values())

    threads = [threading.Thread(target=drive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    names = sorted(path.name for path in (tmp_path / "orders" / BUCKET).iterdir())
    assert names == sorted(f"0-{slot}-w{slot - 1}-0-0.avro" for slot in range(1, 31))
    assert log.storage.children("staging") == ()


def test_a_decided_file_that_is_lost_holds_its_topic(log: DecisionLog, tmp_path: Path) -> None:
    decision = decide(log, "w1", "orders")
    local_storage(tmp_path).staging.drop("w1")
    follower = FilesFollower(local_storage(tmp_path).files, FileIndex(log))
    with pytest.raises(PublishedFileLost, match=r"\borders\b"):
        follower.apply(step_of(log.read_state(), "orders", (decision,)))


def test_a_file_that_was_published_and_is_gone_is_told_and_holds_nothing_up(log: DecisionLog, tmp_path: Path) -> None:
    for number in range(2):
        decide(log, f"w{number}", "orders")
    storage = local_storage(tmp_path)
    follower = FilesFollower(storage.files, FileIndex(log))
    FollowerEngine(log, storage.staging, (follower,)).follow()
    log.offer(dataclasses.replace(load("w2", {}), published=frozenset({"w0", "w1"})))
    (tmp_path / "orders" / BUCKET / "0-1-w0-0-0.avro").unlink()
    warnings: list[str] = []
    state = log.read_state()
    follower.apply(step_of(state, "orders", decisions_of(log, "orders", state), warn=warnings.append))
    (warning,) = warnings
    assert re.match(rf"orders: .*\b{BUCKET}\b.*\b1\b.*`headrace forget orders --bucket {BUCKET}`", warning)


def test_audit_rows_of_a_decision_are_always_the_same(log: DecisionLog) -> None:
    decision = decide(log, "w1", "orders")
    once, again = list(audit_rows("orders", decision, "h")), list(audit_rows("orders", decision, "h"))
    assert once == again
    assert len({row.id for row in once}) == len(once) == 1
    assert (once[0].count, once[0].start, once[0].end, once[0].partition) == (5, 0, 1, 0)


def test_what_a_decision_passed_over_is_told_to_the_audit(log: DecisionLog) -> None:
    decision = decide(log, "w1", "orders")
    decided = decision.topics["orders"]
    passed = PassedOver(3, 9, "the checksum is wrong", is_kept=True)
    ranges = (dataclasses.replace(decided.ranges[0], passed_over=(passed,)),)
    changed = dataclasses.replace(decision, topics={"orders": dataclasses.replace(decided, ranges=ranges)})
    told, *counts = audit_rows("orders", changed, "h")
    assert (told.outcome, told.count, told.partition, told.start, told.end) == (Outcome.PASSED_OVER, 6, 0, 3, 9)
    assert told.window_start_ms == decision.decided_at_ms - decision.decided_at_ms % WINDOW_MS
    assert counts == list(audit_rows("orders", decision, "h"))
    again = (dataclasses.replace(ranges[0], incarnation=1),)
    changed = dataclasses.replace(decision, topics={"orders": dataclasses.replace(decided, ranges=again)})
    assert next(audit_rows("orders", changed, "h")).id != told.id, "the log was cut back and grew: other messages"


def test_absurd_windows_that_earlier_versions_decided_are_one_and_keep_their_ids(log: DecisionLog) -> None:
    decision = decide(log, "w1", "orders")
    decided = decision.topics["orders"]
    windows = tuple(WindowCount(start_ms, 1, 1, 1) for start_ms in (-(10**9) * WINDOW_MS, 0, 10**12 * WINDOW_MS))
    series = (dataclasses.replace(decided.audit[0], windows=windows),)
    changed = dataclasses.replace(decision, topics={"orders": dataclasses.replace(decided, audit=series)})
    rows = list(audit_rows("orders", changed, "h"))
    assert [row.window_start_ms for row in rows] == [OUT_OF_RANGE_MS, 0, OUT_OF_RANGE_MS]
    assert len({row.id for row in rows}) == 3


def test_group_offsets_are_those_of_the_newest_state(log: DecisionLog) -> None:
    first = decide(log, "w1", "orders")
    decide(log, "w2", "orders")
    committed: dict[str, object] = {}

    class Cluster:
        def commit_group_offsets(self, group: str, offsets: object) -> dict[TopicPartition, str]:
            committed[group] = offsets
            return {}

    follower = GroupOffsetsFollower(Cluster())
    assert follower.apply_together([step_of(log.read_state(), "orders", (first,))]) == {}
    assert committed == {GROUP: {TopicPartition("orders", 0): 2}}


def test_offsets_of_many_topics_are_committed_together_and_those_that_are_refused_are_their_own_trouble(
    log: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "OFFSETS_AT_ONCE", 2)
    committed: list[list[str]] = []
    refused = {"b", "e"}

    class Cluster:
        def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
            committed.append([tp.topic for tp in offsets])
            return {tp: "UNKNOWN_TOPIC_OR_PARTITION" for tp in offsets if tp.topic in refused}

    follower = GroupOffsetsFollower(Cluster())
    engine = FollowerEngine(log, LocalStaging(log.storage.root), [follower])
    decide(log, "w1", "a", "b", "c", "d", "e")
    followed = engine.follow()
    assert committed == [["a", "b"], ["c", "d"], ["e"]]
    for topic, warning in zip("be", followed.warnings, strict=True):
        assert re.match(rf"group_offsets .*\b{topic}: .*\b0\b.*: UNKNOWN_TOPIC_OR_PARTITION$", warning)
    assert followed.failures == {}
    committed.clear()
    refused.clear()
    assert engine.follow().warnings == ()
    assert committed == [["b", "e"]]
    committed.clear()
    engine.follow()
    assert committed == []


def test_one_time_out_of_the_coordinator_is_enough(log: DecisionLog) -> None:
    decision = decide(log, "w1", "orders")
    calls: list[int] = []

    class Cluster:
        def commit_group_offsets(self, group: str, offsets: object) -> dict[TopicPartition, str]:
            calls.append(1)
            raise KafkaUnavailable("no coordinator")

    follower = GroupOffsetsFollower(Cluster())
    step = step_of(log.read_state(), "orders", (decision,))
    for _ in range(2):
        with pytest.raises(KafkaUnavailable):
            follower.apply_together([step])
    assert len(calls) == 1


def test_where_no_offsets_can_be_committed_every_topic_waits_for_the_next_run(log: DecisionLog) -> None:
    errors: list[Exception] = [KafkaUnavailable("no coordinator")]
    committed: list[str] = []

    class Cluster:
        def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
            if errors:
                raise errors.pop()
            committed.extend(tp.topic for tp in offsets)
            return {}

    decide(log, "w1", "a", "b")
    staging = LocalStaging(log.storage.root)
    first = FollowerEngine(log, staging, [GroupOffsetsFollower(Cluster())]).follow()
    for topic, warning in zip("ab", first.warnings, strict=True):
        assert re.match(rf"group_offsets .*\b{topic}: no coordinator$", warning)
    again = FollowerEngine(log, staging, [GroupOffsetsFollower(Cluster())]).follow()
    assert (again.warnings, committed) == ((), ["a", "b"])


def test_only_the_schema_follower_looks_though_nothing_is_pending(log: DecisionLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    engine = FollowerEngine(
        log, LocalStaging(log.storage.root), [Recorder(name, seen) for name in ("index", "schema", "files")]
    )
    decide(log, "w1", "a", "b")
    engine.follow()
    seen.clear()
    engine.follow(also=["a"])
    assert seen == [("schema", "a", ())]


def test_rewritten_buckets_are_in_the_folder_of_their_generation() -> None:
    assert bucket_folder("orders", FileKind.DATA, BUCKET, 0) == f"orders/{BUCKET}"
    assert bucket_folder("orders", FileKind.DATA, BUCKET, 3) == f"orders/_g3/{BUCKET}"
    assert bucket_folder("orders", FileKind.QUARANTINE, BUCKET, 3) == f"_quarantine/orders/_g3/{BUCKET}"
