"""Measures the push client: lines per CPU second, memory, and CPU while nothing happens.

    python -m bench.push [--lines 2000000] [--rounds 1] [--python /usr/bin/python3] [--idle-files 100] [--idle 30]

The client runs as the process that users start, from the single-file program, and sends one file of lines of 300 bytes,
as an access log has, to a server that only responds. CPU time is that of the client's process, with its start. The
baseline in the same run reads the same file in the same blocks, compresses them with gzip's level 1 and posts them on
one connection, without positions, state or checksums. With several rounds, both alternate, and the least time of each
counts: other work on the machine takes caches away. Idle: the CPU time of a client with 100 files that do not grow,
from 2 seconds after they were sent; in the first 10 seconds, files are polled more often.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from multiprocessing import Process
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from headrace.push.make_zipapp import make_zipapp

LINE_BYTES = 300
BLOCK_BYTES = 262_144
SEED = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="runs the client")
    parser.add_argument("--idle-files", type=int, default=100)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds")
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        directory = Path(name)
        program = directory / "headrace-push"
        make_zipapp(program)
        (directory / "logs").mkdir()
        log = directory / "logs" / "access.log"
        write_log(log, args.lines)
        with Sink() as sink:
            cores = f"{os.cpu_count()} cores, Python {platform.python_version()}"
            print(f"{args.lines:,} lines of {LINE_BYTES} bytes, {cores}")
            print(f"{'':24}{'lines/CPU s':>14}{'CPU s':>9}{'MB':>7}")
            baselines, clients = [], []
            for _ in range(args.rounds):
                baselines.append(measure_baseline(log, sink.port))
                clients.append(measure_client(args.python, program, directory, sink, log.stat().st_size))
                rmtree(directory / "state")
            baseline_s, (client_s, _), memory = min(baselines), min(clients), max(memory for _, memory in clients)
            print(f"{'read + gzip + POST':24}{args.lines / baseline_s:>14,.0f}{baseline_s:>9.2f}")
            print(f"{'headrace push':24}{args.lines / client_s:>14,.0f}{client_s:>9.2f}{memory:>7.1f}")
            print(f"{baseline_s / client_s:.0%} of the baseline")
            log.unlink()
            share, memory = measure_idle(args.python, program, directory, sink, args.idle_files, args.idle)
            print(f"idle with {args.idle_files} files: {share:.2%} of a core, {memory:.1f} MB")


def write_log(path: Path, lines: int) -> None:
    choose = random.Random(SEED)
    paths = ["/api/v1/orders", "/static/app.js", "/checkout", "/search", "/img/logo.svg"]
    with path.open("w") as file:
        for number in range(lines):
            text = (
                f"10.{choose.randrange(256)}.{choose.randrange(256)}.{choose.randrange(256)} - - "
                f"[31/Jan/2026:10:{number // 60 % 60:02}:{number % 60:02} +0000] "
                f'"GET {choose.choice(paths)}?id={choose.randrange(10**9)} HTTP/1.1" 200 {choose.randrange(99999)} '
                f'"https://shop.example/" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/120.0" '
                f"{choose.random():.3f} {choose.getrandbits(128):032x}"
            )
            file.write(f"{text[: LINE_BYTES - 1]:.<{LINE_BYTES - 1}}\n")


class Sink:
    """A server that responds to each request at once, and counts the bytes before compression."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.received = 0

    def __enter__(self) -> Sink:
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while True:
                request = stream.readline()
                if not request:
                    return
                length = 0
                while (line := stream.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                body = stream.read(length)
                found = {"last_seqno": 0, "session": "s", "session_number": 1, "written": 0, "rejected": []}
                if b"begin=" in request:
                    inflated = int.from_bytes(body[-4:], "little")
                    self.received += inflated
                    found["last_seqno"] = int(request.split(b"begin=")[1].split()[0]) + inflated
                text = json.dumps(found).encode()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


def measure_baseline(log: Path, port: int) -> float:
    """Returns the CPU time of a process that reads, compresses and posts the file, without the process's start."""
    process = Process(target=post_all, args=(log, port))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process.start()
    process.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def post_all(log: Path, port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with log.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
            connection.request("POST", "/v1/sessions/s/chunks", compressor.compress(block) + compressor.flush())
            connection.getresponse().read()


def start(python: str, program: Path, directory: Path, port: int) -> subprocess.Popen[bytes]:
    config = directory / "push.json"
    config.write_text(
        json.dumps(
            {
                "push": {"gateway": f"http://127.0.0.1:{port}", "state_dir": str(directory / "state")},
                "files": [{"paths": str(directory / "logs" / "*"), "topic": "logs"}],
            }
        )
    )
    return subprocess.Popen([python, "-I", "-S", str(program), "run", "--config", str(config), "--log-level", "error"])


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) / 1024


def measure_client(python: str, program: Path, directory: Path, sink: Sink, size: int) -> tuple[float, float]:
    """Returns the CPU time until everything is confirmed, and the peak of memory."""
    sink.received = 0
    process = start(python, program, directory, sink.port)
    while sink.received < size:
        time.sleep(0.05)
    found = cpu_s(process.pid), memory_mb(process.pid, "VmHWM")
    process.send_signal(signal.SIGTERM)
    process.wait()
    return found


def measure_idle(
    python: str, program: Path, directory: Path, sink: Sink, files: int, seconds: float
) -> tuple[float, float]:
    """Returns the share of a core that a client with files that do not grow uses, and its memory."""
    sink.received = 0
    for number in range(files):
        (directory / "logs" / f"app-{number}.log").write_text("line\n")
    process = start(python, program, directory, sink.port)
    while sink.received < 5 * files:
        time.sleep(0.05)
    time.sleep(2.0)
    before = cpu_s(process.pid)
    time.sleep(seconds)
    found = (cpu_s(process.pid) - before) / seconds, memory_mb(process.pid, "VmRSS")
    process.send_signal(signal.SIGTERM)
    process.wait()
    return found


if __name__ == "__main__":
    main()
