"""What readers of paths are told."""

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
def ask(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def told(*arguments: str, code: int = 0) -> str:
        assert main(["files", "orders", *arguments, "--data-dir", str(tmp_path)]) == code
        shown = capsys.readouterr()
        return shown.out if code == 0 else shown.err

    return told


def time_partitions(out: str, shelf: Shelf) -> list[str]:
    """Of paths that are all there."""
    found = [Path(line) for line in out.splitlines()]
    assert all(path.is_file() for path in found)
    return [str(path.parent.relative_to(shelf.warehouse)) for path in found]


def test_paths_of_live_files(ask, shelf: Shelf) -> None:  # type: ignore[no-untyped-def]
    assert time_partitions(ask("--format", "paths"), shelf) == [f"orders/{one}" for one in (FIVE, FIVE, SIX, LATER)]
    shelf.rewrite(FIVE, [(0, 0), (0, 1), (0, 4)])
    assert time_partitions(ask("--format", "paths"), shelf) == [
        f"orders/_g1/{FIVE}",
        f"orders/{SIX}",
        f"orders/{LATER}",
    ]
    assert time_partitions(ask("--format", "paths", "--quarantine"), shelf) == [f"_quarantine/orders/{LATER}"]


def test_until_a_rewrite_is_in_place_the_files_before_it_are_told(ask, shelf: Shelf) -> None:  # type: ignore[no-untyped-def]
    shelf.follows = False
    shelf.rewrite(FIVE, [(0, 0), (0, 1), (0, 4)])
    shelf.load({SIX: [(0, 6)]}, (0, 6, 6, 7))
    assert time_partitions(ask("--format", "paths"), shelf) == [f"orders/{one}" for one in (FIVE, FIVE, SIX, LATER)]
    assert re.findall(r"\d+", ask().splitlines()[-1]) == ["2", "4"]
    shelf.follow()
    assert time_partitions(ask("--format", "paths"), shelf) == [
        f"orders/{one}" for one in (f"_g1/{FIVE}", SIX, SIX, LATER)
    ]
    assert "not in place" not in ask()


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
def test_only_the_buckets_that_are_asked_for(ask, shelf: Shelf, arguments: tuple[str, ...], wanted: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert time_partitions(ask("--format", "paths", *arguments), shelf) == [f"orders/{one}" for one in wanted]


def test_buckets_of_days_have_their_place_among_hours() -> None:
    assert TimePartitionFilter(since="2026-01-31", until="2026-02-01")("dt=2026-01-31")
    assert not TimePartitionFilter(since="2026-01-31T01")("dt=2026-01-31")
    assert not TimePartitionFilter(time_partition="dt=2026-01-3")("dt=2026-01-31")


def test_facts_for_people_and_programs(ask, shelf: Shelf) -> None:  # type: ignore[no-untyped-def]
    lines = ask().splitlines()
    assert lines[2].split()[:2] == [FIVE, "2"]
    assert re.findall(r"\d+", lines[-1])[:2] == ["4", "5"]
    told = json.loads(ask("--format", "json"))
    assert (told["topic"], told["commit_number"], told["newest_commit_number"], len(told["files"])) == (
        "orders",
        2,
        2,
        4,
    )
    first = told["files"][0]
    assert (first["time_partition"], first["rows"], first["commit_number"]) == (FIVE, 2, 1)
    assert first["offsets"] == [{"partition": 0, "first": 0, "last": 1, "rows": 2}]
    assert first["bytes"] == Path(first["path"]).stat().st_size
    assert first["checksum"] == f"xxh3-128:{xxhash.xxh3_128(Path(first['path']).read_bytes()).hexdigest()}"


def test_a_limit_that_is_none_is_one_line(ask, shelf: Shelf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert re.match(
        r"headrace: --time-partition: .*\bdt=2026-01-31/hr=07\b.*\bhr=07\n", ask("--time-partition", "hr=07", code=2)
    )
    assert re.match(r"headrace: --from: .*\b2026-01-31\b", ask("--from", "yesterday", code=2))
    assert main(["files", "users", "--data-dir", str(tmp_path)]) == 2


def test_where_the_note_of_what_is_in_place_is_lost_all_decided_files_are_told(ask, shelf: Shelf) -> None:  # type: ignore[no-untyped-def]
    shelf.log.storage.remove("cursor/files.json")
    assert len(ask("--format", "paths").splitlines()) == 4
