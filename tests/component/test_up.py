"""`headrace up` as a user sees it: one ready line, real clients, a clean stop, everything there after a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 10_000
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": "string"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
FREE_PORTS = ["--registry-listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0", "--hive-listen", "127.0.0.1:0"]


def headrace(*arguments: str, code: int = 0) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert run.returncode == code, run.stderr[-4000:]
    return run.stdout


def http(method: str, url: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def listening_beyond_loopback(root_pid: int) -> list[str]:
    """Local addresses of listening TCP sockets of the process tree that are not loopback."""
    pids = process_tree(root_pid)
    inodes = set()
    for pid in pids:
        try:
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            continue
    found = []
    for table, loopback in (("tcp", ("0100007F",)), ("tcp6", ("0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F"))):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes and fields[1].split(":")[0] not in loopback:
                found.append(f"{table} {fields[1]}")
    return found


def process_tree(root_pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    found = {root_pid}
    while True:
        grown = found | {pid for pid, parent in parents.items() if parent in found}
        if grown == found:
            return found
        found = grown


def produce_with_confluent(registry_url: str, broker: str, count: int) -> None:
    from confluent_kafka import SerializingProducer
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import StringSerializer

    serializer = AvroSerializer(SchemaRegistryClient({"url": registry_url}), json.dumps(ORDER))
    producer = SerializingProducer(
        {
            "bootstrap.servers": broker,
            "key.serializer": StringSerializer("utf_8"),
            "value.serializer": serializer,
        }
    )
    failed = []
    for number in range(count):
        while True:
            try:
                producer.produce(
                    "orders",
                    key=str(number),
                    value={"id": number, "item": f"item {number}", "timestamp": 1_700_000_000_000 + number},
                    on_delivery=lambda error, message: failed.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    assert failed == []


@pytest.mark.timeout(600)
def test_a_day_with_up(tmp_path: Path, start_service: Callable[..., Any]) -> None:
    data_dir = tmp_path / "data"
    arguments = ["headrace", "up", "--data-dir", str(data_dir), *FREE_PORTS, "--sql-listen", "127.0.0.1:0"]
    up = start_service(*arguments)
    registry, broker = up.addresses["registry"], up.addresses["broker"]
    where = ["--data-dir", str(data_dir)]

    registered = http("POST", f"{registry}/subjects/orders-value/versions", {"schema": json.dumps(ORDER)})
    assert registered["id"] == 1
    produce_with_confluent(registry, broker, MESSAGES)
    headrace("load", *where)

    counted = json.loads(headrace("sql", *where, "--format", "json", "SELECT count(*) AS n FROM orders"))
    assert counted == [{"n": MESSAGES}]
    assert count_with_pyhive(up.addresses["sql"]) == MESSAGES
    assert count_with_second_session(up.addresses["metastore"], tmp_path) == MESSAGES
    assert listening_beyond_loopback(up.process.pid) == []

    second = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert second.returncode == 2
    assert f"(process {up.process.pid})" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1

    assert up.stop() == 0
    assert (data_dir / "up.json").read_text() == ""

    again = start_service(*arguments)
    assert http("GET", again.addresses["registry"] + "/subjects") == ["orders-value"]
    assert count_messages(again.addresses["broker"]) == MESSAGES
    headrace("load", *where)
    assert json.loads(headrace("sql", *where, "--format", "json", "SELECT count(*) AS n FROM orders")) == [
        {"n": MESSAGES}
    ]


@pytest.mark.timeout(300)
def test_the_whole_ends_when_a_part_dies(tmp_path: Path, start_service: Callable[..., Any]) -> None:
    up = start_service("headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS)
    broker = next(pid for pid in process_tree(up.process.pid) if b"broker\0serve" in command_line(pid))
    others = process_tree(up.process.pid) - {up.process.pid}
    os.kill(broker, signal.SIGKILL)
    assert up.process.wait(60) == 2
    assert any("the broker died" in line for line in up.errors)
    assert all_gone(others)


@pytest.mark.timeout(300)
def test_nothing_is_left_when_it_is_killed(tmp_path: Path, start_service: Callable[..., Any]) -> None:
    up = start_service("headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS)
    others = process_tree(up.process.pid) - {up.process.pid}
    up.kill()
    assert all_gone(others)


@pytest.mark.timeout(300)
def test_a_taken_port_is_one_clear_line(tmp_path: Path, broker_address: str) -> None:
    taken = ["--broker-listen", broker_address]  # given last, it wins
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, *taken],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 2
    assert len(run.stderr.strip().splitlines()) == 1, run.stderr
    assert broker_address in run.stderr


def count_with_pyhive(address: str) -> int:
    from pyhive import hive

    host, port = address.rsplit(":", 1)
    connection = hive.connect(host=host, port=int(port))
    cursor = connection.cursor()
    cursor.execute("SELECT count(*) FROM headrace.orders")
    count = cursor.fetchone()[0]
    connection.close()
    return int(count)


def count_with_second_session(metastore: str, tmp_path: Path) -> int:
    """A Spark of the user's own, configured with nothing but the metastore's address."""
    code = (
        "import sys\nfrom pyspark.sql import SparkSession\n"
        "s = (SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "  .config('spark.hadoop.hive.metastore.uris', sys.argv[1]).enableHiveSupport().getOrCreate())\n"
        "print('count', s.sql('SELECT count(*) FROM headrace.orders').collect()[0][0])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, metastore], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return int(run.stdout.rpartition("count ")[2])


def count_messages(broker: str) -> int:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=broker)
    partitions = [TopicPartition("orders", number) for number in consumer.partitions_for_topic("orders") or ()]
    count = sum(consumer.end_offsets(partitions).values())
    consumer.close()
    return int(count)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def all_gone(pids: set[int]) -> bool:
    """Waits for processes to end; a zombie has ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.2)
    return False


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
