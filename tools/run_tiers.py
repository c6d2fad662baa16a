"""Runs the checks and tests of this checkout in tiers, in parallel as far as the cores allow: `make ci`, `.ci/run`.

A tier is a make target. Its output goes to `.make/tiers/<tier>.log`, and the last lines to the terminal if it fails.
Needs only the standard library: the first tier, `make setup-dev`, creates the environment for the rest.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.1
SILENCE_S_MAX = 60  # hosted CI ends jobs that print nothing for ten minutes
GRACE_S = 20  # for pytest to stop its servers
TAIL_LINES = 60
OVERLAP = 1.5
"""The cores of the tiers that run at a time, for each core of the machine: tiers wait a good part of their time, for
servers that start, for time-outs of clients and, with several workers, for the last test file."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of checks or tests: a make target.

    Attributes:
        target: the target, and variables for make after it.
        cores: the number of cores that it uses.
    """

    target: str
    cores: int
    usual_minutes: int  # the longest tier starts first

    @property
    def name(self) -> str:
        return self.target.split()[0]

    @property
    def log(self) -> Path:
        return ROOT / ".make" / "tiers" / f"{self.name}.log"


SETUP = Tier("setup-dev", cores=1, usual_minutes=1)
TIERS = (
    Tier("test-spark", cores=2, usual_minutes=12),
    Tier("test", cores=2, usual_minutes=11),
    Tier("test-servers WORKERS=3", cores=2, usual_minutes=8),  # its tests mostly wait
    Tier("test-simulation", cores=2, usual_minutes=5),
    Tier("test-fault", cores=2, usual_minutes=5),
    Tier("test-kafka", cores=1, usual_minutes=6),
    Tier("test-java", cores=1, usual_minutes=3),
    Tier("test-postgres WORKERS=1", cores=1, usual_minutes=8),
    Tier("test-node", cores=1, usual_minutes=1),
    Tier("check", cores=1, usual_minutes=1),
    Tier("docs", cores=1, usual_minutes=1),
    # A fixed seed: the gate must not fail for a random pair of schemas that the change did not affect.
    Tier("test-compat SEED=1121", cores=1, usual_minutes=1),
)


def next_tier(waiting: Iterable[Tier], running: Iterable[Tier], cores: int) -> Tier | None:
    """Returns the tier to start next: of the waiting tiers that the free cores suffice for, the one that usually takes
    longest; None if there is none. A tier can have at most the cores of the machine."""
    free = cores - sum(min(tier.cores, cores) for tier in running)
    startable = [tier for tier in waiting if min(tier.cores, cores) <= free]
    return max(startable, key=lambda tier: tier.usual_minutes, default=None)


@dataclass(frozen=True, slots=True)
class Result:
    outcome: str  # passed, FAILED, interrupted or not run
    time: timedelta = timedelta()
    cpu_time: timedelta = timedelta()


@dataclass(slots=True)
class Runner:
    """Runs tiers in parallel on a number of cores. Ends the running ones when a signal arrives or the output cannot be
    printed.

    Attributes:
        signals: the signals that have arrived; a signal handler adds them.
        results: the results of the ended tiers.
    """

    cores: int
    signals: list[int] = field(default_factory=list)
    results: dict[Tier, Result] = field(default_factory=dict)
    _running: dict[Tier, subprocess.Popen[bytes]] = field(default_factory=dict)
    _start_s: dict[Tier, float] = field(default_factory=dict)
    _printed_s: float = 0
    _ended_cpu_s: float = 0  # the CPU time of all ended tiers

    def run(self, tiers: Sequence[Tier]) -> bool:
        """Runs each tier once and adds its result to `results`. Returns whether all tiers passed."""
        waiting = list(tiers)
        try:
            while (waiting or self._running) and not self.signals:
                while tier := next_tier(waiting, self._running, self.cores):
                    waiting.remove(tier)
                    self._start(tier)
                time.sleep(POLL_S)
                for tier, process in list(self._running.items()):
                    if process.poll() is not None:
                        self._finish(tier, "FAILED" if process.returncode else "passed")
                if time.monotonic() - self._printed_s >= SILENCE_S_MAX:
                    self._print(f"running {' '.join(tier.name for tier in self._running)}")
        finally:
            end(self._running.values())
            for tier in list(self._running):
                self._finish(tier, "interrupted")
        return not waiting and all(self.results[tier].outcome == "passed" for tier in tiers)

    def _start(self, tier: Tier) -> None:
        self._print(f"started {tier.name}")
        tier.log.parent.mkdir(parents=True, exist_ok=True)
        with tier.log.open("wb") as log:
            self._start_s[tier] = time.monotonic()
            self._running[tier] = subprocess.Popen(
                ["make", "--no-print-directory", *tier.target.split()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PY_COLORS": "0"},
            )

    def _finish(self, tier: Tier, outcome: str) -> None:
        del self._running[tier]
        cpu_s, self._ended_cpu_s = cpu_s_of_ended() - self._ended_cpu_s, cpu_s_of_ended()
        self.results[tier] = Result(outcome, elapsed_since(self._start_s[tier]), timedelta(seconds=round(cpu_s)))
        self._print(f"{outcome} {tier.name}")
        if outcome == "FAILED":
            tail = tier.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            print(f"the last lines of {tier.log}:", *tail, sep="\n  | ", flush=True)

    def _print(self, line: str) -> None:
        print(time.strftime("%H:%M:%S"), line, flush=True)
        self._printed_s = time.monotonic()


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Sends SIGINT to the process groups of these processes, so that pytest stops its servers, and SIGKILL to those
    that still run after `GRACE_S`."""
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        signal_group(process, signal.SIGINT)
    while any(signal_group(process, 0) for process in processes) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for process in processes:
        signal_group(process, signal.SIGKILL)
        process.wait()


