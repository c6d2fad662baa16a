"""One run of the loader: catch up, discover, plan, read, check, decide, follow, clean.

Everything the run does before the decision is on trial: it may be killed, be overtaken or be done twice at any
point, and nothing has happened but files in a staging folder of its own. Everything after it is only the
consequence of what the log says, and any later run brings it about.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.loader.check.settle import SettledTopic, settle
from headrace.loader.decide.cleaning import clean
from headrace.loader.decide.decision import GENERATION, Decision, DecisionKind, TopicDecision
from headrace.loader.decide.decision_log import DecisionLog, Offered, staging_path
from headrace.loader.decide.json_values import canonical
from headrace.loader.decide.storage import force_to_disk
from headrace.loader.errors import StorageError
from headrace.loader.follow.engine import Followed, FollowerEngine
from headrace.loader.plan.discover import Cluster, discover
from headrace.loader.plan.load_plan import LoadPlan, PlanSettings, TopicWork, make_plan
from headrace.loader.plan.schemas import WriterSchemas
from headrace.loader.read.units import read_units
from headrace.loader.report import RunReport, TopicLoaded
from headrace.loader.work_unit import FileKind, TaskSettings, UnitResult, WorkUnit

logger = logging.getLogger(__name__)

QUARANTINED_MIN = 100  # messages; below it a share says nothing about a topic


@dataclass(frozen=True, slots=True)
class RunSettings:
    """`task` is a pattern: its staging folder and layout are set per run and unit."""

    topics_include: tuple[str, ...]
    topics_exclude: tuple[str, ...]
    quarantine_share_max: float
    staging_age_ms: int
    plan: PlanSettings
    task: TaskSettings


@dataclass(frozen=True, slots=True)
class Ports:
    """What a run reaches the world through.

    `run_units` runs the work units on the pool; `tables_are_open` tells whether looking at tables costs little now
    (a Spark session is up anyway). `now_ms` is the wall clock, for people and for the age of staging only.
    """

    cluster: Cluster
    schemas: WriterSchemas
    log: DecisionLog
    engine: FollowerEngine
    run_units: Callable[[Sequence[WorkUnit]], Sequence[UnitResult]]
    tables_are_open: Callable[[], bool]
    now_ms: Callable[[], int]
    new_work_id: Callable[[], str]


def plan_load(ports: Ports, settings: RunSettings) -> LoadPlan:
    """What the next run would do. Reads only.

    Raises:
        KafkaUnavailable, BadDecision.
    """
    logger.info("phase_started phase=plan")
    state = ports.log.read_state()
    discovery = discover(ports.cluster, settings.topics_include, settings.topics_exclude)
    work_id = ports.new_work_id()
    staging = str(ports.log.storage.path(staging_path(work_id)))
    return make_plan(
        state,
        discovery,
        ports.schemas,
        work_id=work_id,
        settings=settings.plan,
        task_settings=dataclasses.replace(settings.task, staging_dir=staging),
    )


def run_load(ports: Ports, settings: RunSettings) -> RunReport:
    """Runs once.

    Raises:
        LoaderError: the run could not be carried through; what was decided before stands, and the next run goes on.
    """
    started_ms = ports.now_ms()
    logger.info("phase_started phase=catch_up")
    caught_up = ports.engine.follow()
    plan = plan_load(ports, settings)
    report = RunReport(
        work_id=plan.work_id,
        waiting=plan.waiting,
        problems=plan.problems,
        notes=plan.notes,
        registry_outage=plan.registry_outage,
        tasks=len(plan.units),
        imbalance_planned=plan.imbalance,
    )
    if plan.has_news:
        report = _carry_out(ports, settings, plan, report)
        checked = tuple(ports.log.read_state().topics) if ports.tables_are_open() else ()
        report = _with_followed(report, ports.engine.follow(also=checked), caught_up)
    else:
        report = _with_followed(report, caught_up)
    logger.info("phase_started phase=clean")
    clean(
        ports.log,
        work_id=ports.new_work_id(),
        build=settings.plan.build,
        now_ms=ports.now_ms(),
        age_ms=settings.staging_age_ms,
    )
    return dataclasses.replace(report, duration_ms=max(0, ports.now_ms() - started_ms))


def _carry_out(ports: Ports, settings: RunSettings, plan: LoadPlan, report: RunReport) -> RunReport:
    """Reads, checks and decides what the plan says."""
    ports.log.storage.replace(f"{staging_path(plan.work_id)}/plan.json", plan_for_people(plan))
    logger.info("phase_started phase=read work_id=%s tasks=%d", plan.work_id, len(plan.units))
    reading = read_units(plan.units, ports.run_units, ports.schemas)
    logger.info("phase_started phase=check work_id=%s", plan.work_id)
    settled = settle({topic: work.ranges for topic, work in plan.works.items()}, reading.units, reading.results)
    settled = _check(ports, settings, plan, settled)
    offer = propose(plan, settled, reading.registered_ids, ports.now_ms(), settings.plan.build)
    logger.info("phase_started phase=decide work_id=%s topics=%d", plan.work_id, len(offer.topics))
    offered = ports.log.offer(offer) if offer.topics else None
    report = dataclasses.replace(
        report,
        problems=_merged(
            _merged(plan.problems, reading.problems), {topic: one.problems for topic, one in settled.items()}
        ),
        notes=(*report.notes, *reading.notes),
        registry_outage=ports.schemas.outage,
        imbalance_measured=_imbalance(reading.results[: len(plan.units)]),
        read_ms=reading.read_ms,
    )
    return _with_offer(report, plan, settled, offered)


def _check(
    ports: Ports, settings: RunSettings, plan: LoadPlan, settled: Mapping[str, SettledTopic]
) -> dict[str, SettledTopic]:
    """Drops the topics whose work must not be decided, and says why."""
    touched = [topic for topic, one in settled.items() if one.ranges or one.files]
    now = ports.cluster.metadata(touched).topics if touched else {}
    checked = {}
    for topic, one in settled.items():
        reason = ""
        if topic in touched:
            found = now.get(topic)
            epochs = {number: part.leader_epoch for number, part in found.partitions.items()} if found else {}
            reason = (
                _changed(plan.works[topic], found.topic_id if found else "", epochs)
                or _over_quarantine(one, settings.quarantine_share_max)
                or _not_staged(ports, plan.work_id, one)
            )
        if reason:
            one = SettledTopic(problems=(*one.problems, reason))
        checked[topic] = one
    return checked


def _changed(work: TopicWork, topic_id: str, epochs: Mapping[int, int]) -> str:
    if topic_id and topic_id != work.ranges.topic_id:
        return "the topic was re-created while it was read; the next load looks again"
    for planned in work.ranges.ranges:
        epoch = epochs.get(planned.partition, planned.leader_epoch)
        if planned.end > planned.start and -1 not in (epoch, planned.leader_epoch) and epoch != planned.leader_epoch:
            return f"partition {planned.partition} changed its leader while it was read; the next load reads again"
    return ""


def _over_quarantine(one: SettledTopic, share_max: float) -> str:
    counts = one.counts
    messages = counts.records + counts.quarantined
    if counts.quarantined <= max(QUARANTINED_MIN, share_max * messages):
        return ""
    return (
        f"{counts.quarantined} of {messages} messages cannot be loaded, more than loader.quarantine_share_max "
        f"({share_max:.0%}) allows; nothing of this topic was loaded: mend the cause or raise the limit"
    )


def _not_staged(ports: Ports, work_id: str, one: SettledTopic) -> str:
    try:
        for file in one.files:
            force_to_disk(ports.log.storage.path(staging_path(work_id)) / file.staged, file.length)
    except StorageError as error:
        return f"{error}; nothing of this topic was loaded, and the next load reads it again"
    return ""


def propose(
    plan: LoadPlan,
    settled: Mapping[str, SettledTopic],
    registered_ids: Mapping[str, frozenset[int]],
    now_ms: int,
    build: str,
) -> Decision:
    """The offer: only what changed. Pure."""
    topics = {}
    for topic, work in plan.works.items():
        decided = _topic_decision(
            work, settled.get(topic, SettledTopic()), registered_ids.get(topic, frozenset()) - work.known_ids
        )
        if decided is not None:
            topics[topic] = decided
    return Decision(0, DecisionKind.LOAD, plan.work_id, now_ms, build, topics, frozenset())


def _topic_decision(work: TopicWork, one: SettledTopic, asked_ids: frozenset[int]) -> TopicDecision | None:
    known = work.known
    changed = known is None or work.schemas.is_changed or work.ranges.starts_again
    if not (changed or asked_ids or one.ranges):
        return None
    return TopicDecision(
        topic_id=work.ranges.topic_id,
        topic_id_before=known.topic_id if known else None,
        revision_before=known.load_schema.revision if known else 0,
        table=work.table,
        folder=work.folder,
        partition_by=work.partition_by,
        load_schema=work.schemas.load_schema if known is None or work.schemas.is_changed else None,
        ranges=one.ranges,
        files=one.files,
        audit=one.audit,
        time_sources=one.time_sources,
        asked_ids=asked_ids,
    )


def _with_offer(
    report: RunReport, plan: LoadPlan, settled: Mapping[str, SettledTopic], offered: Offered | None
) -> RunReport:
    if offered is None:
        return report
    if offered.decision is None:
        logger.info("offer_refused work_id=%s conflict=%s", plan.work_id, offered.conflict)
        return dataclasses.replace(report, conflict=str(offered.conflict))
    decision = offered.decision
    logger.info("decided slot=%d work_id=%s", decision.slot, decision.work_id)
    loaded = tuple(
        _topic_loaded(topic, decided, plan.works[topic], settled.get(topic, SettledTopic()))
        for topic, decided in sorted(decision.topics.items())
    )
    notes = [
        f"{topic}: stopped before messages of schema id {', '.join(map(str, sorted(decided.asked_ids)))}, "
        "which this load did not know yet; the next one reads them"
        for topic, decided in sorted(decision.topics.items())
        if decided.asked_ids
    ]
    notes += [
        f"{topic}: the new topic's offsets begin again, so (partition, offset) may come twice in {decided.table}; "
        f"its rows are in files from {GENERATION}-{decision.slot}- on"
        for topic, decided in sorted(decision.topics.items())
        if decided.topic_id_before not in (None, decided.topic_id)
    ]
    return dataclasses.replace(report, slot=decision.slot, loaded=loaded, notes=(*report.notes, *notes))


def _topic_loaded(topic: str, decided: TopicDecision, work: TopicWork, one: SettledTopic) -> TopicLoaded:
    data = [file for file in decided.files if file.kind is FileKind.DATA]
    counts = one.counts
    return TopicLoaded(
        topic=topic,
        table=decided.table,
        rows=counts.records,
        files=len(data),
        partitions=len({file.bucket for file in data}),
        quarantined=counts.quarantined,
        tombstones=counts.tombstones,
        gaps=sum(end - start for offsets in decided.ranges for start, end in offsets.gaps),
        offsets=sum(offsets.end - offsets.start for offsets in decided.ranges),
        bytes_read=sum(offsets.bytes_read for offsets in decided.ranges),
        bytes_written=sum(file.length for file in decided.files),
        new=work.known is None,
        schema_changed=work.known is not None and decided.load_schema is not None,
    )


def _with_followed(report: RunReport, *followed: Followed) -> RunReport:
    """The newest word on each topic counts: what failed while catching up may have worked at the end."""
    failures = {topic: (str(failure.message),) for topic, failure in followed[0].failures.items()}
    warnings = {warning: None for one in followed for warning in one.warnings}
    return dataclasses.replace(
        report,
        problems=_merged(report.problems, failures),
        notes=(*report.notes, *warnings),
        followed=tuple(sorted({topic for one in followed for topic in one.topics})),
    )


def _merged(one: Mapping[str, tuple[str, ...]], other: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    topics = sorted({*one, *other})
    merged = {topic: tuple(dict.fromkeys((*one.get(topic, ()), *other.get(topic, ())))) for topic in topics}
    return {topic: sentences for topic, sentences in merged.items() if sentences}


def _imbalance(results: Sequence[UnitResult]) -> float:
    times = [result.duration_ms for result in results]
    return max(times) * len(times) / sum(times) if times and sum(times) else 1.0


def plan_for_people(plan: LoadPlan) -> bytes:
    """A summary of the plan; nothing reads it back."""
    units = [
        {
            "task": unit.task,
            "ranges": [
                f"{one.topic_partition.topic}-{one.topic_partition.partition} [{one.start}, {one.end})"
                for one in unit.ranges
            ],
        }
        for unit in plan.units
    ]
    return canonical({"work_id": plan.work_id, "after_slot": plan.slot, "units": units}) + b"\n"
