"""The metrics of a status, with the table of their names. Pure; `pipeline.metrics` renders them.

Counters come from totals that loads store, in the state of the commit log and in the run log. They never decrease, and
reading them costs the same after a year. A label with topics has at most `TOPICS_MAX` of them, and `OTHER` for the
rest, so that the number of series has a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TOPICS_MAX: Final = 200
"""Topics with their own series of a metric, as in the broker's metrics."""
OTHER: Final = "(other)"
"""The label of all further topics; not a valid name of a topic."""


Labels = tuple[tuple[str, str], ...]


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """Type and help text of the samples with one name. A counter's name ends in `_total`; the samples of a histogram
    have the suffixes `_bucket`, `_count` and `_sum`."""

    name: str
    kind: MetricType
    text: str


@dataclass(frozen=True, slots=True)
class StatusMetric:
    """A sample for Prometheus. `name` is the name of a row of `METRICS`, with a suffix if that is a histogram."""

    name: str
    value: float
    labels: Labels = ()


GAUGE, COUNTER, HISTOGRAM = MetricType.GAUGE, MetricType.COUNTER, MetricType.HISTOGRAM

METRICS: Final[Mapping[str, MetricFamily]] = {
    family.name: family
    for family in (
        MetricFamily("headrace_status_severity", GAUGE, "0 all well, 1 needs attention, 2 failure"),
        MetricFamily("headrace_status_checked_timestamp_seconds", GAUGE, "when the status was checked"),
        MetricFamily("headrace_status_findings", GAUGE, "findings by kind and severity; no series for kinds without"),
        MetricFamily("headrace_up_part", GAUGE, "1 if the part answers, else 0"),
        MetricFamily(
            "headrace_up_part_resident_memory_bytes", GAUGE, "memory of the processes of a part, on this machine"
        ),
        MetricFamily("headrace_up_part_connections", GAUGE, "open connections to the port of a part, on this machine"),
        MetricFamily(
            "headrace_up_part_heap_used_bytes", GAUGE, "used heap of the JVM of metastore and SQL server, with garbage"
        ),
        MetricFamily("headrace_up_part_heap_max_bytes", GAUGE, "size of the heap of this JVM"),
        MetricFamily("headrace_sql_queries_running", GAUGE, "queries that the SQL server runs"),
        MetricFamily("headrace_sql_queries_total", COUNTER, "ended queries by outcome, since the SQL server's start"),
        MetricFamily(
            "headrace_up_part_error_ratio",
            GAUGE,
            "share of the responses of registry, console and gateway in the last minutes with status 5xx",
        ),
        MetricFamily("headrace_load_runs_total", COUNTER, "loads by outcome, since the run log exists"),
        MetricFamily("headrace_load_duration_seconds", HISTOGRAM, "durations of the loads that did not yield"),
        MetricFamily("headrace_load_rows_total", COUNTER, "rows that loads have committed"),
        MetricFamily(
            "headrace_load_read_bytes_total", COUNTER, "bytes of record batches that committed loads have read"
        ),
        MetricFamily(
            "headrace_load_quarantined_total",
            COUNTER,
            f'quarantined messages by topic and code of the reason; "{OTHER}" is all but the first {TOPICS_MAX} topics '
            "with any",
        ),
        MetricFamily(
            "headrace_load_quarantine_ratio",
            GAUGE,
            f"share of the messages of a topic that the loads of the last day quarantined; the {TOPICS_MAX} topics "
            "with the largest, no series for topics without",
        ),
        MetricFamily("headrace_load_interval_seconds", GAUGE, "time between the starts of loads"),
        MetricFamily(
            "headrace_load_last_start_timestamp_seconds", GAUGE, "start of the newest load that did not yield"
        ),
        MetricFamily("headrace_load_last_success_timestamp_seconds", GAUGE, "end of the newest load that did not fail"),
        MetricFamily(
            "headrace_load_imbalance_ratio", GAUGE, "slowest task's time divided by the mean, of the newest load"
        ),
        MetricFamily("headrace_load_commit_number", GAUGE, "newest commit of the commit log"),
        MetricFamily("headrace_load_topics", GAUGE, "topics that have been loaded"),
        MetricFamily("headrace_load_topics_not_applied", GAUGE, "topics with commits that are not applied"),
        MetricFamily("headrace_load_problem_topics", GAUGE, "topics with problems in the newest load"),
        MetricFamily(
            "headrace_load_held_back",
            GAUGE,
            "messages of a topic that the newest load did not commit; no series for topics without",
        ),
        MetricFamily(
            "headrace_load_lag_messages",
            GAUGE,
            f'unread messages of a topic; "{OTHER}" is all but the {TOPICS_MAX} topics with most',
        ),
        MetricFamily("headrace_load_unread_messages", GAUGE, "unread messages of all topics"),
        MetricFamily("headrace_held_back_messages", GAUGE, "messages that the newest load did not commit"),
        MetricFamily("headrace_quarantined_messages", GAUGE, "messages in the quarantine"),
        MetricFamily(
            "headrace_quarantined_messages_not_accepted", GAUGE, "messages in the quarantine that were not accepted"
        ),
        MetricFamily(
            "headrace_audit_ingest_timestamp_seconds", GAUGE, "time at which the audit topic was last read to its end"
        ),
        MetricFamily("headrace_audit_verdicts_timestamp_seconds", GAUGE, "time of the newest update of the verdicts"),
        MetricFamily(
            "headrace_audit_age_max_seconds",
            GAUGE,
            "age of counts and verdicts from which they are not up to date: 900 where `headrace up` runs the auditor, "
            "else 86400",
        ),
        MetricFamily(
            "headrace_audit_windows",
            GAUGE,
            f'windows of the last 24 hours by topic and verdict; "{OTHER}" sums all but {TOPICS_MAX} topics',
        ),
        MetricFamily("headrace_audit_missing_messages", GAUGE, "missing messages of open events, by topic and hop"),
        MetricFamily("headrace_audit_extra_messages", GAUGE, "extra messages of open events, by topic and hop"),
        MetricFamily(
            "headrace_audit_undelivered_messages",
            GAUGE,
            "messages of the last 24 hours that a crashed producer sent and that did not arrive, by topic",
        ),
        MetricFamily("headrace_audit_future_messages", GAUGE, "messages with times in the future, by topic"),
        MetricFamily(
            "headrace_audit_past_messages",
            GAUGE,
            "messages of the last six hours of producers whose clock is more than half an hour behind, by topic",
        ),
        MetricFamily(
            "headrace_audit_extra_ratio",
            GAUGE,
            "largest share of extra messages in a window of a topic, of the windows with more than 10; no series for "
            "topics without",
        ),
        MetricFamily(
            "headrace_audit_events", GAUGE, "incidents that are open, or were closed in the last 24 hours, by severity"
        ),
        MetricFamily(
            "headrace_audit_complete_until_timestamp_seconds",
            GAUGE,
            "all windows of a topic up to this time are complete, in the log and in the table",
        ),
        MetricFamily(
            "headrace_audit_completeness_seconds",
            HISTOGRAM,
            "time from the end of a complete window until a tier had a share of its messages: 99, 99.9 or 100 %",
        ),
        MetricFamily(
            "headrace_audit_tier_last_count_timestamp_seconds", GAUGE, "creation of the newest counts of a tier"
        ),
        MetricFamily("headrace_audit_topics_with_findings", GAUGE, "topics with findings of the audit"),
        MetricFamily("headrace_console_requests_total", COUNTER, "responses of the console by endpoint and status"),
        MetricFamily("headrace_console_request_seconds", HISTOGRAM, "durations of the console's requests"),
        MetricFamily("headrace_alerts_firing", GAUGE, "firing alerts by severity"),
        MetricFamily("headrace_alerts_undelivered", GAUGE, "notifications that targets have rejected and not accepted"),
        MetricFamily(
            "headrace_alerts_evaluated_timestamp_seconds", GAUGE, "time of the newest evaluation of the alerts"
        ),
        MetricFamily("headrace_disk_free_bytes", GAUGE, "free space of the disk with a directory"),
        MetricFamily("headrace_disk_size_bytes", GAUGE, "size of the disk with a directory"),
        MetricFamily("headrace_warehouse_findings", GAUGE, "missing or changed files and tables, as loads found them"),
        MetricFamily(
            "headrace_warehouse_compared_timestamp_seconds",
            GAUGE,
            "all files were compared with the commits at or after this time",
        ),
    )
}
"""All metrics by name, in the order of a page."""


