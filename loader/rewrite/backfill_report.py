"""The request and the report of a backfill. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.loader.rewrite.closure import Component, LiveFile
from headrace.loader.rewrite.run import TimePartitionRow
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class BackfillPeriod:
    """The time partitions that are to be recreated: from `first` to `last`, both included; a day stands for all of its
    hours."""

    first: str
    last: str

    def contains(self, time_partition: str) -> bool:
        return self.first <= time_partition and (
            time_partition <= self.last or time_partition.startswith(f"{self.last}/")
        )

    def overlaps_day(self, day: str) -> bool:
        return self.first.partition("/")[0] <= day <= self.last.partition("/")[0]


@dataclass(frozen=True, slots=True)
class OffsetsRead:
    """Offsets of a partition that were read, or in a dry run would be read: `offsets` is their number, `first` and
    `last` are the lowest and the highest. Offsets between these may not have been read."""

    partition: int
    first: int
    last: int
    offsets: int


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The result of a backfill: the files that it replaced, or in a dry run the files that it would replace.

    `time_partitions` are the time partitions of the old files, and `offsets` the offsets of their messages.
    `files_requested` is the number of old files in the requested period, including those that cannot be replaced; other
    replaced files share offsets with them. `commits` are the commit numbers. `files_written` is the number of new
    files; they hold `rows` rows and `quarantined` quarantined messages. The old files held `quarantined_before`
    quarantined messages. `problems` and `notes` are sentences; notes need no action.
    """

    files_requested: int = 0
    time_partitions: tuple[TimePartitionRow, ...] = ()
    offsets: tuple[OffsetsRead, ...] = ()
    commits: tuple[int, ...] = ()
    files_written: int = 0
    rows: int = 0
    quarantined: int = 0
    quarantined_before: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def files_of(components: Sequence[Component]) -> Iterator[LiveFile]:
    for component in components:
        yield from component.files


def time_partition_rows(topic: str, replaced: Sequence[Component]) -> tuple[TimePartitionRow, ...]:
    sums: dict[tuple[FileKind, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in files_of(replaced):
        total = sums[one.kind, one.time_partition]
        total[0] += 1
        total[1] += one.file.records
        total[2] += one.file.length
    return tuple(
        TimePartitionRow(topic, kind, time_partition, *total) for (kind, time_partition), total in sorted(sums.items())
    )


def offsets_read(replaced: Sequence[Component]) -> tuple[OffsetsRead, ...]:
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for component in replaced:
        for one in component.intervals:
            spans[one.partition].append((one.start, one.end))
    return tuple(
        OffsetsRead(
            number,
            min(start for start, _ in partition_spans),
            max(end for _, end in partition_spans) - 1,
            sum(end - start for start, end in partition_spans),
        )
        for number, partition_spans in sorted(spans.items())
    )
