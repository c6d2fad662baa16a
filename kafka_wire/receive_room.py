"""Memory for answers that is used again, since to have megabytes zeroed for each costs a task as much as checksums."""

from __future__ import annotations

KEPT = 2  # an answer is mostly worked on while the next one is received
KEPT_BYTES_MAX = 32 * 1024 * 1024  # of each; a larger answer has memory of its own


class ReceiveRoom:
    """Hands out memory that nobody looks at any more: as long as there is a view of some, it is left alone.

    Not for sharing between threads.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """That many bytes, whatever is in them."""
        if size > KEPT_BYTES_MAX:
            return memoryview(bytearray(size))
        free = [buffer for buffer in self._kept if _is_free(buffer)]
        room = next((buffer for buffer in free if len(buffer) >= size), None)
        if room is None:
            room = bytearray(size)
            in_use = [buffer for buffer in self._kept if not any(buffer is each for each in free)]
            others = [*free, *in_use][1 - KEPT :]
            self._kept = [*others, room]
        return memoryview(room)[:size]


def _is_free(buffer: bytearray) -> bool:
    """Whether there is no view of a buffer: one that is looked at cannot change its size."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
