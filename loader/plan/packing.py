"""Distributes ranges over a limited number of tasks. Pure.

The weight of a range is its estimated bytes plus a constant. Large ranges are split, small ones are packed by LPT
(longest processing time first: Graham 1969, at most 4/3 of the optimum). Ranges of one topic are given to few tasks, as
far as the balance allows, because every task that reads a topic writes separate files of it.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.loader.work_unit import OffsetRange

RANGE_BYTES_CONSTANT = 64 * 1024  # cost of opening a range, in bytes read
TASK_BYTES_MIN = 4 * 1024 * 1024  # a smaller task costs more than it saves, and makes more files
IMBALANCE_MAX = 1.2  # heaviest task over the best possible; above it, topics are spread over more tasks
SPLITS_PER_TASK = 4  # a range is split when it weighs more than this part of a task's share


@dataclass(frozen=True, slots=True)
class Packing:
    """The ranges of each task, and the heaviest task's weight divided by the mean."""

    tasks: tuple[tuple[OffsetRange, ...], ...]
    imbalance: float


def weight(offsets: OffsetRange) -> int:
    return offsets.bytes_estimate + RANGE_BYTES_CONSTANT


def pack(ranges: Sequence[OffsetRange], *, tasks: int, file_bytes_target: int) -> Packing:
    """Distributes ranges over at most `tasks` tasks, so that the tasks have about equal weights. Large ranges are
    split. Every offset is read by exactly one task.

    Args:
        file_bytes_target: the size of a full file. A range up to this size is not split, and ranges of one topic stay
            together up to this size if the weights allow it.
    """
    total = sum(weight(offsets) for offsets in ranges)
    tasks = max(1, min(tasks, -(-total // TASK_BYTES_MIN)))
    pieces = [
        piece
        for offsets in ranges
        for piece in split(offsets, max(total // (SPLITS_PER_TASK * tasks), file_bytes_target))
    ]
    if not pieces:
        return Packing((), 1.0)
    bound = max(total / tasks, max(weight(piece) for piece in pieces))
    best: list[list[OffsetRange]] = []
    best_load = 0
    for limit in _group_limits(bound, file_bytes_target, min(weight(piece) for piece in pieces)):
        loads = _lpt(_by_topic(pieces, limit), tasks)
        heaviest = max(sum(weight(piece) for piece in load) for load in loads)
        if not best or heaviest < 0.95 * best_load:
            best, best_load = loads, heaviest
        if best_load <= IMBALANCE_MAX * bound:
            break
    packed = tuple(tuple(sorted(load, key=lambda piece: (piece.topic_partition, piece.start))) for load in best if load)
    return Packing(packed, best_load * len(packed) / sum(weight(piece) for piece in pieces))


def split(offsets: OffsetRange, bytes_max: int) -> list[OffsetRange]:
    """Splits a range into pieces with about the same number of offsets. A piece has about `bytes_max` estimated bytes
    at most, or one offset."""
    length = offsets.end - offsets.start
    parts = max(1, min(length, -(-offsets.bytes_estimate // max(1, bytes_max))))
    cuts = [offsets.start + length * part // parts for part in range(parts + 1)]
    return [
        dataclasses.replace(
            offsets,
            start=start,
            end=end,
            bytes_estimate=offsets.bytes_estimate * (end - start) // length if length else 0,
            follows_another=offsets.follows_another or start > offsets.start,
        )
        for start, end in itertools.pairwise(cuts)
    ]


def _group_limits(bound: float, file_bytes_target: int, lightest: int) -> Iterable[float]:
    """Yields limits for the weight of a group of ranges (`_by_topic`), from large to small: smaller groups balance the
    tasks better, but more tasks then read the same topic. The first limit is the weight of a full file, the second is
    `bound` if that is smaller, and each further one is half of the limit before it, down to the lightest range.

    Args:
        bound: a lower bound for the weight of the heaviest task, however the ranges are distributed.
        file_bytes_target: the weight of a full file.
        lightest: weight of the lightest range.
    """
    yield float(file_bytes_target)
    limit = min(bound, float(file_bytes_target))
    while limit > lightest / 2:
        yield limit
        limit /= 2


def _by_topic(pieces: Sequence[OffsetRange], limit: float) -> list[list[OffsetRange]]:
    """Divides the ranges into groups; a group stays in one task and has ranges of one topic. A topic gets as few groups
    as the limit allows, so that only heavy topics are spread over several tasks.

    Args:
        pieces: the ranges to distribute, after the split of large ones.
        limit: approximate maximum weight of a group.
    """
    topics: dict[str, list[OffsetRange]] = defaultdict(list)
    for piece in pieces:
        topics[piece.topic_partition.topic].append(piece)
    groups: list[list[OffsetRange]] = []
    for members in topics.values():
        total = sum(weight(piece) for piece in members)
        count = min(len(members), math.ceil(total / limit))
        groups += [group for group in _lpt([[piece] for piece in members], count) if group]
    return groups


def _lpt(groups: Sequence[list[OffsetRange]], bins: int) -> list[list[OffsetRange]]:
    """Assigns the groups to bins: in order of decreasing weight, each to the lightest bin. Returns the ranges of each
    bin.

    Args:
        groups: ranges that stay together.
        bins: the number of bins.
    """
    weighted_groups = sorted(
        ((sum(weight(piece) for piece in group), group) for group in groups), key=lambda pair: -pair[0]
    )
    heap = [(0, number) for number in range(bins)]
    filled: list[list[OffsetRange]] = [[] for _ in range(bins)]
    for load, group in weighted_groups:
        lightest, number = heapq.heappop(heap)
        filled[number] += group
        heapq.heappush(heap, (lightest + load, number))
    return filled
