"""Removes quarantined messages permanently, by a commit that states the operator's reason.

The remaining messages of their files are copied to new files. Messages quarantined by later loads are not affected. The
audit is unchanged, because the messages were read and quarantined.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from headrace.loader.commit.commit import CommitKind
from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.rewrite.choose import rewrite, topic_commit
from headrace.loader.rewrite.driver_files import FileShape, NewRows, staged_files_of
from headrace.loader.rewrite.replayed_rows import (
    CODES,
    QuarantineSource,
    SourceUnusable,
    copy_rows,
    quarantine_sources,
    quarantined_rows,
)
from headrace.loader.rewrite.run import RewritePorts, add_commit, catch_up
from headrace.loader.work_unit import FileKind
from headrace.loader.write.task_files import TaskFiles


@dataclass(frozen=True, slots=True)
class DiscardReport:
    """The removed messages (in a dry run: the messages that would be removed) and the remaining messages, counted by
    quarantine code. `commit_number` is the commit, 0 for none; `problems` are sentences; `notes` need no action."""

    discarded: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    commit_number: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def discard(
    ports: RewritePorts,
    topic: str,
    shape: FileShape,
    codes: Collection[str],
    reason: str,
    *,
    is_dry: bool,
    messages_max: int | None = None,
) -> DiscardReport:
    """Removes quarantined messages of a topic permanently, with a commit. Returns a report with the numbers of removed
    and of remaining messages. Leaves a file unchanged if messages with a code that this release does not know would
    remain in it.

    Args:
        topic: a topic with a commit.
        shape: the properties of the new files for the remaining messages.
        codes: removes only messages with one of these quarantine codes; empty for all.
        reason: stored in the commit.
        is_dry: only count the messages.
        messages_max: changes nothing if there are more messages to remove; None for no limit.

    Raises:
        OSError: files cannot be read or written.
    """
    state, notes = catch_up(ports, is_dry)
    topic_state = state.topics[topic]
    try:
        counts = {source: _codes(ports, source) for source in quarantine_sources(ports, state, topic)}
        chosen = [source for source, found in counts.items() if _is_rewritable(found, codes)]
        discarded = sum((_matching(counts[source], codes) for source in chosen), Counter[str]())
        remaining = sum(counts.values(), Counter[str]()) - discarded
        if messages_max is not None and discarded.total() > messages_max:
            problem = f"{discarded.total():,} messages would be deleted, expected at most {messages_max:,}"
            return DiscardReport(
                left=dict(discarded + remaining), problems=(f"{problem}; nothing was changed",), notes=notes
            )
        report = DiscardReport(dict(discarded), dict(remaining), notes=notes)
        if is_dry or not chosen:
            return report

        def write(files: TaskFiles, new_rows: NewRows) -> None:
            for source in chosen:
                copy_rows(ports.files, source, files, new_rows, lambda row: bool(codes) and row.code not in codes)

        run_id = ports.new_run_id()
        new_files = staged_files_of(ports, topic, run_id, shape, write)
    except SourceUnusable as error:
        return DiscardReport(problems=(str(error),), notes=notes)
    assert (
        sum(file.records for file in new_files) == sum(counts[source].total() for source in chosen) - discarded.total()
    )
    replaced: dict[str, list[IndexedFile]] = defaultdict(list)
    for source in chosen:
        replaced[source.time_partition].append(source.file)
    rewrites = [
        rewrite(FileKind.QUARANTINE, time_partition, files) for time_partition, files in sorted(replaced.items())
    ]
    committed = {topic: topic_commit(topic_state, rewrites, new_files)}
    rewrite_report = add_commit(ports, state, CommitKind.DISCARD, run_id, committed, reason)
    problems = rewrite_report.problems.get(topic, ())
    if not rewrite_report.commit_number:
        return DiscardReport(left=dict(discarded + remaining), problems=problems, notes=notes)
    return dataclasses.replace(
        report, commit_number=rewrite_report.commit_number, problems=problems, notes=(*notes, *rewrite_report.notes)
    )


def _codes(ports: RewritePorts, source: QuarantineSource) -> Counter[str]:
    return Counter(row.code for row in quarantined_rows(ports.files, source))


def _matching(found: Counter[str], codes: Collection[str]) -> Counter[str]:
    return Counter({code: count for code, count in found.items() if not codes or code in codes})


def _is_rewritable(found: Counter[str], codes: Collection[str]) -> bool:
    """Whether messages of a quarantine file are to be removed. False if messages with a code that this release does not
    know would remain, because this release cannot copy them to a new file.

    Args:
        found: numbers of messages in the file, by quarantine code.
        codes: the codes of messages to remove; empty for all.
    """
    return bool(_matching(found, codes)) and (not codes or CODES.issuperset(found.keys() - {*codes}))
