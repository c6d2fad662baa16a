"""The first sentence of the console: is anything missing, late or doubled? Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.audit.event import Incident
from headrace.audit.verdict import AuditVerdict
from headrace.console.formats import plural
from headrace.pipeline.status.finding import PlatformStatus, StatusFinding, StatusSeverity

AUDIT_KINDS: Final = frozenset({"audit-missing", "audit-extra", "audit-few-extra", "audit-differs", "audit-silent"})
"""Findings of the status about incidents of the audit, which pages show as incidents."""
GOOD, WARN, BAD, UNSURE = "good", "warn", "bad", "unsure"

_ORDER: Final = (AuditVerdict.MISMATCH, AuditVerdict.MISSING, AuditVerdict.EXTRA, AuditVerdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Headline:
    """The sentence, and how bad it is: `good`, `warn`, `bad` or `unsure`."""

    level: str
    sentence: str


def headline(
    incidents: Sequence[Incident] | None, topics: int, status: PlatformStatus | None, *, is_checking: bool = False
) -> Headline:
    """Returns the sentence about the state of the platform.

    Args:
        incidents: the open incidents; None if they are not known.
        topics: the number of topics with counts.
        status: the findings of all other sources; None if they are not known.
        is_checking: whether the check that finds them still runs.
    """
    found = other_findings(status)
    failures = sum(one.count for one in found if one.severity == StatusSeverity.FAILURE)
    if incidents is None:
        return Headline(UNSURE, "It is not known whether messages are missing.")
    affected = {verdict: _topics(incidents, {verdict}) for verdict in _ORDER}
    lost = _topics(incidents, {AuditVerdict.MISSING, AuditVerdict.MISMATCH})
    if lost:
        words = "missing" if not affected[AuditVerdict.MISMATCH] else "missing or altered"
        return Headline(BAD, f"Messages are {words} in {plural(len(lost), 'topic')}.")
    if affected[AuditVerdict.EXTRA]:
        extra = plural(len(affected[AuditVerdict.EXTRA]), "topic")
        return Headline(WARN, f"No message is missing, but {extra} {_have(extra)} more messages than were sent.")
    if failures:
        return Headline(BAD, f"{_arrived(topics)} {plural(failures, 'failure')} {_need(failures)} action.")
    if affected[AuditVerdict.UNKNOWN]:
        silent = plural(len(affected[AuditVerdict.UNKNOWN]), "topic")
        return Headline(WARN, f"No message is known to be missing, but {silent} {_have(silent)} a tier without counts.")
    if status is None:
        state = "being checked" if is_checking else "not known"
        return Headline(UNSURE, f"{_arrived(topics)} The state of the servers is {state}.")
    if status.skipped and not found:
        return Headline(UNSURE, f"{_arrived(topics)} The state of loads and files is not known here.")
    if found:
        count = sum(one.count for one in found)
        return Headline(WARN, f"{_arrived(topics)} {plural(count, 'other finding')} {_need(count)} attention.")
    return Headline(GOOD if topics else UNSURE, _arrived(topics))


def other_findings(status: PlatformStatus | None) -> list[StatusFinding]:
    """Returns the findings of a status without those about incidents of the audit."""
    return [] if status is None else [one for one in status.findings if one.kind not in AUDIT_KINDS]


def worst_first(incidents: Iterable[Incident]) -> list[Incident]:
    """Returns incidents, the most severe verdict first, then the newest first."""
    return sorted(incidents, key=lambda one: (_ORDER.index(one.verdict), -one.start_ms, one.id))


def _topics(incidents: Iterable[Incident], verdicts: set[AuditVerdict]) -> set[str]:
    return {topic for one in incidents if one.verdict in verdicts for topic in one.topics}


def _arrived(topics: int) -> str:
    return "Every message that was sent has arrived." if topics else "No messages have been counted yet."


def _have(counted: str) -> str:
    return "has" if counted.startswith("1 ") else "have"


def _need(count: int) -> str:
    return "needs" if count == 1 else "need"
