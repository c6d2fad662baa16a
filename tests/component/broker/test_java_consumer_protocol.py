"""Kafka's own consumers with `group.protocol=consumer`: `tests/support/java/ConsumerProtocolRound.java`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.broker.broker_restarts import serve
from support.java_oracle import compile_program
from support.servers.kafka_programs import JAVA
from support.servers.maven_jars import classpath_of

pytestmark = pytest.mark.java

RUN_TIMEOUT_S = 240


def test_two_members_share_and_one_takes_over(start_service: Any, tmp_path: Path) -> None:
    """One member subscribes by pattern, is static and prefers another assignor."""
    broker = serve(start_service, tmp_path, consumer_heartbeat_interval="500ms")
    classpath = classpath_of("kafka")
    classes = compile_program("ConsumerProtocolRound", classpath, tmp_path / "classes")
    command = [*JAVA, "-cp", f"{classes}:{classpath}", "ConsumerProtocolRound", broker.addresses["broker"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [
        line.strip() for line in done.stdout.splitlines() if "log4j" not in line.lower() and "WARN" not in line
    ] == [
        "read 8",
        "read 16",
        "Consumer Stable 2 of epoch [true]",
        "[tills Consumer Stable]",
        "read 16",
        "4 4 4 4",
    ]
