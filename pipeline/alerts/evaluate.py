"""Evaluates the alerts once: status, rules, transitions, deliveries. Loops and cron call `evaluate_alerts`."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from headrace.pipeline.alerts.alert import Alert, AlertChanges, AlertState, next_alerts
from headrace.pipeline.alerts.delivery import (
    BATCH_MAX,
    LEASE_MS,
    AlertDelivery,
    AlertEvent,
    DeliveryOutcome,
    DeliveryPolicy,
    back_off_ms,
    next_batch,
    owed_deliveries,
    silence_of,
    superseded,
)
from headrace.pipeline.alerts.errors import NotificationFailed
from headrace.pipeline.alerts.message import Notice
from headrace.pipeline.alerts.rule import AlertRule, AlertSeverity, rules_of
from headrace.pipeline.alerts.storage import OWED_MS_MAX, AlertChange, AlertStore, alert_address
from headrace.pipeline.alerts.target import AlertTarget, targets_of
from headrace.pipeline.status.collect import source_reports
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.disk import record_free_space
from headrace.pipeline.status.finding import SourceReport
from headrace.pipeline.status.parts import probed_parts
from headrace.pipeline.status.responses import record_responses
from headrace.settings import Settings

logger = logging.getLogger(__name__)

REQUESTS_MAX: Final = 50
"""Requests to one target in one evaluation; the rest follows in the next one."""
THREADS_MAX: Final = 8
DELIVERY_S_MAX: Final = 40.0
"""No request to a target begins later in an evaluation. With the time limit of a request, all end before `LEASE_MS` has
passed, and the next evaluation is not late."""


@dataclass(frozen=True, slots=True)
class AlertResult:
    """The result of an evaluation.

    Attributes:
        firing: the alerts that fire and are not silenced.
        silenced: the alerts that fire and are silenced.
        delivered: number of events that targets accepted.
        failures: why targets could not be reached, by their names.
    """

    firing: tuple[Alert, ...]
    silenced: tuple[Alert, ...]
    delivered: int
    failures: Mapping[str, str]


def evaluate_alerts(settings: Settings, now_ms: int | None = None) -> AlertResult:
    """Evaluates the status of the platform by the rules, stores the changes, and sends the open deliveries.
    Any number of processes may call it.

    Args:
        now_ms: the time, in milliseconds since 1970; by default the current time.

    Raises:
        InvalidAlertSettings: a key of `[alerts]` is invalid.
        AlertStoreUnavailable: the database cannot be used.
    """
    targets, rules = targets_of(settings), rules_of(settings.alerts.rules)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with AlertStore(alert_address(settings)) as store:
        with closing(StatusContext(settings, now_ms)) as context:
            record_free_space(context)
            record_responses(context, probed_parts(context))
            reports = source_reports(context)
        return evaluate_reports(store, reports, rules, targets, now_ms)


def evaluate_reports(
    store: AlertStore,
    reports: Sequence[SourceReport],
    rules: Mapping[str, AlertRule],
    targets: Sequence[AlertTarget],
    now_ms: int,
) -> AlertResult:
    """Evaluates alerts by the reports of the status' sources, as `evaluate_alerts` does."""
    policy = DeliveryPolicy({target.name: target.repeat_ms for target in targets})
    with store.changing() as change:
        known = change.alerts(now_ms - OWED_MS_MAX)
        changes = next_alerts(known, reports, rules, now_ms)
        change.set_alerts(changes.changed, changes.deleted)
        _log_changes({alert.id: alert for alert in known}, changes)
        alerts = change.alerts(now_ms - OWED_MS_MAX)
        _update_deliveries(change, alerts, policy, now_ms)
        change.set_evaluated(now_ms)
        change.prune(now_ms)
        silences = change.silences(now_ms)
    delivered, failures = deliver(store, targets, now_ms)
    firing = [alert for alert in alerts if alert.state == AlertState.FIRING]
    silenced = tuple(alert for alert in firing if silence_of(alert, silences, now_ms) is not None)
    return AlertResult(tuple(alert for alert in firing if alert not in silenced), silenced, delivered, failures)


def _log_changes(known: Mapping[str, Alert], changes: AlertChanges) -> None:
    for alert in changes.changed:
        before = known.get(alert.id)
        if alert.state != AlertState.PENDING and (before is None or before.state != alert.state):
            event = "alert_fired" if alert.state == AlertState.FIRING else "alert_resolved"
            logger.info(
                "%s id=%s kind=%s subject=%s severity=%s", event, alert.id, alert.kind, alert.subject, alert.severity
            )


def _update_deliveries(change: AlertChange, alerts: Sequence[Alert], policy: DeliveryPolicy, now_ms: int) -> None:
    """Finishes the open deliveries that are not sent any more, and adds the owed ones."""
    silences = change.silences(now_ms)
    finished: dict[tuple[DeliveryOutcome, str], list[AlertDelivery]] = defaultdict(list)
    by_id = {alert.id: alert for alert in alerts}
    for one, outcome, reason in superseded(change.open_deliveries(), by_id, silences, policy, now_ms):
        finished[outcome, reason].append(one)
    for (outcome, reason), deliveries in finished.items():
        change.finish(deliveries, outcome, reason, now_ms)
    change.add_deliveries(owed_deliveries(alerts, change.newest_deliveries(), silences, policy, now_ms))


