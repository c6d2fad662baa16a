"""`headrace demo logs`: a growing access log through push client, gateway, broker and load to a table.

Meanwhile the log is rotated, and push client and gateway are killed. The queries compare the table with what was
written, and the audit with what the gateway counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from headrace.pipeline.demo.access_log import WebAccessLog
from headrace.pipeline.demo.environment import LocalEnvironment, relative_path
from headrace.pipeline.demo.flights import DemoResult
from headrace.pipeline.demo.queries import DemoQuery, Table
from headrace.pipeline.demo.steps import DemoError, DemoSteps, Progress, prepare_directory
from headrace.settings import Settings
from headrace.settings.addresses import live_addresses

TOPIC: Final = "nginx"
SAMPLE_QUERY: Final = "SELECT line FROM nginx LIMIT 5"
SERVERS: Final = "registry,broker,metastore,gateway"
STEPS: Final = 40
LINES_PER_STEP: Final = 1_000
LATE_LINES: Final = 10
STEP_S: Final = 0.1
ROTATED_AFTER: Final = (10, 20, 30)
CLIENT_KILLED_AFTER: Final = 15
GATEWAY_KILLED_AFTER: Final = 25
SENT_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 30.0
REQUEST_TIMEOUT_S: Final = 30.0


def run_log_demo(settings: Settings, environment: Mapping[str, str], out: TextIO) -> DemoResult:
    """Runs the demo on this machine in `settings.data_dir`. Empties the directory first if an earlier demo created it.

    Args:
        environment: environment variables for the commands of the demo.
        out: stream for the progress.

    Raises:
        DemoError: the directory cannot be used, or a step failed; the message has the reason.
        UpError: a server did not start; the message has the reason and the path of its log.
    """
    data_dir = settings.data_dir.resolve()
    prepare_directory(data_dir)
    servers = LocalEnvironment(data_dir, environment, SERVERS, (TOPIC,))
    demo = _LogDemo(servers, data_dir, out)
    started = time.monotonic()
    try:
        demo.start()
        log = demo.write_log()
        demo.load()
        result = DemoResult(tuple(demo.compare_queries(log)), demo.audit() and demo.is_counted(log))
        demo.print_end(result, time.monotonic() - started)
    finally:
        demo.stop()
    return result


class _LogDemo(DemoSteps):
    def __init__(self, servers: LocalEnvironment, data_dir: Path, out: TextIO) -> None:
        super().__init__(servers, data_dir / "logs", out)
        self._servers = servers
        self._data_dir = data_dir
        self._log_path = data_dir / "web" / "access.log"
        self._config = data_dir / "push.toml"
        self._client: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.print_heading("Starting the servers")
        self._servers.start(self.print_detail)
        gateway = self._servers.addresses["gateway"]
        self.print_detail(f"gateway {gateway}")
        self._create_topic(gateway)
        self._log_path.parent.mkdir()
        self._config.write_text(
            f"[push]\ngateway = {json.dumps(gateway)}\nstate_dir = {json.dumps(str(self._data_dir / 'push'))}\n\n"
            f"[[files]]\npaths = {json.dumps(str(self._log_path))}\ntopic = {json.dumps(TOPIC)}\n",
            encoding="utf-8",
        )

    def stop(self) -> None:
        self._stop_client()
        self._servers.stop()

    def write_log(self) -> WebAccessLog:
        """Writes the log while the client sends it, and waits until all of it is sent.

        Raises:
            DemoError: the client ended, or does not finish.
        """
        self.print_heading(f"Writing {relative_path(self._log_path)}, which `headrace push` sends to the gateway")
        log = WebAccessLog(self._log_path)
        self._start_client()
        progress = Progress("  lines written", STEPS * LINES_PER_STEP, self._out)
        for step in range(STEPS):
            log.write(LINES_PER_STEP)
            progress.add(LINES_PER_STEP)
            time.sleep(STEP_S)
            event = self._event(step, log)
            if event:
                self.print_detail(f"  {event}")
        progress.finish()
        log.close()
        self._wait_until_sent()
        self.print_detail(f"{log.written:,} lines written, and sent by the client")
        self._stop_client()
        self._publish_counts()
        return log

    def _event(self, step: int, log: WebAccessLog) -> str:
        """Rotates the log or kills a process, after some steps. Returns what happened, "" for nothing."""
        if step in ROTATED_AFTER:
            log.rotate(LATE_LINES)
            return f"rotated; {LATE_LINES} more lines went to the renamed file"
        if step == CLIENT_KILLED_AFTER:
            assert self._client is not None
            self._client.kill()
            self._client.wait()
            self._start_client()
            return "push client killed and started again"
        if step == GATEWAY_KILLED_AFTER:
            self._signal_gateway(signal.SIGKILL)
            return "gateway killed; `headrace up` starts it again"
        return ""

    def compare_queries(self, log: WebAccessLog) -> list[str]:
        """Runs every query and returns the titles of those whose result differs from what was written."""
        self.print_heading("Querying the table, and comparing it with what was written")
        with self._servers.engine(self.print_detail) as run_query:
            return [
                query.title
                for query in queries_of(log)
                if not self.is_as_expected(run_query, query, query.expected(self._data_dir))
            ]

    def is_counted(self, log: WebAccessLog) -> bool:
        """Returns whether the gateway, the broker and the table have counted each line once, also in the window that
        has not ended, for which the audit has no verdict yet."""
        (found,) = json.loads(self.headrace("audit", "report", "--format", "json").stdout)["topics"]
        return dict(found["counts"]) == dict.fromkeys(("sent", "acknowledged", "stored", "written"), log.written)

    def print_end(self, result: DemoResult, duration_s: float) -> None:
        self.print_heading(f"Done in {duration_s:.0f} s")
        if result.wrong_queries:
            self.print_detail(f"WRONG results: {'; '.join(result.wrong_queries)}")
        if not result.is_audit_complete:
            self.print_detail("the audit found missing or duplicated lines")
        if result.is_correct:
            self.print_detail("every line of the log is in the table exactly once")
        directory = relative_path(self._data_dir)
        self.print_detail("Next steps:")
        self.print_detail(f'  headrace sql --data-dir {directory} "{SAMPLE_QUERY}"')
        self.print_detail(f"  headrace push status --config {relative_path(self._config)}")

    def _create_topic(self, gateway: str) -> None:
        body = json.dumps({"topic_name": TOPIC, "partitions_count": 1}).encode()
        request = urllib.request.Request(  # noqa: S310  (the address of a server of ours)
            f"{gateway}/v3/clusters/any/topics", body, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S):  # noqa: S310
            self.print_detail(f"topic {TOPIC} created by the gateway")

    def _publish_counts(self) -> None:
        """Restarts the gateway. At its stop it publishes the counts of the audit window that has not ended."""
        stopped = self._signal_gateway(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._gateway_pid() in (stopped, None):
            if time.monotonic() > deadline:
                raise DemoError(f"the gateway has not restarted after {STOP_TIMEOUT_S:g} s")
            time.sleep(STEP_S)

    def _signal_gateway(self, number: signal.Signals) -> int:
        pid = self._gateway_pid()
        if pid is None:
            raise DemoError(f"the gateway does not run; see {self._log_dir}/gateway.log")
        os.kill(pid, number)
        return pid

    def _gateway_pid(self) -> int | None:
        """Returns the process id; None while `headrace up` restarts the gateway."""
        live = live_addresses(Settings(data_dir=self._data_dir))
        if live is None:
            raise DemoError(f"`headrace up` has ended; see {self._log_dir}")
        return live.pids.get("gateway")

    def _start_client(self) -> None:
        command = self._servers.command("push", "run", "--config", str(self._config))
        with (self._log_dir / "push.log").open("ab") as log:
            self._client = subprocess.Popen(
                command.words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(command.environment)
            )

    def _stop_client(self) -> None:
        if self._client is None:
            return
        self._client.terminate()
        try:
            self._client.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._client.kill()
        self._client = None

    def _wait_until_sent(self) -> None:
        deadline = time.monotonic() + SENT_TIMEOUT_S
        while not self._is_sent():
            assert self._client is not None
            if self._client.poll() is not None:
                raise DemoError(
                    f"the push client ended with code {self._client.returncode}; see {self._log_dir}/push.log"
                )
            if time.monotonic() > deadline:
                raise DemoError(f"the push client has not sent the log after {SENT_TIMEOUT_S:g} s")
            time.sleep(STEP_S)

    def _is_sent(self) -> bool:
        files: list[dict[str, Any]] = json.loads(self.headrace(*self._status_command()).stdout)["files"]
        is_current_sent = any(
            one["file"] == str(self._log_path) and one["position"] == self._log_path.stat().st_size for one in files
        )
        return is_current_sent and all(one["status"] in ("sent", "gone") for one in files)

    def _status_command(self) -> tuple[str, ...]:
        return ("push", "status", "--config", str(self._config), "--format", "json")


def queries_of(log: WebAccessLog) -> tuple[DemoQuery, ...]:
    """Returns the queries, with the results that what was written should have."""
    pages: dict[str, list[int]] = {}
    for (page, status), count in log.pages.items():
        found = pages.setdefault(page, [0, 0])
        found[0] += count
        found[1] += count if status >= 500 else 0
    by_page: Table = sorted(((page, *counts) for page, counts in pages.items()), key=lambda row: -row[1])
    return (
        DemoQuery(
            "Lines, and different lines",
            "SELECT count(*), count(DISTINCT line) FROM nginx",
            ("lines", "different"),
            lambda _: [(log.written, log.written)],
        ),
        DemoQuery(
            "Requests and errors by page",
            "SELECT page, count(*) AS requests, sum(CASE WHEN status >= 500 THEN 1 ELSE 0 END) AS errors FROM ("
            "SELECT regexp_extract(line, '\"GET ([^ ]+)', 1) AS page,"
            " CAST(regexp_extract(line, '\" ([0-9]+) ', 1) AS INT) AS status FROM nginx) "
            "GROUP BY page ORDER BY requests DESC",
            ("page", "requests", "errors"),
            lambda _: by_page,
        ),
    )
