"""Stores chunks on disk until their transactions are committed.

A directory of the spool belongs to the process that holds the `flock` on its file `lock`. A directory that can be
locked was left by an ended process; the next process takes over its chunks. Files, by the random name of a chunk:

| file | content |
|---|---|
| `NAME.raw` | the chunk as its client sent it, decompressed |
| `NAME.batches` | its record batches one after the other, which replace `NAME.raw` |
| `NAME.json` | the fields of `StoredChunk`; written last, and replaced by a rename |

A file without its `NAME.json` belongs to a request that did not end, and is deleted at the next start.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.sessions.routes import OpenRequest
from headrace.gateway.transactions.identity import TransactionKey

logger = logging.getLogger(__name__)

SPOOL_DIRECTORY: Final = "gateway-spool"
"""Name of the directory of spools in a data directory."""
RETRY_AFTER_S: Final = 10
OVERHEAD_BYTES: Final = 8192
"""Counts for each chunk besides its data: blocks of the file system, and the file with the fields."""
LOCK, FIELDS, RAW, BATCHES = "lock", ".json", ".raw", ".batches"


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk on disk.

    Attributes:
        key: of its transaction.
        owner: the client, for limits.
        wanted: the topic and the format; its `source_id` is the id of the transaction.
        partition: the partition of the topic.
        media_type: media type of the body.
        length, crc32: of the body after decompression.
        expires_ms: when the chunk is deleted, in milliseconds since 1970.
        data: its file.
        data_bytes: the size of this file.
        record_count: the number of records in record batches; None before the conversion.
        prefixes: the different first bytes of their values in hexadecimal, which name their schemas.
    """

    key: TransactionKey
    owner: str
    wanted: OpenRequest
    partition: int
    media_type: str
    length: int
    crc32: int
    expires_ms: int
    data: Path
    data_bytes: int
    record_count: int | None = None
    prefixes: tuple[str, ...] = ()

    @property
    def transaction_id(self) -> str:
        return self.wanted.source_id

    @property
    def disk_bytes(self) -> int:
        return self.data_bytes + OVERHEAD_BYTES

    @property
    def fields(self) -> Path:
        return self.data.with_suffix(FIELDS)

    def to_json(self) -> bytes:
        own = dataclasses.asdict(self) | {"key": self.key.hex(), "data": self.data.name}
        return json.dumps(own).encode()

    @classmethod
    def of_json(cls, directory: Path, content: bytes) -> StoredChunk:
        """Raises:
        ValueError, KeyError, TypeError: the content is malformed.
        """
        own: dict[str, Any] = json.loads(content)
        own["key"] = TransactionKey(bytes.fromhex(own["key"]))
        own["wanted"] = OpenRequest(**own["wanted"])
        own["data"] = directory / own["data"]
        own["prefixes"] = tuple(own["prefixes"])
        return cls(**own)