def deliver(store: AlertStore, targets: Sequence[AlertTarget], now_ms: int) -> tuple[int, dict[str, str]]:
    """Sends the open deliveries that are due, to all targets at the same time. Returns the number of accepted events,
    and the errors by target."""
    if not targets:
        return 0, {}
    with ThreadPoolExecutor(min(THREADS_MAX, len(targets))) as threads:
        results = threads.map(lambda target: _deliver_to(store, target, now_ms), targets)
        found = dict(zip((target.name for target in targets), results, strict=True))
    failures = {name: error for name, (_, error) in found.items() if error}
    return sum(delivered for delivered, _ in found.values()), failures


def _deliver_to(store: AlertStore, target: AlertTarget, now_ms: int) -> tuple[int, str]:
    """Sends the due deliveries of one target. Returns the number of accepted events and the first error."""
    delivered, first_error = 0, ""
    started_s = time.monotonic()
    for _ in range(REQUESTS_MAX):
        if time.monotonic() - started_s > DELIVERY_S_MAX:
            break
        batch, notices = _claim(store, target, now_ms)
        if not batch:
            break
        try:
            target.send(notices, now_ms)
        except NotificationFailed as error:
            _record_failure(store, target, batch, error, now_ms)
            first_error = first_error or str(error)
            if error.is_target_down:
                return delivered, first_error
        else:
            with store.changing() as change:
                change.set_delivered(batch, now_ms)
            delivered += len(batch)
    if target.is_refreshed and not first_error:
        first_error = _refresh(store, target, now_ms)
    return delivered, first_error


def _claim(store: AlertStore, target: AlertTarget, now_ms: int) -> tuple[tuple[AlertDelivery, ...], list[Notice]]:
    """Takes the next deliveries of a target, and counts their attempt before it is made."""
    with store.changing() as change:
        alerts = {alert.id: alert for alert in change.alerts(now_ms - OWED_MS_MAX)}
        batch = next_batch(change.open_deliveries(target.name), alerts, change.silences(now_ms), now_ms)
        if batch:
            change.begin_attempt(batch, now_ms + LEASE_MS)
    return batch, [Notice(alerts[one.alert_id], one.event, one.event_ms) for one in batch]


def _record_failure(
    store: AlertStore, target: AlertTarget, batch: Sequence[AlertDelivery], error: NotificationFailed, now_ms: int
) -> None:
    """Stores the error of a failed attempt, and when the next one is due: of these deliveries, or of all of a target
    that is down."""
    attempts = max(one.attempts for one in batch) + 1
    next_ms = now_ms + back_off_ms(attempts)
    logger.warning(
        "alert_not_delivered target=%s alerts=%d attempts=%d error=%s", target.name, len(batch), attempts, error
    )
    with store.changing() as change:
        change.set_failed_attempt(batch, str(error), next_ms)
        if error.is_target_down:
            change.delay_target(target.name, next_ms)


def _refresh(store: AlertStore, target: AlertTarget, now_ms: int) -> str:
    """Sends all firing alerts again that the target has accepted and that are not silenced. Returns the error or ""."""
    with store.reading() as reader:
        silences = reader.silences(now_ms)
        newest = reader.newest_deliveries()
        firing = [
            alert
            for alert in reader.alerts(now_ms)
            if alert.state == AlertState.FIRING
            and silence_of(alert, silences, now_ms) is None
            and _has_accepted(newest.get((alert.id, target.name)))
        ]
    notices = [Notice(alert, AlertEvent.FIRING, alert.fired_ms or now_ms) for alert in firing]
    try:
        for start in range(0, len(notices), BATCH_MAX):
            target.send(notices[start : start + BATCH_MAX], now_ms)
    except NotificationFailed as error:
        return str(error)
    return ""


def _has_accepted(last: AlertDelivery | None) -> bool:
    return last is not None and last.event == AlertEvent.FIRING and last.outcome == DeliveryOutcome.DELIVERED


def send_test(targets: Sequence[AlertTarget], now_ms: int) -> dict[str, str]:
    """Sends an alert that fires, and then is resolved, to each target. Returns the error by the target's name, "" for a
    success. Stores nothing."""
    alert = Alert(
        id="0" * 12,
        fingerprint="0" * 16,
        kind="headrace-test",
        subject="test alert",
        source="",
        problem="This is a test by `headrace alerts test`. Nothing is wrong.",
        show="headrace alerts list",
        repair="none",
        severity=AlertSeverity.TICKET,
        state=AlertState.FIRING,
        opened_ms=now_ms,
        since_ms=now_ms,
        seen_ms=now_ms,
        fired_ms=now_ms,
        firings=1,
    )
    results = {}
    for target in targets:
        results[target.name] = ""
        try:
            for event in AlertEvent:
                target.send([Notice(alert, event, now_ms)], now_ms)
        except NotificationFailed as error:
            results[target.name] = str(error)
    return results
