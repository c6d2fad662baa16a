"""That nobody was served for a while is noticed, and what the broker did meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from headrace.broker.config import BrokerConfig
from headrace.broker.node import CHECK_INTERVAL_MS, PAUSE_MIN_S, WAITED, WORKED, BrokerNode, PauseDetector

LOOK_S = CHECK_INTERVAL_MS / 1000


class Clocks:
    def __init__(self) -> None:
        self.now_s = self.worked_s = 1000.0
        self.pauses = PauseDetector(lambda: self.now_s, lambda: self.worked_s)
        self.pauses.check()

    def look_after(self, seconds: float, worked_s: float = 0.0) -> None:
        self.now_s += seconds
        self.worked_s += worked_s
        self.pauses.check()


def test_what_is_late_by_less_than_a_second_is_no_pause(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    for late_s in (0.0, 0.1, PAUSE_MIN_S - 0.01, 0.0):
        clocks.look_after(LOOK_S + late_s)
    assert (clocks.pauses.total_s, caplog.records) == (0.0, [])


def test_the_first_look_has_nothing_to_compare_with(caplog: pytest.LogCaptureFixture) -> None:
    pauses = PauseDetector()
    pauses.check()
    assert (pauses.total_s, caplog.records) == (0.0, [])


@pytest.mark.parametrize(
    ("worked_s", "working_ms", "reason"),
    [(0.002, 2, WAITED), (2.0, 2000, WAITED), (3.5, 3500, WORKED)],
)
def test_a_pause_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture, worked_s: float, working_ms: int, reason: str
) -> None:
    clocks = Clocks()
    clocks.look_after(LOOK_S, 0.2)
    clocks.look_after(LOOK_S + 4.0, worked_s)
    clocks.look_after(LOOK_S + PAUSE_MIN_S)
    assert clocks.pauses.total_s == 5.0
    assert [record.args for record in caplog.records] == [(4000, working_ms, reason), (1000, 0, WAITED)]


def test_a_running_broker_looks(tmp_path: Path) -> None:
    async def paused() -> float:
        node = BrokerNode(BrokerConfig(tmp_path))
        node.start()
        await asyncio.sleep(2 * LOOK_S)
        time.sleep(PAUSE_MIN_S + LOOK_S + 0.1)  # of the loop's own thread
        async with asyncio.timeout(60):
            while not node.pauses.total_s:
                await asyncio.sleep(LOOK_S)
        await node.close()
        return node.pauses.total_s

    assert asyncio.run(paused()) >= PAUSE_MIN_S
