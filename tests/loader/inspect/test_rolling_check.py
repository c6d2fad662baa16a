"""Each load compares a share of the files with the commits, and its findings stay until the files are repaired."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.finding_texts import finding_sentences
from headrace.loader.inspect.findings import ConsistencyCheck
from headrace.loader.inspect.open_findings import (
    OPEN_FINDINGS_MAX,
    START,
    TOPIC_FINDINGS_MAX,
    WarehouseChecks,
    read_checks,
    store_verified,
)
from headrace.loader.inspect.rolling_check import CheckBudget, RollingCheck
from headrace.loader.inspect.verify import verify_topic
from headrace.loader.rewrite.run import accept_missing
from headrace.loader.run import run_load
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.work_unit import FileKind
from support.loader.loader_fakes import ORDER_V1, World
from support.loader.shelf import Shelf

HOURS = tuple(f"dt=2026-01-0{day}/hr=0{hour}" for day in (1, 2) for hour in (5, 6))
TOPICS = ("orders", "payments", "users")


@pytest.fixture
def shelf(memory_path: Path) -> Shelf:
    """Three topics, each with four time partitions of data and one of the quarantine, with one file in each."""
    shelf = Shelf(memory_path)
    for topic in TOPICS:
        rows = {hour: [(0, n)] for n, hour in enumerate(HOURS)}
        shelf.load(rows, (0, None, 0, 5), topic=topic, quarantined={HOURS[0]: [(0, 4)]})
    return shelf


def check(
    shelf: Shelf, now_ms: int = 1_000, budget: CheckBudget | None = None, log: CommitLog | None = None
) -> WarehouseChecks:
    """Checks a share, with a new log as in a new process."""
    log = log or CommitLog(shelf.storage.commits)
    return RollingCheck(log, shelf.storage.files, budget or CheckBudget(), lambda: 0.0).check(now_ms)


def found(checks: WarehouseChecks) -> list[tuple[ConsistencyCheck, str]]:
    return sorted((one.finding.check, one.finding.where) for one in checks.open)


def paths(shelf: Shelf) -> list[Path]:
    return sorted(shelf.warehouse.rglob("dt=*/hr=*/*.avro"))


def name(shelf: Shelf, path: Path) -> str:
    return str(path.relative_to(shelf.warehouse))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_an_intact_warehouse_has_no_findings(shelf: Shelf) -> None:
    checks = check(shelf, now_ms=7)
    assert (checks.open, checks.more, checks.checked_at_ms, checks.commit_number) == ((), {}, 7, 3)
    assert (checks.listed.complete_since_ms, checks.read.complete_since_ms) == (7, 7)
    assert check(shelf, now_ms=8).read.complete_since_ms == 8


@pytest.mark.parametrize("kind", [FileKind.DATA, FileKind.QUARANTINE])
@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (lambda file: file.unlink(), ConsistencyCheck.PLACE),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), ConsistencyCheck.LENGTH),
        (lambda file: file.write_bytes(b""), ConsistencyCheck.LENGTH),
        (lambda file: (file.unlink(), file.mkdir()), ConsistencyCheck.LENGTH),
        (flip, ConsistencyCheck.CHECKSUM),
    ],
)
def test_a_damaged_file_is_found_until_it_is_restored(
    shelf: Shelf, damage: Callable[[Path], object], wanted: ConsistencyCheck, kind: FileKind
) -> None:
    check(shelf)
    top = shelf.warehouse / ("_quarantine" if kind is FileKind.QUARANTINE else ".")
    (path,) = (top / "payments" / HOURS[0]).glob("*.avro")
    content = path.read_bytes()
    damage(path)
    (one,) = check(shelf, now_ms=50).open
    assert (one.finding.check, one.finding.where, one.since_ms) == (wanted, name(shelf, path), 50)
    assert (one.finding.topic, one.finding.kind, one.finding.time_partition) == ("payments", kind, HOURS[0])
    assert check(shelf, now_ms=60).open == (one,)
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    path.write_bytes(content)
    assert check(shelf, now_ms=70).open == ()


def test_files_without_a_commit_are_found_until_they_are_moved(shelf: Shelf) -> None:
    foreign = shelf.warehouse / "users" / HOURS[3] / "part-00000.avro"
    for path in (foreign, foreign.with_name("_SUCCESS"), foreign.with_name(".hidden"), shelf.warehouse / "users" / "x"):
        path.write_bytes(b"x")
    assert found(check(shelf)) == [(ConsistencyCheck.FOREIGN, name(shelf, foreign))]
    foreign.unlink()
    assert check(shelf).open == ()


def test_all_files_are_compared_in_shares_of_the_budget(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    check(shelf)
    listed: list[str] = []
    lengths = LocalFiles.lengths

    def recorded(files: LocalFiles, directory: str) -> Mapping[str, int | None]:
        listed.append(directory)
        return lengths(files, directory)

    monkeypatch.setattr(LocalFiles, "lengths", recorded)
    shares = []
    for _ in range(8):
        listed.clear()
        check(shelf, budget=CheckBudget(files=4, bytes=1))
        shares.append(tuple(listed))
    assert {len(share) for share in shares} == {4}
    directories = sorted({str(path.parent.relative_to(shelf.warehouse)) for path in paths(shelf)})
    assert len(directories) == 15
    assert set().union(*shares[:4]) == set(directories), "a round of 15 directories takes four shares"


def test_directories_are_listed_at_once_where_that_is_faster(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each share compares all directories that it has listed. One that cannot be listed at once is listed again."""
    check(shelf)
    monkeypatch.setattr(LocalFiles, "listings_at_once", 4)
    listed: list[str] = []
    lengths, threads = LocalFiles.lengths, set()

    def recorded(files: LocalFiles, directory: str) -> Mapping[str, int | None]:
        is_at_once = threading.current_thread() is not threading.main_thread()
        threads.add(is_at_once)
        if is_at_once and directory.startswith("users"):
            raise OSError(errno.EIO, "unreliable")
        listed.append(directory)
        return lengths(files, directory)

    monkeypatch.setattr(LocalFiles, "lengths", recorded)
    missing = [(ConsistencyCheck.PLACE, name(shelf, path)) for path in paths(shelf)]
    for path in paths(shelf):
        path.unlink()
    shares = []
    for number in range(1, 10):
        listed.clear()
        checks = check(shelf, budget=CheckBudget(files=1, bytes=1), now_ms=number)
        new = {one.finding.where.rpartition("/")[0] for one in checks.open if one.since_ms == number}
        assert new <= set(listed)
        shares.append(len(new))
    assert (max(shares), sum(shares)) == (4, 15)
    assert found(checks) == missing
    assert threads == {True, False}


