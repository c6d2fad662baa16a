"""The alerts themselves: whether they are evaluated, and whether their targets accept them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.status.wording import age_text, count_text

if TYPE_CHECKING:
    from headrace.pipeline.alerts.delivery import AlertDelivery

EVALUATED_MS_MAX: Final = 900_000
"""A cron job may evaluate the alerts every ten minutes."""
TRIED_MS: Final = 300_000
"""Failures of a target are a finding after this time; most of them are restarts."""


def alerts(context: StatusContext) -> SourceReport:
    """Reports old evaluations and failed deliveries, if the settings name a target of alerts."""
    if not context.settings.alerts.has_targets:
        return SourceReport((StatusFact("alerts", "no target in the settings"),))
    # SQLAlchemy takes a tenth of a second to import.
    from headrace.pipeline.alerts.alert import AlertState
    from headrace.pipeline.alerts.storage import AlertStore, alert_address

    with AlertStore(alert_address(context.settings), creates=False) as store, store.reading() as reader:
        evaluated_ms, found = reader.evaluated_ms(), reader.alerts(context.now_ms + 1)
        undelivered = [one for one in reader.open_deliveries() if one.error]
    firing = Counter(one.severity.value for one in found if one.state == AlertState.FIRING)
    metrics = [
        StatusMetric("headrace_alerts_firing", firing[name], (("severity", name),)) for name in ("page", "ticket")
    ]
    metrics.append(StatusMetric("headrace_alerts_undelivered", len(undelivered)))
    findings = list(_undelivered(undelivered, context.now_ms))
    if evaluated_ms is not None:
        metrics.append(StatusMetric("headrace_alerts_evaluated_timestamp_seconds", evaluated_ms / 1000))
    if evaluated_ms is None or context.now_ms - evaluated_ms > EVALUATED_MS_MAX:
        findings.append(_late(context, evaluated_ms))
    fact = StatusFact("alerts", f"{count_text(firing.total(), 'alert')} firing", tuple(metrics))
    return SourceReport((fact,), tuple(findings))


def _late(context: StatusContext, evaluated_ms: int | None) -> StatusFinding:
    if evaluated_ms is None:
        return finding("alerts-late", "alerts", "the settings name a target, and the rules were never evaluated")
    age = age_text(context.now_ms - evaluated_ms)
    return finding("alerts-late", "alerts", f"the rules were evaluated {age} ago", since_ms=evaluated_ms)


def _undelivered(undelivered: Iterable[AlertDelivery], now_ms: int) -> Iterable[StatusFinding]:
    """Yields a finding for each target that has not accepted an alert for `TRIED_MS`.

    Args:
        undelivered: open deliveries with failed attempts, oldest first.
    """
    by_target: dict[str, list[AlertDelivery]] = {}
    for one in undelivered:
        by_target.setdefault(one.target, []).append(one)
    for target, deliveries in by_target.items():
        since_ms = deliveries[0].created_ms
        if now_ms - since_ms > TRIED_MS:
            problem = f"{count_text(len(deliveries), 'alert')} undelivered: {deliveries[-1].error}"
            yield finding("alerts-undelivered", target, problem, since_ms=since_ms)
