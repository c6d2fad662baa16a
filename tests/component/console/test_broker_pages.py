"""The pages of partitions and messages on a real broker and registry."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import confluent_kafka
import fastavro
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from flask.testing import FlaskClient

from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.console import console_world
from support.console_schemas import ORDER_1
from support.registry.migrated_databases import SqliteTemplate
from support.registry.served_registry import serve_registry

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
HOUR_MS = 3_600_000
ORDER = {"id": 7, "buyer": "Zoë", "total": {"cents": 5, "currency": "EUR"}}


def body(value: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(ORDER_1)), value)
    return out.getvalue()


def transact(address: str, values: list[bytes], *, commits: bool) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": f"t-{commits}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce("orders", value, b"in-transaction", partition=0)
    producer.flush(TIMEOUT_S)
    if commits:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


@pytest.fixture(scope="module")
def client(
    keeping_broker_address: str, sqlite_template: SqliteTemplate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlaskClient]:
    """A console on a topic whose partition 0 has 6 messages, an aborted one, and 2 markers, and whose partition 1 is
    empty. The first messages are five hours old."""
    address, directory = keeping_broker_address, tmp_path_factory.mktemp("console")
    admin = AdminClient({"bootstrap.servers": address})
    topic = NewTopic("orders", 2, 1, config={"retention.ms": str(24 * HOUR_MS)})
    admin.create_topics([topic])["orders"].result(TIMEOUT_S)
    now_ms = time.time_ns() // 1_000_000
    with serve_registry(sqlite_template.copy_to(directory / "registry.db")) as registry:
        with registry.client as registering:
            good = b"\0" + registering.register("orders-value", ORDER_1).schema_id.to_bytes(4, "big") + body(ORDER)
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "compression.type": "lz4"})
        values: list[bytes | None] = [good, b"{}", None, good[:-2], b"\0\0\0\x03\xe7" + good[5:]]
        for value in values:
            producer.produce("orders", value, b"key", 0, timestamp=now_ms - 5 * HOUR_MS, headers=[("trace", b"abc")])
        assert producer.flush(TIMEOUT_S) == 0
        transact(address, [b"never committed"], commits=False)
        transact(address, [good], commits=True)
        settings = Settings(kafka=KafkaSettings(bootstrap_servers=address), registry=RegistrySettings(url=registry.url))
        world = console_world(directory, settings=settings)
        world.now_ms = now_ms
        yield world.client()


def rows(client: FlaskClient, path: str) -> list[dict[str, Any]]:
    response = client.get(path)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = json.loads(response.text)["rows"]
    return found


def test_messages_are_decoded_or_have_the_reason(client: FlaskClient) -> None:
    found = rows(client, "/messages?topic=orders&as=json")
    assert [one["offset"] for one in found] == [0, 1, 2, 3, 4, 7]
    assert [json.loads(one["value"]) for one in found if not one["problem"]] == [ORDER, ORDER]
    assert [bool(one["problem"]) for one in found] == [False, True, True, True, True, False]
    assert found[1]["value"] == "{}"
    assert "no schema with id 999" in found[4]["problem"]
    assert (found[0]["key"], found[0]["headers"]) == ("key", "trace=abc")
    page = " ".join(client.get("/messages?topic=orders").text.split())
    assert "Zoë" in page
    assert "3 offsets without a message" in page
    assert "never committed" not in page


def test_messages_begin_at_an_offset_or_a_time(client: FlaskClient) -> None:
    found = rows(client, "/messages?topic=orders&offset=3&count=2&as=json")
    assert [one["offset"] for one in found] == [3, 4]
    hour_ago_ms = time.time_ns() // 1_000_000 - HOUR_MS
    assert [one["offset"] for one in rows(client, f"/messages?topic=orders&at={hour_ago_ms}&as=json")] == [7]
    assert rows(client, "/messages?topic=orders&partition=1&as=json") == []
    page = client.get("/messages?topic=orders&partition=2")
    assert page.status_code == 200
    assert "Not known:" in page.text
    assert client.get("/messages/part?topic=orders&offset=1").data == b"{}"
    assert client.get("/messages/part?topic=orders&offset=5").status_code == 404  # aborted


def test_partitions_show_when_unread_messages_expire(client: FlaskClient) -> None:
    first, second = rows(client, "/partitions?topic=orders&as=json")
    assert (first["log_start"], first["log_end"], first["lag"]) == (0, 9, 9)
    assert first["expires_in"] == 19 * 3600
    assert (second["lag"], second["first_unread"], second["expires_in"]) == (0, None, None)
    assert [one["topic"] for one in rows(client, "/partitions?as=json")] == ["orders", "orders"]
    assert client.get("/partitions?topic=payments").status_code == 404


def test_time_and_key_are_found_without_a_scan(client: FlaskClient) -> None:
    now_ms = time.time_ns() // 1_000_000
    found = rows(client, f"/find?topic=orders&at={now_ms - HOUR_MS}&as=json")
    assert [(one["partition"], one["offset"]) for one in found] == [("0", 5), ("1", None)]
    page = " ".join(client.get(f"/find?topic=orders&key=key&since={now_ms - 6 * HOUR_MS}").text.split())
    assert "A search would read 9 messages of 2 partitions" in page
    page = " ".join(client.get(f"/find?topic=orders&key=key&since={now_ms - HOUR_MS}").text.split())
    assert "A search would read 4 messages of 2 partitions" in page
    page = client.get("/find?topic=orders&partition=0&offset=1").text
    assert "The offset is in the log" in page
