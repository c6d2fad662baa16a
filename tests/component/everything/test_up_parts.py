"""The parts of `headrace up`: the failure of one part does not disturb the others."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyhive import hive
from thrift.Thrift import TException

from headrace.cli.load_server import EXIT_RESTART
from headrace.clients.producer import Producer
from headrace.loader.run_log import newest_lines
from headrace.pipeline.metrics import render
from headrace.pipeline.sql_protocol import STARTED, SqlRequest, send_query
from headrace.pipeline.sql_server import QUERIES_MAX
from headrace.pipeline.status.collect import platform_status
from headrace.pipeline.up.plan import PARTS
from headrace.settings import load_settings
from support.checkout import ROOT
from support.free_ports import free_port
from support.loader.warm_commands import WarmCommands
from support.memory_directory import memory_directory
from support.processes import command_line, descendants, is_running, start_ticks
from support.shared import shared
from support.status_faults import status_json

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("up_parts")]

FREE_PORTS = [
    word
    for part in ("registry", "broker", "hive", "console", "gateway")
    for word in (f"--{part}-listen", "127.0.0.1:0")
]
ID = {"name": "id", "type": "long"}
ITEM = {"name": "item", "type": "string", "default": "?"}
SALE = json.dumps({"type": "record", "name": "Sale", "fields": [ID]})
SALE_WITH_ITEM = json.dumps({"type": "record", "name": "Sale", "fields": [ID, ITEM]})
HUNGRY = "SELECT size(collect_list(id)) AS n FROM range(200000000)"
ENDLESS = "SELECT count(*) AS n FROM range(100000000) a JOIN range(100000000) b ON a.id % 7 = b.id % 7"
KILLS = int(os.environ.get("HEADRACE_UP_KILLS") or 9)


class Up:
    """A running `headrace up`."""

    def __init__(self, service: Any, data_dir: Path) -> None:
        self.service = service
        self.data_dir = data_dir

    def is_running(self) -> bool:
        return self.service.process.poll() is None

    def stop(self) -> None:
        self.service.stop()

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments, "--data-dir", str(self.data_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.command(*arguments)
        output, errors = process.communicate(timeout=300)
        return process.returncode, output, errors

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Returns the rows of `headrace sql`, from an SQL server that may be restarting."""
        request = SqlRequest(query, "headrace", with_values=True)
        response = send_query(self.data_dir / "sql.sock", request, self.is_running)
        return [dict(zip(response.columns, values, strict=True)) for values in response.values]

    def part(self, name: str) -> int:
        """Returns the process id of a part, or 0 if it does not run."""
        words = {"sql": "sql_server", "metastore": "metastore_server", "load": "headrace load"}.get(
            name, f"{name} serve"
        )
        return next((pid for pid in descendants(self.service.process.pid)[1:] if words in command_line(pid)), 0)

    def producer(self) -> Producer:
        return Producer(app="shop", settings=load_settings(flags={"data_dir": str(self.data_dir)}))


@pytest.fixture(scope="module")
def start_up(start_module_service: Callable[..., Any]) -> Iterator[Callable[[], Up]]:
    environment = {**os.environ, "HEADRACE__SQL__MEMORY": "640m", "HEADRACE__LOADER__PARTITION_BY": "hour"}
    # With this interval no scheduled load runs during the tests.
    arguments = [*FREE_PORTS, "--interval", "7d", "--sql-listen", "127.0.0.1:0"]
    with ExitStack() as directories:

        def start() -> Up:
            data_dir = directories.enter_context(memory_directory("up"))
            command = ["headrace", "up", "--data-dir", str(data_dir), *arguments]
            return Up(start_module_service(*command, environment=environment), data_dir)

        with shared(start, Up.is_running, Up.stop) as get:
            yield get


@pytest.fixture
def up(start_up: Callable[[], Up]) -> Up:
    """The `headrace up` of the module."""
    return start_up()


