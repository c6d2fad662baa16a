"""Quarantined messages by topic and reason: number, first and last time, and the commands to repair them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, render_template, request, url_for
from werkzeug.wrappers import Response

from headrace.console.caching import unchanged
from headrace.console.commit_reader import CommitReader
from headrace.console.context import console, viewer
from headrace.console.errors import ConsoleError
from headrace.console.tables import CellKind, PagedTable, TableColumn
from headrace.loader.inspect.quarantine_groups import (
    NOT_READ,
    GroupLimits,
    QuarantinedTopic,
    QuarantineGroup,
    quarantined_topics,
)
from headrace.pipeline.storage import warehouse_storage
from headrace.settings import Settings
from headrace.settings.addresses import RemoteDirectory, warehouse_location

blueprint = Blueprint("quarantine", __name__)

AGE_S: Final = 15.0
ALL_LIMITS: Final = GroupLimits(topic_rows_max=1_000, rows_max=10_000, bytes_max=32_000_000)
TOPIC_LIMITS: Final = GroupLimits(topic_rows_max=20_000, rows_max=20_000, bytes_max=64_000_000)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group and its reason, "" if the viewer may not see content of the topic's messages: a reason may quote it."""

    group: QuarantineGroup
    reason: str

    @property
    def state(self) -> str:
        if self.group.code == NOT_READ:
            return ""
        if not self.group.accepted:
            return "open"
        return "accepted" if self.group.accepted >= self.group.count else "partly accepted"


GROUPS: Final[PagedTable[GroupRow]] = PagedTable(
    "quarantine",
    (
        TableColumn(
            "topic",
            "topic",
            lambda one: one.group.topic,
            href=lambda one: url_for("quarantine.page", topic=one.group.topic),
        ),
        TableColumn("code", "reason", lambda one: one.group.code),
        TableColumn("count", "messages", lambda one: one.group.count, CellKind.NUMBER),
        TableColumn("state", "accepted", lambda one: one.state, CellKind.STATE),
        TableColumn("first", "first", lambda one: one.group.first_ms, CellKind.TIME),
        TableColumn("last", "last", lambda one: one.group.last_ms, CellKind.TIME),
        TableColumn("hint", "looks like", lambda one: one.group.hint),
        TableColumn("reason", "newest reason", lambda one: one.reason),
    ),
    lambda one: (one.group.topic, one.group.code, one.state, one.group.hint, one.reason),
    "No messages are in the quarantine.",
)

COMMANDS: Final = (
    ("see", "headrace quarantine show {topic}"),
    ("pending ones", "headrace quarantine preview {topic}"),
    ("load", "headrace quarantine replay {topic} --dry-run"),
    ("delete", "headrace quarantine discard {topic} --because TEXT --dry-run"),
    ("accept", "headrace accept {topic} --kind quarantined --reason TEXT"),
)
"""What the commands do, and the commands. Without `--dry-run` they change the table."""


@blueprint.get("/quarantine")
def page() -> str | Response:
    context = console()
    settings, now_ms = context.settings, context.now_ms()
    topic = request.args.get("topic", "")
    read = context.sources.read(
        f"quarantine {topic}", lambda: read_topics(context.commits, settings, now_ms, topic), max_age_s=AGE_S
    )
    if (response := unchanged(read)) is not None:
        return response
    topics = read.value or ()
    may_read = {one.topic: viewer().may_read_payload(one.topic) for one in topics}
    rows = [GroupRow(group, group.reason if may_read[one.topic] else "") for one in topics for group in one.groups]
    view = GROUPS.view(rows, now_ms, extra={"topic": topic} if topic else {})
    if (export := view.export(read)) is not None:
        return export
    quoted = shlex.quote(topic)
    return render_template(
        "quarantine.html",
        read=read,
        topic=topic,
        found=topics[0] if topic and topics else None,
        topics=topics,
        messages=sum(one.messages for one in topics),
        not_accepted=sum(one.not_accepted for one in topics),
        not_read=sum(one.group.count for one in rows if one.group.code == NOT_READ),
        hides_reasons=not all(may_read.values()),
        commands=[(words, command.replace("{topic}", quoted)) for words, command in COMMANDS],
        may_act=topic.isprintable() and viewer().may_administer(topic),
        table=view,
    )


def read_topics(commits: CommitReader, settings: Settings, now_ms: int, topic: str) -> tuple[QuarantinedTopic, ...]:
    """Returns the topics with quarantined messages and their groups.

    Args:
        topic: only this topic, with larger limits; "" for all.

    Raises:
        ConsoleError: the warehouse is not a local directory, and reading it would start a JVM.
        LoaderError: the commits cannot be read.
        OSError: the storage failed.
    """
    if isinstance(warehouse_location(settings), RemoteDirectory):
        raise ConsoleError("the warehouse is not a local directory; run headrace quarantine list")
    files, limits = warehouse_storage(settings).files, TOPIC_LIMITS if topic else ALL_LIMITS
    return commits.read(lambda log: quarantined_topics(log, files.open, now_ms, limits, topic))
