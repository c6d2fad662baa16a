"""Measures the console's pages on 300 topics, 30 days of stored verdicts, 10,200 partitions and 5,000 subjects:
`python -m bench.console`.

Writes 1.3 million window verdicts with strips and events into a new audit database, in which three topics of a hundred
have findings and the rest is complete, and a warehouse and a run log. Prints for each page the CPU time of the server
(the best of five requests to the WSGI application, in one process; and of the first request, which also reads the
cached sources), the bytes of the page as they are and with gzip, and the targets. Then the memory and the idle CPU time
of a served console.
With --browser it also opens each page in Debian's Chromium and prints the CPU time of its main thread. The baseline is
the time to read the same windows as rows, which a page without strips would need.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import math
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

from bench.support.console_world import fill_commits, fill_runs, install_brokers, install_registry
from headrace.audit.event import event_id
from headrace.audit.storage.store import AuditStore
from headrace.audit.strip import DAY_MS, STATE_BYTES, WINDOWS_OF_DAY
from headrace.audit.verdict import AuditVerdict, Hop
from headrace.audit.window import WINDOW_MS
from headrace.console.access import ConsoleAccess
from headrace.console.actions.storage import ActionStore
from headrace.console.app import create_app
from headrace.console.context import EXTENSION
from headrace.console.database import ConsoleDatabase
from headrace.console.pages import now
from headrace.console.sessions import SessionStore
from headrace.pipeline.status.finding import PlatformStatus
from headrace.settings import LoaderSettings, Settings

TOPICS, DAYS, ROUNDS = 300, 30, 5
NOW_MS = 1_795_000_200_000
FAULTY_EVERY = 33
"""One topic of this number has findings, one hour in each of its days."""
VERDICTS = (AuditVerdict.MISSING, AuditVerdict.EXTRA, AuditVerdict.MISMATCH)


@dataclass(frozen=True, slots=True)
class PageTarget:
    """A page and its limits: server CPU and main-thread CPU in milliseconds, and bytes."""

    name: str
    path: str
    server_ms: float
    bytes_max: int
    main_thread_ms: float


TARGETS = (
    PageTarget("now, 24 hours", "/", 25, 60_000, 80),
    PageTarget("now, 30 days, all topics", "/?range=30d&show=all", 80, 300_000, 150),
    PageTarget("topic, 24 hours", "/topics/topic-000", 15, 100_000, 80),
    PageTarget("topic, 30 days", "/topics/topic-000?range=30d", 60, 300_000, 60),
    PageTarget("topics", "/topics", 30, 100_000, 60),
    PageTarget("partitions, 10,200", "/partitions", 300, 100_000, 60),
    PageTarget("partitions of a topic", "/partitions?topic=topic-000", 100, 100_000, 60),
    PageTarget("schemas, 5,000 subjects", "/schemas", 30, 100_000, 60),
    PageTarget("schemas, search by name", "/schemas?q=topic-12", 30, 100_000, 60),
    PageTarget("schemas, search in docs", "/schemas?q=messages+of+this", 100, 200_000, 80),
    PageTarget("subject, 30 fields", "/schemas/subject?name=topic-4998-value", 30, 100_000, 60),
    PageTarget("diff of 30 fields", "/schemas/diff?name=topic-4998-value", 15, 100_000, 60),
    PageTarget("diff of 1,000 fields", "/schemas/diff?name=wide-value", 300, 1_500_000, 400),
    PageTarget("loads of a day", "/loads", 40, 200_000, 80),
    PageTarget("one load", "/loads/run-100", 40, 100_000, 60),
    PageTarget("quarantine", "/quarantine", 30, 100_000, 60),
    PageTarget("tables", "/tables", 30, 100_000, 60),
    PageTarget("columns of a table", "/tables/topic-000", 30, 100_000, 60),
    PageTarget("history of a table", "/tables/topic-000?show=history", 30, 100_000, 60),
    PageTarget("31 days of a table", "/tables/topic-000?show=days", 30, 100_000, 60),
    PageTarget("50 messages", "/messages?topic=topic-001", 30, 100_000, 80),
    PageTarget("500 messages, decoded", "/messages?topic=topic-001&count=500", 100, 200_000, 100),
    PageTarget("find a message, the form", "/find", 30, 100_000, 60),
    PageTarget("find an offset", "/find?topic=topic-001&partition=3&offset=500", 30, 100_000, 60),
    PageTarget("find a time", "/find?topic=topic-001&at=2026-11-18", 30, 100_000, 60),
    PageTarget("find a key", "/find?topic=topic-001&key=k", 30, 100_000, 60),
    PageTarget("alerts", "/alerts", 30, 100_000, 60),
    PageTarget("actions", "/actions", 30, 100_000, 60),
    PageTarget("system", "/system", 40, 100_000, 60),
)
MEMORY_MB_MAX = 120
CPU_PERCENT_MAX, IDLE_S = 0.5, 20
"""Limits of `headrace console serve`, both processes together: its memory, and its CPU time without requests, which is
measured for `IDLE_S`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--browser", action="store_true", help="also measure the main thread of Debian's Chromium")
    args = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a run takes minutes
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        cpu_s = _cpu_of(lambda: fill(directory / "audit.db", args.topics))
        print(f"{args.topics} topics x {DAYS} days: {size_mb(directory):.0f} MB, written in {cpu_s:.1f} s of CPU")
        fill_commits(directory, args.topics, NOW_MS)
        fill_runs(directory, NOW_MS)
        setattr(now, "platform_status", lambda settings, **_: PlatformStatus(NOW_MS, (), ()))  # noqa: B010  (no other server)
        settings = Settings(data_dir=directory, loader=LoaderSettings(warehouse=str(directory / "warehouse")))
        database = ConsoleDatabase.of_settings(settings)
        sessions, actions = SessionStore(database), ActionStore(database)
        app = create_app(settings, ConsoleAccess(None, True, settings.loader), sessions, actions, now_ms=lambda: NOW_MS)
        context = app.extensions[EXTENSION]
        install_registry(context.registry, NOW_MS)
        install_brokers(context.brokers, args.topics, NOW_MS)
        are_met = measure(app)
        baseline_s = _cpu_of(lambda: read_rows(directory / "audit.db"))
        print(f"baseline: verdicts of 30 days from rows instead of strips: {baseline_s * 1000:.0f} ms")
        are_met &= measure_memory(directory)
        if args.browser:
            are_met &= measure_browser(app)
    return 0 if are_met else 1


