"""What becomes of bytes that a log cannot go on with: they are kept beside it, in files that end in `.corrupt`.

Above the recovery point a fault is what a crash leaves: the log is cut there. Below it the disk has lost what it was
made to keep, which only whoever runs the broker can decide about; told to, what is intact is written anew without the
rest, and offsets of the rest are missing from the log from then on. Such files go when retention has let go of the
offsets they were for, or with their topic.

A closed segment ends where the next one begins, whatever happened to it: where its last batches are lost, one without
records says so in their place, as compaction leaves them.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

from headrace.broker.log.files import sync_directory, sync_file, write_fully
from headrace.broker.log.scan import Scan, SegmentFacts, intact_batches
from headrace.broker.log.segment import INDEX_SUFFIXES, LOG, SEGMENT_SUFFIXES, segment_path
from headrace.kafka_wire.record_batch import MAGIC, BatchHeader, read_batch_header, rebuilt_batch

logger = logging.getLogger(__name__)

CORRUPT = ".corrupt"
COPIED_AT_ONCE_BYTES = 1024 * 1024
NO_TIMESTAMP = NO_PRODUCER = -1


def remove_outlived(directory: Path, log_start_offset: int) -> None:
    """Removes what was set aside of offsets that the log has let go of since."""
    for path in directory.iterdir():
        number = path.name[:20]
        if CORRUPT in path.suffixes[-1:] and number.isascii() and number.isdigit() and int(number) < log_start_offset:
            path.unlink()


def cut(directory: Path, base: int, scan: Scan, later: list[int]) -> int:
    """Cuts a segment behind its last good batch and takes the later ones out of the log; returns the bytes it lost."""
    path = segment_path(directory, base, LOG)
    kept_bytes, next_offset = scan.facts.size, scan.facts.next_offset
    lost = path.stat().st_size - kept_bytes if path.exists() else 0
    aside = _copy(path, kept_bytes, _free(directory / f"{next_offset:020d}.rest")) if lost else None
    if lost:
        os.truncate(path, kept_bytes)
        sync_file(path)
    for dropped in later:
        lost += _take_out(directory, dropped)
    sync_directory(directory)
    logger.warning(
        "log truncated directory=%s offset=%d bytes=%d segments_dropped=%d reason=%s kept_as=%s",
        directory.name,
        next_offset,
        lost,
        len(later),
        scan.fault,
        aside.name if aside is not None else "",
    )
    return lost


def _take_out(directory: Path, base: int) -> int:
    path = segment_path(directory, base, LOG)
    size = path.stat().st_size
    if size:
        path.rename(_free(path))
    for suffix in SEGMENT_SUFFIXES:
        segment_path(directory, base, suffix).unlink(missing_ok=True)
    return size


def filler(offset: int, epoch: int) -> bytes:
    """A batch without records at an offset: what is missing before it, in the same segment, is not to be looked for."""
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
    return rebuilt_batch(header, ())


def fill(directory: Path, facts: SegmentFacts, end: int, epoch: int) -> None:
    """Lets a segment that lost its last batches end where the next one begins."""
    path = segment_path(directory, facts.base_offset, LOG)
    missing, batch = facts.next_offset, filler(end - 1, epoch)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        write_fully(fd, [batch], facts.size)
        os.fsync(fd)
    finally:
        os.close(fd)
    facts.add(read_batch_header(batch), batch)
    logger.error(
        "log damaged directory=%s segment=%s reason=it ends early offsets_missing=[%d,%d)",
        directory.name,
        path.name,
        missing,
        end,
    )


def mend(directory: Path, base: int, end: int | None, fault: str, epoch: int) -> None:
    """Keeps a damaged segment aside and puts one with its intact batches in its place.

    Args:
        end: where the next segment begins, None where there is none.
        epoch: of what is behind the last intact batch.
    """
    path = segment_path(directory, base, LOG)
    mended = path.with_name(path.name + ".tmp")
    fd = os.open(mended, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    size, kept, next_offset = path.stat().st_size, 0, base
    missing: list[str] = []
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            for placed in intact_batches(view, base, end):
                header = placed.header
                if header.base_offset > next_offset:
                    missing.append(f"[{next_offset},{header.base_offset})")
                with view[placed.position : placed.position + header.size] as batch:
                    write_fully(fd, [batch], kept)
                kept += header.size
                next_offset = header.last_offset + 1
        if end is not None and next_offset < end:
            missing.append(f"[{next_offset},{end})")
            write_fully(fd, [filler(end - 1, epoch)], kept)
            next_offset = end
        os.fsync(fd)
    finally:
        os.close(fd)
    aside = _free(path)
    os.link(path, aside)
    # What was there is kept for certain before it goes.
    sync_directory(directory)
    mended.replace(path)
    for suffix in INDEX_SUFFIXES:
        segment_path(directory, base, suffix).unlink(missing_ok=True)
    sync_directory(directory)
    logger.error(
        "log damaged directory=%s segment=%s reason=%s kept_as=%s bytes=%d intact_bytes=%d offsets_missing=%s "
        "goes_on=%d",
        directory.name,
        path.name,
        fault,
        aside.name,
        size,
        kept,
        ",".join(missing) or "none between",
        next_offset,
    )


def _free(path: Path) -> Path:
    """A name for what is set aside of `path` that nothing has yet."""
    number, free = 1, path.with_name(path.name + CORRUPT)
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}{CORRUPT}")
    return free


def _copy(path: Path, position: int, target: Path) -> Path | None:
    """Copies the end of a file, unless there is nothing but zeros in it, which is how some disks tear a write."""
    source = os.open(path, os.O_RDONLY)
    fd = -1
    try:
        at = position
        while chunk := os.pread(source, COPIED_AT_ONCE_BYTES, at):
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
