"""Each lint on files: `tests/golden/compat/<lint>/<case>/` holds a candidate, an earlier version and what is told.

A case is called `trips…` when the lint has something to say of the candidate, and `passes…` when it just has not; the
other lints are not asked. `HEADRACE_REWRITE_GOLDEN=1` writes the expected reports anew; read the difference like code.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.avro_schema import Schema, parse_schema
from headrace.compat import CompatibilityLevel, Severity, VersionedSchema, check_level
from headrace.compat.catalogue import CATALOGUE, find_described
from headrace.compat.errors import UnknownLint
from headrace.compat.finding import LOGICAL_POLICY, RESERVED_FIELD, SCHEMA_DELETED
from headrace.compat.formats.text import checked_text
from headrace.compat.lints import LINTS, ChosenLint, Linted, lint_problems, parse_lints
from headrace.compat.outcome import Checked, Problem
from headrace.compat.rules import RULES
from support.checkout import GOLDEN

GOLDEN = GOLDEN / "compat"
CASES = sorted(path.parent for path in GOLDEN.glob("*/*/candidate.avsc"))
REWRITE = os.environ.get("HEADRACE_REWRITE_GOLDEN") == "1"
SUBJECTS = {"KEY_FIELD_ADDED": "orders-key"}


def schema(path: Path) -> Schema:
    return parse_schema(path.read_text(encoding="utf-8"), source=path.name)


def linted(case: Path) -> Linted:
    earlier = case / "earlier.avsc"
    versions = [VersionedSchema(1, schema(earlier), "earlier.avsc")] if earlier.exists() else []
    return Linted(schema(case / "candidate.avsc"), versions, SUBJECTS.get(case.parent.name, "orders-value"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_case(case: Path) -> None:
    problems = found(case.parent.name, linted(case))
    assert bool(problems) == case.name.startswith("trips")
    assert {problem.rule for problem in problems} <= {case.parent.name}
    assert all(problem.line and problem.fix and problem.excerpt for problem in problems)

    checked = Checked("candidate.avsc", "", "", CompatibilityLevel.BACKWARD, "", (), 0, problems)
    text = f"{checked_text(checked)}\n"
    report = case / "report.txt"
    if REWRITE:
        report.write_text(text, encoding="utf-8")
    assert text == report.read_text(encoding="utf-8")


def found(name: str, subject: Linted) -> tuple[Problem, ...]:
    return lint_problems([ChosenLint(LINTS[name], LINTS[name].severity)], subject)


@pytest.mark.parametrize(
    "case", [case for case in CASES if (case / "earlier.avsc").exists()], ids=lambda case: case.name
)
def test_lints_of_changes_begin_where_avro_is_content(case: Path) -> None:
    subject = linted(case)
    assert check_level(subject.candidate, subject.earlier, CompatibilityLevel.BACKWARD).is_compatible


@pytest.mark.parametrize("lint", LINTS)
def test_every_lint_has_a_case_that_trips_it_and_one_that_just_does_not(lint: str) -> None:
    assert {case.name.partition("_")[0] for case in CASES if case.parent.name == lint} == {"trips", "passes"}


@pytest.mark.parametrize("lint", LINTS)
def test_a_schema_beside_itself_has_no_changes(lint: str) -> None:
    for case in CASES:
        candidate, again = schema(case / "candidate.avsc"), schema(case / "candidate.avsc")
        alone = found(lint, Linted(candidate, (), "orders-key"))
        assert found(lint, Linted(candidate, [VersionedSchema(1, again)], "orders-key")) == alone


def test_values_may_get_fields_that_keys_may_not() -> None:
    case = GOLDEN / "KEY_FIELD_ADDED" / "trips"
    earlier = [VersionedSchema(1, schema(case / "earlier.avsc"))]
    assert not found("KEY_FIELD_ADDED", Linted(schema(case / "candidate.avsc"), earlier, "orders-value"))


def test_types_that_contain_themselves_are_looked_at_once() -> None:
    text = (
        '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"], "default": null}, '
        '{"name": "at", "type": {"type": "long", "logicalType": "timestamp-%s"}}]}'
    )
    earlier = [VersionedSchema(1, parse_schema(text % "millis"))]
    problems = found("LOGICAL_TYPE_CHANGED", Linted(parse_schema(text % "micros"), earlier))
    assert [problem.field for problem in problems] == ['field "at"']


def test_types_of_other_files_are_left_to_these() -> None:
    header = parse_schema('{"type": "record", "name": "Header", "fields": [{"name": "date", "type": "int"}]}')
    text = '{"type": "record", "name": "R", "doc": "d", "fields": [{"name": "h", "type": "Header", "doc": "d"}]}'
    candidate = parse_schema(text, references=[header])
    assert not lint_problems(parse_lints(["doc-missing", "hive-reserved-word", "hive-column"]), Linted(candidate))


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
def test_lints_are_chosen_by_words(words: list[str], expected: list[tuple[str, str]]) -> None:
    assert [(row.lint.id, row.severity.value) for row in parse_lints(words)] == expected


def test_all_are_chosen_and_some_changed() -> None:
    chosen = parse_lints(["all", "naming=off", "doc-missing=error"])
    assert [row.lint.id for row in chosen] == [name for name in LINTS if name != "NAMING"]
    assert chosen[0].severity is Severity.ERROR


@pytest.mark.parametrize("word", ["", "TYPE_MISMATCH", "naming=fatal", "naming=", "doc"])
def test_other_words_are_refused_with_what_was_expected(word: str) -> None:
    with pytest.raises(UnknownLint, match="expected one of"):
        parse_lints([word])


def test_rules_and_lints_have_different_names() -> None:
    beyond_avro = {SCHEMA_DELETED, LOGICAL_POLICY, RESERVED_FIELD}
    assert CATALOGUE.keys() == {rule.id.value for rule in RULES.values()} | beyond_avro | LINTS.keys()
    assert len(CATALOGUE) == len(RULES) + len(beyond_avro) + len(LINTS)
    assert all(row.purpose.endswith(".") and row.why.endswith(".") for row in CATALOGUE.values())


def test_what_is_found_can_be_looked_up() -> None:
    named = find_described("hive-column")
    assert named is not None
    assert (named.id, named.is_lint) == ("HIVE_COLUMN", True)
    assert find_described("nothing") is None
