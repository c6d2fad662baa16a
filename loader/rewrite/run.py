"""Commands that rewrite buckets: choose, merge where files are made, decide, follow.

Nothing is reserved beforehand: loads go on beside, and what they add to a bucket meanwhile lives on in its new
generation. Of two rewrites of one topic the slower one is refused and says so; its work is thrown away.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.loader.apply.engine import FollowerEngine
from headrace.loader.apply.layout import bucket_folder
from headrace.loader.commit.bucket_index import IndexedFile
from headrace.loader.commit.chunks import in_chunks, staged_files
from headrace.loader.commit.decision import BucketRewrite, DecidedFile, Decision, DecisionKind, TopicDecision
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.state import LoaderState
from headrace.loader.report import merged_problems
from headrace.loader.rewrite.choose import end_of_bucket_ms, is_expired, merges, rewrite, topic_decision
from headrace.loader.rewrite.merge import MergeResult, MergeSource, MergeUnit
from headrace.loader.storage.protocols import Staged, Staging, WarehouseFiles
from headrace.loader.work_unit import FileKind, StagedFile

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RewritePorts:
    """What a rewrite reaches the world through; `run_merges` runs units on the pool, for files of a work."""

    log: DecisionLog
    staging: Staging
    files: WarehouseFiles
    index: FileIndex
    engine: FollowerEngine
    run_merges: Callable[[Sequence[MergeUnit]], Sequence[MergeResult]]
    now_ms: Callable[[], int]
    new_work_id: Callable[[], str]
    build: str


@dataclass(frozen=True, slots=True)
class BucketRow:
    """What is done to one bucket. `files` with `rows` and `bytes` are taken away, `made` files come in their place."""

    topic: str
    kind: FileKind
    bucket: str
    files: int
    rows: int
    bytes: int
    made: int = 0


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """`slot` is the newest decision made, 0 for none; `problems` are sentences by topic; `notes` need no action."""

    buckets: tuple[BucketRow, ...] = ()
    slot: int = 0
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """`closed_ms` is how long after its end a bucket is left to late messages; sizes are in bytes. `codec_of` gives the
    codec of a topic's files."""

    closed_ms: int
    bytes_target: int
    block_bytes: int
    codec_of: Callable[[str], str]


def merged_reports(one: RewriteReport, other: RewriteReport) -> RewriteReport:
    """Two that were made one after the other, as one."""
    return RewriteReport(
        (*one.buckets, *other.buckets),
        other.slot or one.slot,
        merged_problems(one.problems, other.problems),
        (*one.notes, *other.notes),
    )


Chosen = tuple[str, FileKind, str, tuple[IndexedFile, ...]]
"""(topic, kind, bucket, files to take away)"""


def retain(ports: RewritePorts, keep_days: Mapping[str, int], *, is_dry: bool) -> RewriteReport:
    """Takes away the buckets, of rows and of quarantined messages, that are older than they are kept.

    Args:
        keep_days: by topic, whole days after the end of a bucket's day.
    """
    state, notes = caught_up(ports, is_dry)
    chosen = [
        (topic, kind, bucket, files)
        for topic in sorted(keep_days)
        for kind in FileKind
        for day in ports.index.days(topic, kind)
        if is_expired(day, keep_days[topic], ports.now_ms())
        for bucket, files in live_of(ports, topic, kind, day)
    ]
    return _noted(notes, _take_away(ports, state, DecisionKind.RETAIN, chosen, is_dry))


def forget(ports: RewritePorts, topic: str, kinds: Iterable[FileKind], bucket: str, *, is_dry: bool) -> RewriteReport:
    """Accepts that published files are gone: those of a topic, or of one of its buckets, that are not where they
    belong."""
    state, notes = caught_up(ports, is_dry)
    chosen = []
    for kind in kinds:
        for day in ports.index.days(topic, kind):
            for found, files in live_of(ports, topic, kind, day):
                missing = tuple(file for file in files if _is_missing(ports, state, topic, kind, found, file))
                if missing and bucket in ("", found):
                    chosen.append((topic, kind, found, missing))
    return _noted(notes, _take_away(ports, state, DecisionKind.RETAIN, chosen, is_dry))


