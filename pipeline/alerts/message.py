"""Renders notifications: the body of Alertmanager's webhooks (version 4), that of its API v2, and text. Pure.

Labels identify an alert and do not change while it exists, except its severity if the rules change; annotations
describe it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from headrace.pipeline.alerts.alert import Alert
from headrace.pipeline.alerts.delivery import AlertEvent
from headrace.pipeline.text_table import printable

NO_TIME: Final = "0001-01-01T00:00:00Z"
"""`endsAt` of an alert that fires, as Alertmanager writes it."""
RECEIVER: Final = "headrace"
ENDS_AFTER_MS: Final = 900_000
"""Alertmanager resolves an alert that is not sent again for this time: more than the interval of a cron job."""
LINES_MAX: Final = 20
"""Alerts that a text lists one by one."""
Body = dict[str, Any] | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Notice:
    """One event of one alert, and its time."""

    alert: Alert
    event: AlertEvent
    event_ms: int


def webhook_body(notices: Sequence[Notice], labels: Mapping[str, str], console_url: str = "") -> Body:
    """Returns the JSON object that Alertmanager posts to a webhook, for events of one kind of findings.

    Args:
        labels: additional labels of all alerts, from the settings.
        console_url: the URL of the console for links; "" if the settings have none.
    """
    alerts = [_webhook_alert(one, labels, console_url) for one in notices]
    group = {"alertname": notices[0].alert.kind}
    return {
        "version": "4",
        "groupKey": f'{{}}:{{alertname="{notices[0].alert.kind}"}}',
        "truncatedAlerts": 0,
        "status": _status(notices),
        "receiver": RECEIVER,
        "groupLabels": group,
        "commonLabels": _common([alert["labels"] for alert in alerts]),
        "commonAnnotations": _common([alert["annotations"] for alert in alerts]),
        "externalURL": console_url,
        "alerts": alerts,
    }


def alertmanager_body(notices: Sequence[Notice], labels: Mapping[str, str], now_ms: int, console_url: str = "") -> Body:
    """Returns the JSON array for `POST /api/v2/alerts` of Alertmanager. A firing alert ends `ENDS_AFTER_MS` from now,
    unless it is sent again."""
    return [
        {
            "labels": _labels(one.alert, labels),
            "annotations": _annotations(one.alert),
            "startsAt": time_text_ms(min(one.alert.since_ms, one.event_ms)),
            "endsAt": time_text_ms(one.event_ms if one.event == AlertEvent.RESOLVED else now_ms + ENDS_AFTER_MS),
            **({"generatorURL": page_url(one.alert, console_url)} if console_url else {}),
        }
        for one in notices
    ]


def title_text(notices: Sequence[Notice]) -> str:
    """Returns a title such as `[FIRING:2] page: topics with missing messages by the audit`."""
    first = notices[0].alert
    status = _status(notices)
    number = sum(one.event == status for one in notices)
    name = f"{first.subject} {first.title}" if len(notices) == 1 else f"{first.kind} ({first.title})"
    return printable(f"[{status.upper()}:{number}] {first.severity}: {name}")


def body_text(notices: Sequence[Notice]) -> str:
    """Returns a text with a paragraph for each of the first alerts, with the commands that show and repair it."""
    shown = "\n\n".join(map(_paragraph, notices[:LINES_MAX]))
    more = len(notices) - LINES_MAX
    return f"{shown}\n\nand {more:,} more: headrace alerts list" if more > 0 else shown


def time_text_ms(instant_ms: int) -> str:
    """Returns a time in UTC with milliseconds, such as `2026-01-31T07:20:04.120Z`."""
    seconds, ms = divmod(instant_ms, 1000)
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{ms:03d}Z", time.gmtime(seconds))


def page_url(alert: Alert, console_url: str) -> str:
    """Returns the page of the console about an alert: that of its topic, or its place in the list of alerts; "" without
    a console."""
    if not console_url:
        return ""
    if not alert.kind.startswith("audit-") or alert.kind == "audit-old":
        return f"{console_url.rstrip('/')}/alerts#{alert.id}"
    return f"{console_url.rstrip('/')}/topics/{quote(alert.subject, safe='')}"


def _webhook_alert(one: Notice, labels: Mapping[str, str], console_url: str) -> dict[str, Any]:
    is_resolved = one.event == AlertEvent.RESOLVED
    return {
        "status": one.event.value,
        "labels": _labels(one.alert, labels),
        "annotations": _annotations(one.alert),
        "startsAt": time_text_ms(min(one.alert.since_ms, one.event_ms)),
        "endsAt": time_text_ms(one.event_ms) if is_resolved else NO_TIME,
        "generatorURL": page_url(one.alert, console_url),
        "fingerprint": one.alert.fingerprint,
    }


def _labels(alert: Alert, labels: Mapping[str, str]) -> dict[str, str]:
    return {
        **labels,
        "alertname": alert.kind,
        "severity": alert.severity.value,
        "service": "headrace",
        "subject": alert.subject,
    }


def _annotations(alert: Alert) -> dict[str, str]:
    return {
        "summary": f"{alert.subject} {alert.title}",
        "description": alert.problem,
        "show": alert.show,
        "repair": alert.repair,
        "id": alert.id,
    }


def _common(mappings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first, *others = mappings
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}


def _status(notices: Sequence[Notice]) -> AlertEvent:
    """Returns the status of several alerts: firing if one of them is."""
    return next((one.event for one in notices if one.event == AlertEvent.FIRING), AlertEvent.RESOLVED)


def _paragraph(one: Notice) -> str:
    alert = one.alert
    if one.event == AlertEvent.RESOLVED:
        return printable(f"resolved at {time_text_ms(one.event_ms)}: {alert.subject} {alert.title}")
    lines = (
        f"{alert.subject} {alert.title}: {alert.problem}",
        f"since {time_text_ms(alert.since_ms)}, alert {alert.id}",
        f"show: {alert.show}",
        f"repair: {alert.repair}",
    )
    return "\n".join(map(printable, lines))
