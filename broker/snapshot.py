"""Snapshots of the logs of a running broker, from which a backup is copied.

A snapshot is all partitions at one instant: the same data that a kill of the broker at that instant would leave. The
start from a copy of it is therefore a recovery from a crash, with all its guarantees: no transaction is cut between its
partitions, and no committed group offset is beyond the end of its log. The event loop appends, replaces and removes
segments, so one uninterrupted step of it sees such an instant.

That step hard-links the segments into the directory `.snapshot` and records their sizes. Segments only grow, so the
bytes up to these sizes never change, also during retention, compaction and appends. The step takes 40 µs of CPU per
partition on a disk.

Protocol: a client connects to the Unix socket `snapshot.sock` in the data directory, which only the owner of the broker
can open. The broker takes the snapshot and sends one line, `ok` or `error REASON`. When the client closes its side of
the connection, or is killed, the broker deletes the snapshot and closes its side. There is at most one snapshot at a
time. A snapshot that a killed broker left is deleted at the next start.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.broker.data_directory import SNAPSHOT_DIRECTORY, exclude_brokers
from headrace.broker.errors import BrokerError, DataDirectoryInUse
from headrace.broker.log.checkpoints import LOG_STARTS, RECOVERY_POINTS, PartitionKey, checkpoint_content
from headrace.broker.log.leader_epochs import FILE_NAME as EPOCHS_FILE
from headrace.broker.log.leader_epochs import LeaderEpochs
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.segment import LOG, SNAPSHOT
from headrace.broker.producer_ids import FILE_NAME as PRODUCER_IDS
from headrace.broker.producer_ids import LOST_FILE_GAP, read_producer_ids
from headrace.broker.topics import FILE_NAME as TOPICS_FILE
from headrace.broker.topics import TopicStore

logger = logging.getLogger(__name__)

SOCKET_NAME = "snapshot.sock"
DESCRIPTION_FILE = "snapshot.json"
RESPONSE_TIMEOUT_S = 60.0
RESPONSE_BYTES_MAX = 4096


class SnapshotFailed(BrokerError):
    """The broker took no snapshot of its logs."""


@dataclass(frozen=True, slots=True)
class SegmentCut:
    """The first `size` bytes of a segment. `link` is the name of its hard link in the snapshot's directory; "" if the
    segment is empty."""

    base_offset: int
    size: int
    link: str


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """A partition at the instant of the snapshot. `epochs` are its leader epochs with their start offsets, `producers`
    the base64 text of the state of its producers."""

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    epochs: tuple[tuple[int, int], ...]
    producers: str
    segments: tuple[SegmentCut, ...]

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """All partitions of a broker at one instant. `directory` contains the links, `topics` is the content of the topics
    file."""

    directory: Path
    topics: str
    partitions: tuple[PartitionCut, ...]


def take_snapshot(data_dir: Path, topics: TopicStore, logs: Mapping[PartitionKey, PartitionLog]) -> LogSnapshot:
    """Takes a snapshot: links the segments into the empty directory of snapshots. Must run in the event loop, without
    an interruption.

    Args:
        logs: the logs of all partitions of these topics.

    Raises:
        OSError: a file cannot be linked.
    """
    directory = data_dir / SNAPSHOT_DIRECTORY
    partitions: list[PartitionCut] = []
    for topic in topics:
        for index in range(topic.partitions):
            log = logs[topic.name, index]
            partitions.append(_cut(log, topic.name, index, directory, f"{len(partitions)}"))
    return LogSnapshot(directory, topics.content().decode(), tuple(partitions))


def _cut(log: PartitionLog, topic: str, partition: int, directory: Path, prefix: str) -> PartitionCut:
    sizes = [*((one.base_offset, one.size) for one in log.closed), (log.active.base_offset, log.active.size)]
    segments = []
    for base_offset, size in sizes:
        link = f"{prefix}-{base_offset}{LOG}" if size else ""
        if link:
            os.link(f"{log.directory}/{base_offset:020d}{LOG}", f"{directory}/{link}")
        segments.append(SegmentCut(base_offset, size, link))
    producers = base64.b64encode(log.producers.to_snapshot()).decode() if len(log.producers) else ""
    epochs = tuple(log.epochs)
    return PartitionCut(topic, partition, log.log_start_offset, log.log_end_offset, epochs, producers, tuple(segments))


def write_description(snapshot: LogSnapshot) -> None:
    """Writes the description of a snapshot into its directory. May run in a thread."""
    description = {"topics": snapshot.topics, "partitions": [asdict(one) for one in snapshot.partitions]}
    (snapshot.directory / DESCRIPTION_FILE).write_text(json.dumps(description), encoding="utf-8")


def read_snapshot(directory: Path) -> LogSnapshot:
    """Reads the description of the snapshot in its directory."""
    document = json.loads((directory / DESCRIPTION_FILE).read_bytes())
    return LogSnapshot(directory, document["topics"], tuple(map(_partition, document["partitions"])))


def _partition(row: Mapping[str, Any]) -> PartitionCut:
    segments = tuple(SegmentCut(**segment) for segment in row["segments"])
    epochs = tuple((epoch, start) for epoch, start in row["epochs"])
    return PartitionCut(**{**row, "segments": segments, "epochs": epochs})


def create_directory(data_dir: Path) -> None:
    """Creates the empty directory of a snapshot, in place of one that exists."""
    remove_snapshot(data_dir)
    (data_dir / SNAPSHOT_DIRECTORY).mkdir(mode=0o700)


def remove_snapshot(data_dir: Path) -> None:
    """Deletes the snapshot in a broker's data directory, if there is one."""
    shutil.rmtree(data_dir / SNAPSHOT_DIRECTORY, ignore_errors=True)


