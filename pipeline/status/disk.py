"""Free space of the directories that Headrace writes, how fast it shrinks, and the damaged segments of the bundled
broker."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.status.samples import StatusSample, append_sample, read_samples
from headrace.pipeline.status.wording import age_text
from headrace.settings.addresses import RemoteDirectory, state_location, warehouse_location

LOW_BYTES: Final = 1024 * 1024 * 1024
FULL_BYTES: Final = 64 * 1024 * 1024
"""Below `LOW_BYTES` a disk needs attention; below `FULL_BYTES`, producers and loads are about to fail."""
BROKER_DIRECTORY: Final = "broker"
CORRUPT_FILES: Final = "*/*.corrupt"
CORRUPT_NAMED_MAX: Final = 3
SAMPLES_NAME: Final = "disk.jsonl"
"""The free bytes of disks, by the name of a directory on each; four days of samples."""
SAMPLE_MS: Final = 600_000
TREND_MS_MIN: Final = 3 * 3_600_000
TREND_MS_MAX: Final = 86_400_000
"""The trend is that of the last 3 to 24 hours: a load or a compaction writes files and deletes others within one."""
FULL_WITHIN_MS: Final = 86_400_000


def disks(context: StatusContext) -> SourceReport:
    """Reports the free space of each disk with a directory of data, once per disk."""
    facts, findings = [], []
    samples = read_samples(context.log_dir / SAMPLES_NAME)
    for name, existing in _disks(context).items():
        usage = shutil.disk_usage(existing)
        text = f"{usage.free / 1024**3:,.1f} GiB of {usage.total / 1024**3:,.1f} GiB free at {existing}"
        labels = (("directory", name),)
        metrics = (
            StatusMetric("headrace_disk_free_bytes", usage.free, labels),
            StatusMetric("headrace_disk_size_bytes", usage.total, labels),
        )
        facts.append(StatusFact(f"disk of {name}", text, metrics))
        if usage.free < LOW_BYTES:
            findings.append(_low(name, existing, usage.free))
        elif (left_ms := time_until_full_ms(samples, name, usage.free, context.now_ms)) is not None:
            findings.append(_fills(name, existing, usage.free, left_ms))
    return SourceReport(tuple(facts), tuple(findings))


def record_free_space(context: StatusContext) -> None:
    """Appends the free space of each disk to `logs/disk.jsonl`, at most every ten minutes. A later status derives from
    it when a disk will be full. A failure is logged."""

    def free_bytes() -> dict[str, int]:
        return {name: shutil.disk_usage(directory).free for name, directory in _disks(context).items()}

    append_sample(context.log_dir / SAMPLES_NAME, context.now_ms, SAMPLE_MS, free_bytes)


def time_until_full_ms(samples: Sequence[StatusSample], name: str, free_bytes: int, now_ms: int) -> int | None:
    """Returns the time until a disk is full, if that is within `FULL_WITHIN_MS` at the rate since the oldest sample of
    the last `TREND_MS_MAX`; otherwise, or without a sample that is older than `TREND_MS_MIN`, None.

    Args:
        name: the name of the directory on the disk.
        free_bytes: the free space now.
    """
    past = [one for one in samples if name in one.values and now_ms - TREND_MS_MAX <= one.time_ms <= now_ms]
    if not past or now_ms - past[0].time_ms < TREND_MS_MIN:
        return None
    used_bytes, elapsed_ms = past[0].values[name] - free_bytes, now_ms - past[0].time_ms
    if used_bytes <= 0:
        return None
    left_ms = free_bytes * elapsed_ms // used_bytes
    return left_ms if left_ms <= FULL_WITHIN_MS else None


def _disks(context: StatusContext) -> dict[str, Path]:
    """Returns one existing directory of each disk with data, by the name of its content."""
    found: dict[int, tuple[str, Path]] = {}
    for name, directory in _directories(context).items():
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        found.setdefault(existing.stat().st_dev, (name, existing))
    return dict(found.values())


def segments(context: StatusContext) -> SourceReport:
    """Reports the `.corrupt` files of the bundled broker on this data directory. The broker deletes such
    a file when retention has passed its offsets."""
    directory = context.settings.data_dir / BROKER_DIRECTORY
    if not directory.is_dir():
        return SourceReport()
    found = sorted(directory.glob(CORRUPT_FILES))
    findings = [_damaged(directory, path) for path in found]
    return SourceReport((StatusFact("broker log", f"{len(found):,} damaged segments"),), tuple(findings))


def _directories(context: StatusContext) -> dict[str, Path]:
    settings = context.settings
    data_dir = settings.data_dir.resolve()
    warehouse, state = warehouse_location(settings), state_location(settings)
    found = {"data_dir": data_dir, "broker": data_dir / BROKER_DIRECTORY}
    if not isinstance(warehouse, RemoteDirectory):
        found["warehouse"] = warehouse
    if state is not None and not isinstance(state, RemoteDirectory):
        found["commit log"] = state
    return found


def _low(name: str, directory: Path, free_bytes: int) -> StatusFinding:
    kind = "disk-full" if free_bytes < FULL_BYTES else "disk-low"
    problem = f"{free_bytes / 1024**2:,.0f} MiB left at {directory}; producers and loads fail when it is full"
    return finding(kind, f"disk of {name}", problem, show=f"du -xh --max-depth=2 {directory} | sort -h | tail")


def _fills(name: str, directory: Path, free_bytes: int, left_ms: int) -> StatusFinding:
    problem = (
        f"{free_bytes / 1024**3:,.1f} GiB left at {directory}; at the rate of the last hours it is full in "
        f"{age_text(left_ms)}"
    )
    show = f"du -xh --max-depth=2 {directory} | sort -h | tail"
    return finding("disk-fills", f"disk of {name}", problem, show=show)


def _damaged(directory: Path, path: Path) -> StatusFinding:
    name = path.relative_to(directory)
    topic, _, partition = name.parts[0].rpartition("-")
    return finding(
        "segment-damaged",
        name.parts[0],
        f"a start of the broker found {name} damaged, and continued with its intact batches alone",
        show=f"headrace broker dump {topic} {partition}",
        repair=f"restore the messages from a copy or their producer, then delete {path}",
        since_ms=path.stat().st_mtime_ns // 1_000_000,
    )
