"""`broker dump` and `broker verify`: every changed byte of a data directory is reported, and nothing else."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.config import BrokerConfig
from headrace.broker.data_directory import CLEAN_MARKER, exclude_brokers
from headrace.broker.errors import CorruptFile, DataDirectoryInUse
from headrace.broker.inspect.dump import DumpedBatch, DumpedDamage, dump
from headrace.broker.inspect.verify import FINDINGS_MAX, PartitionReport, verify
from headrace.broker.inspect.walk import CHUNK_BYTES, Damage, SegmentWalk, segment_files
from headrace.broker.log.checkpoints import LOG_STARTS, RECOVERY_POINTS, read_checkpoint, write_checkpoint
from headrace.broker.log.leader_epochs import FILE_NAME as EPOCHS_FILE
from headrace.broker.log.partition_log import LogLimits
from headrace.broker.log.repair import padding_batch
from headrace.broker.log.scan import SegmentFacts, walk_batches
from headrace.broker.log.segment import write_indexes
from headrace.broker.node import BrokerNode
from headrace.cli import main
from headrace.kafka_wire.record_batch import CONTROL, read_batch_header
from support.broker.broker_samples import NOW_MS, append, batch, keyed_batch, open_sample_log, with_attributes

SEGMENT_BYTES = 10_000
"""Several entries per index."""
SEGMENTS, BATCHES = 3, 40


@dataclass(frozen=True, slots=True)
class Findings:
    """(partition, check, where) of findings and notes."""

    found: list[tuple[str, str, str]]
    notes: list[tuple[str, str, str]]


def verified_findings(directory: Path) -> Findings:
    found: list[tuple[str, str, str]] = []
    notes: list[tuple[str, str, str]] = []
    for one in list(verify(directory)):
        for each in one.findings:
            (notes if each.is_note else found).append((one.name, each.check, each.where))
    return Findings(found, notes)


def fill_topic(node: BrokerNode, topic: str) -> None:
    log = node.logs[topic, 0]
    for number in range(BATCHES):
        append(log, batch(b"value %d" % number, b"x" * 600, producer_id=7, epoch=0, sequence=2 * number))


@pytest.fixture(scope="module")
def intact_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory after a clean shutdown: `orders-0` has several segments and an idempotent producer."""
    directory = tmp_path_factory.mktemp("whole") / "broker"

    async def work() -> None:
        node = BrokerNode(BrokerConfig(directory, segment_bytes_max=SEGMENT_BYTES), now_ms=lambda: NOW_MS)
        node.changes.create_topic("orders", 1, {})
        node.changes.create_topic("empty", 2, {})
        assert await node.producer_ids.allocate() < 7
        fill_topic(node, "orders")
        await node.close()

    asyncio.run(work())
    return directory


@pytest.fixture
def directory(intact_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact_directory, tmp_path / "broker"))


def test_cleanly_closed_directory_is_intact(intact_directory: Path) -> None:
    verified = {one.name: one for one in verify(intact_directory)}
    assert set(verified) == {str(intact_directory), "__consumer_offsets-0", "orders-0", "empty-0", "empty-1"}
    assert verified_findings(intact_directory) == Findings([], [])
    orders = verified["orders-0"]
    assert (orders.batches, orders.records, orders.log_end_offset) == (BATCHES, 2 * BATCHES, 2 * BATCHES)
    assert orders.segments == SEGMENTS
    assert orders.size_bytes == sum(path.stat().st_size for path in (intact_directory / "orders-0").glob("*.log"))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("8\n", ""),
        ("7\n", "producer 7 "),
        (None, "producer 7 "),
        ("seven\n", "'seven"),
    ],
)
def test_reusable_producer_ids_are_found(directory: Path, content: str | None, named: str) -> None:
    path = directory / "producer-ids"
    path.unlink()
    if content is not None:
        path.write_text(content)
    around, *partitions = list(verify(directory))
    assert [one.largest_producer_id for one in partitions] == [-1, 7, -1, -1]
    if named:
        (finding,) = around.findings
        assert (finding.check, finding.where, finding.is_note) == ("producers", "producer-ids", False)
        assert named in finding.message
    else:
        assert around.findings == []


def test_invented_producer_id_is_no_finding(directory: Path) -> None:
    async def work() -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=lambda: NOW_MS)
        append(node.logs["empty", 0], batch(b"x", producer_id=1 << 62, epoch=0, sequence=0))
        await node.close()

    asyncio.run(work())
    assert verified_findings(directory) == Findings([], [])


