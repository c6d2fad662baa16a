"""Answers on their way to a client, from memory and from files: whole, in order, and without anybody else waiting."""

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
from headrace.broker.response_writer import SENT_AT_ONCE, TOGETHER_BYTES, ResponseWriter
from support.certificates import Authority
from support.examples import examples

CONTENT = os.urandom(3_000_000)


class Sender(asyncio.Protocol):
    """Whoever writes to the client: what a connection does with its writer."""

    def __init__(self) -> None:
        self.writer: ResponseWriter
        self.transport: asyncio.Transport
        self.errors: list[OSError] = []
        self.is_made, self.is_lost = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.writer = ResponseWriter(transport, self.go_on)
        self.is_made.set()

    def resume_writing(self) -> None:
        asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        try:
            self.writer.go_on()
        except OSError as error:
            self.errors.append(error)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory on the disk: pages of a file in memory cannot be evicted."""
    return tmp_path_factory.mktemp("writer")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server and of its client."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    certificate, key = authority.certificate("127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(authority.ca_file))


def talk(
    work: Callable[[Sender, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None),
) -> None:
    async def main() -> None:
        sender = Sender()
        sockets = socket.socket()
        # Small, so that much has to wait; records of TLS that do not fit would each wait for an acknowledgement.
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


def opened_here() -> set[str]:
    return {str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}


def in_files(path: Path) -> st.SearchStrategy[tuple[bytes, Callable[[], Piece]]]:
    """What is to arrive, and the piece that stands for it: in a file or in memory."""
    place = st.tuples(st.integers(0, 1_000_000), st.sampled_from((32_768, 40_000, 262_144, 262_145, 1_900_000)))
    sliced = place.map(lambda p: (CONTENT[p[0] : p[0] + p[1]], lambda: slice_of(path, *p)))
    held = st.integers(1, 200_000).map(lambda size: (CONTENT[:size], lambda: CONTENT[:size]))
    return sliced | held


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
@settings(max_examples=examples(0.25))
@given(data=st.data())
def test_all_pieces_arrive_whole_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
    is_secured: bool,
    data: st.DataObject,
) -> None:
    path = stored(tmp_path_factory.mktemp("log"))
    answers = data.draw(st.lists(st.lists(in_files(path), min_size=1, max_size=5), min_size=1, max_size=4))
    is_slow, are_together = data.draw(st.booleans()), data.draw(st.booleans())

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with sender.writer.together() if are_together else nullcontext():
            for answer in answers:
                sender.writer.write([make() for _, make in answer])
                if is_slow:
                    await asyncio.sleep(0.001)
        expected = b"".join(content for answer in answers for content, _ in answer)
        assert await reader.readexactly(len(expected)) == expected
        while sender.writer.unsent_bytes:
            await asyncio.sleep(0)
        sender.transport.close()
        assert await reader.read() == b""
        assert not sender.errors

    talk(work, tls if is_secured else (None, None))


class Calls(asyncio.Transport):
    """Takes all at once, unless it says that it has bytes left, and remembers what came with each call."""

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


def test_what_is_not_sent_yet_is_known_to_the_byte(tmp_path: Path) -> None:
    transport = Calls()
    writer = ResponseWriter(transport, lambda: None)
    transport.bytes_left = 7
    writer.write([b"abc", slice_of(stored(tmp_path), 0, 40_000), b"de"])
    assert not transport.made
    assert (writer.memory_bytes, writer.unsent_bytes) == (12, 40_012)


def test_short_answers_to_what_came_together_go_with_one_call(tmp_path: Path) -> None:
    transport = Calls()
    writer = ResponseWriter(transport, lambda: None)
    with writer.together():
        for _ in range(3):
            writer.write([b"start", b"rest"])
        assert not transport.made
    assert transport.made == [b"startrest" * 3]
    writer.write([b"alone"])
    assert transport.made[1:] == [b"alone"]
    with writer.together():
        writer.write([b"x" * TOGETHER_BYTES])
        assert len(transport.made) == 2
        writer.write([b"y"])  # more than that is not kept
        assert transport.made[2:] == [b"x" * TOGETHER_BYTES + b"y"]
        writer.write([b"z"])
    assert transport.made[3:] == [b"z"]


def test_what_is_written_together_goes_also_where_it_ends_with_a_mistake() -> None:
    transport = Calls()
    writer = ResponseWriter(transport, lambda: None)
    with pytest.raises(ValueError), writer.together():
        writer.write([b"before"])
        raise ValueError("mistake")
    assert transport.made == [b"before"]
    writer.write([b"after"])
    assert transport.made == [b"before", b"after"]


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_what_a_client_does_not_read_stays_in_the_file(
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

    talk(work, tls if is_secured else (None, None))


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_a_client_that_goes_away_ends_its_connection_alone(
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
        for _ in range(20):  # asyncio would complain of so many
            sender.writer.write([b"too late", slice_of(path, 0, len(CONTENT))])
        sender.resume_writing()
        assert not sender.errors

    talk(work, tls if is_secured else (None, None))
    assert not caplog.records


def test_a_client_that_is_gone_is_noticed_by_sending_too(tmp_path: Path) -> None:
    """Nothing is read while an answer waits, so that it is the sending that fails."""
    path = stored(tmp_path)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.transport.pause_reading()
        writer.transport.abort()
        await asyncio.sleep(0.02)
        while not sender.is_lost.is_set():
            sender.writer.write([slice_of(path, 0, len(CONTENT))])
            await asyncio.sleep(0.001)
        assert not sender.errors

    talk(work)


class TakesAllButOne:
    """A socket that takes all but one byte at first."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self._left = real, 1

    def send(self, data: bytes) -> int:
        taken = self._real.send(data[: len(data) - self._left])
        self._left = 0
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_what_waits_for_a_single_byte_goes_when_that_is_sent(tmp_path: Path) -> None:
    path = stored(tmp_path)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport: Any = sender.transport
        transport._sock = TakesAllButOne(transport._sock)
        sender.writer.write([b"first", slice_of(path, 0, 40_000)])
        assert sender.writer.unsent_bytes == 40_001
        assert await asyncio.wait_for(reader.readexactly(40_005), 10) == b"first" + CONTENT[:40_000]

    talk(work)


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_client_to_which_nothing_can_be_sent_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[ConnectionError]
) -> None:
    asked: list[int] = []

    def sendfile(socket_fd: int, fd: int, position: int, size: int) -> int:
        asked.append(size)
        raise error

    path = stored(tmp_path)
    monkeypatch.setattr(os, "sendfile", sendfile)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([slice_of(path, 0, 100_000), b"end"])
        await asyncio.wait_for(sender.is_lost.wait(), 10)
        sender.writer.write([slice_of(path, 0, 100_000)])
        assert not sender.errors

    talk(work)
    assert len(asked) == 1


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_a_file_that_is_shorter_than_promised_fails_the_connection(
    tmp_path: Path, tls: tuple[ssl.SSLContext, ssl.SSLContext], is_secured: bool
) -> None:
    """Zeros or other bytes in its place would be taken for records."""
    path = stored(tmp_path)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([slice_of(path, 0, len(CONTENT)), slice_of(path, 0, 100_000)])
        os.truncate(path, 2_000_000)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(len(CONTENT))
        await sender.is_lost.wait()
        assert [str(error) for error in sender.errors] == [
            "a log file ends 1000000 bytes before what was promised of it"
        ]

    talk(work, tls if is_secured else (None, None))


