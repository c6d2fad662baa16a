"""Alerts and their states, and the step from the findings of one status to the next states. Pure.

    pending ──present for hold──► firing ──absent for keep_firing──► resolved
       │ absent                     ▲                                   │
       └─► deleted                  └──── present within `REOPEN_MS` ───┘

An alert is identified by kind and identity of its finding. A finding counts as absent only if the source of the status
that reports it was checked: while the brokers do not answer, no alert about lag is resolved.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.pipeline.alerts.rule import AlertRule, AlertSeverity
from headrace.pipeline.status.finding import KINDS, SourceReport, StatusFinding
from headrace.settings.masking import mask_passwords

REOPEN_MS: Final = 3_600_000
"""A problem that returns within this time after its alert was resolved continues the same alert, without a hold."""
TEXT_CHARS_MAX: Final = 2_000
"""Longer problems and commands are cut."""
SUBJECT_CHARS_MAX: Final = 500


class AlertState(StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem that is, or was, present. Times are in milliseconds since 1970.

    Attributes:
        id: 12 hex digits; a problem that returns after more than `REOPEN_MS` gets another id.
        fingerprint: 16 hex digits of kind and identity.
        others: further subjects of the problem, such as the other topics of an incident. Silences match them too.
        source: the source of the status that reports the finding.
        opened_ms: the first evaluation that found the problem.
        since_ms: the start of the problem, if the finding has it; otherwise `opened_ms`.
        seen_ms: the newest evaluation that found it.
        clean_since_ms: the first evaluation that did not find it any more; None while it is present.
        fired_ms, resolved_ms: when it last entered these states; None if it did not, or fired again since.
        firings: how many times it entered the state firing.
        delivered_ms: the newest delivery to any target; None for none.
    """

    id: str
    fingerprint: str
    kind: str
    subject: str
    source: str
    problem: str
    show: str
    repair: str
    severity: AlertSeverity
    state: AlertState
    opened_ms: int
    since_ms: int
    seen_ms: int
    clean_since_ms: int | None = None
    fired_ms: int | None = None
    resolved_ms: int | None = None
    firings: int = 0
    delivered_ms: int | None = None
    others: tuple[str, ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.subject, *self.others)

    @property
    def title(self) -> str:
        """The problem in a few words, after the subject; a later release may have written an unknown kind."""
        return KINDS[self.kind].title if self.kind in KINDS else self.kind


@dataclass(frozen=True, slots=True)
class AlertChanges:
    """The result of an evaluation: alerts that are new or changed, and ids of pending alerts that are deleted."""

    changed: tuple[Alert, ...]
    deleted: tuple[str, ...]


def fingerprint_of(found: StatusFinding) -> str:
    return hashlib.sha256(f"{found.kind}\0{found.identity or found.subject}".encode()).hexdigest()[:16]


def next_alerts(
    alerts: Iterable[Alert], reports: Iterable[SourceReport], rules: Mapping[str, AlertRule], now_ms: int
) -> AlertChanges:
    """Returns the changes of the alerts by the findings of one status.

    Args:
        alerts: the stored alerts. Of several with one fingerprint, the one that is not resolved counts, or the newest.
        reports: the reports of all sources, with findings that are not folded.
        now_ms: the time of the status.
    """
    newest: dict[str, Alert] = {}
    for alert in sorted(alerts, key=lambda alert: (alert.state != AlertState.RESOLVED, alert.opened_ms)):
        newest[alert.fingerprint] = alert
    found: dict[str, tuple[StatusFinding, str]] = {}
    unchecked = set()
    for report in reports:
        if not report.is_checked:
            unchecked.add(report.source)
        for one in report.findings:
            if rules[one.kind].severity != AlertSeverity.NONE:
                found.setdefault(fingerprint_of(one), (one, report.source))
    changed, deleted = [], []
    for fingerprint, (finding, source) in found.items():
        changed.append(_present(newest.get(fingerprint), fingerprint, finding, source, rules[finding.kind], now_ms))
    for fingerprint, alert in newest.items():
        if fingerprint in found or (alert.source in unchecked and _is_alerting(alert, rules)):
            continue
        if alert.state == AlertState.PENDING:
            deleted.append(alert.id)
        elif alert.state == AlertState.FIRING:
            changed.append(_absent(alert, rules, now_ms))
    return AlertChanges(tuple(changed), tuple(deleted))


def _is_alerting(alert: Alert, rules: Mapping[str, AlertRule]) -> bool:
    return alert.kind in rules and rules[alert.kind].severity != AlertSeverity.NONE


def _present(
    alert: Alert | None, fingerprint: str, finding: StatusFinding, source: str, rule: AlertRule, now_ms: int
) -> Alert:
    """Returns the alert of a finding that is present, in its next state."""
    if alert is None or (alert.resolved_ms is not None and now_ms - alert.resolved_ms > REOPEN_MS):
        alert = _opened(fingerprint, finding, now_ms)
    alert = dataclasses.replace(
        alert,
        others=tuple(_text(subject)[:SUBJECT_CHARS_MAX] for subject in finding.others),
        problem=_text(finding.problem),
        show=_text(finding.show),
        repair=_text(finding.repair),
        source=source,
        severity=rule.severity,
        opened_ms=min(alert.opened_ms, now_ms),  # the clock was set back
        seen_ms=now_ms,
        clean_since_ms=None,
    )
    is_due = alert.state == AlertState.RESOLVED or now_ms - alert.opened_ms >= rule.hold_ms
    if alert.state == AlertState.FIRING or not is_due:
        return alert
    return dataclasses.replace(
        alert, state=AlertState.FIRING, fired_ms=now_ms, resolved_ms=None, firings=alert.firings + 1
    )


def _absent(alert: Alert, rules: Mapping[str, AlertRule], now_ms: int) -> Alert:
    """Returns a firing alert without its finding. Without an alerting rule it is resolved at once."""
    clean_since_ms = min(now_ms, alert.clean_since_ms if alert.clean_since_ms is not None else now_ms)
    keep_ms = rules[alert.kind].keep_firing_ms if _is_alerting(alert, rules) else 0
    alert = dataclasses.replace(alert, clean_since_ms=clean_since_ms)
    if now_ms - clean_since_ms < keep_ms:
        return alert
    return dataclasses.replace(alert, state=AlertState.RESOLVED, resolved_ms=now_ms)


def _opened(fingerprint: str, finding: StatusFinding, now_ms: int) -> Alert:
    since_ms = now_ms if finding.since_ms is None else min(finding.since_ms, now_ms)
    return Alert(
        id=hashlib.sha256(f"{fingerprint}:{now_ms}".encode()).hexdigest()[:12],
        fingerprint=fingerprint,
        kind=finding.kind,
        subject=_text(finding.subject)[:SUBJECT_CHARS_MAX],
        source="",
        problem="",
        show="",
        repair="",
        severity=AlertSeverity.NONE,
        state=AlertState.PENDING,
        opened_ms=now_ms,
        since_ms=since_ms,
        seen_ms=now_ms,
    )


def _text(text: str) -> str:
    """Returns a text on one line, without passwords and of limited length."""
    # Cut first, because the time of masking grows with the square of a word's length; not to the final length, so that
    # no part of a password is left where it is cut.
    line = mask_passwords(" ".join(text[: 2 * TEXT_CHARS_MAX].split()))
    return line if len(line) <= TEXT_CHARS_MAX else f"{line[:TEXT_CHARS_MAX]}…"
