"""Which files of a bucket are live: what all decisions up to a slot say of the buckets of one day. Pure.

The state keeps no files, since it must not grow with history; so each topic has an index, a document for every day
of each kind of its files and one that tells of all days. The index is never the truth: it is folded from the
decisions, and any document of it may be thrown away.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.loader.commit.decision import BucketRewrite, DecidedFile, TopicDecision
from headrace.loader.work_unit import FileKind, FileRange


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file that slot `since` added to its bucket and slot `until` took away again, 0 while it is live."""

    name: str
    since: int
    until: int
    length: int
    checksum: str
    records: int
    ranges: tuple[FileRange, ...]


@dataclass(frozen=True, slots=True)
class IndexedBucket:
    """`generations` are the slots that rewrote the bucket, each with the generation that began there; `files` are in
    the order of their slots. Both grow only."""

    generations: tuple[tuple[int, int], ...] = ()
    files: tuple[IndexedFile, ...] = ()


NO_FILES = IndexedBucket()


@dataclass(frozen=True, slots=True)
class DayIndex:
    """The buckets of one day, as of `slot`: the newest that changed one of them. `sha256` is the checksum of the
    decision in it, by which an index of another log is known."""

    kind: FileKind
    day: str
    slot: int = 0
    sha256: str = ""
    buckets: Mapping[str, IndexedBucket] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexedDays:
    """The days of a topic, each with the slot of its document: `data/dt=2026-01-31` or `quarantine/dt=2026-01-31`.

    All decisions of the topic up to `slot` are in it, and `sha256` is the checksum of the one there. So a day that is
    not in it has no files, and a document that is older than it says is a document that was lost.
    """

    slot: int
    sha256: str
    days: Mapping[str, int]


NO_DAYS = IndexedDays(0, "", {})


def day_of(bucket: str) -> str:
    """`dt=2026-01-31` of `dt=2026-01-31/hr=07`."""
    return bucket.partition("/")[0]


def day_key(kind: FileKind, day: str) -> str:
    return f"{kind.value}/{day}"


def by_day(decided: TopicDecision) -> dict[tuple[FileKind, str], TopicDecision]:
    """The days whose buckets a decision changes, each with the part of it that does: once for all days, since the
    load of a year has thousands of files."""
    files, rewrites = defaultdict(list), defaultdict(list)
    for file in decided.files:
        files[file.kind, day_of(file.bucket)].append(file)
    for rewrite in decided.rewrites:
        rewrites[rewrite.kind, day_of(rewrite.bucket)].append(rewrite)
    bare = dataclasses.replace(decided, ranges=(), audit=(), time_sources={}, load_schema=None)
    return {
        day: dataclasses.replace(bare, files=tuple(files[day]), rewrites=tuple(rewrites[day]))
        for day in {**files, **rewrites}
    }


def apply(index: DayIndex, decided: TopicDecision, slot: int, sha256: str) -> DayIndex:
    """The day after one more decision of its topic; as it was when the decision is in it already, or not of this day.

    Args:
        sha256: the checksum of the decision.
    """
    if slot <= index.slot:
        return index
    buckets = dict(index.buckets)
    for rewrite in decided.rewrites:
        if _is_of(index, rewrite):
            known = buckets.get(rewrite.bucket, NO_FILES)
            buckets[rewrite.bucket] = _rewritten(known, rewrite, slot, decided.generation)
    for file in decided.files:
        if _is_of(index, file):
            known = buckets.get(file.bucket, NO_FILES)
            buckets[file.bucket] = dataclasses.replace(known, files=(*known.files, _indexed(file, slot)))
    changed = buckets != index.buckets
    return dataclasses.replace(index, slot=slot, sha256=sha256, buckets=buckets) if changed else index


def generation_at(bucket: IndexedBucket, slot: int) -> int:
    """The generation whose folder holds the bucket as of a slot, 0 before it was first rewritten."""
    return max((generation for since, generation in bucket.generations if since <= slot), default=0)


def live_at(bucket: IndexedBucket, slot: int) -> tuple[IndexedFile, ...]:
    """The files that belong to the topic as of a slot; of slots before a rewrite only until `without_dead`."""
    return tuple(file for file in bucket.files if file.since <= slot and (not file.until or file.until > slot))


def without_dead(index: DayIndex, slots: Collection[int]) -> DayIndex:
    """The day without the files that these slots took away, for whoever has deleted them."""
    buckets = {
        name: dataclasses.replace(bucket, files=tuple(file for file in bucket.files if file.until not in slots))
        for name, bucket in index.buckets.items()
    }
    return dataclasses.replace(index, buckets=buckets)


def dead_slots(index: DayIndex) -> frozenset[int]:
    """The slots whose replaced files it still names."""
    return frozenset(file.until for file in _files(index) if file.until)


def _files(index: DayIndex) -> Iterator[IndexedFile]:
    for bucket in index.buckets.values():
        yield from bucket.files


def _is_of(index: DayIndex, change: DecidedFile | BucketRewrite) -> bool:
    return change.kind is index.kind and day_of(change.bucket) == index.day


def _rewritten(known: IndexedBucket, rewrite: BucketRewrite, slot: int, generation: int) -> IndexedBucket:
    replaced = frozenset(rewrite.replaced)
    files = tuple(
        dataclasses.replace(file, until=slot) if file.name in replaced and not file.until else file
        for file in known.files
    )
    return IndexedBucket((*known.generations, (slot, generation)), files)


def _indexed(file: DecidedFile, slot: int) -> IndexedFile:
    return IndexedFile(file.name, slot, 0, file.length, file.checksum, file.records, file.ranges)
