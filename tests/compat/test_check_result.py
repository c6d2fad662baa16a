"""Suppressions, the file of known findings, subjects, fingerprints and exit codes: values in, values out."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compat.baseline_file import mark_known, parse_baseline, render_baseline
from headrace.compat.check_result import EXIT_ORDER, CheckResult, Failure, FailureKind
from headrace.compat.errors import InvalidBaselineFile, InvalidSuppression, NoSubject
from headrace.compat.subjects import SubjectRule, SubjectSource, derive_subject
from headrace.compat.suppressions import Suppression, apply_suppressions, parse_suppression
from support.golden import case_lines, golden
from support.schemas.check_results import V1, V3, checked

TODAY = datetime.date(2026, 7, 1)


def file_exists(_: str) -> bool:
    return True


def kinds(*failures: FailureKind) -> tuple[Failure, ...]:
    return tuple(Failure(kind, "f", "m") for kind in failures)


@pytest.mark.parametrize(
    ("check_result", "code"),
    [
        (CheckResult(()), 0),
        (CheckResult((checked(V1, V1),)), 0),
        (CheckResult((checked(),)), 1),
        (CheckResult((), kinds(FailureKind.NOT_REGISTERED)), 1),
        (CheckResult((checked(),), kinds(FailureKind.INVALID)), 3),
        (CheckResult((), kinds(FailureKind.INVALID, FailureKind.UNREADABLE)), 2),
        (CheckResult((), kinds(FailureKind.UNREADABLE, FailureKind.REGISTRY, FailureKind.INVALID)), 4),
    ],
)
def test_the_exit_code_is_that_of_what_leaves_most_in_the_dark(check_result: CheckResult, code: int) -> None:
    assert check_result.exit_code == code
    assert check_result.is_compatible is (code == 0)
    assert set(EXIT_ORDER) == {0, 1, 2, 3, 4}


def test_a_suppressed_problem_does_not_count_and_is_still_there() -> None:
    item = checked()
    wanted = [Suppression("agreed with all readers", rule=rule) for rule in {p.rule for p in item.problems}]
    (marked,), notes = apply_suppressions([item], wanted, TODAY, "the settings")
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
def test_what_a_suppression_covers(suppression: Suppression, covers: bool) -> None:
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
def test_fields_of_items_are_suppressed_as_they_are_written(pattern: str, covers: bool) -> None:
    problem = replace(checked().problems[0], field='field "lines[].parts[].qty"')
    assert Suppression("r", field=pattern).covers(checked(), problem) is covers


def test_names_in_brackets_mean_themselves() -> None:
    item = replace(checked(), file="schemas/[v1]/order.avsc", subject="order[v1]-value")
    assert Suppression("r", path=item.file).covers(item, item.problems[0])
    assert Suppression("r", path="schemas/[v1]").covers(item, item.problems[0])
    assert Suppression("r", subject=item.subject).covers(item, item.problems[0])
    assert derive_subject(SubjectSource(item.file), "topic", [SubjectRule("schemas/[v1]/order.avsc", "x")]) == "x"
    assert derive_subject(SubjectSource("[v1].avsc"), "topic", [SubjectRule("[v1].avsc", "x")]) == "x"


def test_suppressions_end_and_are_told_when_they_match_nothing() -> None:
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


def test_suppressions_of_a_settings_file() -> None:
    table = {"reason": "r", "rule": "X", "expires": TODAY}
    assert parse_suppression(table) == parse_suppression({**table, "expires": "2026-07-01"})


def test_known_findings_do_not_count_until_they_are_gone() -> None:
    item = checked()
    known = parse_baseline(render_baseline([item]))
    (marked,), notes = mark_known([item], known, "known.json", file_exists)
    assert marked.is_compatible
    assert notes == ()
    fixed = replace(item, problems=item.problems[1:])
    _, notes = mark_known([fixed], known, "known.json", file_exists)
    (note,) = notes
    assert re.search(r"\b1 .*known\.json", note)
    assert parse_baseline(render_baseline([marked])) == known, "writing it again keeps what is known"


def test_what_is_known_of_one_file_says_nothing_of_another_with_the_same_subject() -> None:
    old, new = replace(checked(), file="a/order.avsc"), replace(checked(), file="b/order.avsc")
    assert [p.fingerprint for p in old.problems] == [p.fingerprint for p in new.problems]
    known = parse_baseline(render_baseline([old]))
    for items in ([old, new], [new, old], [new]):
        marked, _ = mark_known(items, known, "known.json", file_exists)
        assert {item.file: item.is_compatible for item in marked} == {item.file: item is old for item in items}
    assert len(parse_baseline(render_baseline([old, new]))) == 2 * len(old.problems)
    both, notes = mark_known([old, new], parse_baseline(render_baseline([old, new])), "known.json", file_exists)
    assert (all(item.is_compatible for item in both), notes) == (True, ())


def test_a_file_that_was_moved_takes_along_what_is_known_of_it() -> None:
    old, moved = replace(checked(), file="a/order.avsc"), replace(checked(), file="b/order.avsc")
    third = replace(moved, file="c/order.avsc")
    known = parse_baseline(render_baseline([old]))
    marked, notes = mark_known([moved, third], known, "known.json", lambda file: file != old.file)
    assert [item.is_compatible for item in marked] == [True, False], "one file cannot have been moved to two places"
    assert notes == ()


def test_fingerprints_outlive_lines_versions_and_other_changes() -> None:
    moved = checked(V3.replace("[\n", '[\n\n  {"name": "more", "type": "int", "default": 0},\n', 1))
    fingerprints = {problem.fingerprint for problem in checked().problems}
    assert {problem.fingerprint for problem in moved.problems} == fingerprints
    assert len(fingerprints) == len(checked().problems)
    assert moved.problems[0].line != checked().problems[0].line


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "findings": []}', '{"format": 1, "findings": [1]}'])
def test_bad_baseline_files(text: str) -> None:
    with pytest.raises(InvalidBaselineFile):
        parse_baseline(text)


def test_a_baseline_file_reads_like_a_list() -> None:
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
def test_subjects(path: str, strategy: str, subject: str) -> None:
    rules = [SubjectRule("special/*", "{directory}-{name}")]
    assert derive_subject(SubjectSource(path, "shop.Order"), strategy, rules) == subject


@pytest.mark.parametrize("template", ["{", "{nothing}", "{0}", "{topic.x}", "{topic!z}"])
def test_templates_that_are_none(template: str) -> None:
    with pytest.raises(NoSubject, match=re.escape(template)):
        SubjectRule("*", template)


def test_place_without_record_name_directory_or_template_has_no_subject() -> None:
    with pytest.raises(NoSubject):
        derive_subject(SubjectSource("a.avsc"), "record")
    with pytest.raises(NoSubject):
        derive_subject(SubjectSource("a.avsc", "R"), "topic-record")
    with pytest.raises(NoSubject):
        derive_subject(SubjectSource("a.avsc"), "topic", [SubjectRule("*", "")])


@given(st.text(min_size=1).filter(lambda text: "/" not in text and text not in (".", "..")))
def test_a_topic_is_found_again_in_its_subject(topic: str) -> None:
    if not topic.endswith(("-key", "-value", ".avsc", ".json")):
        assert derive_subject(SubjectSource(f"x/{topic}.avsc"), "topic") == f"{topic}-value"