def test_every_flipped_byte_is_found_within_a_round_of_the_byte_budget(shelf: Shelf) -> None:
    check(shelf)
    for path in paths(shelf):
        flip(path)
    sizes = [path.stat().st_size for path in paths(shelf)]
    budget = CheckBudget(bytes=2 * max(sizes))
    for number in range(1, 9):
        checks = check(shelf, now_ms=number, budget=budget)
        assert len(checks.open) >= min(15, 2 * number)
    assert found(checks) == [(ConsistencyCheck.CHECKSUM, name(shelf, path)) for path in paths(shelf)]


def test_time_without_budget_compares_one_file_at_a_time(shelf: Shelf) -> None:
    check(shelf)
    for path in paths(shelf):
        path.unlink()
    clock = iter(range(100_000))
    log = shelf.log
    for number in range(1, 4):
        checks = RollingCheck(log, shelf.storage.files, CheckBudget(), lambda: next(clock)).check(number)
        assert number <= len(checks.open) <= 2 * number + 1


def test_a_time_partition_of_a_new_commit_is_compared_first(shelf: Shelf) -> None:
    small = CheckBudget(files=2, bytes=1)
    check(shelf, budget=small)
    shelf.load({HOURS[3]: [(0, 5)]}, (0, 5, 5, 6), topic="users")
    (path,) = (shelf.warehouse / "users" / HOURS[3]).glob("0-4-*")
    path.unlink()
    assert found(check(shelf, budget=small)) == [(ConsistencyCheck.PLACE, name(shelf, path))]