def test_directory_of_a_killed_broker_is_intact(directory: Path) -> None:
    (directory / CLEAN_MARKER).unlink()
    write_checkpoint(directory / RECOVERY_POINTS, {})
    last = segment_files(directory / "orders-0")[-1].path
    for suffix in (".index", ".timeindex"):
        last.with_suffix(suffix).unlink()
    assert verified_findings(directory) == Findings([], [])


def test_every_flipped_byte_of_a_log_is_found(directory: Path) -> None:
    """Including the base offset and the leader epoch, which the CRC does not cover."""
    for path in (segment_files(directory / "orders-0")[1].path, segment_files(directory / "orders-0")[-1].path):
        content = path.read_bytes()
        for at in range(0, len(content), 199):
            changed = bytearray(content)
            changed[at] ^= 0x10
            path.write_bytes(changed)
            found = verified_findings(directory).found
            assert found and {name for name, _, _ in found} == {"orders-0"}, f"{path.name} byte {at}"
        for at in range(61):  # every byte of the first header
            changed = bytearray(content)
            changed[at] ^= 0x01
            path.write_bytes(changed)
            assert verified_findings(directory).found, f"{path.name} byte {at}"
        path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_every_flipped_byte_of_an_index_or_snapshot_is_found(directory: Path, suffix: str) -> None:
    paths = sorted((directory / "orders-0").glob(f"*{suffix}"))
    path = max(paths, key=lambda one: one.stat().st_size) if suffix != ".snapshot" else paths[-1]
    content = path.read_bytes()
    assert content
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 0x20
        path.write_bytes(changed)
        assert [where for _, _, where in verified_findings(directory).found] == [path.name], at


def cut_indexes(directory: Path) -> None:
    first = segment_files(directory / "orders-0")[0].path
    first.with_suffix(".timeindex").write_bytes(first.with_suffix(".timeindex").read_bytes()[:-1])


def drop_middle(directory: Path) -> None:
    middle = segment_files(directory / "orders-0")[1].path
    for suffix in (".log", ".index", ".timeindex"):
        middle.with_suffix(suffix).unlink()


def empty_middle(directory: Path) -> None:
    """As compaction leaves a segment without remaining records, or a start that repaired one."""
    _, middle, after, *_ = segment_files(directory / "orders-0")
    facts = SegmentFacts(middle.base_offset, middle.base_offset)
    batch = padding_batch(after.base_offset - 1, read_batch_header(middle.path.read_bytes()).leader_epoch)
    facts.add(read_batch_header(batch), batch)
    middle.path.write_bytes(batch)
    write_indexes(directory / "orders-0", facts)


def drop_last(directory: Path) -> None:
    segment_files(directory / "orders-0")[-1].path.unlink()


def drop_partition(directory: Path) -> None:
    shutil.rmtree(directory / "empty-1")


def drop_index(directory: Path) -> None:
    segment_files(directory / "orders-0")[0].path.with_suffix(".index").unlink()


def drop_epochs(directory: Path) -> None:
    (directory / "orders-0" / EPOCHS_FILE).unlink()


def other_epoch(directory: Path) -> None:
    (directory / "orders-0" / EPOCHS_FILE).write_text("0\n1\n3 0\n")


def raise_recovery_point(directory: Path) -> None:
    points = read_checkpoint(directory / RECOVERY_POINTS)
    write_checkpoint(directory / RECOVERY_POINTS, {**points, ("orders", 0): 1000})


def log_start_beyond_the_end(directory: Path) -> None:
    write_checkpoint(directory / LOG_STARTS, {("orders", 0): 1000})


def no_checkpoint(directory: Path) -> None:
    (directory / LOG_STARTS).write_text("0\n1\nnonsense\n")


@pytest.mark.parametrize(
    ("harm", "partition", "check"),
    [
        (cut_indexes, "orders-0", "indexes"),
        (drop_index, "orders-0", "indexes"),
        (drop_middle, "orders-0", "offsets"),
        (drop_last, "orders-0", "checkpoints"),
        (drop_partition, "empty-1", "directories"),
        (drop_epochs, "orders-0", "epochs"),
        (other_epoch, "orders-0", "epochs"),
        (raise_recovery_point, "orders-0", "checkpoints"),
        (log_start_beyond_the_end, "orders-0", "checkpoints"),
        (no_checkpoint, None, "checkpoints"),
    ],
)
def test_missing_and_contradictory_files_are_found(
    directory: Path, harm: Callable[[Path], None], partition: str | None, check: str
) -> None:
    harm(directory)
    found = verified_findings(directory).found
    assert (partition or str(directory), check) in {(name, kind) for name, kind, _ in found}
    assert {name for name, _, _ in found} == {partition or str(directory)}


