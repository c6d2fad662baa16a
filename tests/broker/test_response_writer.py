"""Response writer: pieces from memory and files arrive complete and in order, without blocking other connections."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.log import files
from headrace.broker.log.files import FileSlice, OpenFiles
from headrace.broker.protocol.framing import Piece
from headrace.broker.response_writer import GATHERED_BYTES_MAX, SENDFILE_BYTES_BEFORE_YIELD, ResponseWriter
from support.certificates import Authority
from support.examples import examples

CONTENT = os.urandom(3_000_000)


class Sender(asyncio.Protocol):
    """Uses the writer like a connection does."""

    def __init__(self) -> None:
        self.writer: ResponseWriter
        self.transport: asyncio.Transport
        self.errors: list[OSError] = []
        self.is_made, self.is_lost = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.writer = ResponseWriter(transport, self.flush)
        self.is_made.set()

    def resume_writing(self) -> None:
        asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        try:
            self.writer.flush()
        except OSError as error:
            self.errors.append(error)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory on disk: pages of a file in memory cannot be evicted."""
    return tmp_path_factory.mktemp("writer")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of the server and its client."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    certificate, key = authority.certificate("127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(authority.ca_file))


def with_connection(
    work: Callable[[Sender, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None),
) -> None:
    async def main() -> None:
        sender = Sender()
        sockets = socket.socket()
        # Small, so that much has to wait. TLS records that do not fit would each wait for an acknowledgement.
        sockets.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024 if contexts[0] is None else 512 * 1024)
        sockets.bind(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(lambda: sender, sock=sockets, ssl=contexts[0])
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=16 * 1024, ssl=contexts[1])
        await sender.is_made.wait()
        try:
            await asyncio.wait_for(work(sender, reader, writer), 60)
        finally:
            writer.transport.abort()
            server.close()

    asyncio.run(main())


def stored(directory: Path, name: str = "log") -> Path:
    path = directory / name
    path.write_bytes(CONTENT)
    return path


def slice_of(path: Path, position: int, size: int) -> FileSlice:
    found = OpenFiles(2).slice(path, position, size)
    assert isinstance(found, FileSlice)
    return found


def open_files_of_test() -> set[str]:
    return {str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}


def pieces(path: Path) -> st.SearchStrategy[tuple[bytes, Callable[[], Piece]]]:
    """Generates (expected bytes, piece): pieces in a file or in memory."""
    ranges = st.tuples(st.integers(0, 1_000_000), st.sampled_from((32_768, 40_000, 262_144, 262_145, 1_900_000)))
    sliced = ranges.map(lambda p: (CONTENT[p[0] : p[0] + p[1]], lambda: slice_of(path, *p)))
    held = st.integers(1, 200_000).map(lambda size: (CONTENT[:size], lambda: CONTENT[:size]))
    return sliced | held


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
@settings(max_examples=examples(0.25))
@given(data=st.data())
def test_pieces_arrive_complete_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
    is_secured: bool,
    data: st.DataObject,
) -> None:
    path = stored(tmp_path_factory.mktemp("log"))
    responses = data.draw(st.lists(st.lists(pieces(path), min_size=1, max_size=5), min_size=1, max_size=4))
    is_slow, are_together = data.draw(st.booleans()), data.draw(st.booleans())

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with sender.writer.gathering() if are_together else nullcontext():
            for response in responses:
                sender.writer.write([make() for _, make in response])
                if is_slow:
                    await asyncio.sleep(0.001)
        expected = b"".join(content for response in responses for content, _ in response)
        assert await reader.readexactly(len(expected)) == expected
        while sender.writer.unsent_bytes:
            await asyncio.sleep(0)
        sender.transport.close()
        assert await reader.read() == b""
        assert not sender.errors

    with_connection(work, tls if is_secured else (None, None))


