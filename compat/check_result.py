"""What a whole check has to say, as flat values: what every output format is made from.

A `Report` holds schemas; these values hold only what is shown, so that they pass between processes and a run over
thousands of schemas does not keep them. Nothing here knows where a schema came from.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.avro_schema import Position, SchemaParseError
from headrace.compat.describe import describe_field
from headrace.compat.finding import CompatibilityLevel, Direction, Finding, Report, Severity

EXCERPT_CHARS_MAX = 110
"""Longest excerpt of a source line; a schema in one line is shown around the column."""

FINGERPRINT_HEX_CHARS = 32


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A source line, cut; the caret stands `caret` characters into `text`. The marks are "…" where it was cut."""

    text: str
    caret: int
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class SuppressedBy:
    """Why a problem does not count: the reason somebody gave, and where it is written down."""

    reason: str
    origin: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding, in words.

    `line` and `column` count from 1 and are 0 where there is no place. `field` says which place of the data it is
    about. `fingerprint` stays the same when other things of the file change: see `compute_fingerprint`.
    """

    rule: str
    severity: Severity
    direction: Direction | None
    version: int
    version_name: str
    pointer: str
    line: int
    column: int
    sentence: str
    fix: str
    field: str = ""
    reader: str = ""
    writer: str = ""
    avro_location: str = ""
    avro_message: str = ""
    excerpt: Excerpt | None = None
    causes: tuple[Problem, ...] = ()
    fingerprint: str = ""
    suppressed: SuppressedBy | None = None

    @property
    def is_blocking(self) -> bool:
        """Whether it makes its schema incompatible."""
        return self.severity is Severity.ERROR and self.suppressed is None


@dataclass(frozen=True, slots=True)
class ComparedVersion:
    version: int
    name: str


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """The answer about one schema that could be judged.

    `compared` is newest first; `known` is the number of versions that the baseline has of it. `level_origin` says who
    chose the level. `is_new` when the baseline knows nothing of it. `notes` are sentences for people.
    """

    file: str
    subject: str
    baseline: str
    level: CompatibilityLevel
    level_origin: str
    compared: tuple[ComparedVersion, ...]
    version_count: int
    problems: tuple[Problem, ...] = ()
    is_new: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_compatible(self) -> bool:
        return not any(problem.is_blocking for problem in self.problems)


class FailureKind(StrEnum):
    """Why a schema could not be judged."""

    UNREADABLE = "unreadable"
    INVALID = "invalid"
    INCOMPARABLE = "incomparable"
    NOT_REGISTERED = "not-registered"
    REGISTRY = "registry"


EXIT_CODES: dict[FailureKind, int] = {
    FailureKind.UNREADABLE: 2,
    FailureKind.INVALID: 3,
    FailureKind.INCOMPARABLE: 2,
    FailureKind.NOT_REGISTERED: 1,
    FailureKind.REGISTRY: 4,
}
EXIT_ORDER = (4, 2, 3, 1, 0)
"""Of several exit codes that apply the one that leaves most in the dark is given."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A schema, or a whole baseline (`file` is then its name), that could not be judged."""

    kind: FailureKind
    file: str
    message: str
    position: Position | None = None

    @classmethod
    def invalid(cls, file: str, error: SchemaParseError) -> Failure:
        """Of a file that is no schema."""
        return cls(FailureKind.INVALID, file, error.message, error.position)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.kind]

    def text(self) -> str:
        """One line, as compilers write it."""
        place = f"{self.position.line}:{self.position.column}:" if self.position and self.position.line else ""
        return mask_unprintable(f"{self.file or chr(34) * 2}:{place} error: {self.message}")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The answer of a whole run. `notes` are about the run, such as suppressions that match nothing."""

    checked: tuple[CheckedSchema, ...]
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    tool_version: str = ""

    @property
    def is_compatible(self) -> bool:
        return not self.failures and all(item.is_compatible for item in self.checked)

    @property
    def exit_code(self) -> int:
        codes = {failure.exit_code for failure in self.failures}
        codes.add(0 if all(item.is_compatible for item in self.checked) else 1)
        return next(code for code in EXIT_ORDER if code in codes)


def describe_findings(report: Report) -> tuple[Problem, ...]:
    """The findings of a report, in words."""
    return tuple(describe_finding(finding, report.candidate.text) for finding in report.findings)


def describe_finding(finding: Finding, text: str) -> Problem:
    """
    Args:
        text: the candidate's own text, for the excerpt.
    """
    incompatibility = finding.incompatibility
    position = finding.position
    return Problem(
        rule=str(finding.rule),
        severity=finding.severity,
        direction=finding.direction,
        version=finding.version,
        version_name=finding.version_name,
        pointer=finding.pointer,
        line=position.line,
        column=position.column,
        sentence=finding.sentence,
        fix=finding.fix,
        field=_field(finding),
        reader=finding.reader_fragment,
        writer=finding.writer_fragment,
        avro_location=incompatibility.location,
        avro_message=incompatibility.message,
        excerpt=source_excerpt(text, position),
        causes=tuple(describe_finding(cause, text) for cause in finding.causes),
    )


def _field(finding: Finding) -> str:
    """The place in the candidate's data, by names; a field that the candidate lacks is at home in its record."""
    problem = finding.incompatibility
    is_backward = finding.direction is Direction.BACKWARD
    path = (problem.reader_side if is_backward else problem.writer_side).path
    if problem.field is not None and not is_backward:
        path = (*path, problem.field.name)
    return describe_field(path)


