"""Each lint on files: `tests/golden/compat/<lint>/<case>/` holds a candidate, an earlier version and the expected
report.

The name of a case starts with `trips` if the lint has a finding, and with `passes` if it barely has no finding; other
lints are disabled. `HEADRACE_REWRITE_GOLDEN=1` rewrites the expected reports; review their diff like code.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from headrace.avro_schema import Schema, parse_schema
from headrace.compat import CompatibilityLevel, Severity, VersionedSchema, check_level
from headrace.compat.catalogue import CATALOGUE, find_catalogue_entry
from headrace.compat.check_result import CheckedSchema, Problem
from headrace.compat.errors import UnknownLint
from headrace.compat.finding import LOGICAL_POLICY, RESERVED_FIELD, SCHEMA_DELETED
from headrace.compat.formats.text import render_checked_schema
from headrace.compat.lints import LINTS, EnabledLint, LintInput, lint_problems, parse_lints
from headrace.compat.rules import RULES
from support.checkout import GOLDEN
from support.golden import golden

CASES = sorted(path.parent for path in GOLDEN.glob("compat/*/*/candidate.avsc"))
SUBJECTS = {"KEY_FIELD_ADDED": "orders-key"}


def schema(path: Path) -> Schema:
    return parse_schema(path.read_text(encoding="utf-8"), source=path.name)


def linted(case: Path) -> LintInput:
    earlier = case / "earlier.avsc"
    versions = [VersionedSchema(1, schema(earlier), "earlier.avsc")] if earlier.exists() else []
    return LintInput(schema(case / "candidate.avsc"), versions, SUBJECTS.get(case.parent.name, "orders-value"))


def test_lint_reports_only_trip_cases() -> None:
    wrong = []
    for case in CASES:
        lint, problems = case.parent.name, found(case.parent.name, linted(case))
        is_complete = all(each.rule == lint and each.line and each.fix and each.excerpt for each in problems)
        if bool(problems) != case.name.startswith("trips") or not is_complete:
            wrong.append((lint, case.name, problems))
    assert wrong == []


def test_case_reports_match_golden_files() -> None:
    texts = {f"{case.relative_to(GOLDEN)}/report.txt": report_of(case) for case in CASES}
    assert texts == {path: golden(path, text) for path, text in texts.items()}


def report_of(case: Path) -> str:
    problems = found(case.parent.name, linted(case))
    checked = CheckedSchema("candidate.avsc", "", "", CompatibilityLevel.BACKWARD, "", (), 0, problems)
    return f"{render_checked_schema(checked)}\n"


def found(name: str, subject: LintInput) -> tuple[Problem, ...]:
    return lint_problems([EnabledLint(LINTS[name], LINTS[name].severity)], subject)


def test_change_lint_cases_are_compatible() -> None:
    cases = [(case, linted(case)) for case in CASES if (case / "earlier.avsc").exists()]
    assert [
        case
        for case, each in cases
        if not check_level(each.candidate, each.earlier, CompatibilityLevel.BACKWARD).is_compatible
    ] == []


def test_every_lint_has_trip_and_pass_cases() -> None:
    kinds = {lint: {case.name.partition("_")[0] for case in CASES if case.parent.name == lint} for lint in LINTS}
    assert [lint for lint, names in kinds.items() if names != {"trips", "passes"}] == []


def test_equal_earlier_version_adds_no_findings() -> None:
    wrong = []
    for lint, case in itertools.product(LINTS, CASES):
        candidate, equal = schema(case / "candidate.avsc"), schema(case / "candidate.avsc")
        without_earlier = found(lint, LintInput(candidate, (), "orders-key"))
        if found(lint, LintInput(candidate, [VersionedSchema(1, equal)], "orders-key")) != without_earlier:
            wrong.append((lint, case))
    assert wrong == []


def test_key_field_lint_ignores_values() -> None:
    case = GOLDEN / "compat" / "KEY_FIELD_ADDED" / "trips"
    earlier = [VersionedSchema(1, schema(case / "earlier.avsc"))]
    assert not found("KEY_FIELD_ADDED", LintInput(schema(case / "candidate.avsc"), earlier, "orders-value"))


def test_recursive_type_is_linted_once() -> None:
    text = (
        '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"], "default": null}, '
        '{"name": "at", "type": {"type": "long", "logicalType": "timestamp-%s"}}]}'
    )
    earlier = [VersionedSchema(1, parse_schema(text % "millis"))]
    problems = found("LOGICAL_TYPE_CHANGED", LintInput(parse_schema(text % "micros"), earlier))
    assert [problem.field for problem in problems] == ['field "at"']


def test_types_of_other_files_are_not_linted() -> None:
    header = parse_schema('{"type": "record", "name": "Header", "fields": [{"name": "date", "type": "int"}]}')
    text = '{"type": "record", "name": "R", "doc": "d", "fields": [{"name": "h", "type": "Header", "doc": "d"}]}'
    candidate = parse_schema(text, references=[header])
    assert not lint_problems(parse_lints(["doc-missing", "hive-reserved-word", "hive-column"]), LintInput(candidate))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], []),
        (["doc-missing"], [("DOC_MISSING", "warning")]),
        (["Doc_Missing=error"], [("DOC_MISSING", "error")]),
        (["doc-missing", "DOC_MISSING=off"], []),
        (["all=off", "naming", "doc-missing"], [("DOC_MISSING", "warning"), ("NAMING", "warning")]),
    ],
)
def test_parse_lints_enables_named_lints(words: list[str], expected: list[tuple[str, str]]) -> None:
    assert [(row.lint.id, row.severity.value) for row in parse_lints(words)] == expected


def test_all_enables_every_lint_and_later_words_override() -> None:
    chosen = parse_lints(["all", "naming=off", "doc-missing=error"])
    assert [row.lint.id for row in chosen] == [name for name in LINTS if name != "NAMING"]
    assert chosen[0].severity is Severity.ERROR


@pytest.mark.parametrize("word", ["", "TYPE_MISMATCH", "naming=fatal", "naming=", "doc"])
def test_unknown_lint_error_lists_expected_words(word: str) -> None:
    with pytest.raises(UnknownLint) as refused:
        parse_lints([word])
    assert refused.value.text == word
    assert {"DOC_MISSING", "naming=error"} & set(refused.value.expected)


def test_rules_and_lints_have_different_names() -> None:
    beyond_avro = {SCHEMA_DELETED, LOGICAL_POLICY, RESERVED_FIELD}
    assert CATALOGUE.keys() == {rule.id.value for rule in RULES.values()} | beyond_avro | LINTS.keys()
    assert len(CATALOGUE) == len(RULES) + len(beyond_avro) + len(LINTS)
    assert [row.id for row in CATALOGUE.values() if not row.purpose or not row.rationale] == []


def test_find_catalogue_entry_ignores_case_and_hyphens() -> None:
    named = find_catalogue_entry("hive-column")
    assert named is not None
    assert (named.id, named.is_lint) == ("HIVE_COLUMN", True)
    assert find_catalogue_entry("nothing") is None