def test_others_have_their_turn_while_a_client_takes_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that never says no is not sent to for ever."""
    path = stored(tmp_path)
    sent: list[int] = []

    def sendfile(socket_fd: int, fd: int, position: int, size: int) -> int:
        sent.append(size)
        return size

    monkeypatch.setattr(os, "sendfile", sendfile)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turns = [0]

        def turn() -> None:
            turns.append(sum(sent))
            if sender.writer.unsent_bytes:
                asyncio.get_running_loop().call_soon(turn)

        sender.writer.write([slice_of(path, 0, 700_000) for _ in range(10)])
        turn()
        while sender.writer.unsent_bytes:
            await asyncio.sleep(0)
        assert sum(sent) == 7_000_000
        steps = [after - before for before, after in itertools.pairwise([*turns, sum(sent)])]
        assert max(steps) <= SENT_AT_ONCE

    talk(work)


def test_what_is_not_in_memory_is_read_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk takes its time, and one client's old records must not be everybody's."""
    path = stored(tmp_path)
    looks = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT and position >= 1_000_000:
            looks.append(position)
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

    talk(work)
    assert in_loop == [False] and len(looks) == 1


def test_what_is_evicted_while_a_client_reads_is_read_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow client takes minutes for an answer: nobody knows at its first byte what is in memory at its last one."""
    path = stored(tmp_path)
    is_evicted = False
    looks: list[int] = []
    reads: list[tuple[bool, int, int]] = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT:
            looks.append(position)
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
        assert len(looks) == -(-SENT_AT_ONCE // files.LOOKED_AT_BYTES), "only what may be sent next"
        is_evicted = True
        assert await reader.readexactly(len(CONTENT)) == CONTENT

    talk(work)
    assert len(looks) == len(set(looks)), "no part of it is looked at twice"
    assert len(looks) < len(CONTENT) / files.LOOKED_AT_BYTES + len(reads) + 1
    assert not any(in_loop for in_loop, _, _ in reads)
    assert max(byte_count for _, _, byte_count in reads) <= SENT_AT_ONCE
    looked_to = SENT_AT_ONCE
    for _, position, byte_count in reads:
        assert position <= looked_to < position + byte_count
        looked_to = position + byte_count
    assert looked_to >= len(CONTENT)


def test_a_disk_that_fails_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    talk(work)


def test_where_there_is_no_sendfile_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sendfile(*arguments: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    path = stored(tmp_path)
    monkeypatch.setattr(os, "sendfile", sendfile)

    async def work(sender: Sender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender.writer.write([b"begin", slice_of(path, 3, 2_000_000), b"end", slice_of(path, 0, 100_000)])
        expected = b"begin" + CONTENT[3:2_000_003] + b"end" + CONTENT[:100_000]
        assert await reader.readexactly(len(expected)) == expected

    talk(work)


def test_a_slice_outlives_its_file(tmp_path: Path) -> None:
    """Retention, compaction and other files that are opened go on meanwhile, and descriptors are used again."""
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
    assert bytes(found) == CONTENT[7:50_007] and f"{path} (deleted)" in opened_here()
    del found
    assert f"{path} (deleted)" not in opened_here()


def test_what_is_still_to_be_sent_counts_among_the_open_files(tmp_path: Path) -> None:
    def opened_of_these() -> int:
        return sum(each.startswith(str(tmp_path)) for each in opened_here())

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
        assert opened_of_these() <= 8
    assert opened_of_these() == 8
    assert isinstance(open_files.slice(paths[9], 0, 100_000), bytes)
    assert {bytes(each) for each in found} == {CONTENT[:100_000]}
    del found[:2]
    assert isinstance(open_files.slice(paths[9], 0, 100_000), FileSlice)
    for path in paths[:20]:
        open_files.forget(path)
    assert opened_of_these() <= 8
    open_files.close()
    found.clear()
    assert opened_of_these() == 0


def test_little_is_read_at_once(tmp_path: Path) -> None:
    open_files = OpenFiles(2)
    path = stored(tmp_path)
    assert open_files.slice(path, 5, files.SLICE_BYTES_MIN - 1) == CONTENT[5 : files.SLICE_BYTES_MIN + 4]
    assert isinstance(open_files.slice(path, 5, files.SLICE_BYTES_MIN), FileSlice)
    open_files.close()