class Loads:
    """A process of `headrace load serve`, as `headrace up` starts it.

    It does not load the audit topic, into which producers publish counts when a window of ten minutes ends.
    """

    def __init__(self, up: Up, log: Path) -> None:
        self._log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "load", "serve", "--data-dir", str(up.data_dir)],
            env={
                **os.environ,
                "HEADRACE__LOADER__TOPICS_EXCLUDE": r"headrace\.audit",
                "HEADRACE__LOADER__COMPACT_AFTER": "0s",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        assert self._line() == "ready load=waiting\n"

    def request_load(self) -> str:
        return self.request("load")

    def request(self, request: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{request}\n")
        self.process.stdin.flush()
        return self._line()

    def jvms(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if "pyspark-shell" in command_line(pid)]

    def count(self, words: str) -> int:
        return self._log.read_text().count(words)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.mark.timeout(600)
def test_served_loads_share_one_spark_beside_manual_load_and_sql_sees_each(up: Up, tmp_path: Path) -> None:
    """SQL starts before the first load, and the table changes while SQL and the reused Spark are open. A compaction
    turn then merges the files of the loads, those of each schema."""
    loads = Loads(up, tmp_path / "log")
    jvms = []
    yesterday_ms = int(time.time() * 1000) - 86_400_000
    with up.producer() as producer:
        for number in range(4):
            row = {"id": number, **({"item": "tea"} if number > 1 else {})}
            schema = (SALE, SALE_WITH_ITEM)[number > 1]
            producer.send("orders", row, schema=schema, timestamp_ms=yesterday_ms).result(timeout_s=60)
            if number == 2:
                assert up.run("load")[0] == 0
            assert loads.request_load() == "ended code=0\n"
            jvms.append(loads.jvms())
            found = up.rows("SELECT * FROM orders ORDER BY id")
            assert [one["id"] for one in found] == [*range(number + 1)]
    assert [one["item"] for one in found] == ["?", "?", "tea", "tea"]
    assert jvms == [jvms[0]] * 4
    assert len(jvms[0]) == 1
    for _ in range(2):
        assert loads.request("compact") == "ended code=0\n"
        assert up.rows("SELECT * FROM orders ORDER BY id") == found
        assert len(list((up.data_dir / "warehouse" / "orders").glob("_g*/dt=*/*"))) == 2
    line, *_ = newest_lines(up.data_dir / "logs" / "runs.jsonl", 10, "compact")
    assert (line.outcome, line.exit_code) == ("committed", 0)
    assert line.files >= 4, "also files of the audit topic, if an hour has just ended"
    assert loads.jvms() == jvms[0]
    assert any("headrace.pipeline.worker_daemon" in command_line(pid) for pid in descendants(jvms[0][0]))
    assert loads.count("phase=spark") == 1
    assert (loads.count("committed commit="), loads.count("nothing new")) == (3, 1)
    loads.process.send_signal(signal.SIGTERM)
    assert loads.process.wait(60) == EXIT_RESTART
    assert not is_running(jvms[0][0])


@pytest.mark.timeout(600)
def test_second_warehouse_needs_flag(up: Up, tmp_path: Path) -> None:
    commands = WarmCommands()
    with up.producer() as producer:
        producer.send("sales", {"id": 4}, schema=SALE).result(timeout_s=60)
    assert commands.run("load", "--data-dir", str(up.data_dir), timeout_s=300).returncode == 0

    def load(warehouse: str, *more: str) -> subprocess.CompletedProcess[str]:
        flags = ("--hive-executor", "print", "--warehouse", str(tmp_path / warehouse), "--data-dir", str(up.data_dir))
        return commands.run("load", *flags, *more, timeout_s=300)

    refused = load("other")
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    # Depending on the order of the tests, this `headrace up` has loaded another topic, too.
    assert line.replace("orders and 1 more", "sales") == (
        f"headrace: nothing has been loaded into {tmp_path / 'other'} yet, but the consumer group headrace-loader "
        "shows that sales went into another warehouse; set data_dir or loader.warehouse to the earlier one, or load "
        "all messages again into a second one: headrace load --new-warehouse"
    )
    assert not (tmp_path / "other").exists()
    assert load("other", "--config", str(of_others(tmp_path))).returncode == 0
    assert not any(any((tmp_path / "other").glob(f"{topic}*")) for topic in ("sales", "orders"))
    assert load("another", "--new-warehouse").returncode == 0
    assert load("another").returncode == 0
    commands.close()


def metrics_page(up: Up) -> str:
    status = platform_status(load_settings(flags={"data_dir": str(up.data_dir)}))
    return render(metric for fact in status.facts for metric in fact.metrics)[0].decode()


def of_others(directory: Path) -> Path:
    """Returns settings of a loader that excludes the topics that another one loads."""
    file = directory / "others.toml"
    file.write_text('[loader]\ntopics_exclude = ["sales", "orders"]\n')
    return file


@pytest.mark.timeout(600)
def test_query_beyond_memory_restarts_sql_alone_and_is_logged(up: Up) -> None:
    """Runs one query with `headrace sql` and one over the network."""
    reason = "its JVM ran out of memory with 640m: increase sql.memory"
    others = {name: up.part(name) for name in ("registry", "broker", "metastore")}
    assert up.rows("SELECT 1 AS one") == [{"one": 1}]
    host, _, port = up.service.addresses["sql"].rpartition(":")
    before = len(up.service.errors)
    command = up.command("sql", HUNGRY)
    # Closing the connection raises again.
    with pytest.raises((TException, OSError, hive.Error)), closing(hive.connect(host, int(port))) as connection:
        connection.cursor().execute(HUNGRY)
    output, errors = command.communicate(timeout=300)
    assert (command.returncode, output) == (2, "")
    assert errors.splitlines() == [f"headrace: the SQL server ended during the query and restarts: {reason}"]
    wait_for(lambda: any("part_died part=sql" in line and reason in line for line in up.service.errors[before:]))
    assert up.rows("SELECT 1 AS one") == [{"one": 1}]
    assert {name: up.part(name) for name in others} == others


@pytest.mark.timeout(600)
def test_status_names_killed_metastore_and_sql_until_they_have_served_for_an_hour(up: Up) -> None:
    arguments = ["--data-dir", str(up.data_dir)]
    assert up.rows("SELECT 1 AS one") == [{"one": 1}]
    heap = {"metastore", "sql"}
    wait_for(lambda: heap == {part for part in heap if f'heap_used_bytes{{part="{part}"}}' in metrics_page(up)})
    assert 'headrace_sql_queries_total{outcome="succeeded"}' in metrics_page(up)
    log = up.data_dir / "logs" / "up.log"
    known = log.read_text()
    for part in ("metastore", "sql"):
        os.killpg(up.part(part), signal.SIGKILL)
    wait_for(lambda: log.read_text().removeprefix(known).count("part_died") == 2)
    code, document = status_json(arguments)
    problems = {one["subject"]: (one["problem"], one["repair"], one["show"]) for one in document["findings"]}
    assert code > 0
    for part in ("metastore", "sql"):
        assert "killed by SIGKILL" in problems[part][0]
        assert problems[part][1]
        assert f"{part}.log" in problems[part][2]
    assert up.rows("SELECT 2 AS two") == [{"two": 2}], "waits for the restart"
    wait_for(lambda: "part_ready part=sql" in log.read_text().removeprefix(known))
    _, document = status_json(arguments)
    found = {one["subject"]: one["kind"] for one in document["findings"] if one["subject"] in ("metastore", "sql")}
    assert found == {"metastore": "part-restarted", "sql": "part-restarted"}


@pytest.mark.timeout(600)
def test_query_ends_when_its_client_disconnects(up: Up) -> None:
    """Runs the maximum number of concurrent queries, so that a further one would wait forever."""
    request = SqlRequest(ENDLESS, "headrace", with_values=False)
    with ExitStack() as connections:
        for _ in range(QUERIES_MAX):
            connection = connections.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(up.data_dir / "sql.sock"))
            connection.sendall(json.dumps(dataclasses.asdict(request)).encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == STARTED
    assert up.rows("SELECT 1 AS one") == [{"one": 1}]


@pytest.fixture(scope="module")
def start_hold(
    tmp_path_factory: pytest.TempPathFactory, start_module_service: Callable[..., Any]
) -> Iterator[Callable[[], Up]]:
    def start() -> Up:
        data_dir = tmp_path_factory.mktemp("hold")
        (data_dir / "logs").mkdir()
        (data_dir / "logs" / "spark.log").write_text("01/01/31 12:00:00 ERROR Executor: long ago\n")
        arguments = ["headrace", "up", "--data-dir", str(data_dir), *FREE_PORTS, "--only", "registry,broker"]
        return Up(start_module_service(*arguments), data_dir)

    with shared(start, Up.is_running, Up.stop) as get:
        yield get


@pytest.fixture
def hold(start_hold: Callable[[], Up]) -> Up:
    """A `headrace up` of registry and broker, which found a log of Spark."""
    return start_hold()


def test_only_starts_just_the_named_parts(hold: Up, tmp_path: Path, start_service: Callable[..., Any]) -> None:
    assert {name: bool(hold.part(name)) for name in PARTS} == {
        **dict.fromkeys(PARTS, False),
        **dict.fromkeys(("registry", "broker"), True),
    }
    assert (hold.data_dir / "logs" / "spark.log").read_text() == ""
    assert "long ago" in (hold.data_dir / "logs" / "spark.log.1").read_text()
    arguments = ["headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, "--registry-url"]
    one = start_service(*arguments, hold.service.addresses["registry"], "--only", "broker")
    assert not Up(one, tmp_path).part("registry")
    # Commands with the same data directory use the registry that `up` uses.
    with Producer(app="shop", settings=load_settings(flags={"data_dir": str(tmp_path)})) as producer:
        producer.send("elsewhere", {"id": 1}, schema=SALE).result(timeout_s=60)
    with urllib.request.urlopen(hold.service.addresses["registry"] + "/subjects", timeout=30) as response:
        assert "elsewhere-value" in json.load(response)
    assert one.stop() == 0


@pytest.mark.timeout(600)
def test_load_parts_of_compose_file_load_from_other_up(
    hold: Up, memory_path: Path, start_service: Callable[..., Any]
) -> None:
    """The file's `load` is metastore, SQL and loads; the settings name registry and broker."""
    (command,) = re.findall(r'command: \["up", (.*)\]', (ROOT / "compose.yaml").read_text())
    environment = {
        **os.environ,
        "HEADRACE__REGISTRY__URL": hold.service.addresses["registry"],
        "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": hold.service.addresses["broker"],
        "HEADRACE__LOADER__INTERVAL": "2s",
        "HEADRACE__HIVE__LISTEN": "127.0.0.1:0",
        "HEADRACE__CONSOLE__LISTEN": "127.0.0.1:0",
    }
    with hold.producer() as producer:
        producer.send("sales", {"id": 7}, schema=SALE).result(timeout_s=60)
    words = [json.loads(word) for word in command.split(", ")]
    arguments = ["headrace", "up", "--data-dir", str(memory_path), *words]
    load = Up(start_service(*arguments, environment=environment), memory_path)
    wait_for(lambda: (memory_path / "warehouse" / "sales" / "_schema").exists())
    assert wait_for(lambda: load.rows("SHOW TABLES LIKE 'sales'"))
    assert wait_for(lambda: load.rows("SELECT id FROM sales")) == [{"id": 7}]
    assert (load.service.stop(), hold.service.stop()) == (0, 0)


def test_only_with_unknown_part_names_it(up: Up) -> None:
    code, _, errors = up.run("up", "--only", "registry,brokr")
    assert (code, errors.splitlines()) == (
        2,
        [
            "headrace up: argument --only: unknown part 'brokr'; expected any of registry, broker, metastore, "
            "sql, audit, console, gateway, alerts, load; see: headrace up --help"
        ],
    )


@pytest.mark.timeout(300)
def test_no_process_survives_kill_of_up(up: Up) -> None:
    others = descendants(up.service.process.pid)[1:]
    up.service.kill()
    wait_for(lambda: not any(map(is_running, others)))


class Traffic:
    """A producer, and a client that reads registry and broker, both without pause."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.failures: list[str] = []
        self.sent = self.read = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._read)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        with self.up.producer() as producer:
            while not self._over.wait(0.02):
                try:
                    producer.send("sales", {"id": self.sent}, schema=SALE).result(timeout_s=30)
                    self.sent += 1
                except Exception as error:
                    self.failures.append(f"send: {error!r}")

    def _read(self) -> None:
        from kafka import KafkaConsumer

        addresses = self.up.service.addresses
        consumer = KafkaConsumer("sales", bootstrap_servers=addresses["broker"], auto_offset_reset="earliest")
        while not self._over.is_set():
            try:
                with urllib.request.urlopen(addresses["registry"] + "/subjects", timeout=30) as response:
                    assert "sales-value" in json.load(response)
                self.read += sum(map(len, consumer.poll(timeout_ms=50).values()))
            except Exception as error:
                self.failures.append(f"read: {error!r}")
        consumer.close()


@pytest.mark.fault
@pytest.mark.timeout(3000)
def test_kills_of_sql_metastore_and_load_disturb_no_other_part(
    tmp_path: Path, start_service: Callable[..., Any]
) -> None:
    # The address where the metastore listens after each restart.
    listen = ["--hive-listen", f"127.0.0.1:{free_port()}"]
    arguments = ["headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, *listen, "--interval", "10s"]
    up = Up(start_service(*arguments), tmp_path)
    chance = random.Random(KILLS)
    with up.producer() as producer:
        producer.send("sales", {"id": -1}, schema=SALE).result(timeout_s=60)
    assert up.rows("SELECT 1 AS one") == [{"one": 1}]
    back_s: dict[str, list[float]] = {}
    ever: set[tuple[int, str]] = set()

    def check_parts() -> None:
        ever.update((pid, start_ticks(pid)) for pid in descendants(up.service.process.pid))

    with Traffic(up) as traffic:
        for number in range(KILLS):
            name = ("sql", "metastore", "load")[number % 3]
            check_parts()
            victim = wait_for(lambda name=name: killed_part(up, name, chance))  # type: ignore[misc]
            killed_at = time.monotonic()
            if name == "load":
                wait_for(lambda: up.part("load") not in (0, victim))  # noqa: B023
            else:
                wait_for(lambda: not is_running(victim))  # noqa: B023
                assert up.rows("SHOW DATABASES")
            back_s.setdefault(name, []).append(time.monotonic() - killed_at)
    print(f"\n{KILLS} kills, {traffic.sent:,} sent, {traffic.read:,} read; seconds until a part was back")
    for name, times in back_s.items():
        print(
            f"  {name:9} median {statistics.median(times):4.1f}, most {max(times):4.1f}, of",
            *(f"{one:.1f}" for one in times),
        )
    assert traffic.failures == []
    assert traffic.read >= traffic.sent > 0
    check_parts()
    assert up.service.stop() == 0
    wait_for(lambda: not any(is_running(pid) and start_ticks(pid) == since for pid, since in ever))
    restarted = Up(start_service(*arguments), tmp_path)
    assert restarted.run("load")[0] == 0
    assert restarted.rows("SELECT count(DISTINCT id) AS n, count(*) AS m FROM sales") == [
        {"n": traffic.sent + 1, "m": traffic.sent + 1}
    ]


def killed_part(up: Up, name: str, chance: random.Random) -> int:
    """Kills the Python process of a part, or its JVM if it has one. Returns the part's process id, or 0 if the part
    does not run or has just ended, as a load does.

    Ignores short-lived processes of a JVM, such as `id -Gn`: their death has no effect on the part.
    """
    part = up.part(name)
    if part:
        first_child = descendants(part)[1:2]
        jvm = [child for child in first_child if "pyspark-shell" in command_line(child)]
        try:
            os.kill(chance.choice([part, *jvm]), signal.SIGKILL)
        except ProcessLookupError:
            return 0
    return part


def wait_for(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value
