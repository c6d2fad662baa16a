"""The rules: which findings become alerts, with which severity, and for how long a problem must be present or absent.
Pure.

A finding without a row in `RULES` has the rule of its status severity. `[[alerts.rules]]` in the settings overrides
single values.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from headrace.pipeline.alerts.errors import InvalidAlertSettings
from headrace.pipeline.status.finding import KINDS, StatusSeverity
from headrace.settings.values import Duration

MINUTE_MS: Final = 60_000


class AlertSeverity(StrEnum):
    """`page`: requires action now. `ticket`: requires action on the next working day. `none`: no alert."""

    PAGE = "page"
    TICKET = "ticket"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """The rule of one kind of findings.

    Attributes:
        kind: name of a row of `KINDS` of the status.
        hold_ms: a finding fires after it was present for this time, as `for` of a Prometheus rule.
        keep_firing_ms: an alert is resolved after its finding was absent for this time, as `keep_firing_for`.
    """

    kind: str
    severity: AlertSeverity
    hold_ms: int
    keep_firing_ms: int


PAGE, TICKET, NONE = AlertSeverity.PAGE, AlertSeverity.TICKET, AlertSeverity.NONE

BY_STATUS: Final = {StatusSeverity.FAILURE: (PAGE, 5, 10), StatusSeverity.ATTENTION: (TICKET, 10, 10)}
"""Severity, hold time and keep-firing time in minutes of kinds without a row in `RULES`."""

_THREE_WINDOWS: Final = 30
"""Minutes. A window of the audit that is complete again may differ again with the next counts."""

RULES: Final[Mapping[str, AlertRule]] = {
    kind: AlertRule(kind, severity, hold * MINUTE_MS, keep * MINUTE_MS)
    for kind, severity, hold, keep in (
        # Messages are lost, or will be soon: no waiting, except for the audit, whose next counts may explain a window.
        ("data-lost", PAGE, 0, 10),
        ("data-expires-soon", PAGE, 0, 10),
        ("disk-full", PAGE, 0, 10),
        ("disk-fills", TICKET, 60, 60),
        ("audit-missing", PAGE, 20, _THREE_WINDOWS),
        ("audit-extra", TICKET, 20, _THREE_WINDOWS),
        # Producers that repeat requests are normal.
        ("audit-few-extra", NONE, 0, 0),
        ("audit-differs", TICKET, 20, _THREE_WINDOWS),
        ("audit-silent", PAGE, 0, _THREE_WINDOWS),
        ("audit-incomplete", PAGE, 0, 10),
        # The finding exists only after three intervals without a load.
        ("load-late", PAGE, 0, 5),
        ("load-stuck", PAGE, 0, 5),
        # Three loads at the default interval.
        ("load-failed", PAGE, 30, 5),
        ("lag-grows", TICKET, 0, 20),
        ("load-imbalanced", TICKET, 0, 20),
        ("load-registry-unavailable", PAGE, 20, 5),
        ("load-registry-refused", PAGE, 20, 5),
        # Two loads at the default interval.
        ("topic-held-back", TICKET, 20, 20),
        ("topic-waiting", TICKET, 20, 20),
        ("load-problems", TICKET, 20, 20),
        ("not-applied", TICKET, 20, 20),
        # A restart is normal, so it alone is no alert.
        ("part-starting", NONE, 0, 0),
        ("part-restarted", TICKET, 0, 60),
        # No other alert of the audit can be relied on.
        ("audit-old", PAGE, 5, 10),
        # Notes that need no action soon.
        ("data-skipped", TICKET, 0, 60),
        ("files-unchecked", TICKET, 60, 60),
        # An evaluation after a pause finds the pause itself, and so does the first delivery after an outage.
        ("alerts-late", TICKET, 10, 5),
        ("alerts-undelivered", TICKET, 10, 5),
    )
}
"""The default rules that differ from `BY_STATUS`, by kind."""

RULE_KEYS: Final = ("kind", "severity", "hold", "keep_firing")


def default_rule(kind: str) -> AlertRule:
    severity, hold, keep = BY_STATUS[KINDS[kind].severity]
    return RULES.get(kind) or AlertRule(kind, severity, hold * MINUTE_MS, keep * MINUTE_MS)


def rules_of(tables: Sequence[Mapping[str, Any]]) -> Mapping[str, AlertRule]:
    """Returns the rule of each kind of findings.

    Args:
        tables: the `[[alerts.rules]]` of the settings. Their `kind` is a name or a pattern such as
            `audit-*`. For each key, the first matching table with the key counts.

    Raises:
        InvalidAlertSettings: a table has an unknown key or an invalid value.
    """
    changes = [_change(table, number) for number, table in enumerate(tables, 1)]
    rules = {}
    for kind in KINDS:
        rule = default_rule(kind)
        for pattern, values in reversed(changes):
            if fnmatchcase(kind, pattern):
                rule = dataclasses.replace(rule, **values)
        rules[kind] = rule
    return rules


def _change(table: Mapping[str, Any], number: int) -> tuple[str, dict[str, Any]]:
    """Returns the pattern of a table and the values that it sets."""
    where = f"[[alerts.rules]] number {number}"
    unknown = sorted(set(table) - set(RULE_KEYS))
    if unknown:
        raise InvalidAlertSettings(f"unknown key {unknown[0]!r} in {where}; known: {', '.join(RULE_KEYS)}")
    pattern = table.get("kind")
    if not isinstance(pattern, str) or not any(fnmatchcase(kind, pattern) for kind in KINDS):
        near = difflib.get_close_matches(str(pattern), KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see headrace alerts rules"
        raise InvalidAlertSettings(f"kind of {where}: there is no kind {pattern!r}; {hint}")
    values: dict[str, Any] = {}
    if "severity" in table:
        if table["severity"] not in list(AlertSeverity):
            raise InvalidAlertSettings(
                f"severity of {where}: expected one of {', '.join(AlertSeverity)}, found {table['severity']!r}"
            )
        values["severity"] = AlertSeverity(table["severity"])
    for key in ("hold", "keep_firing"):
        if key in table:
            try:
                values[f"{key}_ms"] = Duration.parse(str(table[key])).ms
            except ValueError as error:
                raise InvalidAlertSettings(f"{key} of {where}: {error}, found {table[key]!r}") from error
    if not values:
        raise InvalidAlertSettings(f"{where} changes nothing; set {', '.join(RULE_KEYS[1:])}")
    return pattern, values
