"""A quarantine of one topic in a warehouse, whose messages a console shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.kafka_wire.record_batch import NO_HEADERS
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.inspect.quarantine import committed_files
from headrace.loader.project.quarantine import SCHEMA, BadMessage, QuarantineCode, encode_row
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.work_unit import FileKind
from headrace.loader.write.container import ContainerFormat
from support.console import NOW_MS
from support.loader.loader_samples import committed_file, committed_range, load, topic_commit

FORMAT = ContainerFormat(SCHEMA, "deflate", bytes(range(16)))
MALFORMED = BadMessage(QuarantineCode.MALFORMED, "the value 'top secret' is not <b>Avro</b>", 7)
FRAMING = BadMessage(QuarantineCode.FRAMING, "no magic byte")
ROWS = (
    (0, NOW_MS - 5_000, b"\x00\x00\x00\x00\x07x", MALFORMED),
    (1, NOW_MS - 9_000, b'{"a": 1}', FRAMING),
    (2, NOW_MS - 3_000, b'{"a": 2}', FRAMING),
)


def log_of(directory: Path) -> CommitLog:
    return CommitLog(LocalCommitStorage(directory / "warehouse" / "_headrace"))


def quarantine_of(
    directory: Path, topic: str = "orders", rows: Sequence[tuple[int, int, bytes, BadMessage]] = ROWS
) -> Path:
    """Commits a file of quarantined messages (offset, time, value, reason), and returns its path."""
    log = log_of(directory)
    log.open()
    file = committed_file("q.avro", 0, 0, len(rows))
    file = replace(file, kind=FileKind.QUARANTINE, time_partition="dt=2026-11-18/hr=10")
    change = topic_commit(committed_range(0, None, 0, len(rows)), files=[file], new=True)
    assert log.try_commit(load("w", {topic: change})).commit
    (found,) = committed_files(log, [topic])
    path = directory / "warehouse" / found.name
    path.parent.mkdir(parents=True)
    encoded = [encode_row(0, offset, time, None, value, NO_HEADERS, bad) for offset, time, value, bad in rows]
    path.write_bytes(FORMAT.header({}) + FORMAT.block(encoded))
    return path
