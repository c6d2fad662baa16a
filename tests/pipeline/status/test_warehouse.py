"""`headrace status` names missing, changed and foreign files with commands that repair them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.loader.inspect.open_findings import WarehouseChecks, write_checks
from headrace.loader.inspect.rolling_check import RollingCheck
from headrace.loader.work_unit import FileKind
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, folded
from headrace.pipeline.status.warehouse import UNCHECKED_MS, warehouse
from headrace.settings import Settings
from support.loader.shelf import Shelf

HOUR = "dt=2026-01-01/hr=05"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.load({HOUR: [(0, n) for n in range(5)]}, (0, None, 0, 6), quarantined={HOUR: [(0, 5)]})
    return shelf


def report(shelf: Shelf, after_ms: int = 0) -> SourceReport:
    """Reports the status at a time after the newest commit, after a comparison at that time."""
    now_ms = shelf.log.read_state().committed_at_ms + after_ms
    RollingCheck(shelf.log, shelf.storage.files).check(now_ms)
    return warehouse(StatusContext(Settings(data_dir=shelf.warehouse.parent), now_ms))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", FileKind)
@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (lambda path: path.unlink(), "file-missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "file-length"),
        (flip, "file-content"),
        (lambda path: path.with_name("copy.avro").write_bytes(path.read_bytes()), "file-foreign"),
    ],
)
def test_a_fault_of_a_file_is_one_finding_with_its_repair(
    shelf: Shelf, damage: Callable[[Path], object], wanted: str, kind: FileKind
) -> None:
    assert report(shelf).findings == ()
    top = shelf.warehouse / ("_quarantine" if kind is FileKind.QUARANTINE else ".")
    (path,) = (top / "orders" / HOUR).glob("*.avro")
    damage(path)
    (found,) = report(shelf, after_ms=20_000).findings
    since_ms = shelf.log.state.committed_at_ms + 20_000
    assert (found.kind, found.since_ms, found.show) == (wanted, since_ms, "headrace verify orders")
    assert HOUR in found.subject
    if wanted == "file-foreign":
        assert found.repair.endswith("headrace hive repair orders")
    else:
        flag = " --quarantine" if kind is FileKind.QUARANTINE else ""
        assert f"headrace backfill orders --from {HOUR} --to {HOUR}" in found.repair
        assert found.repair.endswith(f"headrace accept-missing orders --time-partition {HOUR}{flag}")


def test_many_missing_files_are_few_findings(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for topic in ("a", "b"):
        hours = [f"dt=2026-01-{day:02}/hr=05" for day in range(1, 31)]
        shelf.load({hour: [(0, n)] for n, hour in enumerate(hours)}, (0, None, 0, 30), topic=topic)
    for path in shelf.warehouse.rglob("dt=*/hr=*/*.avro"):
        path.unlink()
    found = folded(report(shelf).findings)
    assert len(found) <= 3
    assert sum(one.count for one in found) == 60


@pytest.mark.parametrize(
    ("behind_ms", "wanted"), [(UNCHECKED_MS, []), (UNCHECKED_MS + 1, ["files-unchecked"]), (-5, [])]
)
def test_loads_that_do_not_compare_files_any_more_are_a_finding(
    shelf: Shelf, behind_ms: int, wanted: list[str]
) -> None:
    committed_at_ms = shelf.log.read_state().committed_at_ms
    write_checks(shelf.storage.commits, WarehouseChecks(checked_at_ms=committed_at_ms - behind_ms))
    found = warehouse(StatusContext(Settings(data_dir=shelf.warehouse.parent), committed_at_ms)).findings
    assert [one.kind for one in found] == wanted


def test_facts_state_when_everything_was_last_compared(shelf: Shelf) -> None:
    assert "never" in warehouse(StatusContext(Settings(data_dir=shelf.warehouse.parent), 5)).facts[0].text
    report(shelf)
    now_ms = shelf.log.state.committed_at_ms + 3_600_000
    (fact,) = warehouse(StatusContext(Settings(data_dir=shelf.warehouse.parent), now_ms)).facts
    parts = ("names and lengths", "contents")
    assert fact.text.split("; ") == ["0 findings", *(f"all {one} compared within the last 1 hour" for one in parts)]
