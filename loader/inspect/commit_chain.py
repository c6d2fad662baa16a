"""Checks a topic's commits against each other, from the newest back to the first, without the index of live files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace.loader.commit.commit import Commit, CommitKind, CommittedFile, CommittedRange, TopicCommit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import CommitLogError
from headrace.loader.inspect.findings import ConsistencyCheck, VerifyFinding
from headrace.loader.work_unit import FileKind

TimePartition = tuple[FileKind, str]
RESTORE = "restore the commit files from a backup, or report a defect"


@dataclass(frozen=True, slots=True)
class ChainFile:
    """A committed file, with the number and run id of the commit that added it."""

    commit_number: int
    run_id: str
    file: CommittedFile


@dataclass(slots=True)
class CommitChain:
    """The result of `read_chain` for one topic.

    `live` are the files that belong to the topic as of `commit_number`, `later` the files of newer commits, which may
    not be published yet. `generations` are the generations of rewritten time partitions, as of `commit_number`.
    `findings` are the contradictions between the commits.
    """

    commit_number: int
    commits: int = 0
    live: list[ChainFile] = field(default_factory=list)
    later: list[ChainFile] = field(default_factory=list)
    generations: dict[TimePartition, int] = field(default_factory=dict)
    findings: list[VerifyFinding] = field(default_factory=list)
    is_complete: bool = True


def read_chain(
    log: CommitLog, topic: str, commit_number: int, visit: Callable[[Commit, TopicCommit], None] | None = None
) -> CommitChain:
    """Reads all commits of a topic. Returns the files that belonged to the topic after `commit_number` (files that a
    rewrite had replaced are omitted), the files that newer commits added, and the contradictions between the commits.

    Args:
        log: the commit log, after a call of `read_state`.
        commit_number: the commit up to which all files are published.
        visit: called with each commit up to this one, from the newest to the oldest.
    """
    topic_state = log.state.topics[topic]
    chain = CommitChain(commit_number)
    ends: dict[int, int | None] = {number: one.next_offset for number, one in topic_state.partitions.items()}
    replaced: dict[TimePartition, set[str]] = defaultdict(set)
    totals = {FileKind.DATA: (0, 0), FileKind.QUARANTINE: (0, 0)}
    try:
        for document in log.history(topic, log.state):
            commit = document.value
            committed = commit.topics[topic]
            chain.commits += 1
            chain.findings += _compare(topic, commit, committed, ends)
            _take_files(chain, commit, committed, replaced)
            if visit is not None and commit.commit_number <= commit_number:
                visit(commit, committed)
            for kind in totals:
                totals[kind] = _add_totals(totals[kind], committed, kind)
    except CommitLogError as error:
        chain.is_complete = False
        chain.findings.append(VerifyFinding(topic, ConsistencyCheck.COMMITS, "", str(error)))
        return chain
    chain.findings += _check_oldest_commit(topic, ends)
    for kind, recorded in ((FileKind.DATA, topic_state.data), (FileKind.QUARANTINE, topic_state.quarantine)):
        if totals[kind] != (recorded.files, recorded.records):
            files, records = totals[kind]
            message = (
                f"all commits add up to {files:,} {kind.value} files of {records:,} rows, but the loader's state has "
                f"{recorded.files:,} files of {recorded.records:,} rows; {RESTORE}"
            )
            chain.findings.append(VerifyFinding(topic, ConsistencyCheck.COMMITS, "", message))
    chain.live.reverse()
    return chain


def _take_files(
    chain: CommitChain, commit: Commit, committed: TopicCommit, replaced: dict[TimePartition, set[str]]
) -> None:
    files = [ChainFile(commit.commit_number, commit.run_id, file) for file in reversed(committed.files)]
    if commit.commit_number > chain.commit_number:
        chain.later += files
        return
    chain.live += [one for one in files if one.file.name not in replaced[one.file.kind, one.file.time_partition]]
    for rewrite in committed.rewrites:
        chain.generations.setdefault((rewrite.kind, rewrite.time_partition), committed.generation)
        replaced[rewrite.kind, rewrite.time_partition].update(rewrite.replaced)


def _compare(
    topic: str, commit: Commit, committed: TopicCommit, ends: dict[int, int | None]
) -> Iterator[VerifyFinding]:
    """Yields contradictions within one commit of a topic, and between it and the topic's newer commits. The caller
    passes the commits from the newest to the oldest.

    Args:
        committed: the part of the commit that concerns the topic.
        ends: by partition, the offset at which this commit's range must end, because the newer commits state that the
            earlier ones had loaded up to there. None if a newer commit states that there was no earlier one. Updated
            with the ranges of this commit.
    """
    rows = _rows_by_partition(committed, FileKind.DATA), _rows_by_partition(committed, FileKind.QUARANTINE)
    for offsets in committed.ranges:
        partition_name = f"{topic}-{offsets.partition}"
        range_text = f"commit {commit.commit_number} has offsets [{offsets.start}, {offsets.end})"
        if offsets.partition in ends and offsets.end != (end := ends[offsets.partition]):
            later = f"begin at {end}" if end is not None else "state that there was no earlier commit"
            message = f"{range_text}, but the later commits {later}; {RESTORE}"
            yield VerifyFinding(topic, ConsistencyCheck.COMMITS, partition_name, message)
        if offsets.counts.total != offsets.end - offsets.start:
            message = f"{range_text}, but accounts for {offsets.counts.total:,} of them; {RESTORE}"
            yield VerifyFinding(topic, ConsistencyCheck.COMMITS, partition_name, message)
        # Each is one quarantine row with the bytes of a batch.
        quarantined_batches = sum(one.is_quarantined for one in offsets.skipped)
        counted = (offsets.counts.records, offsets.counts.quarantined + quarantined_batches)
        row_counts = (rows[0][offsets.partition], rows[1][offsets.partition])
        if commit.kind is CommitKind.LOAD and counted != row_counts:
            message = (
                f"{range_text}, of which {counted[0]:,} are rows and {counted[1]:,} quarantined, but its files have "
                f"{row_counts[0]:,} and {row_counts[1]:,}; {RESTORE}"
            )
            yield VerifyFinding(topic, ConsistencyCheck.COMMITS, partition_name, message)
        yield from _check_start(topic, commit, offsets)
        ends[offsets.partition] = offsets.previous
    if committed.starts_again:
        ends.clear()  # the topic was re-created here: earlier commits are checked separately


def _check_start(topic: str, commit: Commit, offsets: CommittedRange) -> Iterator[VerifyFinding]:
    """Yields a contradiction if the range `offsets` of a commit begins too late: after the end of the partition's
    previous range (or after the offset where the log diverged), although the offsets between are neither a gap nor
    skipped."""
    since = offsets.previous if offsets.diverged_at is None else offsets.diverged_at
    if since is None or since >= offsets.start:
        return
    covered_end = since
    for start, end in sorted((*offsets.gaps, *((one.start, one.end) for one in offsets.skipped))):
        covered_end = max(covered_end, end) if start <= covered_end else covered_end
    if covered_end < offsets.start:
        message = (
            f"commit {commit.commit_number} omits offsets {covered_end} to {offsets.start - 1} and records no gap; "
            f"{RESTORE}"
        )
        yield VerifyFinding(topic, ConsistencyCheck.COMMITS, f"{topic}-{offsets.partition}", message)


def _check_oldest_commit(topic: str, ends: dict[int, int | None]) -> Iterator[VerifyFinding]:
    for partition, end in sorted(ends.items()):
        if end is not None:
            message = (
                f"the oldest commit continues at offset {end}, but no earlier commit loaded the offsets before; "
                f"{RESTORE}"
            )
            yield VerifyFinding(topic, ConsistencyCheck.COMMITS, f"{topic}-{partition}", message)


def _rows_by_partition(committed: TopicCommit, kind: FileKind) -> Counter[int]:
    rows: Counter[int] = Counter()
    for file in committed.files:
        if file.kind is kind:
            for one in file.ranges:
                rows[one.partition] += one.records
    return rows


def _add_totals(totals: tuple[int, int], committed: TopicCommit, kind: FileKind) -> tuple[int, int]:
    """Returns the sums of a topic's files and rows after a commit, which adds files and may remove earlier ones.

    Args:
        totals: the sums (files, rows) before.
        committed: the part of the commit that concerns the topic.
        kind: the kind of files that is counted.
    """
    added = [file.records for file in committed.files if file.kind is kind]
    rewrites = [rewrite for rewrite in committed.rewrites if rewrite.kind is kind]
    return (
        totals[0] + len(added) - sum(len(rewrite.replaced) for rewrite in rewrites),
        totals[1] + sum(added) - sum(rewrite.records for rewrite in rewrites),
    )
