"""One run of the loader: apply earlier commits, plan, read, validate, commit, apply, clean.

A run may be killed, overtaken or repeated at any point. Until its commit, the only effects are files in its own staging
directory, cached schemas, and finished work of earlier commits. After the commit, any later run can finish the work
from the log and the staged files.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.hive_ddl.errors import HiveDdlError, MetastoreUnavailable, SessionFailed
from headrace.kafka_wire.topic_patterns import matching_topics, similar_topic
from headrace.loader.apply.catalog import Catalog
from headrace.loader.apply.complete import CompleteUntil
from headrace.loader.apply.engine import SCHEMA, ApplierEngine, ApplyResult
from headrace.loader.apply.other_warehouse import TablesOfOtherWarehouse
from headrace.loader.apply.partitions import PartitionsApplier
from headrace.loader.apply.quiet_tables import QuietTables
from headrace.loader.apply.tables_to_compare import TableShare, TablesToCompare
from headrace.loader.build import missing_core_warnings
from headrace.loader.commit.cleaning import clean, published_runs
from headrace.loader.commit.commit import Commit
from headrace.loader.commit.commit_log import CommitLog, CommitResult
from headrace.loader.commit.findings import with_findings
from headrace.loader.commit.prepare import busy_new_topics, new_load_commit, split_commit, staged_files
from headrace.loader.commit.reconcile import ReconciledTopic, reconcile
from headrace.loader.commit.revalidate import fetch_changes, revalidate
from headrace.loader.errors import CommitLogError, NoSuchTopic, StorageUnavailable
from headrace.loader.inspect.finding_texts import finding_sentences
from headrace.loader.inspect.findings import ConsistencyCheck
from headrace.loader.inspect.open_findings import read_checks
from headrace.loader.inspect.rolling_check import ComparedTables, RollingCheck
from headrace.loader.open_problems import next_problems, read_problems, write_problems
from headrace.loader.plan.discover import Cluster, discover, is_wanted
from headrace.loader.plan.load_plan import LoadPlan, PlanSettings, hourly_plan, make_plan, plan_summary
from headrace.loader.plan.schemas import WriterSchemas
from headrace.loader.read.units import ReadResult, read_units, with_reading
from headrace.loader.report import (
    RunReport,
    held_back,
    imbalance,
    merged_problems,
    task_times,
    with_applied,
    with_commits,
)
from headrace.loader.rewrite.retire import Retirement
from headrace.loader.storage.protocols import Staging
from headrace.loader.work_unit import FileKind, TaskSettings, UnitResult, WorkUnit

logger = logging.getLogger(__name__)

EXCLUDED_REASON = "is excluded by loader.topics_include or loader.topics_exclude; change them to load it"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run. `task` are the settings of its tasks, except for the staging directory and the time, which
    each run sets. `topics_only` limits the run to topics that match one of these names or patterns; empty for all.
    `allow_new_warehouse` permits the creation of a warehouse although tables have files in another one."""

    topics_include: tuple[str, ...]
    topics_exclude: tuple[str, ...]
    staging_age_ms: int
    plan: PlanSettings
    task: TaskSettings
    topics_only: tuple[str, ...] = ()
    allow_new_warehouse: bool = False


@dataclass(frozen=True, slots=True)
class RunDependencies:
    """The interfaces that a run uses.

    `run_units` runs work units on the pool of tasks. `tables_are_open` returns whether a Spark session with the
    metastore is open or a HiveServer2 is used, so that comparing tables costs little. `now_ms` is the wall clock. It is
    used for times in commits and reports, the age of staging directories and replaced files, the check for message
    times in the future, and `headrace.complete_until`.
    """

    cluster: Cluster
    schemas: WriterSchemas
    log: CommitLog
    staging: Staging
    engine: ApplierEngine
    run_units: Callable[[Sequence[WorkUnit]], Sequence[UnitResult]]
    tables_are_open: Callable[[], bool]
    tables_to_compare: TablesToCompare
    now_ms: Callable[[], int]
    new_run_id: Callable[[], str]
    complete_until: CompleteUntil
    catalog: Catalog
    retirement: Retirement
    tables_of_other_warehouse: TablesOfOtherWarehouse
    file_check: RollingCheck
    quiet_tables: QuietTables
    open_tables: Callable[[], bool]
    partitions: PartitionsApplier