def measure(app: Any) -> bool:
    """Prints a line for each page, and returns whether all targets are met."""
    client = app.test_client()
    are_met = True
    for target in TARGETS:
        first_ms = _cpu_of(lambda: client.get(target.path)) * 1000  # noqa: B023  (called at once)
        times, body = [], b""
        for _ in range(ROUNDS):
            times.append(_cpu_of(lambda path=target.path: client.get(path)) * 1000)  # type: ignore[misc]
        body = client.get(target.path).data
        best, size, packed = min(times), len(body), len(gzip.compress(body, 6))
        is_met = best <= target.server_ms and size <= target.bytes_max
        are_met &= is_met
        print(
            f"{target.name:26} {best:6.1f} ms of {target.server_ms:g}, the first {first_ms:.0f} ms   {size:8,} bytes"
            f" of {target.bytes_max:,} ({packed:,} with gzip)   {'met' if is_met else 'NOT MET'}"
        )
        response = client.get(target.path)
        assert response.status_code == 200, response.text
        tag = response.headers.get("ETag")
        if tag is None:
            continue
        unchanged = [
            _cpu_of(lambda: client.get(target.path, headers={"If-None-Match": tag})) * 1000  # noqa: B023
            for _ in range(ROUNDS)
        ]
        print(f"{'':26} {min(unchanged):6.1f} ms if the page did not change")
    return are_met


