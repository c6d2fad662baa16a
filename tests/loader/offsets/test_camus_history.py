"""The last offsets of Camus, from files that Hadoop wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.offsets.camus_history import CamusHistoryError, next_offsets
from support.schemas.avro_java import java_results

MANY = [["clicks", partition, 10**12 + partition] for partition in range(500)]  # more than fit between sync markers


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs; the last one was started and has no files of offsets."""
    root = tmp_path_factory.mktemp("history")
    files: list[tuple[str, str, Sequence[Any]]] = [
        ("2014-05-31-23-50-00/offsets-m-00000", "NONE", [["orders", 0, 900], ["old", 0, 7]]),
        ("2014-06-01-00-00-00/offsets-previous", "NONE", [["orders", 0, 90], ["orders", 1, 80], ["größe", 3, 2**40]]),
        ("2014-06-01-00-00-00/offsets-m-00000", "RECORD", [["orders", 0, 120], *MANY]),
        ("2014-06-01-00-00-00/offsets-m-00001", "NONE", []),
        ("blocks/offsets-m-00000", "BLOCK", MANY),
    ]
    requests = [{"path": str(root / path), "compression": how, "keys": keys} for path, how, keys in files]
    java_results("CamusHistory", requests, root)
    (root / "2014-06-01-00-10-00").mkdir()
    (root / "blocks").rename(root.parent / f"{root.name}-blocks")
    return root


def test_next_offsets_are_those_of_the_newest_run(history: Path) -> None:
    assert (history / "2014-06-01-00-00-00" / ".offsets-m-00000.crc").exists(), "ignored, as by Camus"
    found = next_offsets(history)
    assert found == {
        "orders": {0: 120, 1: 80},
        "größe": {3: 2**40},
        "clicks": {partition: offset for _, partition, offset in MANY},
    }
    assert next_offsets(history / "2014-06-01-00-00-00") == found
    assert next_offsets(history / "2014-05-31-23-50-00") == {"orders": {0: 900}, "old": {0: 7}}


def test_a_directory_that_is_not_of_camus_is_an_error(history: Path, tmp_path: Path) -> None:
    with pytest.raises(CamusHistoryError, match=r"offsets\*"):
        next_offsets(tmp_path)
    with pytest.raises(CamusHistoryError, match=f"{history.name}-blocks"):
        next_offsets(history.parent / f"{history.name}-blocks")
    with pytest.raises(NotADirectoryError):
        next_offsets(history / "2014-05-31-23-50-00" / "offsets-m-00000")


def test_error_of_a_damaged_file_is_one_sentence(history: Path, tmp_path: Path) -> None:
    """Sequence files have no checksum, so a changed offset in the file cannot be detected."""
    content = (history / "2014-05-31-23-50-00" / "offsets-m-00000").read_bytes()
    path = tmp_path / "offsets-m-00000"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        try:
            found = next_offsets(tmp_path)
        except CamusHistoryError as error:
            assert str(path) in str(error)
        else:
            assert found in ({}, {"orders": {0: 900}}), "truncated at the end of a record"
    for at in range(len(content)):
        for bit in (0x01, 0x80):
            path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            try:
                next_offsets(tmp_path)
            except CamusHistoryError as error:
                assert str(path) in str(error)
