"""The values of a status: findings and facts, and the table of kinds of findings. Pure.

A finding names an object, its problem, the command that shows more and the one that repairs it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from headrace.pipeline.status.metric import StatusMetric

FINDINGS_PER_KIND_MAX: Final = 3
"""Findings of one kind that a status shows one by one; the last one stands for the rest."""


class StatusSeverity(IntEnum):
    """How bad a finding is: the exit code of `headrace status` is that of the worst finding."""

    ATTENTION = 1
    FAILURE = 2


@dataclass(frozen=True, slots=True)
class StatusKind:
    """A kind of findings.

    `title` names the problem in a few words after the subject, as in `registry not answering`. `plural` names the
    subjects if there are several, such as `topics`. `show` and `repair` are the defaults of its findings; `{subject}`
    stands for the subject.
    """

    name: str
    severity: StatusSeverity
    title: str
    plural: str
    show: str
    repair: str


ATTENTION, FAILURE = StatusSeverity.ATTENTION, StatusSeverity.FAILURE

KINDS: Final[Mapping[str, StatusKind]] = {
    kind.name: kind
    for kind in (
        StatusKind("up-down", FAILURE, "not running", "processes", "headrace doctor", "headrace up"),
        StatusKind(
            "part-stopped", FAILURE, "stopped (state T)", "parts", "ps aux", "kill -CONT the process, or restart it"
        ),
        StatusKind(
            "part-silent",
            FAILURE,
            "not answering",
            "parts",
            "ps -o pid,stat,args on its host",
            "on its host: if its process is stopped (state T), kill -CONT it, else restart it",
        ),
        StatusKind(
            "part-down",
            FAILURE,
            "not running",
            "parts",
            "headrace doctor",
            "start it on its host, or correct the address in the settings",
        ),
        StatusKind(
            "database-down",
            FAILURE,
            "without its database",
            "registries",
            "headrace doctor",
            "start the database server of registry.database_url",
        ),
        StatusKind(
            "part-failing",
            FAILURE,
            "failing",
            "parts",
            "headrace doctor",
            "repair the cause that the error names",
        ),
        StatusKind(
            "directory-unreadable",
            FAILURE,
            "not readable",
            "directories",
            "headrace verify",
            "make it readable for the user of loads",
        ),
        StatusKind("file-missing", FAILURE, "missing", "files", "headrace verify", "restore it from a backup"),
        StatusKind(
            "file-length", FAILURE, "of another length than committed", "files", "headrace verify", "restore it"
        ),
        StatusKind("file-content", FAILURE, "changed", "files", "headrace verify --checksums", "restore it"),
        StatusKind("file-unreadable", FAILURE, "unreadable", "files", "headrace verify", "restore it"),
        StatusKind(
            "file-foreign", FAILURE, "read by queries without a commit", "files", "headrace verify", "move it away"
        ),
        StatusKind(
            "files-further",
            FAILURE,
            "with further missing or changed files",
            "topics",
            "headrace verify {subject}",
            "see each one with its repair: headrace verify {subject}",
        ),
        StatusKind(
            "table-wrong", FAILURE, "missing or not Headrace's", "tables", "headrace hive plan", "headrace hive repair"
        ),
        StatusKind(
            "commit-log-damaged",
            FAILURE,
            "damaged",
            "commits",
            "headrace verify",
            "restore the file from a backup of _headrace/ (docs/operations.md)",
        ),
        StatusKind(
            "data-lost",
            FAILURE,
            "with messages that expired or were deleted unread",
            "topics",
            "headrace offsets show {subject}",
            "accept the loss: HEADRACE__LOADER__ON_DATA_LOSS=skip headrace load --topic {subject}",
        ),
        StatusKind(
            "audit-missing",
            FAILURE,
            "with missing messages by the audit",
            "topics",
            "headrace audit report --topic {subject}",
            "send them again, or headrace audit accept {subject} --reason TEXT",
        ),
        StatusKind(
            "audit-silent",
            FAILURE,
            "with a tier that does not count",
            "topics",
            "headrace audit report --topic {subject}",
            "start the producers, loads or auditors that should count",
        ),
        StatusKind(
            "audit-incomplete",
            FAILURE,
            "not 99.9 % complete in its table",
            "topics",
            "headrace audit report --topic {subject}",
            "headrace load; or remove the cause for which loads fail",
        ),
        StatusKind(
            "server-errors",
            FAILURE,
            "responding with errors of the server",
            "parts",
            "headrace doctor",
            "remove the cause that its log names",
        ),
        StatusKind(
            "replica-late",
            FAILURE,
            "behind its source",
            "replicas",
            "headrace doctor",
            "start the source registry, or on the host of the replica: headrace registry replicate",
        ),
        StatusKind("disk-full", FAILURE, "full", "disks", "df -h", "free disk space"),
        StatusKind(
            "data-expires-soon",
            FAILURE,
            "with unread messages about to expire",
            "topics",
            "headrace load status",
            "headrace load; or raise retention.ms of the topic until loads have caught up",
        ),
        StatusKind(
            "segment-damaged",
            FAILURE,
            "with damaged segments",
            "partitions",
            "headrace broker verify",
            "restore the messages, then delete the .corrupt file",
        ),
        StatusKind(
            "not-checked",
            FAILURE,
            "not checked",
            "checks",
            "headrace doctor",
            "repair the cause, then run headrace status",
        ),
        StatusKind(
            "load-stuck",
            FAILURE,
            "not ending",
            "loads",
            "headrace load status",
            "kill the load: the next one continues",
        ),
        StatusKind("load-failed", FAILURE, "failed", "loads", "headrace load status", "headrace load"),
        StatusKind(
            "alarm-lost",
            FAILURE,
            "with messages that expired unread",
            "topics",
            "headrace accept",
            "send them again from their source, then headrace accept {subject} --kind lost --reason TEXT",
        ),
        StatusKind(
            "load-registry-refused",
            FAILURE,
            "rejecting the credentials of loads",
            "registries",
            "headrace doctor",
            "correct registry.client_user and registry.client_password, or registry.client_token, of the loads",
        ),
        StatusKind(
            "load-registry-unavailable",
            FAILURE,
            "not usable by the last load",
            "registries",
            "headrace doctor",
            "start the registry or correct registry.url; the next load continues",
        ),
        StatusKind("load-late", FAILURE, "late", "loads", "headrace load status", "headrace load"),
        StatusKind(
            "alerts-late",
            FAILURE,
            "not evaluated",
            "alerts",
            "headrace alerts list",
            "headrace up, or every minute with cron: headrace alerts check",
        ),
        StatusKind(
            "part-starting", ATTENTION, "starting", "parts", "headrace status", "wait, then run headrace status"
        ),
        StatusKind(
            "server-down",
            ATTENTION,
            "partly not answering",
            "parts",
            "headrace doctor",
            "start this server, or remove its address from the settings",
        ),
        StatusKind(
            "audit-log-incomplete",
            ATTENTION,
            "incomplete",
            "audit logs",
            "grep audit_log_not_written logs/registry.log in data_dir",
            "make registry.audit_log writable, append the lines that the server's log has, then restart the registry",
        ),
        StatusKind("clock-differs", ATTENTION, "wrong", "clocks", "timedatectl", "synchronize the clocks with NTP"),
        StatusKind(
            "part-restarted",
            ATTENTION,
            "restarted after a death",
            "parts",
            "tail logs/{subject}.log in data_dir",
            "none, unless it dies again: remove the cause that its log names",
        ),
        StatusKind(
            "data-skipped",
            ATTENTION,
            "with messages that expired unread and will be skipped",
            "topics",
            "headrace offsets show {subject}",
            "none, since loader.on_data_loss is skip: run loads more often, or raise retention.ms",
        ),
        StatusKind(
            "data-expires",
            ATTENTION,
            "with unread messages that expire",
            "topics",
            "headrace load status",
            "headrace load; or raise retention.ms of the topic",
        ),
        StatusKind(
            "partition-unavailable",
            ATTENTION,
            "with unavailable partitions",
            "topics",
            "headrace broker topics {subject}",
            "start the brokers of its partitions",
        ),
        StatusKind(
            "topic-deleted",
            ATTENTION,
            "deleted",
            "topics",
            "headrace broker topics",
            "create it again; or if it was deleted on purpose, add it to loader.topics_exclude: its table remains",
        ),
        StatusKind(
            "audit-differs",
            ATTENTION,
            "with other counts by the audit",
            "topics",
            "headrace audit report --topic {subject}",
            "remove the cause that the report names, or headrace audit accept {subject} --reason TEXT",
        ),
        StatusKind(
            "audit-corrupt",
            ATTENTION,
            "with corrupt batches in the log",
            "topics",
            "headrace audit run --once",
            "make an intact replica the leader or restore the log, before retention deletes the batch; else send its "
            "messages again",
        ),
        StatusKind(
            "audit-extra",
            ATTENTION,
            "with duplicated messages by the audit",
            "topics",
            "headrace audit report --topic {subject}",
            "make the producer idempotent, or headrace audit accept {subject} --reason TEXT",
        ),
        StatusKind(
            "audit-few-extra",
            ATTENTION,
            "with a few duplicated messages by the audit",
            "topics",
            "headrace audit report --topic {subject}",
            "headrace audit accept {subject} --reason TEXT",
        ),
        StatusKind(
            "audit-crashed",
            ATTENTION,
            "with messages of a crashed producer that did not arrive",
            "topics",
            "headrace audit report --topic {subject}",
            "send them again, unless the application did so after its restart; the finding ends after a day",
        ),
        StatusKind(
            "audit-ahead",
            ATTENTION,
            "with times in the future",
            "topics",
            "headrace audit report --topic {subject}",
            "correct the clock of the named host, or the time zone of the application",
        ),
        StatusKind(
            "audit-behind",
            ATTENTION,
            "with times in the past",
            "topics",
            "headrace audit report --topic {subject}",
            "correct the clock of the named host, or the time zone of the application",
        ),
        StatusKind(
            "audit-old",
            ATTENTION,
            "not up to date",
            "reports",
            "headrace audit report",
            "headrace up, or every hour or day with cron: headrace audit report",
        ),
        StatusKind("disk-low", ATTENTION, "low on space", "disks", "df -h", "free disk space"),
        StatusKind(
            "disk-fills",
            ATTENTION,
            "full within a day",
            "disks",
            "df -h",
            "free disk space, or shorten the retention of topics and tables",
        ),
        StatusKind(
            "lag-grows",
            ATTENTION,
            "falling behind",
            "loads",
            "headrace load status",
            "more tasks (loader.tasks) or more cores for Spark; see docs/operations.md",
        ),
        StatusKind(
            "load-imbalanced",
            ATTENTION,
            "imbalanced",
            "loads",
            "headrace load plan",
            "a smaller loader.range_bytes_max; or look for a slow machine or disk among the executors",
        ),
        StatusKind(
            "alerts-undelivered",
            ATTENTION,
            "not accepting alerts",
            "targets",
            "headrace alerts log",
            "correct its URL in [alerts] or start it; test it with headrace alerts test",
        ),
        StatusKind("not-applied", ATTENTION, "not applied", "topics", "headrace load status", "headrace load"),
        StatusKind(
            "topic-held-back",
            ATTENTION,
            "held back",
            "topics",
            "headrace quarantine preview {subject}",
            "headrace load --topic {subject}",
        ),
        StatusKind(
            "topic-waiting",
            ATTENTION,
            "waiting for a schema",
            "topics",
            "headrace quarantine preview {subject}",
            "register the schema of the topic, or exclude it with loader.topics_exclude",
        ),
        StatusKind(
            "files-unchecked",
            ATTENTION,
            "not compared with the commits",
            "warehouses",
            "headrace load status",
            "make _headrace/checks.json writable for loads; see the reason: headrace load",
        ),
        StatusKind(
            "compaction-failed",
            ATTENTION,
            "failed",
            "compactions",
            "grep compact runs.jsonl in data_dir/logs",
            "remove the cause, then run headrace compact",
        ),
        StatusKind(
            "load-problems",
            ATTENTION,
            "with problems",
            "topics",
            "headrace load plan --topic {subject}",
            "headrace load --topic {subject}",
        ),
        StatusKind(
            "alarm-quarantined",
            ATTENTION,
            "with messages in quarantine",
            "topics",
            "headrace quarantine list {subject}",
            "headrace quarantine replay {subject}; headrace quarantine discard {subject} --because TEXT; or "
            "headrace accept {subject} --kind quarantined --reason TEXT",
        ),
        StatusKind(
            "quarantine-share",
            ATTENTION,
            "with more than 0.1 % of its messages in quarantine",
            "topics",
            "headrace quarantine list {subject}",
            "correct the producers of these messages, then headrace quarantine replay {subject}",
        ),
        StatusKind(
            "alarm-corrupt",
            ATTENTION,
            "with skipped corrupt batches",
            "topics",
            "headrace accept",
            "send their messages again, then headrace accept {subject} --kind corrupt --reason TEXT",
        ),
        StatusKind(
            "alarm-replaced",
            ATTENTION,
            "with a truncated log",
            "topics",
            "headrace accept",
            "compare the table with its source, then headrace accept {subject} --kind replaced --reason TEXT",
        ),
        StatusKind(
            "alarm-recreated",
            ATTENTION,
            "re-created",
            "topics",
            "headrace accept",
            "check that no message of the former topic is missing, then headrace accept {subject} --kind recreated "
            "--reason TEXT",
        ),
        StatusKind(
            "alarm-incompatible",
            ATTENTION,
            "with a column of another type",
            "topics",
            "headrace hive history {subject}",
            "query the view that this prints: headrace hive latest {subject}; set a compatibility level in the "
            "registry; then headrace accept {subject} --kind incompatible --reason TEXT",
        ),
        StatusKind(
            "alarm-times",
            ATTENTION,
            "with implausible times",
            "topics",
            "headrace accept",
            "correct the time field of the schema (headrace.time), then headrace accept {subject} --kind times "
            "--reason TEXT",
        ),
        StatusKind(
            "alarm",
            ATTENTION,
            "with an alarm of a later release",
            "topics",
            "headrace accept",
            "use the release of the loads to accept it",
        ),
    )
}
"""All kinds of findings, by name. Findings of one severity are sorted in this order, the worst first."""

_ORDER: Final = {name: number for number, name in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class StatusFinding:
    """A problem that needs action. Create it with `finding`.

    Attributes:
        kind: name of a row of `KINDS`.
        subject: the object, such as a topic or a part.
        problem: a sentence without the subject: the problem and its cause.
        show: the command that shows more.
        repair: the command or the action that repairs it.
        since_ms: since when, in milliseconds since 1970; None if unknown.
        count: number of subjects with this problem; `subject` names the first.
        others: the further subjects, such as the other topics of an incident; may be empty if they are unknown.
        identity: identifies the problem within its kind, also while its text changes; "" is the subject.
        example: continues the sentence of the problem with an example that may quote a message. Only commands that read
            the files themselves show it: pages and alerts have readers without the permission `payload`.
    """

    kind: str
    subject: str
    problem: str
    show: str
    repair: str
    severity: StatusSeverity
    since_ms: int | None = None
    count: int = 1
    identity: str = ""
    example: str = ""
    others: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return KINDS[self.kind].title

    @property
    def subjects_text(self) -> str:
        """The subject, or the number of subjects and the first of them."""
        return self.subject if self.count == 1 else f"{self.count:,} {KINDS[self.kind].plural} ({self.subject}, …)"


def finding(
    kind: str,
    subject: str,
    problem: str,
    *,
    show: str = "",
    repair: str = "",
    severity: StatusSeverity | None = None,
    since_ms: int | None = None,
    count: int = 1,
    identity: str = "",
    example: str = "",
    others: tuple[str, ...] = (),
) -> StatusFinding:
    """Returns a finding with the defaults of its kind.

    Args:
        kind: name of a row of `KINDS`.
        severity: "" or None stand for the default of the kind, as for `show` and `repair`.

    For the remaining arguments see `StatusFinding`.
    """
    row = KINDS[kind]
    quoted = shlex.quote(subject)  # counts of any producer name topics, so a name may contain shell text
    return StatusFinding(
        kind,
        subject,
        problem,
        (show or row.show).replace("{subject}", quoted),
        (repair or row.repair).replace("{subject}", quoted),
        row.severity if severity is None else severity,
        since_ms,
        count,
        identity,
        example,
        others,
    )


@dataclass(frozen=True, slots=True)
class StatusFact:
    """A fact about the platform: one line of text below the findings, and metrics."""

    name: str
    text: str
    metrics: tuple[StatusMetric, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The facts and findings of one source. `is_checked` is False if it could not check its objects, so that a missing
    finding does not mean that all is well. `source` is its name in `SOURCES`, filled in by `collect`, and `skipped` the
    reason why the caller does not want it, "" for a source that was called."""

    facts: tuple[StatusFact, ...] = ()
    findings: tuple[StatusFinding, ...] = ()
    is_checked: bool = True
    source: str = ""
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """The status of the platform. `findings` are folded, the worst first; `facts` are in the order of the sources.
    `skipped` are the sources that the caller did not want, for the reason `skip_reason`."""

    checked_at_ms: int
    findings: tuple[StatusFinding, ...]
    facts: tuple[StatusFact, ...]
    skipped: tuple[str, ...] = ()
    skip_reason: str = ""

    @property
    def severity(self) -> int:
        """0 if all is well, else the worst severity of the findings; also the exit code of `headrace status`."""
        return int(max((found.severity for found in self.findings), default=0))


