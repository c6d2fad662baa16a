"""The broker without sockets: topic files, group state, maintenance, and detection of corruption."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker import checkpoint_writer, producer_ids
from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator import coordinator as coordinator_module
from headrace.broker.coordinator import offsets as offsets_module
from headrace.broker.coordinator import table as table_module
from headrace.broker.coordinator.group import Group
from headrace.broker.coordinator.members import MemberProtocol
from headrace.broker.coordinator.messages import JoinRequest, SyncRequest
from headrace.broker.coordinator.offsets import METADATA_CHAR_BYTES, OFFSET_BYTES, RETENTION_MS
from headrace.broker.coordinator.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_key,
    encode_offset,
)
from headrace.broker.data_directory import CLEAN_MARKER, DELETED_DIRECTORY, LOCK_FILE
from headrace.broker.errors import CorruptFile, DataDirectoryInUse, LogDamaged, RequestRefused
from headrace.broker.log import decoding
from headrace.broker.log.checkpoints import LOG_STARTS, RECOVERY_POINTS, read_checkpoint, write_checkpoint
from headrace.broker.log.files import OpenFiles
from headrace.broker.log.index import TimeEntry
from headrace.broker.node import BrokerNode
from headrace.broker.producer_ids import BLOCK_SIZE, ProducerIds
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import check_config
from headrace.broker.topics import OFFSETS_TOPIC, Topic, check_topic_name
from support.broker.broker_samples import NOW_MS, append, batch, contents, keyed_batch, open_sample_log
from support.cases import all_cases
from support.logs import logged


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


def run(
    directory: Path,
    work: Callable[[BrokerNode], Coroutine[Any, Any, None]],
    *,
    clock: Callable[[], int] | None = None,
    is_killed: bool = False,
    fsync: FsyncMode = FsyncMode.INTERVAL,
    segment_bytes_max: int = 1 << 30,
    repairs_corrupt_logs: bool = False,
) -> None:
    """Opens a node on `directory`, runs `work`, and closes it; or drops it, as a kill would."""

    async def main() -> None:
        config = BrokerConfig(
            directory, fsync=fsync, segment_bytes_max=segment_bytes_max, repairs_corrupt_logs=repairs_corrupt_logs
        )
        node = BrokerNode(config, now_ms=clock or Clock())
        try:
            await work(node)
        finally:
            await node.close()
            if is_killed:
                (directory / CLEAN_MARKER).unlink()

    asyncio.run(main())


async def fail_if_started(node: BrokerNode) -> None:
    raise AssertionError("the start must fail")


def join(requires_known_member_id: bool = False) -> JoinRequest:
    return JoinRequest(
        "",
        None,
        "client",
        "host",
        1_800_000,
        10_000,
        "consumer",
        (MemberProtocol("range", b""),),
        requires_known_member_id,
    )


def offset(value: int, at_ms: int = NOW_MS) -> CommittedOffset:
    return CommittedOffset(value, 0, "note", at_ms)


def test_valid_topic_names_are_accepted() -> None:
    with all_cases() as case:
        for name in ["a", "A.b_c-9", "x" * 249, "...", "__x"]:
            with case(name):
                check_topic_name(name)


def test_invalid_topic_names_are_refused() -> None:
    with all_cases() as case:
        for name in ["", ".", "..", "x" * 250, "a b", "a/b", "ü", "a\n", "a:b"]:
            with case(name):
                with pytest.raises(RequestRefused) as refused:
                    check_topic_name(name)
                assert refused.value.code is ErrorCode.INVALID_TOPIC


def test_invalid_configurations_are_refused() -> None:
    with all_cases() as case:
        for name, value in [
            ("retention.ms", "-2"),
            ("retention.ms", "soon"),
            ("segment.bytes", "10"),
            ("segment.bytes", "99999999999"),
            ("cleanup.policy", "squeeze"),
            ("no.such.key", "1"),
            ("retention.ms", None),
            ("retention.ms", ""),
            ("retention.ms", "1e6"),
            ("retention.ms", "٥"),
            ("retention.ms", "9" * 5000),
            ("segment.bytes", "1_000_000"),
            ("min.cleanable.dirty.ratio", "0._5"),
            ("min.cleanable.dirty.ratio", "nan"),
            ("min.cleanable.dirty.ratio", "٠.٥"),
            ("cleanup.policy", "compact delete"),
            ("cleanup.policy", ""),
            ("compression.type", "brotli"),
            ("compression.gzip.level", "0"),
            ("preallocate", "yes"),
            ("remote.storage.enable", "true"),
            ("min.insync.replicas", "0"),
            ("leader.replication.throttled.replicas", "1"),
        ]:
            with case((name, value)):
                with pytest.raises(RequestRefused) as refused:
                    check_config(name, value)
                assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_configuration_values_are_trimmed() -> None:
    with all_cases() as case:
        for name, value, remaining in [
            ("retention.ms", " +5\n", "5"),
            ("retention.ms", "-1", "-1"),
            ("min.cleanable.dirty.ratio", " .5 ", "0.5"),
            ("min.cleanable.dirty.ratio", "5e-1", "0.5"),
            ("cleanup.policy", " compact ,  delete", "compact,delete"),
            ("cleanup.policy", "compact, delete", "compact,delete"),
            ("message.timestamp.type", " LogAppendTime", "LogAppendTime"),
            ("cleanup.policy", "compact,compact", "compact"),
            ("preallocate", " TRUE", "true"),
            ("leader.replication.throttled.replicas", "0:1, 1:1", "0:1,1:1"),
            ("leader.replication.throttled.replicas", "", ""),
        ]:
            with case((name, value, remaining)):
                assert check_config(name, value) == remaining


def test_log_start_beyond_the_end_of_the_log_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {})
        for index in (0, 1):
            append(node.log("t", index), batch(b"x"))

    async def second(node: BrokerNode) -> None:
        assert [node.log("t", index).log_start_offset for index in (0, 1)] == [1, 1]

    run(tmp_path, first)
    write_checkpoint(tmp_path / LOG_STARTS, {("t", 0): 7, ("t", 1): 1})
    run(tmp_path, second)
    (line,) = logged(caplog, "broker.node", "beyond the log's end")
    assert "t-0" in line.getMessage() and "t-1" not in line.getMessage()


@pytest.mark.parametrize("is_killed", [False, True])
def test_topics_offsets_and_groups_survive_a_restart(tmp_path: Path, is_killed: bool) -> None:
    ids = []
    join = JoinRequest("", None, "c", "/h", 10_000, 10_000, "consumer", (MemberProtocol("range", b"meta"),), False)

    async def first(node: BrokerNode) -> None:
        ids.append(node.changes.create_topic("t", 3, {"retention.ms": "5"}).topic_id)
        append(node.log("t", 1), batch(b"x"))
        await node.groups.commits.store("simple", {("t", 0): offset(5), ("t", 2): offset(7)})
        member = await node.groups.join("members", join)
        assert member.error is ErrorCode.NONE
        await node.groups.sync(
            "members", SyncRequest(member.member_id, None, 1, None, None, {member.member_id: b"mine"})
        )
        ids.append(member.member_id)

    async def second(node: BrokerNode) -> None:
        topic = node.topic("t")
        assert (topic.topic_id, topic.partitions, dict(topic.configs)) == (ids[0], 3, {"retention.ms": "5"})
        assert contents(node.log("t", 1)) == [(0, b"x")]
        assert dict(node.groups.offsets.of_group("simple")) == {("t", 0): offset(5), ("t", 2): offset(7)}
        assert node.groups.heartbeat("members", ids[1], None, 1) is ErrorCode.NONE
        second_sync = await node.groups.sync("members", SyncRequest(ids[1], None, 1, None, None, {}))
        assert second_sync.assignment == b"mine"

    run(tmp_path, first, is_killed=is_killed)
    run(tmp_path, second)


def test_torn_commit_is_lost_completely(tmp_path: Path) -> None:
    async def first(node: BrokerNode) -> None:
        await node.groups.commits.store("g", {("t", 0): offset(1), ("t", 1): offset(1)})
        await node.groups.commits.store("g", {("t", 0): offset(2), ("t", 1): offset(2)})

    async def second(node: BrokerNode) -> None:
        assert [each.offset for each in node.groups.offsets.of_group("g").values()] == [1, 1]

    run(tmp_path, first, is_killed=True)
    log = tmp_path / "__consumer_offsets-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    run(tmp_path, second)


def test_compaction_preserves_the_offsets_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "COMPACT_BYTES", 20_000)

    async def first(node: BrokerNode) -> None:
        node.start()
        for number in range(400):
            await node.groups.commits.store(f"g{number % 7}", {("t", 0): offset(number)})
        await node.groups.commits.delete([OffsetKey("g0", "t", 0)])
        log = node.log("__consumer_offsets", 0)
        while log.size > 25_000:
            await asyncio.sleep(0.01)
        assert log.log_start_offset > 0

    async def second(node: BrokerNode) -> None:
        last = {f"g{number % 7}": number for number in range(400) if number % 7}
        found = {group: node.groups.offsets.of_group(group).get(("t", 0)) for group in last}
        assert found == {group: offset(number) for group, number in last.items()}
        assert not node.groups.offsets.of_group("g0")

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_unused_offsets_expire(tmp_path: Path) -> None:
    clock = Clock()

    async def work(node: BrokerNode) -> None:
        await node.groups.commits.store("old", {("t", 0): offset(1)})
        clock.ms += RETENTION_MS - 1000
        await node.groups.commits.store("new", {("t", 0): offset(1, clock.ms)})
        await node.groups.run_housekeeping()
        assert set(node.groups.groups) == {"old", "new"}
        clock.ms += 2000
        await node.groups.run_housekeeping()
        assert set(node.groups.groups) == {"new"}

    async def after_restart(node: BrokerNode) -> None:
        assert set(node.groups.groups) == {"new"}

    run(tmp_path, work, clock=clock)
    run(tmp_path, after_restart, clock=clock)


@pytest.mark.parametrize("use", ["commits", "joins"])
def test_offsets_of_a_group_used_during_expiry_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    """There may be thousands of offsets. They are deleted in steps, and other requests run in between."""
    monkeypatch.setattr(table_module, "BATCH_RECORDS_MAX", 1)
    clock = Clock()

    async def work(node: BrokerNode) -> None:
        await node.groups.commits.store("g", {("t", index): offset(index) for index in range(5)})
        clock.ms += RETENTION_MS + 1
        keeping = asyncio.ensure_future(node.groups.run_housekeeping())
        while len(node.groups.offsets.of_group("g")) == 5:
            await asyncio.sleep(0)
        if use == "commits":
            await node.groups.commits.store("g", {("t", 4): offset(7, clock.ms)})
        else:
            joining = asyncio.ensure_future(node.groups.join("g", join()))
            await asyncio.sleep(0)
        await keeping
        left = dict(node.groups.offsets.of_group("g"))
        if use == "commits":
            assert left == {("t", 4): offset(7, clock.ms)}
        else:
            assert left and left == {("t", index): offset(index) for index in range(5 - len(left), 5)}
            joining.cancel()

    run(tmp_path, work, clock=clock)


@pytest.mark.parametrize("deleted", ["group", "offsets"])
def test_commit_during_offset_deletion_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: str) -> None:
    monkeypatch.setattr(table_module, "BATCH_RECORDS_MAX", 1)

    async def work(node: BrokerNode) -> None:
        groups, topic_partitions = node.groups, [("t", index) for index in range(5)]
        await groups.commits.store("g", {topic_partition: offset(1) for topic_partition in topic_partitions})
        doomed = [OffsetKey("g", *topic_partition) for topic_partition in topic_partitions]
        deleting = asyncio.ensure_future(
            groups.delete_group("g") if deleted == "group" else groups.commits.delete(doomed)
        )
        while len(groups.offsets.of_group("g")) == 5:
            await asyncio.sleep(0)
        joined = await groups.join("g", join())
        assigned = SyncRequest(joined.member_id, None, joined.generation, None, None, {})
        assert (await groups.sync("g", assigned)).error is ErrorCode.NONE
        groups.commits.check("g", joined.member_id, None, joined.generation, topic_partitions[4:])
        await groups.commits.store("g", {topic_partitions[4]: offset(7)})
        (result,) = await asyncio.gather(deleting, return_exceptions=True)
        assert groups.offsets.of_group("g")[topic_partitions[4]] == offset(7)
        if deleted == "group":
            assert isinstance(result, RequestRefused) and result.code is ErrorCode.NON_EMPTY_GROUP

    run(tmp_path, work)


def test_offset_expiry_ignores_the_clients_commit_timestamp(tmp_path: Path) -> None:
    """A client may send an old commit timestamp; the offsets must not expire at once."""
    clock = Clock()

    async def work(node: BrokerNode) -> None:
        await node.groups.commits.store("g", {("t", 0): offset(1, NOW_MS - 2 * RETENTION_MS)})
        assert node.groups.store.unused_since_ms("g") == NOW_MS
        clock.ms += RETENTION_MS
        await node.groups.run_housekeeping()
        assert set(node.groups.groups) == {"g"} and node.groups.offsets.of_group("g")
        clock.ms += 1
        await node.groups.run_housekeeping()
        assert not node.groups.groups and not node.groups.offsets.of_group("g")

    run(tmp_path, work, clock=clock)


def test_group_without_members_expires_across_restarts_and_compactions(
    tmp_path: Path,
) -> None:
    clock = Clock()

    async def first(node: BrokerNode) -> None:
        await node.groups.commits.store("g", {("t", 0): offset(1)})

    async def later(node: BrokerNode) -> None:
        assert node.groups.offsets.of_group("g")
        await node.groups.store.compact()
        await node.groups.run_housekeeping()
        assert node.groups.offsets.of_group("g")

    async def expired(node: BrokerNode) -> None:
        await node.groups.run_housekeeping()
        assert not node.groups.groups

    async def after_restart(node: BrokerNode) -> None:
        assert not node.groups.groups

    run(tmp_path, first, clock=clock)
    clock.ms += RETENTION_MS - 1000
    run(tmp_path, later, clock=clock)
    clock.ms += 2000
    run(tmp_path, expired, clock=clock)
    run(tmp_path, after_restart, clock=clock)


def test_offsets_of_an_active_group_stay_and_empty_groups_are_deleted(tmp_path: Path) -> None:
    clock = Clock()

    async def work(node: BrokerNode) -> None:
        node.start()
        joined = await node.groups.join("lives", join())
        await node.groups.sync("lives", SyncRequest(joined.member_id, None, 1, None, None, {joined.member_id: b""}))
        await node.groups.commits.store("lives", {("t", 0): offset(1)})
        passing = await node.groups.join("passing", join())
        node.groups.leave("passing", passing.member_id, None)
        clock.ms += 599_000
        await node.groups.run_housekeeping()
        assert set(node.groups.groups) == {"lives", "passing"}
        clock.ms += 2000
        await node.groups.run_housekeeping()
        assert set(node.groups.groups) == {"lives"}
        clock.ms += 2 * RETENTION_MS
        await node.groups.run_housekeeping()
        assert node.groups.offsets.of_group("lives") == {("t", 0): offset(1)}

    run(tmp_path, work, clock=clock)


def test_changes_during_offsets_compaction_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compacted log is written in steps, and other requests run in between."""
    monkeypatch.setattr(table_module, "BATCH_RECORDS_MAX", 3)

    async def first(node: BrokerNode) -> None:
        for number in range(40):
            await node.groups.commits.store(f"g{number:02}", {("t", 0): offset(number)})
        compaction = asyncio.ensure_future(node.groups.store.compact())
        for number in range(0, 40, 4):
            await asyncio.sleep(0)
            node.groups.store.append(
                [(encode_key(OffsetKey(f"g{number:02}", "t", 0)), encode_offset(offset(100 + number)))]
            )
            node.groups.offsets.apply(OffsetKey(f"g{number:02}", "t", 0), offset(100 + number))
            await node.groups.delete_group(f"g{number + 1:02}")
        assert not compaction.done() or number > 20
        await compaction

    async def second(node: BrokerNode) -> None:
        found = {group: node.groups.offsets.of_group(group).get(("t", 0)) for group in node.groups.groups}
        expected = {f"g{number:02}": offset(number) for number in range(40) if number % 4 in (2, 3)}
        expected |= {f"g{number:02}": offset(100 + number) for number in range(0, 40, 4)}
        assert found == expected

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)