class SnapshotServer:
    """Serves snapshots on the Unix socket in the data directory. `take` takes one."""

    def __init__(self, data_dir: Path, take: Callable[[], LogSnapshot]) -> None:
        self._data_dir, self._take = data_dir, take
        self._server: asyncio.Server | None = None
        self._is_in_use = False

    async def start(self) -> None:
        """Listens on the socket. A data directory without Unix sockets is no error: backups then need a stopped
        broker."""
        path = self._data_dir / SOCKET_NAME
        listener = socket.socket(socket.AF_UNIX)
        try:
            path.unlink(missing_ok=True)
            os.fchmod(listener.fileno(), 0o600)  # on Linux, the mode of the file that bind creates
            with _short_name(path) as name:
                listener.bind(name)
            path.chmod(0o600)
            self._server = await asyncio.start_unix_server(self._serve, sock=listener)
        except OSError as error:
            listener.close()
            logger.warning("snapshots not served path=%s error=%s", path, error)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            (self._data_dir / SOCKET_NAME).unlink(missing_ok=True)
            remove_snapshot(self._data_dir)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            if self._is_in_use:
                writer.write(b"error another backup of this broker is running; wait until it ends\n")
                await writer.drain()
                return
            self._is_in_use = True
            try:
                writer.write(await self._response())
                await writer.drain()
                await reader.read()  # until the client closes the connection
            finally:
                await asyncio.to_thread(remove_snapshot, self._data_dir)
                self._is_in_use = False

    async def _response(self) -> bytes:
        try:
            await asyncio.to_thread(create_directory, self._data_dir)
            await asyncio.to_thread(write_description, self._take())
        except OSError as error:
            logger.warning("snapshot failed error=%s", error)
            return f"error the segments cannot be linked: {error.strerror or error}\n".encode()
        logger.info("snapshot taken directory=%s", SNAPSHOT_DIRECTORY)
        return b"ok\n"


