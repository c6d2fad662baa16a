"""The completeness of one topic: its messages tier by tier, charts, and the windows that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, abort, render_template, request
from werkzeug.wrappers import Response

from headrace.audit.event import AuditEvent
from headrace.audit.stored import StoredWindow
from headrace.audit.strip import STATE_BYTES
from headrace.audit.verdict import AuditVerdict, Hop
from headrace.audit.window import SPECIAL_WINDOWS
from headrace.console.audit_reader import TopicAudit
from headrace.console.caching import unchanged
from headrace.console.context import console, viewer
from headrace.console.drawing.charts import topic_charts
from headrace.console.drawing.periods import SHORT_RANGE_WORDS, ShownPeriod
from headrace.console.drawing.rails import rail_paths, rail_text
from headrace.console.formats import iso
from headrace.console.headline import other_findings
from headrace.console.pages.now import read_status
from headrace.console.tables import CellKind, PagedTable, TableColumn
from headrace.pipeline.status.finding import PlatformStatus, StatusFinding

blueprint = Blueprint("topic", __name__)

CALM: Final = frozenset({AuditVerdict.COMPLETE, AuditVerdict.PENDING, AuditVerdict.UNTRACKED})
"""Verdicts of windows that are not listed."""
CONSUMERS_MAX: Final = 3


def _difference(one: StoredWindow) -> int | None:
    return (one.extra - one.missing) or None


WINDOWS: Final[PagedTable[StoredWindow]] = PagedTable(
    "windows",
    (
        TableColumn("window", "window", lambda one: one.window_start_ms if one.has_end else None, CellKind.TIME),
        TableColumn(
            "verdict",
            "verdict",
            lambda one: one.verdict.value,
            CellKind.STATE,
            order=lambda one: STATE_BYTES[one.verdict],
        ),
        TableColumn("sent", "sent", lambda one: one.sent, CellKind.NUMBER),
        TableColumn("acknowledged", "acknowledged", lambda one: one.acknowledged, CellKind.NUMBER),
        TableColumn("stored", "in the log", lambda one: one.stored, CellKind.NUMBER),
        TableColumn("written", "in the table", lambda one: one.written, CellKind.NUMBER),
        TableColumn("quarantined", "quarantined", lambda one: one.quarantined or None, CellKind.NUMBER),
        TableColumn("difference", "difference", _difference, CellKind.NUMBER),
        TableColumn("why", "why", lambda one: one.sentence),
    ),
    lambda one: (one.verdict.value, one.sentence),
    "All windows of this time are complete.",
    page_rows=50,  # below the charts, more rows would be half of the browser's work
)


@dataclass(frozen=True, slots=True)
class TierStep:
    """A tier on the way of the messages. `messages` is None if it has no counts; `difference` compares it with the tier
    before, and `is_altered` states that as many messages, but other ones, arrived."""

    name: str
    messages: int | None
    difference: int = 0
    is_altered: bool = False


@blueprint.get("/topics/<name:topic>", merge_slashes=False)
def page(topic: str) -> str | Response:
    context = console()
    now_ms = context.now_ms()
    shown = request.args.get("range", "")
    period = ShownPeriod.of("30d" if shown == "1y" else shown, request.args.get("at", ""), now_ms)
    findings = findings_of(topic, read_status().value)
    revision = context.sources.read("audit revision", context.audit.revision)
    if (response := unchanged(revision, variant=repr(findings))) is not None:
        return response
    name = f"topic {period.name} {period.first_ms} {topic}"
    audit = context.sources.read(name, lambda: context.audit.topic(topic, period, now_ms))
    if audit.is_known and audit.known.summary is None:
        abort(404, f"No messages of the topic {topic} have been counted. The topic may have been deleted.")
    found = audit.value or TopicAudit(None, (), (), bytes(period.windows))
    shows_all = request.args.get("show") == "all"
    listed = [one for one in found.windows if shows_all or one.verdict not in CALM]
    extra = {key: request.args[key] for key in ("range", "at", "show") if key in request.args}
    view = WINDOWS.view(listed, now_ms, extra=extra)
    if (export := view.export(audit)) is not None:
        return export
    settled = [one for one in found.windows if one.verdict != AuditVerdict.PENDING]
    return render_template(
        "topic.html",
        topic=topic,
        audit=audit,
        summary=found.summary,
        events=sorted(found.events, key=lambda one: (not one.is_open, -one.start_ms)),
        findings=findings,
        period=period,
        ranges=SHORT_RANGE_WORDS,
        steps=tier_steps(settled),
        pending=len(found.windows) - len(settled),
        charts=topic_charts(found.windows, period),
        rail_of_topic=rail_paths(found.strip),
        rail_text=rail_text(found.strip),
        table=view,
        shows_all=shows_all,
        may_act=topic.isprintable() and viewer().may_administer(topic),
        period_of=_period_of,
        special=SPECIAL_WINDOWS,
    )


def _period_of(event: AuditEvent) -> dict[str, str]:
    """Returns the arguments of the action that accepts the windows of an event."""
    found = {"topic": event.topic}
    return found if event.start_ms < 0 else {**found, "since": iso(event.start_ms), "until": iso(event.end_ms)}


def findings_of(topic: str, status: PlatformStatus | None) -> list[StatusFinding]:
    """Returns the findings of the status about a topic or its files, without those about incidents of the audit. The
    status folds equal findings of several topics into one, which the first page shows."""
    return [one for one in other_findings(status) if one.subject == topic or one.subject.startswith(f"{topic}/")]


def tier_steps(windows: Sequence[StoredWindow]) -> list[TierStep]:
    """Returns the tiers in the order in which messages pass them, with the sums of the windows."""
    altered = {one.hop for one in windows if one.verdict == AuditVerdict.MISMATCH and not one.missing + one.extra}
    sent = _sum([one.sent for one in windows])
    acknowledged, stored = (_sum([getattr(one, name) for one in windows]) for name in ("acknowledged", "stored"))
    written = _sum([one.written for one in windows])
    quarantined = _sum([one.quarantined for one in windows]) or 0
    loaded = None if written is None else written + quarantined
    steps = [TierStep("sent", sent)]
    if acknowledged is not None:
        steps.append(TierStep("acknowledged", acknowledged, _less(acknowledged, sent)))
    before = sent if acknowledged is None else acknowledged
    steps.append(TierStep("in the log", stored, _less(stored, before), Hop.PRODUCER_TO_LOG in altered))
    words = f"in the table, {quarantined:,} of them in quarantine" if quarantined else "in the table"
    steps.append(TierStep(words, loaded, _less(loaded, stored), Hop.LOG_TO_TABLES in altered))
    consumers = sorted({name for one in windows for name in one.consumed})
    for consumer in consumers[:CONSUMERS_MAX]:
        count = sum(one.consumed.get(consumer, 0) for one in windows)
        steps.append(TierStep(f"consumed by {consumer}", count, _less(count, stored)))
    return steps


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _less(count: int | None, before: int | None) -> int:
    return 0 if count is None or before is None else count - before
