"""The last offsets of Kafka Connect, from the names of its files."""

from __future__ import annotations

from pathlib import Path

from headrace.loader.offsets.connect_files import names_below, names_in_listing, next_offsets


def test_the_hdfs_sink_names_both_ends() -> None:
    names = [
        "orders+0+0000000000+0000000002.avro",
        "orders+0+0000000003+0000000011.avro",
        "orders+1+0000000000+5.parquet",
    ]
    assert next_offsets(names) == {"orders": {0: 12, 1: 6}}


def test_the_s3_sink_names_the_first_offset_and_its_newest_file_is_read_again() -> None:
    assert next_offsets(["a.b-c_d+2+0000000000.avro", "a.b-c_d+2+0000000100.json.gz"]) == {"a.b-c_d": {2: 100}}


def test_other_file_names_are_ignored() -> None:
    assert next_offsets(["1f2e_tmp.avro", "log", "x+y+3.avro", "+0+1+2.avro", "_SUCCESS", "orders+0+1+2+3.avro"]) == {}


def test_a_directory_and_a_listing_of_it_are_the_same(tmp_path: Path) -> None:
    directory = tmp_path / "topics" / "orders" / "partition=0"
    directory.mkdir(parents=True)
    (directory / "orders+0+0000000000+0000000041.avro").touch()
    (tmp_path / "topics" / "+tmp").mkdir()
    assert next_offsets(names_below(tmp_path)) == {"orders": {0: 42}}
    lines = [
        "drwxr-xr-x   - connect hadoop          0 2026-01-01 00:00 /topics/orders/partition=0",
        "-rw-r--r--   3 connect hadoop  200 2026-01-01 00:00 /orders/partition=0/orders+0+0000000000+0000000041.avro",
        "2026-01-01 00:00:00        200 topics/clicks/partition=0/clicks+0+0000000007.avro",
        "",
    ]
    assert next_offsets(names_in_listing(lines)) == {"orders": {0: 42}, "clicks": {0: 7}}