@contextlib.contextmanager
def open_snapshot(data_dir: Path) -> Iterator[LogSnapshot | None]:
    """Takes a snapshot of the broker that runs on a data directory, and deletes it at the end of the context. Yields
    None if no broker runs there; then none can start until the end of the context.

    Raises:
        SnapshotFailed: a broker runs, and it took no snapshot.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclude_brokers(data_dir))
        except DataDirectoryInUse:
            yield stack.enter_context(_requested_snapshot(data_dir))
        else:
            yield None


@contextlib.contextmanager
def _requested_snapshot(data_dir: Path) -> Iterator[LogSnapshot]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(RESPONSE_TIMEOUT_S)
        try:
            with _short_name(data_dir / SOCKET_NAME) as name:
                connection.connect(name)
            response = _read_line(connection)
        except OSError as error:
            raise SnapshotFailed(
                f"the broker on {data_dir} does not answer at {SOCKET_NAME}: {error.strerror or error}; run the "
                "backup as the broker's user, or stop the broker"
            ) from error
        if response != "ok":
            raise SnapshotFailed(f"the broker on {data_dir} took no snapshot: {response.removeprefix('error ')}")
        try:
            yield read_snapshot(data_dir / SNAPSHOT_DIRECTORY)
        finally:
            # Waits until the broker has deleted the snapshot, so that the next one can be taken at once.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)


def _read_line(connection: socket.socket) -> str:
    content = b""
    while not content.endswith(b"\n") and len(content) < RESPONSE_BYTES_MAX:
        chunk = connection.recv(RESPONSE_BYTES_MAX)
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        content += chunk
    return content.decode().strip()


@contextlib.contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Yields a name for the path of a socket that is short enough for the operating system, which allows some 100
    bytes: through a descriptor of the directory, which only Linux supports."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link = f"/proc/self/fd/{descriptor}"
        yield f"{link}/{path.name}" if Path(link).exists() else str(path)
    finally:
        os.close(descriptor)


def data_directory_files(snapshot: LogSnapshot, producer_ids: int | None) -> Iterator[tuple[str, bytes]]:
    """Yields the files of a data directory, except for the segments, from which a broker starts as if it had been
    killed at the instant of the snapshot: relative path and content.

    All bytes of the snapshot count as fsynced, so the start reports a missing byte instead of cutting the log there. It
    builds the indexes from the segments.

    Args:
        producer_ids: the content of the producer id file, which must be read after the snapshot was taken.
    """
    yield TOPICS_FILE, snapshot.topics.encode()
    yield RECOVERY_POINTS, checkpoint_content({one.key: one.log_end_offset for one in snapshot.partitions})
    starts = {one.key: one.log_start_offset for one in snapshot.partitions if one.log_start_offset}
    yield LOG_STARTS, checkpoint_content(starts)
    if producer_ids is not None:
        yield PRODUCER_IDS, f"{producer_ids}\n".encode()
    for one in snapshot.partitions:
        directory = f"{one.topic}-{one.partition}"
        if one.epochs:
            yield f"{directory}/{EPOCHS_FILE}", LeaderEpochs(one.epochs).to_bytes()
        if one.producers:
            yield f"{directory}/{one.log_end_offset:020d}{SNAPSHOT}", base64.b64decode(one.producers)


def segment_copies(snapshot: LogSnapshot) -> Iterator[tuple[Path | None, str, int]]:
    """Yields the segments of a snapshot: the file to copy from (None for an empty segment), the path relative to the
    data directory, and the number of bytes to copy."""
    for one in snapshot.partitions:
        for segment in one.segments:
            source = snapshot.directory / segment.link if segment.link else None
            yield source, f"{one.topic}-{one.partition}/{segment.base_offset:020d}{LOG}", segment.size


def skip_producer_ids(data_dir: Path) -> None:
    """Raises the number in the producer id file of a restored data directory. The broker assigned ids after the copy
    was made, and their producers may still run: no new producer may get one of these ids."""
    path = data_dir / PRODUCER_IDS
    claimed = read_producer_ids(path)
    if claimed is not None:
        path.write_bytes(f"{claimed + LOST_FILE_GAP}\n".encode())