class RecordingTransport(asyncio.Transport):
    """A transport that accepts everything unless `bytes_left` is set, and records the bytes of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[bytes] = []
        self.bytes_left = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.bytes_left

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.made.append(bytes(data))


def test_unsent_bytes_are_exact(tmp_path: Path) -> None:
    transport = RecordingTransport()
    writer = ResponseWriter(transport, lambda: None)
    transport.bytes_left = 7
    writer.write([b"abc", slice_of(stored(tmp_path), 0, 40_000), b"de"])
    assert not transport.made
    assert (writer.memory_bytes, writer.unsent_bytes) == (12, 40_012)


def test_gathered_short_responses_are_sent_with_one_call(tmp_path: Path) -> None:
    transport = RecordingTransport()
    writer = ResponseWriter(transport, lambda: None)
    with writer.gathering():
        for _ in range(3):
            writer.write([b"start", b"rest"])
        assert not transport.made
    assert transport.made == [b"startrest" * 3]
    writer.write([b"alone"])
    assert transport.made[1:] == [b"alone"]
    with writer.gathering():
        writer.write([b"x" * GATHERED_BYTES_MAX])
        assert len(transport.made) == 2
        writer.write([b"y"])  # more bytes than that are sent at once
        assert transport.made[2:] == [b"x" * GATHERED_BYTES_MAX + b"y"]
        writer.write([b"z"])
    assert transport.made[3:] == [b"z"]


def test_gathered_responses_are_sent_even_after_an_error() -> None:
    transport = RecordingTransport()
    writer = ResponseWriter(transport, lambda: None)
    with pytest.raises(ValueError), writer.gathering():
        writer.write([b"before"])
        raise ValueError("mistake")
    assert transport.made == [b"before"]
    writer.write([b"after"])
    assert transport.made == [b"before", b"after"]


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_unread_file_data_stays_in_file(
    tmp_path: Path, tls: tuple[ssl.SSLContext, ssl.SSLContext], is_secured: bool
) -> None:
    path = stored(tmp_path)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces: list[Piece] = [slice_of(path, 0, len(CONTENT)) for _ in range(20)]
        sender.writer.write([b"x" * 10, *pieces, b"y" * 1000])
        await asyncio.sleep(0.05)
        assert sender.writer.unsent_bytes > 15 * len(CONTENT)
        assert 1000 < sender.writer.memory_bytes < 1_000_000
        for _ in range(20):
            await reader.readexactly(len(CONTENT))
        assert (await reader.readexactly(1010))[10:] == b"y" * 1000
        assert sender.writer.unsent_bytes == sender.writer.memory_bytes == 0

    with_connection(work, tls if is_secured else (None, None))


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_disconnect_ends_only_its_connection(
    tmp_path: Path,
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
    is_secured: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = stored(tmp_path)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([slice_of(path, 0, len(CONTENT)) for _ in range(20)])
        await reader.readexactly(100_000)
        writer.transport.abort()
        await sender.is_lost.wait()
        for _ in range(20):  # asyncio would warn after several failed writes
            sender.writer.write([b"too late", slice_of(path, 0, len(CONTENT))])
        sender.resume_writing()
        assert not sender.errors

    with_connection(work, tls if is_secured else (None, None))
    assert not caplog.records


def test_disconnect_is_detected_by_failed_send(tmp_path: Path) -> None:
    """Nothing is read while a response waits, so the failing send detects it."""
    path = stored(tmp_path)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.transport.pause_reading()
        writer.transport.abort()
        await asyncio.sleep(0.02)
        while not sender.is_lost.is_set():
            sender.writer.write([slice_of(path, 0, len(CONTENT))])
            await asyncio.sleep(0.001)
        assert not sender.errors

    with_connection(work)


class SocketLeavingOneByte:
    """A socket that first accepts all but one byte."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self._left = real, 1

    def send(self, data: bytes) -> int:
        sent = self._real.send(data[: len(data) - self._left])
        self._left = 0
        return sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_queue_continues_after_last_buffered_byte(tmp_path: Path) -> None:
    path = stored(tmp_path)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport: Any = sender.transport
        transport._sock = SocketLeavingOneByte(transport._sock)
        sender.writer.write([b"first", slice_of(path, 0, 40_000)])
        assert sender.writer.unsent_bytes == 40_001
        assert await asyncio.wait_for(reader.readexactly(40_005), 10) == b"first" + CONTENT[:40_000]

    with_connection(work)


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_connection_reset_by_sendfile_aborts_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[ConnectionError]
) -> None:
    send_sizes: list[int] = []

    def sendfile(socket_fd: int, fd: int, position: int, size: int) -> int:
        send_sizes.append(size)
        raise error

    path = stored(tmp_path)
    monkeypatch.setattr(os, "sendfile", sendfile)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([slice_of(path, 0, 100_000), b"end"])
        await asyncio.wait_for(sender.is_lost.wait(), 10)
        sender.writer.write([slice_of(path, 0, 100_000)])
        assert not sender.errors

    with_connection(work)
    assert len(send_sizes) == 1


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_truncated_file_fails_connection(
    tmp_path: Path, tls: tuple[ssl.SSLContext, ssl.SSLContext], is_secured: bool
) -> None:
    """Zeros or other bytes in place of the missing ones would be taken for records."""
    path = stored(tmp_path)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([slice_of(path, 0, len(CONTENT)), slice_of(path, 0, 100_000)])
        os.truncate(path, 2_000_000)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(len(CONTENT))
        await sender.is_lost.wait()
        assert [str(error) for error in sender.errors] == [
            "a log file ends 1000000 bytes before the end of the range to send"
        ]

    with_connection(work, tls if is_secured else (None, None))


