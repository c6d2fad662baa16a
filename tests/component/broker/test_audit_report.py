"""`headrace audit report` as an on-call engineer runs it."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer

from headrace import Producer
from headrace.audit.row import AuditOutcome, AuditRow, Tier, range_row_id
from headrace.audit.storage.store import AuditStore
from headrace.cli import main
from headrace.pipeline.status.audit import REPORT_AGE_MS_MAX, audit
from headrace.pipeline.status.context import StatusContext
from headrace.settings import KafkaSettings, RegistrySettings, Settings

pytestmark = pytest.mark.servers

SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "timestamp", "type": "long"}]}'
T0 = 1_356_998_400_000


def report(
    settings: Settings, capsys: pytest.CaptureFixture[str], *more: str, verb: str = "report"
) -> tuple[int, str, str]:
    code = main(
        [
            "audit",
            verb,
            "--data-dir",
            str(settings.data_dir),
            "--registry-url",
            settings.registry.url,
            "--bootstrap-servers",
            settings.kafka.bootstrap_servers,
            *more,
        ]
    )
    output = capsys.readouterr()
    return code, output.out, output.err


def follow(settings: Settings, topic: str, **changes: Any) -> None:
    """Stands for the loader's audit applier: derives the rows of broker and loader from the producer's."""
    with AuditStore(settings.data_dir / "audit.db") as store:
        (counted,) = [row for row in store.rows(topic) if row.tier is Tier.PRODUCER]
        for tier, outcome in ((Tier.BROKER, AuditOutcome.STORED), (Tier.LOADER, AuditOutcome.WRITTEN)):
            row = dataclasses.replace(
                counted,
                id=range_row_id(tier, outcome, topic, 0, 0, counted.count, counted.window_start_ms),
                tier=tier,
                outcome=outcome,
                sent=0,
                partition=0,
                start=0,
                end=counted.count,
                **changes,
            )
            store.add_rows([row])


def produce(settings: Settings, topic: str) -> None:
    with Producer(settings, app="shop") as producer:
        for n in range(5):
            producer.send(topic, {"timestamp": T0 + n}, key=str(n), schema=SCHEMA)


def test_a_topic_goes_from_pending_to_complete(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    produce(settings, "whole")
    code, out, _ = report(settings, capsys, "--topic", "whole")
    assert (code, "pending" in out) == (0, True)
    follow(settings, "whole")
    code, out, _ = report(settings, capsys, "--topic", "whole")
    assert code == 0
    assert out.splitlines()[3].split()[:6] == ["whole", "complete", "5", "5", "5", "5"]


def test_report_names_window_of_lost_messages(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__AUDIT__GRACE", "0s")
    produce(settings, "holed")
    report(settings, capsys)
    follow(settings, "holed", count=3, fingerprint=1)
    code, out, _ = report(settings, capsys, "--topic", "holed")
    assert code == 1
    assert re.search(r"2013-01-01 00:00Z .*\b2 of 5 messages\b", out)
    code, out, _ = report(settings, capsys, "--topic", "holed", "--format", "json")
    assert code == 1
    (topic,) = json.loads(out)["topics"]
    assert topic["verdict"] == "missing"
    assert topic["counts"] == {"sent": 5, "acknowledged": 5, "stored": 3, "written": 3}
    (window,) = topic["incomplete_windows"]
    assert (window["window_start_ms"], window["difference"]) == (T0, -2)


def test_silent_producers_are_no_loss(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    plain = AuditRow(
        id="x",
        tier=Tier.BROKER,
        outcome=AuditOutcome.STORED,
        topic="plain-client",
        window_start_ms=T0,
        count=2,
        bytes=2,
        fingerprint=3,
        application="headrace-load",
        host="h",
        instance="w",
        emitted_at_ms=T0,
        partition=0,
        start=0,
        end=2,
    )
    with AuditStore(settings.data_dir / "audit.db") as store:
        store.add_rows([plain, dataclasses.replace(plain, id="y", tier=Tier.LOADER, outcome=AuditOutcome.WRITTEN)])
    code, out, _ = report(settings, capsys, "--topic", "plain-client", "--format", "json")
    (topic,) = json.loads(out)["topics"]
    assert (code, topic["verdict"], "sent" in topic["counts"]) == (0, "complete", False)


def test_topic_without_loads_has_no_verdict(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__AUDIT__GRACE", "0s")
    produce(settings, "unloaded")
    assert report(settings, capsys, "--topic", "unloaded")[0] == 2


def test_finding_can_be_accepted_with_reason_and_revoked(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__AUDIT__GRACE", "0s")
    produce(settings, "given-up")
    report(settings, capsys)
    follow(settings, "given-up", count=3, fingerprint=1)
    assert report(settings, capsys, "--topic", "given-up")[0] == 1
    why = ("given-up", "--reason", "disk of kafka-2 lost")
    assert "dry run" in report(settings, capsys, *why, "--dry-run", verb="accept")[1]
    assert report(settings, capsys, "--topic", "given-up")[0] == 1
    elsewhere = report(settings, capsys, *why, "--since", "2013-01-01 00:10Z", verb="accept")
    assert (elsewhere[0], "0 windows of given-up" in elsewhere[1]) == (0, True)
    code, out, _ = report(settings, capsys, *why, verb="accept")
    assert (code, "1 window of given-up" in out) == (0, True)
    code, out, _ = report(settings, capsys, "--topic", "given-up")
    assert code == 0
    assert re.search(r"accepted +2013-01-01 00:00Z .*\b2 of 5 messages\b", out)
    assert out.count("disk of kafka-2 lost") == 1
    report(settings, capsys, "given-up", "--withdraw", verb="accept")
    assert report(settings, capsys, "--topic", "given-up")[0] == 1
    monkeypatch.setenv("HEADRACE__AUDIT__FINDINGS_TTL", "0s")
    code, out, _ = report(settings, capsys, "--topic", "given-up")
    assert (code, "2013-01-01" in out) == (0, True)


def audit_findings(settings: Settings, kind: str) -> str:
    """Returns the problems of the audit's findings of a kind in `headrace status`, with the topics."""
    findings = audit(StatusContext(settings)).findings
    return "\n".join(f"{one.subject}: {one.problem}" for one in findings if one.kind == kind)


