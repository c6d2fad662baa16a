"""Text output for terminals: each problem with its position, source line and fix, then a summary line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.compat.check_result import (
    CheckedSchema,
    CompatCheckResult,
    Excerpt,
    Problem,
    group_problems,
    leaf_problems,
    mask_unprintable,
    pluralize,
)

COMPATIBLE_SHOWN_MAX = 20  # one screen; more are counted, so that the incompatible ones are seen
DETAIL_CHARS_MAX = 300
"""Longest message of Avro Java that is shown, since a list of missing symbols may be long; JSON contains the full
message.
"""


@dataclass(frozen=True, slots=True)
class Style:
    """ANSI sequences around the parts of a text report; empty for plain text."""

    location: str = ""
    error: str = ""
    warning: str = ""
    caret: str = ""
    fix: str = ""
    dim: str = ""
    good: str = ""
    end: str = ""


PLAIN = Style()
COLOURED = Style(
    location="\x1b[1m",
    error="\x1b[1;31m",
    warning="\x1b[1;33m",
    caret="\x1b[1;31m",
    fix="\x1b[1;36m",
    dim="\x1b[2m",
    good="\x1b[1;32m",
    end="\x1b[0m",
)


def render_text(result: CompatCheckResult, style: Style = PLAIN, *, verbose: bool = False, quiet: bool = False) -> str:
    """Renders the result of a run as text, which ends in a line break unless it is empty.

    Args:
        style: the ANSI sequences for the terminal; `PLAIN` for none.
        verbose: also show suppressed problems, and for each schema the compared versions and the origin of the level.
        quiet: omit compatible schemas without problems and notes. More than `COMPATIBLE_SHOWN_MAX` of them are only
            counted, unless `verbose`.
    """
    clean = sum(checked.is_clean for checked in result.checked)
    omits_clean = quiet or (clean > COMPATIBLE_SHOWN_MAX and not verbose)
    shown = [checked for checked in result.checked if not (omits_clean and checked.is_clean)]
    parts = [render_checked_schema(checked, style, verbose=verbose) for checked in shown]
    if omits_clean and not quiet:
        parts.append(f"{clean:,} compatible schemas without problems; --verbose shows them")
    notes = [f"note: {mask_unprintable(note)}" for note in result.notes]
    return "".join(f"{part}\n" for part in (*parts, *notes, *_summary(result, style)))


def render_checked_schema(checked: CheckedSchema, style: Style = PLAIN, *, verbose: bool = False) -> str:
    """Renders the check result of one schema as text. The last line is the verdict, unless details or notes follow it.

    Args:
        style: the ANSI sequences for the terminal; `PLAIN` for none.
        verbose: also show suppressed problems, the compared versions and the origin of the level.
    """
    shown = [problem for problem in checked.problems if problem.suppressed is None or verbose]
    parts = [_problem_text(checked, group, style) for group in group_problems(shown)]
    parts.append(_verdict(checked, style))
    if verbose:
        parts += [f"  {style.dim}{mask_unprintable(line)}{style.end}" for line in _details(checked)]
    parts += [f"note: {mask_unprintable(note)}" for note in checked.notes]
    return "\n".join(parts)


def _summary(result: CompatCheckResult, style: Style) -> list[str]:
    """Returns a list with one line that summarizes the result of a run. Returns an empty list if the run has one or two
    schemas and failures, which need no summary.

    Args:
        style: the ANSI sequences for the terminal.
    """
    total = len(result.checked) + len(result.failures)
    if total == 0:
        return ["no schema to check"]
    if total < 3:
        return []
    incompatible = sum(not checked.is_compatible for checked in result.checked)
    new = sum(checked.is_new for checked in result.checked)
    words = [f"{pluralize(total, 'schema')} checked"]
    words += [f"{style.error}{incompatible} incompatible{style.end}"] if incompatible else []
    words += [f"{style.error}{len(result.failures)} not checked{style.end}"] if result.failures else []
    words += [f"{new} new"] if new else []
    words += [] if incompatible or result.failures else [f"{style.good}all compatible{style.end}"]
    return [", ".join(words)]


def _problem_text(checked: CheckedSchema, group: Sequence[Problem], style: Style) -> str:
    """Renders one group of equal problems as text. A problem with a branch of a union is rendered as the list of the
    problems inside that branch.

    Args:
        checked: the schema that has the problems.
        group: problems as grouped by `group_problems`; the first is shown, with the versions of all others.
        style: the ANSI sequences for the terminal.
    """
    problem = group[0]
    lines = []
    for leaf in leaf_problems(problem):
        location = mask_unprintable(_location(checked.file, leaf))
        lines.append(
            f"{style.location}{location}{style.end}{_severity(problem, style)}: {mask_unprintable(leaf.sentence)}"
        )
        lines += _excerpt(leaf, style)
        if leaf.fix:
            lines.append(f"    {style.fix}fix{style.end}: {mask_unprintable(leaf.fix)}")
    others = list(dict.fromkeys(other.version_name for other in group if other.version != problem.version))
    if others:
        lines.append(f"    also: the same against {mask_unprintable(', '.join(others))}")
    lines.append(f"    {style.dim}rule: {_truncated(mask_unprintable(_rule_words(problem)))}{style.end}")
    if problem.suppressed is not None:
        suppression = f"{problem.suppressed.origin}: {problem.suppressed.reason}"
        lines.append(f"    suppressed by {mask_unprintable(suppression)}")
    return "\n".join([*lines, ""])


def _severity(problem: Problem, style: Style) -> str:
    word = "suppressed" if problem.suppressed is not None else problem.severity.value
    colour = style.error if problem.is_blocking else style.warning
    return f"{colour}{word}{style.end}"


def _rule_words(problem: Problem) -> str:
    direction = f" ({problem.direction.value})" if problem.direction else ""
    avro = f" at {problem.avro_location}: {problem.avro_message}" if problem.avro_location else ""
    return f"{problem.rule}{direction}{avro}"


def _location(file: str, problem: Problem) -> str:
    where = f"{problem.line}:{problem.column}" if problem.line else ""
    return "".join(f"{part}:" for part in (file, where) if part) + " "


def _excerpt(problem: Problem, style: Style) -> list[str]:
    excerpt: Excerpt | None = problem.excerpt
    if excerpt is None:
        return []
    number = f"{problem.line:>6} | "
    indent = " " * (len(number) - 2) + "| " + " " * (len(excerpt.before) + excerpt.caret)
    return [
        f"{style.dim}{number}{style.end}{excerpt.before}{excerpt.text}{excerpt.after}",
        f"{style.dim}{indent}{style.end}{style.caret}^{style.end}",
    ]


def _truncated(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS_MAX else f"{text[:DETAIL_CHARS_MAX]}…"


def _verdict(checked: CheckedSchema, style: Style) -> str:
    name = f"{mask_unprintable(checked.file)}: " if checked.file else ""
    level = checked.level.value
    remarks = _remarks(checked)
    if not checked.compared and checked.is_compatible:
        reason = "which compares nothing" if level == "NONE" else "there is no earlier version"
        if checked.is_new and checked.baseline:
            reason = f"{mask_unprintable(checked.baseline)} has no earlier version"
        return f"{name}{style.good}compatible{style.end} at {level}: {reason}{remarks}"
    if checked.is_compatible:
        names = mask_unprintable(", ".join(version.name for version in checked.compared))
        return f"{name}{style.good}compatible{style.end} at {level} with {names}{remarks}"
    counting = [problem for problem in checked.problems if problem.is_blocking]
    failed = mask_unprintable(
        ", ".join(dict.fromkeys(problem.version_name for problem in counting if problem.version_name))
    )
    count = sum(len(leaf_problems(group[0])) for group in group_problems(counting))
    words = f" with {failed}" if failed else ""
    verdict = f"{style.error}incompatible{style.end}"
    return f"{name}{verdict} at {level}{words}: {pluralize(count, 'problem')}{remarks}"


def _remarks(checked: CheckedSchema) -> str:
    """Returns the numbers of a schema's warnings and suppressed problems as text in parentheses; "" if it has none."""
    warnings = sum(problem.severity.value == "warning" and not problem.suppressed for problem in checked.problems)
    suppressed = sum(problem.suppressed is not None for problem in checked.problems)
    words = [pluralize(warnings, "warning")] if warnings else []
    words += [f"{suppressed} suppressed"] if suppressed else []
    return f" ({', '.join(words)})" if words else ""


def _details(checked: CheckedSchema) -> list[str]:
    compared = ", ".join(version.name for version in checked.compared) or "none"
    count = pluralize(checked.version_count, "earlier version")
    return [
        f"subject: {checked.subject or '-'}; level {checked.level.value} ({checked.level_origin or 'default'})",
        f"compared with: {compared} ({count} in {checked.baseline or '-'})",
    ]
