"""The files that must be replaced together, compared with an oracle that compares every file with every other."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.rewrite.closure import (
    Component,
    Interval,
    LiveFile,
    OffsetRangeSet,
    components,
    offset_closure,
    pieces,
)
from headrace.loader.work_unit import FileKind, FileRange

DAYS = ("dt=2026-01-01", "dt=2026-01-02", "dt=2026-01-03")


def live(name: str, *ranges: tuple[int, int, int, int], time_partition: str = DAYS[0], length: int = 10) -> LiveFile:
    pieces = tuple(FileRange(*one) for one in ranges)
    file = IndexedFile(name, 1, 0, length, "", sum(one.records for one in pieces), pieces)
    return LiveFile(FileKind.DATA, time_partition, file)


@st.composite
def file_ranges(draw: st.DrawFn) -> tuple[int, int, int, int]:
    first = draw(st.integers(0, 40))
    last = first + draw(st.integers(0, 8))
    return draw(st.integers(0, 2)), first, last, draw(st.integers(1, last - first + 1))


@st.composite
def histories(draw: st.DrawFn) -> list[LiveFile]:
    found = []
    for number in range(draw(st.integers(0, 14))):
        ranges = draw(st.lists(file_ranges(), min_size=1, max_size=3, unique_by=lambda one: one[0]))
        # Other time partitions and kinds have files with the same names.
        one = live(f"{number // 2}.avro", *ranges, time_partition=DAYS[number % 3], length=draw(st.integers(1, 50)))
        found.append(LiveFile(draw(st.sampled_from(FileKind)), one.time_partition, one.file))
    return list({one.key: one for one in found}.values())


def share_offsets(one: LiveFile, other: LiveFile) -> bool:
    return any(
        a.partition == b.partition and a.first <= b.last and b.first <= a.last
        for a in one.file.ranges
        for b in other.file.ranges
    )


def reachable_keys(chosen: Sequence[LiveFile], files: Sequence[LiveFile]) -> set[tuple[FileKind, str, str]]:
    """Compares all files with each other until no file is added."""
    selected = list(chosen)
    for one in selected:
        selected += [other for other in files if other not in selected and share_offsets(one, other)]
    return {one.key for one in selected}


@given(histories(), st.data())
def test_closure_has_exactly_the_files_that_share_offsets(files: list[LiveFile], data: st.DataObject) -> None:
    chosen = [one for one in files if data.draw(st.booleans())]
    days = [(kind, day) for kind in FileKind for day in DAYS]
    reads: Counter[tuple[FileKind, str]] = Counter()

    def live_files_of(where: tuple[FileKind, str]) -> list[LiveFile]:
        reads[where] += 1
        return [one for one in files if (one.kind, one.time_partition) == where]

    found = offset_closure(chosen, days, live_files_of)
    assert {one.key for one in found} == reachable_keys(chosen, files)
    assert len(found) == len({one.key for one in found})
    assert all(reads[day] >= 1 for day in days), "a late message may be in any day"


@given(histories())
def test_components_are_files_connected_by_shared_offsets(files: list[LiveFile]) -> None:
    found = components(files)
    assert Counter(one.key for component in found for one in component.files) == Counter(one.key for one in files)
    for component in found:
        assert {one.key for one in component.files} == reachable_keys(component.files[:1], files)
        offsets: set[tuple[int, int]] = set()
        for one in component.files:
            offsets |= {(number, at) for number, start, end in one.spans() for at in range(start, end)}
        of_intervals = [(one.partition, at) for one in component.intervals for at in range(one.start, one.end)]
        assert Counter(of_intervals) == Counter(offsets)
        for interval in component.intervals:
            inside = [
                piece.records
                for one in component.files
                for piece in one.file.ranges
                if piece.partition == interval.partition and interval.start <= piece.first < interval.end
            ]
            assert interval.records == sum(inside)


@given(histories(), st.integers(1, 60))
def test_pieces_have_every_component_once_within_the_size_limit(files: list[LiveFile], bytes_max: int) -> None:
    found = components(files)
    groups = pieces(found, bytes_max)
    assert [one for group in groups for one in group] == found
    for group in groups:
        assert len(group) == 1 or sum(one.bytes for one in group) <= bytes_max
    for group, following in itertools.pairwise(groups):
        assert sum(one.bytes for one in group) + following[0].bytes > bytes_max, "the number of pieces is minimal"


def test_spans_that_only_touch_are_apart() -> None:
    before, after = live("a.avro", (0, 0, 4, 5)), live("b.avro", (0, 5, 9, 5))
    assert offset_closure([before], [DAYS[0]], lambda day: [before, after]) == [before]
    one, other = components([after, before])
    assert (one.intervals, other.intervals) == ((Interval(0, 0, 5, 5),), (Interval(0, 5, 10, 5),))


def test_days_without_further_files_are_read_once() -> None:
    """The files of a topic are read once per day. Only a file with many offsets causes a second read of its day."""
    by_day = {
        day: [live(f"{number}-{part}.avro", (0, 10 * number + part, 10 * number + 5 + part, 6)) for part in range(2)]
        for number, day in enumerate(f"dt=2026-02-{day:02d}" for day in range(1, 29))
    }
    reads: Counter[str] = Counter()

    def live_files_of(day: str) -> Sequence[LiveFile]:
        reads[day] += 1
        return by_day[day]

    found = offset_closure(by_day["dt=2026-02-14"][:1], list(by_day), live_files_of)
    assert found == by_day["dt=2026-02-14"]
    assert set(reads.values()) == {1}


def test_a_day_is_read_again_when_a_later_day_extends_its_offsets() -> None:
    """The first day is read before a file of the last day leads to its offsets."""
    early = live("early.avro", (0, 0, 5, 6))
    bridge = live("bridge.avro", (0, 4, 20, 10), time_partition=DAYS[2])
    requested = live("asked.avro", (0, 18, 30, 5), time_partition=DAYS[1])
    by_day = defaultdict(list, {DAYS[0]: [early], DAYS[1]: [requested], DAYS[2]: [bridge]})
    assert {one.key for one in offset_closure([requested], DAYS, by_day.__getitem__)} == {
        one.key for one in (early, bridge, requested)
    }


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 8)), max_size=12))
def test_covered_offsets_are_those_that_were_added(spans: list[tuple[int, int, int]]) -> None:
    covered, offsets = OffsetRangeSet(), set[tuple[int, int]]()
    for number, start, length in spans:
        is_extended = not {(number, at) for at in range(start, start + length)} <= offsets
        version = covered.version
        covered.add(number, start, start + length)
        assert (covered.version != version) >= is_extended
        offsets |= {(number, at) for at in range(start, start + length)}
    for number in range(2):
        for start in range(42):
            for end in range(start + 1, start + 4):
                inside = any((number, at) in offsets for at in range(start, end))
                assert covered.overlaps(number, start, end) == inside


def test_components_are_ordered_by_time_partition() -> None:
    late, early = (
        live("z.avro", (0, 0, 1, 2), time_partition=DAYS[2]),
        live("a.avro", (0, 5, 6, 2), time_partition=DAYS[1]),
    )
    assert [one.files for one in components([late, early])] == [(early,), (late,)]
    assert components([]) == []
    assert pieces([], 10) == []
    assert Component((late, early), ()).bytes == 20


def test_adding_covered_offsets_returns_no_news() -> None:
    """News would cause another read of the days."""
    covered = OffsetRangeSet()
    covered.add(0, 5, 10)
    version = covered.version
    for span in ((0, 5, 10), (0, 6, 10), (0, 5, 9)):
        covered.add(*span)
    assert covered.version == version
