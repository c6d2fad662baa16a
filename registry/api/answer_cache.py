"""Ready-made bodies of answers about schemas by id.

The content behind an id never changes, but a permanent delete ends it, a soft delete marks it, and a registration may
give it a subject. So whatever changes versions forgets the answers here after its commit, and an answer that was read
before that is not kept: `generation` tells. This holds for one serving process on a database, which is what
`headrace registry serve` runs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

BYTES_MAX = 64 * 1024 * 1024  # of all bodies kept; some 100,000 schemas of usual size


class AnswerCache:
    """Thread-safe; the least recently used body goes first."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max
        self._generation = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The body kept under `key`, or what `make` gives."""
        with self._lock:
            body = self._bodies.get(key)
            if body is not None:
                self._bodies.move_to_end(key)
                return body
            generation = self._generation
        body = make()
        with self._lock:
            if generation == self._generation and key not in self._bodies and len(body) <= self._bytes_max:
                self._bodies[key] = body
                self._bytes += len(body)
                while self._bytes > self._bytes_max:
                    self._bytes -= len(self._bodies.popitem(last=False)[1])
        return body

    def forget(self) -> None:
        """Called after the commit of whatever may have changed an answer."""
        with self._lock:
            self._generation += 1
            self._bodies.clear()
            self._bytes = 0
