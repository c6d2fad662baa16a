"""The spool of chunks: limits, expiry, and what a later process finds."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.sessions.routes import OpenRequest
from headrace.gateway.transactions.identity import transaction_key
from headrace.gateway.transactions.spool import OVERHEAD_BYTES, ChunkSpool, StoredChunk, sync, write_fields

NOW_MS = 1_700_000_000_000
BODY = b"line\n"


def spool_in(directory: Path, bytes_max: int = 10**6, client_bytes_max: int = 10**6) -> ChunkSpool:
    spool = ChunkSpool(directory / "spool", bytes_max, client_bytes_max)
    spool.open(NOW_MS, creates=True)
    return spool


def add(
    spool: ChunkSpool, name: str, *, owner: str = "user a", body: bytes = BODY, expires_ms: int = NOW_MS + 1
) -> StoredChunk:
    path = spool.new_file()
    path.write_bytes(body)
    chunk = StoredChunk(
        transaction_key("a", name),
        owner,
        OpenRequest("topic", name, host="h"),
        1,
        "text/plain",
        len(body),
        zlib.crc32(body),
        expires_ms,
        path,
        len(body),
    )
    write_fields(chunk)
    spool.put(chunk)
    return chunk


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"]


def test_next_process_finds_chunks_and_deletes_what_is_incomplete_or_expired(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    kept, converted = add(spool, "kept"), add(spool, "converted")
    add(spool, "expired", expires_ms=NOW_MS)
    truncated, damaged = add(spool, "truncated"), add(spool, "damaged")
    truncated.data.write_bytes(BODY[:-1])
    damaged.fields.write_bytes(b"{")
    spool.new_file().write_bytes(b"a request that did not end")
    batches = converted.data.with_suffix(".batches")
    batches.write_bytes(b"batches")
    as_batches = dataclasses.replace(
        converted, data=batches, data_bytes=len(b"batches"), record_count=1, prefixes=("0000000001",)
    )
    write_fields(as_batches)
    spool.close()

    later = spool_in(tmp_path)
    assert later.find(kept.key, NOW_MS) == kept
    assert later.find(converted.key, NOW_MS) == as_batches
    assert (len(later), later.bytes_in_use) == (2, len(BODY) + len(b"batches") + 2 * OVERHEAD_BYTES)
    assert sorted(files(tmp_path)) == sorted([kept.data, kept.fields, batches, as_batches.fields])


def test_later_store_of_a_transaction_wins_also_after_a_crash_between_its_two_files(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    earlier = add(spool, "t")
    copies = {path: path.read_bytes() for path in (earlier.data, earlier.fields)}
    later = add(spool, "t", body=b"other\n")
    assert not earlier.data.exists() and not earlier.fields.exists()
    assert spool.bytes_in_use == later.disk_bytes
    for path, content in copies.items():
        path.write_bytes(content)
        os.utime(path, ns=(0, 0))
    spool.close()
    again = spool_in(tmp_path)
    assert again.find(later.key, NOW_MS) == later
    assert sorted(files(tmp_path)) == sorted([later.data, later.fields])


def test_spool_of_a_running_process_is_left_alone(tmp_path: Path) -> None:
    first = spool_in(tmp_path)
    chunk = add(first, "t")
    code = (
        "import sys; from pathlib import Path; from headrace.gateway.transactions.spool import ChunkSpool\n"
        f"spool = ChunkSpool(Path({str(tmp_path / 'spool')!r}), 1, 1); spool.open({NOW_MS}, creates=True)\n"
        "print(len(spool), spool.new_file().parent)"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert found[0] == "0" and Path(found[1]) != chunk.data.parent
    assert chunk.data.exists()
    first.close()
    both = spool_in(tmp_path)
    assert both.find(chunk.key, NOW_MS) == chunk
    assert len(list((tmp_path / "spool").iterdir())) == 2


def test_limits_count_chunks_and_running_requests(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, 3 * OVERHEAD_BYTES + 100, 2 * OVERHEAD_BYTES + 50)
    first = add(spool, "1")
    with spool.reserve("user a") as take:
        take(45)
        with pytest.raises(GatewayError) as caught:
            take(1)
        assert (caught.value.kind, caught.value.retry_after_s) == (Kind.TOO_MANY_REQUESTS, 10)
        with spool.reserve("user b") as take_other:
            take_other(50)
            with pytest.raises(GatewayError, match="all clients"):
                take_other(1)
    assert spool.bytes_in_use == first.disk_bytes
    spool.delete(first)
    assert (spool.bytes_in_use, files(tmp_path)) == (0, [])
    assert spool._of_clients == {}, "clients without chunks are forgotten"
    with spool.reserve("user a") as take:
        take(OVERHEAD_BYTES + 50)


def test_expired_chunk_is_not_found_and_then_deleted(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    chunk, other = add(spool, "1"), add(spool, "2", expires_ms=NOW_MS + 2)
    assert spool.find(chunk.key, NOW_MS) is chunk
    assert spool.find(chunk.key, NOW_MS + 1) is None
    spool.expire(NOW_MS)
    assert len(spool) == 2
    spool.expire(NOW_MS + 1)
    assert (len(spool), spool.bytes_in_use) == (1, other.disk_bytes)
    assert sorted(files(tmp_path)) == sorted([other.data, other.fields])


def test_conversion_of_a_chunk_that_was_stored_again_is_deleted(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    earlier = add(spool, "t")
    later = add(spool, "t", body=b"other\n")
    batches = earlier.data.with_suffix(".batches")
    batches.write_bytes(b"x")
    converted = dataclasses.replace(earlier, data=batches, data_bytes=1, record_count=1)
    write_fields(converted)
    assert not spool.replace(earlier, converted)
    assert spool.find(later.key, NOW_MS) is later
    assert sorted(files(tmp_path)) == sorted([later.data, later.fields])
    spool.delete(earlier)
    assert spool.find(later.key, NOW_MS) is later
    converted = dataclasses.replace(later, record_count=1)
    assert spool.replace(later, converted)
    assert spool.find(later.key, NOW_MS) is converted


@pytest.mark.parametrize("failing", [1, 2])
def test_fields_that_cannot_be_written_with_their_directory_entry_fail_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    spool = spool_in(tmp_path)
    chunk = add(spool, "t")
    before = chunk.fields.read_bytes()
    calls: list[int] = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="disk full"):
        write_fields(dataclasses.replace(chunk, record_count=1))
    assert (chunk.fields.read_bytes() == before) is (failing == 1)
    assert sorted(files(tmp_path)) == sorted([chunk.data, chunk.fields])
    for descriptor in calls:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_directory_that_another_process_locks_first_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = ChunkSpool(tmp_path / "spool", 1, 1)
    monkeypatch.setattr(ChunkSpool, "_lock", lambda spool, directory: False)
    with pytest.raises(BlockingIOError):
        spool.open(NOW_MS, creates=True)


def test_sync_writes_what_is_buffered(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"content")
        sync(file)
        assert path.read_bytes() == b"content"


def test_spool_is_created_only_when_a_chunk_is_stored(tmp_path: Path) -> None:
    spool = ChunkSpool(tmp_path / "spool", 1, 1)
    spool.open(NOW_MS, creates=False)
    assert not (tmp_path / "spool").exists()
    spool.open(NOW_MS, creates=True)
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
