"""`headrace verify` finds every disagreement of files, commits and brokers, and nothing else."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.loader.commit.commit import CommittedFile, TimePartitionRewrite, TopicCommit
from headrace.loader.commit.file_index import FileIndex, index_directory
from headrace.loader.commit.state import LoaderState
from headrace.loader.inspect.findings import ConsistencyCheck, VerifiedTopic
from headrace.loader.inspect.verify import verify_topic
from headrace.loader.plan.discover import DiscoveredTopic, PartitionOffsets
from headrace.loader.work_unit import FileKind, RangeCounts, SkippedOffsets
from support.loader.shelf import Shelf, container

FIVE, SIX = "dt=2026-01-01/hr=05", "dt=2026-01-02/hr=06"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.load({FIVE: [(0, n) for n in range(5)], SIX: [(1, 0)]}, (0, None, 0, 5), (1, None, 0, 1))
    shelf.load({FIVE: [(0, 5)]}, (0, 5, 5, 7), quarantined={SIX: [(0, 6)]})
    shelf.load({FIVE: [(0, 9)]}, (0, 7, 9, 10))
    return shelf


def verified(shelf: Shelf, discovered: DiscoveredTopic | None = None, *, checksums: bool = False) -> VerifiedTopic:
    shelf.log.read_state()
    index = FileIndex(shelf.log)
    return verify_topic(shelf.log, index, shelf.storage, "orders", discovered, checksums=checksums)


def found(shelf: Shelf, **options: bool) -> list[tuple[ConsistencyCheck, str]]:
    return [(one.check, one.where) for one in verified(shelf, **options).findings]


def path(shelf: Shelf, commit_number: int, time_partition: str = FIVE) -> Path:
    (one,) = (shelf.warehouse / "orders" / time_partition).glob(f"0-{commit_number}-*")
    return one


def test_an_intact_topic_has_no_findings(shelf: Shelf) -> None:
    one = verified(shelf, checksums=True)
    assert one.findings == ()
    assert (one.commits, one.files, one.rows, one.waiting) == (3, 5, 8, 0)
    assert one.bytes == sum(file.stat().st_size for file in shelf.warehouse.rglob("dt=*/hr=*/*.avro"))
    shelf.rewrite(FIVE, [(0, n) for n in (0, 1, 2, 3, 4, 5, 9)])
    one = verified(shelf, checksums=True)
    assert (one.findings, one.commits, one.files, one.rows) == ((), 4, 3, 8)
    shelf.rewrite(FIVE, [])
    assert (verified(shelf).findings, verified(shelf).rows) == ((), 1)


def _flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (lambda file: file.unlink(), ConsistencyCheck.PLACE),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), ConsistencyCheck.LENGTH),
        (lambda file: _flip(file, 0), ConsistencyCheck.ROWS),
        (lambda file: _flip(file, -1), ConsistencyCheck.ROWS),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), ConsistencyCheck.ROWS),
        (lambda file: (file.unlink(), file.mkdir()), ConsistencyCheck.LENGTH),
    ],
)
def test_damaged_file_is_a_finding_of_its_check(
    shelf: Shelf, damage: Callable[[Path], object], check: ConsistencyCheck
) -> None:
    damaged = path(shelf, 1)
    damage(damaged)
    (one,) = verified(shelf).findings
    assert (one.check, one.where) == (check, str(damaged.relative_to(shelf.warehouse)))


def test_a_disk_that_fails_is_a_finding(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: object, length: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("headrace.loader.inspect.compare_files.count_rows", fail)
    findings = verified(shelf).findings
    assert {one.check for one in findings} == {ConsistencyCheck.ROWS}
    assert re.search(r": Input/output error; .*\b1$", findings[0].message)


def test_rows_are_counted_by_the_blocks_of_the_file(shelf: Shelf) -> None:
    commit = shelf.log.commit(1).topics["orders"]
    file = path(shelf, 1)
    whole = file.read_bytes()
    fewer = container([(0, n) for n in range(3)])
    file.write_bytes(fewer)
    assert len(fewer) < len(whole)
    assert found(shelf) == [(ConsistencyCheck.LENGTH, str(file.relative_to(shelf.warehouse)))]
    changed = tuple(dataclasses.replace(one, length=len(fewer)) if one.records == 5 else one for one in commit.files)
    _change(shelf, 1, lambda committed: dataclasses.replace(committed, files=changed))
    assert (ConsistencyCheck.ROWS, str(file.relative_to(shelf.warehouse))) in found(shelf)


def test_changed_bytes_are_found_by_checksum(shelf: Shelf) -> None:
    file = path(shelf, 1)
    content = file.read_bytes()
    place = content.index(bytes(range(16))) + 16 + 3
    _flip(file, place)
    assert found(shelf) == []
    assert found(shelf, checksums=True) == [(ConsistencyCheck.CHECKSUM, str(file.relative_to(shelf.warehouse)))]


def test_uncommitted_files_visible_to_readers_are_found(shelf: Shelf) -> None:
    directory = path(shelf, 1).parent
    for name in (".hidden", "_SUCCESS", "part-00000.avro"):
        (directory / name).write_bytes(b"x")
    (shelf.warehouse / "orders" / "_g9").mkdir()
    assert found(shelf) == [(ConsistencyCheck.FOREIGN, f"orders/{FIVE}/part-00000.avro")]
    (directory / "part-00000.avro").unlink()
    shelf.rewrite(FIVE, [(0, n) for n in (0, 1, 2, 3, 4, 5, 9)])
    assert found(shelf) == [], "replaced files are in directories that no reader uses"


def test_unpublished_files_are_waiting_and_missing_ones_are_findings(shelf: Shelf) -> None:
    shelf.applies_commits = False
    commit = shelf.load({FIVE: [(0, 10)]}, (0, 10, 10, 11))
    one = verified(shelf)
    assert (one.findings, one.waiting, one.files) == ((), 1, 5)
    shelf.storage.staging.drop(commit.run_id)
    (lost,) = verified(shelf).findings
    assert lost.check is ConsistencyCheck.PLACE
    assert re.search(r"\b4\b", lost.message)
    target = path(shelf, 1).parent / commit.topics["orders"].files[0].name
    target.write_bytes(b"copied before its cursor was written")
    assert found(shelf) == []


def test_an_unapplied_rewrite_leaves_the_earlier_files_valid(shelf: Shelf) -> None:
    shelf.applies_commits = False
    shelf.rewrite(FIVE, [(0, n) for n in (0, 1, 2, 3, 4, 5, 9)])
    assert (found(shelf), verified(shelf).waiting) == ([], 1)
    path(shelf, 1).unlink()
    assert [check for check, _ in found(shelf)] == [ConsistencyCheck.PLACE]


def _change(shelf: Shelf, commit_number: int, change: Callable[[TopicCommit], TopicCommit]) -> None:
    """Changes a commit to one that no loader would write."""
    document = shelf.log.document

    def changed(wanted: int) -> object:
        found = document(wanted)
        if wanted != commit_number:
            return found
        topics = {**found.value.topics, "orders": change(found.value.topics["orders"])}
        return dataclasses.replace(found, value=dataclasses.replace(found.value, topics=topics))

    shelf.log.document = changed  # type: ignore[method-assign,assign]


def _range(committed: TopicCommit, **changes: object) -> TopicCommit:
    first = dataclasses.replace(committed.ranges[0], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(committed, ranges=(first, *committed.ranges[1:]))


@pytest.mark.parametrize(
    ("commit_number", "change", "messages"),
    [
        (2, lambda d: _range(d, end=8, counts=RangeCounts(records=1, quarantined=2)), [r"\b7;", r"\b8\b"]),
        (2, lambda d: _range(d, counts=RangeCounts(records=1)), [r"\b1\b", r"\b1 and 1;"]),
        (2, lambda d: _range(d, counts=RangeCounts(records=2)), [r"\b2\b.*\b0\b.*\b1 and 1;"]),
        (2, lambda d: _range(d, previous=None), [r"\b0\b.*\b5\b"]),
        (1, lambda d: _range(d, previous=3), [r"\b3\b"]),
        (3, lambda d: _range(d, gaps=()), [r"\b7 to 8\b"]),
        (3, lambda d: _range(d, gaps=((7, 8),)), [r"\b8 to 8\b"]),
        (3, lambda d: _range(d, gaps=((7, 8),), skipped=(SkippedOffsets(8, 9, "skipped"),)), []),
        (
            2,
            lambda d: _range(d, skipped=(SkippedOffsets(6, 7, "cut", is_quarantined=True),)),
            [r"\b1\b.*\b2\b.*\b1 and 1;"],
        ),
        (
            3,
            lambda d: _range(d, start=6, diverged_at=5, counts=RangeCounts(records=4)),
            [r"\b4\b", r"\b5\b"],
        ),
        (3, lambda d: _range(d, start=6, diverged_at=6, counts=RangeCounts(records=4)), [r"\b4\b"]),
        (
            3,
            lambda d: dataclasses.replace(d, previous_commit_number=1),
            [r"\b7;", r"\b7\b.*\b4\b.*\b8\b", r"\b0 quarantine\b"],
        ),
    ],
)
def test_inconsistent_commits_are_found(
    shelf: Shelf, commit_number: int, change: Callable[[TopicCommit], TopicCommit], messages: list[str]
) -> None:
    _change(shelf, commit_number, change)
    texts = [one.message for one in verified(shelf).findings if one.check is ConsistencyCheck.COMMITS]
    assert len(texts) == len(messages), texts
    for text, message in zip(texts, messages, strict=True):
        assert re.search(message, text)


def test_a_damaged_commit_is_a_finding_and_files_are_still_checked(shelf: Shelf) -> None:
    (shelf.warehouse / "_headrace" / "log/000000001.json").write_text("{}")
    path(shelf, 2).unlink()
    (commit, file) = verified(shelf).findings
    assert (commit.check, "000000001.json" in commit.message) == (ConsistencyCheck.COMMITS, True)
    assert file.check is ConsistencyCheck.PLACE


def test_a_recreated_topic_has_no_findings(shelf: Shelf) -> None:
    shelf.load({FIVE: [(0, n) for n in range(5, 7)]}, (0, None, 5, 7), topic_id="id-2")
    shelf.load({FIVE: [(0, 7)]}, (0, 7, 7, 8), topic_id="id-2")
    assert found(shelf) == []


def test_a_wrong_index_is_found(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileIndex, "live", lambda *_: ())
    findings = verified(shelf).findings
    assert {one.check for one in findings} == {ConsistencyCheck.INDEX}
    assert str(shelf.log.storage.describe(index_directory("orders"))) in findings[0].message


def on_brokers(
    *offsets: tuple[int, int], topic_id: str = "id-1", errors: dict[int, str] | None = None
) -> DiscoveredTopic:
    partitions = tuple(PartitionOffsets(n, 0, start, end, end) for n, (start, end) in enumerate(offsets))
    return DiscoveredTopic("orders", topic_id, partitions, errors or {})


@pytest.mark.parametrize(
    ("discovered", "numbers"),
    [
        (on_brokers((0, 10), (1, 50)), []),
        (on_brokers((10, 10), (1, 1), topic_id=""), []),
        (on_brokers((0, 9), (0, 1)), [["9", "10"]]),
        (on_brokers((11, 20), (0, 1)), [["11", "10"]]),
        (on_brokers((0, 10)), [["1", "1"]]),
        (on_brokers((0, 10), errors={1: "no leader"}), []),
        (on_brokers((0, 1), topic_id="id-2"), [[]]),
    ],
)
def test_offsets_are_compared_with_the_brokers(
    shelf: Shelf, discovered: DiscoveredTopic, numbers: list[list[str]]
) -> None:
    findings = verified(shelf, discovered).findings
    assert [re.findall(r"\d+", one.message) for one in findings] == numbers
    assert {one.check for one in findings} <= {ConsistencyCheck.OFFSETS}


def test_an_open_transaction_is_no_finding(shelf: Shelf) -> None:
    held = PartitionOffsets(0, 0, 0, 8, 30)
    discovered = DiscoveredTopic("orders", "id-1", (held, PartitionOffsets(1, 0, 0, 1, 1)), {})
    assert verified(shelf, discovered).findings == ()


@pytest.fixture
def no_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> object:
        raise KafkaUnavailable("no broker of 127.0.0.1:1 answers")

    monkeypatch.setattr("headrace.pipeline.load.kafka_cluster", down)


@pytest.mark.usefixtures("no_brokers")
def test_verify_command_exits_1_with_findings(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--data-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == ["orders", "3", "5", "8", "0.0", "0", "0"]
    assert re.match(r"note: .*: no broker of 127\.0\.0\.1:1 answers$", lines[-1])
    assert re.findall(r"\d+", lines[0]) == ["1", "5", "0"]
    path(shelf, 1).unlink()
    assert main(["verify", "orders", "--checksums", "--data-dir", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"FINDING: orders: place: orders/{FIVE}/0-1-work-1-0-0.avro: " in out
    assert main(["verify", "--format", "json", "--data-dir", str(tmp_path)]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["topics"][0]["findings"][0]["check"] == "place"
    assert main(["verify", "users", "--data-dir", str(tmp_path)]) == 2


def test_wrong_sums_of_a_rewrite_are_found(shelf: Shelf) -> None:
    """The sums of the commits are added as in the state, so that a file that was replaced twice is detected."""
    name = shelf.log.commit(1).topics["orders"].files[0].name
    state: LoaderState = shelf.log.read_state()
    rewrite = TimePartitionRewrite(FileKind.DATA, FIVE, (name,), 5, 0)

    def add_rewrite(committed: TopicCommit) -> TopicCommit:
        files: tuple[CommittedFile, ...] = committed.files
        return dataclasses.replace(committed, files=files, rewrites=(rewrite,))

    _change(shelf, 3, add_rewrite)
    assert state.topics["orders"].data.files == 4
    numbers = [re.findall(r"\d+", one.message) for one in verified(shelf).findings]
    assert ["3", "3", "4", "8"] in numbers
