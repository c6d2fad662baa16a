"""Findings about trends: loads that fall behind, imbalanced loads, disks that fill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.loader.run_log import RunLine
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.disk import (
    SAMPLE_MS,
    SAMPLES_NAME,
    disks,
    record_free_space,
    time_until_full_ms,
)
from headrace.pipeline.status.loads import trends
from headrace.pipeline.status.samples import StatusSample
from headrace.settings import Settings

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
GIB = 1024**3


def line(minutes: float, **values: Any) -> RunLine:
    return RunLine(0, int(minutes * MINUTE_MS), "committed", values.pop("exit_code", 0), **values)


@pytest.mark.parametrize(
    ("minutes", "is_finding"),
    [
        ((11, 12, 14), True),
        ((9, 12, 14), False),  # the first one kept up
        ((11, 14, 12), False),  # it catches up
        ((12, 12, 12), False),  # it keeps up with a longer delay
        ((12, 14), False),
    ],
)
def test_loads_that_take_longer_and_longer_fall_behind(minutes: tuple[float, ...], is_finding: bool) -> None:
    found = trends([line(one) for one in minutes], 10 * MINUTE_MS)
    assert [one.kind for one in found] == (["lag-grows"] if is_finding else [])
    if found:
        assert (
            found[0].problem == "the last 3 took 11 minutes, 12 minutes, 14 minutes, and loader.interval is 10 minutes"
        )


def test_a_failed_load_shows_no_trend() -> None:
    assert not trends([line(11), line(12), line(14, exit_code=2)], 10 * MINUTE_MS)


@pytest.mark.parametrize(
    ("imbalance", "tasks", "read_ms", "is_finding"),
    [
        ((2.1, 3.0, 2.5), 4, MINUTE_MS, True),
        ((2.1, 2.0, 2.5), 4, MINUTE_MS, False),
        ((2.1, 3.0, 2.5), 1, MINUTE_MS, False),
        ((2.1, 3.0, 2.5), 4, MINUTE_MS - 1, False),  # too short to matter
    ],
)
def test_three_imbalanced_loads_are_a_finding(
    imbalance: tuple[float, ...], tasks: int, read_ms: int, is_finding: bool
) -> None:
    lines = [line(2, imbalance=one, tasks=tasks, read_ms=read_ms) for one in imbalance]
    found = trends(lines, 10 * MINUTE_MS)
    assert [one.kind for one in found] == (["load-imbalanced"] if is_finding else [])


@pytest.mark.parametrize(
    ("samples", "left_hours"),
    [
        ({0: 50}, None),
        ({2: 50}, None),  # less than three hours
        ({3: 50}, 3),  # 40 GiB in 3 hours, 10 are left: 0.75 hours
        ({24: 20}, 24),
        ({24: 19}, None),  # 26.7 hours
        ({25: 100}, None),  # too old
        ({25: 1000, 12: 22}, 10),
        ({12: 10}, None),
        ({12: 5}, None),
        ({-5: 50}, None),  # the clock was set back
    ],
)
def test_time_until_a_disk_is_full(samples: dict[int, int], left_hours: float | None) -> None:
    now_ms = 1000 * HOUR_MS
    recorded = [StatusSample(now_ms - hours * HOUR_MS, {"data_dir": gib * GIB}) for hours, gib in samples.items()]
    left_ms = time_until_full_ms(recorded, "data_dir", 10 * GIB, now_ms)
    expected = None if left_hours is None else 45 * MINUTE_MS if left_hours == 3 else left_hours * HOUR_MS
    assert left_ms == expected
    assert time_until_full_ms(recorded, "warehouse", 10 * GIB, now_ms) is None


def test_recorded_samples_become_a_finding(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    start_ms = 1000 * HOUR_MS
    record_free_space(StatusContext(settings, start_ms))
    record_free_space(StatusContext(settings, start_ms + SAMPLE_MS - 1))  # too early for another one
    path = tmp_path / "logs" / SAMPLES_NAME
    (sample,) = path.read_text().splitlines()
    more = sample.replace('"data_dir":', '"data_dir":9')  # several times as much free space
    path.write_text(f"garbage\n{more}\n[]\n")
    found = disks(StatusContext(settings, start_ms + 4 * HOUR_MS)).findings
    assert [one.kind for one in found] == ["disk-fills"]
    assert found[0].subject == "disk of data_dir"
    assert not disks(StatusContext(settings, start_ms + 2 * HOUR_MS)).findings


def test_free_space_that_cannot_be_recorded_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    record_free_space(StatusContext(Settings(data_dir=tmp_path), HOUR_MS))
