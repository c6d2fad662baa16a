"""A warehouse with a commit log, a run log, brokers and a registry for `bench.console`. Brokers and registry are values
in memory: their own time is no part of a page's."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro

from headrace.avro_schema import Schema, parse_schema
from headrace.console.broker_reader import TopicTimes
from headrace.console.formats import utc
from headrace.console.pages import messages
from headrace.console.registry_reader import (
    IndexedField,
    IndexedSubject,
    ShownVersion,
    SubjectConfiguration,
    SubjectHistory,
    SubjectIndex,
)
from headrace.console.schema_rows import list_fields
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.commit import Commit, CommitKind, CommittedFile, CommittedRange, LoadSchema, TopicCommit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.offsets import BrokerOffsets, TopicOffsets
from headrace.loader.load_schema import EMPTY, LoadState, fold
from headrace.loader.report import TaskTime
from headrace.loader.run_log import RunLine, TopicOutcome, append_line
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts
from headrace.pipeline.message_sample import MessageSample, SampledMessage, SampleEnd

PARTITIONS_OF_TOPIC = 34
"""300 topics have 10,200 partitions."""
SUBJECTS = 5_000
FIELDS = 30
WIDE_SUBJECT, WIDE_FIELDS = "wide-value", 1_000
DAY_MS = 86_400_000
DAYS_OF_FILES, FILES_OF_DAY = 31, 144
SCHEMA_CHANGE_DAYS = (10, 20)
LOADS_OF_DAY, TASKS = 144, 8


def record_text(version: int, fields: int = FIELDS) -> str:
    """Returns a schema: each version adds a field and widens one."""
    members = [
        {
            "name": f"field_{number}",
            "type": "long" if number < version else "int",
            "doc": f"the value of the field {number} in messages of this kind",
            **({"default": 0} if number >= fields else {}),
        }
        for number in range(fields + version - 1)
    ]
    return json.dumps({"type": "record", "name": "Event", "doc": "an event", "fields": members})


def fill_commits(directory: Path, topics: int, now_ms: int) -> None:
    """Commits one load of all topics, and for topic-000 a commit for each of 31 days; two of them change its schema."""
    log = CommitLog(LocalCommitStorage(directory / "warehouse" / "_headrace"))
    log.open()
    names = [f"topic-{number:03}" for number in range(topics)]
    state = fold(EMPTY, 1, parse_schema(record_text(1)), 1)
    first_ms = now_ms - DAYS_OF_FILES * DAY_MS
    _commit(log, {name: _topic_commit(name, _schema(name, 1, state), first_ms) for name in names}, first_ms)
    revision = 1
    for day in range(1, DAYS_OF_FILES + 1):
        schema = None
        if day in SCHEMA_CHANGE_DAYS:
            revision += 1
            state = fold(state, revision, parse_schema(record_text(revision)), revision)
            schema = _schema(names[0], revision, state)
        known = revision - 1 if schema else revision
        at_ms = first_ms + day * DAY_MS
        _commit(log, {names[0]: _topic_commit(names[0], schema, at_ms, known, FILES_OF_DAY)}, at_ms)
    FileIndex(log).update_files(names[0])


def _commit(log: CommitLog, topics: Mapping[str, TopicCommit], at_ms: int) -> None:
    none = frozenset[str]()
    commit = Commit(0, CommitKind.LOAD, f"run-{at_ms}", at_ms, "bench", topics, none, none)
    assert log.try_commit(commit).commit is not None


def _schema(topic: str, revision: int, state: LoadState) -> LoadSchema:
    text = json.dumps(state.to_json(), sort_keys=True, separators=(",", ":"))
    ids = frozenset(range(1, revision + 1))
    return LoadSchema(revision, f"{topic}-value", revision, text, state.text, ids, "")


def _topic_commit(
    topic: str, schema: LoadSchema | None, day_ms: int, known_revision: int = 0, files: int = 1
) -> TopicCommit:
    """Returns the load of a topic. The first one has messages of all its partitions.

    Args:
        schema: the load schema if it changes.
        known_revision: the revision of the topic's load schema before, 0 for its first load.
        files: the number of files of the day.
    """
    is_first = known_revision == 0
    ranges = [
        CommittedRange(partition, None, 0, 1_000, 0, RangeCounts(records=1_000), (), 10**5)
        for partition in range(PARTITIONS_OF_TOPIC if is_first else 0)
    ]
    return TopicCommit(
        topic_id="id",
        topic_id_before=None if is_first else "id",
        revision_before=known_revision,
        table=topic.replace("-", "_"),
        directory=topic,
        partition_by="hour",
        load_schema=schema,
        ranges=tuple(ranges),
        files=tuple(_file(day_ms, f"{day_ms}-{number}.avro", number % 24) for number in range(files)),
        audit=(),
        time_sources={},
        foreign_ids=frozenset(),
        kafka_column="position",
    )


def _file(day_ms: int, name: str, hour: int) -> CommittedFile:
    time_partition = f"{utc(day_ms, 'dt=%Y-%m-%d')}/hr={hour:02}"
    ranges = (FileRange(0, 0, 9_999, 10_000),)
    return CommittedFile(FileKind.DATA, time_partition, name, "staged", 10**6, "00" * 32, 10_000, ranges)


def fill_runs(directory: Path, now_ms: int) -> None:
    """Writes the run log of a day."""
    for number in range(LOADS_OF_DAY):
        started_ms = now_ms - (LOADS_OF_DAY - number) * 600_000
        tasks = tuple(TaskTime(task, started_ms + 5_000, 20_000 + 500 * task, 10**6, 10_000) for task in range(TASKS))
        topics = tuple(TopicOutcome(f"topic-{topic:03}", "loaded", 1_000, 0, 10**5, "") for topic in range(50))
        line = RunLine(started_ms, 41_000, "committed", 0, number + 1, f"run-{number}", 300, 10**5, tasks=TASKS)
        append_line(
            directory / "logs" / "runs.jsonl", dataclasses.replace(line, task_times=tasks, topic_outcomes=topics)
        )


def broker_offsets(topics: int) -> Mapping[TopicPartition, BrokerOffsets]:
    """Returns the offsets of 34 partitions of each topic, with a lag in each tenth."""
    return {
        TopicPartition(f"topic-{topic:03}", partition): BrokerOffsets(
            1, 0, 1_000 + (500 if partition % 10 == 0 else 0), 1_500
        )
        for topic in range(topics)
        for partition in range(PARTITIONS_OF_TOPIC)
    }


def install_brokers(reader: Any, topics: int, now_ms: int) -> None:
    """Replaces the requests of a `BrokerReader` by 34 partitions of each topic, and messages of 30 fields."""
    offsets = broker_offsets(topics)
    partitions = tuple(range(PARTITIONS_OF_TOPIC))
    times = TopicTimes(partitions, dict.fromkeys(partitions, 500), {}, 50_000)
    samples = {count: _sample(count, now_ms) for count in (50, 500)}
    setattr(messages, "read_sample", lambda cluster, where, start, limits: samples[limits.messages])  # noqa: B010

    def of_topic(topic: str, next_offsets: object) -> TopicOffsets:
        return TopicOffsets({one: found for one, found in offsets.items() if one.topic == topic}, 7 * DAY_MS)

    replaced: dict[str, Callable[..., Any]] = {
        "all_partitions": lambda: offsets,
        "topic": of_topic,
        "times": lambda topic, time_ms: times,
        "between": lambda topic, since_ms, until_ms: times,
        "use": lambda read: read(None),
    }
    for name, function in replaced.items():
        setattr(reader, name, function)


def _sample(count: int, now_ms: int) -> MessageSample:
    """Returns messages that are not decoded yet."""
    schema = fastavro.parse_schema(json.loads(record_text(1)))
    sampled = []
    for offset in range(1_000, 1_000 + count):
        value = io.BytesIO(b"\0" + (1).to_bytes(4, "big"))
        value.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(value, schema, {f"field_{number}": offset * number for number in range(FIELDS)})
        sampled.append(SampledMessage(offset, now_ms, f"key-{offset}".encode(), value.getvalue(), ()))
    return MessageSample(0, 1_000 + count, 1_000, 1_000 + count, SampleEnd.LOG_END, tuple(sampled))


class _SchemaClient:
    """The requests of a registry's client that decode messages."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def schema_by_id(self, schema_id: int) -> Any:
        return SimpleNamespace(id=schema_id, metadata={})

    def version(self, subject: str, version: str) -> Any:
        return SimpleNamespace(metadata={})

    def parsed(self, registered: object) -> Schema:
        return self._schema


