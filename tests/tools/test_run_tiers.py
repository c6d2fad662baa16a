"""Runs of small made-up tiers, and the tiers' targets in the Makefile."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from run_tiers import SETUP, TIERS, Tier, next_tier
from support.checkout import ROOT
from support.processes import is_running

DEADLINE_S = 60
MAKEFILE = """\
setup-dev:
	@test ! -e broken
good:
	@echo "2.50s call     tests/a.py::test_a"; echo "=== 3 passed, 1 skipped in 90.01s (0:01:30) ==="
bad:
	@seq 100; echo "ERROR    logger:a.py:3 no"; echo "FAILED tests/a.py::test_b - no"; exit 3
a b c d e:
	@echo +$@ >> events; sleep 0.2; echo -$@ >> events
endless:
	@trap 'sleep 0.2; echo stopped servers; exit 1' INT; echo $$$$ > new; mv new pid; while :; do sleep 0.1; done
stubborn:
	@trap '' INT; echo $$$$ > new; mv new pid; exec sleep 1000
"""


def start(directory: Path, tiers: list[Tier], *arguments: str, grace_s: float = 0) -> subprocess.Popen[str]:
    """Starts the runner with SIGINT ignored, as a shell starts a background job."""
    (directory / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    program = f"""
import sys, pathlib, run_tiers
from run_tiers import Tier
run_tiers.ROOT, run_tiers.GRACE_S, run_tiers.SILENCE_S_MAX = pathlib.Path.cwd(), {grace_s}, 0.2
run_tiers.TIERS = {tuple(tiers)}
sys.exit(run_tiers.main(sys.argv[1:]))"""
    return subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", program, *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tools")},
    )


def run(directory: Path, tiers: list[Tier], *arguments: str) -> tuple[int, str]:
    process = start(directory, tiers, *arguments)
    output, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, output


def test_named_tier_alone_runs_after_setup(tmp_path: Path) -> None:
    code, output = run(tmp_path, [Tier("good", 1, 1), Tier("bad", 1, 1)], "good")
    assert code == 0
    assert re.findall(r"started (\S+)", output) == ["setup-dev", "good"]
    assert (tmp_path / ".make/tiers/good.log").read_text().startswith("2.50s call")


def test_report_has_slow_tests_and_the_summary_of_pytest_on_a_line_of_its_own(tmp_path: Path) -> None:
    _, output = run(tmp_path, [Tier("good", 1, 1)])
    summary = "3 passed, 1 skipped in 90.01s (0:01:30)"
    assert re.search(rf"^good +passed +\d:\d\d:\d\d \d:\d\d:\d\d  {re.escape(summary)}$", output, re.M)
    assert f"\nslowest tests of good:\n2.50s call     tests/a.py::test_a\n\n=== {summary} ===\ntotal time: " in output


def test_failed_tier_prints_its_last_lines_and_failed_tests_and_stops_no_other(tmp_path: Path) -> None:
    code, output = run(tmp_path, [Tier("good", 1, 1), Tier("bad", 1, 2)], "--cores", "1")
    assert code == 1
    assert re.findall(r"^(?:good|bad) +\w+", output, re.M) == ["good             passed", "bad              FAILED"]
    tail = [line for line in output.splitlines() if line.startswith("  | ")]
    assert (len(tail), tail[0], tail[-2]) == (60, "  | 44", "  | FAILED tests/a.py::test_b - no")
    assert "\nfailed tests of bad:\nFAILED tests/a.py::test_b - no\n\n" in output


def test_no_tier_runs_when_setup_fails(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    code, output = run(tmp_path, [Tier("good", 1, 1)])
    assert code == 1
    assert re.search(r"^setup-dev +FAILED .*\ngood +not run", output, re.M)


def test_running_tiers_need_no_more_cores_than_there_are(tmp_path: Path) -> None:
    tiers = {name: Tier(name, cores, 1) for name, cores in (("a", 2), ("b", 1), ("c", 1), ("d", 1), ("e", 5))}
    code, _ = run(tmp_path, list(tiers.values()), "--cores", "3")
    assert code == 0
    running: set[str] = set()
    at_once = set()
    for sign, name in (tmp_path / "events").read_text().split():
        running ^= {name}
        assert (name in running) == (sign == "+")
        assert sum(min(tiers[name].cores, 3) for name in running) <= 3
        at_once.add(len(running))
    assert max(at_once) > 1


def test_longest_tier_that_fits_starts_first() -> None:
    wide, narrow, short = Tier("wide", 2, 9), Tier("narrow", 1, 5), Tier("short", 1, 1)
    assert next_tier([short, narrow, wide], [], cores=2) == wide
    assert next_tier([short, narrow, wide], [Tier("other", 1, 1)], cores=2) == narrow
    assert next_tier([short, narrow, wide], [Tier("other", 2, 1)], cores=2) is None
    assert next_tier([wide], [], cores=1) == wide


@pytest.mark.parametrize(
    ("target", "grace_s", "number"),
    [
        ("endless", DEADLINE_S, signal.SIGINT),
        ("endless", DEADLINE_S, signal.SIGTERM),
        ("endless", DEADLINE_S, None),
        ("stubborn", 0.2, signal.SIGTERM),
    ],
)
def test_interrupted_run_leaves_no_process(
    target: str, grace_s: float, number: signal.Signals | None, tmp_path: Path
) -> None:
    process = start(tmp_path, [Tier(target, 1, 2), Tier("good", 1, 1)], "--cores", "1", grace_s=grace_s)
    assert process.stdout
    while f"running {target}" not in process.stdout.readline() or not (tmp_path / "pid").exists():
        assert process.poll() is None
    pid = int((tmp_path / "pid").read_text())
    assert is_running(pid)
    if number is None:
        process.stdout.close()  # the next line cannot be printed
    else:
        process.send_signal(number)
        assert re.search(rf"^{target} +interrupted .*\ngood +not run", process.stdout.read(), re.M)
    assert process.wait(DEADLINE_S) != 0
    assert not is_running(pid)
    if target == "endless":
        assert (tmp_path / f".make/tiers/{target}.log").read_text().startswith("stopped servers\n")


def test_list_names_tiers_and_runs_none(tmp_path: Path) -> None:
    code, output = run(tmp_path, [Tier("good", 1, 7), Tier("bad X=1", 2, 9)], "--list")
    assert code == 0
    assert [line.split() for line in output.splitlines()] == [
        ["good", "1", "cores,", "7", "min"],
        ["bad", "2", "cores,", "9", "min"],
    ]
    assert not (tmp_path / ".make").exists()


def test_gate_runs_every_test_target_that_the_makefile_does_not_exclude() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = dict(re.findall(r"^([a-z0-9-]+):.* ## (.*)", makefile, re.M))
    gate = {tier.name for tier in (SETUP, *TIERS)}
    assert gate <= set(targets)
    excluded = {
        "test-full",
        "test-hdfs",
        "test-s3",
        *(name for name, text in targets.items() if "Not in `make ci`" in text),
    }
    assert {name for name in targets if name.startswith("test")} - excluded <= gate
