"""The first page: is anything missing, late or doubled? Incidents and findings with their commands, then a map of all
topics and windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flask import Blueprint, render_template, request
from werkzeug.wrappers import Response

from headrace.audit.stored import CompletenessTimes, TopicSummary
from headrace.console.audit_reader import AuditOverview
from headrace.console.caching import unchanged
from headrace.console.context import console
from headrace.console.drawing.periods import RANGE_WORDS, ShownPeriod
from headrace.console.drawing.rails import LEGEND, crowd, crowd_height, rail_paths, rail_text, worst_state
from headrace.console.headline import headline, other_findings, worst_first
from headrace.console.sources import LIMIT_S, Reading
from headrace.console.tables import query_text
from headrace.pipeline.status.collect import platform_status
from headrace.pipeline.status.finding import PlatformStatus

blueprint = Blueprint("now", __name__)

STATUS_AGE_S: Final = 15.0
COMPLETENESS_AGE_S: Final = 60.0
CLOSED_MAX: Final = 20
"""Resolved incidents that are listed, the newest first. The pages of their topics have all."""
TOPICS_MAX: Final = 300
"""Topics of the map on one page."""


@dataclass(frozen=True, slots=True)
class RailRow:
    """A row of the map: a topic, its worst state, the paths of its rail, and its messages."""

    topic: str
    worst: int
    paths: list[tuple[str, str]]
    text: str
    missing: int
    extra: int
    complete_until_ms: int | None


def read_status(limit_s: float = LIMIT_S) -> Reading[PlatformStatus]:
    """Returns the findings of all sources of `headrace status`, at most `STATUS_AGE_S` old if that is possible.

    Args:
        limit_s: the longest wait.
    """
    settings, open_log = console().settings, console().commits.opened_for_status
    return console().sources.read(
        "status", lambda: platform_status(settings, open_log=open_log), max_age_s=STATUS_AGE_S, limit_s=limit_s
    )


@blueprint.get("/")
def page() -> str | Response:
    context = console()
    now_ms = context.now_ms()
    period = ShownPeriod.of(request.args.get("range", ""), request.args.get("at", ""), now_ms)
    status = read_status()
    revision = context.sources.read("audit revision", context.audit.revision)
    if (response := unchanged(revision, status)) is not None:
        return response
    name = f"overview {period.name} {period.first_ms}"
    audit = context.sources.read(name, lambda: context.audit.overview(period, now_ms))
    completeness = context.sources.read(
        "completeness", lambda: context.audit.completeness(now_ms), max_age_s=COMPLETENESS_AGE_S
    )
    found = audit.value or AuditOverview()
    query, shows_all = query_text(), request.args.get("show") == "all"
    rows = rail_rows(found, query, shows_all=shows_all)
    return render_template(
        "now.html",
        headline=headline(
            found.open_incidents if audit.is_known else None,
            len(found.summaries),
            status.value,
            is_checking=status.is_running,
        ),
        audit=audit,
        incidents=worst_first(found.open_incidents),
        closed=sorted(found.closed_incidents, key=lambda one: -one.start_ms)[:CLOSED_MAX],
        closed_count=len(found.closed_incidents),
        status=status,
        findings=other_findings(status.value),
        facts=_facts(found, completeness.value, status.value),
        period=period,
        ranges=RANGE_WORDS,
        rows=rows[:TOPICS_MAX],
        hidden=max(0, len(rows) - TOPICS_MAX),
        topics=len(found.strips),
        query=query,
        shows_all=shows_all,
        crowd=[
            (one.column, *(crowd_height(count, len(found.strips)) for count in (one.missing, one.extra, one.unknown)))
            for one in crowd(list(found.strips.values()), period.columns)
        ],
        legend=LEGEND,
    )


def rail_rows(found: AuditOverview, query: str, *, shows_all: bool) -> list[RailRow]:
    """Returns the rows of the map, the worst first: the topics with a worrying state in the period, or those that the
    search matches, or all."""
    summaries: dict[str, TopicSummary] = {one.topic: one for one in found.summaries}
    lower = query.lower()
    chosen = []
    for topic, strip in found.strips.items():
        worst = worst_state(strip)
        if lower in topic.lower() and (shows_all or query or worst):
            chosen.append((topic, strip, worst))
    chosen.sort(key=lambda one: (-one[2], -found.missing.get(one[0], 0) - found.extra.get(one[0], 0), one[0]))
    return [
        RailRow(
            topic,
            worst,
            rail_paths(strip),
            rail_text(strip),
            found.missing.get(topic, 0),
            found.extra.get(topic, 0),
            summaries[topic].complete_until_loaded_ms if topic in summaries else None,
        )
        for topic, strip, worst in chosen[: TOPICS_MAX + 1]
    ] + [RailRow(topic, 0, [], "", 0, 0, None) for topic, _, _ in chosen[TOPICS_MAX + 1 :]]


@dataclass(frozen=True, slots=True)
class NowFacts:
    """The facts below the first sentence; None for unknown ones."""

    complete_until_ms: int | None
    excluded: int
    loaded_within_ms: int | None
    counted_at_ms: int | None
    load_succeeded_at_ms: int | None
    quarantined: int | None


def _facts(
    found: AuditOverview, completeness: dict[str, CompletenessTimes] | None, status: PlatformStatus | None
) -> NowFacts:
    affected = {topic for incident in found.open_incidents for topic in incident.topics}
    times = [one.complete_until_loaded_ms for one in found.summaries if one.is_loaded and one.topic not in affected]
    loaded = (completeness or {}).get("loaded")
    succeeded_s = _metric(status, "headrace_load_last_success_timestamp_seconds")
    quarantined = _metric(status, "headrace_quarantined_messages_not_accepted")
    return NowFacts(
        complete_until_ms=min((one for one in times if one is not None), default=None),
        excluded=len(affected),
        loaded_within_ms=None if loaded is None else loaded.share_999.p95_ms,
        counted_at_ms=found.last_counted_ms,
        load_succeeded_at_ms=None if succeeded_s is None else int(succeeded_s * 1000),
        quarantined=None if quarantined is None else int(quarantined),
    )


def _metric(status: PlatformStatus | None, name: str) -> float | None:
    """Returns the sum of a metric of the status; None if no source reported it."""
    facts = () if status is None else status.facts
    values = [metric.value for fact in facts for metric in fact.metrics if metric.name == name]
    return sum(values) if values else None
