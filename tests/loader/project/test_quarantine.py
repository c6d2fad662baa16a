"""Quarantined messages are read back completely."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.avro_codec.encode import encode_bytes
from headrace.cli import main
from headrace.kafka_wire.record_batch import NO_HEADERS
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.inspect.quarantine import QuarantinedRow, committed_files, read_rows
from headrace.loader.project.quarantine import SCHEMA, BadMessage, QuarantineCode, encode_row
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.work_unit import FileKind
from headrace.loader.write.container import ContainerFormat
from support.golden import golden
from support.loader.loader_samples import committed_file, committed_range, load, topic_commit

FORMAT = ContainerFormat(SCHEMA, "deflate", bytes(range(16)))


def test_quarantine_rows_survive_a_file(tmp_path: Path) -> None:
    headers = b"\x04" + encode_bytes(b"trace") + encode_bytes(b"\xff\x00") + encode_bytes(b"empty") + b"\x01"
    bad = BadMessage(QuarantineCode.MALFORMED, "a boolean is the byte 2", 7)
    unframed = BadMessage(QuarantineCode.FRAMING, "no magic byte")
    rows = [
        encode_row(3, 1 << 40, -1, b"key", b"\x00\x00value", headers, bad),
        encode_row(3, 5, 1 << 62, None, b"", NO_HEADERS, unframed),
    ]
    path = tmp_path / "q.avro"
    path.write_bytes(FORMAT.header({}) + FORMAT.block(rows))
    first, second = rows_of(path)
    assert (first.partition, first.offset, first.timestamp_ms) == (3, 1 << 40, -1)
    assert (first.code, first.reason, first.schema_id) == ("malformed", "a boolean is the byte 2", 7)
    assert (first.key, first.value) == (b"key", b"\x00\x00value")
    assert first.headers == (("trace", b"\xff\x00"), ("empty", None))
    assert (second.timestamp_ms, second.key, second.value, second.schema_id, second.headers) == (
        1 << 62,
        None,
        b"",
        None,
        (),
    )


def test_unreadable_headers_are_stored_raw(tmp_path: Path) -> None:
    row = encode_row(0, 1, 2, None, b"v", b"\x08broken", BadMessage(QuarantineCode.FRAMING, "r"))
    path = tmp_path / "q.avro"
    path.write_bytes(FORMAT.header({}) + FORMAT.block([row]))
    assert rows_of(path)[0].headers == (("headrace.unreadable_headers", b"\x08broken"),)


def test_a_file_that_is_no_quarantine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.avro"
    path.write_bytes(b"not avro at all")
    with pytest.raises(ValueError, match="avro"):
        rows_of(path)


def rows_of(path: Path) -> list[QuarantinedRow]:
    with path.open("rb") as file:
        return list(read_rows(file))


def quarantine_of(directory: Path, topic: str = "orders", *, publish: bool = True) -> Path:
    """A warehouse whose log has one committed quarantine file with two messages; returns the path of the file."""
    warehouse = directory / "warehouse"
    log = CommitLog(LocalCommitStorage(warehouse / "_headrace"))
    log.open()
    file = committed_file("q.avro", 0, 0, 2)
    file = replace(file, kind=FileKind.QUARANTINE, time_partition="dt=2013-01-01/hr=05")
    assert log.try_commit(
        load("w", {topic: topic_commit(committed_range(0, None, 0, 2), files=[file], new=True)})
    ).commit
    (found,) = committed_files(log, [topic])
    path = warehouse / found.name
    if publish:
        bad = BadMessage(QuarantineCode.MALFORMED, "a boolean is the byte 2", 7)
        rows = [encode_row(0, n, 1_357_018_200_000, None, b"v", NO_HEADERS, bad) for n in (1, 0)]
        path.parent.mkdir(parents=True)
        path.write_bytes(FORMAT.header({}) + FORMAT.block(rows))
    return path


def listed(directory: Path, *arguments: str) -> int:
    return main(["quarantine", "list", *arguments, "--data-dir", str(directory)])


def test_quarantine_command_lists_messages_with_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quarantine_of(tmp_path)
    assert listed(tmp_path) == 0
    printed = capsys.readouterr().out
    assert printed == golden("loader/quarantine.txt", printed)


def test_quarantine_command_as_json_with_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quarantine_of(tmp_path)
    assert listed(tmp_path, "orders", "--limit", "1", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == 2
    (message,) = found["messages"]
    assert message.pop("reason") and message.pop("producer_hint").startswith("text: ")
    assert message == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 1_357_018_200_000,
        "code": "malformed",
        "schema_id": 7,
        "value_begins": "dg==",
        "value_bytes": 1,
    }


def test_quarantine_command_before_files_are_published_and_before_any_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(tmp_path) == 0
    assert re.fullmatch(r"0 .*\n", capsys.readouterr().out)
    quarantine_of(tmp_path, publish=False)
    assert listed(tmp_path) == 0
    assert re.fullmatch(r"2 .*\n2 more messages in files .*\n", capsys.readouterr().out)


def test_quarantine_command_with_an_unknown_topic_and_a_damaged_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = quarantine_of(tmp_path)
    assert listed(tmp_path, "nothing") == 2
    assert re.fullmatch(r"headrace: .*\bnothing\b.*\borders\n", capsys.readouterr().err)
    path.write_bytes(b"damaged")
    assert listed(tmp_path) == 2
    assert str(path) in capsys.readouterr().err
