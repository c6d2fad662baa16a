"""Reports with a row for each topic, partition, table, subject or file.

A report begins with its totals. With more than `ROWS_SHOWN_MAX` rows it then shows only the rows that need care, the
most severe first, and counts the rest; `--all` shows all rows. A platform may have thousands of topics, and in a table
of them the one that needs care would not be seen. JSON is not shortened.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.cli.colour import print_report_line
from headrace.cli.command import CommandError, print_table
from headrace.cli.terminal import terminal_width
from headrace.kafka_wire.topic_patterns import is_pattern, matching_topics, similar_topic

ROWS_SHOWN_MAX = 20
LINES_SHOWN_MAX = 10  # of each kind, such as problems and notes
NAMES_SHOWN_MAX = 3  # of topics with the same problem
NAMES_LISTED_MAX = 5  # in the error about an unknown name
NOT_LOADED = "has not been loaded"
WELL, ATTENTION, FAILURE = range(3)
"""Severities of rows. A report may use further numbers above `WELL` to order its rows."""

_PARTITIONS = re.compile(r"(?:partition|offsets) [^:;]*: ")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of a report. `weight` orders rows of the same severity, the largest first; for example the lag."""

    cells: tuple[str, ...]
    severity: int = WELL
    weight: int = 0


@dataclass(frozen=True, slots=True)
class TextReport:
    """The text form of a report.

    Attributes:
        totals: the first line, which covers all rows.
        noun: the word for the object of a row, such as `topic`.
        right: the indexes of the columns that are aligned to the right.
        is_listing: whether the first rows are shown even if none needs care, as in a list of files.
        fixed: the indexes of the other columns that are not shortened on a narrow terminal, such as times.
    """

    totals: str
    noun: str
    header: tuple[str, ...]
    rows: tuple[ReportRow, ...]
    right: Sequence[int] = ()
    is_listing: bool = False
    fixed: Sequence[int] = ()


def add_all_flag(parser: argparse.ArgumentParser, *, pages: bool = True) -> None:
    """Adds `--all` to a command that prints a report. With `pages`, a terminal shows its output in a pager."""
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"show all rows (default: all, or of more than {ROWS_SHOWN_MAX} the first ones or those that need care)",
    )
    parser.set_defaults(pages=pages)


def print_report(report: TextReport, *, shows_all: bool) -> None:
    print_report_line(report.totals)
    rows = sorted(report.rows, key=lambda row: (-row.severity, -row.weight))
    limit = len(rows) if shows_all or len(rows) <= ROWS_SHOWN_MAX else ROWS_SHOWN_MAX
    needing = [row for row in rows if row.severity > WELL]
    shown = (rows if limit == len(rows) or report.is_listing else needing)[:limit]
    if shown:
        print_table(report.header, [row.cells for row in shown], report.right, terminal_width(), report.fixed)
    more = len(rows) - len(shown)
    more_needing = max(0, len(needing) - len(shown))
    if report.is_listing:
        _print_more(more, f"more {report.noun}", "")
    else:
        _print_more(more_needing, f"more {report.noun}", " need care" if more_needing > 1 else " needs care")
        well = more - more_needing
        _print_more(well, report.noun, " are well" if well > 1 else " is well")


def _print_more(number: int, noun: str, verb: str) -> None:
    if number:
        print(f"{count_text(number, noun)}{verb}; --all shows {'it' if number == 1 else 'them'}")


def print_lines(lines: Sequence[str], *, shows_all: bool, lines_max: int = LINES_SHOWN_MAX) -> None:
    """Prints lines of a report that begin with the same word and a colon, such as its notes: all, or at most
    `lines_max` and the number of the others."""
    shown = lines if shows_all or len(lines) <= lines_max + 1 else lines[:lines_max]
    for line in shown:
        print_report_line(line)
    if len(lines) > len(shown):
        print_report_line(f"{lines[-1].partition(':')[0]}: and {len(lines) - len(shown):,} more; --all shows them")


