"""Files that rotate, shrink, disappear and come back, on a real file system of each kind: the cases of public bugs of
other tailing programs. Each line arrives once, in order."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.push.directories import FileScanner
from headrace.push.source import TailState
from support.push_client import config_of, config_table, eventually, running_client
from support.session_gateway import Failure, SessionGateway, session_gateway

MEMORY = Path("/dev/shm")


@pytest.fixture(params=["disk", "tmpfs"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "tmpfs" and not os.access(MEMORY, os.W_OK):
        pytest.skip("/dev/shm is not writable")
    root = Path(tempfile.mkdtemp(dir=MEMORY)) if request.param == "tmpfs" else tmp_path
    (root / "logs").mkdir()
    yield root
    if request.param == "tmpfs":
        shutil.rmtree(root)


@pytest.fixture
def gateway() -> Iterator[SessionGateway]:
    with session_gateway() as found:
        yield found
        assert not found.problems


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def rename(path: Path, target: Path) -> None:
    path.rename(target)


def copytruncate(path: Path, target: Path) -> None:
    shutil.copyfile(path, target)
    os.truncate(path, 0)


def numbered(prefix: str, count: int, start: int = 0) -> str:
    return "".join(f"{prefix} {number}\n" for number in range(start, start + count))


class Run:
    """A client that can be started and stopped, and the lines of its gateway."""

    def __init__(self, directory: Path, gateway: SessionGateway, pattern: str = "logs/*") -> None:
        self.directory = directory
        self.log = directory / "logs" / "app.log"
        self.gateway = gateway
        self.table = config_table(gateway.url, directory, {"paths": pattern})

    def until(self, *texts: str) -> None:
        """Runs the client until the gateway has the lines of `texts`, and as many scans as find a second copy."""
        expected = sorted(line.encode() for text in texts for line in text.splitlines())
        with running_client(self.table, self.directory) as shared:
            eventually(lambda: len(self.gateway.lines()) >= len(expected), lambda: self.gateway.by_file())
            self.settle(shared)
        assert sorted(self.gateway.lines()) == expected

    def settle(self, shared: object) -> None:
        time.sleep(0.08)


@pytest.fixture
def run(directory: Path, gateway: SessionGateway) -> Run:
    return Run(directory, gateway)


def test_inode_of_a_deleted_file_is_a_new_file_from_its_begin(run: Run) -> None:
    run.log.write_text("first 1\nfirst 2\n")
    run.until("first 1\nfirst 2\n")
    run.log.unlink()
    run.log.write_text("other 1\nother 2\nother 3\n")
    run.until("first 1\nfirst 2\n", "other 1\nother 2\nother 3\n")


def test_inode_of_a_deleted_file_with_equal_first_lines_is_read(run: Run) -> None:
    run.log.write_text("started\n")
    run.until("started\n")
    run.log.unlink()
    run.log.write_text("started\n")
    run.until("started\n", "started\n")


def test_rotated_files_are_not_sent_again_at_a_restart(run: Run) -> None:
    text = numbered("a", 10)
    run.log.write_text(text)
    run.until(text)
    for number in (3, 2, 1, 0):
        source = run.log.with_name(f"app.log.{number}") if number else run.log
        if source.exists():
            source.rename(run.log.with_name(f"app.log.{number + 1}"))
    run.until(text)
    run.log.write_text("b\n")
    run.until(text, "b\n")
    run.log.with_name("app.log.1").rename(run.log.with_name("app.log.2"))
    run.log.rename(run.log.with_name("app.log.1"))
    run.until(text, "b\n")


def test_restart_after_rotation_sends_nothing_twice(run: Run) -> None:
    run.log.write_text("a\n")
    with running_client(run.table, run.directory):
        eventually(lambda: run.gateway.lines() == [b"a"])
        run.log.rename(run.log.with_name("app.log.1"))
        run.log.write_text("b\n")
        eventually(lambda: run.gateway.lines() == [b"a", b"b"])
    run.until("a\nb\n")
    append(run.log, "c\n")
    run.until("a\nb\nc\n")


def test_file_replaced_by_rename_is_a_source_of_its_own(run: Run) -> None:
    """As rsync does: a new file with the old lines and more."""
    run.log.write_text("a\nb\n")
    run.until("a\nb\n")
    temporary = run.log.with_name(".app.log.x7")
    temporary.write_text("a\nb\nc\n")
    temporary.rename(run.log)
    run.until("a\nb\n", "a\nb\nc\n")
    assert len([source for source in run.gateway.sources.values() if source.records]) == 2


def test_files_with_equal_first_lines_are_all_read(run: Run) -> None:
    head = "#Fields: date time\n" * 30
    for name in ("app.log", "other.log", "third.txt"):
        (run.directory / "logs" / name).write_text(head + name + "\n")
    run.until(*(head + name + "\n" for name in ("app.log", "other.log", "third.txt")))


def test_file_of_a_few_bytes_is_read_at_once(run: Run) -> None:
    run.log.write_text("x\n")
    run.until("x\n")


def test_truncated_and_rewritten_file_is_read_once(run: Run) -> None:
    run.log.write_text("long line before\n")
    with running_client(run.table, run.directory):
        eventually(lambda: len(run.gateway.lines()) == 1)
        run.log.write_text("a\n")
        eventually(lambda: len(run.gateway.lines()) == 2)
        append(run.log, numbered("b", 20))
        eventually(lambda: len(run.gateway.lines()) >= 22)
        run.settle(None)
    assert run.gateway.lines() == [b"long line before", b"a", *numbered("b", 20).encode().splitlines()]


@pytest.mark.parametrize("is_running", [True, False])
def test_truncated_file_that_is_longer_now_is_read_from_its_begin(run: Run, is_running: bool) -> None:
    run.log.write_text("a\n")
    if is_running:
        with running_client(run.table, run.directory):
            eventually(lambda: len(run.gateway.lines()) == 1)
            run.log.write_text(numbered("later", 50))  # truncates and writes the same inode
            eventually(lambda: len(run.gateway.lines()) >= 51)
            run.settle(None)
    else:
        run.until("a\n")
        run.log.write_text(numbered("later", 50))
        run.until("a\n", numbered("later", 50))
    assert run.gateway.lines() == [b"a", *numbered("later", 50).encode().splitlines()]
    assert [name.rpartition("#")[2] for name in run.gateway.sources] == ["1", "2"]


def test_file_written_again_with_the_same_size_is_read(run: Run) -> None:
    run.log.write_text("a\nb\n")
    with running_client(run.table, run.directory):
        eventually(lambda: len(run.gateway.lines()) == 2)
        run.log.write_text("c\nd\n")
        eventually(lambda: len(run.gateway.lines()) == 4)
    assert run.gateway.lines() == [b"a", b"b", b"c", b"d"]


def test_compressed_copy_of_a_read_file_is_not_sent_again(run: Run) -> None:
    text = numbered("a", 1000)
    run.log.write_text(text)
    run.until(text)
    compress(run.log, run.log.with_name("app.log.1.gz"))
    run.until(text)
    run.log.write_text("b\n")
    run.log.with_name("app.log.1.gz").rename(run.log.with_name("app.log.2.gz"))
    run.until(text, "b\n")


@pytest.mark.parametrize("is_running", [True, False])
def test_copy_that_was_compressed_without_the_times_of_its_file_is_not_sent_again(
    directory: Path, gateway: SessionGateway, is_running: bool
) -> None:
    run = Run(directory, gateway, "logs/app.log")
    text = numbered("a", 1000)
    run.log.write_text(text)
    os.utime(run.log, (1_700_000_000, 1_700_000_000))

    def rotate() -> None:
        run.log.with_name("app.log.1.gz").write_bytes(gzip.compress(run.log.read_bytes()))
        run.log.unlink()
        run.log.write_text("b\n")

    if is_running:
        with running_client(run.table, directory) as shared:
            eventually(lambda: len(gateway.lines()) == 1000)
            rotate()
            eventually(lambda: len(gateway.lines()) > 1000)
            run.settle(shared)
    else:
        run.until(text)
        rotate()
    run.until(text, "b\n")


def test_compressed_file_with_the_content_of_an_earlier_one_is_sent(directory: Path, gateway: SessionGateway) -> None:
    """Two days with the same single line are two days, also if the compressor sets no times."""
    run = Run(directory, gateway, "logs/app.log")
    run.log.write_text("a\n")
    os.utime(run.log, (1_700_000_000, 1_700_000_000))
    run.until("a\n")
    for day in ("20260131", "20260201"):
        run.log.with_name(f"app.log-{day}.gz").write_bytes(gzip.compress(b"a\n"))
        run.log.unlink(missing_ok=True)
        run.until(*["a\n"] * (1 if day == "20260131" else 2))


def test_compressed_copy_finishes_a_file_that_was_read_in_part(run: Run) -> None:
    text, rest = numbered("a", 1000), numbered("b", 10)
    run.log.write_text(text)
    run.until(text)
    append(run.log, rest)
    compress(run.log, run.log.with_name("app.log.1.gz"))
    run.log.write_text("c\n")
    run.until(text, rest, "c\n")
    assert run.gateway.by_file() == {"app.log": (text + rest + "c\n").encode().splitlines()}
    assert len([source for source in run.gateway.sources.values() if source.records]) == 2


def test_compressed_copy_outside_the_pattern_finishes_a_file(directory: Path, gateway: SessionGateway) -> None:
    run = Run(directory, gateway, "logs/*.log")
    run.log.write_text("a\n")
    run.until("a\n")
    append(run.log, "b\n")
    compress(run.log, run.log.with_name("app.log-20260131.gz"))
    run.until("a\nb\n")


def test_unknown_compressed_file_is_read_and_closed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run.log.with_name("app.log.1.gz").write_bytes(gzip.compress(b"a\nb\n") + gzip.compress(b"c\nwithout line end"))
    with running_client(run.table, run.directory):
        eventually(lambda: "file closed" in caplog.text)
    run.until("a\nb\nc\nwithout line end\n")


@pytest.mark.parametrize("pattern", ["logs/*", "logs/app.log"])
def test_file_rotated_while_the_client_is_down_is_finished(
    directory: Path, gateway: SessionGateway, pattern: str
) -> None:
    run = Run(directory, gateway, pattern)
    run.log.write_text("a\n")
    run.until("a\n")
    append(run.log, "b\n")
    run.log.rename(run.log.with_name("app.log.1"))
    run.log.write_text("c\n")
    run.until("a\nb\n", "c\n")
    assert run.gateway.by_file() == {"app.log": [b"a", b"b", b"c"]}


def test_file_rotated_into_olddir_is_finished(directory: Path, gateway: SessionGateway) -> None:
    run = Run(directory, gateway, "logs/app.log")
    run.table["files"][0]["olddir"] = "old"
    (directory / "old").mkdir()
    run.log.write_text("a\n")
    run.until("a\n")
    append(run.log, "b\n")
    run.log.rename(directory / "old" / "app.log.1")
    run.log.write_text("c\n")
    run.until("a\nb\n", "c\n")


def test_file_of_another_directory_is_no_copy(directory: Path, gateway: SessionGateway) -> None:
    """Two applications may write equal lines to files with equal names."""
    run = Run(directory, gateway, "*/app.log*")
    run.log.write_text("started\n")
    run.until("started\n")
    other = directory / "other" / "app.log.1"
    other.parent.mkdir()
    copytruncate(run.log, other)
    run.until("started\n", "started\n")


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("rotate", [rename, copytruncate])
def test_file_created_and_rotated_while_the_client_is_down_is_sent(
    directory: Path, gateway: SessionGateway, rotate: Callable[[Path, Path], None], is_compressed: bool
) -> None:
    """No pattern matches the file, and no source knows it."""
    run = Run(directory, gateway, "logs/app.log")
    run.log.write_text("a\n")
    run.until("a\n")
    append(run.log, "b\n")
    rotate(run.log, run.log.with_name("app.log-20260131"))
    append(run.log, "c\n")
    rotate(run.log, run.log.with_name("app.log-20260201"))
    append(run.log, "d\n")
    if is_compressed:
        for name in ("app.log-20260131", "app.log-20260201"):
            compress(run.log.with_name(name), run.log.with_name(f"{name}.gz"))
    run.until("a\nb\n", "c\n", "d\n")
    run.until("a\nb\n", "c\n", "d\n")


def test_files_rotated_before_the_first_start_are_not_sent(directory: Path, gateway: SessionGateway) -> None:
    run = Run(directory, gateway, "logs/app.log")
    old = run.log.with_name("app.log.1")
    old.write_text("old\n")
    os.utime(old, (1_700_000_000, 1_700_000_000))
    run.log.write_text("a\n")
    run.until("a\n")
    compress(old, run.log.with_name("app.log.2.gz"))
    run.log.rename(old)
    append(run.log, "b\n")
    run.until("a\n", "b\n")


def test_state_of_a_reused_inode_is_not_used(run: Run) -> None:
    run.log.write_text(numbered("a", 10))
    run.until(numbered("a", 10))
    run.log.unlink()
    run.log.write_text(numbered("b", 30))  # longer than the old position
    run.until(numbered("a", 10), numbered("b", 30))


def test_two_rotations_at_once_under_load_lose_nothing(run: Run) -> None:
    with running_client(run.table, run.directory):
        for number in range(6):
            append(run.log, numbered(f"turn {number}", 2000))
            if number % 2:
                for at in (3, 2, 1):
                    older = run.log.with_name(f"app.log.{at}")
                    if older.exists():
                        older.rename(run.log.with_name(f"app.log.{at + 1}"))
                run.log.rename(run.log.with_name("app.log.1"))
        append(run.log, "end\n")
        eventually(lambda: len(run.gateway.lines()) >= 12001)
        run.settle(None)
    expected = [line for number in range(6) for line in numbered(f"turn {number}", 2000).encode().splitlines()] + [
        b"end"
    ]
    assert sorted(run.gateway.lines()) == sorted(expected)


def test_deleted_file_is_read_to_its_end_while_the_gateway_is_away(run: Run) -> None:
    run.log.write_text("a\n")
    with running_client(run.table, run.directory):
        eventually(lambda: len(run.gateway.lines()) == 1)
        from support.session_gateway import Failure

        run.gateway.always = Failure(503, {"message": "taking over"}, {"Retry-After": "0.01"})
        append(run.log, numbered("b", 100_000))
        run.log.unlink()
        run.log.write_text("c\n")
        run.settle(None)
        run.gateway.always = None
        eventually(lambda: len(run.gateway.lines()) >= 100_002)
    assert sorted(run.gateway.lines()) == sorted([b"a", *numbered("b", 100_000).encode().splitlines(), b"c"])


def test_half_a_line_at_a_rotation_is_joined(run: Run) -> None:
    run.log.write_text("a\nhalf")
    with running_client(run.table, run.directory):
        eventually(lambda: len(run.gateway.lines()) == 1)
        with run.log.open("a") as writer:
            run.log.rename(run.log.with_name("app.log.1"))
            run.log.write_text("c\n")
            eventually(lambda: len(run.gateway.lines()) == 2)
            writer.write(" and half\n")
        eventually(lambda: len(run.gateway.lines()) == 3)
    assert run.gateway.by_file()["app.log"] == [b"a", b"half and half", b"c"]


def test_rotated_name_that_fits_the_pattern_is_not_sent_again(run: Run) -> None:
    run.log.write_text("a\n")
    with running_client(run.table, run.directory):
        eventually(lambda: len(run.gateway.lines()) == 1)
        run.log.rename(run.log.with_name("app.log.1"))
        run.log.write_text("b\n")
        eventually(lambda: len(run.gateway.lines()) == 2)
        run.settle(None)
    assert run.gateway.lines() == [b"a", b"b"]


@pytest.mark.parametrize("pattern", ["logs/*", "logs/app.log"])
def test_lines_written_to_a_renamed_file_arrive(directory: Path, gateway: SessionGateway, pattern: str) -> None:
    run = Run(directory, gateway, pattern)
    run.log.write_text("a\n")
    with running_client(run.table, run.directory), run.log.open("a") as writer:
        eventually(lambda: len(run.gateway.lines()) == 1)
        run.log.rename(run.log.with_name("app.log.1"))
        run.log.write_text("c\n")
        eventually(lambda: len(run.gateway.lines()) == 2)
        writer.write("b\n")
        writer.flush()
        eventually(lambda: len(run.gateway.lines()) == 3)
    assert sorted(run.gateway.lines()) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("pattern", ["logs/*", "logs/app.log"])
def test_copytruncate_sends_the_rest_of_the_copy_once(
    directory: Path, gateway: SessionGateway, is_running: bool, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = Run(directory, gateway, pattern)
    run.log.write_text(numbered("a", 100))

    def rotate() -> None:
        append(run.log, numbered("b", 100))
        shutil.copyfile(run.log, run.log.with_name("app.log.1"))
        os.truncate(run.log, 0)
        append(run.log, numbered("c", 500))

    if is_running:
        with running_client(run.table, run.directory):
            eventually(lambda: len(run.gateway.lines()) == 100)
            rotate()
            eventually(lambda: len(run.gateway.lines()) >= 700)
            eventually(lambda: "file closed" in caplog.text)  # the copy, at its end
    else:
        run.until(numbered("a", 100))
        rotate()
    run.until(numbered("a", 100), numbered("b", 100), numbered("c", 500))
    assert (
        run.gateway.by_file()["app.log"]
        == (numbered("a", 100) + numbered("b", 100) + numbered("c", 500)).encode().splitlines()
    )


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize(("lines", "compressed"), [(1, ""), (100, ""), (100, "at once"), (100, "later")])
def test_lines_read_between_copy_and_truncation_do_not_double_the_copy(
    directory: Path,
    gateway: SessionGateway,
    lines: int,
    compressed: str,
    is_running: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    run = Run(directory, gateway)
    before, between, after = numbered("a", lines), numbered("b", 3), numbered("c", 2)
    run.log.write_text(before)
    run.until(before)
    with running_client(run.table, run.directory):
        # A name that is not read: logrotate copies and compresses faster than the client scans.
        copy = run.log.with_name(".copy" if compressed == "at once" else "app.log.1")
        shutil.copyfile(run.log, copy)
        append(run.log, between)
        eventually(lambda: len(run.gateway.lines()) == lines + 3)
        if is_running:
            os.truncate(run.log, 0)
            if compressed == "at once":
                compress(copy, run.log.with_name("app.log.1.gz"))
            append(run.log, after)
            eventually(lambda: len(run.gateway.lines()) >= lines + 5)
            run.settle(None)
    if not is_running:
        os.truncate(run.log, 0)
        append(run.log, after)
    if copy.exists() and compressed:
        compress(copy, run.log.with_name("app.log.1.gz"))
    run.until(before, between, after)
    assert caplog.text.count("source goes on in a copy") <= 3, "reopened with each scan"


def test_copy_without_the_unsent_lines_is_opened_once_while_the_gateway_is_away(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before, between, after = numbered("a", 100), numbered("b", 3), numbered("c", 2)
    run.log.write_text(before)
    with running_client(run.table, run.directory) as shared:
        eventually(lambda: len(run.gateway.lines()) == 100)
        run.settle(None)
        run.gateway.always = Failure(503, headers={"Retry-After": "0.01"})
        shutil.copyfile(run.log, run.log.with_name("app.log.1"))
        append(run.log, between)
        eventually(lambda: any(source.pending for source in shared.sources.values()))
        os.truncate(run.log, 0)
        append(run.log, after)
        eventually(lambda: "source goes on in a copy" in caplog.text)
        run.settle(None)
        run.gateway.always = None
        eventually(lambda: len(run.gateway.lines()) >= 105)
    assert caplog.text.count("source goes on in a copy") == 1
    run.until(before, between, after)


def test_compressed_file_that_begins_like_a_longer_one_is_sent(run: Run) -> None:
    """Files that begin with the same heading: the younger one is no copy of the one that was truncated."""
    heading = "#" * 300 + "\n"
    first, second, missed = (heading + numbered(name, count) for name, count in (("a", 100), ("b", 2), ("c", 3)))
    run.log.write_text(first)
    with running_client(run.table, run.directory):
        eventually(lambda: len(run.gateway.lines()) == 101)
        os.truncate(run.log, 0)
        append(run.log, second)
        eventually(lambda: len(run.gateway.lines()) == 104)
    copy = run.log.with_name("app.log.1.gz")
    copy.write_bytes(gzip.compress(missed.encode()))
    os.utime(copy, (time.time() + 10, time.time() + 10))
    run.until(first, second, missed)


def test_copytruncate_while_the_gateway_is_away_after_a_restart_doubles_nothing(run: Run) -> None:
    run.log.write_text(numbered("a", 100))
    run.until(numbered("a", 100))
    run.gateway.always = Failure(503, headers={"Retry-After": "0.01"})
    with running_client(run.table, run.directory):
        eventually(lambda: run.gateway.requests > 1)
        append(run.log, numbered("b", 3))
        shutil.copyfile(run.log, run.log.with_name("app.log.1"))
        os.truncate(run.log, 0)
        append(run.log, numbered("c", 2))
        run.settle(None)
        run.gateway.always = None
        eventually(lambda: len(run.gateway.lines()) >= 105)
        run.settle(None)
    run.until(numbered("a", 100), numbered("b", 3), numbered("c", 2))


def test_lines_of_quiet_and_of_new_files_arrive_without_notifications(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.push.tailer.QUIET_AFTER_S", 0.0)
    monkeypatch.setattr("headrace.push.directories.ChangeWatch.wait", lambda _, timeout_s: time.sleep(timeout_s))
    run.log.write_text("a\n")
    with running_client(run.table, run.directory):
        eventually(lambda: run.gateway.lines() == [b"a"])
        append(run.log, "b\n")
        eventually(lambda: run.gateway.lines() == [b"a", b"b"])
        run.log.with_name("new.log").write_text("c\n")
        eventually(lambda: len(run.gateway.lines()) == 3)


def test_gap_of_a_writer_that_does_not_append_is_skipped(run: Run) -> None:
    with run.log.open("wb", buffering=0) as writer:
        writer.write(numbered("a", 1000).encode())
        with running_client(run.table, run.directory) as shared:
            eventually(lambda: len(run.gateway.lines()) == 1000)
            os.truncate(run.log, 0)
            writer.write(b"b\n")
            eventually(lambda: len(run.gateway.lines()) == 1001)
            assert shared.skipped_nul_bytes == len(numbered("a", 1000))
    assert run.gateway.lines()[-1] == b"b"


def test_source_with_lost_state_goes_on_at_the_position_of_the_gateway(run: Run) -> None:
    run.log.write_text("a\n")
    run.until("a\n")
    run.log.write_text("b\nc\n")  # the second incarnation
    run.until("a\nb\nc\n")
    (run.directory / "state" / "state.json").unlink()
    append(run.log, "d\n")
    run.until("a\nb\nc\nd\n")


def test_old_state_does_not_send_again(run: Run) -> None:
    run.log.write_text("a\n")
    run.until("a\n")
    old = (run.directory / "state" / "state.json").read_bytes()
    append(run.log, "b\nc\n")
    run.until("a\nb\nc\n")
    (run.directory / "state" / "state.json").write_bytes(old)
    append(run.log, "d\n")
    run.until("a\nb\nc\nd\n")


@pytest.mark.parametrize("restart", [True, False])
def test_lines_that_the_gateway_lost_are_sent_again(run: Run, restart: bool) -> None:
    text = numbered("a", 10)
    run.log.write_text(text)
    with running_client(run.table, run.directory):
        eventually(lambda: len(run.gateway.lines()) == 10)
        if not restart:
            run.gateway.lose(4)
            append(run.log, "b\n")
            eventually(lambda: len(run.gateway.lines()) == 11)
    if restart:
        run.gateway.lose(4)
        append(run.log, "b\n")
        run.until(text, "b\n")
    assert run.gateway.lines() == [*text.encode().splitlines(), b"b"]


def compress(path: Path, target: Path) -> None:
    """As gzip does: the compressed file has the times of the original, which is deleted."""
    status = path.stat()
    target.write_bytes(gzip.compress(path.read_bytes()))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    path.unlink()


def test_directory_that_changes_twice_within_a_tick_is_listed_again(tmp_path: Path) -> None:
    """File systems count the time of change in ticks: two changes may have the same time."""
    (rule,) = config_of(config_table("http://h", tmp_path, {"paths": "app.log"}), tmp_path).rules
    state = TailState("source", 1, str(tmp_path / "app.log"), "app.log", topic="logs")
    scanner = FileScanner([rule])
    status = tmp_path.stat()
    assert not list(scanner.find([state]))
    (tmp_path / "app.log.1").write_text("a\n")
    os.utime(tmp_path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [Path(one.path).name for one in scanner.find([state])] == ["app.log.1"]
