"""Clients of the registry's benchmark: wrk if it is installed, otherwise connections of this process.

A `Load` is a request that the clients repeat. Its path and body may contain `{n}`, a number that starts at `first`,
grows with each request, and starts again after `count` requests.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
WRK = shutil.which("wrk")
GENERATOR = "wrk, 1 thread" if WRK else "asyncio connections of one Python process (no wrk here)"


@dataclass(frozen=True, slots=True)
class Load:
    path: str
    method: str = "GET"
    body: str = ""
    first: int = 0
    count: int = 0

    def request(self, number: int) -> bytes:
        counted = str(self.first + (number % self.count if self.count else number))
        body = self.body.replace("{n}", counted).encode()
        head = f"{self.method} {self.path.replace('{n}', counted)} HTTP/1.1\r\nHost: registry\r\n"
        if self.method != "GET":
            head += f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode() + body


@dataclass(frozen=True, slots=True)
class Rate:
    """Results of a number of concurrent clients. Latencies are in milliseconds; `failed` counts responses other than
    200."""

    clients: int
    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int


def run_load(url: str, load: Load, clients: int, seconds: float) -> Rate:
    """Runs clients for a time, each with one connection and one request at a time. Returns their rate and latencies."""
    return _run_wrk(url, load, clients, seconds) if WRK else asyncio.run(_run_asyncio(url, load, clients, seconds))


def _run_wrk(url: str, load: Load, clients: int, seconds: float) -> Rate:
    assert WRK is not None
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "load.lua"
        script.write_text(_lua(load))
        command = [WRK, "-t1", f"-c{clients}", f"-d{seconds:.0f}s", "--latency", "--timeout", "10s", "-s", str(script)]
        completed = subprocess.run([*command, url], capture_output=True, text=True, check=True)
    found = re.search(r"result (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", completed.stdout)
    assert found, completed.stdout
    requests, duration_us, p50_us, p99_us, error_responses, socket_errors = map(int, found.groups())
    return Rate(clients, requests / duration_us * 1e6, p50_us / 1000, p99_us / 1000, error_responses + socket_errors)


def _lua(load: Load) -> str:
    # Built before the measurement if nothing is counted, to minimize the cost of the generator.
    counted = f"{load.first} + {f'n % {load.count}' if load.count else 'n'}"
    return f"""
local path, body = {_lua_text(load.path)}, {_lua_text(load.body)}
local headers = {{ Host = "registry" }}
if "{load.method}" ~= "GET" then headers["Content-Type"] = "{CONTENT_TYPE}" else body = nil end
local function made(number)
  local text = string.format("%d", number)
  return wrk.format("{load.method}", (path:gsub("{{n}}", text)), headers, body and (body:gsub("{{n}}", text)))
end
local fixed, n = not (path .. (body or "")):find("{{n}}", 1, true) and made(0), -1
request = function()
  if fixed then return fixed end
  n = n + 1
  return made({counted})
end
done = function(summary, latency, _)
  local e = summary.errors
  io.write(string.format("result %d %d %d %d %d %d\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), e.status, e.connect + e.read + e.write + e.timeout))
end
"""


def _lua_text(text: str) -> str:
    assert "]=]" not in text
    return f"[=[{text}]=]"


async def _run_asyncio(url: str, load: Load, clients: int, seconds: float) -> Rate:
    parts = urlsplit(url)
    latencies: list[float] = []
    failed = 0
    numbers = iter(range(1 << 62))
    began = time.perf_counter()

    async def client() -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while (sent := time.perf_counter()) < began + seconds:
            writer.write(load.request(next(numbers)))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length, head
            await reader.readexactly(int(length[1]))
            latencies.append(time.perf_counter() - sent)
            failed += b" 200 " not in head.partition(b"\r\n")[0]
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    duration = time.perf_counter() - began
    latencies.sort()
    p50, p99 = (latencies[int(len(latencies) * fraction)] * 1000 for fraction in (0.5, 0.99))
    return Rate(clients, len(latencies) / duration, p50, p99, failed)