def test_fast_client_does_not_starve_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that never blocks must not keep the event loop busy."""
    path = stored(tmp_path)
    sent: list[int] = []

    def sendfile(socket_fd: int, fd: int, position: int, size: int) -> int:
        sent.append(size)
        return size

    monkeypatch.setattr(os, "sendfile", sendfile)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent_at_yields = [0]

        def record_progress() -> None:
            sent_at_yields.append(sum(sent))
            if sender.writer.unsent_bytes:
                asyncio.get_running_loop().call_soon(record_progress)

        sender.writer.write([slice_of(path, 0, 700_000) for _ in range(10)])
        record_progress()
        while sender.writer.unsent_bytes:
            await asyncio.sleep(0)
        assert sum(sent) == 7_000_000
        steps = [after - before for before, after in itertools.pairwise([*sent_at_yields, sum(sent)])]
        assert max(steps) <= SENDFILE_BYTES_BEFORE_YIELD

    with_connection(work)


def test_uncached_file_data_is_read_by_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk reads are slow, so they must not block other clients."""
    path = stored(tmp_path)
    checks = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT and position >= 1_000_000:
            checks.append(position)
            raise BlockingIOError
        return really(fd, buffers, position, flags)

    really, read_ahead = os.preadv, FileSlice.read_ahead
    in_loop = []

    def counted(each: FileSlice, byte_count: int) -> None:
        in_loop.append(asyncio._get_running_loop() is not None)
        read_ahead(each, byte_count)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(FileSlice, "read_ahead", counted)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([slice_of(path, 0, 200_000), slice_of(path, 500_000, 700_000), b"end"])
        sender.writer.write([b"and", slice_of(path, 0, 200_000)])
        sender.resume_writing()
        expected = CONTENT[:200_000] + CONTENT[500_000:1_200_000] + b"end" + b"and" + CONTENT[:200_000]
        assert await reader.readexactly(len(expected)) == expected

    with_connection(work)
    assert in_loop == [False] and len(checks) == 1


