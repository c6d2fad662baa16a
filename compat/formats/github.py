"""Workflow commands of GitHub Actions, which annotate lines of a pull request.

GitHub shows the first ten errors and the first ten warnings of a step; the job's log contains all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.compat.check_result import CompatCheckResult, Failure, Problem, group_problems, leaf_problems


def render_github(result: CompatCheckResult) -> str:
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: CompatCheckResult) -> Iterator[str]:
    for checked in result.checked:
        for group in group_problems(problem for problem in checked.problems if problem.suppressed is None):
            for leaf in leaf_problems(group[0]):
                yield _problem(checked.file, group[0], leaf)
    for failure in result.failures:
        yield _failure(failure)
    for note in result.notes:
        yield f"::notice title=Avro compatibility::{_data(note)}"


def _problem(file: str, problem: Problem, leaf: Problem) -> str:
    properties = {"file": file, **({"line": str(leaf.line), "col": str(leaf.column)} if leaf.line else {})}
    title = f"Avro {problem.rule}" + (f" ({problem.direction.value})" if problem.direction else "")
    message = f"{leaf.sentence}\nfix: {leaf.fix}" if leaf.fix else leaf.sentence
    return _command(problem.severity.value, {**properties, "title": title}, message)


def _failure(failure: Failure) -> str:
    position = failure.position
    properties = {"line": str(position.line), "col": str(position.column)} if position and position.line else {}
    return _command(
        "error", {"file": failure.file, **properties, "title": f"Avro schema {failure.kind.value}"}, failure.message
    )


def _command(command: str, properties: dict[str, str], message: str) -> str:
    words = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
    return f"::{command} {words}::{_data(message)}"


def _data(text: str) -> str:
    """Escapes a message (`text`) for a workflow command, as GitHub's own toolkit does: only percent signs and line
    ends."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