def compact(ports: RewritePorts, topics: Sequence[str], settings: CompactSettings, *, is_dry: bool) -> RewriteReport:
    """Makes few files of the small ones of closed buckets, on the pool."""
    state, notes = caught_up(ports, is_dry)
    groups = list(_groups(ports, state, topics, settings))
    rows = _rows([(topic, kind, bucket, files) for topic, kind, bucket, files in groups], made=1)
    if is_dry or not groups:
        return RewriteReport(rows, notes=notes)
    work_id = ports.new_work_id()
    logger.info("phase_started phase=merge work_id=%s groups=%d", work_id, len(groups))
    results = ports.run_merges(
        [_unit(ports, state, settings, work_id, task, *group) for task, group in enumerate(groups)]
    )
    decisions, problems = _merged(state, groups, results)
    for decided in decisions.values():
        ports.staging.keep(work_id, [Staged(file.staged, file.length) for file in decided.files])
    report = decide(ports, state, DecisionKind.COMPACT, work_id, decisions)
    merged = {(topic, rewrite.kind, rewrite.bucket) for topic, one in decisions.items() for rewrite in one.rewrites}
    report = dataclasses.replace(
        report,
        buckets=tuple(row for row in rows if (row.topic, row.kind, row.bucket) in merged),
        problems=merged_problems(problems, report.problems),
    )
    return _noted(notes, report)


def caught_up(ports: RewritePorts, is_dry: bool) -> tuple[LoaderState, tuple[str, ...]]:
    """The state, with everything decided where it belongs, so that what is missing is truly gone.

    Also gives what the followers had to say, which they say once only.
    """
    if is_dry:
        return ports.log.read_state(), ()
    followed = ports.engine.follow()
    if followed.outage is not None:
        raise followed.outage
    return ports.log.read_state(), tuple(followed.warnings)


def _noted(notes: tuple[str, ...], report: RewriteReport) -> RewriteReport:
    return dataclasses.replace(report, notes=(*notes, *report.notes))


def live_of(ports: RewritePorts, topic: str, kind: FileKind, day: str) -> Iterator[tuple[str, tuple[IndexedFile, ...]]]:
    for bucket in sorted(ports.index.day(topic, kind, day).buckets):
        files = ports.index.live(topic, kind, bucket)
        if files:
            yield bucket, files


def _groups(
    ports: RewritePorts, state: LoaderState, topics: Sequence[str], settings: CompactSettings
) -> Iterator[Chosen]:
    for topic in topics:
        for kind in FileKind:
            for day in ports.index.days(topic, kind):
                for bucket, files in live_of(ports, topic, kind, day):
                    if end_of_bucket_ms(bucket) + settings.closed_ms <= ports.now_ms():
                        yield from ((topic, kind, bucket, group) for group in merges(files, settings.bytes_target))


def name_of(ports: RewritePorts, state: LoaderState, topic: str, kind: FileKind, bucket: str, file: IndexedFile) -> str:
    generation = ports.index.generation_at(topic, kind, bucket, state.slot)
    return f"{bucket_folder(state.topics[topic].folder, kind, bucket, generation)}/{file.name}"


def _is_missing(
    ports: RewritePorts, state: LoaderState, topic: str, kind: FileKind, bucket: str, file: IndexedFile
) -> bool:
    return ports.files.length(name_of(ports, state, topic, kind, bucket, file)) is None


def _unit(
    ports: RewritePorts,
    state: LoaderState,
    settings: CompactSettings,
    work_id: str,
    task: int,
    topic: str,
    kind: FileKind,
    bucket: str,
    files: Sequence[IndexedFile],
) -> MergeUnit:
    return MergeUnit(
        work_id=work_id,
        task=task,
        kind=kind,
        topic=topic,
        bucket=bucket,
        sources=tuple(
            MergeSource(
                name_of(ports, state, topic, kind, bucket, file), file.length, file.checksum, file.records, file.ranges
            )
            for file in files
        ),
        warehouse=ports.files.reach,
        staging=ports.staging.location(work_id),
        codec=settings.codec_of(topic),
        block_bytes=settings.block_bytes,
        build=ports.build,
    )


