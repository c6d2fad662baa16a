"""A warehouse of real Avro files with their decisions, made without brokers and tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from headrace.avro_codec.encode import encode_long
from headrace.avro_schema import parse_schema
from headrace.kafka_wire.record_batch import NO_HEADERS
from headrace.loader.apply.engine import FollowerEngine
from headrace.loader.apply.files import FilesFollower
from headrace.loader.apply.index import IndexFollower
from headrace.loader.commit.decision import (
    BucketRewrite,
    DecidedFile,
    Decision,
    DecisionKind,
    LoadSchema,
    TopicDecision,
)
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.json_values import canonical
from headrace.loader.load_schema import EMPTY, fold, load_schema_with_kafka
from headrace.loader.project.kafka_column import compile_suffix
from headrace.loader.project.quarantine import SCHEMA, BadMessage, QuarantineCode, encode_row
from headrace.loader.storage.local import local_storage
from headrace.loader.work_unit import FileKind, FileRange, PassedOver, RangeCounts
from headrace.loader.write.container import ContainerFormat
from support.loader.file_checksums import checksum_of
from support.loader.loader_fakes import ORDER_V1
from support.loader.loader_samples import decided_range, load, topic_decision

Row = tuple[int, int]
"""Partition and offset."""

BAD = BadMessage(QuarantineCode.ABSENT_SCHEMA, "there is no schema 7", 7)
TIME_MS = 1_767_225_600_000


def container(rows: Sequence[Row], kafka_column: str = "position") -> bytes:
    """A data file of orders whose ids are their offsets, two rows in a block."""
    form = ContainerFormat(load_schema_with_kafka(ORDER_V1, kafka_column), "deflate", bytes(range(16)))
    bodies = [
        encode_long(offset) + compile_suffix(kafka_column, partition)(offset, TIME_MS, b"key", NO_HEADERS)
        for partition, offset in rows
    ]
    blocks = [form.block(bodies[start : start + 2]) for start in range(0, len(bodies), 2)]
    return form.header({"headrace.work_id": "w"}) + b"".join(blocks)


def quarantine_container(
    rows: Sequence[Row], value_of: Callable[[int], bytes] = lambda offset: b"v", bad: BadMessage = BAD
) -> bytes:
    """A quarantine file of messages with values by their offsets."""
    form = ContainerFormat(SCHEMA, "deflate", bytes(range(16)))
    encoded = [
        encode_row(partition, offset, TIME_MS, b"k", value_of(offset), NO_HEADERS, bad) for partition, offset in rows
    ]
    return form.header({}) + form.block(encoded)


def spans(rows: Iterable[Row]) -> tuple[FileRange, ...]:
    by_partition: dict[int, list[int]] = {}
    for partition, offset in rows:
        by_partition.setdefault(partition, []).append(offset)
    return tuple(FileRange(one, min(found), max(found), len(found)) for one, found in sorted(by_partition.items()))


def folded() -> LoadSchema:
    """Of orders in their first version, which has id 7."""
    state = fold(EMPTY, 1, parse_schema(ORDER_V1), 7)
    text = canonical(state.to_json()).decode()
    return LoadSchema(1, "orders-value", 1, text, state.text, frozenset({7}), "")


class Shelf:
    """`follows` is what brings decided files to their places; without it they stay in staging."""

    def __init__(self, root: Path) -> None:
        self.warehouse = root / "warehouse"
        self.storage = local_storage(self.warehouse)
        self.log = DecisionLog(self.storage.slots)
        self.log.open()
        self.follows = True

    def load(
        self,
        rows: Mapping[str, Sequence[Row]],
        *ranges: tuple[int, int | None, int, int],
        topic: str = "orders",
        quarantined: Mapping[str, Sequence[Row]] | None = None,
        value_of: Callable[[int], bytes] = lambda offset: b"v",
        bad: BadMessage = BAD,
        counts: RangeCounts | None = None,
        passed_over: tuple[PassedOver, ...] = (),
        kafka_column: str = "position",
        topic_id: str = "id-1",
    ) -> Decision:
        """
        Args:
            rows: by bucket.
            ranges: partition, previous, start and end.
            counts: of the first range, where it has more than rows; so is `passed_over`.
        """
        quarantined = quarantined or {}
        files = {
            **{(FileKind.DATA, bucket): (found, container(found, kafka_column)) for bucket, found in rows.items()},
            **{
                (FileKind.QUARANTINE, bucket): (found, quarantine_container(found, value_of, bad))
                for bucket, found in quarantined.items()
            },
        }
        decided = [decided_range(*one) for one in ranges]
        bad = [row for found in quarantined.values() for row in found]
        for number, one in enumerate(decided):
            lost = sum(partition == one.partition for partition, _ in bad)
            found = RangeCounts(records=one.end - one.start - lost, quarantined=lost)
            decided[number] = dataclasses.replace(one, counts=found)
        if decided:
            decided[0] = dataclasses.replace(decided[0], counts=counts or decided[0].counts, passed_over=passed_over)
        known = self.log.read_state().topics.get(topic)
        decision = topic_decision(
            *decided, new=known is None, table=topic, topic_id=topic_id,
            topic_id_before=known.topic_id if known else None,
        )  # fmt: skip
        if known is None:
            decision = dataclasses.replace(decision, load_schema=folded())
        return self._offer(topic, decision, files, DecisionKind.LOAD)

    def rewrite(
        self, bucket: str, rows: Sequence[Row], kind: FileKind = FileKind.DATA, topic: str = "orders"
    ) -> Decision:
        """All files of a bucket become one, or none."""
        state = self.log.read_state()
        live = FileIndex(self.log).live(topic, kind, bucket)
        replaced = BucketRewrite(
            kind,
            bucket,
            tuple(one.name for one in live),
            sum(one.records for one in live),
            sum(one.length for one in live),
        )
        decided = dataclasses.replace(
            topic_decision(table=topic),
            audit=(),
            generation_before=state.topics[topic].generation,
            rewrites=(replaced,),
        )
        content = container(rows) if kind is FileKind.DATA else quarantine_container(rows)
        return self._offer(topic, decided, {(kind, bucket): (rows, content)} if rows else {}, DecisionKind.COMPACT)

    def _offer(
        self,
        topic: str,
        decided: TopicDecision,
        contents: Mapping[tuple[FileKind, str], tuple[Sequence[Row], bytes]],
        kind: DecisionKind,
    ) -> Decision:
        work = f"work-{self.log.read_state().slot + 1}"
        files = []
        for number, ((file_kind, bucket), (rows, content)) in enumerate(contents.items()):
            staged = Path(self.storage.staging.location(work)) / f"{number}"
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(content)
            checksum = checksum_of(content)
            files.append(
                DecidedFile(
                    file_kind, bucket, f"0-{number}.avro", f"{number}", len(content), checksum, len(rows), spans(rows)
                )
            )
        offer = load(work, {topic: dataclasses.replace(decided, files=tuple(files))})
        offered = self.log.offer(dataclasses.replace(offer, kind=kind))
        assert offered.decision is not None, offered.conflict
        if self.follows:
            self.follow()
        return offered.decision

    def engine(self, index: FileIndex | None = None) -> FollowerEngine:
        """The followers that need no table."""
        index = index or FileIndex(self.log)
        followers = (IndexFollower(index), FilesFollower(self.storage.files, index))
        return FollowerEngine(self.log, self.storage.staging, followers)

    def follow(self) -> None:
        assert self.engine().follow().failures == {}