def test_torn_end_is_a_note_above_the_recovery_point_and_a_finding_below(directory: Path) -> None:
    (directory / CLEAN_MARKER).unlink()
    last = segment_files(directory / "orders-0")[-1]
    content = last.path.read_bytes()
    last.path.write_bytes(content[:-5])
    topic_partition = read_batch_header(content)
    write_checkpoint(directory / RECOVERY_POINTS, {("orders", 0): last.base_offset})
    where = f"{last.path.name} position {len(content) - topic_partition.size}"
    assert verified_findings(directory) == Findings([], [("orders-0", "batches", where)])
    write_checkpoint(directory / RECOVERY_POINTS, {("orders", 0): 2 * BATCHES})
    assert ("orders-0", "batches", where) in verified_findings(directory).found


def test_a_compacted_topic_may_lack_offsets(directory: Path) -> None:
    document = json.loads((directory / "topics.json").read_bytes())
    for topic in document["topics"]:
        topic["configs"] = {"cleanup.policy": "compact"}
    (directory / "topics.json").write_text(json.dumps(document))
    empty_middle(directory)
    assert verified_findings(directory) == Findings([], [])
    drop_middle(directory)
    missing = segment_files(directory / "orders-0")[1].path.name
    assert verified_findings(directory).found == [("orders-0", "offsets", missing)]


def test_short_segment_above_the_recovery_point_is_a_note(directory: Path) -> None:
    (directory / CLEAN_MARKER).unlink()
    drop_middle(directory)
    first, after, *_ = segment_files(directory / "orders-0")
    content = first.path.read_bytes()
    due = max(located.header.last_offset for located in walk_batches(memoryview(content))) + 1
    write_checkpoint(directory / RECOVERY_POINTS, {("orders", 0): due})
    assert verified_findings(directory) == Findings([], [("orders-0", "offsets", after.path.name)])
    write_checkpoint(directory / RECOVERY_POINTS, {("orders", 0): due + 1})
    assert ("orders-0", "offsets", after.path.name) in verified_findings(directory).found


def test_corrupt_and_stray_files_are_notes(directory: Path) -> None:
    (directory / "gone-0-stray").mkdir()
    (directory / "gone-1").mkdir()
    empty_middle(directory)
    (directory / "orders-0" / "00000000000000000007.log.corrupt").touch()
    notes = verified_findings(directory)
    assert {(name, check) for name, check, _ in notes.notes} == {
        (str(directory), "directories"),
        ("orders-0", "directories"),
        ("orders-0", "offsets"),
    }
    assert {check for _, check, _ in notes.found} == {"producers"} or not notes.found


def test_findings_are_bounded() -> None:
    verified = PartitionReport("orders-0")
    for number in range(FINDINGS_MAX + 5):
        verified.add("batches", str(number), "damaged")
    assert (len(verified.findings), verified.omitted, verified.is_intact) == (FINDINGS_MAX, 5, False)


def test_directory_without_topics_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"topics\.json"):
        list(verify(tmp_path))


# The walk and the dump


