"""Files and tables that loads found missing or changed, and how far loads have compared them with the commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from headrace.loader.inspect.finding_texts import grouped, repair_text, show_command
from headrace.loader.inspect.findings import ConsistencyCheck, VerifyFinding
from headrace.loader.inspect.open_findings import CheckProgress, OpenFinding, WarehouseChecks, read_checks
from headrace.loader.work_unit import FileKind
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.status.wording import age_text, count_text

UNCHECKED_MS: Final = 3_600_000
"""A commit that is newer than the last comparison by this time shows that loads do not compare files any more."""

KIND_OF_CHECK: Final[Mapping[ConsistencyCheck, str]] = {
    ConsistencyCheck.LISTING: "directory-unreadable",
    ConsistencyCheck.PLACE: "file-missing",
    ConsistencyCheck.LENGTH: "file-length",
    ConsistencyCheck.CHECKSUM: "file-content",
    ConsistencyCheck.ROWS: "file-unreadable",
    ConsistencyCheck.FOREIGN: "file-foreign",
    ConsistencyCheck.COMMITS: "commit-log-damaged",
    ConsistencyCheck.TABLE: "table-wrong",
}


def warehouse(context: StatusContext) -> SourceReport:
    """Reports the findings of loads about files and tables, and when everything was last compared."""
    if not context.state.commit_number:
        return SourceReport((StatusFact("files", "nothing has been loaded yet"),))
    checks = read_checks(context.log.storage)
    findings = [_finding(found) for found in grouped(checks.open)]
    findings += [_further(topic, number) for topic, number in checks.more.items()]
    findings += _unchecked(checks, context)
    return SourceReport((_fact(checks, context.now_ms),), tuple(findings))


def _finding(found: tuple[OpenFinding, ...]) -> StatusFinding:
    first = found[0].finding
    table = " quarantine" if first.kind is FileKind.QUARANTINE else ""
    where = f"topic {first.topic}{f',{table} {first.time_partition}' if first.time_partition else ''}"
    return finding(
        KIND_OF_CHECK[first.check],
        first.where or first.topic,
        f"{where}: {first.message}",
        show=_show(first),
        repair=repair_text(first),
        since_ms=min(one.since_ms for one in found),
        count=len(found),
    )


def _show(found: VerifyFinding) -> str:
    if found.check is ConsistencyCheck.TABLE:
        return f"headrace hive plan {found.topic}"
    return show_command(found.topic)


def _further(topic: str, number: int) -> StatusFinding:
    return finding("files-further", topic, f"{count_text(number, 'file')} more", show=show_command(topic))


def _unchecked(checks: WarehouseChecks, context: StatusContext) -> Iterator[StatusFinding]:
    behind_ms = context.state.committed_at_ms - checks.checked_at_ms
    if behind_ms > UNCHECKED_MS:
        last = "never" if not checks.checked_at_ms else f"last {age_text(context.now_ms - checks.checked_at_ms)} ago"
        problem = f"loads have compared the files with the commits {last}"
        yield finding("files-unchecked", "warehouse", problem)


def _fact(checks: WarehouseChecks, now_ms: int) -> StatusFact:
    number = len(checks.open) + sum(checks.more.values())
    parts = (("names and lengths", checks.listed), ("contents", checks.read))
    progress = "; ".join(f"all {name} compared {_age(one, now_ms)}" for name, one in parts)
    return StatusFact(
        "files",
        f"{count_text(number, 'finding')}; {progress}",
        (
            StatusMetric("headrace_warehouse_findings", number),
            *(
                StatusMetric(
                    "headrace_warehouse_compared_timestamp_seconds",
                    one.complete_since_ms / 1000,
                    (("part", name.replace(" ", "_")),),
                )
                for name, one in parts
            ),
        ),
    )


def _age(progress: CheckProgress, now_ms: int) -> str:
    if progress.complete_since_ms:
        return f"within the last {age_text(max(1000, now_ms - progress.complete_since_ms))}"
    if progress.round_started_ms:
        return f"not yet completely (begun {age_text(now_ms - progress.round_started_ms)} ago)"
    return "never"
