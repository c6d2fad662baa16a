"""Kafka's current Java client with transactions: `tests/support/java/TransactionRound.java`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.java_oracle import compile_program
from support.servers.maven_jars import classpath_of

pytestmark = pytest.mark.java

RUN_TIMEOUT_S = 120


def test_a_round_of_transactions(broker_address: str, tmp_path: Path) -> None:
    """The client uses the protocol from before KIP-890, since the broker does not have the feature
    `transaction.version`."""
    classpath = classpath_of("kafka")
    classes = compile_program("TransactionRound", classpath, tmp_path / "classes")
    command = ["java", "-Xmx256m", "-cp", f"{classes}:{classpath}", "TransactionRound", broker_address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "log4j" not in line.lower() and "WARN" not in line] == [
        "committed 5",
        "read 40 [value 0, value 2, value 3, value 5]",
        "java-1 Ongoing",
        "Ongoing [java-0]",
        "open from 66",
        "fenced",
    ]
