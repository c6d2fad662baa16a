"""Outgoing responses of one connection, in order.

A response consists of pieces. Pieces in memory go out with one write call. Pieces in log files go from the page cache
to the socket by sendfile, without a copy in user space; TLS and systems without sendfile need a copy. Files are read
only as fast as the client reads, so a slow client does not cost memory.

asyncio's transport owns the socket. It gets the next pieces only when it has sent the previous ones. sendfile bypasses
the transport, so when the socket is full, WAKEUP_BYTES of the file are passed to the transport: it reports when it has
sent them, and sendfile continues.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence

from headrace.broker.log.files import FileSlice
from headrace.broker.protocol.framing import Piece

WAKEUP_BYTES = 4096
"""Bytes passed to the transport when the socket is full, so that the transport reports when it can send again."""
SENDFILE_BYTES_BEFORE_YIELD = 1024 * 1024
"""File bytes sent to one client at a time before other connections are served."""
GATHERED_BYTES_MAX = 16 * 1024
"""Responses are gathered up to this size, to be sent with one call."""
COPY_CHUNK_BYTES = 256 * 1024
"""File bytes read at a time where sendfile is not available; the next chunk is read when this one has been sent."""
SENDFILE_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a file system or sandbox that does not support sendfile."""


class ResponseWriter:
    """Sends the responses of one connection. Not thread-safe. Call `flush` soon after the transport's `resume_writing`.

    Args:
        transport: used by this writer alone.
        on_ready: called when `flush` must run again: other connections were served, or a thread has read data from
            disk.
    """

    def __init__(self, transport: asyncio.Transport, on_ready: Callable[[], None]) -> None:
        self._transport = transport
        self._on_ready = on_ready
        self._queue: deque[Piece] = deque()
        self._in_memory_bytes = self._in_files_bytes = 0  # counters, because the queue may hold many pieces
        self._disk_read: asyncio.Future[None] | None = None
        self._gathering = _Gathering(self)
        self.is_gathering = False
        is_plain = transport.get_extra_info("sslcontext") is None
        socket = transport.get_extra_info("socket") if is_plain else None
        self._socket_fd = socket.fileno() if socket is not None else None
        # Pause as soon as the transport buffers anything: a plain transport pauses above the limit, a TLS transport at
        # it.
        transport.set_write_buffer_limits(high=0 if is_plain else 1, low=0)

    def write(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._queue.append(piece)
            if isinstance(piece, FileSlice):
                self._in_files_bytes += len(piece)
            else:
                self._in_memory_bytes += len(piece)
        if not self.is_gathering or self._in_files_bytes or self._in_memory_bytes > GATHERED_BYTES_MAX:
            self.flush()

    def gathering(self) -> _Gathering:
        """Context manager: short responses written inside it are sent together at its end, with one call. More than
        GATHERED_BYTES_MAX, and data in files, are not held back."""
        return self._gathering

    @property
    def memory_bytes(self) -> int:
        """Unsent bytes in memory; those still in log files are not counted."""
        return self._in_memory_bytes + self._transport.get_write_buffer_size()

    @property
    def has_queued_pieces(self) -> bool:
        """True if the transport has not accepted all pieces of responses yet."""
        return bool(self._queue)

    @property
    def unsent_bytes(self) -> int:
        return self._in_files_bytes + self._in_memory_bytes + self._transport.get_write_buffer_size()

    def flush(self) -> None:
        """Sends queued pieces of responses until the queue is empty, the transport has unsent bytes, data must be read
        from disk, or other connections must be served.

        Raises:
            OSError: a file cannot be read. The pieces behind it cannot be sent either.
        """
        transport, queue = self._transport, self._queue
        if self._disk_read is not None:
            return
        bytes_left = SENDFILE_BYTES_BEFORE_YIELD
        while queue and not transport.get_write_buffer_size() and not transport.is_closing():
            in_memory = self._pop_memory_pieces()
            if in_memory:
                transport.write(b"".join(in_memory) if len(in_memory) > 1 else in_memory[0])
                continue
            if bytes_left <= 0:
                asyncio.get_running_loop().call_soon(self._on_ready)
                return
            piece = queue[0]
            assert isinstance(piece, FileSlice)
            size = len(piece)
            if not piece.is_cached(bytes_left):
                self._disk_read = asyncio.get_running_loop().run_in_executor(None, piece.read_ahead, bytes_left)
                self._disk_read.add_done_callback(self._on_disk_read)
                return
            if self._socket_fd is None:
                self._write_copy(piece, COPY_CHUNK_BYTES)
            else:
                self._sendfile(piece, self._socket_fd, bytes_left)
            bytes_left -= size - len(piece)
            self._in_files_bytes -= size - len(piece)
            if not len(piece):
                queue.popleft()

    def _on_disk_read(self, reading: asyncio.Future[None]) -> None:
        self._disk_read = None
        if not reading.cancelled():
            reading.exception()  # the next read of this file raises the same error
            self._on_ready()

    def _pop_memory_pieces(self) -> list[bytes | bytearray]:
        """Removes pieces of responses from the front of the queue, up to the first piece that is in a log file, and
        returns them."""
        data: list[bytes | bytearray] = []
        while self._queue and not isinstance(piece := self._queue[0], FileSlice):
            data.append(piece)
            self._queue.popleft()
            self._in_memory_bytes -= len(piece)
        return data

    def _sendfile(self, piece: FileSlice, socket_fd: int, bytes_max: int) -> None:
        """Sends up to `bytes_max` bytes of `piece`, a range of a file, by sendfile, as many as the socket accepts. If
        the socket is full, passes WAKEUP_BYTES more to the transport. Afterwards `piece` contains only the bytes that
        remain."""
        byte_count, sent = min(len(piece), bytes_max), 0
        try:
            sent = piece.send(socket_fd, byte_count)
        except BlockingIOError:
            pass
        except ConnectionError:
            self._transport.abort()  # the client has closed the connection
            return
        except OSError as error:
            if error.errno not in SENDFILE_UNSUPPORTED:
                raise
            self._socket_fd = None
            return
        if sent < byte_count:  # the socket is full or the file is truncated; in the second case the read below fails
            self._write_copy(piece, WAKEUP_BYTES)

    def _write_copy(self, piece: FileSlice, byte_count: int) -> None:
        data = piece.take(byte_count)
        if not data:
            raise _truncated_error(piece)
        self._transport.write(data)


class _Gathering:
    """Context manager that collects short responses written to a `ResponseWriter`, so that they are sent together at
    its end. Not reentrant."""

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        self._writer.is_gathering = True

    def __exit__(self, *_: object) -> None:
        self._writer.is_gathering = False
        self._writer.flush()


def _truncated_error(piece: FileSlice) -> OSError:
    return OSError(f"a log file ends {len(piece)} bytes before the end of the range to send")
