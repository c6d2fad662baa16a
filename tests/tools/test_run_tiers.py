"""The runner of the tiers: what runs beside what, what it reads from logs, and real runs of small made-up tiers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from run_tiers import (
    SETUP,
    TIERS,
    Counts,
    Outcome,
    Result,
    Tier,
    clock,
    counts_of,
    failed_of,
    failures,
    main,
    outcome_table,
    servers_of,
    startable,
    usual_minutes,
)
from support.checkout import ROOT
from support.processes import is_running

DEADLINE_S = 60.0


def tier(name: str, cores: int = 1, minutes: float = 1, exclusive: str = "") -> Tier:
    return Tier(name, name, cores, minutes, exclusive=frozenset(exclusive.split()))


def names(tiers: tuple[Tier, ...]) -> str:
    return " ".join(one.name for one in tiers)


def test_the_longest_that_fit_start_together() -> None:
    waiting = [tier("short"), tier("long", minutes=9), tier("middle", minutes=5)]
    assert names(startable(waiting, [], cores=2)) == "long middle"
    assert names(startable(waiting, [tier("other")], cores=2)) == "long"
    assert names(startable(waiting, [tier("other", cores=2)], cores=2)) == ""


def test_a_shorter_one_fills_what_a_longer_one_leaves() -> None:
    waiting = [tier("wide", cores=2, minutes=9), tier("narrow")]
    assert names(startable(waiting, [tier("other")], cores=2)) == "narrow"


def test_no_two_with_one_resource() -> None:
    waiting = [
        tier("first", minutes=3, exclusive="maven"),
        tier("second", minutes=2, exclusive="apt maven"),
        tier("free"),
    ]
    assert names(startable(waiting, [], cores=8)) == "first free"
    assert names(startable(waiting, [tier("other", exclusive="maven")], cores=8)) == "free"
    assert names(startable(waiting, [tier("other", exclusive="npm")], cores=8)) == "first free"


def test_a_tier_that_wants_more_cores_than_there_are_runs_alone() -> None:
    wide = tier("wide", cores=4, minutes=9)
    assert names(startable([wide, tier("narrow")], [], cores=2)) == "wide"
    assert names(startable([wide], [tier("narrow")], cores=2)) == ""
    assert names(startable([tier("narrow")], [wide], cores=2)) == ""


tier_lists = st.lists(
    st.builds(
        Tier,
        name=st.uuids().map(str),
        target=st.just("x"),
        cores=st.integers(1, 5),
        minutes=st.integers(1, 9),
        exclusive=st.frozensets(st.sampled_from(["maven", "npm"])),
    ),
    max_size=9,
)


@given(tier_lists, st.integers(1, 4), st.data())
def test_whatever_ends_first_every_tier_runs_once_and_none_shares_what_it_must_not(
    tiers: list[Tier], cores: int, data: st.DataObject
) -> None:
    waiting, running, started = list(tiers), list[Tier](), list[Tier]()
    while waiting or running:
        for one in startable(waiting, running, cores):
            waiting.remove(one)
            running.append(one)
            started.append(one)
        assert sum(min(one.cores, cores) for one in running) <= cores
        held = [resource for one in running for resource in one.exclusive]
        assert len(held) == len(set(held))
        assert running, "tiers wait, and nothing runs that they could wait for"
        running.remove(data.draw(st.sampled_from(running)))
    assert sorted(started, key=tiers.index) == tiers


def test_usual_minutes_are_those_of_the_schedule() -> None:
    tiers = [tier("wide", cores=2, minutes=9), tier("long", minutes=7), tier("a", minutes=3), tier("b", minutes=2)]
    assert usual_minutes(tiers, cores=2) == 9 + 7
    assert usual_minutes(tiers, cores=1) == 9 + 7 + 3 + 2
    assert usual_minutes(tiers, cores=8) == 9
    assert usual_minutes([tier("a", exclusive="maven"), tier("b", exclusive="maven")], cores=8) == 2
    assert usual_minutes([], cores=2) == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("4128 passed, 1 skipped in 533.21s (0:08:53)", Counts(4128, 0, 1, 0)),
        ("====== 4128 passed, 1 skipped, 436 warnings in 533.21s (0:08:53) ======", Counts(4128, 0, 1, 0)),
        ("=== 2 failed, 3 passed, 4 skipped, 5 deselected, 1 warning, 1 error in 0.12s ===", Counts(3, 3, 4, 5)),
        ("=== 1 failed, 2 xfailed, 3 xpassed, 6 errors, 7 subtests passed in 1.00s ===", Counts(5, 7, 0, 0)),
        ("=== 1 passed in 90061.00s (1 day, 1:01:01) ===", Counts(1, 0, 0, 0)),
        ("=== 760 deselected in 3.10s ===", Counts(0, 0, 0, 760)),
        ("=== no tests ran in 0.01s ===", Counts(0, 0, 0, 0)),
        ("\x1b[32m=== \x1b[32m\x1b[1m7 passed\x1b[0m\x1b[32m in 0.08s\x1b[0m\x1b[32m ===\x1b[0m", Counts(7, 0, 0, 0)),
        ("decision 1: 2 rows in 2 files (0.0 MB) of 2 topics in 12.9 s", None),
        ("5 passed the gate in 3.0 hours", None),
        ("", None),
    ],
)
def test_the_summary_of_pytest(line: str, expected: Counts | None) -> None:
    assert counts_of(f"collected 5 items\n....\n{line}\nmake: *** [Makefile:37: test] Error 1\n") == expected


XDIST_LOG = """\
created: 2/2 workers
2 workers [4129 items]