def test_unpublished_and_replaced_files_are_no_findings(shelf: Shelf) -> None:
    check(shelf)
    shelf.applies_commits = False
    shelf.load({HOURS[0]: [(0, 5)]}, (0, 5, 5, 6))
    shelf.rewrite(HOURS[1], [(0, 1)])
    assert check(shelf).open == ()
    shelf.apply_pending()
    assert check(shelf).open == ()
    for path in (shelf.warehouse / "orders" / HOURS[1]).glob("*.avro"):
        path.unlink()  # a replaced file
    assert check(shelf).open == ()
    shelf.rewrite(HOURS[0], [])
    assert check(shelf).open == ()


@pytest.mark.parametrize("is_listed_before", [True, False])
@pytest.mark.parametrize("at", range(0, 18, 3))
def test_files_of_a_concurrent_load_are_no_findings(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, at: int, is_listed_before: bool
) -> None:
    """Another process commits and publishes files at one of the listings, after or before it."""
    lengths = LocalFiles.lengths
    calls = iter(range(100))

    def racing(files: LocalFiles, directory: str) -> Mapping[str, int | None]:
        before = lengths(files, directory)
        if next(calls) != at:
            return before
        rows = {hour: [(0, 5)] for hour in HOURS}
        Shelf(shelf.warehouse.parent).load(rows, (0, 5, 5, 6), quarantined={HOURS[0]: [(0, 5)]})
        return before if is_listed_before else lengths(files, directory)

    monkeypatch.setattr(LocalFiles, "lengths", racing)
    assert check(shelf).open == ()
    assert next(calls) > at or at >= 15


def test_findings_of_a_rewritten_file_are_closed(shelf: Shelf) -> None:
    (path,) = (shelf.warehouse / "orders" / HOURS[0]).glob("*.avro")
    flip(path)
    assert len(check(shelf).open) == 1
    shelf.rewrite(HOURS[0], [(0, 0)])
    assert check(shelf).open == ()


def test_the_number_of_stored_findings_is_limited(memory_path: Path) -> None:
    shelf = Shelf(memory_path)
    hours = [f"dt=2026-01-{day:02}/hr={hour:02}" for day in range(1, 8) for hour in range(24)]
    topics = [f"topic{number:02}" for number in range(12)]
    for topic in topics:
        shelf.load({hour: [(0, n)] for n, hour in enumerate(hours)}, (0, None, 0, len(hours)), topic=topic)
    saved = {path: path.read_bytes() for path in paths(shelf)}
    for path in saved:
        path.unlink()
    for _ in range(2):
        checks = check(shelf)
        assert len(checks.open) == OPEN_FINDINGS_MAX
        assert sum(checks.more.values()) == len(saved) - OPEN_FINDINGS_MAX
        assert checks.more["topic00"] == len(hours) - TOPIC_FINDINGS_MAX
        assert checks.topics() == {*topics}
        assert sum(map(len, finding_sentences(checks).values())) <= 6 * len(topics)
    assert (shelf.warehouse / "_headrace" / "checks.json").stat().st_size < 500_000
    for path, content in saved.items():
        path.write_bytes(content)
    checks = check(shelf)
    assert (checks.open, checks.more) == ((), {})


def test_a_topic_with_damaged_commits_does_not_stop_the_others(shelf: Shelf) -> None:
    (shelf.warehouse / "_headrace" / "log" / "000000001.json").write_text("{}")
    for path in (shelf.warehouse / "_headrace" / "index" / "orders").rglob("*.json"):
        path.unlink()
    (path,) = (shelf.warehouse / "users" / HOURS[0]).glob("*.avro")
    path.unlink()
    assert found(check(shelf, log=shelf.log)) == [
        (ConsistencyCheck.COMMITS, ""),
        (ConsistencyCheck.PLACE, name(shelf, path)),
    ]


def test_a_directory_that_cannot_be_listed_is_a_finding(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = LocalFiles.lengths

    def denied(files: LocalFiles, directory: str) -> Mapping[str, int | None]:
        if directory == f"orders/{HOURS[0]}":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory)
        return lengths(files, directory)

    monkeypatch.setattr(LocalFiles, "lengths", denied)
    checks = check(shelf)
    assert found(checks) == [(ConsistencyCheck.LISTING, f"orders/{HOURS[0]}")]
    (sentence,) = finding_sentences(checks)["orders"]
    assert sentence.startswith(f"1 directory cannot be listed: orders/{HOURS[0]}; make the directory readable")
    verified = verify_topic(shelf.log, FileIndex(shelf.log), shelf.storage, "orders", checksums=False)
    assert [one.check for one in verified.findings] == [ConsistencyCheck.LISTING]
    monkeypatch.setattr(LocalFiles, "lengths", lengths)
    assert check(shelf).open == ()


