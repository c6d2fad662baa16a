"""Lines of several processes in one file that is rotated by size."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from pathlib import Path

import pytest

from headrace.settings import line_file
from headrace.settings.line_file import LineFile

LINES = 400


def small(path: Path, rotated_max: int) -> LineFile:
    return LineFile(path, bytes_max=1_000, rotated_max=rotated_max, mode=0o640)


def all_lines(file: LineFile) -> list[str]:
    return [line for path in file.files() for line in path.read_text().splitlines()]


def _append(path: Path, writer: str) -> None:
    for number in range(LINES):
        small(path, 100).append(f"{writer} {number} {'x' * (number % 50)}\n".encode())


def test_concurrent_processes_lose_and_mix_no_line_over_rotations(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append, args=(path, writer)) for writer in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = all_lines(small(path, 100))
    assert len(small(path, 100).files()) > 10
    for name in "abc":
        own = [line for line in found if line.startswith(f"{name} ")]
        assert own == [f"{name} {number} {'x' * (number % 50)}" for number in range(LINES)], "all, in order"
    assert len(found) == 3 * LINES


def test_oldest_files_are_deleted_and_a_gap_loses_none(tmp_path: Path) -> None:
    file = small(tmp_path / "lines", 3)
    for number in range(200):
        file.append(f"{number:099}\n".encode())
    assert [path.name for path in file.files()] == ["lines.3", "lines.2", "lines.1", "lines"]
    assert [int(line) for line in all_lines(file)] == list(range(200))[-len(all_lines(file)) :]
    assert file.path.stat().st_mode & 0o777 == 0o640
    (tmp_path / "lines.2").replace(tmp_path / "moved")  # as a process that ended during a rotation leaves it
    oldest = (tmp_path / "lines.3").read_text()
    for number in range(200, 210):
        file.append(f"{number:099}\n".encode())
    assert (tmp_path / "lines.3").read_text() == oldest


def _append_with_limit(path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    file = LineFile(path, 1_000_000)
    file.append(b"one\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, resource.RLIM_INFINITY))
    try:
        file.append(b"four\n")  # two of its bytes fit
    except OSError:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        file.append(b"five\n")
        os._exit(0)
    os._exit(1)


def test_a_line_that_fits_only_partly_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_append_with_limit, args=(tmp_path / "lines",))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert (tmp_path / "lines").read_text() == "one\nfive\n"


def test_a_line_follows_a_truncated_one_after_a_line_feed(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("trunc")
    LineFile(tmp_path / "lines", 1_000).append(b"whole\n")
    assert (tmp_path / "lines").read_text() == "trunc\nwhole\n"


def test_lines_are_read_from_the_end_over_blocks_and_rotated_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "BLOCK_BYTES", 7)
    file = small(tmp_path / "lines", 100)
    lines = [f"{number}{'x' * (number % 40)}" for number in range(120)]
    for line in lines:
        file.append(f"{line}\n".encode())
    assert len(file.files()) > 2
    assert [line.decode() for line in file.newest_first()] == lines[::-1]
    (tmp_path / "other").write_bytes(b"first\n\nsecond\ntruncated")
    assert list(small(tmp_path / "other", 3).newest_first()) == [b"truncated", b"second", b"first"]
    assert list(small(tmp_path / "missing", 3).newest_first()) == []


def test_a_pipe_is_written_and_never_rotated(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        small(tmp_path / "pipe", 3).append(b"line\n")
        assert os.read(reader, 100) == b"line\n"
        assert list(small(tmp_path / "pipe", 3).newest_first()) == []
    finally:
        os.close(reader)


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LineFile(tmp_path / "no" / "lines", 1_000).check()
