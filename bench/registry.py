"""Measures the registry's rates of requests, and for comparison those of its Flask application without caches, in one
run on one machine.

    python -m bench.registry [--seconds 3] [--clients 1,32,100] [--workers 2] [--databases sqlite,postgresql]
                             [--parts reads,concurrent,registrations,servers,memory]

The clients run on the same machine as the registry and its database. Each part first prints the load of the machine. It
also prints the CPU time of the registry's processes per request, which does not depend on that load. PostgreSQL runs
with fsync, from the system's package.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import sqlalchemy as sa  # noqa: E402

from bench.support.registry_load import CONTENT_TYPE, GENERATOR, Load, Rate, run_load  # noqa: E402
from bench.support.registry_servers import SERVERS  # noqa: E402
from headrace.registry.storage.database import Database  # noqa: E402
from headrace.registry.storage.models import ContextRow, SchemaRow, SubjectRow, VersionRow  # noqa: E402

SUBJECTS = 10_000
SCHEMAS_IN_MEMORY = 50_000
CHECKERS = 50
CHECKERS_START_S = 8  # until the checking processes run and are saturated
READY_TIMEOUT_S = 60
OPTIONAL = ("a2wsgi", "gunicorn", "uvicorn", "waitress")  # servers that the registry does not use
PARTS = ("reads", "concurrent", "registrations", "servers", "memory")


def schema_text(name: str, doc: str = "a description of the field") -> str:
    """Returns the schema of a record of typical size.

    Args:
        name: name of the record.
        doc: documentation of each field.
    """
    fields = [{"name": f"field_{number}", "type": "string", "doc": doc} for number in range(7)]
    record = {"type": "record", "name": name, "namespace": "shop.orders", "fields": fields}
    return json.dumps(record, separators=(",", ":"))


def body(name: str) -> str:
    return json.dumps({"schema": schema_text(name)})


@dataclass(frozen=True, slots=True)
class Running:
    """A server and its worker processes."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        ticks = 0
        for process in self._processes():
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> list[float]:
        """Returns the resident memory of each worker."""
        return [
            int(line.split()[1]) / 1024
            for process in self._processes()[1:]
            for line in Path(f"/proc/{process}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        ]

    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def call(self, path: str, method: str = "GET", content: str | None = None) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            connection.request(method, path, content, {"Content-Type": CONTENT_TYPE} if content else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextmanager
def running(command: list[str], url: str) -> Iterator[Running]:
    """Starts a server and waits until it responds."""
    environment = {**os.environ, "HEADRACE_LOG_LEVEL": "ERROR"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment)
    server = Running(url, process.pid)
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                if server.call("/readyz")[0] == 200:
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(command)} did not start") from None
            time.sleep(0.1)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:  # a2wsgi's threads may not end
            process.kill()
            process.wait()


@contextmanager
def served(database_url: str, workers: int) -> Iterator[Running]:
    port = free_port()
    command = [sys.executable, "-m", "headrace", "registry", "serve", "--registry-listen", f"127.0.0.1:{port}"]
    with running(
        [*command, "--database-url", database_url, "--workers", str(workers)], f"http://127.0.0.1:{port}"
    ) as server:
        yield server


@contextmanager
def other_server(name: str, database_url: str, workers: int) -> Iterator[Running]:
    port = free_port()
    command = [sys.executable, str(ROOT / "bench" / "support" / "registry_servers.py"), name, database_url, str(port)]
    with running([*command, str(workers)], f"http://127.0.0.1:{port}") as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yields the URL of an empty, migrated database."""
    with ExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/registry.db"
        else:
            from support.servers.postgres_server import PostgresServer

            server = PostgresServer(durable=True)
            stack.callback(server.remove)
            url = server.new_database()
        made = Database(url)
        made.upgrade()
        made.close()
        yield url


def fill(url: str, count: int) -> None:
    """Adds subjects `s1` to `s<count>` with one schema each to an empty database; ids start at 1."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    numbers = range(1, count + 1)
    schemas = [
        {
            "context": ".",
            "id": number,
            "fingerprint": hashlib.sha256(b"f%d" % number).digest(),
            "guid": hashlib.md5(b"g%d" % number, usedforsecurity=False).digest(),
            "copy": 0,
            "lookup_key": hashlib.md5(b"k%d" % number, usedforsecurity=False).digest(),
            "text": schema_text(f"R{number}"),
            "created_ms": 0,
        }
        for number in numbers
    ]
    with engine.begin() as connection:
        connection.execute(sa.insert(SubjectRow), [{"name": f"s{n}", "context": ".", "revision": 1} for n in numbers])
        connection.execute(sa.insert(SchemaRow), schemas)
        rows = sa.select(SubjectRow.id, sa.literal(1), SchemaRow.row_key, sa.false(), sa.literal(0)).where(
            SubjectRow.name == sa.literal("s").concat(sa.cast(SchemaRow.id, sa.Text))
        )
        connection.execute(
            sa.insert(VersionRow).from_select(["subject_id", "version", "schema_key", "deleted", "created_ms"], rows)
        )
        connection.execute(sa.update(ContextRow).where(ContextRow.name == ".").values(next_id=count + 1))
    engine.dispose()


def measure(server: Running, label: str, load: Load, clients: list[int], seconds: float) -> list[Rate]:
    rates = []
    for number in clients:
        before = server.cpu_seconds()
        rate = run_load(server.url, load, number, seconds)
        cpu_us = (server.cpu_seconds() - before) / max(1, rate.per_second * seconds) * 1e6
        print(
            f"{label:<44}{number:>8}{rate.per_second:>11,.0f}{rate.p50_ms:>9.2f}{rate.p99_ms:>9.2f}{cpu_us:>10,.0f}"
            f"{f'   {rate.failed} FAILED' if rate.failed else ''}",
            flush=True,
        )
        rates.append(rate)
    return rates


def heading(title: str) -> None:
    load = os.getloadavg()[0]
    print(f"\n{title} (load of the machine before: {load:.1f})")
    print(f"{'label':<44}{'clients':>8}{'/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>10}", flush=True)


def known_schema(server: Running) -> tuple[str, str]:
    """Registers a schema through the API. Returns its subject, and the body of the request that would register it
    again."""
    content = body("Known")
    assert server.call("/subjects/known-value/versions", "POST", content)[0] == 200
    return "known-value", content


def reads(kind: str, clients: list[int], seconds: float, workers: int) -> None:
    with database(kind) as url:
        fill(url, SUBJECTS)
        with served(url, workers) as server, other_server("front without cache", url, workers) as baseline:
            subject, content = known_schema(server)
            loads = {
                "GET /schemas/ids/{id}, one": Load("/schemas/ids/7"),
                "GET /schemas/ids/{id}, 1,000 of them": Load("/schemas/ids/{n}", first=1, count=1000),
                "GET /subjects/{s}/versions/latest": Load("/subjects/s{n}/versions/latest", first=1, count=1000),
                "GET /subjects/{s}/versions": Load(f"/subjects/{subject}/versions"),
                "POST /subjects/{s} (look up)": Load(f"/subjects/{subject}", "POST", content),
                "POST .../versions (register again)": Load(f"/subjects/{subject}/versions", "POST", content),
                f"GET /subjects ({SUBJECTS:,} of them)": Load("/subjects"),
            }
            heading(f"Reads on {kind}, {workers} workers, cached; baseline: without caches")
            for label, load in loads.items():
                # Each worker has its own cache.
                run_load(server.url, load, 32, max(1, load.count / 250))
                measure(server, label, load, clients, seconds)
                measure(baseline, "   baseline", load, clients[-2:-1] or clients, seconds)


def concurrent(kind: str, clients: list[int], seconds: float, workers: int) -> None:
    """Measures cached reads, first alone and then while other clients have large schemas compared. Each of those
    clients has its own address, by which a registry without users distinguishes clients.

    Args:
        kind: kind of the database, sqlite or postgresql.
        clients: numbers of concurrent readers to measure.
        seconds: duration of each measurement.
    """
    with database(kind) as url:
        fill(url, 100)
        with served(url, workers) as server:
            assert server.call("/subjects/large/versions", "POST", large_body("W"))[0] == 200
            heading(
                f"Cached reads during comparisons of {len(large_body('R')) // 1000} KB schemas by {CHECKERS}, {kind}"
            )
            load = Load("/schemas/ids/7")
            run_load(server.url, load, 32, 1)
            measure(server, "GET /schemas/ids/{id}, alone", load, clients, seconds)
            with checkers(server.url):
                time.sleep(CHECKERS_START_S)
                measure(server, "GET /schemas/ids/{id}, meanwhile", load, clients, seconds)


def large_body(name: str) -> str:
    """Returns a request body with a schema that takes the longest permitted time to compare: unions of many records.

    Args:
        name: prefix of the names of its records and fields; two schemas with different names have no record in common.
    """
    branches = [
        {"type": "record", "name": f"{name}{n}", "fields": [{"name": f"{name}f{n}", "type": "int"}]} for n in range(700)
    ]
    return json.dumps({"schema": json.dumps({"type": "array", "items": branches, "doc": "{n}"})})


@contextmanager
def checkers(url: str) -> Iterator[None]:
    """While the context is open, a separate process runs clients that request compatibility checks of a large
    schema."""
    command = [sys.executable, str(ROOT / "bench" / "support" / "registry_checkers.py"), url, str(CHECKERS)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(large_body("R"))
    process.stdin.close()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def registrations(kind: str, clients: list[int], seconds: float, workers: int) -> None:
    with database(kind) as url, served(url, workers) as server:
        heading(f"Registrations on {kind} with fsync, {workers} workers")
        for number in clients:
            first = number * 1_000_000
            new = Load("/subjects/n{n}-value/versions", "POST", body("New{n}"), first=first)
            measure(server, "register new, one per subject", new, [number], seconds)
        for number in clients:
            # A new version each time: compatible, since only the documentation differs.
            text = schema_text("Next", doc="description {n} of the field")
            known = Load(
                "/subjects/next-value/versions", "POST", json.dumps({"schema": text}), first=number * 1_000_000
            )
            measure(server, "register new, all in one subject", known, [number], seconds)


def servers(kind: str, clients: list[int], seconds: float, workers: int) -> None:
    with database(kind) as url:
        fill(url, 100)
        heading(f"GET /schemas/ids/7 behind different servers, {kind}, {workers} workers")
        with served(url, workers) as server:
            measure(server, "headrace registry serve", Load("/schemas/ids/7"), clients, seconds)
            assert server.call("/subjects/a%2Fb/versions", "POST", body("Slash"))[0] == 200
        for name in SERVERS:
            missing = [module for module in name.split() if module in OPTIONAL and find_spec(module) is None]
            if missing:
                print(f"{name}: not installed here (pip install {' '.join(missing)})")
                continue
            with other_server(name, url, workers) as server:
                status = server.call("/subjects/a%2Fb/versions/1")[0]
                note = "" if status == 200 else f" (a%2Fb: {status})"
                measure(server, f"{name}{note}", Load("/schemas/ids/7"), clients, seconds)


def memory(kind: str) -> None:
    with database(kind) as url:
        fill(url, SCHEMAS_IN_MEMORY)
        with served(url, 1) as server:
            heading(f"Memory of one worker on {kind}")
            before = server.resident_mb()[0]
            load = Load("/schemas/ids/{n}", first=1, count=SCHEMAS_IN_MEMORY)
            began, responses = time.perf_counter(), 0.0
            while responses < SCHEMAS_IN_MEMORY * 1.05:
                rate = measure(
                    server, f"GET /schemas/ids/1…{SCHEMAS_IN_MEMORY}", load_from(load, int(responses)), [32], 10
                )[0]
                responses += rate.per_second * 10
            after = server.resident_mb()[0]
            print(
                f"{SCHEMAS_IN_MEMORY:,} schemas answered in {time.perf_counter() - began:.0f} s: "
                f"resident {before:.0f} MB before, {after:.0f} MB after"
            )


def load_from(load: Load, start: int) -> Load:
    """Returns the load with requests that start at another number, so that a further run does not repeat earlier
    requests."""
    return Load(load.path, first=1 + start % load.count, count=max(1, load.count - start % load.count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--clients", default="1,32,100")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--parts", default=",".join(PARTS))
    args = parser.parse_args()
    clients = [int(number) for number in args.clients.split(",")]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("granian", "flask", "sqlalchemy"))
    print(f"{os.cpu_count()} cores shared with the clients; schemas of {len(schema_text('R1234'))} bytes; {GENERATOR}")
    print(f"Python {sys.version.split()[0]}, {versions}")
    for kind in args.databases.split(","):
        for part in args.parts.split(","):
            if part == "memory":
                memory(kind)
            else:
                {"reads": reads, "concurrent": concurrent, "registrations": registrations, "servers": servers}[part](
                    kind, clients, args.seconds, args.workers
                )


if __name__ == "__main__":
    main()
