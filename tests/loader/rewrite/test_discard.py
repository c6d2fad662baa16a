"""`headrace quarantine discard` removes the chosen messages from the quarantine, and no others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.loader.build import current_build
from headrace.loader.commit.cleaning import CleanResult, clean
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.locate import OffsetStatus, locate
from headrace.loader.inspect.quarantine import committed_files, read_rows
from headrace.loader.inspect.verify import verify_topic
from headrace.loader.project.quarantine import BadMessage, QuarantineCode
from headrace.loader.rewrite.discard import DiscardReport, discard
from headrace.loader.rewrite.driver_files import FileShape
from headrace.loader.rewrite.merge import merge
from headrace.loader.rewrite.run import CompactSettings, RewritePorts, compact
from support.loader.shelf import TIME_MS, Shelf

FIVE, SIX = "dt=2026-01-01/hr=05", "dt=2026-01-01/hr=06"
SHAPE = FileShape("", "deflate", block_bytes=1_000, file_bytes_target=1_000_000)
CUT = BadMessage(QuarantineCode.MALFORMED, "it is cut", 7)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """Offsets 0 to 9: 2 and 5 have an unknown schema, 7 and 8 are truncated; 5 and 7 are in one hour."""
    shelf = Shelf(tmp_path)
    shelf.load({FIVE: [(0, 0), (0, 1)]}, (0, None, 0, 3), quarantined={FIVE: [(0, 2)]})
    shelf.load({SIX: [(0, 3), (0, 4)]}, (0, 3, 3, 6), quarantined={SIX: [(0, 5)]})
    shelf.load({SIX: [(0, 6), (0, 9)]}, (0, 6, 6, 10), quarantined={SIX: [(0, 7), (0, 8)]}, bad=CUT)
    return shelf


def ports(shelf: Shelf) -> RewritePorts:
    index = FileIndex(shelf.log)
    return RewritePorts(
        log=shelf.log,
        staging=shelf.storage.staging,
        files=shelf.storage.files,
        index=index,
        engine=shelf.engine(index),
        run_merges=lambda units: [],
        now_ms=lambda: TIME_MS,
        new_run_id=lambda: f"rewrite-{shelf.log.head() + 1}",
        build=current_build(),
    )


def discarded(shelf: Shelf, *codes: str, is_dry: bool = False) -> DiscardReport:
    return discard(ports(shelf), "orders", SHAPE, codes, "ticket 4711", is_dry=is_dry)


def offsets_left(shelf: Shelf) -> list[tuple[int, str]]:
    found = []
    for file in committed_files(shelf.log, ["orders"]):
        with shelf.storage.files.open(file.name) as opened:
            found += [(row.offset, row.code) for row in read_rows(opened)]
    return sorted(found)


def test_discard_removes_all_messages_and_commits_the_reason(shelf: Shelf) -> None:
    dry = discarded(shelf, is_dry=True)
    assert (dry.discarded, dry.left, dry.commit_number) == ({"schema_not_found": 2, "malformed": 2}, {}, 0)
    assert len(offsets_left(shelf)) == 4
    report = discarded(shelf)
    assert (report.discarded, report.left, report.problems) == (dry.discarded, {}, ())
    assert offsets_left(shelf) == []
    assert next(shelf.log.history("orders", shelf.log.read_state())).value.reason == "ticket 4711"
    assert discarded(shelf) == DiscardReport()
    assert verified(shelf) == []
    assert locate(shelf.log, FileIndex(shelf.log), shelf.storage.files, "orders", 0, 5).status is OffsetStatus.REMOVED


def test_discard_by_code_removes_only_messages_with_this_code(shelf: Shelf) -> None:
    before = offsets_left(shelf)
    report = discarded(shelf, "malformed")
    assert (report.discarded, report.left) == ({"malformed": 2}, {"schema_not_found": 2})
    assert offsets_left(shelf) == [one for one in before if one[1] != "malformed"]
    assert verified(shelf) == []
    assert discarded(shelf, "malformed").commit_number == 0


def merge_quarantine(shelf: Shelf) -> None:
    """Merges the quarantine files of the second hour, so that one file has messages with both codes."""
    merge_settings = CompactSettings(lambda topic: 0, 1_000_000, 1_000, lambda topic: "deflate")
    files, staging = shelf.storage.files, shelf.storage.staging
    merge_ports = dataclasses.replace(
        ports(shelf),
        run_merges=lambda units: [merge(unit, files, staging.sink(unit.run_id)) for unit in units],
        now_ms=lambda: TIME_MS + 10**9,
    )
    assert compact(merge_ports, ["orders"], merge_settings, is_dry=False).problems == {}
    assert [file.records for file in committed_files(shelf.log, ["orders"])] == [1, 3]


def test_a_file_with_other_messages_is_rewritten(shelf: Shelf) -> None:
    merge_quarantine(shelf)
    assert discarded(shelf, "malformed").discarded == {"malformed": 2}
    assert offsets_left(shelf) == [(2, "schema_not_found"), (5, "schema_not_found")]
    assert [file.records for file in committed_files(shelf.log, ["orders"])] == [1, 1]
    assert verified(shelf) == []
    remaining = locate(shelf.log, FileIndex(shelf.log), shelf.storage.files, "orders", 0, 5)
    assert (remaining.status, remaining.detail) == (OffsetStatus.QUARANTINED, "schema_not_found: there is no schema 7")


def test_cleaning_does_not_delete_the_unpublished_files_of_a_discard(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_quarantine(shelf)
    before = offsets_left(shelf)

    def refuse(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(type(shelf.storage.files), "publish", refuse)
        assert "no room" in discarded(shelf, "malformed").problems[0]
    cleaned = clean(shelf.log, shelf.storage.staging, run_id="c", build="b", now_ms=2**53, age_ms=0)
    assert cleaned == CleanResult(())
    shelf.apply_pending()
    assert offsets_left(shelf) == [one for one in before if one[1] != "malformed"]
    assert verified(shelf) == []
    assert shelf.storage.staging.run_ids() == frozenset()


def test_discard_leaves_messages_with_unknown_codes(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.loader.rewrite.discard.CODES", frozenset({"malformed"}))
    assert discarded(shelf, "schema_not_found").discarded == {"schema_not_found": 2}
    assert discarded(shelf).discarded == {"malformed": 2}


def test_discard_stops_at_a_missing_file_with_a_remedy(shelf: Shelf) -> None:
    file = committed_files(shelf.log, ["orders"])[0]
    (shelf.warehouse / file.name).unlink()
    report = discarded(shelf)
    assert (report.commit_number, report.discarded) == (0, {})
    assert "is missing: restore it from a backup" in report.problems[0]


def verified(shelf: Shelf) -> list[object]:
    shelf.log.read_state()
    return list(verify_topic(shelf.log, FileIndex(shelf.log), shelf.storage, "orders", checksums=True).findings)


def test_discard_command_prints_the_result_and_requires_a_reason(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["quarantine", "discard", "orders", "--data-dir", str(tmp_path), "--hive-executor", "print"]
    command += ["--bootstrap-servers", "127.0.0.1:1"]  # no broker
    with pytest.raises(SystemExit):
        main(command)
    assert "--because" in capsys.readouterr().err
    assert main([*command, "--because", " "]) == 2
    assert main([*command, "--because", "x", "--reason", "nothing"]) == 2
    capsys.readouterr()
    assert main([*command, "--because", "tests", "--reason", "malformed", "--dry-run"]) == 0
    assert "malformed" in capsys.readouterr().out
    assert main([*command, "--because", "tests", "--reason", "malformed", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["discarded"], found["left"]) == ({"malformed": 2}, {"schema_not_found": 2})


def test_discard_of_more_messages_than_expected_changes_nothing(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["quarantine", "discard", "orders", "--data-dir", str(tmp_path), "--hive-executor", "print"]
    command += ["--bootstrap-servers", "127.0.0.1:1", "--because", "tests", "--format", "json", "--at-most"]
    before = offsets_left(shelf)
    assert main([*command, "3"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["discarded"], found["commit_number"], len(found["problems"])) == ({}, 0, 1)
    assert found["left"] == {"schema_not_found": 2, "malformed": 2}
    assert offsets_left(shelf) == before
    assert main([*command, "4"]) == 0
    assert offsets_left(shelf) == []
