"""Suppressions, baseline files, subjects, fingerprints and exit codes."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.compat.baseline_file import mark_known, parse_baseline, render_baseline
from headrace.compat.check_result import (
    EXIT_ORDER,
    CompatCheckResult,
    Failure,
    FailureKind,
    add_fingerprints,
    compute_fingerprint,
)
from headrace.compat.errors import InvalidBaselineFile, InvalidSuppression, NoSubject
from headrace.compat.file_names import subject_file_name
from headrace.compat.subjects import SubjectRule, SubjectSource, derive_subject
from headrace.compat.suppressions import Suppression, apply_suppressions, parse_suppression
from support.golden import case_lines, golden
from support.schemas.check_results import V1, V3, checked

TODAY = datetime.date(2026, 7, 1)


def file_exists(_: str) -> bool:
    return True


def failures_of_kinds(*failures: FailureKind) -> tuple[Failure, ...]:
    return tuple(Failure(kind, "f", "m") for kind in failures)


@pytest.mark.parametrize(
    ("check_result", "code"),
    [
        (CompatCheckResult(()), 0),
        (CompatCheckResult((checked(V1, V1),)), 0),
        (CompatCheckResult((checked(),)), 1),
        (CompatCheckResult((), failures_of_kinds(FailureKind.NOT_REGISTERED)), 1),
        (CompatCheckResult((checked(),), failures_of_kinds(FailureKind.INVALID)), 3),
        (CompatCheckResult((), failures_of_kinds(FailureKind.INVALID, FailureKind.UNREADABLE)), 2),
        (
            CompatCheckResult((), failures_of_kinds(FailureKind.UNREADABLE, FailureKind.REGISTRY, FailureKind.INVALID)),
            4,
        ),
    ],
)
def test_exit_code_is_that_of_the_most_severe_failure(check_result: CompatCheckResult, code: int) -> None:
    assert check_result.exit_code == code
    assert check_result.is_compatible is (code == 0)
    assert set(EXIT_ORDER) == {0, 1, 2, 3, 4}


def test_suppressed_problem_is_listed_but_not_blocking() -> None:
    item = checked()
    suppressions = [Suppression("agreed with all readers", rule=rule) for rule in {p.rule for p in item.problems}]
    (marked,), notes = apply_suppressions([item], suppressions, TODAY, "the settings")
    assert marked.is_compatible
    assert notes == ()
    assert [problem.suppressed.reason for problem in marked.problems if problem.suppressed] == [
        "agreed with all readers"
    ] * len(item.problems)


@pytest.mark.parametrize(
    ("suppression", "covers"),
    [
        (Suppression("r", field="id"), True),
        (Suppression("r", field="i?", rule="TYPE_*"), True),
        (Suppression("r", field="rate", rule="TYPE_*"), False),
        (Suppression("r", path="schemas"), True),
        (Suppression("r", path="./schemas/*.avsc"), True),
        (Suppression("r", path="schema"), False),
        (Suppression("r", subject="order-*"), True),
        (Suppression("r", subject="order"), False),
    ],
)
def test_suppression_matches_field_rule_path_and_subject(suppression: Suppression, covers: bool) -> None:
    item = checked()
    problem = next(problem for problem in item.problems if problem.rule == "TYPE_MISMATCH")
    assert suppression.covers(item, problem) is covers


@pytest.mark.parametrize(
    ("pattern", "covers"),
    [
        ("lines[].parts[].qty", True),
        ("lines[].*", True),
        ("lines[].parts[].q[st]y", True),
        ("*[].qty", True),
        ("lines[].parts[].q[ab]y", False),
        ("lines[].qty", False),
        ("parts", False),
    ],
)
def test_suppression_field_pattern_with_array_items(pattern: str, covers: bool) -> None:
    problem = replace(checked().problems[0], field='field "lines[].parts[].qty"')
    assert Suppression("r", field=pattern).covers(checked(), problem) is covers


def test_brackets_in_names_match_literally() -> None:
    item = replace(checked(), file="schemas/[v1]/order.avsc", subject="order[v1]-value")
    assert Suppression("r", path=item.file).covers(item, item.problems[0])
    assert Suppression("r", path="schemas/[v1]").covers(item, item.problems[0])
    assert Suppression("r", subject=item.subject).covers(item, item.problems[0])
    assert derive_subject(SubjectSource(item.file), "topic", [SubjectRule("schemas/[v1]/order.avsc", "x")]) == "x"
    assert derive_subject(SubjectSource("[v1].avsc"), "topic", [SubjectRule("[v1].avsc", "x")]) == "x"


def test_expired_and_unused_suppressions_are_reported() -> None:
    item = checked()
    ended = Suppression("r", path="schemas", expires=TODAY - datetime.timedelta(days=1))
    (marked,), notes = apply_suppressions([item], [ended, Suppression("r", path="elsewhere")], TODAY, "headrace.toml")
    assert not marked.is_compatible
    ended_note, unused_note = notes
    assert re.search(rf"\bschemas\b.*\b2026-06-30\b.*\b{len(item.problems)}\b", ended_note)
    assert re.search(r"\belsewhere\b.*\bheadrace\.toml\b", unused_note)
    (marked,), _ = apply_suppressions([item], [replace(ended, expires=TODAY)], TODAY, "headrace.toml")
    assert marked.is_compatible
    assert "2026-07-01" in str(marked.problems[0].suppressed)


def test_invalid_suppressions() -> None:
    tables: tuple[dict[str, object], ...] = (
        {},
        {"rule": "X", "reason": " "},
        {"reason": "r"},
        {"reason": "r", "rules": "X"},
        {"reason": "r", "rule": 1},
        {"reason": "r", "rule": "X", "expires": "soon"},
        {"reason": "r", "rule": "X", "expires": 3},
    )
    errors = []
    for table in tables:
        with pytest.raises(InvalidSuppression) as refused:
            parse_suppression(table)
        errors.append((table, refused.value))
    lines = case_lines(errors)
    assert lines == golden("compat/invalid_suppressions.txt", lines)


def test_parse_suppression_accepts_date_or_text() -> None:
    table = {"reason": "r", "rule": "X", "expires": TODAY}
    assert parse_suppression(table) == parse_suppression({**table, "expires": "2026-07-01"})


def test_known_findings_are_suppressed_and_reported_when_fixed() -> None:
    item = checked()
    known = parse_baseline(render_baseline([item]))
    (marked,), notes = mark_known([item], known, "known.json", file_exists)
    assert marked.is_compatible
    assert notes == ()
    fixed = replace(item, problems=item.problems[1:])
    _, notes = mark_known([fixed], known, "known.json", file_exists)
    (note,) = notes
    assert re.search(r"\b1 .*known\.json", note)
    assert parse_baseline(render_baseline([marked])) == known, "rewriting the file preserves known findings"


def test_known_findings_apply_per_file_with_same_subject() -> None:
    old, new = replace(checked(), file="a/order.avsc"), replace(checked(), file="b/order.avsc")
    assert [p.fingerprint for p in old.problems] == [p.fingerprint for p in new.problems]
    known = parse_baseline(render_baseline([old]))
    for items in ([old, new], [new, old], [new]):
        marked, _ = mark_known(items, known, "known.json", file_exists)
        assert {item.file: item.is_compatible for item in marked} == {item.file: item is old for item in items}
    assert len(parse_baseline(render_baseline([old, new]))) == 2 * len(old.problems)
    both, notes = mark_known([old, new], parse_baseline(render_baseline([old, new])), "known.json", file_exists)
    assert (all(item.is_compatible for item in both), notes) == (True, ())


def test_known_findings_follow_a_moved_file() -> None:
    old, moved = replace(checked(), file="a/order.avsc"), replace(checked(), file="b/order.avsc")
    third = replace(moved, file="c/order.avsc")
    known = parse_baseline(render_baseline([old]))
    marked, notes = mark_known([moved, third], known, "known.json", lambda file: file != old.file)
    assert [item.is_compatible for item in marked] == [True, False], "one file cannot have been moved to two places"
    assert notes == ()


def test_fingerprints_ignore_lines_and_other_changes() -> None:
    moved = checked(V3.replace("[\n", '[\n\n  {"name": "more", "type": "int", "default": 0},\n', 1))
    fingerprints = {problem.fingerprint for problem in checked().problems}
    assert {problem.fingerprint for problem in moved.problems} == fingerprints
    assert len(fingerprints) == len(checked().problems)
    assert moved.problems[0].line != checked().problems[0].line


def test_problem_of_a_definition_is_reported_where_the_type_is_defined() -> None:
    """Other problems are reported where the type is used."""

    def text(*types: str) -> str:
        fields = [f'{{"name": "{name}", "type": {kind}}}' for name, kind in zip("abc", types, strict=True)]
        return '{"type": "record", "name": "R", "fields": [\n' + ",\n".join(fields) + "\n]}"

    fixed = '{"type": "fixed", "name": "F", "size": 4}'
    problems = checked(text(fixed, '"F"', '"F"'), text('"int"', fixed.replace("4", "8"), '"int"')).problems
    assert {(problem.rule, problem.pointer, problem.line) for problem in problems} == {
        ("TYPE_MISMATCH", "/fields/0/type", 2),
        ("FIXED_SIZE_MISMATCH", "/fields/0/type", 2),
        ("TYPE_MISMATCH", "/fields/2/type", 4),
    }


def test_only_further_equal_problems_are_numbered() -> None:
    """If the first were numbered, every fingerprint in the baseline files of users would change."""
    item = checked()
    problem = replace(item.problems[0], fingerprint="")
    first, second, third = add_fingerprints(replace(item, problems=(problem,) * 3)).problems
    assert first.fingerprint == compute_fingerprint(item.subject or item.file, problem)
    assert len({first.fingerprint, second.fingerprint, third.fingerprint}) == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "findings": []}', '{"format": 1, "findings": [1]}'])
def test_invalid_baseline_files_are_refused(text: str) -> None:
    with pytest.raises(InvalidBaselineFile):
        parse_baseline(text)


def test_baseline_file_lists_findings() -> None:
    document = json.loads(render_baseline([checked()]))
    assert document["format"] == 1
    assert set(document["findings"][0]) == {"fingerprint", "file", "subject", "rule", "sentence"}


@pytest.mark.parametrize(
    ("path", "strategy", "subject"),
    [
        ("schemas/orders.avsc", "topic", "orders-value"),
        ("orders-value.avsc", "topic", "orders-value"),
        ("orders-key.avsc", "topic", "orders-key"),
        ("a.b.avsc", "topic", "a.b-value"),
        ("orders.avsc", "record", "shop.Order"),
        ("orders/v1.avsc", "topic-record", "orders-shop.Order"),
        ("orders.avsc", "file", "orders"),
        ("special/orders.avsc", "topic", "special-Order"),
    ],
)
def test_derive_subject(path: str, strategy: str, subject: str) -> None:
    rules = [SubjectRule("special/*", "{directory}-{name}")]
    assert derive_subject(SubjectSource(path, "shop.Order"), strategy, rules) == subject


@pytest.mark.parametrize("template", ["{", "{nothing}", "{0}", "{topic.x}", "{topic!z}"])
def test_invalid_subject_templates_are_refused(template: str) -> None:
    with pytest.raises(NoSubject, match=re.escape(template)):
        SubjectRule("*", template)


def test_subject_needs_record_name_directory_and_template() -> None:
    with pytest.raises(NoSubject):
        derive_subject(SubjectSource("a.avsc"), "record")
    with pytest.raises(NoSubject):
        derive_subject(SubjectSource("a.avsc", "R"), "topic-record")
    with pytest.raises(NoSubject):
        derive_subject(SubjectSource("a.avsc"), "topic", [SubjectRule("*", "")])


@given(st.text(min_size=1).filter(lambda text: not {"/", "%"} & set(text) and text not in (".", "..")))
def test_topic_strategy_appends_value(topic: str) -> None:
    if not topic.endswith(("-key", "-value", ".avsc", ".json")):
        assert derive_subject(SubjectSource(f"x/{topic}.avsc"), "topic") == f"{topic}-value"


@example("x" * 240, False, 1)
@example("x" * 120, False, 3)
@example("x" * 200, False, 5)
@example("a.", False, 1)
@example("Nul.x", False, 1)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=200), st.booleans(), st.integers(1, 5))
def test_file_names_of_subjects_are_valid_and_decoded_again(subject: str, encodes_letters: bool, times: int) -> None:
    name = subject_file_name(subject * times, encodes_letters=encodes_letters)
    for part in f"{name}.avsc".split("/"):
        assert len(part.encode()) <= 255
        assert part[0] not in ". " and part.isascii()
        assert part.removesuffix(".avsc")[-1] not in ". "
        assert not part.lower().startswith("nul.")
    for path, template in ((f"released/{name}.avsc", "{stem}"), (f"{name}/2.avsc", "{directory}")):
        rules = [SubjectRule("*", f"x{template}")]
        if subject:
            assert derive_subject(SubjectSource(path), "file", rules) == f"x{subject * times}"


@pytest.mark.parametrize("name", [f"{subject_file_name('')}.avsc", ".avsc"])
def test_file_with_an_empty_name_has_no_subject(name: str) -> None:
    for strategy in ("topic", "file"):
        with pytest.raises(NoSubject):
            derive_subject(SubjectSource(f"x/{name}", "R"), strategy)


def test_names_of_long_subjects_are_divided() -> None:
    assert subject_file_name("x" * 240) == "x" * 240
    assert subject_file_name("x" * 481) == f"{'x' * 240}%_/{'x' * 240}%_/x"


@pytest.mark.parametrize("name", ["50%.avsc", "a%2.avsc", "%FF.avsc", "a%zz.avsc"])
def test_file_name_that_is_not_percent_encoded_is_the_subject(name: str) -> None:
    assert derive_subject(SubjectSource(f"x/{name}"), "file") == name.removesuffix(".avsc")
