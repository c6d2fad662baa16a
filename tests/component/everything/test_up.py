"""`headrace up` for its users: one ready line, real clients, a clean stop, and all data after a restart."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.checkout import ROOT
from support.memory_directory import memory_directory
from support.pages import block, blocks, page
from support.processes import LOOPBACK, command_line, descendants, is_running, listening
from support.shared import shared

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("up")]

MESSAGES = 10_000
SALE = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": "string"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
FREE_PORTS = [
    word
    for part in ("registry", "broker", "hive", "console", "gateway")
    for word in (f"--{part}-listen", "127.0.0.1:0")
]


PAGE = page("README.md")


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


def produce_with_confluent(registry_url: str, broker: str, count: int) -> None:
    from confluent_kafka import SerializingProducer
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import StringSerializer

    serializer = AvroSerializer(SchemaRegistryClient({"url": registry_url}), json.dumps(SALE))
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
                    "sales",
                    key=str(number),
                    value={"id": number, "item": f"item {number}", "timestamp": 1_700_000_000_000 + number},
                    on_delivery=lambda error, message: failed.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    assert failed == []


@pytest.mark.timeout(900)
def test_up_serves_documented_clients_and_has_all_data_after_restart(
    memory_path: Path, start_service: Callable[..., Any]
) -> None:
    data_dir = memory_path / "headrace-data"
    arguments = ["headrace", "up", "--data-dir", str(data_dir), *FREE_PORTS, "--sql-listen", "127.0.0.1:0"]
    arguments += ["--interval", "7d"]  # no scheduled load runs between those of the test
    up = start_service(*arguments)
    registry, broker = up.addresses["registry"], up.addresses["broker"]
    flags = ["--data-dir", str(data_dir)]
    ready_parts = [line.split("part=")[1].strip() for line in up.errors if "part_ready" in line]
    assert ready_parts[:3] == ["registry", "broker", "metastore"]

    registered = http("POST", f"{registry}/subjects/sales-value/versions", {"schema": json.dumps(SALE)})
    assert registered["id"] == 1
    produce_with_confluent(registry, broker, MESSAGES)
    run_readme_commands(registry, memory_path)
    run_clients_page(memory_path)
    run_tutorial(broker, memory_path)
    run_notebook(up.addresses["metastore"], memory_path)

    counted = json.loads(headrace("sql", *flags, "--format", "json", "SELECT count(*) AS n FROM sales"))
    assert counted == [{"n": MESSAGES}]
    pyhive, _, spark = blocks(page("docs/tables.md"), "python")
    assert count_with(with_address(pyhive, up.addresses["sql"]), memory_path) == MESSAGES
    assert count_with(spark.replace("thrift://127.0.0.1:9083", up.addresses["metastore"]), memory_path) == MESSAGES
    assert listening(up.process.pid) <= LOOPBACK

    second = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert second.returncode == 2
    assert f"(process {up.process.pid})" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1

    assert up.stop() == 0
    assert (data_dir / "up.json").read_text() == ""

    restarted = start_service(*arguments)
    assert http("GET", restarted.addresses["registry"] + "/subjects") == [
        "headrace.audit-value",
        "orders-value",
        "sales-value",
    ]
    assert count_messages(restarted.addresses["broker"]) == MESSAGES
    headrace("load", *flags)
    assert count_with(with_address(pyhive, restarted.addresses["sql"]), memory_path) == MESSAGES


TRAP = "raise SystemExit(f'{__name__} was imported from the working directory')\n"
APPLICATION = """
import audit, broker, pipeline, registry
from headrace import Producer

with Producer(app="shop") as producer:
    print(producer.send("orders", {"id": 1}, schema=audit.SCHEMA).result(timeout_s=30))