def test_status_shows_findings_until_they_are_accepted(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__AUDIT__GRACE", "0s")
    produce(settings, "a-finding")
    report(settings, capsys)
    follow(settings, "a-finding", count=3, fingerprint=1)
    assert "a-finding" not in audit_findings(settings, "audit-missing"), "not compared yet"
    report(settings, capsys, "--topic", "a-finding")
    assert "a-finding" in audit_findings(settings, "audit-missing")
    assert report(settings, capsys, "a-finding", "--reason", "ticket 7", verb="accept")[0] == 0
    assert "a-finding" not in audit_findings(settings, "audit-missing")
    report(settings, capsys, "a-finding", "--withdraw", verb="accept")
    assert "a-finding" in audit_findings(settings, "audit-missing")
    tomorrow_ms = time.time_ns() // 1_000_000 + REPORT_AGE_MS_MAX + 60_000
    assert "audit-old" in [one.kind for one in audit(StatusContext(settings, tomorrow_ms)).findings]


def test_report_shows_messages_of_producer_without_counts(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__AUDIT__GRACE", "0s")
    produce(settings, "two-kinds")
    report(settings, capsys)
    follow(settings, "two-kinds", count=7, fingerprint=1)
    code, out, _ = report(settings, capsys, "--topic", "two-kinds")
    assert (code, out.splitlines()[3].split()[1]) == (0, "untracked")
    assert re.search(r"\b2 messages\b", out)
    monkeypatch.setenv("HEADRACE__AUDIT__COUNTED_TOPICS", "two-.*")
    code, out, _ = report(settings, capsys, "--topic", "two-kinds")
    assert (code, out.splitlines()[3].split()[1]) == (1, "extra")


def test_period_limits_the_report(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    produce(settings, "in-2013")
    report(settings, capsys)
    follow(settings, "in-2013")
    period = ("--topic", "in-2013", "--since", "2013-01-01", "--until", "2013-01-02")
    code, out, _ = report(settings, capsys, *period)
    assert code == 0
    assert re.search(r"^table +99\.9 % +1 ", out, re.MULTILINE), "the times to completeness"
    document = json.loads(report(settings, capsys, *period, "--format", "json")[1])
    assert document["completeness"]["log"]["99.9"]["windows"] == 1
    code, _, err = report(settings, capsys, "--topic", "in-2013", "--since", "7d")
    assert (code, "in-2013" in err) == (2, True)
    with pytest.raises(SystemExit):
        report(settings, capsys, "--since", "soon")
    assert "'soon'" in capsys.readouterr().err


def test_bad_audit_messages_are_counted_and_skipped(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    produce(settings, "beside")
    raw = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    raw.produce(settings.audit.topic, b"not a row")
    raw.flush(30)
    code, out, err = report(settings, capsys, "--topic", "beside")
    assert (code, "beside" in out) == (0, True)
    assert re.search(r"\b1 messages?\b", err)
    code, out, err = report(settings, capsys, "--topic", "beside")
    assert (code, err) == (0, "")


def test_impossible_report_gives_one_line_error(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = report(settings, capsys, "--topic", "never-seen")
    assert (code, err.count("\n")) == (2, 1)
    assert "never-seen" in err


@pytest.mark.parametrize("down", ["brokers", "registry"])
def test_report_is_marked_stale_if_a_service_is_down(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, down: str
) -> None:
    topic = f"kept-without-{down}"
    produce(settings, topic)
    report(settings, capsys)
    follow(settings, topic)
    produce(settings, topic)  # the report needs stored rows
    monkeypatch.setattr("headrace.audit.ingest.BOOTSTRAP_TIMEOUT_S", 0.5)
    nowhere = (
        dataclasses.replace(settings, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
        if down == "brokers"
        else dataclasses.replace(settings, registry=RegistrySettings(url="http://127.0.0.1:1"))
    )
    code, out, err = report(nowhere, capsys, "--topic", topic)
    assert code == 2
    assert out.splitlines()[3].split()[:6] == [topic, "complete", "5", "5", "5", "5"]
    assert "127.0.0.1:1" in err.splitlines()[-1]
    code, out, _ = report(nowhere, capsys, "--topic", topic, "--format", "json")
    assert (code, "127.0.0.1:1" in json.loads(out)["not_fresh"]) == (2, True)