........................................................................ [  1%]
=========================== short test summary info ============================
SKIPPED [1] tests/x.py:7: no node and npm on the PATH to run the clients with
left out by -m: 9 tests marked fault; run them with: make test-fault
left out by -m: 739 tests marked postgres; run them with: make test-postgres
left out in all: 746 tests
servers started: PostgreSQL once, 1.5 s
servers started: headrace up 4 times, 9.8 s in the middle, 14.2 s at most
================= 4128 passed, 1 skipped in 533.21s (0:08:53) ==================
"""


def test_what_workers_left_out_and_started() -> None:
    assert counts_of(XDIST_LOG) == Counts(4128, 0, 1, 746)
    assert servers_of(XDIST_LOG) == (
        "PostgreSQL once, 1.5 s",
        "headrace up 4 times, 9.8 s in the middle, 14.2 s at most",
    )


def test_of_two_runs_in_a_log_the_last_counts() -> None:
    assert counts_of("=== 1 failed in 1.00s ===\n" + XDIST_LOG) == Counts(4128, 0, 1, 746)


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:00"), (59.6, "1:00"), (533.2, "8:53"), (3661, "61:01")])
def test_times(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_the_table_at_the_end() -> None:
    servers = ("Apache Kafka once, 8.1 s", "x once, 1.0 s")
    outcomes = [
        Outcome(tier("check"), Result.PASSED, 61.0),
        Outcome(tier("test"), Result.FAILED, 533.2, 2, Counts(4128, 2, 1, 746), servers),
        Outcome(tier("node"), Result.NOT_RUN),
    ]
    assert outcome_table(outcomes) == [
        "tier   result   time  passed  failed  skipped  left out  servers started",
        "check  passed   1:01",
        "test   FAILED   8:53  4128    2       1        746       Apache Kafka once, 8.1 s",
        "                                                         x once, 1.0 s",
        "node   not run",
    ]


def test_what_failed_is_named_with_its_reason() -> None:
    log = (
        "FAILED in a line of the test's own\n=== short test summary info ===\n"
        "\x1b[31mFAILED\x1b[0m tests/a.py::\x1b[1mtest_b[c d]\x1b[0m - assert 1 == 2\n"
        "ERROR tests/a.py::test_c - OSError: no room\nSKIPPED [1] tests/x.py:7: no node\n"
    )
    assert failed_of(log) == ("tests/a.py::test_b[c d] - assert 1 == 2", "tests/a.py::test_c - OSError: no room")


def test_the_end_names_what_failed_and_stays_short() -> None:
    many = tuple(f"tests/a.py::test_{number}" for number in range(12))
    outcomes = [
        Outcome(tier("check"), Result.PASSED),
        Outcome(tier("test"), Result.FAILED, failed=many),
        Outcome(tier("fault"), Result.FAILED, failed=("tests/b.py::test_b - " + "x" * 500,)),
    ]
    lines = failures(outcomes)
    assert lines[:10] == [f"failed in test: {name}" for name in many[:10]]
    assert lines[10] == "failed in test: 2 more"
    assert lines[11].startswith("failed in fault: tests/b.py::test_b - xxx") and lines[11].endswith("x…")
    assert len(lines) == 12 and len(lines[11]) == len("failed in fault: ") + 300
    assert failures(outcomes[:1]) == []


@pytest.mark.parametrize(("cores", "minutes"), [(0, 1), (1, 0)])
def test_a_tier_takes_something(cores: int, minutes: float) -> None:
    with pytest.raises(ValueError, match="tier x: cores"):
        tier("x", cores, minutes)


def test_the_tiers_are_targets_that_make_lists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = set(re.findall(r"^([a-z0-9-]+):.* ## ", makefile, re.M))
    targets = {one.target.split()[0] for one in (SETUP, *TIERS)}
    assert targets <= listed
    # And no test target is in no tier but those that the Makefile says are left to `test-full`, which is all of them.
    left = {"test-full", "test-hdfs", "test-s3", "test-hive", "test-pig", "test-yarn", "test-cluster", "test-container"}
    left |= {"test-sparks", "test-go", "test-zig"}
    assert {name for name in listed if name.startswith("test")} - left <= targets
    assert set(re.findall(r"[a-z0-9-]+", makefile.split(".PHONY:")[1].split("\n\n")[0])) == listed


@pytest.mark.parametrize(
    ("said", "kills", "histories"),
    [({}, "40", "2000"), ({"HEADRACE_TEST_KILLS": "7", "HEADRACE_HISTORIES": "9"}, "7", "9")],
)
def test_the_full_run_is_the_long_one(said: dict[str, str], kills: str, histories: str) -> None:
    own = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "HEADRACE_TEST_KILLS", "HEADRACE_HISTORIES")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    told = subprocess.run(
        ["make", "-n", "test-full"], cwd=ROOT, env={**environment, **said}, capture_output=True, text=True, check=True
    ).stdout
    (line,) = re.findall(r"^.* -m pytest .*$", told.partition("test-sparks")[0], re.MULTILINE)
    assert f"HEADRACE_TEST_KILLS={kills} HEADRACE_HISTORIES={histories} " in line


def test_what_the_readme_says_is_a_tier() -> None:
    commands = {one.command for one in TIERS}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^make (?:test|check)\b", readme, re.M)) == {"make test", "make check"} <= commands


FAKE_MAKEFILE = """\
setup-dev:
	@echo "$(SETUP)" && test -z "$(SETUP)"
