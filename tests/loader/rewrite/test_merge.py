"""Merged files have the rows of their sources byte for byte and in order; damaged sources are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.loader.build import current_build
from headrace.loader.rewrite.merge import MergeResult, MergeSource, MergeUnit, run_merge_unit
from headrace.loader.work_unit import FileKind, FileRange
from headrace.loader.write.container import SYNC_BYTES, ContainerFormat
from support.examples import examples
from support.loader.file_checksums import checksum_of

TIME_PARTITION = "dt=2026-01-01/hr=00"


def schema_text(name: str = "R") -> str:
    fields = [{"name": "offset", "type": "long"}, {"name": "pad", "type": "bytes"}]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def row(offset: int) -> bytes:
    return encode_long(offset) + encode_bytes(bytes(offset % 50))


class Bench:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources: list[MergeSource] = []

    def add(
        self, blocks: list[list[int]], *, schema: str = schema_text(), codec: str = "snappy", partition: int = 0
    ) -> Path:
        number = len(self.sources)
        container = ContainerFormat(schema, codec, bytes([number]) * SYNC_BYTES)
        content = container.header({}) + b"".join(container.block([row(n) for n in rows]) for rows in blocks if rows)
        name = f"orders/{TIME_PARTITION}/{number}.avro"
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        offsets = [n for rows in blocks for n in rows]
        pieces = (FileRange(partition, min(offsets), max(offsets), len(offsets)),) if offsets else ()
        checksum = checksum_of(content)
        self.sources.append(MergeSource(name, len(content), checksum, len(offsets), pieces))
        return path

    def merge(self, **changes: object) -> MergeResult:
        unit = MergeUnit(
            run_id="work",
            task=3,
            kind=FileKind.DATA,
            topic="orders",
            time_partition=TIME_PARTITION,
            sources=tuple(self.sources),
            warehouse=str(self.root),
            staging=str(self.root / "staging"),
            codec="deflate",
            block_bytes=2_000,
            build=current_build(),
        )
        return run_merge_unit(dataclasses.replace(unit, **changes))  # type: ignore[arg-type]

    def rows(self, path: str) -> list[int]:
        with (self.root / "staging" / path).open("rb") as file:
            return [record["offset"] for record in fastavro.reader(file)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_merged_files_preserve_row_order_and_list_their_offsets(bench: Bench) -> None:
    bench.add([[1, 2], [3]])
    bench.add([[7], [8, 9]], codec="null", partition=1)
    bench.add([[4, 5]], codec="deflate")
    result = bench.merge()
    assert result.error == ""
    (file,) = result.files
    assert bench.rows(file.path) == [1, 2, 3, 7, 8, 9, 4, 5]
    assert file.ranges == (FileRange(0, 1, 5, 5), FileRange(1, 7, 9, 3))
    content = (bench.root / "staging" / file.path).read_bytes()
    assert (file.length, file.checksum) == (len(content), checksum_of(content))
    with (bench.root / "staging" / file.path).open("rb") as opened:
        reader = fastavro.block_reader(opened)
        assert reader.metadata["avro.schema"] == schema_text()
        assert (reader.codec, reader.metadata["headrace.run_id"]) == ("deflate", "work")
        assert len(list(reader)) == 1, "small blocks become one"


def test_files_of_two_schemas_are_not_merged(bench: Bench) -> None:
    bench.add([[1]])
    bench.add([[2]], schema=schema_text("Other"))
    bench.add([[3]])
    result = bench.merge()
    (file,) = result.files
    assert (bench.rows(file.path), result.merged) == ([1, 3], {0, 2}), "a single file of a schema is not rewritten"


@pytest.mark.parametrize("at", [0, 40, -20, -1])
def test_a_source_with_a_flipped_bit_is_not_merged(bench: Bench, at: int) -> None:
    bench.add([[1, 2, 3]])
    damaged = bench.add([[4, 5, 6]])
    content = bytearray(damaged.read_bytes())
    content[at] ^= 4
    damaged.write_bytes(content)
    result = bench.merge()
    assert result.files == ()
    assert result.error == (f"{damaged} is damaged: its checksum is not the committed one; restore it from a backup")


def test_error_of_a_missing_source_has_its_path(bench: Bench) -> None:
    path = bench.add([[1]])
    path.unlink()
    assert bench.merge() == MergeResult(3, (), error=f"No such file or directory: {path}")


def test_a_source_with_another_row_count_than_committed_is_refused(bench: Bench) -> None:
    path = bench.add([[1, 2]])
    bench.add([[3]])
    bench.sources[0] = dataclasses.replace(bench.sources[0], records=3)
    assert bench.merge().error == f"{path} has 2 rows instead of 3; restore it from a backup"


def test_a_source_that_is_no_avro_file_is_refused(bench: Bench) -> None:
    path = bench.add([[1]])
    path.write_bytes(b"hello")
    bench.sources = [dataclasses.replace(bench.sources[0], checksum=checksum_of(b"hello"))]
    assert bench.merge().error.startswith(f"{path} is no Avro file: ")


def test_a_task_of_another_build_merges_nothing(bench: Bench) -> None:
    bench.add([[1]])
    assert bench.merge(build="other").error.startswith(f"task 3 runs {current_build()}, but the driver runs other; ")


def test_error_of_unwritable_staging_has_its_path(bench: Bench) -> None:
    bench.add([[1]])
    (bench.root / "file").write_text("in the way")
    assert bench.merge(staging=str(bench.root / "file")).error == f"cannot write to {bench.root}/file: Not a directory"


@settings(max_examples=examples(0.5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sources=st.lists(st.lists(st.lists(st.integers(0, 10**6), max_size=30), max_size=5), min_size=2, max_size=6),
    block_bytes=st.integers(1, 3_000),
)
def test_merge_preserves_every_row(tmp_path: Path, sources: list[list[list[int]]], block_bytes: int) -> None:
    bench = Bench(tmp_path)
    for blocks in sources:
        bench.add(blocks)
    (file,) = bench.merge(block_bytes=block_bytes).files
    assert bench.rows(file.path) == [n for blocks in sources for rows in blocks for n in rows]
