"""Starts an Apache Kafka broker (KRaft, one node) from Maven Central on free loopback ports."""

from __future__ import annotations

import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from support.free_ports import free_port
from support.servers.kafka_security import LISTENERS, KafkaSecurity
from support.servers.maven_jars import classpath_of

READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
READY_LINE = "Kafka Server started"


class ApacheKafka:
    """A running broker.

    Attributes:
        address: host:port of the plaintext listener.
        secured: addresses of the other listeners, by name.
        data: the log directory, with a directory for each partition.
    """

    def __init__(self, directory: Path, security: KafkaSecurity | None = None, *, partitions: int = 3) -> None:
        directory.mkdir(parents=True)
        classpath = classpath_of("kafka")
        ports = {name: free_port() for name in ("PLAINTEXT", "CONTROLLER", *(LISTENERS if security else ()))}
        self.secured = {name: f"127.0.0.1:{port}" for name, port in ports.items() if name in LISTENERS}
        self.address = f"127.0.0.1:{ports['PLAINTEXT']}"
        settings = directory / "server.properties"
        settings.write_text(_settings(directory, ports, security, partitions), encoding="utf-8")
        logging = directory / "log4j2.properties"
        logging.write_text(
            "rootLogger.level = INFO\nrootLogger.appenderRef.o.ref = O\nappender.o.type = Console\n"
            "appender.o.name = O\nappender.o.layout.type = PatternLayout\nappender.o.layout.pattern = %d %p %m%n\n",
            encoding="utf-8",
        )
        self.data = directory / "data"
        java = ["java", "-Xmx512m", f"-Dlog4j2.configurationFile={logging}", "-cp", classpath]
        raw = uuid.uuid4().bytes
        # With a first bit of 0 the id never begins with "-", which the tool parses as an option.
        cluster_id = urlsafe_b64encode(bytes([raw[0] & 0x7F, *raw[1:]])).decode().rstrip("=")
        self._log = directory / "kafka.log"
        subprocess.run(
            [
                *(*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings)),
                *(security.format_arguments() if security else ()),
            ],
            check=True,
            capture_output=True,
            timeout=READY_TIMEOUT_S,
        )
        self._command = [*java, "kafka.Kafka", str(settings)]
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        """Starts the broker: for the first time, or again after `stop` or `kill`."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, cwd=self._log.parent)
        self._wait_until_ready()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while READY_LINE not in self._log.read_text(encoding="utf-8", errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"Apache Kafka did not start:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)


def _settings(directory: Path, ports: Mapping[str, int], security: KafkaSecurity | None, partitions: int) -> str:
    listeners = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **(LISTENERS if security else {})}
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(one for one in listeners if not one.startswith("CONTROLLER:")),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "log.dirs": directory / "data",
        "num.partitions": partitions,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        **(security.properties() if security else {}),
    }
    # Java interprets backslashes in properties files as escapes.
    lines = (f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())
    return "".join(lines)
