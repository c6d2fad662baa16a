"""Converts quarantined messages to rows, once the cause of their quarantine is resolved. The commit adds files with the
rows, and replaces the quarantine files by new ones with the remaining messages.

Exactly once: the same commit removes the old files, and of two concurrent rewrites of a topic only one is committed. A
first pass finds the messages that can be loaded, and a dry run ends there; only files with such messages are rewritten.
The audit is unchanged, because the messages were counted by the load that quarantined them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.loader.commit.commit import CommitKind, CommittedFile, TopicCommit
from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.load_schema import load_schema_with_kafka
from headrace.loader.plan.schemas import TopicSchemas, WriterSchemas
from headrace.loader.policy import TopicPolicy
from headrace.loader.project.quarantine import QuarantineCode
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.rewrite.choose import rewrite, topic_commit
from headrace.loader.rewrite.driver_files import FileShape, NewRows, staged_files_of
from headrace.loader.rewrite.replayed_rows import (
    QuarantineSource,
    ReplayCounts,
    Replayer,
    SourceUnusable,
    quarantine_sources,
    quarantined_rows,
    schema_id_of,
)
from headrace.loader.rewrite.run import RewritePorts, add_commit, catch_up
from headrace.loader.work_unit import FileKind, TopicPlan
from headrace.loader.write.task_files import TaskFiles

logger = logging.getLogger(__name__)

REPLAYABLE = frozenset(
    {
        QuarantineCode.SCHEMA_NOT_FOUND,
        QuarantineCode.UNREADABLE_SCHEMA,
        QuarantineCode.MALFORMED,
        QuarantineCode.UNREADABLE,
        QuarantineCode.UNCONVERTIBLE,
    }
)
"""Quarantine codes of messages that have a schema id. Messages with other codes are not retried: if one could be
decoded, that would be an accident."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Settings of a replay. `policy` has the topic's settings; sizes are in bytes."""

    policy: TopicPolicy
    block_bytes: int
    file_bytes_target: int


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The loaded messages (in a dry run: the messages that would be loaded) and the remaining messages, counted by
    quarantine code. `commit_number` is the commit, 0 for none; `problems` are sentences; `notes` need no action."""

    loaded: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    commit_number: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def replay(
    ports: RewritePorts,
    schemas: WriterSchemas,
    topic: str,
    settings: ReplaySettings,
    codes: Collection[QuarantineCode] = REPLAYABLE,
    reason: str = "",
    *,
    is_dry: bool,
) -> ReplayReport:
    """Converts the quarantined messages of a topic to rows, as far as this is possible now, and commits that. Returns a
    report with the numbers of loaded and of remaining messages.

    Args:
        schemas: provides the topic's writer schemas, from the registry and the cache.
        topic: a topic with a commit.
        codes: the quarantine codes of the messages to retry.
        reason: stored in the commit.
        is_dry: only count the messages.

    Raises:
        OSError: files cannot be read or written.
    """
    state, notes = catch_up(ports, is_dry)
    report = _replay(ports, state, schemas, topic, settings, codes, reason, is_dry=is_dry)
    return dataclasses.replace(report, notes=(*notes, *report.notes))


def _replay(
    ports: RewritePorts,
    state: LoaderState,
    schemas: WriterSchemas,
    topic: str,
    settings: ReplaySettings,
    codes: Collection[QuarantineCode],
    reason: str,
    *,
    is_dry: bool,
) -> ReplayReport:
    topic_state = state.topics[topic]
    policy = settings.policy.with_table(topic_state.partition_by, topic_state.kafka_column)
    try:
        sources = list(quarantine_sources(ports, state, topic))
        new_ids = _schema_ids(ports, sources, codes) - topic_state.load_schema.writer_ids - topic_state.foreign_ids
        foreign_ids = schemas.look_up(sorted(new_ids)).registered
        topic_schemas = schemas.of_topic(
            topic, dataclasses.replace(topic_state, foreign_ids=topic_state.foreign_ids | foreign_ids)
        )
        if not isinstance(topic_schemas, TopicSchemas):
            return ReplayReport(problems=(topic_schemas.reason,))
        if problem := schema_problem(schemas, topic, topic_schemas):
            return ReplayReport(problems=(problem,))
        projection = _projection(topic, topic_schemas, policy)
        replayer = Replayer(topic, ports.files, projection, policy, codes, ports.now_ms())
        previews = [replayer.preview(source) for source in sources]
        report = ReplayReport(_summed(one.loaded for one in previews), _summed(one.left for one in previews))
        chosen = [one for one in previews if one.loaded]
        if is_dry or not chosen:
            return report
        run_id = ports.new_run_id()
        new_files = _write(ports, replayer, topic_state, settings, run_id, chosen)
    except SourceUnusable as error:
        return ReplayReport(problems=(str(error),))
    committed = dataclasses.replace(
        _commit(topic_state, chosen, new_files), foreign_ids=foreign_ids, kafka_column=policy.kafka_column
    )
    rewrite_report = add_commit(ports, state, CommitKind.REPLAY, run_id, {topic: committed}, reason)
    problems = rewrite_report.problems.get(topic, ())
    if not rewrite_report.commit_number:
        return ReplayReport(left=_summed((Counter(report.loaded), Counter(report.left))), problems=problems)
    return dataclasses.replace(
        report, commit_number=rewrite_report.commit_number, problems=problems, notes=rewrite_report.notes
    )


def _schema_ids(
    ports: RewritePorts, sources: Iterable[QuarantineSource], codes: Collection[QuarantineCode]
) -> set[int]:
    """Returns the schema ids of those messages in the quarantine files `sources` that have one of these quarantine
    codes."""
    rows = (row for source in sources for row in quarantined_rows(ports.files, source) if row.code in codes)
    return {schema_id for row in rows if (schema_id := schema_id_of(row)) is not None}


def schema_problem(schemas: WriterSchemas, topic: str, topic_schemas: TopicSchemas) -> str:
    """Returns the reason why messages of the topic cannot be converted now, "" if they can.

    Args:
        schemas: the schemas of all topics, from the registry and the cache.
        topic_schemas: the schemas of this topic, which `schemas` returned.
    """
    if schemas.outage:
        return f"{schemas.outage}; try again when the registry responds"
    if topic_schemas.is_changed:
        return "its subject has a version that no load has folded in yet: run `headrace load`, then try again"
    replaced = schemas.replaced({topic: frozenset(topic_schemas.writer_schemas)}, 0)
    return replaced[topic].reason if topic in replaced else ""


def _projection(topic: str, topic_schemas: TopicSchemas, policy: TopicPolicy) -> TopicProjection:
    plan = TopicPlan(
        topic=topic,
        load_schema=topic_schemas.load_schema.text,
        writer_schemas=topic_schemas.writer_schemas,
        policy=policy,
        absent_ids=topic_schemas.absent_ids,
        time_property=topic_schemas.load_schema.time_property,
        routes=topic_schemas.routes,
        newest_id=topic_schemas.newest_id,
    )
    return TopicProjection(plan, policy.time_fields)


def _summed(counts: Iterable[Counter[str]]) -> dict[str, int]:
    return dict(sum(counts, Counter()))


def _write(
    ports: RewritePorts,
    replayer: Replayer,
    topic_state: TopicState,
    settings: ReplaySettings,
    run_id: str,
    chosen: Sequence[ReplayCounts],
) -> list[CommittedFile]:
    """Writes the files of a replay to the staging directory of its run: the new rows, and the messages that stay in
    quarantine. Returns the files as they are listed in a commit.

    Args:
        replayer: converts the messages.
        topic_state: the topic's state in the commit log.
        settings: has the sizes of the files.
        chosen: the quarantine files to rewrite, each with the numbers of messages that become rows and that remain, as
            `Replayer.preview` counted them.

    Raises:
        SourceUnusable: a quarantine file is missing or differs from its commit.
        OSError: the files cannot be written. After any exception they are deleted.
    """
    policy = replayer.policy
    text = load_schema_with_kafka(topic_state.load_schema.text, policy.kafka_column)
    shape = FileShape(text, policy.codec, settings.block_bytes, settings.file_bytes_target)
    written: list[ReplayCounts] = []

    def write(files: TaskFiles, new_rows: NewRows) -> None:
        written.extend(replayer.write(one.source, files, new_rows) for one in chosen)

    new_files = staged_files_of(ports, replayer.topic, run_id, shape, write)
    assert written == list(chosen), "both passes choose the same messages"
    assert sum(file.records for file in new_files) == sum(one.source.file.records for one in chosen)
    return new_files


def _commit(topic_state: TopicState, chosen: Iterable[ReplayCounts], new_files: Sequence[CommittedFile]) -> TopicCommit:
    replaced: dict[str, list[IndexedFile]] = defaultdict(list)
    for one in chosen:
        replaced[one.source.time_partition].append(one.source.file)
    rewrites = [
        rewrite(FileKind.QUARANTINE, time_partition, files) for time_partition, files in sorted(replaced.items())
    ]
    return topic_commit(topic_state, rewrites, new_files)
