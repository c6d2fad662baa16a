"""The result of a check run as flat values, from which every output format is rendered.

A `Report` holds parsed schemas. The values of this module hold only the displayed texts and numbers. They can be sent
between processes, and a run over thousands of schemas does not keep the schemas in memory.
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
"""Most characters of a source line that are shown. A longer line is truncated around the problem's column."""

FINGERPRINT_HEX_CHARS = 32


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The source line of a problem without its indentation, shown with the problem; a long line is truncated.

    The caret is at index `caret` of `text`. `before` and `after` are "…" where the line was truncated.
    """

    text: str
    caret: int
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class SuppressedBy:
    """Why a problem is suppressed: the given reason, and the place that defines the suppression, such as the baseline
    file."""

    reason: str
    origin: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a schema (an incompatibility, a finding of a lint, a violated policy), as the texts and numbers
    that are displayed.

    `version` and `version_name` identify the earlier version with which the schema was compared; they are 0 and "" if
    the problem is about no earlier version. `line` and `column` count from 1; they are 0 if the problem has no
    position. `field` is the affected field as a phrase, such as `field "header.region"`. `reader` and `writer` are the
    schema texts of the compared types. `causes` are the problems inside a union branch. `fingerprint` does not change
    when other parts of the file change, see `compute_fingerprint`.
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
        """Whether the problem makes its schema incompatible: it is an error and not suppressed."""
        return self.severity is Severity.ERROR and self.suppressed is None


@dataclass(frozen=True, slots=True)
class ComparedVersion:
    version: int
    name: str


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """Result for one schema that could be checked.

    `compared` are the versions that it was compared with, newest first. `version_count` is the number of its versions
    in the baseline, see `VersionHistory`. `level_origin` is a phrase for the source of the level, such as "as
    requested" or "the registry's for this subject". `is_new`: the baseline has no version that belongs to it. `notes`
    are sentences for the user.
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

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to report but the verdict that the schema is compatible."""
        return not self.problems and not self.notes


class FailureKind(StrEnum):
    """The reason why a schema could not be checked, as a code."""

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
"""Exit codes in their order of precedence: if several apply, the first one in this order is used.

A code that comes earlier leaves more schemas unchecked: 4 is a failed registry; 2 an unreadable file or baseline, or a
schema that is too large to compare; 3 a text that is not a schema; 1 an incompatible schema, or one without the earlier
version that `--require-subject` requires.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A schema that could not be checked, or a baseline that could not be read. `file` is the schema's file or the name
    of the baseline."""

    kind: FailureKind
    file: str
    message: str
    position: Position | None = None

    @classmethod
    def invalid(cls, file: str, error: SchemaParseError) -> Failure:
        """Returns the failure for a file that is not a schema, with the message and position of the parser's error."""
        return cls(FailureKind.INVALID, file, error.message, error.position)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.kind]

    def text(self) -> str:
        """Returns the failure as one line in the style of compiler errors: `file:line:column: error: message`, without
        line and column if the failure has no position."""
        location = f"{self.position.line}:{self.position.column}:" if self.position and self.position.line else ""
        return mask_unprintable(f"{self.file or chr(34) * 2}:{location} error: {self.message}")


@dataclass(frozen=True, slots=True)
class CompatCheckResult:
    """Result of a run: checked schemas, failures, and `notes` about the run, such as unused suppressions."""

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
    """Converts the findings in a check's report to problems, which have the texts to display."""
    return tuple(describe_finding(finding, report.candidate.text) for finding in report.findings)


def describe_finding(finding: Finding, text: str) -> Problem:
    """Converts one finding of a report to a problem, which has the texts to display.

    Args:
        text: the text of the candidate (the new schema), from which the shown source line is taken.
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
    """Returns the field that a finding affects as text, with its path in the candidate (the new schema). If the finding
    is about a field of an earlier version that is the reader, the path of the candidate's record precedes the name of
    that field."""
    problem = finding.incompatibility
    is_backward = finding.direction is Direction.BACKWARD
    path = (problem.reader_side if is_backward else problem.writer_side).path
    if problem.field is not None and not is_backward:
        path = (*path, problem.field.name)
    return describe_field(path)


def add_fingerprints(checked: CheckedSchema) -> CheckedSchema:
    """Returns the result of one schema with a fingerprint for each of its problems.

    Equal problems with several versions share a fingerprint. If several problems with the same version are equal, the
    fingerprints of the second and later ones also include a running number.

    Args:
        checked: the result; its problems have no fingerprints yet.
    """
    seen: Counter[tuple[str, int]] = Counter()
    problems = []
    for problem in checked.problems:
        base = compute_fingerprint(checked.subject or checked.file, problem)
        seen[base, problem.version] += 1
        count = seen[base, problem.version]
        problems.append(replace(problem, fingerprint=base if count == 1 else _digest([base, str(count)])))
    return replace(checked, problems=tuple(problems))


def compute_fingerprint(subject: str, problem: Problem) -> str:
    """Returns a hash that identifies a problem across runs. It covers the subject and the problem's rule, direction,
    field path and Avro Java's message.

    Lines, versions and wording are excluded, because they can change while the problem stays the same.
    """
    direction = problem.direction.value if problem.direction else ""
    return _digest([subject, problem.rule, direction, problem.field, problem.avro_message])


def _digest(parts: Sequence[str]) -> str:
    text = "\x1f".join(parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:FINGERPRINT_HEX_CHARS]


def source_excerpt(text: str, position: Position) -> Excerpt | None:
    """Returns the part of the source line around the position; None if the text has no such line."""
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
    """Returns the problems that the author has to fix: the problems inside a union branch, or the problem itself if it
    is not about one."""
    return problem.causes or (problem,)


def group_problems(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Returns groups of equal problems; each group is shown as one problem. Its members have the same rule, direction,
    position and sentence, but occur with several versions or at several uses of one type."""
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for problem in problems:
        sentence = problem.sentence.replace(problem.version_name, "")
        location = (problem.pointer, problem.line, problem.column)
        groups.setdefault((problem.rule, problem.direction, location, sentence), []).append(problem)
    return list(groups.values())


def mask_unprintable(text: str) -> str:
    """Replaces unprintable characters, such as control and formatting characters, by `·`, so that a text from a file
    cannot control the terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "·" for char in text)


def pluralize(count: int, singular: str, plural: str = "") -> str:
    """Returns a number and its noun, such as `3 problems`.

    Args:
        plural: needed only if the plural is not the singular with an "s".
    """
    return f"{count} {singular if count == 1 else plural or singular + 's'}"
