"""The commit log and its appliers: commits that cannot be read, and topics with commits that are not applied yet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from headrace.loader.apply.engine import cursor_of, read_cursor
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import has_stated_checksum, stated_sha256
from headrace.loader.commit.state import TopicState
from headrace.loader.errors import CommitLogError
from headrace.loader.inspect.status import ADVISORY, APPLIERS, AUDIT
from headrace.pipeline.load import audit_positions
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import OTHER, TOPICS_MAX, StatusMetric
from headrace.pipeline.status.wording import age_text, count_text

COMMITS_CHECKED_MAX: Final = 50
"""The newest commits that a status compares with their checksums. `headrace verify` reads all."""
PREVIOUS: Final = "previous"
"""Field of a commit with the checksum of the one before."""


def commits(context: StatusContext) -> SourceReport:
    """Reports the commit log, and the topics that wait for an applier unless a load is running.

    Raises:
        CommitLogError: the state cannot be read.
    """
    state = context.state
    if not state.commit_number:
        return SourceReport((StatusFact("commit log", "no load yet"),))
    checked = min(COMMITS_CHECKED_MAX, state.commit_number)
    findings = _damaged(context.log, state.commit_number, checked)
    pending = _pending(context)
    if context.load_holder is None:
        findings += _pending_findings(pending)
    text = (
        f"at commit {state.commit_number:,} of {age_text(context.now_ms - state.committed_at_ms)} ago, "
        f"{count_text(len(state.topics), 'topic')}; newest {count_text(checked, 'commit')} read; "
        f"{count_text(len(pending), 'topic')} not applied"
    )
    metrics = (
        StatusMetric("headrace_load_commit_number", state.commit_number),
        StatusMetric("headrace_load_topics", len(state.topics)),
        StatusMetric("headrace_load_topics_not_applied", len(pending)),
        StatusMetric("headrace_load_rows_total", sum(one.loads.rows for one in state.topics.values())),
        StatusMetric("headrace_load_read_bytes_total", sum(one.loads.bytes_read for one in state.topics.values())),
        *quarantined(state.topics),
    )
    return SourceReport((StatusFact("commit log", text, metrics),), tuple(findings))


def quarantined(topics: Mapping[str, TopicState]) -> Iterator[StatusMetric]:
    """Yields the counters of quarantined messages. The first `TOPICS_MAX` topics that had any have their own counters
    forever. A choice by size would change, and the counter of the other topics would decrease."""
    having = [topic for topic, one in topics.items() if one.loads.quarantined_since]
    first = set(sorted(having, key=lambda topic: (topics[topic].loads.quarantined_since, topic))[:TOPICS_MAX])
    counts: Counter[tuple[str, str]] = Counter()
    for topic in having:
        for code, number in topics[topic].loads.quarantined.items():
            counts[topic if topic in first else OTHER, code] += number
    for (topic, code), number in sorted(counts.items()):
        yield StatusMetric("headrace_load_quarantined_total", number, (("topic", topic), ("reason", code)))


def _damaged(log: CommitLog, newest: int, checked: int) -> list[StatusFinding]:
    """Reads the newest commits, and returns a finding for each that is missing or damaged, or that the next one does
    not name. Only compares checksums: parsing a commit of 2,000 topics takes half a second."""
    found = []
    newer = b""
    for number in range(newest, newest - checked, -1):
        try:
            content = log.commits.read(number) or b""
            if not has_stated_checksum(content):
                CommitLog(log.storage, read_only=True).document(number)  # raises the reason
            if newer and f'"{PREVIOUS}":"{stated_sha256(content)}"'.encode() not in newer:
                problem = f"{log.commits.path(number)}: it is not the commit that commit {number + 1} names"
                found.append(finding("commit-log-damaged", f"commit {number}", problem))
            newer = content
        except CommitLogError as error:
            found.append(finding("commit-log-damaged", f"commit {number}", str(error)))
            newer = b""
    return found


def _pending(context: StatusContext) -> dict[str, tuple[str, ...]]:
    """Returns, by topic, the appliers that have not applied the topic's newest commit, without advisory ones."""
    state = context.state
    names = [name for name in APPLIERS if name not in ADVISORY]
    cursors = {name: read_cursor(context.log.storage, name) for name in names if name != AUDIT}
    cursors[AUDIT] = cursor_of(audit_positions(context.settings), state.topics)
    behind = {
        topic: tuple(name for name in names if cursors[name].position(topic) < one.commit_number)
        for topic, one in state.topics.items()
    }
    return {topic: appliers for topic, appliers in behind.items() if appliers}


def _pending_findings(pending: dict[str, tuple[str, ...]]) -> list[StatusFinding]:
    topics: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic, appliers in pending.items():
        topics[appliers].append(topic)
    return [
        finding(
            "not-applied",
            min(names),
            f"committed, and not visible in the table yet: {', '.join(appliers)} still to do",
            count=len(names),
            others=tuple(sorted(names)[1:]),
        )
        for appliers, names in topics.items()
    ]