def test_commits_over_the_memory_limit_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        offsets_module, "OFFSETS_MEMORY_BYTES_MAX", OFFSET_BYTES + METADATA_CHAR_BYTES * len(offset(1).metadata)
    )

    async def work(node: BrokerNode) -> None:
        groups = node.groups
        await groups.commits.store("g", {("t", 0): offset(1)})
        end = node.log(OFFSETS_TOPIC, 0).log_end_offset
        with pytest.raises(RequestRefused) as refused:
            await groups.commits.store("h", {("t", 0): offset(1)})
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        assert (list(groups.groups), node.log(OFFSETS_TOPIC, 0).log_end_offset) == (["g"], end)
        await groups.commits.store_pending("h", {("t", 0): offset(1)}, 1, 0)
        end = node.log(OFFSETS_TOPIC, 0).log_end_offset
        with pytest.raises(RequestRefused) as refused:
            await groups.commits.store_pending("i", {("t", 0): offset(1)}, 2, 0)
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        assert (list(groups.groups), node.log(OFFSETS_TOPIC, 0).log_end_offset) == (["g", "h"], end)
        await groups.commits.store("g", {("t", 0): offset(2)})

    run(tmp_path, work)


def test_maintenance_logs_a_bug_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(node: BrokerNode) -> None:
        times = 0

        async def broken() -> None:
            nonlocal times
            times += 1
            raise KeyError("ours")

        monkeypatch.setattr(node.maintenance, "run_housekeeping", broken)
        group = await node.groups.join("stuck", join(requires_known_member_id=True))
        assert group.error is ErrorCode.MEMBER_ID_REQUIRED
        tick = node.groups._tick
        monkeypatch.setattr(node.groups, "_tick", lambda *given: 1 / 0 if given[0] == "stuck" else tick(*given))
        node.groups._deadlines_ms["stuck"] = 0
        monkeypatch.setattr(table_module.LogTable, "is_compaction_due", True)
        monkeypatch.setattr(node.groups.store, "compact", lambda: 1 / 0)
        node.config = replace(node.config, housekeeping_interval_ms=1)
        node.start()
        async with asyncio.timeout(60):
            while times < 3 or len({record.msg for record in logged(caplog, "broker.coordinator.coordinator")}) < 2:
                await asyncio.sleep(0.005)
        joined = await asyncio.wait_for(node.groups.join("other", join()), 20)
        assert joined.error is ErrorCode.NONE

    run(tmp_path, work)
    assert any(record.exc_info for record in logged(caplog, "broker.node"))