def folded(findings: Iterable[StatusFinding]) -> tuple[StatusFinding, ...]:
    """Returns the findings, the worst first. Findings of one kind with the same problem become one. Of the others of a
    kind, `FINDINGS_PER_KIND_MAX` remain, and the last of them stands for the rest. Within a kind and severity, the
    order of `findings` stays: a source returns the worst first."""
    by_problem: dict[tuple[str, str, StatusSeverity], list[StatusFinding]] = {}
    for found in findings:
        by_problem.setdefault((found.kind, found.problem + found.example, found.severity), []).append(found)
    by_kind: dict[str, list[StatusFinding]] = {}
    for equal in by_problem.values():
        by_kind.setdefault(equal[0].kind, []).append(_merged(equal))
    kept = [found for of_kind in by_kind.values() for found in _limited(of_kind)]
    return tuple(sorted(kept, key=_badness))


def _merged(equal: list[StatusFinding]) -> StatusFinding:
    """Returns one finding for several with the same problem, since the oldest of them."""
    since = [found.since_ms for found in equal if found.since_ms is not None]
    return dataclasses.replace(
        equal[0], count=sum(found.count for found in equal), since_ms=min(since) if since else None
    )


def _limited(of_kind: list[StatusFinding]) -> list[StatusFinding]:
    worst_first = sorted(of_kind, key=_badness)
    if len(worst_first) <= FINDINGS_PER_KIND_MAX:
        return worst_first
    *shown, last = worst_first[:FINDINGS_PER_KIND_MAX]
    rest = worst_first[FINDINGS_PER_KIND_MAX - 1 :]
    problem = f"{last.problem}; other problems of this kind: {len(rest) - 1:,}"
    return [*shown, dataclasses.replace(last, problem=problem, count=sum(found.count for found in rest))]


def _badness(found: StatusFinding) -> tuple[int, int]:
    return -found.severity, _ORDER[found.kind]
