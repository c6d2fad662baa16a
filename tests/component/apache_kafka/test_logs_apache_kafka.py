"""Each line of the logs is stored once in an Apache Kafka, though push clients, gateways and broker are killed."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from support.log_faults import LogFaults, check_lines, fault_schedule, report
from support.servers.apache_kafka import ApacheKafka
from support.session_client import stored_lines


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_every_line_is_stored_once_though_all_parts_fail(tmp_path: Path, registry_url: str) -> None:
    """`HEADRACE_TEST_SEED=n` repeats a schedule."""
    seed = int(os.environ.get("HEADRACE_TEST_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    started_at = time.monotonic()
    broker = ApacheKafka(tmp_path / "kafka")
    faults = LogFaults(tmp_path, seed, broker, broker.address, None, registry_url)
    try:
        faults.run(fault_schedule(random.Random(seed), 12))
        faults.wait_until_stored()
        found = stored_lines(broker.address, "logs")
        print(report(seed, faults, len(found), time.monotonic() - started_at), flush=True)
        check_lines(faults, found)
    finally:
        faults.close()
        broker.kill()
