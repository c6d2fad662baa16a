"""Truncates and repairs damaged logs. Damaged bytes are preserved next to the log in files that end in `.corrupt`,
unless all of them are zero.

A fault is a place where a segment has no valid batch. Above the recovery point a fault is expected after a crash: the
log is truncated there. Below it, the disk has lost fsynced data, and the operator decides: with `broker.on_corruption =
"rename"`, intact batches are copied to a new segment and the offsets of damaged ones are missing from then on. A
`.corrupt` file is deleted by the first start after the log start offset has passed its first offset, or with its topic.

A closed segment always ends where the next one begins. If its last batches are lost below the recovery point, an empty
batch takes their place, as after compaction.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

from headrace.broker.log.files import sync_directory, sync_file, write_fully
from headrace.broker.log.scan import ScanResult, SegmentFacts, intact_batches
from headrace.broker.log.segment import INDEX_SUFFIXES, LOG, SEGMENT_SUFFIXES, segment_path
from headrace.kafka_wire.record_batch import MAGIC, BatchHeader, read_batch_header, rebuild_batch

logger = logging.getLogger(__name__)

CORRUPT = ".corrupt"
COPY_CHUNK_BYTES = 1024 * 1024
NO_TIMESTAMP = NO_PRODUCER = -1


def remove_expired_corrupt_files(directory: Path, log_start_offset: int) -> None:
    """Deletes the `.corrupt` files whose first offset is below the log start offset."""
    for path in directory.iterdir():
        number = path.name[:20]
        if CORRUPT in path.suffixes[-1:] and number.isascii() and number.isdigit() and int(number) < log_start_offset:
            path.unlink()


def truncate_log(directory: Path, base: int, scan: ScanResult, later: list[int]) -> int:
    """Truncates a log at a fault: removes the bytes of a segment after the last batch before the fault, and the
    segments after it.

    Args:
        base: base offset of the segment.
        scan: result of the segment's scan, which contains the end of the batches before the fault.
        later: base offsets of the segments that follow.

    Returns:
        The number of bytes removed.
    """
    path = segment_path(directory, base, LOG)
    retained_bytes, next_offset = scan.facts.size, scan.facts.next_offset
    removed_bytes = path.stat().st_size - retained_bytes if path.exists() else 0
    corrupt_path = (
        _copy(path, retained_bytes, _unused_path(directory / f"{next_offset:020d}.rest")) if removed_bytes else None
    )
    if removed_bytes:
        os.truncate(path, retained_bytes)
        sync_file(path)
    for dropped in later:
        removed_bytes += _drop_segment(directory, dropped)
    sync_directory(directory)
    logger.warning(
        "log truncated directory=%s offset=%d bytes=%d segments_dropped=%d reason=%s corrupt_file=%s",
        directory.name,
        next_offset,
        removed_bytes,
        len(later),
        scan.fault,
        corrupt_path.name if corrupt_path is not None else "",
    )
    return removed_bytes


def _drop_segment(directory: Path, base: int) -> int:
    path = segment_path(directory, base, LOG)
    size = path.stat().st_size
    if size:
        path.rename(_unused_path(path))
    for suffix in SEGMENT_SUFFIXES:
        segment_path(directory, base, suffix).unlink(missing_ok=True)
    return size


def padding_batch(offset: int, epoch: int) -> bytes:
    """Returns a batch without records at `offset`, in the leader epoch `epoch`. Readers then treat the missing offsets
    before it as compacted, and not as lost."""
    header = BatchHeader(
        base_offset=offset,
        batch_length=0,
        leader_epoch=epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER,
        producer_epoch=NO_PRODUCER,
        base_sequence=NO_PRODUCER,
        record_count=0,
    )
    return rebuild_batch(header, ())


def pad_segment(directory: Path, facts: SegmentFacts, end: int, epoch: int) -> None:
    """Appends an empty batch to a segment that lost its last batches, so that it ends where the next one begins.

    Args:
        facts: the facts about the segment; updated.
        end: offset at which the segment must end.
        epoch: leader epoch of the empty batch.
    """
    path = segment_path(directory, facts.base_offset, LOG)
    missing, batch = facts.next_offset, padding_batch(end - 1, epoch)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        write_fully(fd, [batch], facts.size)
        os.fsync(fd)
    finally:
        os.close(fd)
    facts.add(read_batch_header(batch), batch)
    logger.error(
        "log damaged directory=%s segment=%s reason=the segment ends early offsets_missing=[%d,%d)",
        directory.name,
        path.name,
        missing,
        end,
    )


def repair_segment(directory: Path, base: int, end: int | None, fault: str, epoch: int) -> None:
    """Renames a damaged segment to `.corrupt` and writes a new one with its intact batches.

    Args:
        end: base offset of the next segment, None for the last segment.
        fault: description of the damage, for the broker's log message.
        epoch: leader epoch of the empty batch that takes the place of lost last batches.
    """
    path = segment_path(directory, base, LOG)
    repaired = path.with_name(path.name + ".tmp")
    fd = os.open(repaired, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    size, written, next_offset = path.stat().st_size, 0, base
    missing: list[str] = []
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            for located in intact_batches(view, base, end):
                header = located.header
                if header.base_offset > next_offset:
                    missing.append(f"[{next_offset},{header.base_offset})")
                with view[located.position : located.position + header.size] as batch:
                    write_fully(fd, [batch], written)
                written += header.size
                next_offset = header.last_offset + 1
        if end is not None and next_offset < end:
            missing.append(f"[{next_offset},{end})")
            write_fully(fd, [padding_batch(end - 1, epoch)], written)
            next_offset = end
        os.fsync(fd)
    finally:
        os.close(fd)
    corrupt_path = _unused_path(path)
    os.link(path, corrupt_path)
    # The `.corrupt` name must be durable before the original is replaced.
    sync_directory(directory)
    repaired.replace(path)
    for suffix in INDEX_SUFFIXES:
        segment_path(directory, base, suffix).unlink(missing_ok=True)
    sync_directory(directory)
    logger.error(
        "log damaged directory=%s segment=%s reason=%s corrupt_file=%s bytes=%d intact_bytes=%d offsets_missing=%s "
        "next_offset=%d",
        directory.name,
        path.name,
        fault,
        corrupt_path.name,
        size,
        written,
        ",".join(missing) or "none between",
        next_offset,
    )


def _unused_path(path: Path) -> Path:
    """Returns an unused `.corrupt` name for `path`."""
    number, free = 1, path.with_name(path.name + CORRUPT)
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}{CORRUPT}")
    return free


def _copy(path: Path, position: int, target: Path) -> Path | None:
    """Copies the bytes of a file from `position` on to the file `target`, and returns its path. If all bytes are zero,
    as some disks leave them after a torn write, copies nothing and returns None."""
    source = os.open(path, os.O_RDONLY)
    fd = -1
    try:
        at = position
        while chunk := os.pread(source, COPY_CHUNK_BYTES, at):
            if fd < 0 and chunk.count(0) != len(chunk):
                fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            if fd >= 0:
                write_fully(fd, [chunk], at - position)
            at += len(chunk)
        if fd < 0:
            return None
        os.fsync(fd)
        sync_directory(target.parent)
        return target
    finally:
        os.close(source)
        if fd >= 0:
            os.close(fd)
