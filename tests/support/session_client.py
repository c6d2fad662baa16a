"""A simple client of sessions, as the documentation describes one, and a reader of the stored records."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import confluent_kafka

TIMEOUT_S = 20.0
PAUSE_S = 0.1
CHUNK_LINES_MAX = 40
READ_TIMEOUT_S = 30.0


class SessionOver(Exception):
    """Another client has opened a later session of the source."""


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


class LineSender(threading.Thread):
    """Sends the lines of a file until all are acknowledged.

    Args:
        urls: gateways; it opens each session at a random one, as through a balancer.
        lines: the content of the file, without newlines.
        seed: of the sizes of chunks.
    """

    def __init__(self, urls: Sequence[str], topic: str, source_id: str, lines: Sequence[bytes], seed: int) -> None:
        super().__init__(daemon=True)
        self._urls, self._topic, self._source_id, self._lines = urls, topic, source_id, lines
        self._random = random.Random(seed)
        self._ends = [0]
        for line in lines:
            self._ends.append(self._ends[-1] + len(line) + 1)
        self.stop = threading.Event()
        self.limit = len(lines)
        """How many lines may be sent now."""
        self.acknowledged = 0
        """How many lines were acknowledged."""
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while self.acknowledged < len(self._lines) and not self.stop.is_set():
                self._send()
                self.stop.wait(PAUSE_S)
        except Exception as error:
            self.failure = error

    def _send(self) -> None:
        """Opens a session, and sends chunks until one fails."""
        try:
            status, found = open_session(
                self._random.choice(self._urls),
                topic=self._topic,
                source_id=self._source_id,
                host="test",
                file=self._source_id,
            )
            if status in (503, 307, 404):
                return
            assert status == 200, found
            last = found["last_seqno"]
            assert self._ends.index(last) >= self.acknowledged, "acknowledged lines are not stored any more"
            self.acknowledged = self._ends.index(last)
            while self.acknowledged < len(self._lines) and not self.stop.is_set():
                first = self.acknowledged
                lines = self._lines[first : min(self.limit, first + self._random.randint(1, CHUNK_LINES_MAX))]
                if not lines:
                    self.stop.wait(PAUSE_S)
                    continue
                status, stored = send_lines(found["url"], found["session"], self._ends[first], lines)
                if status == 409:
                    raise SessionOver
                if status in (503, 307, 404):
                    return
                assert status == 200, stored
                assert stored["last_seqno"] == self._ends[first + len(lines)]
                self.acknowledged = first + len(lines)
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            return


def stored_values(address: str, topic: str) -> dict[str, list[tuple[int, bytes]]]:
    """Returns the sequence number and the value of all records of a topic by source, in the order of the log."""
    found: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for message in read_to_end(address, topic):
        headers = dict(message.headers() or [])
        found[headers["hr.s"].decode()].append((int.from_bytes(headers["hr.q"], "big"), message.value()))
    return dict(found)


def read_to_end(address: str, topic: str) -> list[confluent_kafka.Message]:
    """Returns the messages of a topic up to its last stable offsets, in the order of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "read-to-end",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, READ_TIMEOUT_S).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
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
    """Returns the lines of the values of records `LogLine`, which follow 5 bytes of the schema's id."""
    lines = []
    for _, value in values:
        size = shift = 0
        position = 5
        while True:
            size |= (value[position] & 127) << shift
            shift += 7
            position += 1
            if value[position - 1] < 128:
                break
        lines.append(value[position : position + (size >> 1)])
    return lines
