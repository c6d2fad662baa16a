"""A bounded sample of a partition's messages: the newest ones, or those from an offset or a time on. Needs the
permission `payload` on the topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, Response, abort, make_response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from headrace.console.context import ConsoleContext, console, viewer
from headrace.console.formats import bytes_text, parse_offset, parse_time
from headrace.console.security import NO_STORE
from headrace.console.tables import CellKind, PagedTable, TableColumn, is_export
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.pipeline.message_sample import (
    MessageSample,
    SampledMessage,
    SampleLimits,
    SampleStart,
    decode_sample,
    read_sample,
)
from headrace.registry.errors import RegistryError

logger = logging.getLogger(__name__)

blueprint = Blueprint("messages", __name__)

COUNTS: Final = {"50": "50", "200": "200", "500": "500"}
COUNT_DEFAULT, COUNT_MAX = 50, 500
VALUE_CHARS: Final = 2_000
"""Characters of a value that a page shows; the rest is a download."""
KEY_BYTES, UNDECODED_BYTES, HEADER_BYTES = 200, 200, 100
WAIT_S: Final = 6.0
"""Longest wait: for connections, for reading and for decoding."""
PARTITION_MAX: Final = (1 << 31) - 1
PARTS: Final = ("value", "key")


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message of a topic partition in the page. `is_whole` is True in exports, which have the whole texts."""

    message: SampledMessage
    where: TopicPartition
    is_whole: bool

    @property
    def key(self) -> str:
        key = self.message.key
        return "" if key is None else bytes_text(key, len(key) if self.is_whole else KEY_BYTES)

    @property
    def value(self) -> str:
        """The decoded value, or the first bytes of one that is not decoded; "" without a value."""
        one = self.message
        if one.value is None:
            return ""
        if not one.text:
            return bytes_text(one.value, len(one.value) if self.is_whole else UNDECODED_BYTES)
        return one.text if self.is_whole or len(one.text) <= VALUE_CHARS else f"{one.text[:VALUE_CHARS]} …"

    @property
    def problem(self) -> str:
        return self.message.problem or ("no value (tombstone)" if self.message.value is None else "")

    @property
    def headers(self) -> str:
        return "; ".join(
            f"{name}={'' if value is None else bytes_text(value, HEADER_BYTES)}" for name, value in self.message.headers
        )


def _find_url(one: ShownMessage) -> str:
    where = one.where
    return url_for("find.page", topic=where.topic, partition=where.partition, offset=one.message.offset)


def _value_url(one: ShownMessage) -> str:
    where = one.where
    return url_for("messages.part", topic=where.topic, partition=where.partition, offset=one.message.offset)


MESSAGES: Final[PagedTable[ShownMessage]] = PagedTable(
    "messages",
    (
        TableColumn("offset", "offset", lambda one: one.message.offset, CellKind.NUMBER, href=_find_url),
        TableColumn(
            "time",
            "time",
            lambda one: one.message.timestamp_ms if one.message.timestamp_ms >= 0 else None,
            CellKind.TIME,
        ),
        TableColumn("event_time", "event time", lambda one: one.message.time_ms, CellKind.TIME),
        TableColumn("key", "key", lambda one: one.key, CellKind.CODE),
        TableColumn("value", "value", lambda one: one.value, CellKind.CODE),
        TableColumn("problem", "not decoded", lambda one: one.problem),
        TableColumn("schema_id", "schema", lambda one: one.message.schema_id, CellKind.NUMBER),
        TableColumn("bytes", "bytes", lambda one: len(one.message.value or b""), CellKind.NUMBER, href=_value_url),
        TableColumn("headers", "headers", lambda one: one.headers),
    ),
    lambda one: (one.key, one.message.text or one.value, one.problem, one.headers),
    "There are no messages in these offsets.",
)


@blueprint.get("/messages")
def page() -> AnyResponse:
    topic = request.args.get("topic", "")
    if (refused := _refused(topic)) is not None:
        return refused
    where, start, count = TopicPartition(topic, _partition()), _start(), _count()
    context, now_ms = console(), console().now_ms()
    user = viewer().name
    name = f"messages {user} {where} {start} {count}"
    found = context.sources.read(name, lambda: _sample(context, user, where, start, count), limit_s=WAIT_S)
    sample = found.value
    extra: dict[str, str] = {"topic": topic, "partition": str(where.partition), "count": str(count)}
    if sample is not None:
        extra["offset"] = str(sample.start)
    exports = is_export()
    messages = sample.messages if sample is not None else ()
    view = MESSAGES.view([ShownMessage(one, where, exports) for one in messages], now_ms, extra=extra)
    if (export := view.export(found)) is not None:
        return _not_stored(export)
    text = render_template(
        "messages.html",
        topic=topic,
        where=where,
        found=found,
        sample=sample,
        count=count,
        counts=COUNTS,
        table=view,
        undecoded=sum(1 for one in messages if one.problem),
        links=_links(sample, where, count),
    )
    return _not_stored(make_response(text))


