"""What has come from one client and is not handled yet: bytes in, whole frames out.

The socket writes into the buffer that frames are read from, so that a produce request is not copied on its way to the
log unless it comes in more pieces than the buffer has room for.
"""

from __future__ import annotations

from headrace.broker.errors import FrameRefused
from headrace.broker.protocol.framing import frame_length

FIRST_BUFFER_BYTES = 16 * 1024
"""Of a connection to begin with: there may be thousands that send little."""
BUFFER_BYTES = 256 * 1024
"""Of a connection that sends more; beyond it the buffer grows to a large frame and shrinks once that is handled."""
RECEIVED_BYTES_MAX = 1024 * 1024 * 1024
"""Of half-received requests beyond BUFFER_BYTES each, in all; while there is more, who sends more of one is closed."""
SPARE_BYTES_MAX = 2 * 1024 * 1024
SPARES_MAX = 8
"""Larger buffers that are kept for whoever needs one next: librdkafka's requests may be of a megabyte, and to have that
much memory anew for each takes about as long as to copy it from the socket."""
LOGIN_FRAME_BYTES_MAX = 64 * 1024
"""Of a request of a client that has not said who it is."""
_LENGTH_BYTES = 4


class ReceivedBytes:
    """Of all connections together: what buffers take beyond BUFFER_BYTES each, and larger ones to be used again."""

    __slots__ = ("_spares", "beyond_buffers")

    def __init__(self) -> None:
        self.beyond_buffers = 0
        self._spares: list[bytearray] = []  # by their sizes

    def buffer(self, size: int) -> bytearray:
        """Of at least this size; what is in it is anybody's."""
        if self._spares and len(self._spares[-1]) >= size:
            return self._spares.pop()
        return bytearray(size)

    def give_back(self, buffer: bytearray) -> None:
        if len(buffer) <= SPARE_BYTES_MAX:
            self._spares.append(buffer)
            self._spares.sort(key=len)
            del self._spares[:-SPARES_MAX]


class FrameReceiver:
    """The bytes in `_buffer[_start:_end]` have been received and not handled. `_small` is what it goes back to from a
    buffer beyond BUFFER_BYTES."""

    __slots__ = ("_buffer", "_end", "_in_all", "_small", "_start")

    def __init__(self, in_all: ReceivedBytes) -> None:
        self._in_all = in_all
        self._buffer = self._small = bytearray(FIRST_BUFFER_BYTES)
        self._start = self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go; there is always some."""
        if self._start == self._end:
            self.release()
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            self._make_room()
        return memoryview(self._buffer)[self._end :]

    def received(self, byte_count: int) -> None:
        """That many bytes are in what `room` returned."""
        self._end += byte_count

    def frame(self, *, is_in: bool) -> memoryview | None:
        """The first frame without its length, which stays until `handled`; None while it has not come whole.

        Raises:
            FrameRefused: it is longer than any, or than one of a client that has not logged in, or clients have
                sent too much of requests that have not come whole.
        """
        if self._end - self._start < _LENGTH_BYTES:
            return None
        view = memoryview(self._buffer)
        length = frame_length(view, self._start, self._end)
        if length > LOGIN_FRAME_BYTES_MAX and not is_in:
            raise FrameRefused(f"a frame of {length} bytes before a login")
        start = self._start + _LENGTH_BYTES
        if start + length <= self._end:
            return view[start : start + length]
        if len(self._buffer) > BUFFER_BYTES and self._in_all.beyond_buffers > RECEIVED_BYTES_MAX:
            raise FrameRefused(f"clients have sent {self._in_all.beyond_buffers} bytes of unfinished requests")
        return None

    def handled(self, frame: memoryview) -> None:
        """The first frame is handled, and will be written over."""
        self._start += _LENGTH_BYTES + len(frame)

    def release(self) -> None:
        """Lets go of a large buffer in which there is nothing unhandled: who has sent one request may send no other."""
        if self._start == self._end and len(self._buffer) > BUFFER_BYTES:
            self._start = self._end = 0
            self._use(self._small)

    def close(self) -> None:
        """Lets go of the buffer."""
        self._small = bytearray()
        self._use(self._small)

    def _make_room(self) -> None:
        """Moves what is unhandled to the front, into a larger buffer if the front was full already.

        The buffer grows with the bytes that came, not with the length a client claims.
        """
        unhandled = memoryview(self._buffer)[self._start : self._end]
        if len(unhandled) <= len(self._buffer) // 2:
            memoryview(self._buffer)[: len(unhandled)] = unhandled
        elif len(self._buffer) < BUFFER_BYTES:
            self._small = bytearray(2 * len(self._buffer))
            self._small[: len(unhandled)] = unhandled
            self._use(self._small)
        else:
            larger = self._in_all.buffer(2 * len(self._buffer))
            larger[: len(unhandled)] = unhandled
            self._use(larger)
        self._start, self._end = 0, len(unhandled)

    def _use(self, buffer: bytearray) -> None:
        """Goes on with this buffer."""
        before, self._buffer = self._buffer, buffer
        self._in_all.beyond_buffers += max(len(buffer) - BUFFER_BYTES, 0) - max(len(before) - BUFFER_BYTES, 0)
        if len(before) > BUFFER_BYTES:
            self._in_all.give_back(before)
