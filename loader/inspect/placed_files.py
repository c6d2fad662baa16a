"""The live files of a topic, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.loader.apply.engine import FILES, read_cursor
from headrace.loader.apply.layout import bucket_folder, partition_values
from headrace.loader.commit.bucket_index import IndexedFile, generation_at, live_at
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file of a bucket; `path` is relative to the warehouse."""

    kind: FileKind
    bucket: str
    path: str
    file: IndexedFile


@dataclass(frozen=True, slots=True)
class BucketFilter:
    """Which buckets are wanted: `bucket` one or all of a day, else those in `[since, until)`; "" is no limit.

    The limits are days or hours: `2026-01-31` or `2026-01-31T07`.
    """

    bucket: str = ""
    since: str = ""
    until: str = ""

    def __call__(self, bucket: str) -> bool:
        time = "T".join(partition_values(bucket))
        if self.bucket and bucket != self.bucket and not bucket.startswith(self.bucket + "/"):
            return False
        # A bucket of a whole day begins with its first hour, which its name lacks: 2026-01-31 is before 2026-01-31T00.
        return (not self.since or _begin(time) >= _begin(self.since)) and (
            not self.until or _begin(time) < _begin(self.until)
        )


EVERY_BUCKET = BucketFilter()


def _begin(time: str) -> str:
    return time if "T" in time else f"{time}T00"


def slot_in_place(log: DecisionLog, topic: str) -> int:
    """The slot up to which a topic's decided files have been brought to their places. The newest where that is not
    known, since the note of it was lost."""
    newest = log.state.topics[topic].slot
    return min(newest, read_cursor(log.storage, FILES).position(topic) or newest)


def placed_files(
    index: FileIndex,
    log: DecisionLog,
    topic: str,
    kind: FileKind,
    slot: int,
    wanted: Callable[[str], bool] = EVERY_BUCKET,
) -> Iterator[PlacedFile]:
    """The files of a topic that are live as of a slot, by bucket and in the order of their slots.

    Raises:
        BadDecision, UnsupportedFormat: see `FileIndex`.
    """
    folder = log.state.topics[topic].folder
    for day in index.days(topic, kind):
        for bucket, indexed in sorted(index.day(topic, kind, day).buckets.items()):
            if not wanted(bucket):
                continue
            place = bucket_folder(folder, kind, bucket, generation_at(indexed, slot))
            for file in live_at(indexed, slot):
                yield PlacedFile(kind, bucket, f"{place}/{file.name}", file)
