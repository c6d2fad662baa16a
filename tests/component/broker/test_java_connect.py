"""Kafka Connect copies a file to another through a topic: standalone across a stop, distributed and exactly-once across
a kill."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from support.free_ports import free_port
from support.java_oracle import compile_program
from support.servers.kafka_programs import WAIT_TIMEOUT_S, JavaProgram, program_jars, properties_file, read_messages

pytestmark = pytest.mark.java

CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
REQUEST_TIMEOUT_S = 30
LINES = [f"line {number}" for number in range(2000)]
SLICE = 20


class Files:
    """The files of the source and the sink."""

    def __init__(self, directory: Path) -> None:
        self.source, self.sink = directory / "source.txt", directory / "sink.txt"
        self._directory = directory
        self.source.touch()

    def append(self, lines: list[str]) -> None:
        with self.source.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def written(self) -> list[str]:
        """Returns the complete lines of the sink."""
        text = self.sink.read_text(encoding="utf-8") if self.sink.exists() else ""
        return [line.rstrip("\n") for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def connectors(self, topic: str) -> dict[str, dict[str, str]]:
        """Returns the connectors' configurations by name."""
        file = "org.apache.kafka.connect.file.FileStream"
        return {
            "source": {
                "name": "source",
                "connector.class": f"{file}SourceConnector",
                "file": str(self.source),
                "topic": topic,
                "batch.size": "100",
                "exactly.once.support": "requested",
            },
            "sink": {
                "name": "sink",
                "connector.class": f"{file}SinkConnector",
                "file": str(self.sink),
                "topics": topic,
                "consumer.override.auto.offset.reset": "earliest",
            },
        }


def worker(address: str, port: int) -> dict[str, object]:
    """Settings of both kinds of workers."""
    return {
        "bootstrap.servers": address,
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": CONVERTER,
        "value.converter": CONVERTER,
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": 500,
        "consumer.isolation.level": "read_committed",
        # A killed sink and source delay their successors by this: a worker starts when the offsets topic has no open
        # transaction.
        "consumer.session.timeout.ms": 6000,
        "consumer.heartbeat.interval.ms": 1000,
        "producer.transaction.timeout.ms": 6000,
        "scheduled.rebalance.max.delay.ms": 0,
    }


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of Connect and of the program that runs it."""
    jars = program_jars()
    return f"{compile_program('ConnectStopped', jars, tmp_path_factory.mktemp('classes'))}:{jars}"


def connect(log: Path, classpath: str, kind: str, *arguments: Path) -> JavaProgram:
    return JavaProgram(log, classpath, "ConnectStopped", f"org.apache.kafka.connect.cli.Connect{kind}", *arguments)


def read(address: str, topic: str) -> list[str]:
    """Returns the committed values of a topic's only partition."""
    return [str(message.value().decode()) for message in read_messages(address, topic, 1)]


def make_topic(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(WAIT_TIMEOUT_S)


def test_standalone_continues_after_a_stop(broker_address: str, classpath: str, tmp_path: Path) -> None:
    """A stopped worker stores its position: no line is lost or duplicated."""
    make_topic(broker_address, "standalone")
    files = Files(tmp_path)
    settings = {**worker(broker_address, free_port()), "offset.storage.file.filename": tmp_path / "offsets"}
    arguments = [
        properties_file(tmp_path / "worker.properties", settings),
        *(
            properties_file(tmp_path / f"{name}.properties", configuration)
            for name, configuration in files.connectors("standalone").items()
        ),
    ]
    half = len(LINES) // 2
    for lines, expected in ((LINES[:half], LINES[:half]), (LINES[half:], LINES)):
        files.append(lines)
        with connect(tmp_path / "connect.log", classpath, "Standalone", *arguments) as run:
            run.wait_until(lambda: len(files.written()) >= len(expected), "all lines were written")  # noqa: B023
            run.stop()
        assert files.written() == expected
        assert read(broker_address, "standalone") == expected


class Cluster:
    """Distributed Connect with one process: its settings and its REST API."""

    def __init__(self, address: str, directory: Path, classpath: str) -> None:
        self._classpath = classpath
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        topics = {
            f"{kind}.storage.{key}": value
            for kind in ("config", "offset", "status")
            for key, value in (("topic", f"connect-{kind}"), ("replication.factor", 1))
        }
        settings = {
            **worker(address, port),
            **topics,
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
        }
        self._settings = properties_file(directory / "cluster.properties", settings)

    def start(self, log: Path) -> JavaProgram:
        return connect(log, self._classpath, "Distributed", self._settings)

    def call(self, path: str, body: Mapping[str, str] | None = None) -> dict[str, object] | None:
        """Returns None if there is no response, or an error."""
        data = None if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "PUT"
        request = Request(f"{self._url}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
                return dict(json.load(response))
        except (URLError, OSError):
            return None

    def is_running(self, connector: str) -> bool:
        status = self.call(f"/connectors/{connector}/status") or {}
        return [task["state"] for task in status.get("tasks", [])] == ["RUNNING"]  # type: ignore[attr-defined]


def test_distributed_is_exactly_once_over_a_kill(broker_address: str, classpath: str, tmp_path: Path) -> None:
    """Each line is in the topic once for consumers of committed records. A sink is at-least-once: it writes lines after
    its last commit again."""
    make_topic(broker_address, "distributed")
    files = Files(tmp_path)
    cluster = Cluster(broker_address, tmp_path, classpath)
    rest = list(LINES)
    with cluster.start(tmp_path / "killed.log") as killed:
        killed.wait_until(lambda: cluster.call("/") is not None, "it answered")
        for name, configuration in files.connectors("distributed").items():
            killed.wait_until(
                lambda: cluster.call(f"/connectors/{name}/config", configuration) is not None,  # noqa: B023
                f"the {name} was created",
            )
        for name in ("source", "sink"):
            killed.wait_until(lambda: cluster.is_running(name), f"the {name} ran")  # noqa: B023

        def is_in_the_middle() -> bool:
            """Returns whether the sink has written something; gives the source more lines each time."""
            if len(rest) > 2 * SLICE:
                files.append(rest[:SLICE])
                del rest[:SLICE]
            return bool(files.written())

        killed.wait_until(is_in_the_middle, "the sink wrote a line")
        files.append(rest[:SLICE])
        del rest[:SLICE]
        killed.kill()
    assert rest
    files.append(rest)
    with cluster.start(tmp_path / "again.log") as restarted:
        restarted.wait_until(lambda: read(broker_address, "distributed")[-1:] == LINES[-1:], "the last line was sent")
        restarted.wait_until(lambda: files.written()[-1:] == LINES[-1:], "the last line was written")
        restarted.stop()
    assert read(broker_address, "distributed") == LINES
    written = files.written()
    assert sorted(set(written)) == sorted(LINES)
    duplicates = len(written) - len(LINES)
    first = next((at for at, line in enumerate(written) if line != LINES[at]), len(LINES))
    assert written == LINES[:first] + LINES[first - duplicates :]
    admin = AdminClient({"bootstrap.servers": broker_address})
    for kind in ("config", "offset", "status"):
        (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, f"connect-{kind}")]).values()
        assert described.result(WAIT_TIMEOUT_S)["cleanup.policy"].value == "compact"
