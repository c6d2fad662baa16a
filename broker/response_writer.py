"""What of answers is on its way to one client, in order.

What is in memory goes with one call for as many pieces as there are; what is in log files goes from the page cache to
the socket without passing through here (sendfile), except over TLS and where there is no such call. Only what a client
reads is taken out of the files, so that one that reads slowly costs no memory for what it has asked.

asyncio's transport owns the socket and says when it takes more. It is never told of more than it could send at once,
but for the little that makes it wait for the socket.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence

from headrace.broker.log.files import FileSlice
from headrace.broker.protocol.framing import Piece

WAITED_WITH_BYTES = 4096
"""Handed to the transport when the socket takes nothing more, so that it tells when it does."""
SENT_AT_ONCE = 1024 * 1024
"""Of files to one client that takes all of it, before others have their turn."""
TOGETHER_BYTES = 16 * 1024
"""Of answers that wait for those behind them, to go with one call."""
COPIED_AT_ONCE = 256 * 1024
"""Bytes of a file that are read where they cannot be sent from it; the next when the client has read these."""
NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a file system or a sandbox says that has no such call."""


class ResponseWriter:
    """Not for use by threads. `go_on` is to be called soon after the transport's `resume_writing`.

    Args:
        transport: to which nobody else writes.
        may_go_on: called when others have had their turn, and when what had to be read from a disk has been, which a
            thread does.
    """

    def __init__(self, transport: asyncio.Transport, may_go_on: Callable[[], None]) -> None:
        self._transport = transport
        self._may_go_on = may_go_on
        self._waiting: deque[Piece] = deque()
        self._in_memory_bytes = self._in_files_bytes = 0  # of what waits: counted, since there may be many pieces
        self._reading: asyncio.Future[None] | None = None
        self._together = _Together(self)
        self.is_gathering = False
        is_plain = transport.get_extra_info("sslcontext") is None
        socket = transport.get_extra_info("socket") if is_plain else None
        self._socket_fd = socket.fileno() if socket is not None else None
        # What the transport cannot send at once is waited for; plain ones stop above this limit, those of TLS at it.
        transport.set_write_buffer_limits(high=0 if is_plain else 1, low=0)

    def write(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._waiting.append(piece)
            if isinstance(piece, FileSlice):
                self._in_files_bytes += len(piece)
            else:
                self._in_memory_bytes += len(piece)
        if not self.is_gathering or self._in_files_bytes or self._in_memory_bytes > TOGETHER_BYTES:
            self.go_on()

    def together(self) -> _Together:
        """What is written within goes when it ends, with one call where it is short."""
        return self._together

    @property
    def memory_bytes(self) -> int:
        """What is in memory of what is not sent yet."""
        return self._in_memory_bytes + self._transport.get_write_buffer_size()

    @property
    def unsent_bytes(self) -> int:
        return self._in_files_bytes + self._in_memory_bytes + self._transport.get_write_buffer_size()

    def go_on(self) -> None:
        """Sends until the transport has something left, a disk has to be waited for, others have their turn, or nothing
        is left.

        Raises:
            OSError: a file cannot be read. What is behind it cannot be sent either.
        """
        transport, waiting = self._transport, self._waiting
        if self._reading is not None:
            return
        rest = SENT_AT_ONCE
        while waiting and not transport.get_write_buffer_size() and not transport.is_closing():
            in_memory = self._take_in_memory()
            if in_memory:
                transport.write(b"".join(in_memory) if len(in_memory) > 1 else in_memory[0])
                continue
            if rest <= 0:
                asyncio.get_running_loop().call_soon(self._may_go_on)
                return
            piece = waiting[0]
            assert isinstance(piece, FileSlice)
            size = len(piece)
            if not piece.is_cached(rest):
                self._reading = asyncio.get_running_loop().run_in_executor(None, piece.read_ahead, rest)
                self._reading.add_done_callback(self._has_read)
                return
            if self._socket_fd is None:
                self._write(piece, COPIED_AT_ONCE)
            else:
                self._send(piece, self._socket_fd, rest)
            rest -= size - len(piece)
            self._in_files_bytes -= size - len(piece)
            if not len(piece):
                waiting.popleft()

    def _has_read(self, reading: asyncio.Future[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # which whoever reads it next meets too
            self._may_go_on()

    def _take_in_memory(self) -> list[bytes | bytearray]:
        """The pieces up to the next one that is in a file, which wait no longer."""
        taken: list[bytes | bytearray] = []
        while self._waiting and not isinstance(piece := self._waiting[0], FileSlice):
            taken.append(piece)
            self._waiting.popleft()
            self._in_memory_bytes -= len(piece)
        return taken

    def _send(self, piece: FileSlice, socket_fd: int, most: int) -> None:
        """Has the kernel send what the socket takes, up to so many bytes."""
        wanted, sent = min(len(piece), most), 0
        try:
            sent = piece.send(socket_fd, wanted)
        except BlockingIOError:
            pass
        except ConnectionError:
            self._transport.abort()  # The client is gone.
            return
        except OSError as error:
            if error.errno not in NO_SENDFILE:
                raise
            self._socket_fd = None
            return
        if sent < wanted:  # also where the file ends, of which nothing can be taken then
            self._write(piece, WAITED_WITH_BYTES)

    def _write(self, piece: FileSlice, byte_count: int) -> None:
        taken = piece.take(byte_count)
        if not taken:
            raise _ended(piece)
        self._transport.write(taken)


class _Together:
    """A context of a writer; none within itself."""

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        self._writer.is_gathering = True

    def __exit__(self, *_: object) -> None:
        self._writer.is_gathering = False
        self._writer.go_on()


def _ended(piece: FileSlice) -> OSError:
    return OSError(f"a log file ends {len(piece)} bytes before what was promised of it")