def plan_load(ports: RunDependencies, settings: RunSettings) -> LoadPlan:
    """Returns the plan of the next run. Commits and stages nothing, but may write a checkpoint and, unless `schemas`
    belongs to a dry run, the schema cache.

    Args:
        ports: the interfaces to brokers, registry and storage.

    Raises:
        KafkaError: the brokers are unavailable or refuse the requests.
        CommitLogError: the commits cannot be read.
        OSError: the storage failed.
        NoSuchTopic: a topic or pattern of the user matches no topic on the brokers that the settings include.
    """
    logger.info("phase_started phase=plan")
    state = ports.log.read_state()
    discovery_start_ms = ports.now_ms()
    only = _selected_topics(ports.cluster, settings) if settings.topics_only else ()
    include = tuple(map(re.escape, only)) or settings.topics_include
    discovery = discover(ports.cluster, include, settings.topics_exclude, state)
    run_id = ports.new_run_id()
    logger.info("phase_started phase=schemas topics=%d", len(discovery.topics))
    return make_plan(
        state,
        discovery,
        ports.schemas,
        run_id=run_id,
        discovery_start_ms=discovery_start_ms,
        settings=settings.plan,
        task_settings=dataclasses.replace(
            settings.task, staging=ports.staging.location(run_id), now_ms=discovery_start_ms
        ),
        only=only,
    )


def _selected_topics(cluster: Cluster, settings: RunSettings) -> tuple[str, ...]:
    """Returns the topics on the brokers that match any of `settings.topics_only` and that the settings include.

    Raises:
        NoSuchTopic: no such topic matches one of the patterns.
    """
    names = sorted(name for name, topic in cluster.metadata().topics.items() if not topic.is_internal)
    wanted = [name for name in names if is_wanted(name, settings.topics_include, settings.topics_exclude)]
    selected: set[str] = set()
    for pattern in settings.topics_only:
        matching = matching_topics(pattern, wanted)
        if not matching:
            is_excluded = bool(matching_topics(pattern, names))
            raise NoSuchTopic(pattern, EXCLUDED_REASON if is_excluded else _missing_reason(pattern, wanted))
        selected.update(matching)
    return tuple(sorted(selected))


def _missing_reason(pattern: str, names: Sequence[str]) -> str:
    similar = similar_topic(pattern, names)
    return f"is not on the brokers{f'; did you mean {similar}?' if similar else ''}"


