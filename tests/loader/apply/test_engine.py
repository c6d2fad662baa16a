"""Appliers alone and together: order, cursors, failures and repetition."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.audit.row import AuditOutcome
from headrace.audit.window import OUT_OF_RANGE_MS, WINDOW_MS
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.apply import group_offsets
from headrace.loader.apply.audit import audit_rows
from headrace.loader.apply.base import Step
from headrace.loader.apply.engine import ApplierEngine, Cursor, cursor_path, read_cursor
from headrace.loader.apply.files import FilesApplier
from headrace.loader.apply.group_offsets import GROUP, GroupOffsetsApplier
from headrace.loader.apply.layout import time_partition_directory
from headrace.loader.commit.commit import Commit, WindowCount
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import write_document
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.errors import PublishedFileLost
from headrace.loader.storage.local import local_storage
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.staging import LocalStaging
from headrace.loader.work_unit import FileKind, SkippedOffsets
from support.loader.file_checksums import checksum_of
from support.loader.loader_samples import (
    TIME_PARTITION,
    clean,
    commits_of,
    committed_file,
    committed_range,
    load,
    step_of,
    topic_commit,
)


@dataclass
class Recorder:
    """An applier that records what it applied. It fails for the topics in `failing`."""

    name: str
    seen: list[tuple[str, str, tuple[int, ...]]]
    failing: set[str] = field(default_factory=set)
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        if step.topic in self.failing:
            raise KafkaUnavailable("it is down")
        self.seen.append((self.name, step.topic, tuple(commit.commit_number for commit in step.commits)))


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    log = CommitLog(LocalCommitStorage(tmp_path / "_headrace"))
    log.open()
    return log


def add_commit(log: CommitLog, work: str, *topics: str, new: bool = False) -> Commit:
    state = log.read_state()
    commits = {}
    for topic in topics:
        known = state.topics.get(topic)
        previous = known.partitions[0].next_offset if known else None
        start = previous or 0
        content = b"x" * 1000
        checksum = checksum_of(content)
        files = [dataclasses.replace(committed_file("0-0.avro", 0, start, start + 1), checksum=checksum)]
        staged = log.storage.root / "staging" / work / files[0].staged
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(content)
        commits[topic] = topic_commit(
            committed_range(0, previous, start, start + 1), files=files, new=known is None, table=topic
        )
    commit_result = log.try_commit(load(work, commits))
    assert commit_result.commit is not None
    return commit_result.commit


def test_each_topics_commits_are_applied_once_and_in_order(log: CommitLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    engine = ApplierEngine(log, LocalStaging(log.storage.root), (Recorder("schema", seen), Recorder("files", seen)))
    add_commit(log, "w1", "a", "b")
    add_commit(log, "w2", "b")
    log.try_commit(clean("c1", "w0"))
    assert engine.apply_pending().topics == ("a", "b")
    assert seen == [("schema", "a", (1,)), ("schema", "b", (1, 2)), ("files", "a", (1,)), ("files", "b", (1, 2))]
    seen.clear()
    assert engine.apply_pending().topics == ()
    assert seen == []


def test_a_failing_topic_is_held_back_and_resumes_at_the_failed_commit(log: CommitLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    schema = Recorder("schema", seen, {"a"})
    engine = ApplierEngine(log, LocalStaging(log.storage.root), (schema, Recorder("files", seen)))
    add_commit(log, "w1", "a", "b")
    applied = engine.apply_pending()
    assert applied.failures["a"].applier == "schema"
    assert seen == [("schema", "b", (1,)), ("files", "b", (1,))]
    assert log.storage.exists("staging/w1")
    add_commit(log, "w2", "b")
    engine.apply_pending()
    schema.failing.clear()
    seen.clear()
    assert (
        ApplierEngine(log, LocalStaging(log.storage.root), (schema, Recorder("files", seen))).apply_pending().failures
        == {}
    )
    assert seen == [("schema", "a", (1,)), ("files", "a", (1,))]
    assert not log.storage.exists("staging/w1")


def test_a_failing_advisory_applier_warns_and_is_retried(log: CommitLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    advisory = Recorder("group_offsets", seen, {"a"}, is_advisory=True)
    engine = ApplierEngine(log, LocalStaging(log.storage.root), (Recorder("files", seen), advisory))
    add_commit(log, "w1", "a")
    applied = engine.apply_pending()
    assert applied.failures == {}
    (warning,) = applied.warnings
    assert re.match(r"applier group_offsets, .*\ba: it is down$", warning)
    advisory.failing.clear()
    seen.clear()
    engine.apply_pending()
    assert seen == [("group_offsets", "a", (1,))]
    assert read_cursor(log.storage, "group_offsets").lagging == {}, "although there is no new commit"


def test_a_topic_that_is_behind_reads_only_its_own_commits(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for an advisory applier too: after months of failures, a run must not read all commits."""
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    advisory = Recorder("group_offsets", seen, {"a"}, is_advisory=True)
    engine = ApplierEngine(log, LocalStaging(log.storage.root), (Recorder("files", seen), advisory))
    add_commit(log, "w0", "a", "b")
    for number in range(1, 20):
        add_commit(log, f"w{number}", "b")
    add_commit(log, "w20", "a", "b")
    engine.apply_pending()
    add_commit(log, "w21", "b")
    read: list[int] = []
    document = CommitLog.document
    monkeypatch.setattr(
        CommitLog, "document", lambda log, commit_number: read.append(commit_number) or document(log, commit_number)
    )
    advisory.failing.clear()
    seen.clear()
    engine.apply_pending()
    assert seen == [("files", "b", (22,)), ("group_offsets", "a", (1, 21)), ("group_offsets", "b", (22,))]
    assert set(read) == {1, 21, 22}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"commit_number":"x"}',
        write_document(Cursor(99, sha256="of commit 99")),
        write_document(Cursor(1, sha256="of a log that was replaced")),
    ],
)
def test_an_invalid_cursor_is_reset(log: CommitLog, content: bytes) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    add_commit(log, "w1", "a")
    engine = ApplierEngine(log, LocalStaging(log.storage.root), (Recorder("files", seen),))
    engine.apply_pending()
    log.storage.replace(cursor_path("files"), content)
    engine.apply_pending()
    assert seen == [("files", "a", (1,))] * 2