@blueprint.get("/messages/part")
def part() -> AnyResponse:
    """Responds with the bytes of the value, or of the key with `part=key`, of one message."""
    topic = request.args.get("topic", "")
    if (refused := _refused(topic)) is not None:
        return refused
    where, start = TopicPartition(topic, _partition()), _start()
    context, user = console(), viewer().name
    name = f"messages {user} {where} {start} 1"
    found = context.sources.read(name, lambda: _sample(context, user, where, start, 1), limit_s=WAIT_S)
    if not found.is_known:
        abort(503, found.reason)
    chosen = request.args.get("part", PARTS[0])
    one = next((one for one in found.known.messages if one.offset == start.offset), None)
    data = None if one is None else one.key if chosen == "key" else one.value
    if data is None:
        abort(404, "The log has no such message, or the message has no value.")
    response = Response(data, content_type="application/octet-stream")
    suffix = "key" if chosen == "key" else "value"
    response.headers["Content-Disposition"] = (
        f'attachment; filename="headrace-message-{where.partition}-{start.offset}.{suffix}"'
    )
    return _not_stored(response)


def _refused(topic: str) -> AnyResponse | None:
    """Checks the permission `payload`. Returns a redirect to the sign-in for anonymous viewers without it, None with
    it.

    Raises:
        Forbidden: the viewer is signed in, or there are no users.
        NotFound: no topic is given.
    """
    if not topic:
        abort(404, "Choose a topic in the list of topics.")
    if viewer().may_read_payload(topic):
        return None
    if console().access.users is None or viewer().name or request.authorization:
        abort(403, f"The messages of {topic} need the permission payload on this topic: grant NAME payload TOPIC.")
    return redirect(url_for("sign_in.page", next=request.full_path))


def _sample(context: ConsoleContext, user: str, where: TopicPartition, start: SampleStart, count: int) -> MessageSample:
    limits = SampleLimits(count)
    with context.brokers.read_of(user):
        sample = context.brokers.use(lambda cluster: read_sample(cluster, where, start, limits))
        logger.info(
            "messages_read user=%s topic=%s partition=%d start=%d end=%d",
            user,
            where.topic,
            where.partition,
            sample.start,
            sample.end,
        )
        try:
            registry = context.registry.client()
        except RegistryError as error:
            return sample.undecoded(str(error))
        return decode_sample(sample, where, registry, context.settings.loader, limits)


def _links(sample: MessageSample | None, where: TopicPartition, count: int) -> Mapping[str, str]:
    """Returns the URLs of the samples before and after this one; "" if there are no messages."""
    if sample is None:
        return {"earlier": "", "later": "", "newest": ""}
    address = {"topic": where.topic, "partition": where.partition, "count": count}
    earlier = max(sample.log_start, sample.start - count)
    has_earlier, has_later = sample.start > sample.log_start, sample.start < sample.end < sample.log_end
    return {
        "earlier": url_for("messages.page", **address, offset=earlier) if has_earlier else "",  # type: ignore[arg-type]
        "later": url_for("messages.page", **address, offset=sample.end) if has_later else "",  # type: ignore[arg-type]
        "newest": url_for("messages.page", **address),  # type: ignore[arg-type]
    }


def _partition() -> int:
    return _number("partition", 0, PARTITION_MAX)


def _count() -> int:
    return max(1, _number("count", COUNT_DEFAULT, COUNT_MAX))


def _start() -> SampleStart:
    offset, at = request.args.get("offset", "").strip(), request.args.get("at", "").strip()
    try:
        return SampleStart(parse_offset(offset) if offset else None, parse_time(at) if at else None)
    except ValueError as error:
        abort(400, str(error))


def _number(name: str, default: int, most: int) -> int:
    text = request.args.get(name, "").strip()
    try:
        return min(most, parse_offset(text)) if text else default
    except ValueError:
        abort(400, f"{name}: expected a number from 0 on.")


def _not_stored(response: Response) -> Response:
    response.headers["Cache-Control"] = NO_STORE
    return response
