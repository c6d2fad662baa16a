"""Free space of the directories that Headrace writes, and the damaged segments of the bundled broker."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric
from headrace.settings.addresses import RemoteDirectory, state_location, warehouse_location

LOW_BYTES: Final = 1024 * 1024 * 1024
FULL_BYTES: Final = 64 * 1024 * 1024
"""Below `LOW_BYTES` a disk needs attention; below `FULL_BYTES`, producers and loads are about to fail."""
BROKER_DIRECTORY: Final = "broker"
CORRUPT_FILES: Final = "*/*.corrupt"
CORRUPT_NAMED_MAX: Final = 3


def disks(context: StatusContext) -> SourceReport:
    """Reports the free space of each disk with a directory of data, once per disk."""
    facts, findings = [], []
    devices: set[int] = set()
    for name, directory in _directories(context).items():
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        device = existing.stat().st_dev
        if device in devices:
            continue
        devices.add(device)
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
    return SourceReport(tuple(facts), tuple(findings))


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
