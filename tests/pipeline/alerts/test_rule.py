"""Default rules of alerts, and their changes by the settings."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.pipeline.alerts.errors import InvalidAlertSettings
from headrace.pipeline.alerts.rule import BY_STATUS, RULES, AlertRule, AlertSeverity, default_rule, rules_of
from headrace.pipeline.status.finding import KINDS

MINUTE_MS = 60_000


def test_every_kind_of_findings_has_a_rule() -> None:
    assert list(rules_of(())) == list(KINDS)
    assert set(RULES) <= set(KINDS)


def test_kinds_without_a_row_have_the_rule_of_their_status_severity() -> None:
    for kind in set(KINDS) - set(RULES):
        severity, hold, keep = BY_STATUS[KINDS[kind].severity]
        assert default_rule(kind) == AlertRule(kind, severity, hold * MINUTE_MS, keep * MINUTE_MS)


@pytest.mark.parametrize(
    ("kind", "severity", "hold_minutes", "keep_minutes"),
    [
        ("audit-missing", "page", 20, 30),
        ("audit-differs", "ticket", 20, 30),
        ("data-lost", "page", 0, 10),
        ("data-expires-soon", "page", 0, 10),
        ("load-late", "page", 0, 5),
        ("load-failed", "page", 30, 5),
        ("lag-grows", "ticket", 0, 20),
        ("load-imbalanced", "ticket", 0, 20),
        ("topic-held-back", "ticket", 20, 20),
        ("disk-fills", "ticket", 60, 60),
        ("database-down", "page", 5, 10),
        ("part-starting", "none", 0, 0),
    ],
)
def test_default_rules(kind: str, severity: str, hold_minutes: int, keep_minutes: int) -> None:
    expected = AlertRule(kind, AlertSeverity(severity), hold_minutes * MINUTE_MS, keep_minutes * MINUTE_MS)
    assert default_rule(kind) == expected


def test_the_first_table_with_a_key_counts_for_each_key() -> None:
    rules = rules_of(
        [
            {"kind": "audit-missing", "hold": "1h"},
            {"kind": "audit-*", "hold": "2h", "severity": "ticket", "keep_firing": "90s"},
            {"kind": "disk-low", "severity": "none"},
        ]
    )
    assert rules["audit-missing"] == AlertRule("audit-missing", AlertSeverity.TICKET, 3_600_000, 90_000)
    assert rules["audit-differs"] == AlertRule("audit-differs", AlertSeverity.TICKET, 7_200_000, 90_000)
    assert rules["disk-low"].severity == AlertSeverity.NONE
    assert rules["data-lost"] == default_rule("data-lost")


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"severity": "page"}, "number 1"),
        ({"kind": "audit-mising"}, "did you mean audit-missing"),
        ({"kind": "audit-missing", "severity": "critical"}, "page, ticket, none"),
        ({"kind": "audit-missing", "hold": 20}, "hold"),
        ({"kind": "audit-missing", "keep": "20m"}, "keep_firing"),
        ({"kind": "audit-missing"}, "number 1 changes nothing; set severity, hold"),
        ({"kind": ["audit-missing"]}, "there is no kind"),
        ({"kind": "audit-missing", "severity": ["page"]}, "severity"),
    ],
)
def test_invalid_tables_are_rejected(table: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidAlertSettings, match=text):
        rules_of([table])