def test_retention_by_time_drops_even_the_active_segment(tmp_path: Path) -> None:
    clock = Clock()

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"retention.ms": "1000"})
        log = node.log("t", 0)
        for number in range(5):
            append(log, batch(b"v", timestamp_ms=NOW_MS + number * 400))
        await node.maintenance.run_housekeeping()
        assert log.log_start_offset == 0
        clock.ms = NOW_MS + 10_000
        await node.maintenance.run_housekeeping()
        assert (log.log_start_offset, log.log_end_offset, contents(log)) == (5, 5, [])
        append(log, batch(b"later", timestamp_ms=clock.ms))

    async def after_restart(node: BrokerNode) -> None:
        assert contents(node.log("t", 0)) == [(5, b"later")]

    run(tmp_path, work, clock=clock, is_killed=True)
    run(tmp_path, after_restart, clock=clock)


def remove_topic_from_file(directory: Path, name: str) -> None:
    """Removes a topic from the topics file, as in an older copy."""
    path = directory / "topics.json"
    document = json.loads(path.read_text())
    document["topics"] = [row for row in document["topics"] if row["name"] != name]
    path.write_text(json.dumps(document))


def test_stray_with_the_longest_name_is_renamed(tmp_path: Path) -> None:
    async def first(node: BrokerNode) -> None:
        append(node.log(node.changes.create_topic("x" * 249, 1, {}).name, 0), batch(b"x"))

    async def no_work(node: BrokerNode) -> None:
        pass

    run(tmp_path, first, is_killed=True)
    for _ in range(2):
        remove_topic_from_file(tmp_path, "x" * 249)
        (tmp_path / f"{'x' * 249}-0").mkdir(exist_ok=True)
        (tmp_path / f"{'x' * 249}-0" / f"{0:020d}.log").write_bytes(batch(b"x"))
        run(tmp_path, no_work)
    strays = sorted(path.name for path in tmp_path.glob("*-stray*"))
    assert [name.strip("x") for name in strays] == ["-0-stray", "-0-stray.2"]


