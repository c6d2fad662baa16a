"""Runs the checks and tests of this checkout in tiers, side by side as far as the machine goes: `make ci`, `.ci/run`.

Each tier is a `make` target that also runs alone. Needs nothing but Python 3.11 or newer; `make` makes the rest. What a
tier prints goes to `.make/tiers/<tier>.log`; here a line tells that it starts and how it ends, the end of its log is
printed at once when it fails, and a table at the end says what ran, with the servers that its tests started; the last
lines name the tests that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.2
STILL_RUNNING_S = 60  # hosted CI ends jobs that print nothing for ten minutes, and people wonder sooner
GRACE_S = 20  # for pytest to end its servers; a second signal cuts it short
TAIL_LINES = 60
FAILURES_NAMED = 10  # of a tier, at the end
FAILURE_CHARACTERS = 300
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Tier:
    """A make target and what it takes.

    `minutes` is how long it usually takes with nothing beside it; it decides the order and nothing else. No two tiers
    with one of `exclusive` in common run at the same time. `servers` is for people.
    """

    name: str
    target: str
    cores: int
    minutes: float
    servers: str = "none"
    exclusive: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.cores < 1 or self.minutes <= 0:
            raise ValueError(f"tier {self.name}: cores {self.cores} and minutes {self.minutes} must be above 0")

    @property
    def command(self) -> str:
        return f"make {self.target}"


# Two Mavens at once fetch into one cache, which it does not lock.
MAVEN = frozenset({"maven"})
# Nor can two apt-get install at once.
APT = frozenset({"apt"})

SETUP = Tier("setup-dev", "setup-dev", cores=1, minutes=2)
"""Before all others, which would else make one environment at the same time."""

TIERS = (
    Tier("check", "check", cores=1, minutes=1),
    Tier("test", "test", cores=2, minutes=26, servers="registries, brokers and metastores of this checkout; Spark"),
    Tier("fault", "test-fault", cores=1, minutes=22, servers="the same, killed again and again; Spark"),
    Tier("kafka", "test-kafka", cores=1, minutes=4, servers="Apache Kafka; a registry and a metastore; Spark",
         exclusive=MAVEN | APT),
    Tier("postgres", "test-postgres WORKERS=1", cores=1, minutes=7, servers="PostgreSQL; registries on it",
         exclusive=APT),
    Tier("node", "test-node", cores=1, minutes=1, servers="registries and brokers"),
    Tier("java", "test-java", cores=1, minutes=4, servers="registries and brokers", exclusive=MAVEN),
    # The same pairs each time: a gate is no place for finds that a change did not make.
    Tier("compat", "test-compat SEED=1121", cores=1, minutes=1),
)  # fmt: skip


class Result(Enum):
    PASSED = "passed"
    FAILED = "FAILED"
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Counts:
    """Tests of a tier as pytest counts them, errors among the failed; `left_out` are those that its `-m` deselects."""

    passed: int
    failed: int
    skipped: int
    left_out: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a tier ended. `counts` is None where its log has no summary of pytest."""

    tier: Tier
    result: Result
    seconds: float = 0
    code: int = 0
    counts: Counts | None = None
    servers: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Names of tests, each with the first line of its reason."""


def startable(waiting: Iterable[Tier], running: Iterable[Tier], cores: int) -> tuple[Tier, ...]:
    """Those of `waiting` that can start now beside those running, the longest first.

    A shorter one may start before a longer one that does not fit yet. A tier that wants more cores than there are gets
    all of them.
    """
    beside = list(running)
    chosen = []
    for tier in sorted(waiting, key=lambda one: -one.minutes):
        free = cores - sum(min(other.cores, cores) for other in beside)
        if min(tier.cores, cores) <= free and not any(tier.exclusive & other.exclusive for other in beside):
            chosen.append(tier)
            beside.append(tier)
    return tuple(chosen)


def usual_minutes(tiers: Iterable[Tier], cores: int) -> float:
    """How long the tiers take together on so many cores when each takes its usual minutes."""
    now = 0.0
    waiting = list(tiers)
    ends: dict[Tier, float] = {}
    while waiting or ends:
        for tier in startable(waiting, ends, cores):
            waiting.remove(tier)
            ends[tier] = now + tier.minutes
        now = min(ends.values())
        ends = {tier: end for tier, end in ends.items() if end > now}
    return now


COLOURS = re.compile(r"\x1b\[[\d;]*m")
# "=== 4128 passed, 1 skipped in 533.21s (0:08:53) ===", or with -q without the signs.
SUMMARY = re.compile(
    r"^(?:=+ )?(no tests ran|\d+ \w[\w ]*(?:, \d+ \w[\w ]*)*) in [\d.]+s(?: \([^)]*\))?(?: =+)?$", re.M
)
# Lines of tests/conftest.py. pytest's own summary counts what is left out only without pytest-xdist.
LEFT_OUT = re.compile(r"^left out in all: (\d+) tests$", re.M)
SERVERS = re.compile(r"^servers started: (.*)$", re.M)
# Of pytest's own short summary: "FAILED tests/a.py::test_b[c] - AssertionError: …".
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*)$", re.M)


def counts_of(log: str) -> Counts | None:
    """What the last summary of pytest in a log says."""
    plain = COLOURS.sub("", log)
    summaries = SUMMARY.findall(plain)
    if not summaries:
        return None
    numbers = {word.removesuffix("s"): int(number) for number, word in re.findall(r"(\d+) (\w+)", summaries[-1])}
    left_out = LEFT_OUT.findall(plain)
    return Counts(
        passed=sum(numbers.get(word, 0) for word in ("passed", "xfailed", "xpassed")),
        failed=sum(numbers.get(word, 0) for word in ("failed", "error")),
        skipped=numbers.get("skipped", 0),
        left_out=int(left_out[-1]) if left_out else numbers.get("deselected", 0),
    )


def servers_of(log: str) -> tuple[str, ...]:
    return tuple(SERVERS.findall(COLOURS.sub("", log)))


def failed_of(log: str) -> tuple[str, ...]:
    return tuple(FAILED.findall(COLOURS.sub("", log)))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Aligned columns; a cell with several lines makes its row as high."""
    cells = [[cell.split("\n") for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[index]) for index in range(len(header))]
    lines = []
    for row in cells:
        for nth in range(max(map(len, row))):
            parts = (cell[nth] if nth < len(cell) else "" for cell in row)
            lines.append("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    return lines


def outcome_table(outcomes: Iterable[Outcome]) -> list[str]:
    rows = []
    for one in outcomes:
        time_taken = "" if one.result is Result.NOT_RUN else clock(one.seconds)
        counts = ("",) * 4 if one.counts is None else map(str, astuple(one.counts))
        rows.append((one.tier.name, one.result.value, time_taken, *counts, "\n".join(one.servers)))
    return table(("tier", "result", "time", "passed", "failed", "skipped", "left out", "servers started"), rows)


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """What failed by name, for the very end: services that run this often keep no more than the last lines."""
    lines = []
    for one in outcomes:
        lines += [f"failed in {one.tier.name}: {_shortened(failed)}" for failed in one.failed[:FAILURES_NAMED]]
        if (more := len(one.failed) - FAILURES_NAMED) > 0:
            lines.append(f"failed in {one.tier.name}: {more} more")
    return lines


def tier_table(tiers: Iterable[Tier]) -> list[str]:
    rows = [
        (tier.name, tier.command, str(tier.cores), f"{tier.minutes:g}", ", ".join(sorted(tier.exclusive)), tier.servers)
        for tier in tiers
    ]
    return table(("tier", "command", "cores", "minutes", "not beside another with", "servers"), rows)


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _shortened(line: str) -> str:
    return line if len(line) <= FAILURE_CHARACTERS else line[: FAILURE_CHARACTERS - 1] + "…"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


@dataclass(slots=True)
class Running:
    """A tier's `make`, which leads a process group of its own."""

    tier: Tier
    log: Path
    process: subprocess.Popen[bytes]
    began_s: float


@dataclass(slots=True)
class Run:
    """One run of tiers below a folder with a Makefile. What is started ends with it, whatever happens."""

    root: Path
    cores: int
    say: Callable[[str], None]
    stop: list[int] = field(default_factory=list)
    """Signals that came. A handler only adds to it: an exception in the middle of a start would lose the child."""
    _began_s: float = field(default_factory=time.monotonic)
    _running: dict[str, Running] = field(default_factory=dict)

    def run(self, tiers: Sequence[Tier]) -> list[Outcome]:
        """Runs each tier once; what they came to, in the order of `tiers`."""
        waiting = list(tiers)
        outcomes: dict[str, Outcome] = {}
        said_s = time.monotonic()
        try:
            while (waiting or self._running) and not self.stop:
                for tier in startable(waiting, [one.tier for one in self._running.values()], self.cores):
                    waiting.remove(tier)
                    self._start(tier)
                time.sleep(POLL_S)
                for one in [one for one in self._running.values() if one.process.poll() is not None]:
                    outcomes[one.tier.name] = self._ended(one)
                if time.monotonic() - said_s >= STILL_RUNNING_S:
                    said_s = time.monotonic()
                    self._say_what_runs(waiting)
        finally:
            interrupted = self._end_all()
        outcomes |= {tier.name: Outcome(tier, Result.NOT_RUN) for tier in waiting}
        outcomes |= {one.tier.name: one for one in interrupted}
        return [outcomes[tier.name] for tier in tiers]

    def _start(self, tier: Tier) -> None:
        log = self.root / ".make" / "tiers" / f"{tier.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        takes = f"{_count(tier.cores, 'core')}, usually {_count(tier.minutes, 'minute')}"
        self._tell("started", f"{tier.name}: {tier.command} ({takes})")
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["make", "--no-print-directory", *tier.target.split()],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[tier.name] = Running(tier, log, process, time.monotonic())

    def _ended(self, one: Running) -> Outcome:
        del self._running[one.tier.name]
        code = one.process.returncode
        outcome = _outcome(one, Result.FAILED if code else Result.PASSED)
        self._tell(outcome.result.value, f"{one.tier.name} in {clock(outcome.seconds)}{_in_words(outcome.counts)}")
        if code:
            where = one.log.relative_to(self.root)
            self.say(f"{one.tier.command} ended with {code}; the last lines of {where}:")
            for line in _text(one.log).splitlines()[-TAIL_LINES:]:
                self.say(f"  | {line}")
        return outcome

    def _say_what_runs(self, waiting: Sequence[Tier]) -> None:
        now = time.monotonic()
        running = ", ".join(f"{one.tier.name} for {clock(now - one.began_s)}" for one in self._running.values())
        later = f"; waiting: {', '.join(tier.name for tier in waiting)}" if waiting else ""
        self._tell("running", f"{running}{later}")

    def _end_all(self) -> list[Outcome]:
        """Ends what still runs: as Ctrl-C does, so that tests end their servers, then for good."""
        left = list(self._running.values())
        for one in left:
            _signal_group(one, signal.SIGINT)
        if left:
            with contextlib.suppress(OSError):  # nobody reads on; the children end all the same
                self._tell("ending", ", ".join(one.tier.name for one in left))
            # One signal may come twice: to the whole group, and again from a `make` above that passes it on.
            time.sleep(POLL_S)
        deadline = time.monotonic() + GRACE_S
        signals = len(self.stop)
        while any(_has_members(one) for one in left) and time.monotonic() < deadline and len(self.stop) == signals:
            time.sleep(POLL_S)
        for one in left:
            _signal_group(one, signal.SIGKILL)
            one.process.wait()
        self._running.clear()
        return [_outcome(one, Result.INTERRUPTED) for one in left]

    def _tell(self, event: str, what: str) -> None:
        self.say(f"[{clock(time.monotonic() - self._began_s):>5}] {event:<8} {what}")


def _outcome(one: Running, result: Result) -> Outcome:
    log = _text(one.log)
    seconds = time.monotonic() - one.began_s
    return Outcome(one.tier, result, seconds, one.process.returncode, counts_of(log), servers_of(log), failed_of(log))


def _in_words(counts: Counts | None) -> str:
    if counts is None:
        return ""
    return f": {counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped, {counts.left_out} left out"


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _signal_group(one: Running, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(one.process.pid, number)


def _has_members(one: Running) -> bool:
    """Also when `make` itself has ended: a shell between it and pytest does not wait for pytest."""
    one.process.poll()
    try:
        os.killpg(one.process.pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def noting_signals(came: list[int]) -> Iterator[None]:
    """Also where the shell that started this ignores SIGINT; children get the default again, as exec does it."""
    before = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; expected 1 or more")
    return number


def parser(tiers: Mapping[str, Tier]) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="run_tiers.py", description="Runs the checks and tests of this checkout in tiers."
    )
    made.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=tiers,
        default=list(tiers),
        help=f"these tiers only, of: {', '.join(tiers)}",
    )
    made.add_argument(
        "--cores",
        type=at_least_one,
        default=os.cpu_count() or 1,
        metavar="N",
        help="how many cores to use (default: all of this machine, %(default)s)",
    )
    made.add_argument("--list", action="store_true", help="show the tiers and how long they take, and run nothing")
    return made


def main(arguments: Sequence[str], tiers: Sequence[Tier] = TIERS, root: Path = ROOT) -> int:
    """0: all passed; 1: one did not; 128 and the number of the signal that came. Ends the process with 2 when it is not
    called as it is meant."""
    named = {tier.name: tier for tier in tiers}
    options = parser(named).parse_args(arguments)
    wanted = [tier for tier in tiers if tier.name in options.only]
    minutes = usual_minutes(wanted, options.cores)
    together = f"{_count(len(wanted), 'tier')} on {_count(options.cores, 'core')}, usually {_count(minutes, 'minute')}"
    if options.list:
        print(*tier_table(wanted), together, sep="\n")
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # logs hold more than a CI service's encoding may
    run = Run(root, options.cores, say=lambda line: print(line, flush=True))
    with noting_signals(run.stop):
        run.say(together)
        outcomes = run.run([SETUP])
        is_set_up = outcomes[0].result is Result.PASSED
        outcomes += run.run(wanted) if is_set_up else [Outcome(tier, Result.NOT_RUN) for tier in wanted]
        run.say("\n".join(("", *outcome_table(outcomes), *failures(outcomes))))
    if run.stop:
        return 128 + run.stop[0]
    return 0 if all(one.result is Result.PASSED for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
