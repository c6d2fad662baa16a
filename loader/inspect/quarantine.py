"""Reads quarantined messages from their files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import fastavro

from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.containers import damage_as_value_error
from headrace.loader.inspect.published_files import published_files
from headrace.loader.project.quarantine import SCHEMA
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """A row of a quarantine file: a message that could not be loaded, or the bytes of a corrupt batch. The timestamp is
    in milliseconds."""

    partition: int
    offset: int
    timestamp_ms: int
    code: str
    reason: str
    schema_id: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_rows(file: IO[bytes]) -> Iterator[QuarantinedRow]:
    """Yields the rows of one quarantine file, in file order.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an Avro file of quarantined messages, or it is truncated or damaged.
    """
    with damage_as_value_error():
        for record in fastavro.reader(file, reader_schema=json.loads(SCHEMA)):
            yield _row(record)


@dataclass(frozen=True, slots=True)
class QuarantineFile:
    """A committed file of quarantined messages; `name` is its path in the warehouse."""

    topic: str
    time_partition: str
    name: str
    records: int


def committed_files(log: CommitLog, topics: Iterable[str]) -> list[QuarantineFile]:
    """Returns the quarantine files of loaded topics, in the order of the topics, then of the time partitions. Some may
    not be published yet.

    Raises:
        CommitLogError: the commits cannot be read.
    """
    state = log.read_state()
    index = FileIndex(log)
    return [
        QuarantineFile(name, published.time_partition, published.path, published.file.records)
        for name in topics
        if state.topics[name].quarantine.files
        for published in published_files(index, log, name, FileKind.QUARANTINE, state.commit_number)
    ]


def _row(record: Mapping[str, Any]) -> QuarantinedRow:
    return QuarantinedRow(
        partition=record["partition"],
        offset=record["offset"],
        timestamp_ms=record["timestamp"],
        code=record["code"],
        reason=record["reason"],
        schema_id=record["schema_id"],
        key=record["key"],
        value=record["value"],
        headers=tuple((header["key"], header["value"]) for header in record["headers"]),
    )
