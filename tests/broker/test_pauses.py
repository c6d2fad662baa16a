"""Pauses of the event loop are detected and logged with their cause."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from headrace.broker.config import BrokerConfig
from headrace.broker.node import CAUSE_WAIT, CAUSE_WORK, CHECK_INTERVAL_MS, PAUSE_MIN_S, BrokerNode, PauseDetector

CHECK_S = CHECK_INTERVAL_MS / 1000


class Clocks:
    def __init__(self) -> None:
        self.now_s = self.worked_s = 1000.0
        self.pauses = PauseDetector(lambda: self.now_s, lambda: self.worked_s)
        self.pauses.check()

    def check_after(self, seconds: float, worked_s: float = 0.0) -> None:
        self.now_s += seconds
        self.worked_s += worked_s
        self.pauses.check()


def test_delay_below_a_second_is_no_pause(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    for late_s in (0.0, 0.1, PAUSE_MIN_S - 0.01, 0.0):
        clocks.check_after(CHECK_S + late_s)
    assert (clocks.pauses.total_s, caplog.records) == (0.0, [])


def test_first_check_reports_no_pause(caplog: pytest.LogCaptureFixture) -> None:
    pauses = PauseDetector()
    pauses.check()
    assert (pauses.total_s, caplog.records) == (0.0, [])


@pytest.mark.parametrize(
    ("worked_s", "working_ms", "reason"),
    [(0.002, 2, CAUSE_WAIT), (2.0, 2000, CAUSE_WAIT), (3.5, 3500, CAUSE_WORK)],
)
def test_a_pause_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture, worked_s: float, working_ms: int, reason: str
) -> None:
    clocks = Clocks()
    clocks.check_after(CHECK_S, 0.2)
    clocks.check_after(CHECK_S + 4.0, worked_s)
    clocks.check_after(CHECK_S + PAUSE_MIN_S)
    assert clocks.pauses.total_s == 5.0
    assert [record.args for record in caplog.records] == [(4000, working_ms, reason), (1000, 0, CAUSE_WAIT)]


def test_running_broker_detects_pauses(tmp_path: Path) -> None:
    async def paused() -> float:
        node = BrokerNode(BrokerConfig(tmp_path))
        node.start()
        await asyncio.sleep(2 * CHECK_S)
        time.sleep(PAUSE_MIN_S + CHECK_S + 0.1)  # blocks the loop's thread
        async with asyncio.timeout(60):
            while not node.pauses.total_s:
                await asyncio.sleep(CHECK_S)
        await node.close()
        return node.pauses.total_s

    assert asyncio.run(paused()) >= PAUSE_MIN_S
