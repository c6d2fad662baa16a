"""The complete path of a message: producer, registry, broker, load, Hive table, SQL.

This is the only test with Spark in `make test`. Every part is a real process, started as users start it. If it fails,
run `make test-spark`, whose tests find the cause.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from headrace import Producer
from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.checkout import ROOT

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Sale",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "item", "type": ["null", "string"], "default": None},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
)
FIRST_MS = 1_767_225_600_000  # 2026-01-01T00:00Z
HOUR_MS = 3_600_000
SALES = [
    {
        "id": n,
        "item": None if n % 5 == 0 else f"é {n}",
        "tags": ["a"] * (n % 3),
        "timestamp": FIRST_MS + n % 2 * HOUR_MS,
    }
    for n in range(30)
]
QUERY = """
    SELECT id, item, tags, timestamp, dt,
      (SELECT count(*) FROM headrace_quarantine.sales) AS bad,
      (SELECT max(CAST(value AS STRING)) FROM headrace_quarantine.sales) AS bad_value
    FROM sales ORDER BY id
"""


def headrace(*words: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.timeout(300)
def test_sent_messages_are_rows_of_their_table_and_a_bad_message_is_quarantined(
    memory_path: Path, start_service: Callable[..., Any]
) -> None:
    data_dir = ["--data-dir", str(memory_path)]
    registry = start_service("headrace", "registry", "serve", *data_dir, "--registry-listen", "127.0.0.1:0")
    broker = start_service("headrace", "broker", "serve", *data_dir, "--broker-listen", "127.0.0.1:0")
    registry_url, bootstrap_servers = registry.addresses["registry"], broker.addresses["broker"]
    settings = Settings(
        data_dir=memory_path,
        registry=RegistrySettings(url=registry_url),
        kafka=KafkaSettings(bootstrap_servers=bootstrap_servers),
    )
    with Producer(settings, app="shop") as producer:
        for number, sale in enumerate(SALES):
            producer.send("sales", sale, key=str(number), schema=SCHEMA)
        producer.flush()
    plain_producer = KafkaProducer(bootstrap_servers=bootstrap_servers)
    plain_producer.send("sales", value=b"this is no Avro").get(30)
    plain_producer.close()

    servers = ["--registry-url", registry_url, "--bootstrap-servers", bootstrap_servers]
    headrace("load", *data_dir, *servers, "--master", "local[1]")
    rows = json.loads(headrace("sql", QUERY, "--format", "json", *data_dir, "--master", "local[1]"))
    assert rows == [
        {
            "id": sale["id"],
            "item": sale["item"],
            "tags": sale["tags"],
            "timestamp": f"2026-01-01 0{sale['id'] % 2}:00:00",
            "dt": "2026-01-01",
            "bad": 1,
            "bad_value": "this is no Avro",
        }
        for sale in SALES
    ]