@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_a_lost_document_is_rebuilt_by_comparing_again(shelf: Shelf, content: bytes | None) -> None:
    path = paths(shelf)[3]
    path.unlink()
    check(shelf)
    document = shelf.warehouse / "_headrace" / "checks.json"
    document.unlink() if content is None else document.write_bytes(content)
    assert read_checks(shelf.storage.commits) == WarehouseChecks()
    assert found(check(shelf)) == [(ConsistencyCheck.PLACE, name(shelf, path))]


def test_verify_replaces_the_findings_of_its_topics(shelf: Shelf) -> None:
    orders, users = (next((shelf.warehouse / topic / HOURS[0]).glob("*.avro")) for topic in ("orders", "users"))
    saved = orders.read_bytes()
    flip(orders)
    users.unlink()
    assert len(check(shelf).open) == 2

    def verify(checksums: bool) -> list[tuple[ConsistencyCheck, str]]:
        verified = verify_topic(shelf.log, FileIndex(shelf.log), shelf.storage, "orders", checksums=checksums)
        store_verified(shelf.storage.commits, [verified], 2_000, checksums=checksums)
        return found(read_checks(shelf.storage.commits))

    orders.write_bytes(saved)
    assert (ConsistencyCheck.CHECKSUM, name(shelf, orders)) in verify(checksums=False), "no byte was compared"
    assert verify(checksums=True) == [(ConsistencyCheck.PLACE, name(shelf, users))]
    orders.unlink()
    assert (ConsistencyCheck.PLACE, name(shelf, orders)) in verify(checksums=False)
    assert read_checks(shelf.storage.commits).listed.position == START


@pytest.fixture
def world(memory_path: Path) -> World:
    world = World(memory_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10, [1] * 5)
    run_load(world.ports(), world.settings)
    return world


def test_a_load_without_new_messages_reports_a_missing_file_with_its_repairs(world: World) -> None:
    assert not run_load(world.ports(), world.settings).has_findings
    first, _ = sorted((world.warehouse / "orders").rglob("*.avro"))
    saved = first.read_bytes()
    first.unlink()
    for _ in range(2):
        (problem,) = run_load(world.ports(), world.settings).problems["orders"]
        assert f"1 file is missing: {first.relative_to(world.warehouse)};" in problem
        assert "headrace backfill orders --from dt=2026-01-01/hr=00 --to dt=2026-01-01/hr=00" in problem
        assert "headrace accept-missing orders --time-partition dt=2026-01-01/hr=00" in problem
    first.write_bytes(saved)
    assert run_load(world.ports(), world.settings).problems == {}


def test_accepted_files_are_no_findings_after_the_command(world: World) -> None:
    next((world.warehouse / "orders").rglob("*.avro")).unlink()
    assert run_load(world.ports(), world.settings).has_findings
    storage = world.log().storage
    assert len(read_checks(storage).open) == 1
    accept_missing(world.rewrites(), "orders", [FileKind.DATA], "", is_dry=True)
    assert len(read_checks(storage).open) == 1
    accept_missing(world.rewrites(), "orders", [FileKind.DATA], "", is_dry=False)
    assert read_checks(storage).open == ()
    assert not run_load(world.ports(), world.settings).has_findings


def test_a_deleted_directory_is_one_sentence_per_time_partition(world: World) -> None:
    shutil.rmtree(world.warehouse / "orders" / "dt=2026-01-01")
    (problem,) = run_load(world.ports(), world.settings).problems["orders"]
    assert problem.startswith("2 files are missing: such as orders/dt=2026-01-01/hr=00/")


def test_a_failing_check_is_a_note_of_the_load(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied", "checks.json")

    monkeypatch.setattr("headrace.loader.inspect.rolling_check.write_checks", fail)
    report = run_load(world.ports(), world.settings)
    assert report.problems == {}
    assert any("Permission denied" in note for note in report.notes)