@dataclass(slots=True)
class ChunkSpool:
    """The chunks of one gateway. For the coroutines of one event loop, except for methods that state otherwise.

    Args:
        root: the directory of all spools; created when it is needed.
        bytes_max: size of all files.
        client_bytes_max: size of the files of one client.
    """

    root: Path
    bytes_max: int
    client_bytes_max: int
    bytes_in_use: int = 0
    _of_clients: dict[str, int] = field(default_factory=dict)
    _chunks: dict[TransactionKey, StoredChunk] = field(default_factory=dict)
    _directory: Path | None = None
    _locks: list[int] = field(default_factory=list)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._chunks)

    def find(self, key: TransactionKey, now_ms: int) -> StoredChunk | None:
        """Returns the chunk of a transaction, unless it has expired."""
        chunk = self._chunks.get(key)
        return chunk if chunk is not None and now_ms < chunk.expires_ms else None

    @contextmanager
    def reserve(self, owner: str) -> Iterator[Callable[[int], None]]:
        """Yields a function that reserves more bytes for a file of a client. The bytes are free again at the end.

        Raises:
            GatewayError: raised also by the function: the files take too much space.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._counting:
                if self.bytes_in_use + size > self.bytes_max:
                    raise _full("the chunks of all clients take all space of the gateway's spool")
                if self._of_clients.get(owner, 0) + size > self.client_bytes_max:
                    raise _full(f"the chunks of {owner} take {self.client_bytes_max:,} bytes")
                self._count(owner, size)
                taken += size

        take(OVERHEAD_BYTES)
        try:
            yield take
        finally:
            with self._counting:
                self._count(owner, -taken)

    def put(self, chunk: StoredChunk) -> None:
        """Adds a chunk whose files were written, in place of an earlier one of its transaction."""
        old = self._chunks.pop(chunk.key, None)
        if old is not None:
            self._forget(old, but=chunk)
        self._chunks[chunk.key] = chunk
        with self._counting:
            self._count(chunk.owner, chunk.disk_bytes)

    def replace(self, old: StoredChunk, converted: StoredChunk) -> bool:
        """Replaces a chunk by its conversion. Returns False, and deletes the conversion, if the chunk was deleted or
        replaced meanwhile."""
        if self._chunks.get(old.key) is old:
            self.put(converted)
            return True
        _unlink(converted.fields, converted.data)
        return False

    def delete(self, chunk: StoredChunk) -> None:
        """Deletes a chunk; without effect if it was deleted or replaced."""
        if self._chunks.get(chunk.key) is chunk:
            del self._chunks[chunk.key]
            self._forget(chunk)

    def expire(self, now_ms: int) -> None:
        """Deletes the chunks that have expired."""
        for chunk in [chunk for chunk in self._chunks.values() if chunk.expires_ms <= now_ms]:
            logger.info("chunk_expired topic=%s bytes=%d", chunk.wanted.topic, chunk.length)
            self.delete(chunk)

    def open(self, now_ms: int, *, creates: bool) -> None:
        """Takes over the chunks of ended processes, at the first call.

        Args:
            creates: whether to create the spool if there is none.

        Raises:
            OSError: the directory cannot be written.
        """
        if self._directory is not None or not (creates or self.root.is_dir()):
            return
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in sorted(self.root.iterdir()):
            if self._lock(directory):
                self._directory = self._directory or directory
                self._load(directory, now_ms)
        if self._directory is None:
            directory = self.root / secrets.token_hex(8)
            directory.mkdir(mode=0o700)
            if not self._lock(directory):
                raise BlockingIOError(f"{directory} is in use")
            self._directory = directory

    def close(self) -> None:
        """Leaves the chunks to the next process."""
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()

    def new_file(self) -> Path:
        """Returns the path of a new file for a chunk."""
        assert self._directory is not None, "the spool is not open"
        return self._directory / f"{secrets.token_hex(12)}{RAW}"

    def _lock(self, directory: Path) -> bool:
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._locks.append(descriptor)
        return True

    def _load(self, directory: Path, now_ms: int) -> None:
        found = 0
        for path in sorted(directory.glob(f"*{FIELDS}"), key=lambda path: path.stat().st_mtime_ns):
            try:
                chunk = StoredChunk.of_json(directory, path.read_bytes())
                if chunk.data.stat().st_size == chunk.data_bytes and now_ms < chunk.expires_ms:
                    self.put(chunk)
                    found += 1
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("chunk_unreadable path=%s action=deleted cause=%r", path, error)
        known = {path for chunk in self._chunks.values() for path in (chunk.data, chunk.fields)}
        for path in set(directory.iterdir()) - known - {directory / LOCK}:
            path.unlink()
        if found:
            logger.info("chunks_found directory=%s chunks=%d", directory, found)

    def _count(self, owner: str, size: int) -> None:
        self.bytes_in_use += size
        left = self._of_clients.get(owner, 0) + size
        if left > 0:
            self._of_clients[owner] = left
        else:
            self._of_clients.pop(owner, None)

    def _forget(self, chunk: StoredChunk, but: StoredChunk | None = None) -> None:
        with self._counting:
            self._count(chunk.owner, -chunk.disk_bytes)
        used = () if but is None else (but.fields, but.data)
        _unlink(*(path for path in (chunk.fields, chunk.data) if path not in used))


def _unlink(*paths: Path) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            path.unlink()


def _full(reason: str) -> GatewayError:
    return GatewayError(
        Kind.TOO_MANY_REQUESTS, f"{reason}; try again when some are committed", retry_after_s=RETRY_AFTER_S
    )


def write_fields(chunk: StoredChunk) -> None:
    """Writes the fields of a chunk, whose data is on disk. The chunk survives a crash afterwards. Thread-safe.

    Raises:
        OSError: the disk is full, or failed.
    """
    temporary = chunk.data.with_suffix(".new")
    try:
        with temporary.open("wb") as file:
            file.write(chunk.to_json())
            sync(file)
        temporary.rename(chunk.fields)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(chunk.data.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(file: BinaryIO) -> None:
    """Raises:
    OSError: the disk is full, or failed.
    """
    file.flush()
    os.fsync(file.fileno())
