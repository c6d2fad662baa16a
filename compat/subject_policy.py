"""What a registered subject may ask of its versions besides its level: its policy, and names that it reserves.

The registry answers with 409 in these cases too. What a file does not say, the registry takes from the latest version
and from the configuration, so that a check knows it as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.avro_schema import Record, Schema
from headrace.compat.check_result import Problem
from headrace.compat.finding import LEVELS, LOGICAL_POLICY, RESERVED_FIELD, Direction, Report, Severity
from headrace.compat.logical_policy import find_logical_problems

NOT_FIXED = "or have the subject's configuration changed"


@dataclass(frozen=True, slots=True)
class SubjectPolicy:
    """`logical`: the policy is LOGICAL. `reserved` are the names that no top-level field of the next version may have,
    `released` those that the latest version reserves and the next would not; both empty where nobody looks at them."""

    logical: bool = False
    reserved: tuple[str, ...] = ()
    released: tuple[str, ...] = ()


NO_POLICY = SubjectPolicy()


def find_policy_problems(terms: SubjectPolicy, report: Report, subject: str) -> tuple[Problem, ...]:
    """What the terms forbid, besides what the level does."""
    return (*(_logical(report) if terms.logical else ()), *_reserved(terms, report.candidate, subject))


def _logical(report: Report) -> list[Problem]:
    problems = []
    for earlier in report.compared:
        for direction in LEVELS[report.level].directions:
            is_backward = direction is Direction.BACKWARD
            pair = (report.candidate, earlier.schema) if is_backward else (earlier.schema, report.candidate)
            for message in find_logical_problems(*pair, reader_is_new=is_backward):
                sentence = message.removeprefix("Logical compatibility: ").replace("the old schema", earlier.name)
                fix = f"keep the logical type as it is in {earlier.name}, {NOT_FIXED}"
                problems.append(
                    _problem(LOGICAL_POLICY, sentence, fix, message, earlier.version, earlier.name, direction)
                )
    return problems


def _reserved(terms: SubjectPolicy, candidate: Schema, subject: str) -> list[Problem]:
    fields = {field.name for field in candidate.root.fields} if isinstance(candidate.root, Record) else set()
    taken = [
        _problem(
            RESERVED_FIELD, f'{subject} reserves the name of the field "{name}"', f"give it another, {NOT_FIXED}", name
        )
        for name in terms.reserved
        if name in fields
    ]
    released = [
        _problem(
            RESERVED_FIELD,
            f'the name "{name}" would no longer be reserved in {subject}, as it is in its latest version',
            f"reserve it, {NOT_FIXED}",
            name,
        )
        for name in terms.released
    ]
    return [*taken, *released]


def _problem(
    rule: str,
    sentence: str,
    fix: str,
    message: str,
    version: int = 0,
    version_name: str = "",
    direction: Direction | None = None,
) -> Problem:
    return Problem(
        rule=rule,
        severity=Severity.ERROR,
        direction=direction,
        version=version,
        version_name=version_name,
        pointer="",
        line=0,
        column=0,
        sentence=sentence,
        fix=fix,
        avro_message=message,
    )
