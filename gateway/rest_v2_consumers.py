"""Version 2 of the REST Proxy's interface: consumer instances, and reads of one partition without an instance.

A commit of offset N stores N + 1, because clients send the offset of the last record that they have processed. A commit
without offsets stores the positions after the records that were delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.gateway.access import caller_of
from headrace.gateway.cluster_admin import EARLIEST, LATEST, REQUEST_S, Partition
from headrace.gateway.consumer_instances import Instance, InstanceConfig, Source
from headrace.gateway.consumer_polling import PolledConsumer, Read, ReadLimits
from headrace.gateway.decoding import Formats
from headrace.gateway.encoding import Format
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.record_fields import time_ms, whole_number
from headrace.gateway.request_body import body_of, parse_names, until_disconnected
from headrace.gateway.responses import json_bytes, json_response
from headrace.gateway.rest_v2 import MEDIA_TYPE, PARTITION_MAX, accepted_types, check_accept

TIMEOUT_MS: Final = 1_000
TIMEOUT_MS_MAX: Final = 60_000
FETCH_MIN_BYTES_MAX: Final = 10_000_000
YIELD_EVERY: Final = 200
"""How many messages are decoded before other requests get a turn."""

_INSTANCE_FIELDS: Final = frozenset(
    {
        "id",
        "name",
        "format",
        "key_format",
        "auto.offset.reset",
        "auto.commit.enable",
        "fetch.min.bytes",
        "consumer.request.timeout.ms",
    }
)
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NAME: Final = re.compile(r"[^/]{1,255}", re.DOTALL)
_BODY_TYPE: Final = re.compile(r"application/(vnd\.kafka(\.(binary|json|avro|jsonschema|protobuf))?(\.v[12])?\+)?json")
_RECORD_TYPE: Final = re.compile(r"application/vnd\.kafka\.(binary|json|avro|jsonschema|protobuf)\.v2\+json")
FORMATS: Final = (Format.BINARY, Format.JSON, Format.AVRO)
"""The formats of records in this version of the interface."""


def media_type(form: Format) -> str:
    return f"application/vnd.kafka.{form.value}.v2+json"


# Requests


async def _body(request: Request) -> dict[str, Any]:
    """Returns the body of a request; {} if it has none.

    Raises:
        GatewayError: the body is no JSON object, or has a text that cannot be sent to the brokers.
    """
    async with body_of(request, request.app.state.budget) as reader:
        text = await reader.read()
    if not text.strip():
        return {}
    name = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if name and not _BODY_TYPE.fullmatch(name):
        raise GatewayError(Kind.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type {MEDIA_TYPE}, found {name!r:.80}")
    body = parse_names(text)
    if not isinstance(body, dict):
        raise GatewayError(Kind.MALFORMED, "expected an object")
    return body


def parse_config(body: Mapping[str, Any]) -> InstanceConfig:
    """Returns the configuration of an instance.

    Raises:
        GatewayError: a value is invalid, or a field is unknown.
    """
    unknown = next((name for name in body if name not in _INSTANCE_FIELDS), None)
    if unknown is not None:
        raise GatewayError(Kind.MALFORMED, f"unrecognized field {unknown!r:.80}")
    form = _one_of(body, "format", Format.BINARY, FORMATS)
    key_form = _one_of(body, "key_format", form, tuple(Format))
    return InstanceConfig(
        Formats(Format(key_form), Format(form)),
        _one_of(body, "auto.offset.reset", "latest", ("earliest", "latest", "none")),
        _one_of(body, "auto.commit.enable", "true", ("true", "false")) == "true",
        _number(body, "fetch.min.bytes", -1, FETCH_MIN_BYTES_MAX, Kind.FETCH_MIN_BYTES, 1),
        _number(body, "consumer.request.timeout.ms", 0, 2**31 - 1, Kind.CONSUMER_CONFIG, None),
    )


def _one_of(body: Mapping[str, Any], name: str, default: str, allowed: Sequence[str]) -> str:
    value = body.get(name)
    if value is None:
        return default
    text = str(value).lower() if isinstance(value, (str, bool)) else value
    if text not in allowed:
        raise GatewayError(Kind.CONSUMER_CONFIG, f"{name}: expected {' or '.join(allowed)}, found {value!r:.80}")
    return str(text)


def _number(body: Mapping[str, Any], name: str, least: int, most: int, kind: Kind, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    with contextlib.suppress(ValueError, TypeError):
        if not isinstance(value, (bool, float)) and least <= int(value) <= most:
            return int(value)
    raise GatewayError(kind, f"{name}: expected a number from {least} to {most}, found {value!r:.80}")


def parse_subscription(body: Mapping[str, Any]) -> tuple[list[str], Source]:
    """Returns the topics to subscribe to, or one pattern for librdkafka.

    Raises:
        GatewayError: the body has not the form of the interface.
    """
    topics, pattern = body.get("topics"), body.get("topic_pattern")
    if topics is not None and pattern is not None:
        raise GatewayError(Kind.ILLEGAL_STATE, "expected topics or topic_pattern, found both")
    if pattern is not None:
        if not isinstance(pattern, str) or not pattern:
            raise GatewayError(Kind.MALFORMED, "topic_pattern: expected a regular expression")
        return [f"^({pattern})$"], Source.PATTERN
    if not isinstance(topics, list) or not topics:
        raise GatewayError(Kind.MALFORMED, "expected a list of topics, or a topic_pattern")
    return [_topic(one, f"topics[{index}]") for index, one in enumerate(topics)], Source.TOPICS


def _topic(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _TOPIC.fullmatch(value):
        raise GatewayError(Kind.MALFORMED, f"{where}: expected the name of a topic, found {value!r:.80}")
    return value


def _list(body: Mapping[str, Any], name: str, *, is_required: bool = True) -> list[Mapping[str, Any]]:
    found = body.get(name)
    if found is None and not is_required:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise GatewayError(Kind.MALFORMED, f"expected a list {name!r} of objects")
    return found


def parse_partitions(body: Mapping[str, Any], name: str = "partitions") -> list[TopicPartition]:
    """Returns the topic partitions of a list in a body.

    Raises:
        GatewayError: the list has not the form of the interface.
    """
    return [_partition(one, f"{name}[{index}]") for index, one in enumerate(_list(body, name))]


def _partition(item: Mapping[str, Any], where: str) -> TopicPartition:
    partition = whole_number(item.get("partition"))
    if partition is None or not 0 <= partition <= PARTITION_MAX:
        raise GatewayError(Kind.MALFORMED, f"{where}.partition: expected a number from 0 on")
    return TopicPartition(_topic(item.get("topic"), f"{where}.topic"), partition)


def parse_offsets(body: Mapping[str, Any], *, is_required: bool) -> list[TopicPartition]:
    """Returns the topic partitions, offsets and metadata of the list `offsets` in a body.

    Raises:
        GatewayError: the list has not the form of the interface.
    """
    found = []
    for index, item in enumerate(_list(body, "offsets", is_required=is_required)):
        one, metadata = _partition(item, f"offsets[{index}]"), item.get("metadata")
        offset = whole_number(item.get("offset"))
        if offset is None or not 0 <= offset < 2**63 - 1:
            raise GatewayError(Kind.MALFORMED, f"offsets[{index}].offset: expected a number from 0 on")
        if metadata is not None and not isinstance(metadata, str):
            raise GatewayError(Kind.MALFORMED, f"offsets[{index}].metadata: expected a text")
        found.append(TopicPartition(one.topic, one.partition, offset, metadata or ""))
    return found


def accepted_format(accept: str, own: Format | None = None) -> Format:
    """Returns the format of records that a client accepts. If it names none, that is the instance's own or binary.

    Raises:
        GatewayError: the client accepts only other formats.
    """
    check_accept(accept)
    for name in accepted_types(accept):
        found = _RECORD_TYPE.fullmatch(name)
        if found is None:
            return own or Format.BINARY
        if found[1] in (FORMATS if own is None else (own,)):
            return Format(found[1])
    known = " or ".join(media_type(form) for form in (FORMATS if own is None else (own,)))
    raise GatewayError(Kind.FORMAT_MISMATCH, f"expected Accept {known}, found {accept!r:.80}")


def query_number(request: Request, name: str, default: int | None, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        raise GatewayError(Kind.BAD_REQUEST, f"{name}: expected a number, found {text!r:.80}")
    value = int(text)
    return default if value < 0 else min(value, most)


# Responses


def respond(content: Any) -> Response:
    return json_response(content, media_type=MEDIA_TYPE)


def _no_content() -> Response:
    return Response(status_code=204)


async def respond_records(request: Request, polled: PolledConsumer, limits: ReadLimits, formats: Formats) -> Response:
    """Reads, and returns the response.

    Raises:
        ClientDisconnect: the client has disconnected. The next read has the messages.
        GatewayError: the consumer cannot read, or the registry does not respond. The next read has the messages.
    """
    body = await _read_items(request, polled, limits, formats)
    return Response(body, media_type=media_type(formats.value))


async def _read_items(request: Request, polled: PolledConsumer, limits: ReadLimits, formats: Formats) -> bytes:
    async with request.app.state.poller.read(polled, limits) as read:
        gone = asyncio.ensure_future(until_disconnected(request))
        try:
            await asyncio.wait({read.done, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientDisconnect
            await read.done
            if not read.messages:
                await polled.require_brokers()
            body = await _items(request, read, formats)
            await asyncio.sleep(0)  # lets the event loop notice a disconnection
            if gone.done():
                raise ClientDisconnect
        finally:
            gone.cancel()
        polled.deliver(read.messages)
        return body


async def _items(request: Request, read: Read, formats: Formats) -> bytes:
    state, client, size = request.app.state, caller_of(request).key, 2 * read.size
    state.budget.take(client, size)
    try:
        items = []
        for index, message in enumerate(read.messages):
            if index % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            items.append(await state.decoder.item(message, formats))
        return b"[" + b",".join(items) + b"]"
    finally:
        state.budget.release(client, size)


# Endpoints


def _instance(request: Request) -> Instance:
    path, user = request.path_params, caller_of(request).principal.name
    found: Instance = request.app.state.instances.find(path["group"], path["instance"], user)
    return found


async def create(request: Request) -> Response:
    caller = caller_of(request)
    caller.require_any()
    state, group = request.app.state, request.path_params["group"]
    body = await _body(request)
    if not group.isprintable() or group != group.strip():  # librdkafka would trim it, and abort if nothing is left
        raise GatewayError(
            Kind.CONSUMER_CONFIG, f"group {group!r:.80}: expected printable characters, without spaces around them"
        )
    for part in ("id", "name"):
        value = body.get(part)
        if value is not None and not (isinstance(value, str) and _NAME.fullmatch(value) and value not in (".", "..")):
            raise GatewayError(Kind.CONSUMER_CONFIG, f"{part}: expected a text of 1 to 255 characters without a slash")
    name, config = body.get("name") or body.get("id"), parse_config(body)
    if name is not None and state.peers.may_pass_on(request):
        state.instances.require_new(group, name)
        response: Response | None = await state.peers.create(request, group, name, json_bytes(body))
        if response is not None:
            return response
    instance = await state.instances.create(group, name, config, caller.principal.name)
    base = (state.settings.gateway.url or str(request.base_url)).rstrip("/")
    uri = f"{base}/consumers/{quote(group, safe='')}/instances/{quote(instance.name, safe='')}"
    return respond({"instance_id": instance.name, "base_uri": uri})


async def delete(request: Request) -> Response:
    await request.app.state.instances.delete(_instance(request))
    return _no_content()


async def subscribe(request: Request) -> Response:
    instance, body = _instance(request), await _body(request)
    topics, source = parse_subscription(body)
    caller = caller_of(request)
    if source is Source.TOPICS:
        for topic in topics:
            caller.require_consume(topic)
    try:
        await instance.subscribe(topics, source, caller.principal.may_read_payload)
    except GatewayError as error:
        if source is Source.PATTERN and error.kind is Kind.MALFORMED:
            pattern = body["topic_pattern"]
            raise GatewayError(error.kind, f"topic_pattern: {pattern!r:.80} is no regular expression") from error
        raise
    return _no_content()


async def subscription(request: Request) -> Response:
    instance = _instance(request)
    topics = instance.topics
    if instance.source is Source.PATTERN:
        topics = sorted({topic for topic, _ in await instance.assigned()})
    return respond({"topics": topics})


async def unsubscribe(request: Request) -> Response:
    await _instance(request).unsubscribe()
    return _no_content()


async def assign(request: Request) -> Response:
    instance, body = _instance(request), await _body(request)
    partitions = parse_partitions(body)
    for one in partitions:
        caller_of(request).require_consume(one.topic)
    await instance.assign(partitions)
    return _no_content()


async def assignments(request: Request) -> Response:
    found = await _instance(request).assigned()
    return respond({"partitions": [{"topic": topic, "partition": partition} for topic, partition in found]})


async def seek(request: Request) -> Response:
    instance, body = _instance(request), await _body(request)
    targets = parse_offsets(body, is_required="timestamps" not in body)
    times: dict[Partition, OffsetSpec] = {}
    for index, item in enumerate(_list(body, "timestamps", is_required=False)):
        where = f"timestamps[{index}]"
        one, found_ms = _partition(item, where), time_ms(item.get("timestamp"), f"{where}.timestamp")
        if found_ms is None:
            raise GatewayError(Kind.MALFORMED, f"{where}.timestamp: expected a time")
        times[one.topic, one.partition] = OffsetSpec.for_timestamp(found_ms)
    await _check_assigned(instance, [*targets, *(TopicPartition(*one) for one in times)])
    cluster = request.app.state.cluster
    found = await cluster.lookup(times)
    found |= await cluster.lookup({one: LATEST for one, offset in found.items() if offset < 0})
    await instance.polled.seek(
        [*targets, *(TopicPartition(topic, number, offset) for (topic, number), offset in found.items())]
    )
    return _no_content()


async def seek_to_beginning(request: Request) -> Response:
    return await _seek_to(request, EARLIEST)


async def seek_to_end(request: Request) -> Response:
    return await _seek_to(request, LATEST)


async def _seek_to(request: Request, spec: OffsetSpec) -> Response:
    instance, body = _instance(request), await _body(request)
    partitions = parse_partitions(body)
    await _check_assigned(instance, partitions)
    found = await request.app.state.cluster.lookup({(one.topic, one.partition): spec for one in partitions})
    await instance.polled.seek([TopicPartition(topic, number, offset) for (topic, number), offset in found.items()])
    return _no_content()


async def _check_assigned(instance: Instance, wanted: Sequence[TopicPartition]) -> None:
    assigned = await instance.assigned()
    for one in wanted:
        if (one.topic, one.partition) not in assigned:
            raise GatewayError(
                Kind.ILLEGAL_STATE, f"partition {one.partition} of topic {one.topic} is not assigned to the instance"
            )


async def records(request: Request) -> Response:
    instance = _instance(request)
    config, budget = instance.config, request.app.state.budget
    accepted_format(request.headers.get("accept", ""), config.formats.value)
    if instance.source is Source.NONE:
        raise GatewayError(
            Kind.ILLEGAL_STATE, "the instance consumes nothing; subscribe to topics or assign partitions"
        )
    if instance.source is not Source.PATTERN:  # permissions may have changed since
        for topic in instance.topics:
            caller_of(request).require_consume(topic)
    bytes_max = query_number(request, "max_bytes", budget.request_bytes_max, budget.request_bytes_max)
    asked_ms = query_number(request, "timeout", config.timeout_ms, TIMEOUT_MS_MAX)
    limits = ReadLimits(
        bytes_max or 1,
        min(TIMEOUT_MS if asked_ms is None else asked_ms, TIMEOUT_MS_MAX) / 1000,
        2**63 if config.fetch_min_bytes < 0 else config.fetch_min_bytes,
        asked_ms is not None,
    )
    return await respond_records(request, instance.polled, limits, config.formats)


async def commit(request: Request) -> Response:
    instance, body = _instance(request), await _body(request)
    offsets = [
        TopicPartition(one.topic, one.partition, one.offset + 1, one.metadata)
        for one in parse_offsets(body, is_required=bool(body))
    ]

    def call(consumer: Consumer) -> None:
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False) if body else consumer.commit(asynchronous=False)
        except KafkaException as error:
            if not body and error.args[0].code() == KafkaError._NO_OFFSET:
                return  # nothing was delivered since the last commit
            raise
        for one in done or ():
            if one.error is not None:
                raise KafkaException(one.error)

    if offsets or not body:
        await instance.polled.run(call)
    return respond([])


async def committed(request: Request) -> Response:
    instance, body = _instance(request), await _body(request)
    partitions = parse_partitions(body) if body else _query_partitions(request)
    if not body and not request.query_params:
        partitions = [TopicPartition(*one) for one in await instance.assigned()]
    if not partitions:
        return respond({"offsets": []})
    found = await instance.polled.run(lambda consumer: consumer.committed(partitions, timeout=REQUEST_S))
    for one in found:
        if one.error is not None:
            raise GatewayError(Kind.KAFKA_FAILED, str(one.error))
    return respond(
        {
            "offsets": [
                {"topic": one.topic, "partition": one.partition, "offset": one.offset, "metadata": one.metadata or ""}
                for one in found
                if one.offset >= 0
            ]
        }
    )


def _query_partitions(request: Request) -> list[TopicPartition]:
    """Returns the partitions of the query, `topic=a&partition=0&topic=a&partition=1`."""
    topics, numbers = (request.query_params.getlist(name) for name in ("topic", "partition"))
    if len(topics) != len(numbers):
        raise GatewayError(Kind.BAD_REQUEST, "expected as many parameters topic as partition")
    items = [
        {"topic": topic, "partition": int(number) if re.fullmatch("[0-9]{1,10}", number) else number}
        for topic, number in zip(topics, numbers, strict=True)
    ]
    return parse_partitions({"partitions": items})


Endpoint = Callable[[Request], Awaitable[Response]]


def with_accept_check(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint that refuses clients which do not accept JSON."""

    @functools.wraps(endpoint)
    async def checked(request: Request) -> Response:
        check_accept(request.headers.get("accept", ""))
        return await endpoint(request)

    return checked


