"""Requests to a gateway, and the records that it wrote."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Consumer, Message, TopicPartition

from support.gateway_document import check_response

TIMEOUT_S = 60
NAMES = itertools.count()
V2 = "application/vnd.kafka.v2+json"
JSON_V2, BINARY_V2, AVRO_V2 = (f"application/vnd.kafka.{form}.v2+json" for form in ("json", "binary", "avro"))


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """A response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def items(self) -> list[Any]:
        """The objects of a stream."""
        return [json.loads(line) for line in self.content.split(b"\r\n") if line]

    @property
    def problem(self) -> tuple[int, int]:
        """The status and the error code."""
        return self.status, self.json["error_code"]


class GatewayClient:
    """Sends requests to a gateway, each on a connection of its own."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None, user: str = "", password: str = "") -> None:
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self._context = context
        self._headers = {}
        if user:
            self._headers["authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **headers: str
    ) -> GatewayResponse:
        """Sends a request. A body that is not bytes is sent as JSON; `_` in names of headers stands for `-`.

        Raises:
            AssertionError: the gateway's OpenAPI document does not have the response.
        """
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = self._headers | {name.replace("_", "-"): value for name, value in headers.items()}
        if content is not None:
            named["content-type"] = content_type
        connection = (
            http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
            if self._context is None
            else http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=self._context)
        )
        try:
            connection.request(method, path, content, named)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            content = response.read()
            check_response(method, path, response.status, found, content)
            return GatewayResponse(response.status, found, content)
        finally:
            connection.close()

    def post(self, path: str, body: Any, content_type: str = "application/json", **headers: str) -> GatewayResponse:
        return self.request("POST", path, body, content_type, **headers)

    def produce(self, topic: str, *records: Any, cluster: str = "any") -> list[Any]:
        """Sends records to the stream of version 3. Returns the items of the response."""
        body = b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in records)
        return self.post(f"/v3/clusters/{cluster}/topics/{topic}/records", body).items


class InstanceClient:
    """Sends requests to a new consumer instance."""

    def __init__(self, gateway: GatewayClient, form: str = "json", group: str = "", **config: Any) -> None:
        number = next(NAMES)
        self.gateway, self.form, self.group, self.name = gateway, form, group or f"group{number}", f"i{number}"
        body = {"name": self.name, "format": form, "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
        created = gateway.post(f"/consumers/{self.group}", body | config, V2)
        assert created.status == 200, created.content
        self.path = f"/consumers/{self.group}/instances/{self.name}"
        assert created.json["instance_id"] == self.name
        self.base_uri = created.json["base_uri"]

    def post(self, path: str, body: Any = None) -> GatewayResponse:
        return self.gateway.request("POST", f"{self.path}/{path}", body, V2)

    def get(self, path: str) -> GatewayResponse:
        return self.gateway.request("GET", f"{self.path}/{path}")

    def assign(self, topic: str, *partitions: int) -> InstanceClient:
        body = {"partitions": [{"topic": topic, "partition": one} for one in partitions or (0,)]}
        assert self.post("assignments", body).status == 204
        return self

    def subscribe(self, **body: Any) -> InstanceClient:
        assert self.post("subscription", body).status == 204
        return self

    def read(self, query: str = "timeout=10000") -> list[Any]:
        response = self.get(f"records?{query}")
        assert response.status == 200, response.content
        assert response.headers["content-type"] == f"application/vnd.kafka.{self.form}.v2+json"
        return list(response.json)

    def read_until(self, count: int) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += self.read()
        return found

    def committed(self, topic: str) -> dict[int, int]:
        found = self.get("offsets?" + "&".join(f"topic={topic}&partition={one}" for one in range(4))).json["offsets"]
        return {one["partition"]: one["offset"] for one in found}


def produce(gateway: GatewayClient, topic: str, *values: Any, partition: int = 0) -> None:
    body = {"records": [{"value": value, "partition": partition} for value in values]}
    assert gateway.post(f"/topics/{topic}", body, JSON_V2).status == 200


def values(records: list[Any]) -> list[Any]:
    return [one["value"] for one in records]


def stored(address: str, topic: str, count: int) -> list[Message]:
    """Reads `count` messages of a topic from its start, ordered by partition and offset."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False})
    try:
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found = list(_messages(consumer, count))
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def _messages(consumer: Consumer, count: int) -> Iterator[Message]:
    deadline = time.monotonic() + TIMEOUT_S
    while count:
        assert time.monotonic() < deadline, f"{count} messages are missing"
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            count -= 1
            yield message