def test_stray_partitions_are_renamed_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {})
        append(node.log("t", 0), batch(b"x"))

    async def second(node: BrokerNode) -> None:
        assert node.topics.get("t") is None
        assert contents(node.log(node.changes.create_topic("t", 1, {}).name, 0)) == []
        append(node.log("t", 0), batch(b"y"))

    for name in ("lost+found", "backup of May", "t.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("theirs")
    (tmp_path / "0123456789abcdef0123456789abcdef-3-delete").mkdir()
    run(tmp_path, first, is_killed=True)
    for times in (1, 2):
        remove_topic_from_file(tmp_path, "t")
        caplog.clear()
        run(tmp_path, second)
        stray = "t-0-stray" if times == 1 else "t-0-stray.2"
        assert logged(caplog, "broker.data_directory", "t-0", stray)
        assert logged(caplog, "broker.data_directory", "backup of May") and "lost+found" not in caplog.text
    directories = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    strays = {"t-0-stray", "t-0-stray.2"}
    assert directories == {"lost+found", "backup of May", "t.old", "t-0", "__consumer_offsets-0"} | strays
    assert contents(open_sample_log(tmp_path / "t-0-stray").log) == [(0, b"x")]
    assert all((tmp_path / name / "file").exists() for name in ("lost+found", "backup of May", "t.old"))


def test_foreign_directory_with_a_partition_name_is_renamed(tmp_path: Path) -> None:
    async def no_work(node: BrokerNode) -> None:
        pass

    remaining = {"backup-2024": "topics.json", "t-0": f"{0:020d}.log.corrupt", "t-1": f"{0:020d}.log"}
    run(tmp_path, no_work)
    for directory, name in remaining.items():
        (tmp_path / directory).mkdir()
        (tmp_path / directory / name).write_text("theirs")
    (tmp_path / "t-2").mkdir()
    for name in (f"{0:020d}.index", f"{0:020d}.snapshot", "leader-epoch-checkpoint"):
        (tmp_path / "t-2" / name).write_text("of no record")
    (tmp_path / "t-2" / f"{0:020d}.log").touch()
    run(tmp_path, no_work)
    assert all(
        (tmp_path / f"{directory}-stray" / name).read_text() == "theirs" for directory, name in remaining.items()
    )
    assert sorted(path.name for path in tmp_path.glob("t-*")) == ["t-0-stray", "t-1-stray"]


@pytest.mark.parametrize("is_deleted_by", ["the broker", "the next start"])
def test_symlinked_partition_is_deleted_with_its_topic(tmp_path: Path, is_deleted_by: str) -> None:
    directory, elsewhere = tmp_path / "broker", tmp_path / "elsewhere"

    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch(b"x"))

    async def second(node: BrokerNode) -> None:
        assert contents(node.log("t", 0)) == [(0, b"x")]
        if is_deleted_by == "the broker":
            await node.changes.delete_topic(node.topic("t"))

    async def third(node: BrokerNode) -> None:
        assert node.topics.get("t") is None

    run(directory, first)
    (directory / "t-0").rename(elsewhere)
    (directory / "t-0").symlink_to(elsewhere)
    (elsewhere / "beside").mkdir()
    run(directory, second)
    if is_deleted_by == "the broker":
        assert not [*elsewhere.iterdir()]
    else:
        remove_topic_from_file(directory, "t")
        (directory / "t-0").rename(directory / f"{'0' * 32}-0-delete")
    run(directory, third)
    assert [path.name for path in directory.iterdir() if path.is_dir()] == ["__consumer_offsets-0"]
    assert elsewhere.is_dir() and not [*elsewhere.iterdir()]


@pytest.mark.parametrize("name", ["t-0", f"t-0/{0:020d}.log"])
def test_log_without_write_permission_fails_the_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, with write access to every file."""

    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch(b"x"))

    run(tmp_path, first)
    monkeypatch.setattr("os.access", lambda path, mode: not (mode & os.W_OK and Path(path) == tmp_path / name))
    with pytest.raises(PermissionError) as refused:
        run(tmp_path, fail_if_started)
    assert refused.value.filename == str(tmp_path / name)


def test_new_volume_with_lost_and_found_is_accepted(tmp_path: Path) -> None:
    async def no_work(node: BrokerNode) -> None:
        assert len(node.topics) == 1

    (tmp_path / "lost+found").mkdir()
    run(tmp_path, no_work)
    assert (tmp_path / "lost+found").is_dir()


def test_offsets_of_a_deleted_topic_are_deleted_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More offsets than a client's batch may have records; other requests run in between."""
    monkeypatch.setattr(decoding, "RECORDS_DECODED_MAX", 1500)
    rounds = 0

    async def first(node: BrokerNode) -> None:
        nonlocal rounds
        for name, count in (("t", 700), ("other", 1)):
            node.changes.create_topic(name, count, {})
        for group in range(5):
            await node.groups.commits.store(f"g{group}", {("t", index): offset(index) for index in range(700)})
        await node.groups.commits.store("g0", {("other", 0): offset(7)})
        deletion = asyncio.ensure_future(node.changes.delete_topic(node.topic("t")))
        while node.groups.offsets.of_topic("t"):
            await asyncio.sleep(0)
        assert node.topics.get("t") is None
        while not deletion.done():
            await asyncio.sleep(0)
            rounds += 1
            assert node.topics.get("t") is None and not node.groups.offsets.of_topic("t")
        node.changes.create_topic("t", 1, {})
        await node.groups.commits.store("g1", {("t", 0): offset(3)})

    async def second(node: BrokerNode) -> None:
        assert node.groups.offsets.of_group("g0") == {("other", 0): offset(7)}
        assert node.groups.offsets.of_group("g1") == {("t", 0): offset(3)}
        assert set(node.groups.offsets.groups()) == {"g0", "g1"}

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)
    assert rounds > 3


