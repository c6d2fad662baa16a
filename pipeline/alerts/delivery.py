"""Deliveries: the events that each target must still receive, and their times. Pure.

A delivery is one event (firing or resolved) of one alert for one target. It is stored in the transaction that changes
the alert, sent afterwards, and marked as delivered last. A process that is killed between sending and marking sends it
again: a target receives each event at least once, and a resolved event only after the firing one. `attempts` and
`next_attempt_ms` change before a delivery is sent, so that two processes do not send it at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from headrace.pipeline.alerts.alert import Alert, AlertState

BACK_OFF_MS: Final = 30_000
BACK_OFF_MS_MAX: Final = 900_000
GIVE_UP_MS: Final = 86_400_000
"""A delivery that has failed for this time is abandoned. An alert that still fires is delivered again later."""
LEASE_MS: Final = 120_000
"""How long other processes leave a delivery to the one that sends it; a killed one is replaced after this time."""
BATCH_MAX: Final = 200
"""Alerts in one request."""


class AlertEvent(StrEnum):
    FIRING = "firing"
    RESOLVED = "resolved"


class DeliveryOutcome(StrEnum):
    """`open`: not delivered yet. `cancelled`: the alert was silenced before the first attempt. `failed`: abandoned."""

    OPEN = "open"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AlertDelivery:
    """One event of one alert for one target. Times are in milliseconds since 1970.

    Attributes:
        id: number in the order of creation; 0 before it is stored.
        target: name of the target, without credentials.
        event_ms: when the alert fired or was resolved.
        error: why the newest attempt failed; "" if it did not.
    """

    id: int
    alert_id: str
    target: str
    event: AlertEvent
    event_ms: int
    created_ms: int
    attempts: int = 0
    next_attempt_ms: int = 0
    finished_ms: int | None = None
    outcome: DeliveryOutcome = DeliveryOutcome.OPEN
    error: str = ""


@dataclass(frozen=True, slots=True)
class Silence:
    """Suppresses the notifications of alerts whose kind and subject match two patterns (`*`, `?`, `[…]`), from its
    creation until `ends_ms`. Of an alert with several subjects, such as the topics of an incident, one must match."""

    id: str
    kind: str
    subject: str
    reason: str
    author: str
    created_ms: int
    ends_ms: int

    def matches(self, alert: Alert, now_ms: int) -> bool:
        is_active = self.created_ms <= now_ms < self.ends_ms
        is_of_kind = is_active and fnmatchcase(alert.kind, self.kind)
        return is_of_kind and any(fnmatchcase(subject, self.subject) for subject in alert.subjects)


def silence_of(alert: Alert, silences: Iterable[Silence], now_ms: int) -> Silence | None:
    """Returns the first silence that suppresses notifications of the alert now; None if it is not silenced."""
    return next((one for one in silences if one.matches(alert, now_ms)), None)


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """The targets by name, with the time after which each gets an alert again that still fires; None for never."""

    repeat_ms: Mapping[str, int | None]


def owed_deliveries(
    alerts: Iterable[Alert],
    newest: Mapping[tuple[str, str], AlertDelivery],
    silences: Sequence[Silence],
    policy: DeliveryPolicy,
    now_ms: int,
) -> Iterator[AlertDelivery]:
    """Yields the deliveries to create: an event that differs from the newest one of the same alert and target, or a
    repetition of it. A silenced alert is owed nothing; when the silence ends, a target gets the state of that time.

    Args:
        alerts: all pending, firing and recently resolved alerts.
        newest: by alert and target, the newest delivery that was not cancelled.
    """
    for alert in alerts:
        if alert.state == AlertState.PENDING or silence_of(alert, silences, now_ms) is not None:
            continue
        for target, repeat_ms in policy.repeat_ms.items():
            last = newest.get((alert.id, target))
            event = _owed_event(alert, last, repeat_ms, now_ms)
            if event is not None:
                event_ms = alert.resolved_ms if event == AlertEvent.RESOLVED else alert.fired_ms
                yield AlertDelivery(0, alert.id, target, event, now_ms if event_ms is None else event_ms, now_ms)


def _owed_event(alert: Alert, last: AlertDelivery | None, repeat_ms: int | None, now_ms: int) -> AlertEvent | None:
    if alert.state == AlertState.RESOLVED:
        return AlertEvent.RESOLVED if last is not None and last.event == AlertEvent.FIRING else None
    if last is None or last.event != AlertEvent.FIRING:
        return AlertEvent.FIRING
    is_old = repeat_ms is not None and last.finished_ms is not None and now_ms - last.finished_ms >= repeat_ms
    return AlertEvent.FIRING if is_old else None


def superseded(
    open_deliveries: Iterable[AlertDelivery],
    alerts: Mapping[str, Alert],
    silences: Sequence[Silence],
    policy: DeliveryPolicy,
    now_ms: int,
) -> Iterator[tuple[AlertDelivery, DeliveryOutcome, str]]:
    """Yields the open deliveries that are finished without being sent, with outcome and reason.

    A delivery that was attempted may have arrived. So it is not cancelled by a silence: it is sent after the silence,
    and the resolved event follows.
    """
    for one in open_deliveries:
        alert = alerts.get(one.alert_id)
        if alert is None:
            yield one, DeliveryOutcome.FAILED, "the alert was resolved more than a day ago"
        elif one.target not in policy.repeat_ms:
            yield one, DeliveryOutcome.FAILED, "the target is not in the settings any more"
        elif now_ms - one.created_ms >= GIVE_UP_MS and one.attempts:
            yield one, DeliveryOutcome.FAILED, f"abandoned after a day: {one.error or 'no response'}"
        elif not one.attempts and silence_of(alert, silences, now_ms) is not None:
            yield one, DeliveryOutcome.CANCELLED, "silenced"


def next_batch(
    open_deliveries: Iterable[AlertDelivery], alerts: Mapping[str, Alert], silences: Sequence[Silence], now_ms: int
) -> tuple[AlertDelivery, ...]:
    """Returns the deliveries of one target for its next request: of one kind of findings, each alert once, in order.
    Empty if none is due.

    Args:
        open_deliveries: all open deliveries of the target.
    """
    batch: list[AlertDelivery] = []
    blocked: set[str] = set()  # alerts with an earlier delivery
    for one in sorted(open_deliveries, key=lambda delivery: delivery.id):
        alert = alerts.get(one.alert_id)
        if alert is None or one.alert_id in blocked:
            continue
        blocked.add(one.alert_id)
        is_due = one.next_attempt_ms <= now_ms and silence_of(alert, silences, now_ms) is None
        is_of_batch = not batch or alerts[batch[0].alert_id].kind == alert.kind
        if is_due and is_of_batch and len(batch) < BATCH_MAX:
            batch.append(one)
    return tuple(batch)


def back_off_ms(attempts: int) -> int:
    """Returns the time until the next attempt after `attempts` failed ones: 30 s, doubled up to 15 minutes."""
    return int(min(BACK_OFF_MS_MAX, BACK_OFF_MS * 2 ** min(attempts - 1, 10)))