"""


@pytest.fixture(scope="module")
def working_directory() -> Iterator[Path]:
    """A working directory with the names of our packages as directories, some with data, and modules with names that
    the parts import."""
    with memory_directory("working") as directory:
        for name in ("headrace", "registry", "loader", "broker"):
            (directory / name).mkdir()
        for name in ("fastavro", "flask", "json", "kafka", "py4j"):
            (directory / f"{name}.py").write_text(TRAP)
        yield directory


@pytest.fixture(scope="module")
def start_up(working_directory: Path, start_module_service: Callable[..., Any]) -> Iterator[Callable[[], Any]]:
    arguments = ["headrace", "up", "--data-dir", ".", *FREE_PORTS]
    with shared(
        lambda: start_module_service(*arguments, directory=working_directory),
        lambda service: service.process.poll() is None,
        lambda service: service.stop(),
    ) as start:
        yield start


@pytest.fixture
def up(start_up: Callable[[], Any]) -> Any:
    """A `headrace up` in that directory."""
    return start_up()


@pytest.mark.timeout(900)
def test_modules_and_directories_of_working_directory_are_not_imported(up: Any, working_directory: Path) -> None:
    shop = working_directory / "shop"
    for name in ("broker", "registry"):
        (shop / name).mkdir(parents=True)
        (shop / name / "__init__.py").write_text("")
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    (shop / "audit.py").write_text(f"SCHEMA = {json.dumps(schema)!r}")
    (shop / "pipeline.py").write_text("")
    (shop / "application.py").write_text(APPLICATION)
    program = str(Path(sys.executable).parent / "headrace")

    def run(command: list[str], directory: Path) -> str:
        environment = {**os.environ, "HEADRACE__DATA_DIR": str(working_directory)}
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "offset=0" in run([sys.executable, "application.py"], shop)
    assert "rows in" in run([program, "load"], working_directory)
    assert {"broker", "registry.db"} <= {path.name for path in working_directory.iterdir()}
    query = [program, "sql", "--format", "json", "SELECT id FROM orders"]
    assert json.loads(run(query, working_directory)) == [{"id": 1}]


@pytest.mark.timeout(300)
def test_up_ends_when_broker_dies(up: Any) -> None:
    others = descendants(up.process.pid)[1:]
    broker = next(pid for pid in others if "broker serve" in command_line(pid))
    os.kill(broker, signal.SIGKILL)
    assert up.process.wait(60) == 2
    assert up.stop() == 2
    assert any("the broker died" in line for line in up.errors)
    deadline = time.monotonic() + 60
    while any(map(is_running, others)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(300)
def test_up_with_taken_port_exits_2_with_one_line(tmp_path: Path, broker_address: str) -> None:
    used_port = ["--broker-listen", broker_address]  # the last option counts
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, *used_port],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 2
    # without the lines of parts that were ready before
    error_lines = [line for line in run.stderr.splitlines() if "part_ready" not in line]
    assert len(error_lines) == 1, run.stderr
    assert broker_address in error_lines[0]


def run_readme_commands(registry: str, directory: Path) -> None:
    """Runs the commands of the README next to `headrace up`, and compares the output with the README."""
    text, path = re.findall(r"-d '(.*)' \\\n  http://127.0.0.1:8081(\S+)", block(PAGE, "curl"))[0]
    http("POST", registry + path, json.loads(text))
    (directory / "send.py").write_text(block(PAGE, "# send.py"))
    assert run_as_typed("python send.py", directory) == []
    load, query = block(PAGE, "headrace load").splitlines()
    loaded = run_as_typed(load, directory)
    queried = run_as_typed(query, directory)
    shown = block(PAGE, "commit 1: ").splitlines()
    for line in (shown[1], *shown[3:5]):
        assert line.split() in loaded
    header = next(number for number, line in enumerate(shown) if line.startswith("id  "))
    assert queried[0] == shown[header].split()
    assert queried[2][:2] == shown[header + 2].split()[:2]


def run_clients_page(directory: Path) -> None:
    """Runs the code of the page for producers and consumers, after the README's."""
    (directory / "clients.py").write_text("\n".join(blocks(page("docs/clients.md"), "python")))
    printed = run_as_typed("python clients.py", directory)
    assert ["mail", "about", "1"] in printed and ["lamp"] in printed


def run_tutorial(broker: str, directory: Path) -> None:
    """Runs the tutorial's programs and commands in order after the other pages, and compares output and exit codes."""
    output: list[list[str]] = []
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", page("docs/tutorial.md"), re.DOTALL | re.MULTILINE):
        if language == "python":
            (directory / code.split()[1]).write_text(code.replace("127.0.0.1:9092", broker))
        elif language == "sh":
            expected = re.findall(r"# exit code (\d)$", code, re.MULTILINE)
            lines = [f"{line}\n" + "echo exit code $?\n" * ("# exit code" in line) for line in code.splitlines()]
            output = run_as_typed(f"{{ {''.join(lines)} }} 2>&1", directory)
            assert [words[2] for words in output if words[:2] == ["exit", "code"]] == expected, output
        else:
            shown = [masked(words) for words in output]
            missing = [line for line in code.splitlines() if masked(line.split()) not in shown]
            assert missing == [], "\n".join(" ".join(words) for words in output)


def run_notebook(metastore: str, directory: Path) -> None:
    """Runs the code of the page about notebooks on the orders of the other pages."""
    code = "\n".join(blocks(page("docs/notebook.md"), "python"))
    printed = run_with_spark(code.replace("thrift://127.0.0.1:9083", metastore), directory).splitlines()
    assert printed[0].split() == ["product", "pieces", "last_sold"]
    assert {"lamp", "vase"} <= {line.split()[1] for line in printed[1:] if line[:1].isdigit()}
    assert "timestamp: timestamp[us, tz=UTC]" in printed
    assert "lamp" in (directory / "sold.svg").read_text(encoding="utf-8")
    assert (directory / "orders.parquet").read_bytes()[:4] == b"PAR1"


def masked(words: list[str]) -> list[str]:
    """Returns words in which numbers, times and ruling lines have one form."""
    return [re.sub(r"[-\d:Z]{2,}|\d+", "#", word) if not word.isdigit() or len(word) < 3 else word for word in words]


def run_as_typed(line: str, directory: Path) -> list[list[str]]:
    """Runs a typed command in a directory, and returns the words of each line of output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        line, shell=True, cwd=directory, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return [shown.split() for shown in run.stdout.splitlines()]


def with_address(pyhive: str, address: str) -> str:
    """Replaces the address in the program."""
    return pyhive.replace("10000", address.rpartition(":")[2])


def count_with(code: str, directory: Path) -> int:
    """Runs a program that counts orders, on sales, and returns the number that it prints."""
    return int(run_with_spark(code.replace("orders", "sales"), directory))


def run_with_spark(code: str, directory: Path) -> str:
    """Runs a program, with one core if it starts Spark, and returns its output."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.ui.enabled=false pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    # It prints no stack traces of harmless failures.
    error_lines = [
        line for line in run.stderr.splitlines() if "Exception" in line or line.startswith(("\tat ", "Traceback"))
    ]
    assert error_lines == []
    return run.stdout


def count_messages(broker: str) -> int:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=broker)
    partitions = [TopicPartition("sales", number) for number in consumer.partitions_for_topic("sales") or ()]
    count = sum(consumer.end_offsets(partitions).values())
    consumer.close()
    return int(count)
