"""Compares the commits with each other, with the files and with the brokers. Changes nothing, and returns findings.

Safe while loads run: commits that are newer than the state read at first are ignored, and files that are not published
yet count as waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from headrace.loader.apply.layout import time_partition_directory
from headrace.loader.checksum import checksum_as
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex, index_directory
from headrace.loader.errors import StorageError
from headrace.loader.inspect.commit_chain import ChainFile, CommitChain, TimePartition, read_chain
from headrace.loader.inspect.containers import count_rows
from headrace.loader.inspect.findings import ConsistencyCheck, VerifiedTopic, VerifyFinding
from headrace.loader.inspect.published_files import applied_commit_number
from headrace.loader.plan.discover import DiscoveredTopic
from headrace.loader.storage.protocols import FinishedFile, Storage, WarehouseFiles
from headrace.loader.work_unit import FileKind

HIDDEN_PREFIXES = (".", "_")  # prefixes of names that Hive, Spark and Pig ignore


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
    for committed in chain.live:
        findings += _check_file(
            topic, storage.files, _published_path(log, topic, chain, committed), committed, checksums
        )
    if chain.is_complete:
        findings += _check_foreign_files(log, topic, storage.files, chain)
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


def _check_file(
    topic: str, files: WarehouseFiles, name: str, committed: ChainFile, checksums: bool
) -> Iterator[VerifyFinding]:
    """Yields the first problem of a published file, if any: missing, unreadable, or with other content than committed.

    Args:
        name: the path of the file below the warehouse.
        committed: the file as its commit describes it.
        checksums: whether the whole file is read to compare its checksum.
    """
    file, origin = committed.file, f"committed in {committed.commit_number}"
    try:
        length = files.length(name)
        if length is None:
            yield VerifyFinding(topic, ConsistencyCheck.PLACE, name, f"is missing; it was {origin}")
        elif length != file.length:
            yield VerifyFinding(
                topic, ConsistencyCheck.LENGTH, name, f"has {length:,} bytes instead of {file.length:,}, as {origin}"
            )
        elif checksums and (found := _checksum(files, name, file.checksum)) != file.checksum:
            yield VerifyFinding(
                topic,
                ConsistencyCheck.CHECKSUM,
                name,
                f"has the checksum {found} instead of {file.checksum}, as {origin}",
            )
        elif (rows := _rows(files, name, length)) != file.records:
            yield VerifyFinding(
                topic, ConsistencyCheck.ROWS, name, f"has {rows:,} rows instead of {file.records:,}, as {origin}"
            )
    except OSError as error:
        yield VerifyFinding(
            topic, ConsistencyCheck.PLACE, name, f"cannot be read: {error.strerror or error}; it was {origin}"
        )
    except ValueError as error:
        yield VerifyFinding(topic, ConsistencyCheck.ROWS, name, f"cannot be read: {error}; it was {origin}")


def _checksum(files: WarehouseFiles, name: str, committed: str) -> str:
    with files.open(name) as file:
        return checksum_as(committed, file)


def _rows(files: WarehouseFiles, name: str, length: int) -> int:
    with files.open(name) as file:
        return count_rows(file, length)


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


def _check_foreign_files(
    log: CommitLog, topic: str, files: WarehouseFiles, chain: CommitChain
) -> Iterator[VerifyFinding]:
    """Yields files that queries of the topic read although no commit contains them. Lists only the directories of time
    partitions with committed files.

    Args:
        log: the commit log; its state has the topic's directory.
        files: the warehouse's files, which are listed.
        chain: the files that the topic's commits contain.
    """
    later = _names_by_time_partition(chain.later)
    for (kind, time_partition), names in sorted(_names_by_time_partition(chain.live).items()):
        generation = chain.generations.get((kind, time_partition), 0)
        directory = time_partition_directory(log.state.topics[topic].directory, kind, time_partition, generation)
        for name in files.children(directory):
            is_committed = name in names or name in later.get((kind, time_partition), ())
            if not name.startswith(HIDDEN_PREFIXES) and not is_committed:
                message = "no commit contains this file, and queries read it: move it away"
                yield VerifyFinding(topic, ConsistencyCheck.FOREIGN, f"{directory}/{name}", message)


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
