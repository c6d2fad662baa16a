"""A warehouse of real Avro files with their commits, which is created without brokers and tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from headrace.avro_codec.encode import encode_long
from headrace.avro_schema import parse_schema
from headrace.kafka_wire.record_batch import NO_HEADERS
from headrace.loader.apply.chain import IndexApplier
from headrace.loader.apply.engine import ApplierEngine
from headrace.loader.apply.files import FilesApplier
from headrace.loader.commit.commit import (
    Commit,
    CommitKind,
    CommittedFile,
    LoadSchema,
    TimePartitionRewrite,
    TopicCommit,
)
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.json_values import canonical
from headrace.loader.load_schema import EMPTY, fold, load_schema_with_kafka
from headrace.loader.project.kafka_column import compile_suffix
from headrace.loader.project.quarantine import SCHEMA, BadMessage, QuarantineCode, encode_row
from headrace.loader.storage.local import local_storage
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts, SkippedOffsets
from headrace.loader.write.container import ContainerFormat
from support.loader.file_checksums import checksum_of
from support.loader.loader_fakes import ORDER_V1
from support.loader.loader_samples import committed_range, load, topic_commit

Row = tuple[int, int]
"""Partition and offset."""

BAD = BadMessage(QuarantineCode.SCHEMA_NOT_FOUND, "there is no schema 7", 7)
TIME_MS = 1_767_225_600_000


def container(rows: Sequence[Row], kafka_column: str = "position") -> bytes:
    """Returns a data file with orders in the rows, two rows per block. The id of an order is its offset."""
    form = ContainerFormat(load_schema_with_kafka(ORDER_V1, kafka_column), "deflate", bytes(range(16)))
    bodies = [
        encode_long(offset) + compile_suffix(kafka_column, partition)(offset, TIME_MS, b"key", NO_HEADERS)
        for partition, offset in rows
    ]
    blocks = [form.block(bodies[start : start + 2]) for start in range(0, len(bodies), 2)]
    return form.header({"headrace.run_id": "w"}) + b"".join(blocks)


def quarantine_container(
    rows: Sequence[Row], value_at: Callable[[int], bytes] = lambda offset: b"v", bad: BadMessage = BAD
) -> bytes:
    """Returns a quarantine file with messages at these offsets.

    Args:
        value_at: returns the value of the message at an offset.
        bad: the reason why the messages are in quarantine.
    """
    form = ContainerFormat(SCHEMA, "deflate", bytes(range(16)))
    encoded = [
        encode_row(partition, offset, TIME_MS, b"k", value_at(offset), NO_HEADERS, bad) for partition, offset in rows
    ]
    return form.header({}) + form.block(encoded)


def spans(rows: Iterable[Row]) -> tuple[FileRange, ...]:
    by_partition: dict[int, list[int]] = {}
    for partition, offset in rows:
        by_partition.setdefault(partition, []).append(offset)
    return tuple(FileRange(one, min(found), max(found), len(found)) for one, found in sorted(by_partition.items()))


def folded() -> LoadSchema:
    """Returns the load schema after the first version of the subject of orders, whose schema id is 7."""
    state = fold(EMPTY, 1, parse_schema(ORDER_V1), 7)
    text = canonical(state.to_json()).decode()
    return LoadSchema(1, "orders-value", 1, text, state.text, frozenset({7}), "")


class Shelf:
    """A warehouse to which tests add commits of loads and rewrites. If `applies_commits`, each commit is also applied,
    so that its files are published; otherwise they stay in staging."""

    def __init__(self, root: Path) -> None:
        self.warehouse = root / "warehouse"
        self.storage = local_storage(self.warehouse)
        self.log = CommitLog(self.storage.commits)
        self.log.open()
        self.applies_commits = True

    def load(
        self,
        rows: Mapping[str, Sequence[Row]],
        *ranges: tuple[int, int | None, int, int],
        topic: str = "orders",
        quarantined: Mapping[str, Sequence[Row]] | None = None,
        value_at: Callable[[int], bytes] = lambda offset: b"v",
        bad: BadMessage = BAD,
        counts: RangeCounts | None = None,
        skipped: tuple[SkippedOffsets, ...] = (),
        kafka_column: str = "position",
        topic_id: str = "id-1",
        time_sources: Mapping[str, int] | None = None,
    ) -> Commit:
        """Commits a load of one topic and returns the commit.

        Args:
            rows: the rows of the data files, by time partition.
            ranges: for each offset range its partition, the next offset before the load, its start and its end.
            quarantined: the messages of the quarantine files, by time partition.
            value_at: returns the value of the quarantined message at an offset.
            counts: the counts of the first range, by default those of its rows and quarantined messages.
            skipped: offsets of the first range that were skipped.
            time_sources: the rows by the source of their time, by default all by the record timestamp.
        """
        quarantined = quarantined or {}
        files = {
            **{
                (FileKind.DATA, time_partition): (found, container(found, kafka_column))
                for time_partition, found in rows.items()
            },
            **{
                (FileKind.QUARANTINE, time_partition): (found, quarantine_container(found, value_at, bad))
                for time_partition, found in quarantined.items()
            },
        }
        committed = [committed_range(*one) for one in ranges]
        bad = [row for found in quarantined.values() for row in found]
        for number, one in enumerate(committed):
            lost = sum(partition == one.partition for partition, _ in bad)
            found = RangeCounts(records=one.end - one.start - lost, quarantined=lost)
            committed[number] = dataclasses.replace(one, counts=found)
        if committed:
            committed[0] = dataclasses.replace(committed[0], counts=counts or committed[0].counts, skipped=skipped)
        known = self.log.read_state().topics.get(topic)
        commit = topic_commit(
            *committed, new=known is None, table=topic, topic_id=topic_id,
            topic_id_before=known.topic_id if known else None,
        )  # fmt: skip
        if known is None:
            commit = dataclasses.replace(commit, load_schema=folded())
        if time_sources is not None:
            commit = dataclasses.replace(commit, time_sources=time_sources)
        return self._try_commit(topic, commit, files, CommitKind.LOAD)

    def replay(self, time_partition: str, rows: Sequence[Row], topic: str = "orders") -> Commit:
        """Adds a file with the rows of replayed messages."""
        self.log.read_state()
        committed = dataclasses.replace(topic_commit(table=topic), audit=())
        content = {(FileKind.DATA, time_partition): (rows, container(rows))}
        return self._try_commit(topic, committed, content, CommitKind.REPLAY)

    def rewrite(
        self,
        time_partition: str,
        rows: Sequence[Row],
        kind: FileKind = FileKind.DATA,
        topic: str = "orders",
        commit_kind: CommitKind = CommitKind.COMPACT,
    ) -> Commit:
        """Replaces all files of a time partition by one file, or by none if there are no rows."""
        state = self.log.read_state()
        live = FileIndex(self.log).live(topic, kind, time_partition)
        replaced = TimePartitionRewrite(
            kind,
            time_partition,
            tuple(one.name for one in live),
            sum(one.records for one in live),
            sum(one.length for one in live),
        )
        committed = dataclasses.replace(
            topic_commit(table=topic),
            audit=(),
            generation_before=state.topics[topic].generation,
            rewrites=(replaced,),
        )
        content = container(rows) if kind is FileKind.DATA else quarantine_container(rows)
        return self._try_commit(
            topic, committed, {(kind, time_partition): (rows, content)} if rows else {}, commit_kind
        )

    def _try_commit(
        self,
        topic: str,
        committed: TopicCommit,
        contents: Mapping[tuple[FileKind, str], tuple[Sequence[Row], bytes]],
        kind: CommitKind,
    ) -> Commit:
        work = f"work-{self.log.read_state().commit_number + 1}"
        files = []
        for number, ((file_kind, time_partition), (rows, content)) in enumerate(contents.items()):
            staged = Path(self.storage.staging.location(work)) / f"{number}"
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(content)
            checksum = checksum_of(content)
            files.append(
                CommittedFile(
                    file_kind,
                    time_partition,
                    f"0-{number}.avro",
                    f"{number}",
                    len(content),
                    checksum,
                    len(rows),
                    spans(rows),
                )
            )
        proposal = load(work, {topic: dataclasses.replace(committed, files=tuple(files))})
        commit_result = self.log.try_commit(dataclasses.replace(proposal, kind=kind))
        assert commit_result.commit is not None, commit_result.conflict
        if self.applies_commits:
            self.apply_pending()
        return commit_result.commit

    def engine(self, index: FileIndex | None = None) -> ApplierEngine:
        """Returns the engine with the appliers that need no Hive table."""
        index = index or FileIndex(self.log)
        appliers = (IndexApplier(index), FilesApplier(self.storage.files, index))
        return ApplierEngine(self.log, self.storage.staging, appliers)

    def apply_pending(self) -> None:
        assert self.engine().apply_pending().failures == {}