def install_registry(reader: Any, now_ms: int) -> None:
    """Replaces the requests of a `RegistryReader` by 5,000 subjects of 30 fields, and one of 1,000 fields."""
    schema = parse_schema(record_text(1))
    fields = tuple(IndexedField(path, field.doc or "") for path, field in list_fields(schema))
    text = "\n".join(f"{one.path}\n{one.doc}" for one in fields).lower()
    names = [f"topic-{number:04}-value" for number in range(SUBJECTS - 1)] + [WIDE_SUBJECT]
    subjects = {name: IndexedSubject(1, number, now_ms, fields, text) for number, name in enumerate(names, 1)}
    histories = {name: _history(name, WIDE_FIELDS if name == WIDE_SUBJECT else FIELDS) for name in names[-2:]}
    replaced: dict[str, Callable[..., Any]] = {
        "subjects": lambda: names,
        "index": lambda: SubjectIndex(subjects, is_complete=True),
        "history": lambda subject: histories.get(subject, histories[names[-2]]),
        "configuration": lambda subject: SubjectConfiguration("BACKWARD", "READWRITE"),
        "usages": lambda schema_id: [],
        "referenced": lambda subject, references: [],
        "client": lambda: _SchemaClient(schema),
    }
    for name, function in replaced.items():
        setattr(reader, name, function)


def _history(subject: str, fields: int) -> SubjectHistory:
    texts = [record_text(version, fields) for version in (1, 2, 3)]
    parsed: list[Schema] = [parse_schema(text) for text in texts]
    versions = tuple(
        ShownVersion(number, number, text, "AVRO", (), 0, schema, "")
        for number, (text, schema) in enumerate(zip(texts, parsed, strict=True), 1)
    )
    return SubjectHistory(subject, versions)
