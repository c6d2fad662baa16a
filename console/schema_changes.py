"""Effects of a schema change: findings in both directions, and the changes of the columns of a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.avro_schema import Schema
from headrace.compat.finding import LEVELS, Direction, Finding, VersionedSchema, parse_level
from headrace.compat.levels import check_level, compare
from headrace.console.errors import ConsoleError
from headrace.console.registry_reader import ShownVersion
from headrace.console.schema_rows import FIELDS_MAX, FieldPair, FieldRow, RowMark, field_row, pair_fields
from headrace.loader.load_schema import EMPTY, RULES, AppliedRule, column_changes, fold
from headrace.settings import LoaderSettings

FINDINGS_MAX: Final = 200
"""Findings that a page lists."""
FOLDED_CHARS_MAX: Final = 4_000_000
SAME_ROWS_MAX: Final = 4
"""Unchanged fields in a row; longer runs are folded."""


class ChangesUnknown(ConsoleError):
    """The changes of a table cannot be computed; the message has the reason."""


@dataclass(frozen=True, slots=True)
class ComparedField:
    """A field in two versions, and the findings about it."""

    row: FieldRow
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class SchemaComparison:
    """Two versions side by side. `findings` has both directions; `general` lists findings about no shown field.
    `is_cut` states that only the first fields are compared side by side."""

    fields: tuple[ComparedField, ...]
    findings: Mapping[Direction, Sequence[Finding]]
    general: tuple[Finding, ...]
    is_cut: bool

    def count(self, *marks: str) -> int:
        """Returns the number of fields with one of these marks."""
        return sum(one.row.mark in marks for one in self.fields)

    def groups(self) -> list[list[ComparedField]]:
        """Returns the fields in groups: runs of more than `SAME_ROWS_MAX` unchanged ones together, others alone."""
        groups: list[list[ComparedField]] = []
        run: list[ComparedField] = []

        def end_run() -> None:
            groups.extend([run] if len(run) > SAME_ROWS_MAX else [[one] for one in run])

        for one in self.fields:
            if one.row.mark is RowMark.SAME and not one.findings:
                run.append(one)
                continue
            end_run()
            run = []
            groups.append([one])
        end_run()
        return groups


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of a table's columns, and the rules of the load schema that were applied, with their reasons."""

    changes: tuple[str, ...]
    rules: tuple[tuple[AppliedRule, str], ...]


@dataclass(frozen=True, slots=True)
class CandidateCheck:
    """The check of a new schema at a level. `compared` are numbers of versions, the newest first."""

    findings: tuple[Finding, ...]
    compared: tuple[int, ...]
    is_compatible: bool
    comparison: SchemaComparison


def compare_versions(number: int, before: Schema, after: Schema) -> SchemaComparison:
    """Compares two versions in both directions.

    Args:
        number: the version number of `before`.

    Raises:
        ComparisonTooLarge: the schemas are too large to compare.
    """
    earlier = VersionedSchema(number, before)
    findings = {direction: compare(after, earlier, direction) for direction in Direction}
    return _comparison(before, after, findings)


def check_candidate(candidate: Schema, history: Sequence[tuple[int, Schema]], level: str) -> CandidateCheck:
    """Checks a new schema as a registration does, and compares it with the newest version.

    Args:
        history: numbers and schemas of the earlier versions, ascending, at least one.
        level: the subject's compatibility level.

    Raises:
        InvalidLevel: the level is not known.
        ComparisonTooLarge: the schemas are too large to compare.
    """
    versions = [VersionedSchema(number, schema) for number, schema in history]
    report = check_level(candidate, versions, parse_level(level))
    newest = [one for one in report.findings if one.version == history[-1][0]]
    findings = {direction: [one for one in newest if one.direction is direction] for direction in Direction}
    comparison = _comparison(history[-1][1], candidate, findings)
    compared = tuple(one.version for one in report.compared)
    return CandidateCheck(report.findings[:FINDINGS_MAX], compared, report.is_compatible, comparison)


def is_required(level: str, direction: Direction) -> bool:
    """Whether a level requires that a direction is compatible; False for an unknown level."""
    return any(direction in rule.directions for name, rule in LEVELS.items() if name.value == level)


def _comparison(before: Schema, after: Schema, findings: Mapping[Direction, Sequence[Finding]]) -> SchemaComparison:
    pairs = pair_fields(before, after)
    before_at = {one.before.position.pointer: at for at, one in enumerate(pairs) if one.before is not None}
    after_at = {one.after.position.pointer: at for at, one in enumerate(pairs) if one.after is not None}
    placed: dict[int | None, list[Finding]] = {}
    shown = [one for found in findings.values() for one in found][:FINDINGS_MAX]
    for one in shown:
        placed.setdefault(_place(one, before_at, after_at), []).append(one)
    fields = tuple(_compared(pair, placed.get(at, ())) for at, pair in enumerate(pairs))
    return SchemaComparison(fields, findings, tuple(placed.get(None, ())), len(pairs) >= FIELDS_MAX)


def _compared(pair: FieldPair, findings: Sequence[Finding]) -> ComparedField:
    return ComparedField(field_row(pair), tuple(findings))


def _place(finding: Finding, before_at: Mapping[str, int], after_at: Mapping[str, int]) -> int | None:
    """Returns the index of the row of a finding: that of the field that the other side lacks, or of the innermost
    field that contains the position. None without such a row."""
    problem = finding.incompatibility
    side = problem.reader_side
    if problem.field is not None and not side.is_external:
        rows = after_at if finding.direction is Direction.BACKWARD else before_at
        found = rows.get(problem.field.position.pointer)
        if found is not None:
            return found
    pointer = finding.pointer
    while pointer:
        if pointer in after_at:
            return after_at[pointer]
        pointer = pointer.rpartition("/")[0]
    return None


def table_changes(versions: Sequence[ShownVersion], first: int, last: int) -> TableChanges:
    """Returns the changes that the versions after `first`, up to `last`, make in the columns of a table with all these
    versions.

    Args:
        versions: the subject's versions, ascending.
        first: the lower version number.
        last: the higher version number.

    Raises:
        ChangesUnknown: a version cannot be parsed, or all together are too large.
        LoadSchemaTooLarge: the columns are too large.
    """
    folded = [one for one in versions if one.version <= last]
    if sum(len(one.text) for one in folded) > FOLDED_CHARS_MAX:
        raise ChangesUnknown(f"the versions have more than {FOLDED_CHARS_MAX:,} characters in all")
    state, before = EMPTY, ""
    for one in folded:
        if one.schema is None:
            raise ChangesUnknown(f"version {one.version} cannot be read: {one.problem}")
        state = fold(state, one.version, one.schema)
        if one.version <= first:
            before = state.text
    applied = tuple((one, RULES.get(one.rule, "")) for one in state.applied if first < one.version <= last)
    return TableChanges(column_changes(before, state.text), applied[:FINDINGS_MAX])


def topic_of(loader: LoaderSettings, subject: str) -> str | None:
    """Returns the topic with this subject by the setting `loader.subject`, or None."""
    start, placeholder, end = loader.subject.partition("{topic}")
    is_match = bool(placeholder) and subject.startswith(start) and subject.endswith(end)
    topic = subject[len(start) : len(subject) - len(end)] if is_match else ""
    return topic if topic and loader.subject_of(topic) == subject else None
