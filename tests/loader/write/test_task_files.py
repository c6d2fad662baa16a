"""Rows to files: with any limits no row is lost or misplaced, and a dropped range leaves none."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.loader.project.batches import RowRun
from headrace.loader.storage.local import sink
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.work_unit import FileKind, FileRange, StagedFile
from headrace.loader.write.container import ContainerFormat
from headrace.loader.write.range_rows import RangeRows
from headrace.loader.write.task_files import TaskFiles
from support.loader.file_checksums import checksum_of

SCHEMA = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "offset", "type": "long"}, {"name": "pad", "type": "bytes"}]}
)
FORMAT = ContainerFormat(SCHEMA, "null", bytes(16))


def formats(kind: FileKind, topic: str) -> ContainerFormat:
    return FORMAT


def files_of(directory: Path, blocks: LocalSink | None = None, **options: int) -> TaskFiles:
    sizes = {"block_bytes": 1000, "file_bytes_target": 1 << 30, **options}
    return TaskFiles(blocks or LocalSink(str(directory), 4), formats, {"headrace.task": "4"}, **sizes)


def range_of(directory: Path, partition: int = 0, topic: str = "t", **options: int) -> RangeRows:
    return RangeRows(
        topic,
        partition,
        formats,
        scratch=lambda: tempfile.TemporaryFile(dir=directory),
        **{"block_bytes": 1000, **options},
    )


def row(offset: int, pad: int = 10) -> bytes:
    return encode_long(offset) + encode_bytes(bytes(pad))


def offsets_in(directory: Path, file: StagedFile) -> list[int]:
    with (directory / file.path).open("rb") as opened:
        return [record["offset"] for record in fastavro.reader(opened)]


def check(directory: Path, file: StagedFile) -> None:
    data = (directory / file.path).read_bytes()
    assert (len(data), checksum_of(data)) == (file.length, file.checksum)
    assert len(offsets_in(directory, file)) == file.records == sum(one.records for one in file.ranges)


def test_one_file_per_kind_topic_and_time_partition(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    for topic in ("t", "u"):
        rows = range_of(tmp_path, topic=topic)
        for offset in range(6):
            kind = FileKind.QUARANTINE if offset == 5 else FileKind.DATA
            rows.add(kind, f"dt=2013-01-0{1 + offset % 2}", offset, row(offset))
        rows.finish_into(files)
    staged = files.finish()
    assert {(file.kind.value, file.topic, file.time_partition): offsets_in(tmp_path, file) for file in staged} == {
        (kind, topic, f"dt=2013-01-0{day}"): offsets
        for topic in ("t", "u")
        for kind, day, offsets in (("data", 1, [0, 2, 4]), ("data", 2, [1, 3]), ("quarantine", 2, [5]))
    }
    for file in staged:
        check(tmp_path, file)
    assert staged[0].ranges == (FileRange(0, 0, 4, 3),)


def test_small_ranges_share_blocks_and_files(tmp_path: Path) -> None:
    files = files_of(tmp_path, block_bytes=150)  # twelve rows
    for partition in range(20):
        rows = range_of(tmp_path, partition)
        rows.add(FileKind.DATA, "dt=2013-01-01", 100 + partition, row(partition))
        rows.finish_into(files)
    (file,) = files.finish()
    with (tmp_path / file.path).open("rb") as opened:
        assert len(list(fastavro.block_reader(opened))) == 2
    assert file.ranges == tuple(FileRange(partition, 100 + partition, 100 + partition, 1) for partition in range(20))


def test_a_dropped_range_leaves_no_rows(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    rows = range_of(tmp_path, bytes_max=2000)
    for offset in range(500):
        rows.add(FileKind.DATA, "dt=2013-01-01", offset, row(offset))
        rows.limit_memory()
    rows.drop()
    assert files.finish() == ()
    (directory,) = tmp_path.iterdir()
    assert list(directory.iterdir()) == []


def test_a_full_buffer_spills_half_of_its_rows(tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as spill:
        rows = RangeRows("t", 0, formats, block_bytes=1000, bytes_max=10_000, scratch=lambda: spill)
        sizes = []
        for offset in range(40):  # each row is a separate block of 1,020 bytes
            rows.add(FileKind.DATA, "dt=2013-01-01", offset, row(offset, 998))
            rows.limit_memory()
            sizes.append(spill.seek(0, os.SEEK_END) // 1020)
        assert sizes == [0] * 9 + [6] * 6 + [12] * 6 + [18] * 6 + [24] * 6 + [30] * 6 + [36]
        files = files_of(tmp_path)
        rows.finish_into(files)
    (file,) = files.finish()
    assert offsets_in(tmp_path, file) == list(range(40))


def test_rows_of_incomplete_blocks_are_spilled_from_the_fullest_time_partitions(tmp_path: Path) -> None:
    rows = range_of(tmp_path, bytes_max=3000)
    offset = itertools.count()
    for time_partition in range(1, 10):
        for _ in range(time_partition):
            rows.add(FileKind.DATA, f"b={time_partition}", next(offset), row(0, 72))
    rows.limit_memory()
    for time_partition in range(1, 10):
        rows.add(FileKind.DATA, f"b={time_partition}", next(offset), row(0, 72))
    files = files_of(tmp_path)
    rows.finish_into(files)
    blocks = {}
    for file in files.finish():
        with (tmp_path / file.path).open("rb") as opened:
            blocks[file.time_partition] = [block.num_records for block in fastavro.block_reader(opened)]
    full_blocks = {f"b={time_partition}": [time_partition + 1] for time_partition in range(1, 10)}
    assert blocks == full_blocks | {f"b={time_partition}": [time_partition, 1] for time_partition in (6, 7, 8, 9)}


def test_attempts_of_one_task_never_share_a_path(tmp_path: Path) -> None:
    assert LocalSink(str(tmp_path), 4).directory != LocalSink(str(tmp_path), 4).directory


def test_a_file_beyond_the_target_size_is_followed_by_another(tmp_path: Path) -> None:
    files = files_of(tmp_path, file_bytes_target=3000)
    rows = range_of(tmp_path)
    for offset in range(300):
        rows.add(FileKind.DATA, "dt=2013-01-01", offset, row(offset, 60))
    rows.finish_into(files)
    staged = files.finish()
    assert len(staged) > 3
    assert [offset for file in staged for offset in offsets_in(tmp_path, file)] == list(range(300))
    for file in staged:
        check(tmp_path, file)
        assert file.ranges[0].first == offsets_in(tmp_path, file)[0]


def test_more_time_partitions_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "OPEN_FILES_MAX", 3)
    blocks = LocalSink(str(tmp_path), 4)
    files = files_of(tmp_path, blocks, waiting_bytes_max=5000)
    for partition in range(3):
        rows = range_of(tmp_path, partition, bytes_max=3000)
        for offset in range(200):
            rows.add(FileKind.DATA, f"dt=2013-01-{1 + offset % 20:02d}", offset, row(offset))
            rows.limit_memory()
        rows.finish_into(files)
        assert len(blocks._handles) <= 3
    staged = files.finish()
    assert len(staged) == 20
    for file in staged:
        check(tmp_path, file)


def test_a_full_disk_raises_oserror(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    rows = range_of(tmp_path)
    rows.add(FileKind.DATA, "dt=2013-01-01", 0, row(0))
    rows.finish_into(files)
    (directory,) = tmp_path.iterdir()
    directory.rmdir()
    with pytest.raises(OSError, match="000001"):
        files.finish()


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), max_size=30), max_size=4),
    st.integers(1, 2_000),
    st.integers(100, 5_000),
)
def test_block_boundaries_do_not_depend_on_how_rows_are_added(
    batches: list[list[tuple[int, int]]], block: int, range_max: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        single, many = (range_of(Path(directory), block_bytes=block, bytes_max=range_max) for _ in range(2))
        for number, batch in enumerate(batches):
            of_time_partition: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
            for n, (time_partition, pad) in enumerate(batch):
                offset = 100 * number + n
                of_time_partition[time_partition].append((offset, row(offset, pad)))
                single.add(FileKind.DATA, f"dt={time_partition}", offset, row(offset, pad))
            for time_partition, found in of_time_partition.items():
                ends = list(itertools.accumulate(len(one) for _, one in found))
                data = memoryview(b"".join(one for _, one in found))
                many.add_run(
                    FileKind.DATA, f"dt={time_partition}", RowRun(0, [offset for offset, _ in found], ends, data)
                )
            single.limit_memory()
            many.limit_memory()
        recorded = []
        for rows in (single, many):
            files = RecordedFiles()
            rows.finish_into(files)  # type: ignore[arg-type]
            recorded.append(files.blocks)
        assert recorded[0] == recorded[1]


class RecordedFiles:
    """Records the blocks that would be written, and rows that wait for one."""

    def __init__(self) -> None:
        self.blocks: list[tuple[object, ...]] = []

    def add_block(self, *block: object) -> None:
        self.blocks.append(block)

    def add_rows(self, key: object, rows: bytearray, file_range: FileRange) -> None:
        self.blocks.append((key, bytes(rows), file_range))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ranges=st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400)), max_size=40), st.booleans()), max_size=5
    ),
    block=st.integers(1, 3000),
    target=st.integers(500, 20_000),
    range_max=st.integers(100, 10_000),
    task_max=st.integers(100, 10_000),
)
def test_every_row_of_a_finished_range_is_in_one_file_of_its_time_partition(
    tmp_path: Path,
    ranges: list[tuple[list[tuple[int, int]], bool]],
    block: int,
    target: int,
    range_max: int,
    task_max: int,
) -> None:
    files = files_of(tmp_path, block_bytes=block, file_bytes_target=target, waiting_bytes_max=task_max)
    expected: dict[str, list[int]] = defaultdict(list)
    for partition, (added, is_dropped) in enumerate(ranges):
        rows = range_of(tmp_path, partition, block_bytes=block, bytes_max=range_max)
        for n, (time_partition, pad) in enumerate(added):
            offset = partition * 1000 + n
            rows.add(FileKind.DATA, f"dt={time_partition}", offset, row(offset, pad))
            rows.limit_memory()
            if not is_dropped:
                expected[f"dt={time_partition}"].append(offset)
        if is_dropped:
            rows.drop()
        else:
            rows.finish_into(files)
    staged = files.finish()
    found: dict[str, list[int]] = defaultdict(list)
    for file in staged:
        check(tmp_path, file)
        found[file.time_partition].extend(offsets_in(tmp_path, file))
    assert {time_partition: sorted(offsets) for time_partition, offsets in found.items()} == expected