def test_data_evicted_while_sending_is_read_by_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow client takes minutes for a response, and pages may be evicted meanwhile."""
    path = stored(tmp_path)
    is_evicted = False
    checks: list[int] = []
    reads: list[tuple[bool, int, int]] = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT:
            checks.append(position)
            if is_evicted:
                raise BlockingIOError
        return really(fd, buffers, position, flags)

    def counted(each: FileSlice, byte_count: int) -> None:
        reads.append((asyncio._get_running_loop() is not None, each.position, byte_count))
        read_ahead(each, byte_count)

    really, read_ahead = os.preadv, FileSlice.read_ahead
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(FileSlice, "read_ahead", counted)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal is_evicted
        sender.writer.write([slice_of(path, 0, len(CONTENT))])
        assert len(checks) == -(-SENDFILE_BYTES_BEFORE_YIELD // files.READ_AHEAD_BYTES), "only the next bytes to send"
        is_evicted = True
        assert await reader.readexactly(len(CONTENT)) == CONTENT

    with_connection(work)
    assert len(checks) == len(set(checks)), "no part is checked twice"
    assert len(checks) < len(CONTENT) / files.READ_AHEAD_BYTES + len(reads) + 1
    assert not any(in_loop for in_loop, _, _ in reads)
    assert max(byte_count for _, _, byte_count in reads) <= SENDFILE_BYTES_BEFORE_YIELD
    checked_to = SENDFILE_BYTES_BEFORE_YIELD
    for _, position, byte_count in reads:
        assert position <= checked_to < position + byte_count
        checked_to = position + byte_count
    assert checked_to >= len(CONTENT)


def test_disk_error_ends_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    path = stored(tmp_path)
    monkeypatch.setattr(FileSlice, "is_cached", lambda self, byte_count: False)
    monkeypatch.setattr(FileSlice, "read_ahead", fails)
    monkeypatch.setattr(FileSlice, "send", fails)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([slice_of(path, 0, 200_000)])
        monkeypatch.setattr(FileSlice, "is_cached", lambda self, byte_count: True)
        await sender.is_lost.wait()
        assert [error.errno for error in sender.errors] == [5]

    with_connection(work)


def test_data_is_copied_without_sendfile_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sendfile(*arguments: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    path = stored(tmp_path)
    monkeypatch.setattr(os, "sendfile", sendfile)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([b"begin", slice_of(path, 3, 2_000_000), b"end", slice_of(path, 0, 100_000)])
        expected = b"begin" + CONTENT[3:2_000_003] + b"end" + CONTENT[:100_000]
        assert await reader.readexactly(len(expected)) == expected

    with_connection(work)


def test_file_slice_survives_file_deletion(tmp_path: Path) -> None:
    """Retention, compaction and other file handles go on meanwhile, and descriptor numbers are reused."""
    open_files = OpenFiles(2)
    path = stored(tmp_path)
    found = open_files.slice(path, 7, 50_000)
    assert isinstance(found, FileSlice)
    open_files.forget(path)
    path.unlink()
    for number in range(5):
        (tmp_path / f"other{number}").write_bytes(bytes(100_000))
        assert open_files.slice(tmp_path / f"other{number}", 0, 100) == bytes(100)
    open_files.close()
    assert bytes(found) == CONTENT[7:50_007] and f"{path} (deleted)" in open_files_of_test()
    del found
    assert f"{path} (deleted)" not in open_files_of_test()


def test_unsent_slices_count_as_open_files(tmp_path: Path) -> None:
    def open_slices() -> int:
        return sum(each.startswith(str(tmp_path)) for each in open_files_of_test())

    open_files = OpenFiles(8)
    paths = [stored(tmp_path, f"log{number}") for number in range(24)]
    for path in paths[:8]:
        open_files.fd(path)
    found = [open_files.slice(path, 0, 100_000) for path in paths[:8]]
    assert [isinstance(each, FileSlice) for each in found] == [True] * 4 + [False] * 4
    assert isinstance(open_files.slice(paths[0], 7, 100_000), FileSlice), "of a file that is held anyway"
    for path in paths:
        open_files.fd(path)
        assert open_files.slice(path, 0, 100) == CONTENT[:100]
        assert open_slices() <= 8
    assert open_slices() == 8
    assert isinstance(open_files.slice(paths[9], 0, 100_000), bytes)
    assert {bytes(each) for each in found} == {CONTENT[:100_000]}
    del found[:2]
    assert isinstance(open_files.slice(paths[9], 0, 100_000), FileSlice)
    for path in paths[:20]:
        open_files.forget(path)
    assert open_slices() <= 8
    open_files.close()
    found.clear()
    assert open_slices() == 0


def test_small_slice_is_read_into_memory(tmp_path: Path) -> None:
    open_files = OpenFiles(2)
    path = stored(tmp_path)
    assert open_files.slice(path, 5, files.SLICE_BYTES_MIN - 1) == CONTENT[5 : files.SLICE_BYTES_MIN + 4]
    assert isinstance(open_files.slice(path, 5, files.SLICE_BYTES_MIN), FileSlice)
    open_files.close()