quick:
	@echo "servers started: mill once, 0.1 s"; echo "=== 3 passed in 0.01s ==="
arguments:
	@echo "said $(WORD)" >> said
failing:
	@seq 1 100; echo 'a → b'; echo "FAILED a.py::test_a - no"; echo "=== 1 failed, 2 passed in 0.01s ==="; exit 3
slow:
	@sleep 1000 & echo $$$$ $$! > slow.new; mv slow.new slow.pids; wait
tidy:
	@trap 'sleep 0.6; echo tidied; exit 1' INT; echo $$$$ > tidy.new; mv tidy.new tidy.pids; while :; do sleep .1; done
"""
FAKE_TIERS = (
    tier("quick"),
    Tier("words", "arguments WORD=hello", 1, 1),
    tier("failing", minutes=3),
    tier("slow", minutes=9),
    tier("tidy", minutes=8),
)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose Makefile has the targets of `FAKE_TIERS`, out of reach of a `make` that runs these tests."""
    (tmp_path / "Makefile").write_text(FAKE_MAKEFILE, encoding="utf-8")
    for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_failing_tier_is_shown_at_once_and_stops_no_other(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--cores", "1", "--only", "quick", "failing", "words"], FAKE_TIERS, fake)
    output = capsys.readouterr().out
    assert code == 1
    assert output.startswith(
        "3 tiers on 1 core, usually 5 minutes\n[ 0:00] started  setup-dev: make setup-dev (1 core, "
    )
    assert "failing in 0:00: 2 passed, 1 failed, 0 skipped, 0 left out\n" in output
    told = output.partition("make failing ended with 2; the last lines of .make/tiers/failing.log:\n")[2]
    lines = [line.removeprefix("  | ") for line in told.splitlines() if line.startswith("  | ")]
    assert lines[:2] == ["45", "46"] and len(lines) == 60 and "Error 3" in lines[-1]
    assert told.index("Error 3") < told.index("quick: make quick")
    assert re.findall(r"^(\S+) +(passed|FAILED) +\d+:\d\d(?: +(\d+) +(\d+) +0 +0)?", output, re.M) == [
        ("setup-dev", "passed", "", ""),
        ("quick", "passed", "3", "0"),
        ("words", "passed", "", ""),
        ("failing", "FAILED", "2", "1"),
    ]
    assert re.search(r"^quick .* mill once, 0\.1 s$", output, re.M)
    assert output.endswith("\nfailed in failing: a.py::test_a - no\n")
    assert (fake / "said").read_text() == "said hello\n"
    assert (fake / ".make/tiers/quick.log").read_text().endswith("=== 3 passed in 0.01s ===\n")


def test_all_is_well(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "quick", "words"], FAKE_TIERS, fake) == 0
    assert "FAILED" not in capsys.readouterr().out