def print_reasons(word: str, reasons: Iterable[tuple[str, str]], *, shows_all: bool) -> None:
    """Prints sentences about topics, such as their problems. A line covers all topics or partitions with the same
    sentence, such as all topics if the metastore is unavailable, and names the first topics.

    Args:
        word: the first word of each line, such as PROBLEM.
        reasons: pairs of a topic and a sentence. A sentence that concerns only some partitions begins with their
            numbers.
        shows_all: whether each topic gets a line of its own, and all lines are shown.
    """
    if shows_all:
        print_lines([f"{word}: {topic}: {text}" for topic, text in reasons], shows_all=True)
        return
    topics_by_reason: dict[str, list[tuple[str, str]]] = {}
    for topic, text in reasons:
        partitions = _PARTITIONS.match(text)
        topics_by_reason.setdefault(text[partitions.end() :] if partitions else text, []).append(
            (topic, partitions[0] if partitions else "")
        )
    lines = [f"{word}: {_subject(found)}{reason}" for reason, found in topics_by_reason.items()]
    print_lines(lines, shows_all=False)


def _subject(found: Sequence[tuple[str, str]]) -> str:
    """Returns the first part of a line of `print_reasons`, before the reason: the topics and partitions that it
    concerns.

    Args:
        found: pairs of a topic and the text that names its partitions, such as `partition 3: `; "" if the reason
            concerns the whole topic.
    """
    if len(found) == 1:
        return f"{found[0][0]}: {found[0][1]}"
    topics = list(dict.fromkeys(topic for topic, _ in found))
    topics_text = topics[0] if len(topics) == 1 else f"{len(topics):,} topics ({some_names(topics)})"
    partition_names = {(topic, partitions) for topic, partitions in found if partitions}
    return f"{len(partition_names):,} partitions of {topics_text}: " if partition_names else f"{topics_text}: "


def some_names(names: Sequence[str]) -> str:
    """Returns the first names as a list for a sentence, with an ellipsis for the others."""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (", …" if len(names) > NAMES_SHOWN_MAX else "")


def count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def add_topic_patterns(parser: argparse.ArgumentParser, *, positional: bool = False, default: str = "all") -> None:
    """Adds an option or arguments for the patterns of `select_topics`.

    Args:
        positional: whether to add arguments `topics` instead of the option `--topic`.
        default: the topics without a pattern, for the help text.
    """
    topics = "only topics that match: orders or 'shop.*' (* ? [a-z])"
    if positional:
        parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"{topics} (default: {default})")
    else:
        parser.add_argument(
            "--topic", action="append", default=[], metavar="PATTERN", help=f"{topics}; may be repeated"
        )


def select_topics(patterns: Sequence[str], known: Iterable[str], problem: str = NOT_LOADED) -> list[str]:
    """Returns the known topics that match any of the patterns, sorted; all known topics without patterns.

    Args:
        patterns: names, or patterns as in a shell.
        problem: why a topic may be unknown, for the error.

    Raises:
        CommandError: no topic matches one of the patterns; the error names the most similar topic.
    """
    names = sorted(known)
    if not patterns:
        return names
    selected: set[str] = set()
    for pattern in patterns:
        matching = matching_topics(pattern, names)
        if not matching:
            raise CommandError(unknown_topic(pattern, names, problem))
        selected.update(matching)
    return sorted(selected)


def check_known(topic: str, names: Sequence[str], problem: str = NOT_LOADED) -> None:
    """Checks that `topic` is one of the known topics.

    Raises:
        CommandError: it is not.
    """
    if topic not in names:
        raise CommandError(unknown_topic(topic, names, problem))


def unknown_topic(pattern: str, names: Sequence[str], problem: str = NOT_LOADED) -> str:
    """Returns the error message for a name or pattern that matches none of the topics `names`."""
    subject = f"no topic matches {pattern!r}" if is_pattern(pattern) else f"topic {pattern} {problem}"
    if len(names) <= NAMES_LISTED_MAX:
        return f"{subject}; known topics: {', '.join(names) or 'none yet'}"
    similar = similar_topic(pattern, names)
    return f"{subject}; " + (f"did you mean {similar}?" if similar else f"none of {len(names):,} topics is similar")
