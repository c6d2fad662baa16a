"""A warehouse with real servers, producers that record their messages, and loads that tests run, kill or pause."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fastavro
from kafka import KafkaProducer

from headrace.avro_schema import frame
from headrace.loader.inspect.quarantine import QuarantinedRow, read_rows
from headrace.registry.client import RegistryClient
from support.checkout import ROOT
from support.loader.warm_commands import WarmCommands
from support.processes import command_line, descendants
from support.running_service import Service

LAUNCHER = Path(__file__).resolve().parent / "fault" / "load_launcher.py"
LOAD_TIMEOUT_S = 180.0
HOUR_MS = 3_600_000
FIRST_MS = 1_767_225_600_000  # 2026-01-01T00:00Z
KEEPS_ALL = {
    "HEADRACE__BROKER__RETENTION": "36500d"
}  # default retention would delete messages of 2026 after half a minute

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "who", "type": "string"},
    {"name": "timestamp", "type": "long"},
]
NOTE: dict[str, Any] = {"name": "note", "type": "string", "default": "none"}


def event_schema(name: str, fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name.title(), "fields": list(fields)}


@dataclass
class Produced:
    """The acknowledged messages of a topic, by (partition, offset).

    Attributes:
        rows: the events, each of which must become a row.
        bad: messages that are not Avro, which must be quarantined.
    """

    rows: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    bad: set[tuple[int, int]] = field(default_factory=set)
    tombstones: set[tuple[int, int]] = field(default_factory=set)


class LoadWorld:
    """A data directory with a running registry, broker and metastore, in which loads run.

    Args:
        metastore: whether to start a metastore.
        broker: settings of the broker as variables, in addition to `KEEPS_ALL`.
        keeps_spark: whether `load` and `command` run in one process, so that only the first starts Spark. Only for
            tests that run no two loads of this world at once. `cold_command` always starts a new process.

    Attributes:
        patience_s: timeout of a command.
        now_ms: the clock of loads and rewrites if `keeps_spark`, None for the system's.
    """

    patience_s = LOAD_TIMEOUT_S
    now_ms: int | None = None

    def __init__(
        self,
        root: Path,
        *,
        metastore: bool = True,
        broker: Mapping[str, str] = MappingProxyType({}),
        keeps_spark: bool = False,
    ) -> None:
        self.data_dir = root
        data = ["--data-dir", str(root)]
        servers = [
            ["headrace", "registry", "serve", *data, "--registry-listen", "127.0.0.1:0"],
            ["headrace", "broker", "serve", *data, "--broker-listen", "127.0.0.1:0"],
        ]
        if metastore:
            servers.append(["headrace.pipeline.metastore_server", *data, "--listen", "127.0.0.1:0"])
        self.addresses: dict[str, str] = {}
        with ExitStack() as begun:  # stops started servers if a later one does not start
            for arguments in servers:
                service = Service(arguments, {**KEEPS_ALL, **broker})
                begun.callback(service.stop)
                self.addresses |= service.addresses
            self.registry = begun.enter_context(closing(RegistryClient(self.addresses["registry"])))
            self.producer = KafkaProducer(bootstrap_servers=self.addresses["broker"], linger_ms=5)
            begun.callback(self.producer.close)
            self._warm = WarmCommands() if keeps_spark else None
            if self._warm is not None:
                begun.callback(self._warm.close)
            self.close = begun.pop_all().close
        self.produced: dict[str, Produced] = {}
        self.warehouse = root / "warehouse"
        self._next_id = 0

    def produce(self, topic: str, count: int, *, fields: Sequence[dict[str, Any]] = FIELDS) -> None:
        """Sends events to a topic, evenly over three hours, then a message that is not Avro, and a tombstone. Returns
        when all are acknowledged.

        Args:
            count: number of events.
            fields: fields of their schema.
        """
        schema = event_schema(topic, fields)
        registered = self.registry.register(f"{topic}-value", json.dumps(schema))
        parsed = fastavro.parse_schema(schema)
        known = self.produced.setdefault(topic, Produced())
        sent = []
        for _ in range(count):
            event = {
                "id": self._next_id,
                "who": f"w{self._next_id % 7}",
                "timestamp": FIRST_MS + self._next_id % 3 * HOUR_MS,
            }
            if NOTE in fields:
                event["note"] = f"n{self._next_id}"
            self._next_id += 1
            body = io.BytesIO()
            fastavro.schemaless_writer(body, parsed, event)
            key = str(event["id"]).encode()
            sent.append((event, self.producer.send(topic, value=frame(registered.schema_id, body.getvalue()), key=key)))
        bad = self.producer.send(topic, value=b"this is no Avro", key=b"bad")
        tombstone = self.producer.send(topic, value=None, key=b"gone")
        self.producer.flush()
        for event, future in sent:
            at = future.get(30)
            known.rows[at.partition, at.offset] = event
        known.bad.add((bad.get(30).partition, bad.get(30).offset))
        known.tombstones.add((tombstone.get(30).partition, tombstone.get(30).offset))

    def flags(self, *more: str) -> list[str]:
        """Returns the command-line flags that any load of this world needs, followed by `more`, which override them."""
        flags = {
            "--data-dir": str(self.data_dir),
            "--registry-url": self.addresses["registry"],
            "--bootstrap-servers": self.addresses["broker"],
            "--master": "local[2]",
        }
        if "metastore" in self.addresses:
            flags["--metastore"] = self.addresses["metastore"]
        return [*(word for pair in flags.items() for word in pair), *more]

    def load_flags(self, *more: str) -> list[str]:
        """Returns the flags of a load that partitions new tables by hour, so that three hours of events are several
        time partitions; `more` overrides them."""
        return self.flags("--partition-by", "hour", *more)

    def load(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Runs `headrace load`."""
        return self.command("load", *self.load_flags(*more))

    def cold_load(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Runs `headrace load` in a new process, which starts Spark."""
        return self.cold_command("load", *self.load_flags(*more))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        if self._warm is not None:
            return self._warm.run(*words, timeout_s=self.patience_s, now_ms=self.now_ms)
        return self.cold_command(*words)

    def cold_command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=self.patience_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def start_load(self, log: Path, *more: str, point: str = "", nth: int = 1) -> StoppingLoad:
        return StoppingLoad(["load", *self.load_flags(*more)], log, point, nth)

    def check(self, *, whole: bool) -> None:
        """Checks the published rows of all topics: each belongs to a produced message and is published once.

        Args:
            whole: whether to check also that no row is missing.
        """
        for topic, known in self.produced.items():
            rows, quarantined = self.published(topic)
            twice = [at for at, number in Counter(at for at, _ in rows).items() if number > 1]
            assert not twice, f"{topic}: published twice: {twice[:10]}"
            wrong = [(at, row, known.rows.get(at)) for at, row in rows if row != known.rows.get(at)]
            assert not wrong, f"{topic}: rows differ from produced messages: {wrong[:3]}"
            assert len(quarantined) == len(set(quarantined)), f"{topic}: quarantined twice"
            assert set(quarantined) <= known.bad, f"{topic}: wrongly quarantined"
            if whole:
                missing = sorted(set(known.rows) - {at for at, _ in rows})
                assert not missing, f"{topic}: {len(missing)} rows are missing: {missing[:10]}"
                assert set(quarantined) == known.bad, f"{topic}: the quarantine is incomplete"

    def published(self, topic: str) -> tuple[list[tuple[tuple[int, int], dict[str, Any]]], list[tuple[int, int]]]:
        """Returns the rows in the published files of a topic, each with its (partition, offset), and the (partition,
        offset) of every quarantined message."""
        rows = []
        for path in sorted((self.warehouse / topic).glob("dt=*/**/*.avro")):
            with path.open("rb") as file:
                for row in fastavro.reader(file):
                    at = row.pop("kafka")
                    names = set(self.produced[topic].rows.get((at["partition"], at["offset"]), row))
                    rows.append(((at["partition"], at["offset"]), {name: row[name] for name in names if name in row}))
        quarantined = [
            (row.partition, row.offset)
            for path in sorted((self.warehouse / "_quarantine" / topic).glob("dt=*/**/*.avro"))
            for row in rows_of(path)
        ]
        return rows, quarantined


def rows_of(path: Path) -> list[QuarantinedRow]:
    with path.open("rb") as file:
        return list(read_rows(file))


class StoppingLoad:
    """A load in a child process.

    Args:
        point: the stop point at which it stops itself; "" for none.
        nth: at which passage of the point it stops.
    """

    def __init__(self, arguments: Sequence[str], log: Path, point: str, nth: int) -> None:
        self.announce = log.with_suffix(".announce")
        self.announce.touch()
        self.log = log
        self._output = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(LAUNCHER), *arguments],
            cwd=ROOT,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "HEADRACE_TEST_POINT": point,
                "HEADRACE_TEST_NTH": str(nth),
                "HEADRACE_TEST_ANNOUNCE": str(self.announce),
            },
        )

    def wait_until_stopped(self) -> int:
        """Returns the pid of the process that stopped at the point: the driver or a worker."""
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while time.monotonic() < deadline:
            words = self.announce.read_text().split()
            if words:
                return int(words[0])
            if self.process.poll() is not None:
                raise AssertionError(f"the load ended before the point was reached:\n{self.log.read_text()}")
            time.sleep(0.02)
        raise AssertionError(f"the point was not reached:\n{self.log.read_text()}")

    def kill(self, pid: int) -> None:
        """Kills one process of the load without warning, and waits until the load has ended."""
        os.kill(pid, signal.SIGKILL)
        self.wait()

    def wake(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)

    def wait(self) -> int:
        code = self.process.wait(LOAD_TIMEOUT_S)
        self._output.close()
        return code

    def workers(self) -> list[int]:
        """Returns the process ids of this load's Python workers."""
        return [pid for pid in descendants(self.process.pid)[1:] if "pyspark.daemon" in command_line(pid)]

    def last_phase(self) -> str:
        phases = re.findall(r"phase_started phase=(\S+)", self.log.read_text())
        return phases[-1] if phases else "start"
