"""Compares the commits with each other, with the files and with the brokers, and returns findings.

Safe while loads run: commits that are newer than the state read at first are ignored, and files that are not published
yet count as waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from headrace.loader.apply.layout import time_partition_directory
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex, index_directory
from headrace.loader.errors import StorageError, StorageUnavailable
from headrace.loader.inspect.commit_chain import ChainFile, CommitChain, TimePartition, read_chain
from headrace.loader.inspect.compare_files import (
    ExpectedFile,
    ExpectedTimePartition,
    compare_content,
    compare_listing,
    damaged_paths,
)
from headrace.loader.inspect.findings import ConsistencyCheck, VerifiedTopic, VerifyFinding
from headrace.loader.inspect.published_files import applied_commit_number
from headrace.loader.plan.discover import DiscoveredTopic
from headrace.loader.storage.protocols import FinishedFile, Storage, WarehouseFiles
from headrace.loader.work_unit import FileKind


def verify_topic(
    log: CommitLog,
    index: FileIndex,
    storage: Storage,
    topic: str,
    discovered: DiscoveredTopic | None = None,
    *,
    checksums: bool,
) -> VerifiedTopic:
    """Compares the commits of one topic with each other, with the files and with the brokers, as of the state that the
    log has read. Returns the contradictions.

    Args:
        index: the index of the files that belong to each topic; compared too.
        storage: the warehouse's published files and its staging.
        discovered: the topic on the brokers, None to skip that comparison.
        checksums: whether every byte of every file is read to compare checksums.
    """
    chain = read_chain(log, topic, applied_commit_number(log, topic))
    findings = list(chain.findings)
    if chain.is_complete:
        findings += _compare_index(log, index, topic, chain)
    waiting = 0
    for committed in chain.later:
        waiting += 1
        findings += _check_waiting(topic, storage, _published_path(log, topic, chain, committed), committed)
    for expected in expected_time_partitions(log, topic, chain):
        findings += _check_time_partition(storage.files, expected, chain.is_complete, checksums)
    if discovered is not None:
        findings += _compare_offsets(log, discovered)
    return VerifiedTopic(
        topic,
        chain.commits,
        len(chain.live),
        sum(one.file.records for one in chain.live if one.file.kind is FileKind.DATA),
        sum(one.file.length for one in chain.live),
        waiting,
        tuple(findings),
    )


def _published_path(log: CommitLog, topic: str, chain: CommitChain, committed: ChainFile) -> str:
    file = committed.file
    generation = chain.generations.get((file.kind, file.time_partition), 0)
    directory = log.state.topics[topic].directory
    return f"{time_partition_directory(directory, file.kind, file.time_partition, generation)}/{file.name}"


def _check_waiting(topic: str, storage: Storage, name: str, committed: ChainFile) -> Iterator[VerifyFinding]:
    """Yields a finding if a committed file of a newer commit is missing or incomplete in staging and is not published
    either.

    Args:
        name: the path at which the file will be published.
        committed: the file with its commit.
    """
    try:
        storage.staging.persist(committed.run_id, [FinishedFile(committed.file.staged, committed.file.length)])
    except (StorageError, OSError) as error:
        if storage.files.length(name) is None:
            message = f"the file of commit {committed.commit_number} is neither published nor staged: {error}"
            yield VerifyFinding(topic, ConsistencyCheck.PLACE, name, message)


def expected_time_partitions(log: CommitLog, topic: str, chain: CommitChain) -> Iterator[ExpectedTimePartition]:
    """Yields the time partitions of a topic with the files that its commits have published there.

    Args:
        log: the commit log; its state has the topic's directory.
    """
    files: dict[TimePartition, list[ExpectedFile]] = defaultdict(list)
    for one in chain.live:
        file = one.file
        files[file.kind, file.time_partition].append(
            ExpectedFile(file.name, file.length, file.checksum, file.records, one.commit_number)
        )
    later = _names_by_time_partition(chain.later)
    for (kind, time_partition), found in sorted(files.items()):
        generation = chain.generations.get((kind, time_partition), 0)
        directory = time_partition_directory(log.state.topics[topic].directory, kind, time_partition, generation)
        waiting = frozenset(later.get((kind, time_partition), ()))
        yield ExpectedTimePartition(topic, kind, time_partition, directory, tuple(found), waiting)


def _check_time_partition(
    files: WarehouseFiles, expected: ExpectedTimePartition, is_complete: bool, checksums: bool
) -> Iterator[VerifyFinding]:
    """Yields the first problem of each published file of a time partition, and the files that no commit contains.

    Args:
        files: the warehouse's files.
        expected: the time partition with its committed files.
        is_complete: whether all commits could be read. If not, a file without a known commit is no finding.
        checksums: whether every file is read to compare its checksum.
    """
    try:
        found = list(compare_listing(expected, files.lengths(expected.directory)))
    except StorageUnavailable:
        raise
    except OSError as error:
        message = f"cannot be listed: {error.strerror or error}"
        yield expected.finding(ConsistencyCheck.LISTING, expected.directory, message)
        return
    yield from (one for one in found if is_complete or one.check is not ConsistencyCheck.FOREIGN)
    damaged = damaged_paths(found)
    checks = (ConsistencyCheck.CHECKSUM, ConsistencyCheck.ROWS) if checksums else (ConsistencyCheck.ROWS,)
    for file in expected.files:
        if expected.path(file.name) not in damaged:
            try:
                problem = compare_content(expected, file, files, checks)
            except FileNotFoundError:
                message = f"is missing; it was added by commit {file.commit_number}"
                problem = expected.finding(ConsistencyCheck.PLACE, expected.path(file.name), message)
            if problem is not None:
                yield problem


def _compare_index(log: CommitLog, index: FileIndex, topic: str, chain: CommitChain) -> Iterator[VerifyFinding]:
    committed = _names_by_time_partition(chain.live)
    indexed: dict[TimePartition, set[str]] = {}
    for kind in FileKind:
        for day in index.days(topic, kind):
            for time_partition in index.day(topic, kind, day).time_partitions:
                indexed[kind, time_partition] = {
                    file.name for file in index.live(topic, kind, time_partition, chain.commit_number)
                }
    for kind, time_partition in sorted({*committed, *indexed}):
        committed_names = committed.get((kind, time_partition), set())
        indexed_names = indexed.get((kind, time_partition), set())
        if committed_names != indexed_names:
            message = (
                f"the index lists {len(indexed_names)} files of {kind.value}/{time_partition}, the commits list "
                f"{len(committed_names)}"
            )
            directory = log.storage.describe(index_directory(log.state.topics[topic].directory))
            yield VerifyFinding(
                topic, ConsistencyCheck.INDEX, "", f"{message}: delete {directory}, which the next load rebuilds"
            )


def _names_by_time_partition(files: Iterable[ChainFile]) -> dict[TimePartition, set[str]]:
    names: dict[TimePartition, set[str]] = defaultdict(set)
    for one in files:
        names[one.file.kind, one.file.time_partition].add(one.file.name)
    return names


def _compare_offsets(log: CommitLog, discovered: DiscoveredTopic) -> Iterator[VerifyFinding]:
    topic = discovered.topic
    topic_state = log.state.topics[topic]
    if topic_state.topic_id and discovered.topic_id and topic_state.topic_id != discovered.topic_id:
        message = (
            "the topic was re-created on the brokers since its newest commit; the next load reads the new topic only "
            "with loader.on_data_loss=skip"
        )
        yield VerifyFinding(topic, ConsistencyCheck.OFFSETS, "", message)
        return
    discovered_partitions = {one.partition: one for one in discovered.partitions}
    for number, partition in sorted(topic_state.partitions.items()):
        offsets = discovered_partitions.get(number)
        partition_name = f"{topic}-{number}"
        if offsets is None:
            if number not in discovered.errors:
                message = (
                    f"the brokers have no partition {number}, which was loaded up to offset {partition.next_offset}; "
                    "check kafka.bootstrap_servers"
                )
                yield VerifyFinding(topic, ConsistencyCheck.OFFSETS, partition_name, message)
        elif partition.next_offset > max(offsets.end, offsets.high_watermark):
            message = (
                f"the log ends at {offsets.high_watermark}, before the next offset to load, {partition.next_offset}; "
                "the next load may need loader.on_data_loss=skip to read this partition"
            )
            yield VerifyFinding(topic, ConsistencyCheck.OFFSETS, partition_name, message)
        elif partition.next_offset < offsets.start:
            message = (
                f"the log begins at {offsets.start}, after the next offset to load, {partition.next_offset}; the next "
                "load reads this partition only with loader.on_data_loss=skip, which records the gap"
            )
            yield VerifyFinding(topic, ConsistencyCheck.OFFSETS, partition_name, message)