def with_peers(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint that passes requests for instances of other gateways on to them."""

    @functools.wraps(endpoint)
    async def passed_on(request: Request) -> Response:
        state, group, name = request.app.state, request.path_params["group"], request.path_params["instance"]
        if not state.instances.has(group, name, caller_of(request).principal.name) and state.peers.may_pass_on(request):
            async with body_of(request, state.budget) as reader:
                response: Response | None = await state.peers.find(request, group, name, await reader.read())
            if response is not None:
                return response
        return await endpoint(request)  # which refuses a request for an unknown instance

    return passed_on


_INSTANCE: Final = "/consumers/{group}/instances/{instance}"

ENDPOINTS: Final = (
    ("POST", "/consumers/{group}", create),
    ("DELETE", _INSTANCE, delete),
    ("POST", f"{_INSTANCE}/subscription", subscribe),
    ("GET", f"{_INSTANCE}/subscription", subscription),
    ("DELETE", f"{_INSTANCE}/subscription", unsubscribe),
    ("POST", f"{_INSTANCE}/assignments", assign),
    ("GET", f"{_INSTANCE}/assignments", assignments),
    ("POST", f"{_INSTANCE}/positions", seek),
    ("POST", f"{_INSTANCE}/positions/beginning", seek_to_beginning),
    ("POST", f"{_INSTANCE}/positions/end", seek_to_end),
    ("GET", f"{_INSTANCE}/records", records),
    ("POST", f"{_INSTANCE}/offsets", commit),
    ("GET", f"{_INSTANCE}/offsets", committed),
)


def routes() -> list[Route]:
    """Returns the routes of consumer instances."""
    return [
        Route(path, with_accept_check(endpoint if endpoint is create else with_peers(endpoint)), methods=[method])
        for method, path, endpoint in ENDPOINTS
    ]