def run_load(ports: RunDependencies, settings: RunSettings) -> RunReport:
    """Performs one run and returns its report.

    Args:
        ports: the interfaces to brokers, registry, storage and tables.

    Raises:
        EarlierWarehouse: there is no commit yet, a table has its files in another warehouse, and `allow_new_warehouse`
            is False.
        LoaderError, KafkaError, OSError: the run failed. All commits stay, including commits of this run, and the next
            run continues.
    """
    started_ms = ports.now_ms()
    logger.info("phase_started phase=catch_up")
    catch_up = ports.engine.apply_pending()
    if catch_up.outage is not None:
        raise catch_up.outage  # reading needs the storage too, and would wait for the same timeouts
    retired = ports.retirement.retire(ports.now_ms())
    plan = plan_load(ports, settings)
    report = RunReport(
        run_id=plan.run_id,
        waiting=plan.waiting,
        problems=plan.problems,
        notes=(*missing_core_warnings(), *plan.notes),
        registry_outage=plan.registry_outage,
        is_registry_refused=ports.schemas.is_refused,
        tasks=len(plan.units),
        imbalance_planned=plan.imbalance,
    )
    alarms: Mapping[str, Collection[str]] = {}
    if plan.has_changes:
        if not plan.commit_number and not settings.allow_new_warehouse:
            ports.tables_of_other_warehouse.refuse(plan.planned_topics)
        report, alarms = _execute(ports, settings, plan, report, retired)
        compared = _tables_to_compare(ports)
        applied = ports.engine.apply_pending(topics_to_compare=compared.topics)
        report = with_applied(report, applied, catch_up)
    else:
        compared, notes = _tables_of_quiet_load(ports)
        report = dataclasses.replace(report, notes=(*report.notes, *notes))
        applied = ports.engine.apply_pending(topics_to_compare=compared.topics) if compared.topics else catch_up
        report = with_applied(report, applied, *(() if applied is catch_up else (catch_up,)))
    left = held_back(plan.discovered, ports.log.state)
    outage = applied.outage
    if outage is None and (outage := _store_problems(ports, settings, report, left, alarms)) is not None:
        report = _unchecked(report, outage)
    if outage is None:
        failed = frozenset(applied.failures)
        warnings = _finish(ports, settings, plan, failed=failed, compares_tables=bool(compared.topics), retired=retired)
        report = _checked(ports, dataclasses.replace(report, notes=(*report.notes, *warnings)), compared, applied)
    return dataclasses.replace(report, held_back=sum(left.values()), duration_ms=max(0, ports.now_ms() - started_ms))


def _store_problems(
    ports: RunDependencies,
    settings: RunSettings,
    report: RunReport,
    left: Mapping[str, int],
    alarms: Mapping[str, Collection[str]],
) -> StorageUnavailable | None:
    """Stores the problems that this run leaves, for `headrace status`; not those of the comparison of files, which
    stores its own. Returns the error if the storage is unavailable; other errors are logged, and do not fail the load.

    Args:
        left: by topic, the number of offsets that are in no commit.
        alarms: by topic, the sentences of the report about committed messages.
    """
    only = settings.topics_only
    try:
        before = read_problems(ports.log.storage)
        after = next_problems(
            before, report, left, ports.now_ms(), alarms=alarms, is_loaded=lambda topic: not only or topic in only
        )
        if after != before:
            write_problems(ports.log.storage, after)
    except OSError as error:
        logger.warning("problems_not_stored error=%s", error)
        return error if isinstance(error, StorageUnavailable) else None
    return None


def _finish(
    ports: RunDependencies,
    settings: RunSettings,
    plan: LoadPlan,
    *,
    failed: frozenset[str],
    compares_tables: bool,
    retired: frozenset[int],
) -> tuple[str, ...]:
    """Sets the property `headrace.complete_until` of tables, writes the catalogue, and deletes old staging directories.
    If this fails, a later run does it.

    Args:
        ports: the interfaces to brokers, storage and tables.
        plan: the plan of this run, with the topics and offsets on the brokers.
        failed: topics that an applier could not finish.
        compares_tables: whether this run has compared tables, and compares those of the catalogue too.
        retired: commit numbers of rewrites whose replaced files this run has deleted.

    Returns:
        Warnings.
    """
    warnings = ports.complete_until.update(
        ports.log.read_state(), plan.discovered, plan.discovery_start_ms, failed=failed, run_id=plan.run_id
    )
    warnings += ports.catalog.update(plan.discovered, ports.now_ms(), compares_tables=compares_tables)
    logger.info("phase_started phase=clean")
    clean(
        ports.log,
        ports.staging,
        run_id=ports.new_run_id(),
        build=settings.plan.build,
        now_ms=ports.now_ms(),
        age_ms=settings.staging_age_ms,
        retired=retired,
    )
    return warnings


def _tables_to_compare(ports: RunDependencies) -> TableShare:
    """Returns the tables that a load with new messages compares: none if the executor is not open."""
    if not ports.tables_are_open():
        return TableShare()
    return ports.tables_to_compare.share(ports.log.read_state(), read_checks(ports.log.storage).tables_after)


