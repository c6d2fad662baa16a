"""A simple client of sessions, as the documentation describes one, and a reader of the stored records."""

from __future__ import annotations

import http.client
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import confluent_kafka

TIMEOUT_S = 20.0
READ_TIMEOUT_S = 30.0


def request(url: str, method: str, body: bytes, content_type: str) -> tuple[int, dict[str, str], Any]:
    """Sends a request; returns status, headers and the parsed body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, path, body, {"Content-Type": content_type})
        response = connection.getresponse()
        content = response.read()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(content or b"null")
    finally:
        connection.close()


def open_session(url: str, **fields: Any) -> tuple[int, Any]:
    """Opens a session, following redirections; returns the status and the body."""
    for _ in range(3):
        status, headers, body = request(f"{url}/v1/sessions", "POST", json.dumps(fields).encode(), "application/json")
        if status != 307:
            break
        url = headers["location"].removesuffix("/v1/sessions")
    return status, body


def send_lines(url: str, session: str, begin: int, lines: Sequence[bytes]) -> tuple[int, Any]:
    body = b"".join(line + b"\n" for line in lines)
    status, _, found = request(f"{url}/v1/sessions/{session}/chunks?begin={begin}", "POST", body, "text/plain")
    return status, found


@dataclass(frozen=True, slots=True)
class StoredLine:
    """A stored record `LogLine`. Its line is `NAME NUMBER …`."""

    source: str
    seqno: int
    name: str
    number: int
    partition: int
    offset: int


def stored_values(address: str, topic: str) -> dict[str, list[tuple[int, bytes]]]:
    """Returns the sequence number and the value of all records of a topic by source, in the order of the log."""
    found: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for message in read_to_end(address, topic):
        source, seqno = _source_and_seqno(message)
        found[source].append((seqno, message.value()))
    return dict(found)


def stored_lines(address: str, topic: str, known: Sequence[StoredLine] = ()) -> list[StoredLine]:
    """Returns all records of a topic, in the order of the log of each partition.

    Args:
        known: the result of an earlier call, whose records are not read again.
    """
    found = list(known)
    for message in read_to_end(address, topic, {one.partition: one.offset + 1 for one in known}):
        name, number = line_of_value(message.value()).split(None, 2)[:2]
        found.append(
            StoredLine(*_source_and_seqno(message), name.decode(), int(number), message.partition(), message.offset())
        )
    return found


def _source_and_seqno(message: Any) -> tuple[str, int]:
    headers = dict(message.headers() or [])
    return headers["hr.s"].decode(), int.from_bytes(headers["hr.q"], "big")


def read_to_end(
    address: str, topic: str, starts: Mapping[int, int] = MappingProxyType({})
) -> list[confluent_kafka.Message]:
    """Returns the messages of a topic up to its last stable offsets, in the order of each partition.

    Args:
        starts: the offset to begin at, by partition.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "read-to-end",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, READ_TIMEOUT_S).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, starts.get(number, 0)) for number in partitions])
    found: list[confluent_kafka.Message] = []
    waiting = set(partitions)
    while waiting:
        message = consumer.poll(READ_TIMEOUT_S)
        assert message is not None, f"partitions {waiting} of {topic} do not end"
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            waiting.discard(message.partition())
            continue
        found.append(message)
    consumer.close()
    return found


def lines_of_values(values: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """Returns the lines of the values of records `LogLine`."""
    return [line_of_value(value) for _, value in values]


def line_of_value(value: bytes) -> bytes:
    """Returns the line of a record `LogLine`, which follows 5 bytes of the schema's id."""
    size = shift = 0
    position = 5
    while True:
        size |= (value[position] & 127) << shift
        shift += 7
        position += 1
        if value[position - 1] < 128:
            break
    return value[position : position + (size >> 1)]
