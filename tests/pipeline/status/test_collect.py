"""Folding and order of findings, and sources that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.status import print_status
from headrace.loader.run_log import RunLine, append_line
from headrace.pipeline.status import collect
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import (
    FINDINGS_PER_KIND_MAX,
    KINDS,
    PlatformStatus,
    SourceReport,
    StatusFact,
    finding,
    folded,
)
from headrace.pipeline.status.metric import METRICS, MetricType
from headrace.settings import Settings


def test_findings_with_the_same_problem_become_one_since_the_oldest() -> None:
    found = folded(
        finding("load-problems", topic, "no schema", since_ms=since)
        for topic, since in (("a", 30), ("b", 20), ("c", 40))
    )
    assert [(one.subject, one.count, one.since_ms) for one in found] == [("a", 3, 20)]


def test_findings_of_a_kind_are_limited_and_still_counted() -> None:
    found = folded(finding("load-problems", f"t{number}", f"problem {number}") for number in range(50))
    assert len(found) == FINDINGS_PER_KIND_MAX
    assert sum(one.count for one in found) == 50


def test_summary_counts_all_subjects_of_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    found = folded(finding("topic-held-back", f"t{number}", f"problem {number}") for number in range(9))
    print_status(PlatformStatus(0, found, ()))
    assert capsys.readouterr().out.splitlines()[0] == "ATTENTION: 9 topics (t0, …) held back"


def test_findings_of_a_kind_stay_in_the_order_of_their_source() -> None:
    flood = finding("alarm-quarantined", "flood", "501 messages")
    others = [finding("alarm-quarantined", f"t{number}", "1 message") for number in range(7)]
    assert [(one.subject, one.count) for one in folded([flood, *others])] == [("flood", 1), ("t0", 7)]


def test_failures_precede_findings_that_need_attention() -> None:
    kinds = [*reversed(KINDS)]
    found = folded(finding(kind, "x", "y") for kind in kinds)
    assert [one.kind for one in found] == sorted(KINDS, key=lambda kind: -KINDS[kind].severity)


def test_text_of_thousands_of_findings_is_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("load-problems", "data-lost", "topic-held-back", "not-applied")
    findings = (finding(kind, f"topic-{n}", f"{n} " + "long\n" * 300) for n in range(2_000) for kind in kinds)
    print_status(PlatformStatus(0, folded(findings), (StatusFact("lag", "none"),)))
    first, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * FINDINGS_PER_KIND_MAX * len(kinds) + 1
    assert max(map(len, lines)) < 600
    assert all(KINDS[kind].title in first for kind in kinds)


def test_commands_name_the_subject() -> None:
    found = finding("load-problems", "orders", "p", show="headrace quarantine list {subject}")
    assert found.show == "headrace quarantine list orders"


def test_a_failed_source_is_a_failure_and_hides_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: StatusContext) -> SourceReport:
        raise OSError(5, "Input/output error")

    def reporting(context: StatusContext) -> SourceReport:
        return SourceReport(findings=(finding("load-problems", "orders", "p"),))

    monkeypatch.setattr(collect, "SOURCES", {"files": broken, "other": reporting})
    status = collect.platform_status(Settings(data_dir=tmp_path))
    assert [(one.kind, one.subject) for one in status.findings] == [
        ("not-checked", "files"),
        ("load-problems", "orders"),
    ]
    assert status.findings[0].problem == "Input/output error"
    assert status.severity == 2


def test_a_value_that_failed_is_not_requested_again(tmp_path: Path) -> None:
    context, calls = StatusContext(Settings(data_dir=tmp_path)), []

    def failing() -> int:
        calls.append(1)
        raise OSError("no route")

    for _ in range(3):
        with pytest.raises(OSError, match="no route"):
            context.once("brokers", failing)
    assert len(calls) == 1


def test_names_of_metrics_have_the_suffix_of_their_type_alone() -> None:
    """promtool rejects others."""
    for name, family in METRICS.items():
        assert name.endswith("_total") == (family.kind is MetricType.COUNTER), name
        assert not name.endswith(("_count", "_sum", "_bucket", "_info")), name


@pytest.mark.parametrize("form", ["text", "json", "prometheus"])
def test_a_failed_load_is_a_failure_in_every_format(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append_line(tmp_path / "logs" / "runs.jsonl", RunLine(1_000_000, 5, "failed", 2, error="no broker"))
    assert main(["status", "--data-dir", str(tmp_path), "--format", form]) == 2
    output = capsys.readouterr().out
    if form == "json":
        document = json.loads(output)
        assert list(document) == ["format", "severity", "summary", "checked_at_ms", "findings", "facts"]
        assert "load-failed" in [one["kind"] for one in document["findings"]]
    elif form == "prometheus":
        assert 'headrace_status_findings{kind="load-failed",severity="failure"} 1.0' in output
        assert "headrace_status_severity 2.0" in output
    else:
        assert any("no broker" in line for line in output.splitlines()[:10])