def _tables_of_quiet_load(ports: RunDependencies) -> tuple[TableShare, tuple[str, ...]]:
    """Returns the tables that a load without new messages compares, after opening the executor if there are any. If
    that fails, there are none, and a note has the reason."""
    state = ports.log.read_state()
    try:
        checks = read_checks(ports.log.storage)
        share = ports.quiet_tables.share(state, checks.tables_after, checks.tables_at_ms, ports.now_ms())
        wrong = {one.finding.topic for one in checks.open if one.finding.check is ConsistencyCheck.TABLE}
        topics = tuple(sorted({*share.topics, *(wrong & state.topics.keys())}))
        if topics and ports.open_tables():
            return dataclasses.replace(share, topics=topics), ()
    except Exception as error:  # of Spark, Java or the metastore; the load itself has nothing to do
        logger.debug("tables_not_compared", exc_info=True)
        note = f"the tables were not compared with the commits: {error}; the next load compares them"
        return TableShare(), (note,)
    return TableShare(), ()


def _restored_partitions(
    ports: RunDependencies, failed: Collection[str], notes: list[str]
) -> Callable[[str, FileKind, Sequence[str], int], None]:
    """Returns a function that restores partitions of a topic's table in the metastore. It adds notes of changes and
    failures, and does nothing for topics with a failed applier.

    Args:
        failed: topics with a failed applier.
    """
    unavailable: list[HiveDdlError] = []

    def restore(topic: str, kind: FileKind, time_partitions: Sequence[str], commit_number: int) -> None:
        known = ports.log.state.topics[topic]
        if topic in failed or unavailable:
            return
        try:
            changes = ports.partitions.update(topic, known, kind, time_partitions, commit_number)
        except (MetastoreUnavailable, SessionFailed) as error:
            unavailable.append(error)
            notes.append(f"the partitions in the metastore were not compared: {error}")
        except HiveDdlError as error:
            notes.append(f"{topic}: the partitions of {known.table} were not compared: {error}")
        else:
            if changes:
                notes.append(f"{topic}: partitions of {known.table} were missing or had another location; restored")

    return restore


def _checked(ports: RunDependencies, report: RunReport, compared: TableShare, applied: ApplyResult) -> RunReport:
    """Compares a share of the warehouse's files with the commits. Returns the report with the open findings of this and
    earlier comparisons as problems. If the comparison fails, a note has the reason.

    Args:
        compared: the tables that this run has compared.
        applied: the results of the appliers, with the tables that are not as they must be.
    """
    logger.info("phase_started phase=check")
    notes: list[str] = []
    wrong = {topic: one.message for topic, one in applied.failures.items() if one.applier == SCHEMA}
    restore = _restored_partitions(ports, applied.failures.keys(), notes)
    limit = ports.tables_to_compare.limits.partitions
    tables = ComparedTables(compared.topics, wrong, compared.end, restore, limit) if compared.topics else None
    try:
        checks = ports.file_check.check(ports.now_ms(), tables)
        report = dataclasses.replace(report, notes=(*report.notes, *notes))
    except (CommitLogError, OSError) as error:
        return _unchecked(report, error)
    return dataclasses.replace(report, problems=merged_problems(report.problems, finding_sentences(checks)))


