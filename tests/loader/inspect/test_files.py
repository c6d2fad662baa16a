"""`headrace files`: the paths and facts of live files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import xxhash

from headrace.cli import main
from headrace.loader.inspect.published_files import TimePartitionFilter
from support.loader.shelf import Shelf

FIVE, SIX, LATER = "dt=2026-01-01/hr=05", "dt=2026-01-01/hr=06", "dt=2026-01-02/hr=00"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.load({FIVE: [(0, 0), (0, 1)], SIX: [(0, 2)]}, (0, None, 0, 4), quarantined={LATER: [(0, 3)]})
    shelf.load({FIVE: [(0, 4)], LATER: [(0, 5)]}, (0, 4, 4, 6))
    return shelf


@pytest.fixture
def list_files(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*arguments: str, code: int = 0) -> str:
        assert main(["files", "orders", *arguments, "--data-dir", str(tmp_path)]) == code
        shown = capsys.readouterr()
        return shown.out if code == 0 else shown.err

    return run


def time_partitions(out: str, shelf: Shelf) -> list[str]:
    """The directories of the listed paths, which must all exist."""
    found = [Path(line) for line in out.splitlines()]
    assert all(path.is_file() for path in found)
    return [str(path.parent.relative_to(shelf.warehouse)) for path in found]


def test_paths_of_live_files(list_files, shelf: Shelf) -> None:  # type: ignore[no-untyped-def]
    assert time_partitions(list_files("--format", "paths"), shelf) == [
        f"orders/{one}" for one in (FIVE, FIVE, SIX, LATER)
    ]
    shelf.rewrite(FIVE, [(0, 0), (0, 1), (0, 4)])
    assert time_partitions(list_files("--format", "paths"), shelf) == [
        f"orders/_g1/{FIVE}",
        f"orders/{SIX}",
        f"orders/{LATER}",
    ]
    assert time_partitions(list_files("--format", "paths", "--quarantine"), shelf) == [f"_quarantine/orders/{LATER}"]


def test_files_before_a_rewrite_are_listed_until_it_is_applied(list_files, shelf: Shelf) -> None:  # type: ignore[no-untyped-def]
    shelf.applies_commits = False
    shelf.rewrite(FIVE, [(0, 0), (0, 1), (0, 4)])
    shelf.load({SIX: [(0, 6)]}, (0, 6, 6, 7))
    assert time_partitions(list_files("--format", "paths"), shelf) == [
        f"orders/{one}" for one in (FIVE, FIVE, SIX, LATER)
    ]
    assert re.findall(r"\d+", list_files().splitlines()[-1]) == ["2", "4"]
    shelf.apply_pending()
    assert time_partitions(list_files("--format", "paths"), shelf) == [
        f"orders/{one}" for one in (f"_g1/{FIVE}", SIX, SIX, LATER)
    ]
    assert "not in place" not in list_files()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--time-partition", SIX), [SIX]),
        (("--time-partition", "dt=2026-01-01"), [FIVE, FIVE, SIX]),
        (("--from", "2026-01-01T06"), [SIX, LATER]),
        (("--from", "2026-01-01"), [FIVE, FIVE, SIX, LATER]),
        (("--to", "2026-01-02"), [FIVE, FIVE, SIX]),
        (("--from", "2026-01-01T06", "--to", "2026-01-02T00"), [SIX]),
        (("--to", "2026-01-01"), []),
    ],
)
def test_files_are_limited_to_the_given_time_partitions(
    list_files, shelf: Shelf, arguments: tuple[str, ...], wanted: list[str]
) -> None:  # type: ignore[no-untyped-def]
    assert time_partitions(list_files("--format", "paths", *arguments), shelf) == [f"orders/{one}" for one in wanted]


def test_daily_time_partitions_sort_among_hourly_ones() -> None:
    assert TimePartitionFilter(since="2026-01-31", until="2026-02-01")("dt=2026-01-31")
    assert not TimePartitionFilter(since="2026-01-31T01")("dt=2026-01-31")
    assert not TimePartitionFilter(time_partition="dt=2026-01-3")("dt=2026-01-31")


def test_files_are_listed_as_a_table_and_as_json(list_files, shelf: Shelf) -> None:  # type: ignore[no-untyped-def]
    lines = list_files().splitlines()
    assert lines[3].split()[:2] == [FIVE, "2"]
    assert re.findall(r"\d+", lines[0])[:2] == ["4", "5"]
    run = json.loads(list_files("--format", "json"))
    assert (run["topic"], run["commit_number"], run["newest_commit_number"], len(run["files"])) == (
        "orders",
        2,
        2,
        4,
    )
    first = run["files"][0]
    assert (first["time_partition"], first["rows"], first["commit_number"]) == (FIVE, 2, 1)
    assert first["offsets"] == [{"partition": 0, "first": 0, "last": 1, "rows": 2}]
    assert first["bytes"] == Path(first["path"]).stat().st_size
    assert first["checksum"] == f"xxh3-128:{xxhash.xxh3_128(Path(first['path']).read_bytes()).hexdigest()}"


def test_error_of_an_invalid_limit_is_one_line(list_files, shelf: Shelf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert re.match(
        r"headrace: --time-partition: .*\bdt=2026-01-31/hr=07\b.*\bhr=07\n",
        list_files("--time-partition", "hr=07", code=2),
    )
    assert re.match(r"headrace: --from: .*\b2026-01-31\b", list_files("--from", "yesterday", code=2))
    assert main(["files", "users", "--data-dir", str(tmp_path)]) == 2


def test_all_committed_files_are_listed_without_a_cursor(list_files, shelf: Shelf) -> None:  # type: ignore[no-untyped-def]
    shelf.log.storage.remove("cursor/files.json")
    assert len(list_files("--format", "paths").splitlines()) == 4
