"""Finds a message by its offset, by a time, or by its key.

The offset of a message determines its fate. A time determines an offset of each partition. A key would need a scan of
the log, so the page states its cost and the command that searches the table.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, abort, render_template, request, url_for
from werkzeug.wrappers import Response

from headrace.console.broker_reader import TopicTimes
from headrace.console.context import console, viewer
from headrace.console.formats import parse_offset, parse_time
from headrace.console.message_fate import WITH_KEYS, key_command, read_fate
from headrace.console.pages.partitions import AGE_S, read_loader_state, read_topic
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import EMPTY, LoaderState
from headrace.loader.inspect.offsets import BrokerOffsets

blueprint = Blueprint("find", __name__)

HOUR_MS: Final = 3_600_000
WAIT_S: Final = 4.0
"""Longest wait for the files that may contain a message."""
PARTITION_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """The first message of a partition at or after a time. Without an `offset` the partition has no such message, or
    `problem` is the reason."""

    topic: str
    partition: int
    offset: int | None
    problem: str


def _fate_url(one: TimedOffset) -> str:
    if one.offset is None:
        return ""
    return url_for("find.page", topic=one.topic, partition=one.partition, offset=one.offset)


TIMES: Final[PagedTable[TimedOffset]] = PagedTable(
    "offsets-at-a-time",
    (
        TableColumn("partition", "partition", lambda one: str(one.partition), order=lambda one: one.partition),
        TableColumn("offset", "first offset", lambda one: one.offset, CellKind.NUMBER, href=_fate_url),
        TableColumn("problem", "problem", lambda one: one.problem),
    ),
    lambda one: (str(one.partition), one.problem),
    "The topic has no partitions.",
)


@blueprint.get("/find")
def page() -> str | Response:
    topic, key = request.args.get("topic", "").strip(), request.args.get("key", "")
    offset, at_ms = _number("offset"), _time("at")
    if topic and offset is not None:
        return _by_offset(topic, _number("partition") or 0, offset)
    if topic and key:
        return _by_key(topic, key)
    if topic and at_ms is not None:
        return _by_time(topic, at_ms)
    return render_template("find.html", **_form(), topic=topic)


def _by_offset(topic: str, partition: int, offset: int) -> str:
    context = console()
    settings = context.settings
    partition = min(partition, PARTITION_MAX)
    name = f"fate {topic} {partition} {offset}"
    fate = context.sources.read(
        name, lambda: read_fate(context.commits, settings, topic, partition, offset), max_age_s=AGE_S, limit_s=WAIT_S
    )
    state = read_loader_state()
    log = read_topic(topic, state.value or EMPTY)
    found = log.value.partitions.get(TopicPartition(topic, partition)) if log.value is not None else None
    quoted = shlex.quote(topic)
    return render_template(
        "find_offset.html",
        **_form(),
        topic=topic,
        partition=partition,
        offset=offset,
        fate=fate,
        detail=fate.value.detail(may_read_payload=viewer().may_read_payload(topic)) if fate.value is not None else "",
        log=log,
        log_problem=(log.value.problem or (found.problem if found else "")) if log.value is not None else "",
        place=_place(found, offset),
        locate_command=f"headrace locate {quoted} {partition} {offset}",
    )


def _place(found: BrokerOffsets | None, offset: int) -> str:
    """Returns where the offset is relative to the partition's log; "" if unknown."""
    if found is None or found.start is None or found.end is None:
        return ""
    if offset < found.start:
        return "deleted"
    if offset < found.end:
        return "in the log"
    return "open" if found.high_watermark is not None and offset < found.high_watermark else "not written"


def _by_time(topic: str, at_ms: int) -> str | Response:
    context = console()
    found = context.sources.read(f"times {topic} {at_ms}", lambda: context.brokers.times(topic, at_ms), max_age_s=AGE_S)
    times = found.value or TopicTimes((), {}, {})
    rows = [
        TimedOffset(topic, number, times.offsets.get(number), times.errors.get(number, ""))
        for number in times.partitions
    ]
    view = TIMES.view(rows, context.now_ms(), extra={"topic": topic, "at": str(at_ms)})
    if (export := view.export(found)) is not None:
        return export
    return render_template(
        "find_time.html", **_form(), topic=topic, at_ms=at_ms, found=found, problem=times.problem, table=view
    )


def _by_key(topic: str, key: str) -> str:
    context = console()
    settings, now_ms = context.settings, context.now_ms()
    until_ms = _time("until")
    until_ms = now_ms if until_ms is None else until_ms
    since_ms = _time("since")
    since_ms = max(0, until_ms - HOUR_MS) if since_ms is None else since_ms
    if not since_ms < until_ms:
        abort(400, "The time “from” must be before the time “to”.")
    state = read_loader_state()
    minute = 60_000
    first_ms, last_ms = since_ms // minute * minute, -(-until_ms // minute) * minute
    cost = context.sources.read(
        f"between {topic} {first_ms} {last_ms}",
        lambda: context.brokers.between(topic, first_ms, last_ms),
        max_age_s=AGE_S,
    )
    loaded = state.value or EMPTY
    known = loaded.topics.get(topic)
    return render_template(
        "find_key.html",
        **_form(),
        topic=topic,
        key=key,
        since_ms=since_ms,
        until_ms=until_ms,
        loads=state,
        cost=cost,
        messages=cost.value.messages if cost.value is not None else None,
        size=_size(loaded, topic, cost),
        is_loaded=known is not None,
        has_keys=known is not None and known.kafka_column == WITH_KEYS,
        sql=key_command(settings, loaded, topic, key, since_ms, until_ms),
    )


def _size(state: LoaderState, topic: str, cost: Reading[TopicTimes]) -> int | None:
    """Returns the estimated number of bytes of the messages to scan; None if the topic was not loaded."""
    known = state.topics.get(topic)
    if known is None or cost.value is None:
        return None
    sizes = [one.bytes_per_kilo_offset for one in known.partitions.values()]
    return cost.value.messages * sum(sizes) // max(1, len(sizes)) // 1000


def _form() -> dict[str, str]:
    """Returns the values of the forms."""
    names = ("partition", "offset", "at", "key", "since", "until")
    return {f"form_{name}": request.args.get(name, "") for name in names}


def _number(name: str) -> int | None:
    text = request.args.get(name, "").strip()
    try:
        return parse_offset(text) if text else None
    except ValueError:
        abort(400, f"{name}: expected a number from 0 on.")


def _time(name: str) -> int | None:
    text = request.args.get(name, "").strip()
    try:
        return parse_time(text) if text else None
    except ValueError as error:
        abort(400, str(error))
