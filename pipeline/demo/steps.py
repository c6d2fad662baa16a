"""The steps that all demos share: they run commands, compare queries and print their progress."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TextIO

from headrace.pipeline.demo.environment import DemoEnvironment, RunQuery
from headrace.pipeline.demo.queries import DemoQuery, Table, as_text, differences, numeric_columns
from headrace.pipeline.text_table import table_lines
from headrace.settings import Settings
from headrace.settings.addresses import live_addresses

MARKER_NAME: Final = ".made-by-headrace-demo"
BAR_CHARS: Final = 30
REDRAW_INTERVAL_S: Final = 0.1
LINE_INTERVAL_S: Final = 5.0


class DemoError(Exception):
    """The demo could not finish. The message is one line for the user."""


class DemoSteps:
    """The steps of one run of a demo.

    Args:
        environment: the servers and commands.
        log_dir: directory for the logs of the commands.
        out: stream for the progress.
    """

    def __init__(self, environment: DemoEnvironment, log_dir: Path, out: TextIO) -> None:
        self.environment = environment
        self._log_dir = log_dir
        self._out = out

    def load(self) -> None:
        """Raises:
        DemoError: the load failed.
        """
        self.print_heading("Loading (headrace load)")
        run = self.headrace("load")
        for line in run.stdout.splitlines():
            self.print_detail(line)
        if run.returncode != 0:
            raise DemoError(f"the load ended with code {run.returncode}: {_last_line(run.stderr)}")

    def is_as_expected(self, run_query: RunQuery, query: DemoQuery, expected: Table) -> bool:
        """Runs a query, prints its result, and returns whether it is the expected one."""
        started = time.monotonic()
        actual = run_query(query.sql)
        self.print_detail("")
        self.print_detail(f"{query.title}  ({time.monotonic() - started:.1f} s)")
        self.table(query.columns, as_text(actual), numeric_columns(expected))
        problems = differences(actual, expected)
        for line in problems[:5]:
            self.print_detail(f"  WRONG: {line}")
        if not problems:
            self.print_detail("  as expected")
        return not problems

    def audit(self) -> bool:
        """Returns whether the audit found each event exactly once.

        Raises:
            DemoError: the audit failed.
        """
        self.print_heading("Auditing: comparing the counts of producers, broker and tables")
        run = self.headrace("audit", "report")
        for line in run.stdout.splitlines():
            self.print_detail(line)
        if run.returncode not in (0, 1):
            raise DemoError(f"the audit failed: {_last_line(run.stderr)}")
        return run.returncode == 0

    def headrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a `headrace` command in a new process, as a user would, and returns the ended process with its output.
        Appends its standard error to a file in the log directory."""
        command = self.environment.command(*arguments)
        run = subprocess.run(
            command.words,
            capture_output=True,
            text=True,
            env=command.environment,
            cwd=command.directory,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        with (self._log_dir / f"{arguments[0]}.log").open("a", encoding="utf-8") as log:
            log.write(run.stderr)
        return run

    def table(self, columns: Iterable[str], rows: Iterable[Iterable[str]], right: Iterable[int]) -> None:
        for line in table_lines(list(columns), [list(row) for row in rows], tuple(right)):
            self.print_detail(f"  {line}")

    def print_heading(self, text: str) -> None:
        self._out.write(f"\n== {text}\n")
        self._out.flush()

    def print_detail(self, text: str) -> None:
        self._out.write(f"   {text}".rstrip() + "\n")
        self._out.flush()


class Progress:
    """Shows the progress up to `total` items: as a bar on a terminal, as periodic lines in a log. Call `add` for
    batches of about a thousand.

    Args:
        label: text before the numbers.
        out: the stream to print to.
    """

    def __init__(self, label: str, total: int, out: TextIO) -> None:
        self._label = label
        self._total = max(1, total)
        self._out = out
        self._bar = out.isatty()
        self._count = 0
        self._start = time.monotonic()
        self._last_shown_at = 0.0 if self._bar else self._start

    def add(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if now - self._last_shown_at >= (REDRAW_INTERVAL_S if self._bar else LINE_INTERVAL_S):
            self._last_shown_at = now
            self._show(now)

    def finish(self) -> float:
        """Shows the final state of the progress, and returns the seconds since the start."""
        now = time.monotonic()
        self._show(now)
        if self._bar:
            self._out.write("\n")
            self._out.flush()
        return now - self._start

    def _show(self, now: float) -> None:
        fraction = min(1.0, self._count / self._total)
        rate = self._count / max(1e-6, now - self._start)
        text = f"{self._label}  {self._count:,} of {self._total:,} ({fraction:.0%}), {rate:,.0f}/s"
        if self._bar:
            filled = round(fraction * BAR_CHARS)
            self._out.write(f"\r\x1b[K{'█' * filled}{'░' * (BAR_CHARS - filled)} {text}")
        else:
            self._out.write(f"{text}\n")
        self._out.flush()


def prepare_directory(data_dir: Path) -> None:
    """Creates an empty directory with the demo's marker file. Deletes only a directory that has the marker."""
    marker = data_dir / MARKER_NAME
    try:
        if data_dir.exists() and any(data_dir.iterdir()):
            if not marker.is_file():
                raise DemoError(f"{data_dir} is not empty and was not created by the demo; name another --data-dir")
            running = live_addresses(Settings(data_dir=data_dir))
            if running is not None:
                raise DemoError(f"`headrace up` (process {running.pid}) runs on {data_dir}; stop it first")
            shutil.rmtree(data_dir)
        (data_dir / "logs").mkdir(parents=True)
        marker.write_text("The next run of the demo empties this directory.\n", encoding="utf-8")
    except OSError as error:
        raise DemoError(f"cannot write to {error.filename}: {error.strerror}; choose another --data-dir") from error


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("headrace: ") if lines else "no output"
