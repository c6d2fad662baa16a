"""Records that were fetched and not yet given out; those of paused partitions wait aside."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from headrace.clients.decoding import Record
from headrace.clients.partitions import Place


class Fetched:
    """Used by the thread of one consumer. `ready` are in the order in which they are given out."""

    def __init__(self) -> None:
        self.ready: deque[Record] = deque()
        self._paused: dict[Place, list[Record]] = {}

    def __iter__(self) -> Iterator[Record]:
        return itertools.chain(self.ready, *self._paused.values())

    def paused(self) -> frozenset[Place]:
        return frozenset(self._paused)

    def pause(self, places: Iterable[Place]) -> None:
        for place in places:
            self._paused.setdefault(place, [])
        self.set_aside()

    def resume(self, places: Iterable[Place]) -> None:
        for place in places:
            self.ready.extend(self._paused.pop(place, ()))

    def put_back(self, record: Record) -> None:
        """One that was taken from `ready` is the next of its partition again."""
        self._paused.get((record.topic, record.partition), self.ready).insert(0, record)

    def forget(self, places: Iterable[Place]) -> None:
        """What waits here of partitions that are read elsewhere, or from elsewhere, from now on."""
        gone = frozenset(places)
        self.ready = deque(each for each in self.ready if (each.topic, each.partition) not in gone)
        for place in gone & self._paused.keys():
            self._paused[place].clear()

    def give_back(self, places: Iterable[Place]) -> None:
        """Partitions that are not this consumer's any more are not paused either."""
        self.forget(places)
        for place in places:
            self._paused.pop(place, None)

    def set_aside(self) -> None:
        """To be called when records were added, since the Kafka client had some of paused partitions already."""
        if not self._paused:
            return
        ready: deque[Record] = deque()
        paused = {place: list(records) for place, records in self._paused.items()}
        for record in self.ready:
            paused.get((record.topic, record.partition), ready).append(record)
        self.ready, self._paused = ready, paused  # at once: a signal handler that raises before has changed nothing