@pytest.mark.parametrize("then", ["created", "kept", "created meanwhile"])
def test_recreated_topic_has_no_old_offsets_despite_disk_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(table_module, "BATCH_RECORDS_MAX", 2)

    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 5, {})
        await node.groups.commits.store("g", {("t", index): offset(index) for index in range(5)})
        log = node.log(OFFSETS_TOPIC, 0)
        if then == "created meanwhile":
            deletion = asyncio.ensure_future(node.changes.delete_topic(node.topic("t")))
            while node.groups.offsets.of_topic("t"):
                await asyncio.sleep(0)
        else:
            put = log.append_unchecked
            refusals = iter([None, RequestRefused(ErrorCode.STORAGE_ERROR, "No space left on device")])

            def is_full(*args: Any) -> int:
                refusal = next(refusals, None)
                if refusal is not None:
                    raise refusal
                return put(*args)

            with monkeypatch.context() as full:
                full.setattr(type(log), "append_unchecked", lambda _, *args: is_full(*args))
                await node.changes.delete_topic(node.topic("t"))
        if then == "kept":
            await node.groups.run_housekeeping()
        else:
            node.changes.create_topic("t", 1, {})
        # A thread may still be deleting the renamed directories of the topic.
        ignored = shutil.ignore_patterns(LOCK_FILE, f"*{DELETED_DIRECTORY}")
        shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=ignored)
        if then == "created meanwhile":
            await deletion

    async def second(node: BrokerNode) -> None:
        assert not node.groups.offsets.of_group("g")

    run(tmp_path / "data", first)
    run(tmp_path / "copy", second)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_old_offsets_are_durably_deleted_before_a_topic_is_recreated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """The topic was deleted just now, or the broker stopped during the deletion."""

    async def work(node: BrokerNode) -> None:
        log = node.log(OFFSETS_TOPIC, 0)
        if is_deleted:
            node.changes.create_topic("t", 1, {})
        await node.groups.commits.store("g", {("t", 0): offset(5)})
        end = log.log_end_offset
        if is_deleted:
            await node.changes.delete_topic(node.topic("t"))
            assert log.recovery_point == log.log_end_offset == end + 1
        real, forced = type(node.topics).write, []

        def write(topics: Any, changed: Any) -> None:
            forced.append(log.recovery_point)
            real(topics, changed)

        monkeypatch.setattr(type(node.topics), "write", write)
        assert await node.changes.create_topics([Topic("t", uuid.uuid4(), 1)]) == {}
        assert forced == [end + 1] == [log.log_end_offset]
        assert not node.groups.offsets.of_group("g") and not node.groups.commits._unstored_deletions

    run(tmp_path, work)