@given(st.binary(max_size=300), st.integers(0, 6))
def test_batches_on_both_sides_of_damage_are_shown(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = open_sample_log(directory).log
    for number in range(6):
        append(log, batch(b"%d" % number))
    path = segment_files(directory)[0].path
    content = path.read_bytes()
    size = len(content) // 6
    path.write_bytes(content[: at * size] + junk + content[at * size :])
    found = list(dump(directory, 0, None, with_records=False))
    assert [one.header.base_offset for one in found if isinstance(one, DumpedBatch)] == list(range(6))
    lost = [(one.position, one.byte_count) for one in found if isinstance(one, DumpedDamage)]
    assert lost == ([(at * size, len(junk))] if junk else [])


def test_walk_reads_files_in_chunks(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    append(log, batch(b"x" * (2 * CHUNK_BYTES)))
    path = segment_files(tmp_path)[0].path
    content = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"\xff" * (CHUNK_BYTES - 10))
        file.write(struct.pack(">q", 1) + content[8:])
    with SegmentWalk(segment_files(tmp_path)[0]) as walk:
        found = list(walk.batches())
        assert len(walk._chunk) <= CHUNK_BYTES
    assert [type(one) is Damage for one in found] == [False, True, False]
    assert found[1] == Damage(len(content), len(content) + CHUNK_BYTES - 10, 1, "batch version -1")


def test_dump_limits_offsets_and_decodes_batches(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path, limits=LogLimits(segment_bytes_max=200)).log
    for number in range(10):
        append(log, keyed_batch((b"k%d" % number, b"abc"), (None, None), codec=1))
    found = [one for one in dump(tmp_path, 5, 9, with_records=True) if isinstance(one, DumpedBatch)]
    assert [(one.header.base_offset, len(one.records or ())) for one in found] == [(4, 1), (6, 2), (8, 1)]
    first, second = found[1].records or ()
    assert (first.offset, first.timestamp_ms, first.key, first.value_bytes) == (6, NOW_MS, b"k3", 3)
    assert first.header_names == ("h",)
    assert (second.offset, second.key, second.value_bytes) == (7, None, None)


@pytest.mark.parametrize(("kind", "expected_marker"), [(0, "abort"), (1, "commit"), (5, "type 5")])
def test_dump_shows_the_type_of_a_control_batch(tmp_path: Path, kind: int, expected_marker: str) -> None:
    log = open_sample_log(tmp_path).log
    append(log, with_attributes(keyed_batch((struct.pack(">hh", 0, kind), b"\0" * 6)), CONTROL))
    (found,) = dump(tmp_path, 0, None, with_records=False)
    assert isinstance(found, DumpedBatch)
    assert (found.marker, found.records) == (expected_marker, None)


def test_dump_retries_a_batch_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_sample_log(tmp_path).log
    append(log, batch(b"a"))
    append(log, batch(b"b"))
    path = segment_files(tmp_path)[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    monkeypatch.setattr("headrace.broker.inspect.dump.time.sleep", lambda seconds: path.write_bytes(content))
    found = list(dump(tmp_path, 0, None, with_records=False))
    assert [type(one) for one in found] == [DumpedBatch, DumpedBatch]


# The commands


def test_exit_codes_of_dump_and_verify(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--directory", str(directory)]
    assert main(["broker", "verify", *words]) == 0
    assert "40 batches, 80 records" in capsys.readouterr().out
    assert main(["broker", "dump", "orders", "0", "--offset", "10:12", "--records", *words]) == 0
    expected_marker = capsys.readouterr().out.splitlines()
    assert expected_marker[0].startswith("10-11  2 records") and "producer 7:0 sequence 10" in expected_marker[0]
    assert expected_marker[1].split()[:4] == ["10", "2023-11-14T22:13:20.000Z", "key", "-"]
    first = segment_files(directory / "orders-0")[0].path
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    assert main(["broker", "verify", *words]) == 1
    assert "FINDING: orders-0: batches: 00000000000000000000.log position 0: " in capsys.readouterr().out
    assert main(["broker", "dump", "orders", "0", *words]) == 1
    assert "DAMAGE: 00000000000000000000.log position 0" in capsys.readouterr().out
    assert main(["broker", "dump", "orders", "0", "--format", "json", *words]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["damage"] + ["batch"] * (BATCHES - 1)
    assert main(["broker", "verify", "--format", "json", *words]) == 1
    report = json.loads(capsys.readouterr().out)
    assert next(one["check"] for part in report["partitions"] for one in part["findings"]) == "batches"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["dump", "orders", "7"], "orders-7"),
        (["dump", "../broker/orders", "0"], "../broker/orders-0"),
        (["verify"], "topics.json"),
    ],
)
def test_missing_input_gives_one_line_error(
    directory: Path, tmp_path: Path, words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words == ["verify"]:
        (directory / "topics.json").unlink()
    assert main(["broker", *words, "--directory", str(directory)]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


def test_verify_refuses_a_running_broker_and_dump_works(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=lambda: NOW_MS)
        assert main(["broker", "verify", "--directory", str(directory)]) == 2
        assert str(directory) in capsys.readouterr().err
        assert main(["broker", "dump", "orders", "0", "--directory", str(directory)]) == 0
        await node.close()

    asyncio.run(work())


def test_no_broker_starts_while_a_directory_is_verified(directory: Path) -> None:
    with exclude_brokers(directory), pytest.raises(DataDirectoryInUse):
        BrokerNode(BrokerConfig(directory), now_ms=lambda: NOW_MS)
