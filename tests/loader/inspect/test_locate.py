"""`headrace locate` reports the status of an offset, for every possible status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.locate import LocatedMessage, OffsetStatus, locate
from headrace.loader.inspect.verify import verify_topic
from headrace.loader.work_unit import FileKind, RangeCounts, SkippedOffsets
from support.loader.shelf import BAD, Shelf

FIVE, SIX = "dt=2026-01-01/hr=05", "dt=2026-01-01/hr=06"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """Partition 0: offsets 0 to 3 in one file, 4 to 9 in two, 10 to 19 a gap, then 20 to 25, with 22 in quarantine."""
    shelf = Shelf(tmp_path)
    shelf.load({FIVE: [(0, n) for n in range(4)]}, (0, None, 0, 4))
    shelf.load({FIVE: [(0, 4), (0, 6), (0, 9)], SIX: [(0, 5), (0, 7), (0, 8)]}, (0, 4, 4, 10))
    shelf.load({FIVE: [(0, n) for n in (20, 21, 23, 24, 25)]}, (0, 10, 20, 26), quarantined={SIX: [(0, 22)]})
    return shelf


def locate_offset(shelf: Shelf, offset: int, partition: int = 0) -> LocatedMessage:
    shelf.log.read_state()
    return locate(shelf.log, FileIndex(shelf.log), shelf.storage.files, "orders", partition, offset)


def test_a_row_is_found_in_the_one_file_that_holds_it(shelf: Shelf) -> None:
    for offset, time_partition, commit_number in (
        (0, FIVE, 1),
        (3, FIVE, 1),
        (4, FIVE, 2),
        (5, SIX, 2),
        (8, SIX, 2),
        (25, FIVE, 3),
    ):
        found = locate_offset(shelf, offset)
        assert (found.status, found.commit_number, len(found.files)) == (OffsetStatus.ROW, commit_number, 1)
        assert found.files[0].startswith(f"orders/{time_partition}/0-{commit_number}-work-{commit_number}")
    assert (found.start, found.end, found.run_id) == (20, 26, "work-3")


def test_files_are_opened_only_if_several_span_the_offset(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("headrace.loader.inspect.locate.positions")
    assert locate_offset(shelf, 2).status is OffsetStatus.ROW
    with pytest.raises(NameError):
        locate_offset(shelf, 5)


def test_locate_reads_commits_back_to_the_offset_only(shelf: Shelf) -> None:
    read: list[int] = []
    document = shelf.log.document
    shelf.log.document = lambda commit_number: read.append(commit_number) or document(commit_number)  # type: ignore[method-assign,assign,func-returns-value]
    locate_offset(shelf, 5)
    assert read == [3, 2]


def test_status_of_offsets_without_a_row(shelf: Shelf) -> None:
    assert (locate_offset(shelf, 22).status, locate_offset(shelf, 22).detail) == (
        OffsetStatus.QUARANTINED,
        f"{BAD.code}: {BAD.reason}",
    )
    assert locate_offset(shelf, 15).status is OffsetStatus.GAP
    assert locate_offset(shelf, 26).status is OffsetStatus.NOT_LOADED
    assert locate_offset(shelf, 26).detail.endswith(" 26")
    assert locate_offset(shelf, 0, partition=7).status is OffsetStatus.NOT_LOADED
    shelf.load({}, (1, None, 5, 8), counts=RangeCounts(tombstones=2, control=1))
    assert locate_offset(shelf, 4, partition=1).status is OffsetStatus.NEVER_LOADED
    found = locate_offset(shelf, 6, partition=1)
    assert found.status is OffsetStatus.NO_ROW
    assert re.search(r"\b2 tombstones .*\b1 transaction markers\b", found.detail)


def test_status_of_offsets_in_corrupt_batches(shelf: Shelf) -> None:
    shelf.load(
        {},
        (0, 26, 28, 32),
        quarantined={FIVE: [(0, 29)]},
        counts=RangeCounts(tombstones=1, corrupt=3),
        skipped=(
            SkippedOffsets(26, 28, "skipped by an operator"),
            SkippedOffsets(29, 32, "its CRC is wrong", is_quarantined=True),
        ),
    )
    assert [(locate_offset(shelf, n).status, locate_offset(shelf, n).detail) for n in (26, 27)] == [
        (OffsetStatus.SKIPPED, "skipped by an operator")
    ] * 2
    for offset in (29, 30, 31):
        found = locate_offset(shelf, offset)
        assert (found.status, found.offset, len(found.files)) == (OffsetStatus.QUARANTINED, offset, 1)
    assert re.search(r"\b1 tombstones .*\b3 offsets\b", locate_offset(shelf, 28).detail)
    index = FileIndex(shelf.log)
    assert verify_topic(shelf.log, index, shelf.storage, "orders", checksums=True).findings == ()


def test_a_tombstone_between_rows_is_distinguished_from_rows(shelf: Shelf) -> None:
    shelf.load({FIVE: [(0, 26), (0, 28)]}, (0, 26, 26, 29), counts=RangeCounts(records=2, tombstones=1))
    assert locate_offset(shelf, 28).status is OffsetStatus.ROW
    assert locate_offset(shelf, 27).status is OffsetStatus.NO_ROW


def test_a_file_that_lacks_the_row_is_reported(shelf: Shelf) -> None:
    shelf.load({FIVE: [(0, 26), (0, 28)]}, (0, 26, 26, 29))
    found = locate_offset(shelf, 27)
    assert found.status is OffsetStatus.UNKNOWN
    assert found.detail.endswith("`headrace verify`")


def test_after_a_rewrite_the_new_file_is_located(shelf: Shelf) -> None:
    shelf.rewrite(FIVE, [(0, n) for n in (0, 1, 2, 3, 4, 6, 9, 20, 21, 23, 24, 25)])
    found = locate_offset(shelf, 2)
    assert (found.status, found.commit_number) == (OffsetStatus.ROW, 1)
    assert found.files == (f"orders/_g1/{FIVE}/1-4-work-4-0-0.avro",)
    assert locate_offset(shelf, 5).files[0].startswith(f"orders/{SIX}/")
    assert locate_offset(shelf, 22).status is OffsetStatus.QUARANTINED
    shelf.rewrite(FIVE, [])
    assert locate_offset(shelf, 2).status is OffsetStatus.REMOVED
    assert locate_offset(shelf, 5).status is OffsetStatus.ROW


def test_a_rewrite_that_is_not_applied_yet_is_not_located(shelf: Shelf) -> None:
    shelf.applies_commits = False
    shelf.rewrite(FIVE, [(0, n) for n in (0, 1, 2, 3, 4, 6, 9, 20, 21, 23, 24, 25)])
    assert locate_offset(shelf, 2).files[0].startswith(f"orders/{FIVE}/0-1-")


def test_all_candidates_are_listed_without_the_kafka_column(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.load({FIVE: [(0, 0), (0, 2)], SIX: [(0, 1), (0, 3)]}, (0, None, 0, 4), kafka_column="none")
    assert [locate_offset(shelf, 1).status, len(locate_offset(shelf, 1).files)] == [OffsetStatus.UNKNOWN, 2]
    assert len(locate_offset(shelf, 0).files) == 1
    shelf.applies_commits = False
    shelf.load({FIVE: [(0, 4), (0, 6)], SIX: [(0, 5)]}, (0, 4, 4, 7))
    assert (locate_offset(shelf, 4).status, len(locate_offset(shelf, 4).files)) == (OffsetStatus.UNKNOWN, 1)
    found = locate_offset(shelf, 5)
    assert (found.status, len(found.files)) == (OffsetStatus.ROW, 1), "derived from the commit, without the file"


def test_offsets_of_a_recreated_topic_are_located_in_its_new_files(shelf: Shelf) -> None:
    shelf.load({FIVE: [(0, n) for n in range(5, 7)]}, (0, None, 5, 7), topic_id="id-2")
    assert locate_offset(shelf, 6).commit_number == 4
    assert locate_offset(shelf, 8).status is OffsetStatus.NOT_LOADED
    assert locate_offset(shelf, 2).status is OffsetStatus.NEVER_LOADED


def test_locate_works_with_key_columns(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.load({FIVE: [(0, 0), (0, 2)], SIX: [(0, 1), (0, 3)]}, (0, None, 0, 4), kafka_column="full")
    assert [locate_offset(shelf, n).files[0].split("/0-")[0] for n in range(4)] == [
        f"orders/{time_partition}" for time_partition in (FIVE, SIX, FIVE, SIX)
    ]


def test_locate_command_prints_text_and_json(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> str:
        assert main(["locate", "orders", *arguments, "--data-dir", str(tmp_path)]) == 0
        return capsys.readouterr().out

    lines = run("0", "5").splitlines()
    assert lines[0].startswith("orders-0 offset 5: ")
    assert lines[1] == f"  {shelf.warehouse}/orders/{SIX}/0-2-work-2-0-1.avro"
    assert re.match(r"  .*\b2\b.*\b2026-01-01T00:00:00Z\b.*\b4\b.*\b10\b.*\bwork-2\b", lines[2])
    found = json.loads(run("0", "22", "--format", "json"))
    assert (found["status"], found["commit_number"]) == ("quarantined", 3)
    assert Path(found["files"][0]).exists()
    assert re.fullmatch(r"orders-0 offset 99: .*\b26\b.*\n", run("0", "99"))


def test_error_is_one_line_that_names_the_topic_argument_or_file(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, named in (
        (("users", "0", "1"), r"\busers\b.*\borders$"),
        (("orders", "-1", "1"), "-1"),
        (("orders", "0", "x"), "'x'"),
    ):
        try:
            assert main(["locate", *words, "--data-dir", str(tmp_path)]) == 2
        except SystemExit as ended:
            assert ended.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(named, line)
    path = shelf.warehouse / locate_offset(shelf, 5).files[0]
    whole = path.read_bytes()
    for damaged in (b"no container", whole[:-20]):
        path.write_bytes(damaged)
        assert main(["locate", "orders", "0", "8", "--data-dir", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(rf"{path.name}.*headrace verify", line)
    (shelf.warehouse / "_headrace" / "log/000000002.json").write_text("{}")
    assert main(["locate", "orders", "0", "5", "--data-dir", str(tmp_path)]) == 2
    assert "000000002.json" in capsys.readouterr().err


def test_a_quarantined_message_is_located_after_a_rewrite(shelf: Shelf) -> None:
    shelf.rewrite(SIX, [(0, 22)], FileKind.QUARANTINE)
    found = locate_offset(shelf, 22)
    assert found.files[0].startswith(f"_quarantine/orders/_g1/{SIX}/")
    assert found.status is OffsetStatus.QUARANTINED
