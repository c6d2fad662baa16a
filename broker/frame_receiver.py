"""Receive buffer of one connection: collects bytes and returns complete frames.

The socket writes into the same buffer that frames are read from. So a produce request reaches the log without a copy,
unless it is larger than the buffer's free space or the broker sets its timestamps.
"""

from __future__ import annotations

from headrace.broker.errors import FrameRefused
from headrace.broker.protocol.framing import read_frame_length

INITIAL_BUFFER_BYTES = 16 * 1024
"""Size of a new connection's buffer. Small, because thousands of connections may send little."""
BUFFER_BYTES = 256 * 1024
"""Largest size of a connection's own buffer, which doubles from INITIAL_BUFFER_BYTES when it is too small. For a larger
frame the connection uses a larger buffer, until it has handled all received bytes."""
EXTRA_BYTES_MAX = 1024 * 1024 * 1024
"""Limit of the buffers of all connections, counting the bytes beyond BUFFER_BYTES of each. Above it, a connection is
closed if it uses such a buffer and its request is still incomplete."""
POOLED_BUFFER_BYTES_MAX = 2 * 1024 * 1024
POOLED_BUFFERS_MAX = 8
"""Maximum number of large buffers that are pooled for reuse. librdkafka's requests may be a megabyte, and allocating
that much takes about as long as copying it from the socket."""
UNAUTHENTICATED_FRAME_BYTES_MAX = 64 * 1024
"""Largest request of a client that has not logged in."""
_LENGTH_BYTES = 4


class ReceiveBufferPool:
    """Large buffers that all connections share. `extra_bytes` is the size of the buffers in use, counting the bytes
    beyond BUFFER_BYTES of each."""

    __slots__ = ("_free", "extra_bytes")

    def __init__(self) -> None:
        self.extra_bytes = 0
        self._free: list[bytearray] = []  # ascending by size

    def take_buffer(self, size: int) -> bytearray:
        """Returns a buffer of at least this size with undefined content."""
        if self._free and len(self._free[-1]) >= size:
            return self._free.pop()
        return bytearray(size)

    def return_buffer(self, buffer: bytearray) -> None:
        if len(buffer) <= POOLED_BUFFER_BYTES_MAX:
            self._free.append(buffer)
            self._free.sort(key=len)
            del self._free[:-POOLED_BUFFERS_MAX]


class FrameReceiver:
    """Receive buffer of one connection.

    `_buffer[_start:_end]` has been received and not yet handled. `_small` is the connection's own buffer of at most
    BUFFER_BYTES. `_buffer` is `_small`, or a larger buffer while requests do not fit into `_small`.
    """

    __slots__ = ("_buffer", "_end", "_pool", "_small", "_start")

    def __init__(self, pool: ReceiveBufferPool) -> None:
        self._pool = pool
        self._buffer = self._small = bytearray(INITIAL_BUFFER_BYTES)
        self._start = self._end = 0

    def free_space(self) -> memoryview:
        """Returns the part of the buffer into which the socket writes the next bytes; never empty."""
        if self._start == self._end:
            self.shrink()
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            self._make_space()
        return memoryview(self._buffer)[self._end :]

    def add_received(self, byte_count: int) -> None:
        """Records that the first `byte_count` bytes of `free_space` were received."""
        self._end += byte_count

    def next_frame(self, *, is_authenticated: bool) -> memoryview | None:
        """Returns the first frame without its length prefix, or None while it is incomplete. The frame stays in the
        buffer until `discard` is called.

        Args:
            is_authenticated: whether the client has logged in; until then, the limit of the frame size is lower.

        Raises:
            FrameRefused: the length of the frame is outside the limits, or incomplete requests of all connections take
                too much memory.
        """
        if self._end - self._start < _LENGTH_BYTES:
            return None
        view = memoryview(self._buffer)
        length = read_frame_length(view, self._start, self._end)
        if length > UNAUTHENTICATED_FRAME_BYTES_MAX and not is_authenticated:
            raise FrameRefused(
                f"the client sends a request of {length} bytes before its login; at most "
                f"{UNAUTHENTICATED_FRAME_BYTES_MAX} are allowed; configure SASL in the client"
            )
        start = self._start + _LENGTH_BYTES
        if start + length <= self._end:
            return view[start : start + length]
        if len(self._buffer) > BUFFER_BYTES and self._pool.extra_bytes > EXTRA_BYTES_MAX:
            raise FrameRefused(
                f"incomplete requests of all clients take {self._pool.extra_bytes} bytes, more than {EXTRA_BYTES_MAX}; "
                "send smaller requests or use fewer clients"
            )
        return None

    def discard(self, frame: memoryview) -> None:
        """Removes `frame`, which `next_frame` has returned, from the receive buffer; later bytes will overwrite it."""
        self._start += _LENGTH_BYTES + len(frame)

    def shrink(self) -> None:
        """If the connection uses a large receive buffer and all bytes in it were handled, returns it to the pool and
        uses the small one again: the client may not send another large request."""
        if self._start == self._end and len(self._buffer) > BUFFER_BYTES:
            self._start = self._end = 0
            self._switch_to(self._small)

    def close(self) -> None:
        """Releases the memory of the connection's receive buffer."""
        self._small = bytearray()
        self._switch_to(self._small)

    def _make_space(self) -> None:
        """Makes free space behind the received bytes: moves them to the front, and doubles the buffer if they fill more
        than half of it.

        The buffer grows with the bytes received, not with the length that a client claims.
        """
        pending = memoryview(self._buffer)[self._start : self._end]
        if len(pending) <= len(self._buffer) // 2:
            memoryview(self._buffer)[: len(pending)] = pending
        elif len(self._buffer) < BUFFER_BYTES:
            self._small = bytearray(2 * len(self._buffer))
            self._small[: len(pending)] = pending
            self._switch_to(self._small)
        else:
            larger = self._pool.take_buffer(2 * len(self._buffer))
            larger[: len(pending)] = pending
            self._switch_to(larger)
        self._start, self._end = 0, len(pending)

    def _switch_to(self, buffer: bytearray) -> None:
        """Replaces the receive buffer by `buffer`, updates `extra_bytes` of the buffer pool, and returns the previous
        buffer to the pool if it is large."""
        previous, self._buffer = self._buffer, buffer
        self._pool.extra_bytes += max(len(buffer) - BUFFER_BYTES, 0) - max(len(previous) - BUFFER_BYTES, 0)
        if len(previous) > BUFFER_BYTES:
            self._pool.return_buffer(previous)
