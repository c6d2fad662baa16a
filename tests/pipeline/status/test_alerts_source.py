"""Findings of `headrace status` about the alerts themselves."""

from __future__ import annotations

from pathlib import Path

from headrace.pipeline.alerts.evaluate import evaluate_reports
from headrace.pipeline.alerts.rule import rules_of
from headrace.pipeline.alerts.storage import AlertStore, alert_address
from headrace.pipeline.alerts.target import targets_of
from headrace.pipeline.status.alerts import EVALUATED_MS_MAX, TRIED_MS, alerts
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, finding
from headrace.settings import AlertsSettings, Settings
from support.free_ports import free_port

NOW_MS = 1_769_843_604_120


def test_alerts_without_a_target_are_no_finding(tmp_path: Path) -> None:
    report = alerts(StatusContext(Settings(data_dir=tmp_path), NOW_MS))
    assert not report.findings
    assert not list(tmp_path.iterdir())


def test_alerts_that_were_not_evaluated_are_a_finding(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/token"
    settings = Settings(data_dir=tmp_path, alerts=AlertsSettings(webhook_urls=(url,)))
    report = alerts(StatusContext(settings, NOW_MS))
    assert [(one.kind, one.since_ms) for one in report.findings] == [("alerts-late", None)]
    assert not list(tmp_path.iterdir())

    lost = SourceReport(findings=(finding("data-lost", "orders", "lost"),), source="lag")
    with AlertStore(alert_address(settings)) as store:
        result = evaluate_reports(store, [lost], rules_of(()), targets_of(settings), NOW_MS)
    assert len(result.failures) == 1

    report = alerts(StatusContext(settings, NOW_MS + min(TRIED_MS, EVALUATED_MS_MAX)))
    assert not report.findings
    metrics = {(one.name, one.labels): one.value for fact in report.facts for one in fact.metrics}
    assert metrics["headrace_alerts_firing", (("severity", "page"),)] == 1
    assert metrics["headrace_alerts_undelivered", ()] == 1

    report = alerts(StatusContext(settings, NOW_MS + EVALUATED_MS_MAX + 1))
    assert [one.kind for one in report.findings] == ["alerts-undelivered", "alerts-late"]
    assert report.findings[1].since_ms == NOW_MS
    assert "Connection refused" in report.findings[0].problem
    assert "token" not in str(report)
