"""The brokers of `bench/broker.py`, the bundled one and an Apache Kafka, as processes that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.certificates import Authority
from support.servers.apache_kafka import ApacheKafka
from support.servers.kafka_security import KafkaSecurity

ROOT = Path(__file__).resolve().parent.parent.parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Broker:
    """A running broker. `start_s` is the time that its last start took, from the command to the first response.

    With TLS, `ca_file` has the certificate authority for its clients.
    """

    name = ""
    address = ""
    start_s = 0.0
    ca_file: Path | None = None

    @property
    def client(self) -> dict[str, Any]:
        """Returns the connection settings of librdkafka."""
        trust = {} if self.ca_file is None else {"security.protocol": "ssl", "ssl.ca.location": str(self.ca_file)}
        return {"bootstrap.servers": self.address, **trust}

    @property
    def pid(self) -> int:
        raise NotImplementedError

    def topic_config(self) -> Mapping[str, str]:
        """Returns the configuration with which topics are created, so that they are fsynced as `--fsync` says."""
        return {}

    def kill(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def cpu_s(self) -> float:
        """Returns the CPU seconds so far, on all cores."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def memory_mb(self) -> float:
        """Returns its resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("it is gone")


class Bundled(Broker):
    name = "headrace"

    def __init__(self, directory: Path, fsync: str, has_tls: bool) -> None:
        self._directory, self._port = directory, 0
        self._settings = {"HEADRACE__BROKER__FSYNC": fsync}
        if has_tls:
            authority = Authority(directory.with_name("authority"))
            certificate, key = map(str, authority.certificate("broker"))
            self.ca_file = authority.ca_file
            self._settings |= {"HEADRACE__BROKER__TLS_CERTIFICATE": certificate, "HEADRACE__BROKER__TLS_KEY": key}
        self.start()

    def start(self) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "headrace", "broker", "serve", "--data-dir", str(self._directory)]
        self._process = subprocess.Popen(
            [*command, "--broker-listen", f"127.0.0.1:{self._port}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, **self._settings},
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip().removeprefix("ready broker=")
        self.start_s = time.perf_counter() - began
        self._port = int(self.address.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    def log_directory(self, topic: str) -> Path:
        return self._directory / "broker" / f"{topic}-0"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Kafka(Broker):
    """An Apache Kafka. Its topics are configured with the fsync mode; the bundled broker has one setting for all
    topics."""

    name = "kafka"

    def __init__(self, directory: Path, fsync: str, has_tls: bool) -> None:
        self._fsync = fsync
        security = KafkaSecurity(directory.with_name("security")) if has_tls else None
        began = time.perf_counter()
        self._kafka = ApacheKafka(directory, security)
        self.start_s, self.address = time.perf_counter() - began, self._kafka.address
        if security is not None:
            self.address, self.ca_file = self._kafka.secured["TLS"], security.authority.ca_file

    def start(self) -> None:
        began = time.perf_counter()
        self._kafka.start()
        self.start_s = time.perf_counter() - began

    @property
    def pid(self) -> int:
        return int(self._kafka.pid)

    def topic_config(self) -> Mapping[str, str]:
        return {"always": {"flush.messages": "1"}, "interval": {"flush.ms": "1000"}}.get(self._fsync, {})

    def kill(self) -> None:
        self._kafka.kill()

    def stop(self) -> None:
        self._kafka.stop()


BROKERS = {"headrace": Bundled, "kafka": Kafka}
