"""Appends a line of JSON per load or compaction to a file, for monitoring. `<path>.1` has the lines before; see
`settings.line_file`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.loader.report import RunReport
from headrace.loader.rewrite.run import RewriteReport
from headrace.settings.line_file import LineFile

logger = logging.getLogger(__name__)

BYTES_MAX: Final = 4 * 1024 * 1024
"""Size from which a file counts as full: some 8,000 loads, eight weeks of a load every ten minutes."""

LOAD_LINE, COMPACTION_LINE = "load", "compact"
"""The kinds of lines."""

TOPICS_NAMED_MAX: Final = 20
SENTENCE_CHARS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class RunLine:
    """The line of one load, or of one compaction that merged files or had problems, in the run log. Times are in
    milliseconds, `started_at_ms` since 1970. `kind` is `load` or `compact`. The line of a compaction
    counts the replaced files: `rows`, `files` and `bytes_read`.

    `outcome` is `committed` (rows or table changes), `nothing` (nothing to commit), `refused` (at least one commit was
    rejected, usually because another load was faster), `yielded` (another load is running) or `failed`. `error` is the
    reason of the failure, or why the registry could not be used; `is_registry_refused` means that it rejected the
    loader's credentials. `imbalance` is the slowest task's time divided by the mean. `problem_topics` are the first of
    the `problems` topics with problems. `held_back` counts the offsets that the load left unread.
    """

    started_at_ms: int
    duration_ms: int
    outcome: str
    exit_code: int
    commit_number: int = 0
    run_id: str = ""
    topics: int = 0
    rows: int = 0
    quarantined: int = 0
    files: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    tasks: int = 0
    read_ms: int = 0
    imbalance_planned: float = 1.0
    imbalance: float = 1.0
    waiting: int = 0
    problems: int = 0
    problem_topics: tuple[str, ...] = ()
    held_back: int = 0
    conflict: str = ""
    error: str = ""
    is_registry_refused: bool = False
    kind: str = LOAD_LINE


def line_of(report: RunReport, started_at_ms: int, exit_code: int) -> RunLine:
    """Returns the line of a completed load for the run log.

    Args:
        report: the result of the load.
        started_at_ms: time of its start, in milliseconds since 1970.
        exit_code: the exit code of the command.
    """
    return RunLine(
        started_at_ms=started_at_ms,
        duration_ms=report.duration_ms,
        outcome="refused" if report.conflict else "committed" if report.commit_number else "nothing",
        exit_code=exit_code,
        commit_number=report.commit_number,
        run_id=report.run_id,
        topics=len(report.loaded),
        rows=sum(one.rows for one in report.loaded),
        quarantined=sum(one.quarantined for one in report.loaded),
        files=sum(one.files for one in report.loaded),
        bytes_read=sum(one.bytes_read for one in report.loaded),
        bytes_written=sum(one.bytes_written for one in report.loaded),
        tasks=report.tasks,
        read_ms=report.read_ms,
        imbalance_planned=round(report.imbalance_planned, 3),
        imbalance=round(report.imbalance_measured, 3),
        waiting=len(report.waiting),
        problems=len(report.problems),
        problem_topics=tuple(sorted(report.problems)[:TOPICS_NAMED_MAX]),
        held_back=report.held_back,
        conflict=report.conflict[:SENTENCE_CHARS_MAX],
        error=report.registry_outage[:SENTENCE_CHARS_MAX],
        is_registry_refused=report.is_registry_refused,
    )


def compaction_line(report: RewriteReport, started_at_ms: int, duration_ms: int, exit_code: int) -> RunLine:
    """Returns the line of a compaction for the run log."""
    first = next(iter(report.problems.items()), None)
    return RunLine(
        started_at_ms=started_at_ms,
        duration_ms=duration_ms,
        outcome="committed" if report.commit_number else "nothing",
        exit_code=exit_code,
        commit_number=report.commit_number,
        topics=len({one.topic for one in report.time_partitions}),
        rows=sum(one.rows for one in report.time_partitions),
        files=sum(one.files for one in report.time_partitions),
        bytes_read=sum(one.bytes for one in report.time_partitions),
        problems=len(report.problems),
        problem_topics=tuple(sorted(report.problems)[:TOPICS_NAMED_MAX]),
        error=f"{first[0]}: {first[1][0]}"[:SENTENCE_CHARS_MAX] if first else "",
        kind=COMPACTION_LINE,
    )


def append_line(path: Path | None, line: RunLine) -> None:
    """Appends the line of a load to the run log `path`; does nothing if `path` is None. A failure is logged and does
    not fail the load."""
    if path is None:
        return
    content = json.dumps(dataclasses.asdict(line), separators=(",", ":")).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        LineFile(path, BYTES_MAX).append(content)
    except OSError as error:
        logger.warning("run_not_logged path=%s error=%s", path, error)


def newest_lines(path: Path, count: int, kind: str = LOAD_LINE) -> tuple[RunLine, ...]:
    """Returns the last `count` lines of a kind in the run log `path` and in `<path>.1`, which has the lines before;
    oldest first. Ignores lines in another format."""
    newest_first: list[RunLine] = []
    for file in reversed(LineFile(path, BYTES_MAX).files()):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        lines = (line for line in map(_read, reversed(content.splitlines())) if line is not None and line.kind == kind)
        newest_first += itertools.islice(lines, count - len(newest_first))
    return tuple(reversed(newest_first))


def _read(content: bytes) -> RunLine | None:
    names = {field.name for field in dataclasses.fields(RunLine)}
    try:
        value: dict[str, Any] = json.loads(content)
        # A later release may have added fields.
        fields: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item for name, item in value.items() if name in names
        }
        return RunLine(**fields)
    except (ValueError, TypeError, AttributeError):
        return None
