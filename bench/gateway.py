"""Measures how many requests and records the gateway takes per second of its CPU time, and for comparison how many a
bare ASGI application takes with the same server: `python -m bench.gateway [--seconds 5]`.

Starts a bundled broker, a registry and a gateway. Clients in a process of their own send requests without pause. The
CPU time of the gateway's process does not depend on the load of the machine; the rate per second does. The bare
application reads the body and responds with a constant. Targets: 2,000 requests with one record, and 20,000 records in
requests with hundreds, per CPU second. Others report 226 (confluentinc/kafka-rest issue 199) and 1,935 requests per
second with Confluent's REST Proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

CLIENTS: Final = 64
CLIENTS_WITH_MANY: Final = 8
RECORDS: Final = 500
STREAM_RECORDS: Final = 2_000
TARGET_REQUESTS: Final = 2_000
TARGET_RECORDS: Final = 20_000
CONTENT_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
VALUE: Final = {"user": "some user name", "page": "/products/17/details", "ms": 1234, "agent": "x" * 100}
SCHEMA: Final = {
    "type": "record",
    "name": "View",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "page", "type": "string"},
        {"name": "ms", "type": "long"},
        {"name": "agent", "type": "string"},
    ],
}


@dataclass(frozen=True, slots=True)
class Workload:
    """A request that clients repeat, with its number of records."""

    name: str
    path: str
    content_type: str
    body: bytes
    records: int
    clients: int

    @property
    def request(self) -> bytes:
        head = f"POST {self.path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {self.content_type}\r\n"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


def workloads() -> Iterator[Workload]:
    for form in ("json", "avro"):
        schema = {"value_schema": json.dumps(SCHEMA)} if form == "avro" else {}
        for records, clients in ((1, CLIENTS), (RECORDS, CLIENTS_WITH_MANY)):
            body = json.dumps({**schema, "records": [{"value": VALUE}] * records}).encode()
            content_type = f"application/vnd.kafka.{form}.v2+json"
            yield Workload(f"v2 {form} by {records}", f"/topics/{form}", content_type, body, records, clients)
    record = json.dumps({"value": {"type": "JSON", "data": VALUE}}).encode()
    path, content_type = "/v3/clusters/any/topics/json/records", "application/json"
    yield Workload("v3 json by 1", path, content_type, record, 1, CLIENTS)
    yield Workload(f"v3 json by {STREAM_RECORDS}", path, content_type, record * STREAM_RECORDS, STREAM_RECORDS, 2)


class Bare:
    """The application of the baseline."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    def end_waits(self) -> None:
        return


async def run_client(url: str, request: bytes, until: float) -> int:
    """Repeats a request until a time of the monotonic clock. Returns the number of responses."""
    parts, done = urlsplit(url), 0
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**26)
    try:
        while time.monotonic() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 207")), head
            length = CONTENT_LENGTH.search(head)
            if length is not None:
                body = await reader.readexactly(int(length[1]))
            else:
                body = b""
                while size := int(await reader.readline(), 16):
                    body += (await reader.readexactly(size + 2))[:-2]
                await reader.readline()
            assert b'"offset":null' not in body, body[:500]
            done += 1
    finally:
        writer.close()
    return done


def run_clients(url: str, workload: Workload, seconds: float) -> int:
    """Runs the clients of a workload in this process. Returns the number of responses."""

    async def clients() -> int:
        until = time.monotonic() + seconds
        return sum(await asyncio.gather(*(run_client(url, workload.request, until) for _ in range(workload.clients))))

    return asyncio.run(clients())


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@contextmanager
def started(arguments: list[str], environment: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Starts a server. Yields the address in its ready line, and its process id."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"ready \w+=(\S+)", line)
        if found is None:
            raise RuntimeError(f"{' '.join(arguments)} did not start")
        yield found[1], process.pid
    finally:
        process.terminate()
        process.wait()


def measure(name: str, server: tuple[str, int], workload: Workload, seconds: float) -> tuple[float, float]:
    """Runs a workload against a server and prints a row. Returns requests and records per CPU second."""
    url, pid = server
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(run_clients, (url, workload, seconds / 5))
        before, begin = cpu_s(pid), time.monotonic()
        requests = pool.apply(run_clients, (url, workload, seconds))
        used, lasted = cpu_s(pid) - before, time.monotonic() - begin
    per_cpu, records = requests / used, requests * workload.records / used
    print(
        f"{name:10}{workload.name:20}{requests / lasted:12,.0f}{per_cpu:14,.0f}{records:14,.0f}"
        f"{used / lasted:8.0%}{resident_mb(pid):8.0f}",
        flush=True,
    )
    return per_cpu, records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement (default: 5)")
    parser.add_argument("--serve-bare", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_bare:
        from headrace.gateway.server import listening_socket, serve
        from headrace.settings import Address

        raise SystemExit(serve(listening_socket(Address("127.0.0.1", 0)), Bare(), 4096, None))
    command = ["-m", "headrace"]
    with tempfile.TemporaryDirectory() as directory:
        data = ["--data-dir", directory]
        with (
            started([*command, "broker", "serve", *data, "--broker-listen", "127.0.0.1:0"], {}) as (broker, _),
            started([*command, "registry", "serve", *data, "--registry-listen", "127.0.0.1:0"], {}) as (registry, _),
            started(
                [*command, "gateway", "serve", *data, "--gateway-listen", "127.0.0.1:0"],
                {"HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker, "HEADRACE__REGISTRY__URL": registry},
            ) as gateway,
            started(["-m", "bench.gateway", "--serve-bare"], {}) as baseline,
        ):
            print(f"load of the machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
            print(f"{'server':10}{'requests':20}{'requests/s':>12}{'per CPU s':>14}{'records':>14}{'CPU':>8}{'MB':>8}")
            missed = []
            for workload in workloads():
                measure("bare ASGI", baseline, workload, args.seconds)
                requests, records = measure("gateway", gateway, workload, args.seconds)
                if requests < TARGET_REQUESTS if workload.records == 1 else records < TARGET_RECORDS:
                    missed.append(workload.name)
            print(f"targets missed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
