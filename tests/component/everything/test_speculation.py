"""Speculative execution: Spark runs a second attempt of a slow task, as clusters with slow nodes configure it.

Spark starts the attempt on another host only, so the standalone cluster has workers on two addresses of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from headrace.pipeline.java import ensure_java
from support.broker.stalling_proxy import StallingProxy
from support.free_ports import free_port
from support.loader.load_world import LoadWorld

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("speculation")]

SPARK = Path(pyspark.__file__).parent
WORKERS = ("127.0.0.2", "127.0.0.3")
STARTED_WITHIN_S = 60
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options of the cluster's processes, which run for seconds."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a standalone cluster."""
    directory = tmp_path_factory.mktemp("spark")
    environment = {**os.environ, "SPARK_HOME": str(SPARK), "SPARK_DAEMON_MEMORY": "256m"}
    environment["JAVA_HOME"] = str(ensure_java(directory, environment))
    environment["SPARK_DAEMON_JAVA_OPTS"] = QUICK_JAVA
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    log = directory / "cluster.log"

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                env=environment,
            )

    with ExitStack() as stack:
        commands = [
            ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
            *(
                (
                    *("org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1"),
                    *("--memory", "1g", "--work-dir", str(directory / host), url),
                )
                for host in WORKERS
            ),
        ]
        for arguments in commands:
            process = start(*arguments)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        deadline = time.monotonic() + STARTED_WITHIN_S
        while log.read_text().count("Successfully registered with master") < len(WORKERS):
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        yield url


@pytest.fixture
def proxy() -> Iterator[StallingProxy]:
    proxy = StallingProxy()
    yield proxy
    proxy.close()


def test_speculative_attempt_of_slow_task_adds_no_rows_and_no_files(
    master: str, proxy: StallingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    advertised = {
        "HEADRACE__BROKER__ADVERTISED_HOST": "127.0.0.1",
        "HEADRACE__BROKER__ADVERTISED_PORT": str(proxy.port),
    }
    events = tmp_path / "events"
    events.mkdir()
    settings = tmp_path / "headrace.toml"
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": f"-Duser.timezone=UTC {QUICK_JAVA}",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "1s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    settings.write_text("[spark]\n" + "".join(f"{json.dumps(key)} = {json.dumps(conf[key])}\n" for key in conf))
    world = LoadWorld(tmp_path / "world", broker=advertised, metastore=False)
    try:
        proxy.lead_to(world.addresses["broker"])
        world.produce("slow", 200)
        more = ("--config", str(settings), "--master", master, "--tasks", "2", "--bootstrap-servers", proxy.address)
        done = world.load(*more, "--hive-executor", "print")
        assert done.returncode == 0, done.stdout + done.stderr
        assert proxy.has_stalled.is_set() and proxy.was_given_up.wait(STARTED_WITHIN_S)
        # Either of the two attempts may have been delayed.
        assert attempts(events) == {"started": [False, True], "succeeded": 1}
        world.check(whole=True)
        staged = [path for path in (world.warehouse / "_headrace" / "staging").rglob("*") if path.is_file()]
        assert staged == [], "files of the killed attempt"
        verified = world.command("verify", "--data-dir", str(world.data_dir))
        assert verified.returncode == 0, verified.stdout + verified.stderr
    finally:
        world.close()


def attempts(events: Path) -> dict[str, object]:
    """Returns whether each attempt of the only task was speculative, and the number of successful ones."""
    paths = events.rglob("events_*")  # without checksum files
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    started = [event["Task Info"]["Speculative"] for event in rows if event["Event"] == "SparkListenerTaskStart"]
    ended = [event["Task End Reason"]["Reason"] for event in rows if event["Event"] == "SparkListenerTaskEnd"]
    return {"started": started, "succeeded": ended.count("Success")}