def measure_memory(directory: Path) -> bool:
    """Serves all pages from processes of their own, requests each three times, and prints the memory of both: their
    proportional set size, in which pages that both share count once."""
    command = [sys.executable, "-m", "headrace", "console", "serve", "--console-listen", "127.0.0.1:0"]
    flags = ["--data-dir", str(directory), "--warehouse", str(directory / "warehouse")]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().partition("=")[2].strip()
            started_mb = _memory_mb(process.pid)
            for target in TARGETS * 3:
                with contextlib.suppress(urllib.error.HTTPError):  # without a registry there are no subjects
                    urllib.request.urlopen(url + target.path, timeout=60).read()
            used_mb = _memory_mb(process.pid)
            time.sleep(3)  # reads that no page waits for any more end
            start_s = _cpu_s(process.pid)
            time.sleep(IDLE_S)
            idle_percent = 100 * (_cpu_s(process.pid) - start_s) / IDLE_S
        finally:
            process.terminate()
    is_met = used_mb <= MEMORY_MB_MAX
    print(
        f"memory of the console: {started_mb:.0f} MB after its start, {used_mb:.0f} MB of {MEMORY_MB_MAX} after three "
        f"rounds over all pages   {'met' if is_met else 'NOT MET'}"
    )
    is_idle = idle_percent <= CPU_PERCENT_MAX
    print(f"idle CPU: {idle_percent:.2f} % of {CPU_PERCENT_MAX}   {'met' if is_idle else 'NOT MET'}")
    return is_met and is_idle