def largest_topics(name: str, by_topic: Mapping[str, float]) -> list[StatusMetric]:
    """Returns a gauge for each of the topics with the largest values, and the sum of the others."""
    largest_first = sorted(by_topic, key=lambda topic: (-by_topic[topic], topic))
    found = [StatusMetric(name, by_topic[topic], (("topic", topic),)) for topic in largest_first[:TOPICS_MAX]]
    others = largest_first[TOPICS_MAX:]
    if others:
        found.append(StatusMetric(name, sum(by_topic[topic] for topic in others), (("topic", OTHER),)))
    return found


def histogram(
    name: str, bounds: Iterable[float], counts: Iterable[int], total: float, labels: Labels = ()
) -> list[StatusMetric]:
    """Returns the samples of a histogram.

    Args:
        bounds: the upper bounds of the buckets, without infinity.
        counts: the number of values in each bucket, and at the end of those beyond the bounds.
        total: the sum of all values.
        labels: further labels of all samples.
    """
    found, cumulative = [], 0
    for bound, number in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        cumulative += number
        found.append(StatusMetric(f"{name}_bucket", cumulative, (*labels, ("le", bound))))
    return [*found, StatusMetric(f"{name}_count", cumulative, labels), StatusMetric(f"{name}_sum", total, labels)]