def add_fingerprints(checked: CheckedSchema) -> CheckedSchema:
    """The same with the fingerprint of each problem; equal ones of one schema are counted, and equal ones against
    several versions are one."""
    seen: Counter[tuple[str, int]] = Counter()
    problems = []
    for problem in checked.problems:
        base = compute_fingerprint(checked.subject or checked.file, problem)
        seen[base, problem.version] += 1
        count = seen[base, problem.version]
        problems.append(replace(problem, fingerprint=base if count == 1 else _digest([base, str(count)])))
    return replace(checked, problems=tuple(problems))


def compute_fingerprint(subject: str, problem: Problem) -> str:
    """What a problem is known by from run to run: subject, rule, direction, the data's place by field names, and what
    Avro says of it. Lines, versions and wording are left out, since they change without the problem changing."""
    direction = problem.direction.value if problem.direction else ""
    return _digest([subject, problem.rule, direction, problem.field, problem.avro_message])


def _digest(parts: Sequence[str]) -> str:
    text = "\x1f".join(parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:FINGERPRINT_HEX_CHARS]


def source_excerpt(text: str, position: Position) -> Excerpt | None:
    """The source line, cut around the column; nothing when the text is not at hand."""
    lines = text.split("\n", position.line)
    if not 0 < position.line <= len(lines):
        return None
    line = lines[position.line - 1]
    caret = min(position.column - 1, len(line))
    first = 0 if len(line) <= EXCERPT_CHARS_MAX else max(0, caret - EXCERPT_CHARS_MAX // 3)
    indent = len(line) - len(line.lstrip()) if first == 0 else 0
    begin = max(first, indent)
    return Excerpt(
        mask_unprintable(line[begin : begin + EXCERPT_CHARS_MAX].rstrip()),
        max(0, caret - begin),
        "…" if begin > indent else "",
        "…" if len(line.rstrip()) > begin + EXCERPT_CHARS_MAX else "",
    )


def leaf_problems(problem: Problem) -> Sequence[Problem]:
    """What is to be fixed: the problems inside a union's branch, else the problem itself."""
    return problem.causes or (problem,)


def group_problems(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Problems that tell the same of one place in several versions, or of a type used in several places, once."""
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for problem in problems:
        said = problem.sentence.replace(problem.version_name, "")
        place = (problem.pointer, problem.line, problem.column)
        groups.setdefault((problem.rule, problem.direction, place, said), []).append(problem)
    return list(groups.values())


def mask_unprintable(text: str) -> str:
    """Text that a terminal shows as it is: control and formatting characters of a schema are replaced."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "·" for char in text)


def pluralize(count: int, singular: str, plural: str = "") -> str:
    """A number and its noun."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"
