"""Rotation of the logs of `headrace up`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.pipeline.up import part_log
from headrace.pipeline.up.part_log import LOG_AGE_S, LOG_BYTES_MAX, ROTATED_LOGS_MAX, PartLog, first_time_s, is_due

NOON_S = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("size", "age_s", "expected"),
    [
        (LOG_BYTES_MAX, None, False),
        (LOG_BYTES_MAX + 1, None, True),
        (LOG_BYTES_MAX + 1, 0.0, True),
        (10, LOG_AGE_S, False),
        (10, LOG_AGE_S + 1, True),
        (10, -LOG_AGE_S, False),  # a log of a clock that is ahead
    ],
)
def test_is_due_by_size_or_age(size: int, age_s: float | None, expected: bool) -> None:
    assert is_due(size, None if age_s is None else NOON_S - age_s, NOON_S) == expected


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"2026-01-31 13:00:00.000+01:00 INFO headrace: begun\n2026-02-01 12:00:00.000+00:00 INFO", NOON_S),
        (b'{"time": "2026-01-31T12:00:00.500+00:00", "level": "INFO"}\n', NOON_S + 0.5),
        (b"WARNING: sun.misc\n2026-01-31 12:00:00,250+00:00 INFO headrace: begun\n", NOON_S + 0.25),
        (b"of 2026-99-31 12:00:00 and 2026-01-31 12:00:00+00:00", NOON_S),
        (b"no time \xff here\n", None),
        (b"warning: 1/2/3\n26/01/31 13:00:00 ERROR Executor: of Spark\n", datetime(2026, 1, 31, 13).timestamp()),
        (b"a path such as 26/01/31 13:00:00\n", None),
        (b"", None),
    ],
)
def test_first_time_s_finds_the_first_valid_time(head: bytes, expected: float | None) -> None:
    assert first_time_s(head) == expected


def test_first_time_s_without_zone_is_local() -> None:
    assert first_time_s(b"2026-01-31 12:00:00,000 INFO") == datetime(2026, 1, 31, 12).timestamp()


def test_old_log_is_rotated_when_its_part_starts(tmp_path: Path) -> None:
    path = tmp_path / "registry.log"
    path.write_text("2001-01-01 00:00:00.000+00:00 INFO old\n")
    older = path.with_name("registry.log.1")
    older.write_text("older")
    PartLog(path).close()
    assert path.read_bytes() == b""
    assert older.read_text().endswith("INFO old\n")
    PartLog(path).close()  # an empty log is not rotated
    assert path.with_name("registry.log.2").read_text() == "older"
    assert not path.with_name("registry.log.3").exists()


def test_log_is_rotated_while_it_is_open_and_the_oldest_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PartLog(tmp_path / "registry.log")
    with log.path.open("ab", buffering=0) as part:  # opened as by the part
        part.write(b"before\n")
        log.rotate_if_due()
        assert log.lines() == ["before"]
        monkeypatch.setattr(part_log, "LOG_BYTES_MAX", 3)
        for number in range(ROTATED_LOGS_MAX + 2):
            part.write(b"%d is said\n" % number)
            log.rotate_if_due()
        part.write(b"o\n")
    assert log.lines() == ["o"]
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert files == {"registry.log": "o\n"} | {
        f"registry.log.{number}": f"{ROTATED_LOGS_MAX + 2 - number} is said\n"
        for number in range(1, ROTATED_LOGS_MAX + 1)
    }
    log.close()


def test_lines_start_at_the_last_begin(tmp_path: Path) -> None:
    path = tmp_path / "load.log"
    path.write_text("of the last one\n")
    log = PartLog(path)
    assert log.lines() == []
    log.stream.write(b"first\n\n")
    log.stream.flush()
    assert log.lines() == ["first"]
    log.begin()
    log.stream.write(b"second\n")
    log.close()
    assert log.lines() == ["second"]
