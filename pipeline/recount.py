"""Counts the rows in a topic's files with Spark, and compares them with the commits and the audit, for `headrace audit
recount`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.audit.errors import StoreUnavailable
from headrace.audit.facts import WindowFacts
from headrace.audit.verdict import Period
from headrace.audit.window import WINDOW_MS
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.inspect.recount import RecountPlan, RecountReport, plan_recount, report_of
from headrace.loader.rewrite.row_hours import TimeSource
from headrace.loader.storage.protocols import Storage
from headrace.pipeline.audit_store import has_audit_store, open_audit_store
from headrace.pipeline.load import SparkConnection
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.audit.storage.store import AuditStore

NOT_COUNTED: Final = "not compared with the counts of the audit"


def recount(
    settings: Settings,
    log: CommitLog,
    storage: Storage,
    topic: str,
    period: Period,
    show: Callable[[str], object],
) -> RecountReport:
    """Returns the comparison of a topic's files with the commits and the audit.

    Args:
        log: the commit log, after a call of `read_state`.
        storage: the warehouse.
        topic: a topic with a commit.
        period: limits the windows.
        show: receives the progress as a text.

    Raises:
        LoaderError, SessionFailed, JavaNotFoundError: the files cannot be counted.
    """
    loaded = log.state.topics[topic].load_schema
    times = TimeSource(loaded.time_property, settings.loader.of_topic(topic).time_fields)
    show(f"reading the commits of {topic}")
    plan = plan_recount(log, storage.files, topic, times, period)
    trail, note = _trail(settings, plan)

    def show_done(done: int) -> None:
        show(f"counting the rows of {topic} ({done:,} of {len(plan.units):,} files)")

    spark = SparkConnection(settings, storage, sys.stderr)
    try:
        return report_of(plan, spark.run_recounts(plan.units, show_done), trail, (note,) if note else ())
    finally:
        spark.close()


def _trail(settings: Settings, plan: RecountPlan) -> tuple[dict[int, WindowFacts], str]:
    """Returns the audit's counts of the period by window, and the reason why there are none."""
    try:
        if not has_audit_store(settings):
            return {}, f"{NOT_COUNTED}: it has no database"
        with open_audit_store(settings) as store:
            return _facts(store, plan)
    except StoreUnavailable as error:
        return {}, f"{NOT_COUNTED}: {error}"


def _facts(store: AuditStore, plan: RecountPlan) -> tuple[dict[int, WindowFacts], str]:
    counted = store.counted_commits().get(plan.topic)
    if counted is None:
        return {}, f"{NOT_COUNTED}: it has not counted this topic"
    if not plan.committed.newest <= counted.commit_number <= plan.state_number:
        return {}, (
            f"{NOT_COUNTED}: it has counted the commits up to {counted.commit_number}, and the files are those of "
            f"commit {plan.commit_number}; run this command again when no load runs"
        )
    period = plan.committed.period
    since_ms = None if period.since_ms is None else period.since_ms - WINDOW_MS + 1
    facts = store.facts(plan.topic, since_ms, period.until_ms)
    return {one.window_start_ms: one for one in facts}, ""
