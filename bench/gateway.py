"""Measures the gateway: `python -m bench.gateway [--seconds 5] [--only requests|large|lines]`.

Starts a bundled broker, a registry and a gateway. CPU times do not depend on the load of the machine; rates per second
and latencies do.

Requests: how many requests and records the gateway takes per second of its CPU time. Clients in a process of their own
send requests without pause. For comparison, a bare ASGI application with the same server reads the body and responds
with a constant. Targets: 2,000 requests with one record, and 20,000 records in requests with hundreds, per CPU second.
Others report 226 (confluentinc/kafka-rest issue 199) and 1,935 requests per second with Confluent's REST Proxy.

Large: the latency of health checks, and of requests with one record, alone and while another client sends bodies of
10 MB with 50,000 records to another topic.

Lines: the time from a line in a log file to a consumer with `read_committed`, by `headrace push`, gateway and broker,
at 10,000 lines per second, and the CPU time of each of them. Baseline, in the same run: librdkafka's producer sends the
lines from memory to the same broker. Targets: median under 20 ms, 99th percentile under 100 ms, 10 % of a core for the
gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.push.make_zipapp import make_zipapp

CLIENTS: Final = 64
CLIENTS_WITH_MANY: Final = 8
RECORDS: Final = 500
STREAM_RECORDS: Final = 2_000
LARGE_RECORDS: Final = 50_000
TARGET_REQUESTS: Final = 2_000
TARGET_RECORDS: Final = 20_000
LINES_PER_S: Final = 10_000
LINE_BYTES: Final = 300
WARM_UP_S: Final = 3.0
STAMP: Final = re.compile(rb"@(\d+)")
TARGET_P50_MS: Final = 20.0
TARGET_P99_MS: Final = 100.0
TARGET_CORE: Final = 0.10
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


def paced_lines(begin: float, end: float) -> Iterator[bytes]:
    """Yields blocks of lines at `LINES_PER_S` between two times of the monotonic clock, at most one each millisecond.
    Each line has the time of its creation."""
    number = 0
    while (now := time.monotonic()) < end:
        due = int((now - begin) * LINES_PER_S)
        stamp = time.monotonic_ns()
        lines = (
            f"@{stamp} 10.1.2.3 - - GET /products/{one}?id={one * 7919 % 10007} 200 " for one in range(number, due)
        )
        yield b"".join(f"{line:.<{LINE_BYTES - 1}}\n".encode() for line in lines)
        number = max(number, due)
        time.sleep(max(0.0, now + 0.001 - time.monotonic()))


def append_lines(path: Path, begin: float, end: float) -> None:
    with path.open("ab", buffering=0) as file:
        for block in paced_lines(begin, end):
            file.write(block)


def produce_lines(servers: str, topic: str, begin: float, end: float) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5})
    for block in paced_lines(begin, end):
        for line in block.splitlines():
            producer.produce(topic, line)
        producer.poll(0)
    producer.flush()


def consumed_delays(servers: str, topic: str, begin: float, end: float) -> list[float]:
    """Returns the milliseconds between the creation of each line in [begin, end) and its arrival at a consumer."""
    options = {"bootstrap.servers": servers, "group.id": f"bench-{topic}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**options, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.subscribe([topic])
    first, last, delays = int(begin * 1e9), int(end * 1e9), []
    while time.monotonic() < end + 2.0:
        message = consumer.poll(0.1)  # `consume` would wait for a number of messages
        now = time.monotonic_ns()
        found = None if message is None else STAMP.search(message.value() or b"")
        if found is not None and first <= (stamp := int(found[1])) < last:
            delays.append((now - stamp) / 1e6)
    consumer.close()
    return delays


@contextmanager
def pushing(directory: Path, gateway: str) -> Iterator[int]:
    """Runs `headrace push` for `lines.log` in a directory. Yields its process id."""
    config = directory / "push.toml"
    config.write_text(
        f'[push]\ngateway = "{gateway}"\nstate_dir = "{directory / "push"}"\n'
        f'[[files]]\npaths = "{directory / "lines.log"}"\ntopic = "lines"\n'
    )
    program = directory / "headrace-push"
    make_zipapp(program)
    process = subprocess.Popen([sys.executable, program, "run", "--config", config, "--log-level", "warning"])
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def measure_lines(
    servers: str, topic: str, pids: Mapping[str, int], send: Any, seconds: float, pool: Pool
) -> list[str]:
    """Has lines sent and consumed, and prints a row. Returns the targets that the gateway missed.

    Args:
        pids: process ids by name.
        send: a function of this module and its first arguments, which sends or writes lines.
    """
    begin = time.monotonic() + 1.0
    measured_from, end = begin + WARM_UP_S, begin + WARM_UP_S + seconds
    function, *arguments = send
    sending = pool.apply_async(function, (*arguments, begin, end + 0.5))
    consuming = pool.apply_async(consumed_delays, (servers, topic, measured_from, end))
    time.sleep(measured_from - time.monotonic())
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    time.sleep(end - time.monotonic())
    used = {name: (cpu_s(pid) - before[name]) / seconds for name, pid in pids.items()}
    sending.get()
    delays = sorted(consuming.get())
    p50, p99 = (delays[int(len(delays) * share)] for share in (0.50, 0.99))
    cores = " ".join(f"{name} {share:.1%}" for name, share in used.items())
    print(f"{topic:20}{len(delays) / seconds:8,.0f}{percentiles(delays)}  {cores}", flush=True)
    checks = {"p50": p50 < TARGET_P50_MS, "p99": p99 < TARGET_P99_MS, "core": used.get("gateway", 0.0) <= TARGET_CORE}
    return [name for name, is_met in checks.items() if not is_met]


def run_lines(broker: tuple[str, int], gateway: tuple[str, int], directory: Path, seconds: float) -> None:
    admin = AdminClient({"bootstrap.servers": broker[0]})
    for created in admin.create_topics([NewTopic("direct", 1), NewTopic("lines", 1)]).values():
        created.result()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print(f"{'topic':20}{'lines/s':>8}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}{'max ms':>10}  CPU, of a core")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        send = (produce_lines, broker[0], "direct")
        measure_lines(broker[0], "direct", {"broker": broker[1]}, send, seconds, pool)
        path = directory / "lines.log"
        path.touch()
        with pushing(directory, gateway[0]) as push:
            pids = {"push": push, "gateway": gateway[1], "broker": broker[1]}
            missed = measure_lines(broker[0], "lines", pids, (append_lines, path), seconds, pool)
    print(f"targets of lines missed: {', '.join(missed) or 'none'}")


async def run_probe(url: str, request: bytes, until: float) -> list[float]:
    """Sends a request each 10 ms. Returns the latencies in milliseconds, sorted."""
    parts, delays = urlsplit(url), []
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    while (begin := time.monotonic()) < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = CONTENT_LENGTH.search(head)
        assert head.startswith(b"HTTP/1.1 200") and length is not None, head
        await reader.readexactly(int(length[1]))
        delays.append((time.monotonic() - begin) * 1000)
        await asyncio.sleep(0.01)
    writer.close()
    return sorted(delays)


def probe(url: str, request: bytes, seconds: float) -> list[float]:
    return asyncio.run(run_probe(url, request, time.monotonic() + seconds))


def run_large(gateway: tuple[str, int], seconds: float) -> None:
    print(f"load of the machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print(f"{'request':10}{'beside':20}{'bodies':>8}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}{'max ms':>10}")
    small = next(workloads())
    body = json.dumps({"records": [{"value": VALUE}] * LARGE_RECORDS}).encode()
    large = dataclasses.replace(small, path="/topics/large", body=body, records=LARGE_RECORDS, clients=1)
    requests = {"healthz": b"GET /healthz HTTP/1.1\r\nHost: bench\r\n\r\n", "v2 json": small.request}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for name, request in requests.items():
            for beside in ("nothing", f"bodies of {len(body) / 1e6:.0f} MB"):
                sending = pool.apply_async(run_clients, (gateway[0], large, seconds)) if beside != "nothing" else None
                delays = pool.apply(probe, (gateway[0], request, seconds))
                bodies = 0 if sending is None else sending.get()
                print(f"{name:10}{beside:20}{bodies:8}{percentiles(delays)}", flush=True)


def percentiles(delays: Sequence[float]) -> str:
    """Returns the columns of sorted delays."""
    shares = (delays[int(len(delays) * share)] for share in (0.50, 0.90, 0.99))
    return "".join(f"{one:10.1f}" for one in (*shares, delays[-1]))


def run_requests(baseline: tuple[str, int], gateway: tuple[str, int], seconds: float) -> None:
    print(f"load of the machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print(f"{'server':10}{'requests':20}{'requests/s':>12}{'per CPU s':>14}{'records':>14}{'CPU':>8}{'MB':>8}")
    missed = []
    for workload in workloads():
        measure("bare ASGI", baseline, workload, seconds)
        requests, records = measure("gateway", gateway, workload, seconds)
        if requests < TARGET_REQUESTS if workload.records == 1 else records < TARGET_RECORDS:
            missed.append(workload.name)
    print(f"targets of requests missed: {', '.join(missed) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement (default: 5)")
    parser.add_argument("--only", choices=("requests", "large", "lines"), help="one of the measurements")
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
            started([*command, "broker", "serve", *data, "--broker-listen", "127.0.0.1:0"], {}) as broker,
            started([*command, "registry", "serve", *data, "--registry-listen", "127.0.0.1:0"], {}) as (registry, _),
            started(
                [*command, "gateway", "serve", *data, "--gateway-listen", "127.0.0.1:0"],
                {"HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker[0], "HEADRACE__REGISTRY__URL": registry},
            ) as gateway,
            started(["-m", "bench.gateway", "--serve-bare"], {}) as baseline,
        ):
            if args.only in (None, "requests"):
                run_requests(baseline, gateway, args.seconds)
            if args.only in (None, "large"):
                run_large(gateway, args.seconds)
            if args.only in (None, "lines"):
                run_lines(broker, gateway, Path(directory), args.seconds)


if __name__ == "__main__":
    main()
