"""Alerts that fire or are pending, silences, deliveries, and rules."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flask import Blueprint, render_template, request, url_for
from werkzeug.wrappers import Response

from headrace.console.caching import unchanged
from headrace.console.context import console, viewer
from headrace.console.formats import plural
from headrace.console.headline import BAD, GOOD, UNSURE, WARN, Headline
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn, TableView
from headrace.pipeline.alerts.alert import Alert, AlertState
from headrace.pipeline.alerts.delivery import AlertDelivery, Silence, silence_of
from headrace.pipeline.alerts.rule import AlertRule, AlertSeverity, default_rule, rules_of
from headrace.pipeline.alerts.storage import AlertStore, alert_address
from headrace.pipeline.status.finding import KINDS, StatusFinding
from headrace.settings import Settings

blueprint = Blueprint("alerts", __name__)

AGE_S: Final = 5.0
DELIVERIES_MAX: Final = 1_000
LISTED_MAX: Final = 50
"""Alerts above the table, the firing ones first."""
BEHIND_MS: Final = 900_000
"""An evaluation of this age means that no alert would be sent about a new problem."""
VIEWS: Final = {"alerts": "All alerts", "silences": "Silences", "deliveries": "Deliveries", "rules": "Rules"}
_STATES: Final = (AlertState.RESOLVED, AlertState.PENDING, AlertState.FIRING)
_SEVERITIES: Final = (AlertSeverity.NONE, AlertSeverity.TICKET, AlertSeverity.PAGE)


@dataclass(frozen=True, slots=True)
class ShownAlert:
    """An alert, and the silence that suppresses its notifications now; None for none."""

    alert: Alert
    silence: Silence | None

    @property
    def state(self) -> str:
        return f"{self.alert.state.value}{', silenced' if self.silence else ''}"

    @property
    def silence_command(self) -> str:
        subject = shlex.quote(glob.escape(self.alert.subject))
        return f"headrace alerts silence --kind {self.alert.kind} --subject {subject} --for 2h --reason TEXT"


@dataclass(frozen=True, slots=True)
class StoredAlerts:
    """The alerts of the last 30 days, the newest deliveries, and the time of the newest evaluation; None if there was
    none. The alerts that fire are first, then the pending ones."""

    alerts: Sequence[ShownAlert] = ()
    silences: Sequence[Silence] = ()
    deliveries: Sequence[AlertDelivery] = ()
    evaluated_ms: int | None = None

    def of_state(self, state: AlertState) -> list[ShownAlert]:
        return [one for one in self.alerts if one.alert.state == state]


@dataclass(frozen=True, slots=True)
class ShownDelivery:
    """A delivery, and its alert; None if that is deleted."""

    delivery: AlertDelivery
    alert: Alert | None

    @property
    def about(self) -> str:
        return f"{self.alert.subject}: {self.alert.title}" if self.alert else f"alert {self.delivery.alert_id}"


ALERTS: Final[PagedTable[ShownAlert]] = PagedTable(
    "alerts",
    (
        TableColumn("subject", "subject", lambda one: one.alert.subject),
        TableColumn("title", "problem", lambda one: one.alert.title),
        TableColumn(
            "state", "state", lambda one: one.state, CellKind.STATE, order=lambda one: _STATES.index(one.alert.state)
        ),
        TableColumn(
            "severity",
            "severity",
            lambda one: one.alert.severity.value,
            CellKind.STATE,
            order=lambda one: _SEVERITIES.index(one.alert.severity),
        ),
        TableColumn("since", "since", lambda one: one.alert.since_ms, CellKind.TIME),
        TableColumn("fired", "fired", lambda one: one.alert.fired_ms, CellKind.TIME),
        TableColumn("resolved", "resolved", lambda one: one.alert.resolved_ms, CellKind.TIME),
        TableColumn("delivered", "delivered", lambda one: one.alert.delivered_ms, CellKind.TIME),
        TableColumn("firings", "times fired", lambda one: one.alert.firings, CellKind.NUMBER),
        TableColumn("kind", "kind", lambda one: one.alert.kind, CellKind.CODE),
        TableColumn("id", "id", lambda one: one.alert.id, CellKind.CODE),
        TableColumn("detail", "detail", lambda one: one.alert.problem),
    ),
    lambda one: (one.alert.subject, one.alert.title, one.alert.kind, one.state, one.alert.problem, one.alert.id),
    "There were no alerts within 30 days.",
)

SILENCES: Final[PagedTable[Silence]] = PagedTable(
    "silences",
    (
        TableColumn("subject", "subjects", lambda one: one.subject, CellKind.CODE),
        TableColumn("kind", "kinds", lambda one: one.kind, CellKind.CODE),
        TableColumn("created", "created", lambda one: one.created_ms, CellKind.TIME),
        TableColumn("ends", "ends", lambda one: one.ends_ms, CellKind.TIME),
        TableColumn("author", "author", lambda one: one.author),
        TableColumn("id", "id", lambda one: one.id, CellKind.CODE),
        TableColumn("reason", "reason", lambda one: one.reason),
    ),
    lambda one: (one.subject, one.kind, one.author, one.reason, one.id),
    "There were no silences within 30 days.",
)

DELIVERIES: Final[PagedTable[ShownDelivery]] = PagedTable(
    "deliveries",
    (
        TableColumn("created", "created", lambda one: one.delivery.created_ms, CellKind.TIME),
        TableColumn("event", "event", lambda one: one.delivery.event.value),
        TableColumn("about", "alert", lambda one: one.about),
        TableColumn("target", "target", lambda one: one.delivery.target, CellKind.CODE),
        TableColumn("outcome", "outcome", lambda one: one.delivery.outcome.value, CellKind.STATE),
        TableColumn("attempts", "attempts", lambda one: one.delivery.attempts, CellKind.NUMBER),
        TableColumn("finished", "finished", lambda one: one.delivery.finished_ms, CellKind.TIME),
        TableColumn("error", "error", lambda one: one.delivery.error),
    ),
    lambda one: (one.about, one.delivery.target, one.delivery.outcome.value, one.delivery.error),
    "Nothing was delivered yet.",
)

RULES: Final[PagedTable[AlertRule]] = PagedTable(
    "rules",
    (
        TableColumn("kind", "kind", lambda one: one.kind, CellKind.CODE),
        TableColumn("title", "problem", lambda one: f"{KINDS[one.kind].plural} {KINDS[one.kind].title}"),
        TableColumn(
            "severity",
            "severity",
            lambda one: one.severity.value,
            CellKind.STATE,
            order=lambda one: _SEVERITIES.index(one.severity),
        ),
        TableColumn("hold", "fires after", lambda one: one.hold_ms, CellKind.DURATION),
        TableColumn("keep_firing", "resolved after", lambda one: one.keep_firing_ms, CellKind.DURATION),
        TableColumn("from", "from", lambda one: "default" if one == default_rule(one.kind) else "settings"),
    ),
    lambda one: (one.kind, KINDS[one.kind].title, one.severity.value),
    "There are no rules.",
)


@blueprint.get("/alerts")
def page() -> str | Response:
    context = console()
    settings, now_ms = context.settings, context.now_ms()
    stored = context.sources.read("alerts", lambda: read_alerts(settings, now_ms), max_age_s=AGE_S)
    rules = context.sources.read("alert rules", lambda: rules_of(settings.alerts.rules), max_age_s=AGE_S)
    if (response := unchanged(stored, rules)) is not None:
        return response
    shown = request.args.get("show", "")
    shown = shown if shown in VIEWS else "alerts"
    view = _view(shown, stored.value or StoredAlerts(), rules.value or {}, now_ms)
    if (export := view.export(stored, rules)) is not None:
        return export
    found = stored.value or StoredAlerts()
    present = found.of_state(AlertState.FIRING) + found.of_state(AlertState.PENDING)
    return render_template(
        "alerts.html",
        headline=alert_headline(stored, now_ms),
        stored=stored,
        rules=rules,
        present=present[:LISTED_MAX],
        present_count=len(present),
        active=[one for one in found.silences if one.ends_ms > now_ms],
        evaluated_ms=found.evaluated_ms,
        has_targets=settings.alerts.has_targets,
        views=VIEWS,
        shown=shown,
        may_act=viewer().may_administer_everything,
        table=view,
    )


def read_alerts(settings: Settings, now_ms: int) -> StoredAlerts:
    """Reads the alerts from the audit's database, without creating it.

    Raises:
        AlertStoreUnavailable: the database cannot be used.
    """
    with AlertStore(alert_address(settings), creates=False) as store, store.reading() as reader:
        silences = reader.silences()
        alerts = [ShownAlert(one, silence_of(one, silences, now_ms)) for one in reader.alerts()]
        deliveries, evaluated_ms = reader.log(DELIVERIES_MAX), reader.evaluated_ms()
    alerts.sort(key=lambda one: (-_STATES.index(one.alert.state), one.silence is not None, -one.alert.since_ms))
    return StoredAlerts(alerts, tuple(reversed(silences)), deliveries, evaluated_ms)


def alert_headline(stored: Reading[StoredAlerts], now_ms: int) -> Headline:
    """Returns the first sentence of the page."""
    if not stored.is_known:
        return Headline(UNSURE, "It is not known whether alerts fire.")
    found = stored.known
    firing = found.of_state(AlertState.FIRING)
    loud = [one for one in firing if one.silence is None]
    if loud:
        level = BAD if any(one.alert.severity == AlertSeverity.PAGE for one in loud) else WARN
        silenced = f", and {len(firing) - len(loud):,} silenced" if len(firing) > len(loud) else ""
        return Headline(level, f"{plural(len(loud), 'alert')} {'fires' if len(loud) == 1 else 'fire'}{silenced}.")
    if found.evaluated_ms is None:
        return Headline(UNSURE, "Alerts have not been evaluated yet.")
    if now_ms - found.evaluated_ms > BEHIND_MS:
        return Headline(WARN, "No alert fires, but they have not been evaluated for a while.")
    if firing:
        words = "The only firing alert is" if len(firing) == 1 else f"All {len(firing):,} firing alerts are"
        return Headline(WARN, f"{words} silenced.")
    return Headline(GOOD, "No alert fires.")


ABOUT_NO_TOPIC: Final = frozenset({"audit-old", "audit-log-incomplete"})
"""Kinds of the audit whose subject is no topic."""


def page_of(one: Alert | StatusFinding) -> str:
    """Returns the URL of the page about the subject of an alert or finding; "" without such a page."""
    if one.kind.startswith("audit-") and one.kind not in ABOUT_NO_TOPIC:
        return url_for("topic.page", topic=one.subject)
    if one.kind.startswith("file-"):  # the subject is a file in the directory of a topic
        return url_for("topic.page", topic=one.subject.partition("/")[0])
    if one.kind == "alarm-quarantined":
        return url_for("quarantine.page", topic=one.subject)
    return url_for("loads.page") if one.kind.startswith("load-") else ""


def _view(shown: str, stored: StoredAlerts, rules: Mapping[str, AlertRule], now_ms: int) -> TableView[Any]:
    extra = {"show": shown} if shown != "alerts" else {}
    if shown == "silences":
        return SILENCES.view(stored.silences, now_ms, extra=extra)
    if shown == "deliveries":
        by_id = {one.alert.id: one.alert for one in stored.alerts}
        rows = [ShownDelivery(one, by_id.get(one.alert_id)) for one in stored.deliveries]
        return DELIVERIES.view(rows, now_ms, extra=extra)
    if shown == "rules":
        return RULES.view(tuple(rules.values()), now_ms, extra=extra)
    return ALERTS.view(stored.alerts, now_ms, extra=extra)