def _unchecked(report: RunReport, error: Exception) -> RunReport:
    """Returns the report with a note that the files were not compared, and the error that prevented it."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    note = f"the files were not compared with the commits: {reason}; the next load compares them"
    return dataclasses.replace(report, notes=(*report.notes, note))


def _execute(
    ports: RunDependencies, settings: RunSettings, plan: LoadPlan, report: RunReport, retired: frozenset[int]
) -> tuple[RunReport, Mapping[str, Collection[str]]]:
    """Reads, validates and commits the plan. Returns the report with the results, and by topic the problems in it that
    are about committed messages.

    Args:
        ports: the interfaces to brokers, registry, storage and tables.
        report: the report so far, from planning.
        retired: numbers of earlier rewrites whose replaced files are all deleted; stored in the commit.
    """
    ports.staging.write_file(plan.run_id, "plan.json", plan_summary(plan))
    logger.info("phase_started phase=read run_id=%s tasks=%d", plan.run_id, len(plan.units))
    reading = read_units(plan.units, ports.run_units, ports.schemas)
    validated = _validated(ports, plan, reading)
    hourly = busy_new_topics(plan, validated)
    if hourly:
        plan, units = hourly_plan(plan, hourly, len(reading.units))
        logger.info("phase_started phase=read run_id=%s tasks=%d", plan.run_id, len(units))
        again = read_units(units, ports.run_units, ports.schemas)
        validated |= {topic: one for topic, one in _validated(ports, plan, again).items() if topic in hourly}
        reading = with_reading(reading, again)
    reconciled = with_findings(
        validated, {topic: planned_topic.policy for topic, planned_topic in plan.planned_topics.items()}
    )
    published = published_runs(ports.log, ports.staging)
    proposal = new_load_commit(plan, reconciled, reading.registered_ids, published, ports.now_ms(), settings.plan.build)
    proposal = dataclasses.replace(proposal, retired=retired)
    commit_results = _commit_plan(ports, plan.run_id, proposal)
    report = dataclasses.replace(
        report,
        problems=merged_problems(
            merged_problems(plan.problems, reading.problems), {topic: one.problems for topic, one in reconciled.items()}
        ),
        notes=(*report.notes, *reading.notes, *(note for one in reconciled.values() for note in one.notes)),
        registry_outage=ports.schemas.outage,
        is_registry_refused=ports.schemas.is_refused,
        imbalance_measured=imbalance(reading.results[: len(plan.units)]),
        read_ms=reading.read_ms,
        task_times=task_times(reading.results),
    )
    alarms = {topic: one.problems[len(validated[topic].problems) :] for topic, one in reconciled.items()}
    return with_commits(report, plan, reconciled, commit_results), alarms


def _validated(ports: RunDependencies, plan: LoadPlan, reading: ReadResult) -> dict[str, ReconciledTopic]:
    """Returns, by topic, the part of what was read that may be committed."""
    logger.info("phase_started phase=validate run_id=%s", plan.run_id)
    changes = fetch_changes(plan, ports.cluster)
    planned = {topic: planned_topic.ranges for topic, planned_topic in plan.planned_topics.items()}
    reconciled = reconcile(planned, reading.units, reading.results, changes.new_leaders)
    return revalidate(plan, reconciled, changes, ports.staging)


def _commit_plan(ports: RunDependencies, run_id: str, proposal: Commit) -> list[CommitResult]:
    """Writes the commit of a run to the commit log. A large commit is split by topics into several; a conflict of one
    part does not affect the other parts.

    Args:
        proposal: the commit, without a commit number.

    Returns:
        For each part, the commit or the conflict; nothing if the commit has no topics.
    """
    logger.info("phase_started phase=commit run_id=%s topics=%d", run_id, len(proposal.topics))
    if not proposal.topics:
        ports.staging.drop(run_id)  # no commit will contain its files
        return []
    first, *later = split_commit(proposal, ports.new_run_id)
    for chunk in later:
        ports.staging.move(run_id, staged_files(chunk), chunk.run_id)
    return [_try_commit(ports.log, chunk) for chunk in (first, *later)]


def _try_commit(log: CommitLog, chunk: Commit) -> CommitResult:
    commit_result = log.try_commit(chunk)
    if commit_result.commit is None:
        logger.info("commit_refused run_id=%s conflict=%s", chunk.run_id, commit_result.conflict)
    else:
        logger.info("committed commit=%d run_id=%s", commit_result.commit.commit_number, chunk.run_id)
    return commit_result
