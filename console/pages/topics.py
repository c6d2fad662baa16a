"""All topics with counts: which of them need attention?"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, render_template, url_for
from werkzeug.wrappers import Response

from headrace.audit.stored import TopicSummary
from headrace.audit.strip import STATE_BYTES
from headrace.console.caching import unchanged
from headrace.console.context import console
from headrace.console.tables import CellKind, PagedTable, TableColumn

blueprint = Blueprint("topics", __name__)

TOPICS: Final[PagedTable[TopicSummary]] = PagedTable(
    "topics",
    (
        TableColumn("topic", "topic", lambda one: one.topic, href=lambda one: url_for("topic.page", topic=one.topic)),
        TableColumn(
            "verdict",
            "verdict",
            lambda one: one.verdict.value,
            CellKind.STATE,
            order=lambda one: STATE_BYTES[one.verdict],
        ),
        TableColumn("messages_24h", "messages in 24 h", lambda one: one.messages_24h, CellKind.NUMBER),
        TableColumn("missing", "missing", lambda one: one.missing or None, CellKind.NUMBER),
        TableColumn("extra", "extra", lambda one: one.extra or None, CellKind.NUMBER),
        TableColumn("complete_until_log", "log complete until", lambda one: one.complete_until_log_ms, CellKind.TIME),
        TableColumn(
            "complete_until_loaded", "table complete until", lambda one: one.complete_until_loaded_ms, CellKind.TIME
        ),
        TableColumn("last_counted", "last counts", lambda one: one.last_counted_ms, CellKind.TIME),
    ),
    lambda one: (one.topic, one.verdict.value),
    "No messages have been counted yet.",
)


@blueprint.get("/topics")
def page() -> str | Response:
    context = console()
    now_ms = context.now_ms()
    revision = context.sources.read("audit revision", context.audit.revision)
    if (response := unchanged(revision)) is not None:
        return response
    found = context.sources.read("topics", lambda: context.audit.summaries(now_ms))
    rows = sorted(found.value or (), key=lambda one: (-STATE_BYTES[one.verdict], -one.missing - one.extra, one.topic))
    view = TOPICS.view(rows, now_ms)
    return view.export(found) or render_template("topics.html", table=view, topics=found)
