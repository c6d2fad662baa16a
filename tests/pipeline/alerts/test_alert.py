"""The states of alerts by a table of evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.pipeline.alerts.alert import REOPEN_MS, SUBJECT_CHARS_MAX, TEXT_CHARS_MAX, Alert, next_alerts
from headrace.pipeline.alerts.rule import rules_of
from headrace.pipeline.status.finding import SourceReport, StatusFinding, finding

MINUTE_MS = 60_000
RULES = rules_of([{"kind": "data-lost", "hold": "0m"}])
HELD = "audit-missing"  # hold 20 minutes, keep firing 30
AT_ONCE = "data-lost"  # hold 0, keep firing 10


def evaluated(
    alerts: Sequence[Alert], findings: Sequence[StatusFinding], minute: int, checked: bool = True
) -> list[Alert]:
    """Returns all alerts after an evaluation."""
    report = SourceReport(findings=tuple(findings), is_checked=checked, source="audit")
    changes = next_alerts(alerts, [report], RULES, minute * MINUTE_MS)
    by_id = {alert.id: alert for alert in alerts if alert.id not in changes.deleted}
    by_id.update({alert.id: alert for alert in changes.changed})
    return list(by_id.values())


def states(kind: str, steps: str) -> list[str]:
    """Returns the states after each step: minute and `+` (found), `-` (not found) or `?` (not checked)."""
    alerts: list[Alert] = []
    seen = []
    for step in steps.split():
        findings = [finding(kind, "orders", "3 messages")] if step[-1] == "+" else []
        alerts = evaluated(alerts, findings, int(step[:-1]), step[-1] != "?")
        seen.append(" ".join(f"{one.state}{one.firings}" for one in alerts))
    return seen


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        (HELD, "0+ 19+ 20+", ["pending0", "pending0", "firing1"]),
        (HELD, "0+ 10- 20+ 30+", ["pending0", "", "pending0", "pending0"]),
        (HELD, "0+ 20? 30+", ["pending0", "pending0", "firing1"]),
        (AT_ONCE, "0+ 1- 10- 11-", ["firing1", "firing1", "firing1", "resolved1"]),
        # Flapping within the keep-firing time is no change.
        (AT_ONCE, "0+ 1- 9+ 10- 19- 20-", ["firing1", "firing1", "firing1", "firing1", "firing1", "resolved1"]),
        # A source that was not checked resolves nothing, and does not count as clean.
        (AT_ONCE, "0+ 60? 61- 70- 71-", ["firing1", "firing1", "firing1", "firing1", "resolved1"]),
        (AT_ONCE, "0+ 1- 11- 71+", ["firing1", "firing1", "resolved1", "firing2"]),
        (AT_ONCE, "0+ 1- 11- 72+", ["firing1", "firing1", "resolved1", "resolved1 firing1"]),
        # An alert that is opened again fires without its hold time.
        (HELD, "0+ 20+ 21- 51- 60+", ["pending0", "firing1", "firing1", "resolved1", "firing2"]),
        # The clock is set back.
        (HELD, "600+ 0+ 20+", ["pending0", "pending0", "firing1"]),
        (AT_ONCE, "600+ 601- 0- 10-", ["firing1", "firing1", "firing1", "resolved1"]),
    ],
)
def test_states(kind: str, steps: str, expected: list[str]) -> None:
    assert states(kind, steps) == expected


def test_an_open_alert_precedes_a_resolved_one_after_the_clock_was_set_back() -> None:
    alerts: list[Alert] = []
    for step in ("100+", "101-", "111-", "300+", "0+", "1+"):
        findings = [finding(AT_ONCE, "orders", "lost")] if step[-1] == "+" else []
        alerts = evaluated(alerts, findings, int(step[:-1]))
    assert [(one.state, one.firings) for one in alerts] == [("resolved", 1), ("firing", 1)]


def test_a_reopened_alert_has_the_same_id_and_a_later_one_another() -> None:
    found = [finding(AT_ONCE, "orders", "lost")]
    (first,) = evaluated([], found, 0)
    (resolved,) = evaluated(evaluated([first], [], 1), [], 11)
    assert resolved.resolved_ms == 11 * MINUTE_MS
    (again,) = evaluated([resolved], found, 11 + REOPEN_MS // MINUTE_MS)
    assert (again.id, again.resolved_ms) == (first.id, None)
    later = evaluated([resolved], found, 12 + REOPEN_MS // MINUTE_MS)
    assert len({one.id for one in later}) == 2
    assert len({one.fingerprint for one in later}) == 1


def test_identity_of_a_finding_is_its_subject_unless_it_has_another() -> None:
    (first,) = evaluated([], [finding(AT_ONCE, "orders", "1 message", identity="i1")], 0)
    (same,) = evaluated([first], [finding(AT_ONCE, "orders, clicks", "2 messages", identity="i1")], 1)
    assert (same.id, same.problem, same.opened_ms, same.seen_ms) == (first.id, "2 messages", 0, MINUTE_MS)
    assert len(evaluated([first], [finding(AT_ONCE, "orders", "1 message")], 1)) == 2


def test_start_is_that_of_the_finding_if_it_is_known() -> None:
    (alert,) = evaluated([], [finding(AT_ONCE, "orders", "lost", since_ms=5)], 1)
    assert (alert.since_ms, alert.opened_ms) == (5, MINUTE_MS)


def test_a_rule_without_alerts_resolves_open_ones_at_once() -> None:
    found = [finding(AT_ONCE, "orders", "lost"), finding(HELD, "orders", "lost")]
    alerts = evaluated([], found, 0)
    off = rules_of([{"kind": "*", "severity": "none"}])
    changes = next_alerts(alerts, [SourceReport(findings=tuple(found), source="audit")], off, MINUTE_MS)
    assert [(one.kind, one.state) for one in changes.changed] == [(AT_ONCE, "resolved")]
    assert changes.deleted == tuple(one.id for one in alerts if one.kind == HELD)


def test_texts_are_masked_and_cut() -> None:
    problem = "cannot reach https://user:geheim@example.org\nnow " + "x y " * 5000
    (alert,) = evaluated([], [finding(AT_ONCE, "t" * 600, problem)], 0)
    assert "geheim" not in alert.problem
    assert "\n" not in alert.problem
    assert len(alert.problem) == TEXT_CHARS_MAX + 1
    assert len(alert.subject) == SUBJECT_CHARS_MAX