def test_group_housekeeping_yields_to_other_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing expires; there may be thousands of groups with a thousand offsets each."""
    monkeypatch.setattr("headrace.broker.loop_yielder.BURST_S", 0)

    async def work(node: BrokerNode) -> None:
        for number in range(5):
            await node.groups.commits.store(f"g{number}", {("t", 0): offset(1)})
        keeping, rounds = asyncio.ensure_future(node.groups.run_housekeeping()), 0
        while not keeping.done():
            await asyncio.sleep(0)
            rounds += 1
        assert rounds > 5 and len(list(node.groups.offsets.groups())) == 5

    run(tmp_path, work)


def test_start_decodes_large_batches_of_internal_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 700, {})
        await node.groups.commits.store("g", {("t", index): offset(index) for index in range(700)})

    async def second(node: BrokerNode) -> None:
        assert len(node.groups.offsets.of_group("g")) == 700

    run(tmp_path, first)
    monkeypatch.setattr(decoding, "RECORDS_DECODED_MAX", 500)
    run(tmp_path, second)


def test_interrupted_topic_deletion_leaves_no_offsets_for_a_new_topic(tmp_path: Path) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {})
        await node.groups.commits.store("g", {("t", 1): offset(5)})

    async def second(node: BrokerNode) -> None:
        assert node.groups.offsets.of_group("g"), "the topic may return when its file is restored"
        node.changes.create_topic("t", 2, {})
        assert not node.groups.offsets.of_group("g")

    async def third(node: BrokerNode) -> None:
        assert not node.groups.offsets.of_group("g")

    run(tmp_path, first, is_killed=True)
    remove_topic_from_file(tmp_path, "t")
    run(tmp_path, second, is_killed=True)
    run(tmp_path, third)


@pytest.mark.parametrize("damage", ["zeros", "other"])
def test_retention_ignores_a_corrupt_time_index(tmp_path: Path, damage: str) -> None:
    async def first(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {"retention.ms": "100000"}).name, 0)
        for number in range(40):
            append(log, batch(b"v" * 40, timestamp_ms=NOW_MS + 10 * number))

    async def second(node: BrokerNode) -> None:
        log = node.log("t", 0)
        if damage == "other":
            log.closed[0] = replace(log.closed[0], largest=TimeEntry(5, 0))
        await node.maintenance.run_housekeeping()
        assert (log.log_start_offset, len(contents(log))) == (0, 40)
        assert log.closed[0].largest is not None and log.closed[0].largest.timestamp_ms >= NOW_MS

    run(tmp_path, first, segment_bytes_max=1200)
    if damage == "zeros":
        for path in (tmp_path / "t-0").glob("*.timeindex"):
            path.write_bytes(bytes(path.stat().st_size))
    run(tmp_path, second, segment_bytes_max=1200)


def test_damage_below_the_recovery_point_gives_one_line_or_is_repaired(tmp_path: Path) -> None:
    async def first(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        for number in range(5):
            append(log, batch(b"%d" % number))

    async def second(node: BrokerNode) -> None:
        assert [offset for offset, _ in contents(node.log("t", 0))] == [0, 1, 3, 4]

    run(tmp_path, first, is_killed=True)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[2 * len(raw) // 5 + 16] = 77
    path.write_bytes(raw)
    with pytest.raises(LogDamaged, match=r"\b77\b.*\boffset 1\b") as error:
        run(tmp_path, second)
    assert (error.value.path, error.value.fsynced_to) == (path, 5)
    run(tmp_path, second, repairs_corrupt_logs=True)
    run(tmp_path, second)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(("flipped", "remaining"), [(1, 3), (2, 2)])
def test_bit_flip_in_fsynced_commits_gives_one_line_or_is_repaired(
    tmp_path: Path, is_killed: bool, flipped: int, remaining: int
) -> None:
    """Nothing else verifies these batches: a group would have a wrong offset, or silently lose its commit."""

    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        for value in (1, 2, 3):
            await node.groups.commits.store("g", {("t", 0): offset(value)})

    async def second(node: BrokerNode) -> None:
        assert node.groups.offsets.of_group("g") == {("t", 0): offset(remaining)}

    async def third(node: BrokerNode) -> None:
        assert node.groups.offsets.of_group("g") == {("t", 0): offset(4)}

    async def continues(node: BrokerNode) -> None:
        await second(node)
        await node.groups.commits.store("g", {("t", 0): offset(4)})

    run(tmp_path, first, is_killed=is_killed)
    path = tmp_path / "__consumer_offsets-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    size = len(raw) // 3
    raw[flipped * size + raw[:size].index(encode_offset(offset(1))) + 9] ^= 8
    path.write_bytes(raw)
    with pytest.raises(LogDamaged, match=rf"CRC.*\b{flipped * size}\b.*\boffset {flipped - 1}\b") as error:
        run(tmp_path, second)
    assert (error.value.path, error.value.fsynced_to) == (path, 3)
    run(tmp_path, second, repairs_corrupt_logs=True)
    assert path.with_name(path.name + ".corrupt").read_bytes() == raw
    run(tmp_path, continues)
    run(tmp_path, third)


def test_unknown_group_records_are_skipped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def first(node: BrokerNode) -> None:
        log = node.log("__consumer_offsets", 0)
        append(log, keyed_batch((b"\0\x63?", b"1"), (b"\0\x63?", b"2")))
        await node.groups.commits.store("g", {("t", 0): offset(1)})

    async def second(node: BrokerNode) -> None:
        assert node.groups.offsets.of_group("g") == {("t", 0): offset(1)}

    run(tmp_path, first)
    run(tmp_path, second)
    assert [record.args for record in logged(caplog, "broker.coordinator.group_store")] == [(99, 2)]


def test_checkpoint_of_a_deleted_topic_does_not_apply_to_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def first(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        for number in range(5):
            append(log, batch(b"%d" % number))
        await node.flusher.flush(log)
        await node.maintenance.run_housekeeping()
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_writer, "write_checkpoint", full)
            await node.changes.delete_topic(node.topic("t"))
            with pytest.raises(RequestRefused):
                node.changes.create_topic("t", 1, {})
        node.changes.create_topic("t", 1, {})
        assert read_checkpoint(tmp_path / RECOVERY_POINTS).get(("t", 0), 0) == 0

    run(tmp_path, first, is_killed=True)
    assert logged(caplog, "broker.topic_changes", "No space left", level=logging.ERROR)


def test_every_start_has_a_new_leader_epoch(tmp_path: Path) -> None:
    clock, seen = Clock(), []

    async def check(node: BrokerNode) -> None:
        seen.append(node.topics.leader_epoch)

    for ms in (NOW_MS, NOW_MS, NOW_MS - 10**9, 0, NOW_MS + 5_000, 2**45, NOW_MS):
        clock.ms = ms
        run(tmp_path, check, clock=clock)
    first = NOW_MS // 1000 - 1_577_836_800
    assert seen == [first, first + 1, first + 2, first + 3, first + 5, first + 6, first + 7]


def test_restored_copy_never_reuses_a_leader_epoch(tmp_path: Path) -> None:
    clock, seen, copy = Clock(), [], tmp_path / "copy"

    async def check(node: BrokerNode) -> None:
        seen.append(node.topics.leader_epoch)

    directory = tmp_path / "data"
    run(directory, check, clock=clock)
    shutil.copytree(directory, copy)
    for _ in range(3):
        clock.ms += 3_600_000
        run(directory, check, clock=clock)
    shutil.rmtree(directory)
    copy.rename(directory)
    clock.ms += 3_600_000
    run(directory, check, clock=clock)
    assert seen == sorted(set(seen))


def test_wrong_leader_epoch_is_refused(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        epoch = node.topics.leader_epoch
        assert node.log("t", 0, epoch) is node.log("t", 0)
        for wrong, code in ((epoch - 1, ErrorCode.FENCED_LEADER_EPOCH), (epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            with pytest.raises(RequestRefused) as refused:
                node.log("t", 0, wrong)
            assert refused.value.code is code

    run(tmp_path, work)


def test_a_directory_has_one_broker(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        with pytest.raises(DataDirectoryInUse):
            BrokerNode(BrokerConfig(tmp_path))

    run(tmp_path, work)


@pytest.mark.parametrize("damage", ["missing", "cut", "format", "row"])
def test_corrupt_topics_file_fails_the_start_and_changes_nothing(tmp_path: Path, damage: str) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch(b"x"))

    run(tmp_path, first)
    path = tmp_path / "topics.json"
    text = path.read_text()
    if damage == "missing":
        path.unlink()
    else:
        changed = {"cut": text[:-20], "format": text.replace('"format":1', '"format":4')}
        path.write_text(changed.get(damage, text.replace('"partitions"', '"part"')))
    with pytest.raises(CorruptFile, match=r"topics\.json"):
        run(tmp_path, fail_if_started)
    assert (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size > 0


@pytest.mark.parametrize(
    ("key", "value"), [("retention.ms", "abc"), ("segment.bytes", "1"), ("retention.ms", None), ("no.such", "1")]
)
def test_invalid_configuration_on_file_fails_the_start(tmp_path: Path, key: str, value: str | None) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"retention.ms": "5"})

    run(tmp_path, first)
    path = tmp_path / "topics.json"
    document = json.loads(path.read_text())
    document["topics"][-1]["configs"] = {key: value}
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptFile) as damaged:
        run(tmp_path, first)
    line = str(damaged.value)
    assert all(part in line for part in (str(path), "'t'", key)) and "\n" not in line
    assert repr(str(value)) in line or key == "no.such"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"name": "../t"}, "'../t'"),
        ({"name": "__consumer_offsets"}, "name __consumer_offsets"),
        ({"id": ""}, "id "),
        ({"partitions": -1}, "'t': the number of partitions is -1"),
        ({"partitions": 0}, "'t': the number of partitions is 0"),
        ({"partitions": 1e400}, "OverflowError"),
    ],
)
def test_invalid_topic_on_file_fails_the_start_and_changes_nothing(
    tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch(b"x"))

    directory = tmp_path / "broker"
    run(directory, first)
    document = json.loads((directory / "topics.json").read_text())
    other, topic = document["topics"]
    topic.update(changed)
    if not topic["id"]:
        topic["id"] = other["id"]
        named += other["id"]
    (directory / "topics.json").write_text(json.dumps(document))
    before = sorted(directory.rglob("*"))
    with pytest.raises(CorruptFile) as damaged:
        run(directory, first)
    assert damaged.value.path == directory / "topics.json"
    assert named in str(damaged.value) and "\n" not in str(damaged.value)
    assert sorted(directory.rglob("*")) == before and [*tmp_path.iterdir()] == [directory]


@pytest.mark.parametrize("epoch", [-1, (1 << 31) - 1])
def test_last_possible_leader_epoch_fails_the_start(tmp_path: Path, epoch: int) -> None:
    async def no_work(node: BrokerNode) -> None:
        pass

    run(tmp_path, no_work)
    path = tmp_path / "topics.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "leader_epoch": epoch}))
    with pytest.raises(CorruptFile, match=f"leader epoch {epoch}"):
        run(tmp_path, no_work)


def test_maintenance_failure_of_one_topic_does_not_affect_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()

    async def work(node: BrokerNode) -> None:
        policy = {"cleanup.policy": "compact,delete", "retention.ms": "1000", "min.cleanable.dirty.ratio": "0"}
        bad = node.changes.create_topic("bad", 1, policy)
        good = node.changes.create_topic("good", 1, policy)
        spoilt = replace(
            bad, configs={"cleanup.policy": "compact,delete", "retention.ms": "x", "delete.retention.ms": "x"}
        )
        node.topics.apply(node.topics.with_topics([spoilt]))
        log = node.log(good.name, 0)
        for _ in range(2):
            append(log, keyed_batch((b"k", b"v")))
            log.roll(NOW_MS)
        node.flusher.mark_dirty(log)
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        assert [value for _, value in contents(log)] == [b"v"]
        clock.ms = NOW_MS + 10_000
        await node.maintenance.run_housekeeping()
        assert contents(log) == []
        node.topics.apply(node.topics.with_topics([bad]))

    run(tmp_path, work, clock=clock)
    failed = [record for name in ("cleaner", "maintenance") for record in logged(caplog, f"broker.{name}")]
    assert [record.args for record in failed] == [("bad", 0)] * 2


def test_producer_ids_are_assigned_once(tmp_path: Path) -> None:
    async def allocated(count: int, pool: Executor) -> list[int]:
        ids = ProducerIds(tmp_path, pool)
        return await asyncio.gather(*(ids.allocate() for _ in range(count)))

    with ThreadPoolExecutor() as pool:
        seen = [producer_id for _ in range(3) for producer_id in asyncio.run(allocated(1, pool))]
        seen += asyncio.run(allocated(2 * BLOCK_SIZE + 5, pool))
        assert len(set(seen)) == len(seen)
        assert (tmp_path / "producer-ids").read_text() == f"{6 * BLOCK_SIZE}\n"
        for damaged in ("x", "", "-5", "1_000", "9" * 30):
            (tmp_path / "producer-ids").write_text(damaged)
            with pytest.raises(CorruptFile):
                ProducerIds(tmp_path, pool)


@pytest.mark.parametrize("file", [None, "0\n", "1000\n", "3000\n"])
@pytest.mark.parametrize("known_by", ["batches", "open transaction", "transactional id"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_producer_ids_continue_above_known_ones_if_the_file_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str | None, known_by: str, is_killed: bool
) -> None:
    old = 3000

    async def first(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        if known_by == "transactional id":
            node.producer_ids._next = node.producer_ids._claimed = old
            assert (await node.transactions.init_producer("shop", 1000, None)).producer_id == old
        else:
            is_open = known_by == "open transaction"
            append(log, batch(b"x", producer_id=old, epoch=0, sequence=0, is_transactional=is_open))

    async def second(node: BrokerNode) -> None:
        new = await node.producer_ids.allocate()
        assert new > old + producer_ids.BLOCK_SIZE
        ids.append(new)
        end = node.log("t", 0).log_end_offset
        assert append(node.log("t", 0), batch(b"new", producer_id=new, epoch=0, sequence=0)) == end

    values = ("" if file is None else file.strip(), f"={old} ")

    ids: list[int] = []
    run(tmp_path, first, is_killed=is_killed)
    path = tmp_path / "producer-ids"
    path.unlink() if file is None else path.write_text(file)
    run(tmp_path, second)
    assert len(logged(caplog, "broker.producer_ids", *values, level=logging.ERROR)) == 1
    run(tmp_path, second)
    assert len(logged(caplog, "broker.producer_ids")) == 1 and ids[1] > ids[0]


def test_lost_producer_id_file_of_an_unused_directory_is_detected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def first(node: BrokerNode) -> None:
        append(node.log(node.changes.create_topic("t", 1, {}).name, 0), batch(b"x"))
        assert await node.producer_ids.allocate() == 0

    async def second(node: BrokerNode) -> None:
        assert await node.producer_ids.allocate() == producer_ids.LOST_FILE_GAP

    async def no_work(node: BrokerNode) -> None:
        pass

    for _ in range(2):
        run(tmp_path, no_work)
    assert (tmp_path / "producer-ids").read_text() == "0\n"
    run(tmp_path, first)
    run(tmp_path, no_work)
    assert not logged(caplog, "broker.producer_ids")
    (tmp_path / "producer-ids").unlink()
    run(tmp_path, second)
    assert logged(caplog, "broker.producer_ids")


def test_invented_producer_id_is_ignored(tmp_path: Path) -> None:
    async def first(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        append(log, batch(b"x", producer_id=(1 << 63) - 1, epoch=0, sequence=0))

    async def second(node: BrokerNode) -> None:
        assert await node.producer_ids.allocate() == 0

    run(tmp_path, first)
    run(tmp_path, second)


def test_producer_ids_are_assigned_during_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "BLOCK_SIZE", 1)

    async def main(pool: Executor) -> None:
        ids = ProducerIds(tmp_path, pool)
        requested = []
        for number in range(300):
            requested.append(asyncio.ensure_future(ids.allocate()))
            for _ in range(number % 7):
                await asyncio.sleep(0)
        assert sorted(await asyncio.gather(*requested)) == list(range(300))

    with ThreadPoolExecutor() as pool:
        asyncio.run(main(pool))


def test_failed_or_cancelled_claim_of_producer_ids_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(pool: Executor) -> None:
        ids = ProducerIds(tmp_path, pool)
        cancelled = asyncio.ensure_future(ids.allocate())
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await ids.allocate() == 0
        assert cancelled.cancelled()
        for _ in range(BLOCK_SIZE - 1):
            await ids.allocate()
        (tmp_path / "producer-ids").unlink()
        (tmp_path / "producer-ids").mkdir()  # a directory that no file can replace
        for _ in range(2):
            with pytest.raises(OSError):
                await ids.allocate()
        (tmp_path / "producer-ids").rmdir()
        assert await ids.allocate() == BLOCK_SIZE
        assert (tmp_path / "producer-ids").read_text() == f"{2 * BLOCK_SIZE}\n"

    with ThreadPoolExecutor() as pool:
        asyncio.run(main(pool))


def test_disk_failure_fails_waiting_requests_and_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[OSError] = []

    async def main() -> None:
        node = BrokerNode(BrokerConfig(tmp_path, fsync=FsyncMode.ALWAYS), on_disk_failure=failures.append)
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)

        def fail(paths: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("headrace.broker.log.flusher.sync_files", fail)
        append(log, batch(b"x"))
        for _ in range(2):
            with pytest.raises(RequestRefused) as refused:
                await node.flusher.flush(log)
            assert refused.value.code is ErrorCode.STORAGE_ERROR
        assert (log.high_watermark, len(failures)) == (0, 1)
        monkeypatch.undo()
        await node.close()

    asyncio.run(main())
    assert not (tmp_path / CLEAN_MARKER).exists(), "the next start reads what the failed fsync may have lost"
    assert "t 0 1" not in (tmp_path / "recovery-point-offset-checkpoint").read_text()


@pytest.mark.parametrize("deletion", ["retention", "offsets"])
def test_failed_directory_fsync_stops_the_broker_before_a_segment_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletion: str
) -> None:
    failures: list[OSError] = []
    clock = Clock()

    async def main() -> None:
        node = BrokerNode(BrokerConfig(tmp_path), now_ms=clock, on_disk_failure=failures.append)
        log = node.log(node.changes.create_topic("t", 1, {"retention.ms": "1000"}).name, 0)
        append(log, batch(b"x"))
        log.roll(NOW_MS)
        await node.groups.commits.store("g", {("t", 0): offset(1)})
        await node.flusher.flush(log)
        from headrace.broker.log.flusher import sync_files

        def fail(paths: Sequence[Path]) -> None:
            if paths[0].is_dir() and len(paths) == 1:
                raise OSError(5, "Input/output error")
            sync_files(paths)

        monkeypatch.setattr("headrace.broker.log.flusher.sync_files", fail)
        clock.ms = NOW_MS + 10_000
        with pytest.raises((OSError, RequestRefused)):
            await (node.maintenance.run_housekeeping() if deletion == "retention" else node.groups.store.compact())
        assert len(failures) == 1
        assert (log.log_start_offset, node.log(OFFSETS_TOPIC, 0).log_start_offset) == (0, 0)
        with pytest.raises(RequestRefused):
            await node.flusher.flush(log)
        monkeypatch.undo()
        await node.close()

    asyncio.run(main())


def test_one_round_of_fdatasync_serves_all_waiting_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    from headrace.broker.log.flusher import sync_files

    def counted(paths: list[Path]) -> None:
        rounds.append(len(paths))
        sync_files(paths)

    async def work(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        append(log, batch(b"x"))
        await node.flusher.flush(log)  # includes the names of the first files
        monkeypatch.setattr("headrace.broker.log.flusher.sync_files", counted)
        waits = []
        for _ in range(50):
            append(log, batch(b"x"))
            waits.append(node.flusher.flush(log))
        await asyncio.gather(*waits)
        assert log.high_watermark == 51
        assert sum(rounds) <= 2

    run(tmp_path, work, fsync=FsyncMode.ALWAYS)


def test_open_files_are_bounded(tmp_path: Path) -> None:
    def open_in_directory() -> set[str]:
        targets = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return {Path(target).name for target in targets if Path(target).parent == tmp_path}

    files = OpenFiles(3)
    for number in range(10):
        files.fd(tmp_path / str(number))
    files.fd(tmp_path / "7")
    assert open_in_directory() == {"7", "8", "9"}
    files.fd(tmp_path / "10")
    assert open_in_directory() == {"7", "9", "10"}
    files.forget(tmp_path / "9")
    assert open_in_directory() == {"7", "10"}
    files.close()
    assert not open_in_directory()


def test_checkpoints_have_kafkas_layout(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, {("a-b", 0): 5, ("c", 12): 7})
    assert path.read_text() == "0\n2\na-b 0 5\nc 12 7\n"
    assert read_checkpoint(path) == {("a-b", 0): 5, ("c", 12): 7}
    for damaged in ("0\n3\na 0 5\n", "1\n0\n", "0\n1\na 0\n", ""):
        path.write_text(damaged)
        with pytest.raises(CorruptFile):
            read_checkpoint(path)


@given(st.text(max_size=50), st.text(max_size=50), st.integers(0, 2**31 - 1))
def test_offset_keys_are_read_as_written(group: str, topic: str, partition: int) -> None:
    assert decode_key(encode_key(OffsetKey(group, topic, partition))) == OffsetKey(group, topic, partition)
    assert decode_key(encode_key(GroupKey(group))) == GroupKey(group)


def test_offset_records_have_kafkas_bytes() -> None:
    assert encode_key(OffsetKey("g", "to", 3)) == b"\0\1\0\1g\0\2to\0\0\0\3"
    raw = encode_offset(CommittedOffset(258, 1, "m", 5))
    assert raw == b"\0\3" + (258).to_bytes(8, "big") + b"\0\0\0\1\0\1m" + (5).to_bytes(8, "big")
    assert decode_offset(raw) == CommittedOffset(258, 1, "m", 5)
    old = b"\0\1" + (9).to_bytes(8, "big") + b"\0\0" + (5).to_bytes(8, "big") + (6).to_bytes(8, "big")
    assert decode_offset(old) == CommittedOffset(9, -1, "", 5)
    assert decode_key(b"\0\12xyz") == 10
    empty = b"\0\3\0\0\0\0\0\4\xff\xff\xff\xff" + (8).to_bytes(8, "big") + b"\0\0\0\0"
    assert decode_group(empty).generation == 4


@pytest.mark.parametrize("step", ["joining", "assigning"])
def test_compaction_during_a_rebalance_stores_no_unassigned_partitions(tmp_path: Path, step: str) -> None:
    """Otherwise a member would continue in the next generation with its old assignment, or with none."""
    clock, members = Clock(), []

    async def first(node: BrokerNode) -> None:
        groups = node.groups
        one = await groups.join("g", join())
        await groups.sync("g", SyncRequest(one.member_id, None, one.generation, None, None, {one.member_id: b"all"}))
        await groups.commits.store("g", {("t", 0): offset(3)})
        clock.ms += RETENTION_MS + 1
        joining = asyncio.ensure_future(groups.join("g", join()))
        await asyncio.sleep(0)
        group = groups.groups["g"]
        assert isinstance(group, Group)
        members.extend(group.members)
        if step == "assigning":
            assert (await groups.join("g", replace(join(), member_id=one.member_id))).generation == 2
        await groups.store.compact()
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)

    async def second(node: BrokerNode) -> None:
        for member_id in members:
            for generation in (1, 2):
                synced = await node.groups.sync("g", SyncRequest(member_id, None, generation, None, None, {}))
                assert synced.error is ErrorCode.UNKNOWN_MEMBER_ID
        await node.groups.run_housekeeping()
        assert node.groups.offsets.of_group("g") == {("t", 0): offset(3)}, "it was in use until now"
        assert (await node.groups.join("g", join())).generation == (3 if step == "assigning" else 2)

    run(tmp_path, first, clock=clock, is_killed=True)
    run(tmp_path, second, clock=clock)


def test_disconnected_joining_member_expires(tmp_path: Path) -> None:
    """A member that heartbeats but does not rejoin delays a rebalance for its whole rebalance timeout."""

    async def work(node: BrokerNode) -> None:
        clock_ms = [0]
        node.groups._monotonic_ms = lambda: clock_ms[0]
        first = await node.groups.join("g", patient())
        assert first.error is ErrorCode.NONE
        newcomers = [asyncio.ensure_future(node.groups.join("g", patient())) for _ in range(5)]
        await asyncio.sleep(0)
        for newcomer in newcomers:
            newcomer.cancel()
        await asyncio.gather(*newcomers, return_exceptions=True)
        group = node.groups.groups["g"]
        assert isinstance(group, Group) and len(group.members) == 6
        clock_ms[0] += 5000
        node.groups.heartbeat("g", first.member_id, None, first.generation)
        clock_ms[0] += 1001
        await node.groups.run_due(clock_ms[0])
        assert list(group.members) == [first.member_id]
        assert not node.groups._waiting

    def patient() -> JoinRequest:
        return replace(join(), session_timeout_ms=6000, rebalance_timeout_ms=2**31 - 1)

    run(tmp_path, work)


def test_static_member_retries_if_its_new_id_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it used an id that a start does not know, its previous id would fence it."""
    static = replace(join(), instance_id="i")
    result: list[str] = []

    def refuse(entries: object) -> None:
        raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "full")

    async def first(node: BrokerNode) -> None:
        groups = node.groups
        one = await groups.join("g", static)
        assigned = {one.member_id: b"all"}
        await groups.sync("g", SyncRequest(one.member_id, "i", one.generation, None, None, assigned))
        with monkeypatch.context() as full:
            full.setattr(groups.store, "append", refuse)
            back = await groups.join("g", static)
        assert (back.error, back.generation) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        back = await groups.join("g", static)
        assert (back.error, back.generation) == (ErrorCode.NONE, 1)
        result.append(back.member_id)

    async def second(node: BrokerNode) -> None:
        assert node.groups.heartbeat("g", result[0], "i", 1) is ErrorCode.NONE

    run(tmp_path, first, is_killed=True)
    run(tmp_path, second)
