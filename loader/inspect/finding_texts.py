"""Open findings as sentences, and the commands that show and repair them."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.loader.inspect.findings import ConsistencyCheck, VerifyFinding
from headrace.loader.inspect.open_findings import OpenFinding, WarehouseChecks
from headrace.loader.work_unit import FileKind

SENTENCES_MAX: Final = 5
"""Sentences per topic; `headrace verify` shows all findings."""

PROBLEMS: Final[Mapping[ConsistencyCheck, tuple[str, str]]] = {
    ConsistencyCheck.LISTING: ("1 directory cannot be listed", "{count:,} directories cannot be listed"),
    ConsistencyCheck.PLACE: ("1 file is missing", "{count:,} files are missing"),
    ConsistencyCheck.LENGTH: ("1 file has another length than committed", "{count:,} files have other lengths"),
    ConsistencyCheck.CHECKSUM: ("1 file has other content than committed", "{count:,} files have other content"),
    ConsistencyCheck.ROWS: ("1 file cannot be read", "{count:,} files cannot be read"),
    ConsistencyCheck.FOREIGN: ("queries read 1 file that no commit contains", "queries read {count:,} foreign files"),
}
"""The problem of one file and of several, by the check that found it."""


def finding_sentences(checks: WarehouseChecks) -> dict[str, tuple[str, ...]]:
    """Returns the open findings as sentences by topic, one for each check and time partition with its repair, at most
    `SENTENCES_MAX` per topic."""
    sentences: dict[str, list[str]] = defaultdict(list)
    for found in grouped(checks.open):
        first = found[0].finding
        repair = "" if first.check is ConsistencyCheck.TABLE else f"; {repair_text(first)}"  # its message has one
        sentences[first.topic].append(f"{problem_text(found)}{repair}")
    for topic in sorted({*sentences, *checks.more}):
        more = max(0, len(sentences[topic]) - SENTENCES_MAX)
        del sentences[topic][SENTENCES_MAX:]
        if more or topic in checks.more:
            number = f"{checks.more[topic]:,} further files" if topic in checks.more else f"{more:,} time partitions"
            sentences[topic].append(f"{number} have such findings; {show_command(topic)} lists all of them")
    return {topic: tuple(texts) for topic, texts in sentences.items()}


def grouped(found: Iterable[OpenFinding]) -> list[tuple[OpenFinding, ...]]:
    """Returns the findings in groups with the same topic, check, kind of files and time partition."""
    groups: dict[tuple[str, ConsistencyCheck, FileKind, str], list[OpenFinding]] = defaultdict(list)
    for one in found:
        groups[one.finding.topic, one.finding.check, one.finding.kind, one.finding.time_partition].append(one)
    return [tuple(groups[key]) for key in sorted(groups)]


def problem_text(found: tuple[OpenFinding, ...]) -> str:
    """Returns the problem of findings with the same check and time partition, as a sentence that names the first
    file."""
    first = found[0].finding
    if first.check not in PROBLEMS:
        return f"{first.where}: {first.message}" if first.where else first.message
    such_as = "" if len(found) == 1 else "such as "
    return f"{_count_text(first.check, len(found))}: {such_as}{first.where}"


def finding_counts_text(checks: WarehouseChecks, topic: str) -> str:
    """Returns the numbers of a topic's open findings by check: `2 files are missing, 1 file cannot be read`."""
    counts = Counter(one.finding.check for one in checks.open if one.finding.topic == topic)
    texts = [_count_text(check, number) for check, number in sorted(counts.items())]
    if topic in checks.more:
        texts.append(f"{checks.more[topic]:,} further findings")
    return ", ".join(texts)


def _count_text(check: ConsistencyCheck, number: int) -> str:
    one, several = PROBLEMS.get(check, ("1 other finding", "{count:,} other findings"))
    return one if number == 1 else several.format(count=number)


def show_command(topic: str) -> str:
    return f"headrace verify {shlex.quote(topic)}"


def file_repair(finding: VerifyFinding) -> str:
    """Returns how a finding about a published file is repaired, "" for other findings, whose messages state it."""
    return repair_text(finding) if finding.check in PROBLEMS and finding.time_partition else ""


def repair_text(finding: VerifyFinding) -> str:
    """Returns how the file or table of a finding is repaired, with the commands."""
    topic = shlex.quote(finding.topic)
    name = finding.time_partition
    backfill = f"load it again: headrace backfill {topic} --from {name} --to {name}"
    quarantine = " --quarantine" if finding.kind is FileKind.QUARANTINE else ""
    accept = f"accept the loss: headrace accept-missing {topic} --time-partition {name}{quarantine}"
    match finding.check:
        case ConsistencyCheck.LISTING:
            return "make the directory readable for the user of loads, or repair its file system"
        case ConsistencyCheck.PLACE:
            return f"restore it from a backup, or {backfill}; or {accept}"
        case ConsistencyCheck.LENGTH | ConsistencyCheck.CHECKSUM | ConsistencyCheck.ROWS:
            return f"restore it from a backup, or {backfill}; or delete it and {accept}"
        case ConsistencyCheck.FOREIGN:
            return f"move it away: headrace hive repair {topic}"
        case ConsistencyCheck.TABLE:
            return f"remove the cause, then headrace load or headrace hive repair {topic}"
        case _:
            return f"see {show_command(finding.topic)}"
