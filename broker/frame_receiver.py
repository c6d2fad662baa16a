"""What has come from one client and is not handled yet: bytes in, whole frames out.

The socket writes into the buffer that frames are read from, so that a produce request is not copied on its way to the
log unless it comes in more pieces than the buffer has room for.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.errors import FrameRefused
from headrace.broker.protocol.framing import frame_length

FIRST_BUFFER_BYTES = 16 * 1024
"""Of a connection to begin with: there may be thousands that send little."""
BUFFER_BYTES = 256 * 1024
"""Of a connection that sends more; beyond it the buffer grows to a large frame and shrinks once that is handled."""
RECEIVED_BYTES_MAX = 1024 * 1024 * 1024
"""Of half-received requests beyond BUFFER_BYTES each, in all; while there is more, who sends more of one is closed."""
LOGIN_FRAME_BYTES_MAX = 64 * 1024
"""Of a request of a client that has not said who it is."""
_LENGTH_BYTES = 4


@dataclass(slots=True)
class ReceivedBytes:
    """Of all connections together."""

    beyond_buffers: int = 0


class FrameReceiver:
    """The bytes in `_buffer[_start:_end]` have been received and not handled."""

    __slots__ = ("_buffer", "_end", "_in_all", "_start")

    def __init__(self, in_all: ReceivedBytes) -> None:
        self._in_all = in_all
        self._buffer = bytearray(FIRST_BUFFER_BYTES)
        self._start = self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go; there is always some."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > BUFFER_BYTES:
                self._resize(BUFFER_BYTES)
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

    def close(self) -> None:
        """Lets go of the buffer."""
        self._resize(0)

    def _make_room(self) -> None:
        """Moves what is unhandled to the front, into a larger buffer if the front was full already.

        The buffer grows with the bytes that came, not with the length a client claims.
        """
        unhandled = self._buffer[self._start : self._end]
        size = len(self._buffer) * 2 if len(unhandled) > len(self._buffer) // 2 else len(self._buffer)
        self._resize(size)
        self._buffer[: len(unhandled)] = unhandled
        self._start, self._end = 0, len(unhandled)

    def _resize(self, size: int) -> None:
        """Takes a new, empty buffer of this size."""
        self._in_all.beyond_buffers += max(size - BUFFER_BYTES, 0) - max(len(self._buffer) - BUFFER_BYTES, 0)
        self._buffer = bytearray(size)