def test_without_an_environment_no_tier_runs(
    fake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETUP", "set-up: no space left")
    assert main(["--only", "words"], FAKE_TIERS, fake) == 1
    output = capsys.readouterr().out
    assert "  | set-up: no space left\n" in output
    assert re.search(r"^words +not run$", output, re.M)
    assert not (fake / "said").exists()


def test_a_list_runs_nothing(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--cores", "2", "--only", "words", "slow"], FAKE_TIERS, fake) == 0
    output = capsys.readouterr().out
    assert re.search(r"^words +make arguments WORD=hello +1 +1 +none$", output, re.M)
    assert output.endswith("2 tiers on 2 cores, usually 9 minutes\n")
    assert not (fake / ".make").exists()


@pytest.mark.parametrize("arguments", [["--only", "kafkaesque"], ["--cores", "0"], ["--cores", "many"]])
def test_what_cannot_be_meant_is_refused(fake: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--list"], FAKE_TIERS, fake)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


RUNNER = """\
import sys
from pathlib import Path
import run_tiers
run_tiers.GRACE_S, run_tiers.STILL_RUNNING_S = float(sys.argv[1]), 0.5
names = ("slow", "tidy", "failing", "quick")
tiers = [run_tiers.Tier(name, name, 1, minutes) for minutes, name in zip((9, 8, 7, 1), names)]
sys.exit(run_tiers.main(["--cores", "2", "--only", *sys.argv[3:]], tiers, Path(sys.argv[2])))
"""


@contextmanager
def runner(folder: Path, grace_s: float, *names: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs two tiers that do not end, and a third that waits for them, or the named ones. Its own SIGINT
    is ignored at the start, as by a shell that puts it into the background."""
    tiers = names or ("slow", "tidy", "quick")
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", RUNNER, str(grace_s), str(folder), *tiers],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools"), "PYTHONUNBUFFERED": "", "PYTHONIOENCODING": "ascii"},
    )
    try:
        wait_for(lambda: len(pids(folder)) == 2 * ("slow" in tiers) + ("tidy" in tiers))
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in pids(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def pids(folder: Path) -> list[int]:
    """Of the tiers that do not end: a shell, a child of it that ignores SIGINT, and a shell that answers it."""
    return [int(word) for file in folder.glob("*.pids") for word in file.read_text().split()]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(fake: Path, number: signal.Signals) -> None:
    with runner(fake, grace_s=3) as process:
        assert all(map(is_running, pids(fake)))
        process.send_signal(number)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 128 + number
        assert not any(map(is_running, pids(fake)))
    assert re.findall(r"^(slow|tidy|quick) +(interrupted|not run)", output, re.M) == [
        ("slow", "interrupted"),
        ("tidy", "interrupted"),
        ("quick", "not run"),
    ]
    assert "tidied\n" in (fake / ".make/tiers/tidy.log").read_text(), "pytest ends its servers when it is asked first"


def test_a_second_signal_ends_the_grace(fake: Path) -> None:
    with runner(fake, grace_s=10 * DEADLINE_S) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        while "ending" not in process.stdout.readline():
            assert process.poll() is None
        # The next ones may be taken for the first one's echo, which a `make` above passes on.
        while any(map(is_running, pids(fake))):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert process.wait(DEADLINE_S) != 0


def test_a_run_ends_as_soon_as_its_tiers_have(fake: Path) -> None:
    with runner(fake, 10 * DEADLINE_S, "tidy") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_a_log_may_hold_what_the_terminal_cannot_show(fake: Path) -> None:
    with runner(fake, 0.1, "failing", "quick") as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "  | a \\u2192 b\n" in output and re.search("^quick +passed", output, re.M)


def test_a_run_that_nobody_reads_ends_its_tiers(fake: Path) -> None:
    with runner(fake, grace_s=0.1) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.wait(DEADLINE_S)
        assert process.returncode != 0
        assert not any(map(is_running, pids(fake)))


def test_life_is_shown_while_tiers_run(fake: Path) -> None:
    with runner(fake, grace_s=0.1) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(re.search(r"running  slow for 0:\d\d, tidy for 0:\d\d; waiting: quick$", line) for line in lines)