def _rows(chosen: Sequence[Chosen], *, made: int) -> tuple[BucketRow, ...]:
    return tuple(
        BucketRow(
            topic,
            kind,
            bucket,
            len(files),
            sum(file.records for file in files),
            sum(file.length for file in files),
            made,
        )
        for topic, kind, bucket, files in chosen
    )


def _take_away(
    ports: RewritePorts, state: LoaderState, kind: DecisionKind, chosen: Sequence[Chosen], is_dry: bool
) -> RewriteReport:
    rows = _rows(chosen, made=0)
    if is_dry or not chosen:
        return RewriteReport(rows)
    rewrites: dict[str, list[BucketRewrite]] = defaultdict(list)
    for topic, file_kind, bucket, files in chosen:
        rewrites[topic].append(rewrite(file_kind, bucket, files))
    decisions = {topic: topic_decision(state.topics[topic], found) for topic, found in rewrites.items()}
    return dataclasses.replace(decide(ports, state, kind, ports.new_work_id(), decisions), buckets=rows)


def _merged(
    state: LoaderState, groups: Sequence[Chosen], results: Sequence[MergeResult]
) -> tuple[dict[str, TopicDecision], dict[str, tuple[str, ...]]]:
    """What the merges that worked amount to, by topic, and the sentences on those that did not."""
    taken: dict[str, dict[tuple[FileKind, str], list[IndexedFile]]] = defaultdict(lambda: defaultdict(list))
    made: dict[str, list[DecidedFile]] = defaultdict(list)
    problems: dict[str, list[str]] = defaultdict(list)
    for (topic, kind, bucket, files), result in zip(groups, results, strict=True):
        if result.error:
            problems[topic].append(f"{bucket} was not compacted: {result.error}")
            continue
        taken[topic][kind, bucket] += files
        made[topic] += [decided_file(result.task, number, file) for number, file in enumerate(result.files)]
    decisions = {
        topic: topic_decision(
            state.topics[topic],
            [rewrite(kind, bucket, files) for (kind, bucket), files in sorted(buckets.items())],
            made[topic],
        )
        for topic, buckets in taken.items()
    }
    return decisions, {topic: tuple(sentences) for topic, sentences in problems.items()}


def decided_file(task: int, number: int, file: StagedFile) -> DecidedFile:
    return DecidedFile(
        kind=file.kind,
        bucket=file.bucket,
        name=f"{task}-{number}.avro",
        staged=file.path,
        length=file.length,
        checksum=file.checksum,
        records=file.records,
        ranges=file.ranges,
    )


def decide(
    ports: RewritePorts,
    state: LoaderState,
    kind: DecisionKind,
    work_id: str,
    decisions: Mapping[str, TopicDecision],
    reason: str = "",
) -> RewriteReport:
    """Offers the rewrites in chunks and has the followers bring about what was decided.

    Args:
        state: read before the work was begun.
        reason: why an operator wants it, if one was given.
    """
    slot, problems = 0, dict[str, tuple[str, ...]]()
    offer = Decision(
        0,
        kind,
        work_id,
        ports.now_ms(),
        ports.build,
        decisions,
        frozenset(),
        reason=reason,
        planned_after=state.slot,
    )
    first, *later = in_chunks(offer, ports.new_work_id)
    for chunk in later:
        ports.staging.move(work_id, staged_files(chunk), chunk.work_id)
    for chunk in (first, *later) if decisions else ():
        offered = ports.log.offer(chunk)
        slot = offered.decision.slot if offered.decision else slot
        refused = dict(offered.refused)
        if offered.conflict is not None:
            # The work as a whole may be refused, and then no topic is.
            refused = dict.fromkeys(chunk.topics, offered.conflict) | refused
        for topic, conflict in refused.items():
            problems[topic] = (f"not rewritten, since another command was faster ({conflict}); run this one again",)
    followed = ports.engine.follow()
    failures = {topic: (failure.message,) for topic, failure in followed.failures.items()}
    return RewriteReport((), slot, merged_problems(problems, failures), tuple(followed.warnings))
