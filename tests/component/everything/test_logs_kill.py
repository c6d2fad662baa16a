"""Each line of the logs is in the table once, though push clients, gateways and broker are killed and paused, and the
connections between them are cut."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from support.faulty_link import FaultyLink
from support.log_faults import LogFaults, bundled_broker, check_lines, fault_schedule, load_lines, report
from support.session_client import stored_lines

pytestmark = [pytest.mark.fault, pytest.mark.spark]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_every_line_is_in_the_table_once_though_all_parts_fail(count: int, tmp_path: Path, registry_url: str) -> None:
    """`HEADRACE_TEST_SEED=n` repeats a schedule."""
    seed = int(os.environ.get("HEADRACE_TEST_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    started_at = time.monotonic()
    broker_link = FaultyLink()
    broker = bundled_broker(tmp_path / "broker", broker_link)
    faults = LogFaults(tmp_path, seed, broker, broker_link.address, broker_link, registry_url)
    try:
        faults.run(fault_schedule(random.Random(seed), count))
        faults.wait_until_stored()
        found = stored_lines(broker_link.address, "logs")
        print(report(seed, faults, len(found), time.monotonic() - started_at), flush=True)
        check_lines(faults, found)
        rows = load_lines(tmp_path / "load", broker_link.address, registry_url)
    finally:
        faults.close()
        broker.kill()
    assert rows == sorted((one.partition, one.offset, one.name, one.number) for one in found)
    for problem in ("have no more", "has lost lines", "source stopped"):
        assert problem not in faults.client_logs(), f"seed {seed}: {tmp_path}"
