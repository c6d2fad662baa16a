"""Markdown for the summary of a CI job or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.compat.check_result import (
    CheckedSchema,
    CompatCheckResult,
    Problem,
    group_problems,
    leaf_problems,
    pluralize,
)

ROWS_MAX = 200
"""Most rows of one table; GitHub refuses comments over 65,536 characters and summaries over 1 MB."""


def render_markdown(result: CompatCheckResult) -> str:
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: CompatCheckResult) -> Iterator[str]:
    yield f"### Avro compatibility: {_verdict(result)}"
    yield ""
    if result.failures:
        yield "| could not be checked | reason |"
        yield "|---|---|"
        rows = [
            f"| {_code(_at(item.file, item.position.line if item.position else 0))} | {_cell(item.message)} |"
            for item in result.failures
        ]
        yield from _bounded(rows)
        yield ""
    for checked in result.checked:
        if checked.problems:
            yield from _schema(checked)
    without_problems = [checked for checked in result.checked if not checked.problems]
    if without_problems:
        yield f"<details><summary>{pluralize(len(without_problems), 'schema')} without findings</summary>"
        yield ""
        yield "| schema | subject | level | compared with |"
        yield "|---|---|---|---|"
        yield from _bounded([_summary_row(checked) for checked in without_problems])
        yield ""
        yield "</details>"
        yield ""
    for note in result.notes:
        yield f"- {_cell(note)}"


def _verdict(result: CompatCheckResult) -> str:
    incompatible = sum(not checked.is_compatible for checked in result.checked)
    words = [f"{incompatible} of {pluralize(len(result.checked), 'schema')} incompatible"] if incompatible else []
    words += [f"{len(result.failures)} could not be checked"] if result.failures else []
    return ", ".join(words) if words else f"{pluralize(len(result.checked), 'schema')} compatible"


def _schema(checked: CheckedSchema) -> Iterator[str]:
    mark = "compatible" if checked.is_compatible else "**incompatible**"
    compared = ", ".join(_code(version.name) for version in checked.compared) or "nothing"
    yield f"#### {_code(checked.file)}: {mark}"
    yield ""
    yield f"Subject {_code(checked.subject or '-')}, level `{checked.level.value}`, compared with {compared}."
    yield ""
    yield "| line | rule | problem | fix |"
    yield "|---|---|---|---|"
    rows = [row for group in group_problems(checked.problems) for row in _problem_rows(group)]
    yield from _bounded(rows)
    yield ""


def _problem_rows(group: Sequence[Problem]) -> list[str]:
    problem = group[0]
    direction = f" ({problem.direction.value})" if problem.direction else ""
    rule = f"`{problem.rule}`{direction}"
    if problem.suppressed is not None:
        rule += f"<br>suppressed: {_cell(problem.suppressed.reason)}"
    elif not problem.is_blocking:
        rule += "<br>warning"
    return [
        f"| {leaf.line or ''} | {rule} | {_cell(leaf.sentence)} | {_cell(leaf.fix)} |"
        for leaf in leaf_problems(problem)
    ]


def _summary_row(checked: CheckedSchema) -> str:
    compared = ", ".join(_code(version.name) for version in checked.compared) or (
        "new" if checked.is_new else "nothing"
    )
    return f"| {_code(checked.file)} | {_code(checked.subject or '-')} | `{checked.level.value}` | {compared} |"


def _bounded(rows: Sequence[str]) -> Iterator[str]:
    yield from rows[:ROWS_MAX]
    if len(rows) > ROWS_MAX:
        yield f"| … {len(rows) - ROWS_MAX} more |"


def _at(file: str, line: int) -> str:
    return f"{file}:{line}" if line else file


def _cell(text: str) -> str:
    """Escapes a text so that it can be the content of one table cell."""
    escaped = "".join(f"\\{char}" if char in "\\`*_[]|#~" else char for char in text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "").replace("\n", " ")


def _code(text: str) -> str:
    shown = text.replace("`", "'").replace("\r", "").replace("\n", " ").replace("|", "\\|")
    return f"`{shown}`"
