"""Requirements of a registered subject besides its level: the compatibility policy and reserved field names.

The registry refuses a registration with status 409 if one is violated. Reserved names are not part of a schema file.
They come from the metadata of the subject's latest version and from the subject's configuration, as in the registry.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.avro_schema import Record, Schema
from headrace.compat.check_result import Problem
from headrace.compat.finding import LEVELS, LOGICAL_POLICY, RESERVED_FIELD, Direction, Report, Severity
from headrace.compat.logical_policy import find_logical_problems

CONFIG_ADVICE = "or change the subject's configuration"


@dataclass(frozen=True, slots=True)
class SubjectPolicy:
    """Requirements for the next version of a subject, in addition to its level.

    Attributes:
        logical: whether the compatibility policy is LOGICAL.
        reserved: names that no top-level field may have.
        released: names that the latest version reserves and the next version would not reserve, which is refused.

    `reserved` and `released` are empty if the subject does not validate fields.
    """

    logical: bool = False
    reserved: tuple[str, ...] = ()
    released: tuple[str, ...] = ()


NO_POLICY = SubjectPolicy()


def find_policy_problems(policy: SubjectPolicy, report: Report, subject: str) -> tuple[Problem, ...]:
    """Returns a problem for each violation of the requirements of `policy` (logical types, reserved field names) by the
    new schema. Violations of the subject's compatibility level are not included, because `report` has them."""
    return (*(_logical(report) if policy.logical else ()), *_reserved(policy, report.candidate, subject))


def _logical(report: Report) -> list[Problem]:
    problems = []
    for earlier in report.compared:
        for direction in LEVELS[report.level].directions:
            is_backward = direction is Direction.BACKWARD
            pair = (report.candidate, earlier.schema) if is_backward else (earlier.schema, report.candidate)
            for message in find_logical_problems(*pair, reader_is_new=is_backward):
                sentence = message.removeprefix("Logical compatibility: ").replace("the old schema", earlier.name)
                fix = f"keep the logical type as it is in {earlier.name}, {CONFIG_ADVICE}"
                problems.append(
                    _problem(LOGICAL_POLICY, sentence, fix, message, earlier.version, earlier.name, direction)
                )
    return problems


def _reserved(policy: SubjectPolicy, candidate: Schema, subject: str) -> list[Problem]:
    fields = {field.name for field in candidate.root.fields} if isinstance(candidate.root, Record) else set()
    conflicts = [
        _problem(
            RESERVED_FIELD,
            f'the field name "{name}" is reserved in {subject}',
            f"rename the field, {CONFIG_ADVICE}",
            name,
        )
        for name in policy.reserved
        if name in fields
    ]
    released = [
        _problem(
            RESERVED_FIELD,
            f'the name "{name}" is reserved in the latest version of {subject}, but not in the new schema',
            f"reserve it in the new schema too, {CONFIG_ADVICE}",
            name,
        )
        for name in policy.released
    ]
    return [*conflicts, *released]


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