def _processes(parent: int) -> list[str]:
    return [str(parent), *Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _cpu_s(parent: int) -> float:
    found = 0
    for process in _processes(parent):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        found += int(fields[11]) + int(fields[12])  # utime and stime
    return found / os.sysconf("SC_CLK_TCK")


def _memory_mb(parent: int) -> float:
    found = 0
    for process in _processes(parent):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        found += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found / 1024


def measure_browser(app: Any) -> bool:
    """Prints the CPU time of the browser's main thread for each page."""
    from playwright.sync_api import sync_playwright

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    are_met = True
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for target in TARGETS:
            best_ms, nodes, wall_ms = math.inf, 0, math.inf
            for _ in range(ROUNDS):
                page = browser.new_page(viewport={"width": 1440, "height": 1000})
                session = page.context.new_cdp_session(page)
                session.send("Performance.enable", {"timeDomain": "threadTicks"})
                start = time.monotonic()
                page.goto(f"http://127.0.0.1:{server.server_port}{target.path}", wait_until="load")
                page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                wall_ms = min(wall_ms, (time.monotonic() - start) * 1000)
                found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
                best_ms, nodes = min(best_ms, found["TaskDuration"] * 1000), int(found["Nodes"])
                page.close()
            is_met = best_ms <= target.main_thread_ms
            are_met &= is_met
            print(
                f"{target.name:26} main thread {best_ms:4.0f} ms of {target.main_thread_ms:g}, {nodes:,} nodes, "
                f"ready after {wall_ms:.0f} ms   {'met' if is_met else 'NOT MET'}"
            )
        browser.close()
    server.shutdown()
    return are_met


class _QuietHandler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


def fill(path: Path, topics: int) -> None:
    """Writes the verdicts, strips and events of all topics."""
    AuditStore(path).close()
    with sqlite3.connect(path) as database:
        for number in range(topics):
            topic, rows = f"topic-{number:03}", list(window_rows(number))
            _insert(database, "window_verdict", rows)
            _insert(database, "strip", strip_rows(topic, rows))
            _insert(database, "event", event_rows(topic, rows))
            _insert(database, "topic_state", [topic_row(topic, rows)])
        database.execute("UPDATE store_state SET revision = 1, checked_at_ms = ?", (NOW_MS,))
        database.execute("INSERT INTO tier_count VALUES ('broker', ?)", (NOW_MS - 60_000,))


def window_rows(number: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(number)
    newest = NOW_MS // WINDOW_MS
    for age in range(DAYS * WINDOWS_OF_DAY, 0, -1):
        start_ms = (newest - age) * WINDOW_MS
        is_faulty = number % FAULTY_EVERY == 0 and start_ms // 3_600_000 % 24 == number % 24
        verdict = VERDICTS[number // FAULTY_EVERY % 3] if is_faulty else AuditVerdict.COMPLETE
        sent = 1000 + draw.randrange(400)
        difference = {AuditVerdict.MISSING: -3, AuditVerdict.EXTRA: 3}.get(verdict, 0)
        times = {
            f"{tier}_{share}_ms": 200_000 + draw.randrange(200_000)
            for tier in ("log", "loaded")
            for share in ("99", "999", "all")
        }
        yield {
            "topic": f"topic-{number:03}",
            "window_start_ms": start_ms,
            "verdict": verdict.value,
            "hop": Hop.PRODUCER_TO_LOG.value,
            "difference": difference,
            "missing": max(0, -difference),
            "extra": max(0, difference),
            "sent": sent,
            "acknowledged": sent,
            "stored": sent + difference,
            "written": sent + difference,
            "quarantined": 0,
            "consumed": "",
            "crashed": 0,
            "sentence": "3 of 1,200 messages that brokers acknowledged are missing in the log" if is_faulty else "",
            **times,
            "first_counted_ms": start_ms + WINDOW_MS,
            "last_counted_ms": start_ms + 2 * WINDOW_MS,
            "changed_at_ms": start_ms + 2 * WINDOW_MS,
        }


def strip_rows(topic: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    days: dict[int, bytearray] = {}
    for row in rows:
        day, place = row["window_start_ms"] // DAY_MS, row["window_start_ms"] % DAY_MS // WINDOW_MS
        days.setdefault(day, bytearray(WINDOWS_OF_DAY))[place] = STATE_BYTES[AuditVerdict(row["verdict"])]
    return [{"topic": topic, "day": day, "states": bytes(states)} for day, states in days.items()]


def event_rows(topic: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one event for each faulty hour."""
    faulty = [row for row in rows if row["verdict"] != "complete"]
    firsts = [row for row in faulty if row["window_start_ms"] % 3_600_000 == 0]
    return [
        {
            "id": event_id(topic, AuditVerdict(row["verdict"]), Hop.PRODUCER_TO_LOG, row["window_start_ms"]),
            "topic": topic,
            "verdict": row["verdict"],
            "hop": row["hop"],
            "start_ms": row["window_start_ms"],
            "end_ms": row["window_start_ms"] + 3_600_000,
            "windows": 6,
            "missing": 6 * row["missing"],
            "extra": 6 * row["extra"],
            "producers": "[]",
            "sentence": row["sentence"],
            "opened_at_ms": row["changed_at_ms"],
            "changed_at_ms": row["changed_at_ms"],
            # The newest is open, as after a day of repairs.
            "closed_at_ms": None if row is firsts[-1] else row["changed_at_ms"] + 3_600_000,
            "resolution": "" if row is firsts[-1] else "complete",
        }
        for row in firsts
    ]


def topic_row(topic: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    worst = max((AuditVerdict(row["verdict"]) for row in rows), key=STATE_BYTES.__getitem__)
    return {
        "topic": topic,
        "is_read": 1,
        "is_loaded": 1,
        "verdict": worst.value,
        "findings": sum(row["verdict"] != "complete" for row in rows),
        "missing": sum(row["missing"] for row in rows),
        "extra": sum(row["extra"] for row in rows),
        "last_counted_ms": rows[-1]["last_counted_ms"],
        "messages_24h": sum(row["stored"] for row in rows[-WINDOWS_OF_DAY:]),
    }


def read_rows(path: Path) -> int:
    with sqlite3.connect(path) as database:
        return len(database.execute("SELECT topic, window_start_ms, verdict FROM window_verdict").fetchall())


def size_mb(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.iterdir()) / 1e6


def _insert(database: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        names = ", ".join(f'"{name}"' for name in rows[0])
        places = ", ".join(f":{name}" for name in rows[0])
        database.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", rows)


def _cpu_of(call: Callable[[], object]) -> float:
    """Returns the CPU time of all threads of this process for a call, in seconds."""
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