def test_a_resumed_process_does_not_overwrite_a_newer_cursor(log: CommitLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    add_commit(log, "w1", "a")

    class Overtaken(Recorder):
        def apply(self, step: Step) -> None:
            log.storage.replace(cursor_path("files"), write_document(Cursor(5, sha256="of commit 5")))

    ApplierEngine(log, LocalStaging(log.storage.root), (Overtaken("files", seen),)).apply_pending()
    assert read_cursor(log.storage, "files").commit_number == 5


def test_a_newer_cursor_of_a_faster_process_is_accepted(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process commits and applies after this one has read the log and before it reads the cursor."""
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    staging = LocalStaging(log.storage.root)
    other = CommitLog(LocalCommitStorage(log.storage.root))
    add_commit(other, "w1", "a", "b")
    ApplierEngine(other, staging, (Recorder("files", []),)).apply_pending()
    known = log.read_state()
    add_commit(other, "w2", "b")
    ApplierEngine(other, staging, (Recorder("files", []),)).apply_pending()
    monkeypatch.setattr(log, "read_state", lambda: known)
    ApplierEngine(log, staging, (Recorder("files", seen),)).apply_pending()
    assert seen == []
    assert read_cursor(log.storage, "files").commit_number == 2


def test_a_rewound_applier_starts_from_the_beginning_even_after_a_crash(log: CommitLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    add_commit(log, "w1", "a")

    class Rewinding(Recorder):
        def apply(self, step: Step) -> None:
            step.rewind("partitions")

    class Dying(Recorder):
        def apply(self, step: Step) -> None:
            raise KeyboardInterrupt

    partitions = Recorder("partitions", seen)
    ApplierEngine(log, LocalStaging(log.storage.root), (Recorder("schema", []), partitions)).apply_pending()
    add_commit(log, "w2", "a")
    with pytest.raises(KeyboardInterrupt):
        ApplierEngine(
            log, LocalStaging(log.storage.root), (Rewinding("schema", []), Dying("partitions", []))
        ).apply_pending()
    seen.clear()
    ApplierEngine(log, LocalStaging(log.storage.root), (Recorder("schema", []), partitions)).apply_pending()
    assert seen == [("partitions", "a", (1, 2))]


def test_concurrent_processes_publish_each_file_once(log: CommitLog, tmp_path: Path) -> None:
    for number in range(30):
        add_commit(log, f"w{number}", "orders")
    failures: list[object] = []

    def run_engine() -> None:
        own = CommitLog(LocalCommitStorage(tmp_path / "_headrace"))
        applier = FilesApplier(local_storage(tmp_path).files, FileIndex(own))
        engine = ApplierEngine(own, LocalStaging(own.storage.root), (applier,))
        failures.extend(engine.apply_pending().failures.values())

    threads = [threading.Thread(target=run_engine) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    names = sorted(path.name for path in (tmp_path / "orders" / TIME_PARTITION).iterdir())
    assert names == sorted(f"0-{commit_number}-w{commit_number - 1}-0-0.avro" for commit_number in range(1, 31))
    assert log.storage.children("staging") == ()


def test_a_missing_committed_file_holds_back_its_topic(log: CommitLog, tmp_path: Path) -> None:
    commit = add_commit(log, "w1", "orders")
    local_storage(tmp_path).staging.drop("w1")
    applier = FilesApplier(local_storage(tmp_path).files, FileIndex(log))
    with pytest.raises(PublishedFileLost, match=r"\borders\b"):
        applier.apply(step_of(log.read_state(), "orders", (commit,)))


def test_a_missing_published_file_is_reported_and_holds_nothing_back(log: CommitLog, tmp_path: Path) -> None:
    for number in range(2):
        add_commit(log, f"w{number}", "orders")
    storage = local_storage(tmp_path)
    applier = FilesApplier(storage.files, FileIndex(log))
    ApplierEngine(log, storage.staging, (applier,)).apply_pending()
    log.try_commit(dataclasses.replace(load("w2", {}), published=frozenset({"w0", "w1"})))
    (tmp_path / "orders" / TIME_PARTITION / "0-1-w0-0-0.avro").unlink()
    warnings: list[str] = []
    state = log.read_state()
    applier.apply(step_of(state, "orders", commits_of(log, "orders", state), warn=warnings.append))
    (warning,) = warnings
    assert re.match(
        rf"orders: 1 .*\b{TIME_PARTITION}\b.*`headrace accept-missing orders --time-partition {TIME_PARTITION}`",
        warning,
    )


def test_audit_rows_of_a_commit_are_deterministic(log: CommitLog) -> None:
    commit = add_commit(log, "w1", "orders")
    once, again = list(audit_rows("orders", commit, "h")), list(audit_rows("orders", commit, "h"))
    assert once == again
    assert len({row.id for row in once}) == len(once) == 1
    assert (once[0].count, once[0].start, once[0].end, once[0].partition) == (5, 0, 1, 0)


def test_skipped_offsets_of_a_commit_become_audit_rows(log: CommitLog) -> None:
    commit = add_commit(log, "w1", "orders")
    committed = commit.topics["orders"]
    passed = SkippedOffsets(3, 9, "the checksum is wrong", is_quarantined=True)
    ranges = (dataclasses.replace(committed.ranges[0], skipped=(passed,)),)
    changed = dataclasses.replace(commit, topics={"orders": dataclasses.replace(committed, ranges=ranges)})
    skipped_row, *counts = audit_rows("orders", changed, "h")
    assert (skipped_row.outcome, skipped_row.count, skipped_row.partition, skipped_row.start, skipped_row.end) == (
        AuditOutcome.SKIPPED,
        6,
        0,
        3,
        9,
    )
    assert skipped_row.window_start_ms == commit.committed_at_ms - commit.committed_at_ms % WINDOW_MS
    assert counts == list(audit_rows("orders", commit, "h"))
    again = (dataclasses.replace(ranges[0], incarnation=1),)
    changed = dataclasses.replace(commit, topics={"orders": dataclasses.replace(committed, ranges=again)})
    assert next(audit_rows("orders", changed, "h")).id != skipped_row.id, "the log was truncated and has other messages"


def test_out_of_range_windows_of_earlier_commits_are_merged_and_keep_their_ids(log: CommitLog) -> None:
    commit = add_commit(log, "w1", "orders")
    committed = commit.topics["orders"]
    windows = tuple(WindowCount(start_ms, 1, 1, 1) for start_ms in (-(10**9) * WINDOW_MS, 0, 10**12 * WINDOW_MS))
    series = (dataclasses.replace(committed.audit[0], windows=windows),)
    changed = dataclasses.replace(commit, topics={"orders": dataclasses.replace(committed, audit=series)})
    rows = list(audit_rows("orders", changed, "h"))
    assert [row.window_start_ms for row in rows] == [OUT_OF_RANGE_MS, 0, OUT_OF_RANGE_MS]
    assert len({row.id for row in rows}) == 3


def test_group_offsets_are_those_of_the_newest_state(log: CommitLog) -> None:
    first = add_commit(log, "w1", "orders")
    add_commit(log, "w2", "orders")
    committed: dict[str, object] = {}

    class Cluster:
        def commit_group_offsets(self, group: str, offsets: object) -> dict[TopicPartition, str]:
            committed[group] = offsets
            return {}

    applier = GroupOffsetsApplier(Cluster())
    assert applier.apply_topics([step_of(log.read_state(), "orders", (first,))]) == {}
    assert committed == {GROUP: {TopicPartition("orders", 0): 2}}


def test_offsets_of_many_topics_are_committed_together_and_fail_separately(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "OFFSETS_PER_REQUEST_MAX", 2)
    committed: list[list[str]] = []
    refused = {"b", "e"}

    class Cluster:
        def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
            committed.append([tp.topic for tp in offsets])
            return {tp: "UNKNOWN_TOPIC_OR_PARTITION" for tp in offsets if tp.topic in refused}

    applier = GroupOffsetsApplier(Cluster())
    engine = ApplierEngine(log, LocalStaging(log.storage.root), [applier])
    add_commit(log, "w1", "a", "b", "c", "d", "e")
    applied = engine.apply_pending()
    assert committed == [["a", "b"], ["c", "d"], ["e"]]
    for topic, warning in zip("be", applied.warnings, strict=True):
        assert re.match(rf"applier group_offsets, .*\b{topic}: .*\b0\b.*: UNKNOWN_TOPIC_OR_PARTITION$", warning)
    assert applied.failures == {}
    committed.clear()
    refused.clear()
    assert engine.apply_pending().warnings == ()
    assert committed == [["b", "e"]]
    committed.clear()
    engine.apply_pending()
    assert committed == []


def test_a_coordinator_timeout_is_waited_for_once(log: CommitLog) -> None:
    commit = add_commit(log, "w1", "orders")
    calls: list[int] = []

    class Cluster:
        def commit_group_offsets(self, group: str, offsets: object) -> dict[TopicPartition, str]:
            calls.append(1)
            raise KafkaUnavailable("no coordinator")

    applier = GroupOffsetsApplier(Cluster())
    step = step_of(log.read_state(), "orders", (commit,))
    for _ in range(2):
        with pytest.raises(KafkaUnavailable):
            applier.apply_topics([step])
    assert len(calls) == 1


def test_without_a_coordinator_every_topic_waits_for_the_next_run(log: CommitLog) -> None:
    errors: list[Exception] = [KafkaUnavailable("no coordinator")]
    committed: list[str] = []

    class Cluster:
        def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
            if errors:
                raise errors.pop()
            committed.extend(tp.topic for tp in offsets)
            return {}

    add_commit(log, "w1", "a", "b")
    staging = LocalStaging(log.storage.root)
    first = ApplierEngine(log, staging, [GroupOffsetsApplier(Cluster())]).apply_pending()
    for topic, warning in zip("ab", first.warnings, strict=True):
        assert re.match(rf"applier group_offsets, .*\b{topic}: no coordinator$", warning)
    again = ApplierEngine(log, staging, [GroupOffsetsApplier(Cluster())]).apply_pending()
    assert (again.warnings, committed) == ((), ["a", "b"])


def test_only_the_schema_applier_runs_without_pending_commits(log: CommitLog) -> None:
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    engine = ApplierEngine(
        log, LocalStaging(log.storage.root), [Recorder(name, seen) for name in ("index", "schema", "files")]
    )
    add_commit(log, "w1", "a", "b")
    engine.apply_pending()
    seen.clear()
    engine.apply_pending(topics_to_compare=["a"])
    assert seen == [("schema", "a", ())]


def test_rewritten_time_partitions_are_in_the_directory_of_their_generation() -> None:
    assert time_partition_directory("orders", FileKind.DATA, TIME_PARTITION, 0) == f"orders/{TIME_PARTITION}"
    assert time_partition_directory("orders", FileKind.DATA, TIME_PARTITION, 3) == f"orders/_g3/{TIME_PARTITION}"
    assert (
        time_partition_directory("orders", FileKind.QUARANTINE, TIME_PARTITION, 3)
        == f"_quarantine/orders/_g3/{TIME_PARTITION}"
    )