def signal_group(leader: subprocess.Popen[bytes], number: int) -> bool:
    """Sends a signal to a process group. Returns whether the group still has a process; pytest may run longer than the
    `make` that started it.

    Args:
        leader: the first process of the group, with the group's id.
        number: the signal; 0 only checks whether the group has a process.
    """
    leader.poll()  # a zombie would count
    try:
        os.killpg(leader.pid, number)
    except ProcessLookupError:
        return False
    return True


def cpu_s_of_ended() -> float:
    """Returns the CPU seconds of ended child processes. They include the descendants that a child waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def elapsed_since(start_s: float) -> timedelta:
    return timedelta(seconds=round(time.monotonic() - start_s))


SUMMARY = re.compile(r"^=+ .* in [\d.]+s.* =+$", re.MULTILINE)
SLOW_TEST = re.compile(r"^\d+\.\d\ds (?:setup|call|teardown) .*$", re.MULTILINE)
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) \S+\.py\b.{0,300}", re.MULTILINE)


def report(tiers: Iterable[Tier], results: dict[Tier, Result]) -> Iterator[str]:
    """Yields the final report: a table of the tiers with their time and CPU time, then slow tests, failed tests and
    summaries from the logs."""
    logs = {tier: tier.log.read_text(encoding="utf-8", errors="replace") for tier in results}
    summaries = {tier: "".join(SUMMARY.findall(log)[-1:]) for tier, log in logs.items()}
    for tier in tiers:
        result = results.get(tier, Result("not run"))
        times = f"{result.time} {result.cpu_time}"
        yield f"{tier.name:<16} {result.outcome:<11} {times}  {summaries.get(tier, '').strip('= ')}".rstrip()
    for title, pattern in (("slowest tests", SLOW_TEST), ("failed tests", FAILED_TEST)):
        for tier, log in logs.items():
            if lines := pattern.findall(log):
                yield "\n".join((f"\n{title} of {tier.name}:", *lines))
    yield "\n".join(("", *filter(None, summaries.values())))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs the checks and tests of this checkout in tiers.")
    parser.add_argument("tiers", nargs="*", metavar="TIER", help="default: all tiers")
    parser.add_argument(
        "--cores",
        type=int,
        default=round(OVERLAP * (os.cpu_count() or 1)),
        help=f"of the tiers that run at a time; default: {OVERLAP} for each core of this machine, %(default)s",
    )
    parser.add_argument("--list", action="store_true", help="print the tiers")
    options = parser.parse_args(arguments)
    if unknown := set(options.tiers) - {tier.name for tier in TIERS}:
        parser.error(f"no tier {', '.join(sorted(unknown))}; --list prints the tiers")
    tiers = [tier for tier in TIERS if not options.tiers or tier.name in options.tiers]
    if options.list:
        for tier in tiers:
            print(f"{tier.name:<16} {tier.cores} cores, {tier.usual_minutes} min")
        return 0
    start_s = time.monotonic()
    runner = Runner(max(1, options.cores))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # An exception in a handler could lose a process that has just started.
        signal.signal(number, lambda number, _frame: runner.signals.append(number))
    have_passed = runner.run([SETUP]) and runner.run(tiers)
    print("", *report((SETUP, *tiers), runner.results), sep="\n")
    print(f"total time: {elapsed_since(start_s)}")
    return 0 if have_passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
