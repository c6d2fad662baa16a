"""LRU cache for immutable results, bounded by number and weight."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Cache:
    """A thread-safe LRU cache. Two threads that miss the same key may both make the value.

    Args:
        count_max: maximum number of values.
        weight_max: maximum total weight, in the unit of `weight_of`.
        weight_of: returns the weight of a key and its value.
    """

    def __init__(self, count_max: int, weight_max: int, weight_of: Callable[[Hashable, Any], int]) -> None:
        self._count_max = count_max
        self._weight_max = weight_max
        self._weight_of = weight_of
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._weight = 0
        self._generation = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                found: T = self._values[key][0]
                return found
            generation = self._generation
        value = make()
        weight = self._weight_of(key, value)
        with self._lock:
            # A value from before a `clear` may be outdated, so it is not cached.
            if generation == self._generation and weight <= self._weight_max:
                self._put(key, value, weight)
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._weight = 0
            self._generation += 1

    def _put(self, key: Hashable, value: Any, weight: int) -> None:
        _, replaced = self._values.pop(key, (None, 0))
        self._values[key] = (value, weight)
        self._weight += weight - replaced
        while len(self._values) > self._count_max or self._weight > self._weight_max:
            _, (_, dropped) = self._values.popitem(last=False)
            self._weight -= dropped
