"""Compares the metastore and the directories of a topic with the commits, and repairs the differences.

The appliers apply each commit once. This module finds later changes by others: a table that was altered, dropped or
never created in this metastore; partitions that were dropped, moved or added; files that no commit contains; deleted
directories.

Safe while loads run: a difference counts only if it is one to commits that were read after the table was read and its
directories were listed, so files of a concurrent load are known to be committed. If a topic has pending commits, only
its table definitions are compared, and the next load does the rest. No file is deleted: a foreign file or directory is
moved to the topic's directory `_foreign`, below the name of its time partition, with a number if the name is taken.

A problem with one topic or object does not stop the command: it is reported as a difference that was not repaired. Only
a failure that affects all topics stops the command: no metastore, no storage, corrupt commits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from headrace.avro_schema import AvroSchemaError
from headrace.hive_ddl.errors import (
    ForeignTable,
    HiveDdlError,
    MetastoreUnavailable,
    SessionFailed,
    StaleRevision,
    StatementRefused,
)
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.ops import (
    AddPartitions,
    CreateTable,
    DropPartitions,
    DropTable,
    Op,
    PartitionValues,
    SetPartitionLocation,
    SetProperties,
)
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.table import COMPLETE_UNTIL, REVISION, VIEW_REFUSED, TableState
from headrace.loader.apply.complete import instant_text, read_completeness
from headrace.loader.apply.engine import FILES, read_cursor
from headrace.loader.apply.layout import (
    HIDDEN_PREFIXES,
    QUARANTINE_DATABASE_SUFFIX,
    partition_values,
    time_partition_directory,
    topic_directory,
)
from headrace.loader.apply.schema import ATTEMPTS_MAX, TableSettings, data_table, publish_schema, quarantine_table
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import generation_at, live_at
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.errors import CommitLogError, LoaderError, StorageUnavailable
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)

FOREIGN_DIRECTORY = "_foreign"
MISSING_FILES_NOTE = "_missing_files"
"""A file that queries ignore. It is written into the directory of a partition with lost files: without the directory, a
query of the whole table would fail."""

TIME_PARTITIONS_NAMED_MAX = 5
TOPICS_PER_PREFETCH = 100
MOVE_ATTEMPTS_MAX = 10  # a listed name was free, but another process may take it before the move

FATAL_ERRORS = (MetastoreUnavailable, SessionFailed, StorageUnavailable, CommitLogError)
"""Failures that affect every topic, and therefore stop the command."""

TOPIC_ERRORS = (HiveDdlError, LoaderError, AvroSchemaError, OSError)


Directories = Mapping[str, tuple[str, frozenset[str]]]
"""By time partition with files: the directory below the warehouse, and the names of the files in it."""


class DifferenceKind(StrEnum):
    """The kinds of differences between a topic's commits and its table or files."""

    TABLE = "table"  # missing or altered
    PARTITIONS = "partitions"  # missing, at another location, or in no commit
    FOREIGN = "foreign"  # files in no commit, visible to readers
    LOST = "lost"  # missing committed files
    PENDING = "pending"  # commits that are not applied yet
    UNKNOWN = "unknown"  # the comparison failed


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a topic's commits and its table or files.

    `where` is a table, or a path below the warehouse. `message` states the problem, with the remedy if Headrace cannot
    repair it. The repair consists of `ops` on the table and of `moves`, pairs of old and new path.
    """

    topic: str
    kind: DifferenceKind
    where: str
    message: str
    ops: tuple[Op, ...] = ()
    moves: tuple[tuple[str, str], ...] = ()

    @property
    def is_repairable(self) -> bool:
        return bool(self.ops or self.moves)


@dataclass(frozen=True, slots=True)
class _Found:
    """The existing objects of a topic and one kind of files: the table, its partitions with their locations, and the
    names of the files by directory. `selected` are the partitions that were looked up, None for all."""

    table: TableState | None
    partitions: Mapping[PartitionValues, str]
    selected: frozenset[PartitionValues] | None
    directories: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Repair:
    """Finds and repairs differences between a topic's commits and its table or files. With `deep`, also finds
    partitions and files that no commit contains, and missing files. Without `compares_partitions`, compares only the
    definitions of existing tables: reading their partitions takes most of the time of a comparison."""

    log: CommitLog
    executor: Callable[[], Executor]
    settings: TableSettings
    new_run_id: Callable[[], str]
    deep: bool
    compares_partitions: bool = True
    _prefetched: dict[tuple[str, str], TableState | None] = field(default_factory=dict)
    _sha256s: dict[int, str] = field(default_factory=dict)

    def prefetched(self, topics: Sequence[str]) -> Iterator[str]:
        """Yields the topics, after reading the tables of the next `TOPICS_PER_PREFETCH` ones in few requests, which
        `compare` then uses.

        Raises:
            MetastoreUnavailable, SessionFailed: the metastore cannot be reached.
            CommitLogError, OSError: the commits cannot be read.
        """
        for number, topic in enumerate(topics):
            if number % TOPICS_PER_PREFETCH == 0:
                self._prefetch(topics[number : number + TOPICS_PER_PREFETCH])
            yield topic

    def _prefetch(self, topics: Sequence[str]) -> None:
        self._prefetched.clear()
        states = self.log.read_state().topics
        for kind, suffix in ((FileKind.DATA, ""), (FileKind.QUARANTINE, QUARANTINE_DATABASE_SUFFIX)):
            names = [states[topic].table for topic in topics if _has_table(states[topic], kind)]
            if len(names) > 1:
                database = self.settings.database + suffix
                with contextlib.suppress(StatementRefused):  # of one table: `compare` reads each by itself
                    found = self.executor().tables_by_name(database, names)
                    self._prefetched.update({(database, name): found.get(name) for name in names})

    def compare(self, topic: str) -> tuple[Difference, ...]:
        """Returns the differences between a topic's commits and its table or files, in the order in which they must be
        repaired.

        Raises:
            MetastoreUnavailable, SessionFailed: the metastore cannot be reached.
            CommitLogError, OSError: the commits cannot be read, or the storage as a whole is unavailable.
        """
        if topic not in self.log.state.topics:
            self.log.read_state()
        table = self.log.state.topics[topic].table
        differences: list[Difference] = []
        for kind in FileKind:
            try:
                for difference in self._compare_kind(topic, kind):
                    differences.append(difference)
            except FATAL_ERRORS:
                raise
            except TOPIC_ERRORS as error:
                where = f"{self.settings.database}{_suffix(kind)}.{table}"
                message = f"the comparison failed: {_error_text(error)}"
                differences.append(Difference(topic, DifferenceKind.UNKNOWN, where, message))
        return tuple(differences)

    def repair_topic(
        self, topic: str, report: Callable[[Difference], object] = lambda one: None
    ) -> tuple[Difference, ...]:
        """Repairs the differences between a topic's commits and its table or files. Returns them with their results,
        unrepaired ones last.

        Args:
            report: receives each difference with its result: at once if it was repaired, otherwise at the end.

        Raises:
            MetastoreUnavailable, SessionFailed: the metastore cannot be reached.
            CommitLogError, OSError: the commits cannot be read, or the storage as a whole is unavailable.
        """
        done: list[Difference] = []
        for attempt in range(ATTEMPTS_MAX):
            left: list[Difference] = []
            try:
                for difference in self.compare(topic):
                    repaired = self._try_repair(topic, difference, is_last=attempt == ATTEMPTS_MAX - 1)
                    if repaired.is_repairable:
                        done.append(repaired)
                        report(repaired)
                    else:
                        left.append(repaired)
                break
            except StaleRevision:
                continue  # the table changed: compare the topic again
        for difference in left:
            report(difference)
        return (*done, *left)

    def drop(self, topic: str) -> tuple[DropTable, ...]:
        """Returns the operations that drop the topic's existing tables.

        Raises:
            ForeignTable: a table of this name does not belong to the topic.
            MetastoreUnavailable, SessionFailed: the metastore cannot be reached.
            CommitLogError, OSError: the commits cannot be read.
        """
        state = self.log.read_state().topics[topic]
        ops = []
        for table in (self._table(topic, state, kind) for kind in FileKind if _has_table(state, kind)):
            current = self.executor().table(table.database, table.name)
            if current is not None and current.topic != topic:
                raise ForeignTable(
                    table.database,
                    table.name,
                    topic,
                    f"the table belongs to {f'topic {current.topic}' if current.topic else 'no topic'}",
                )
            if current is not None:
                ops.append(DropTable(table.database, table.name, topic))
        return tuple(ops)

    def _try_repair(self, topic: str, difference: Difference, *, is_last: bool) -> Difference:
        """Repairs a difference and returns it. If it was not repaired, the message has the reason.

        Args:
            is_last: whether this is the last attempt, after which a concurrent change is reported as not repaired.

        Raises:
            StaleRevision: another process changed the table meanwhile, so the topic must be compared again. Not raised
                in the last attempt.
            MetastoreUnavailable, SessionFailed, StorageUnavailable, CommitLogError: every topic is affected.
        """
        try:
            return self._repair(topic, difference)
        except FATAL_ERRORS:
            raise
        except TOPIC_ERRORS as error:
            if isinstance(error, StaleRevision) and not is_last:
                raise
            message = f"{difference.message}; not repaired: {_error_text(error)}"
            if difference.kind is DifferenceKind.FOREIGN:
                message = f"no commit contains this file, and queries read it; move it away: {_error_text(error)}"
            return dataclasses.replace(difference, message=message, ops=(), moves=())

    def _repair(self, topic: str, difference: Difference) -> Difference:
        executor, files = self.executor(), self.settings.files
        if difference.kind is DifferenceKind.TABLE and difference.ops:
            publish_schema(topic, self.log.state.topics[topic], self.settings)
        for op in difference.ops:
            if isinstance(op, CreateTable):
                executor.ensure_database(op.table.database)
            executor.execute(op)
        if difference.kind is DifferenceKind.LOST:
            note = "The files are missing: see headrace verify, headrace backfill and headrace accept-missing.\n"
            files.put(f"{difference.where}/{MISSING_FILES_NOTE}", note.encode())
        return self._move_foreign_file(difference) if difference.moves else difference

    def _move_foreign_file(self, difference: Difference) -> Difference:
        """Moves a file that no commit contains to the topic's directory `_foreign`. Returns the difference with the new
        path."""
        files, ((source, wanted),) = self.settings.files, difference.moves
        directory = wanted.rpartition("/")[0]
        for attempt in range(MOVE_ATTEMPTS_MAX):
            used_paths = {f"{directory}/{name}" for name in files.children(directory)}
            target = next(name for name in _numbered_names(wanted) if name not in used_paths)
            try:
                is_moved = files.move_uncommitted(source, target)
                break
            except FileExistsError:
                if attempt == MOVE_ATTEMPTS_MAX - 1:
                    raise
        message = _foreign_message(target) if is_moved else "no commit contains this file; it was deleted meanwhile"
        return dataclasses.replace(difference, message=message, moves=((source, target),))

    def _compare_kind(self, topic: str, kind: FileKind) -> Iterator[Difference]:
        """Yields the differences of a topic's table and files of one kind to the commits.

        They are first compared with the commits that were read last. Newer commits are read only if they differ,
        because reading them for each topic would take longer than the comparison.
        """
        state = self.log.state
        if not _has_table(state.topics[topic], kind):
            return
        table = self._table(topic, state.topics[topic], kind)
        current = self._current(table)
        if _is_own(current, table) and not self.compares_partitions:
            committed: Directories = {}
            found = _Found(current, {}, frozenset(), {})
        else:
            committed = self._directories(topic, state, kind)
            found = self._found(table, current, committed)
        differences = tuple(self._differences(topic, state, kind, table, committed, found))
        if differences:
            # The table and the files must have been read before the commits, because a load may change them meanwhile.
            state = self.log.read_state()
            table, committed = self._table(topic, state.topics[topic], kind), self._directories(topic, state, kind)
            differences = tuple(self._differences(topic, state, kind, table, committed, found))
        yield from differences

    def _found(self, table: TableState, current: TableState | None, committed: Directories) -> _Found:
        """Returns the existing partitions of a topic's table with their locations, and with `deep` its files.

        Args:
            table: the definition of the table.
            current: the table as it is in the metastore.
            committed: the directories of the time partitions with committed files.
        """
        is_own_table = _is_own(current, table)
        selected = frozenset(map(partition_values, committed)) if is_own_table and not self.deep else None
        existing = self.executor().partitions(table.database, table.name, selected) if is_own_table else {}
        return _Found(current, existing, selected, self._listed_files(committed) if self.deep else {})

    def _differences(
        self, topic: str, state: LoaderState, kind: FileKind, table: TableState, committed: Directories, found: _Found
    ) -> Iterator[Difference]:
        current = found.table
        wanted = self._with_complete_until(topic, current, table)
        if state.topics[topic].is_repartitioned and current is not None and _has_old_partitioning(current, wanted):
            message = (
                f"the table is still partitioned by {', '.join(current.partition_columns)}; the next load replaces it "
                f"by one with {', '.join(wanted.partition_columns)}"
            )
            yield Difference(topic, DifferenceKind.PENDING, wanted.full_name, message)
            return
        try:
            ops = plan_table(current, wanted)
        except ForeignTable as error:
            where = f"{self.settings.database}{_suffix(kind)}.{state.topics[topic].table}"
            yield Difference(topic, DifferenceKind.TABLE, where, str(error))
            return
        if ops:
            yield Difference(topic, DifferenceKind.TABLE, wanted.full_name, _table_message(ops), ops)
        elif self.deep and current is not None and VIEW_REFUSED in current.properties:
            yield _refused_view(topic, current, wanted)
        if read_cursor(self.log.storage, FILES).position(topic) < state.topics[topic].commit_number:
            message = "commits are pending; the next load applies them"
            yield Difference(topic, DifferenceKind.PENDING, wanted.full_name, message)
            return
        yield from self._partitions(topic, wanted, found, committed)
        yield from self._files(topic, state.topics[topic], kind, committed, found.directories)

    def _current(self, wanted: TableState) -> TableState | None:
        """Returns the table as it is in the metastore. A table that was read ahead is read again if it differs from the
        definition `wanted`, because a load may have changed it meanwhile."""
        key = (wanted.database, wanted.name)
        if key in self._prefetched:
            current = self._prefetched.pop(key)
            if current is not None and _is_equal(current, wanted):
                return current
        return self.executor().table(*key)

    def _partitions(self, topic: str, table: TableState, found: _Found, committed: Directories) -> Iterator[Difference]:
        location = self.settings.files.location
        locations = {
            values: location(directory)
            for values, (directory, _) in ((partition_values(name), one) for name, one in committed.items())
            if found.selected is None or values in found.selected
        }
        dropped = set(found.partitions) - set(locations) if self.deep else set()
        for op in plan_partitions(table, found.partitions, locations, dropped):
            yield Difference(topic, DifferenceKind.PARTITIONS, table.full_name, _partitions_message(op), (op,))

    def _listed_files(self, committed: Directories) -> dict[str, tuple[str, ...]]:
        """Returns the files that queries read, found by listing: for each directory of a time partition, the names of
        its files."""
        children = self.settings.files.children
        return {
            directory: tuple(name for name in children(directory) if not name.startswith(HIDDEN_PREFIXES))
            for directory, _ in committed.values()
        }

    def _directories(self, topic: str, state: LoaderState, kind: FileKind) -> Directories:
        index, directories = FileIndex(self.log, self._sha256s), {}
        for day in index.days(topic, kind):
            for time_partition, indexed in index.day_uncached(topic, kind, day).time_partitions.items():
                names = frozenset(file.name for file in live_at(indexed, state.commit_number))
                if names:
                    generation = generation_at(indexed, state.commit_number)
                    directories[time_partition] = (
                        time_partition_directory(state.topics[topic].directory, kind, time_partition, generation),
                        names,
                    )
        return directories

    def _files(
        self,
        topic: str,
        state: TopicState,
        kind: FileKind,
        committed: Directories,
        directories: Mapping[str, tuple[str, ...]],
    ) -> Iterator[Difference]:
        for time_partition, (directory, names) in sorted(committed.items()):
            if directory not in directories:
                continue  # created after the directories were listed, or not listed
            for name in sorted(set(directories[directory]) - names):
                target = f"{topic_directory(state.directory, kind)}/{FOREIGN_DIRECTORY}/{time_partition}/{name}"
                moves = ((f"{directory}/{name}", target),)
                yield Difference(
                    topic, DifferenceKind.FOREIGN, f"{directory}/{name}", _foreign_message(target), moves=moves
                )
            lost = [name for name in sorted(names) if self.settings.files.length(f"{directory}/{name}") is None]
            if lost:
                message = (
                    f"{len(lost)} of {len(names)} committed files are missing: restore them, recreate them with "
                    f"`headrace backfill {topic}`, or accept the loss with `headrace accept-missing {topic} "
                    f"--time-partition {time_partition}`"
                )
                yield Difference(topic, DifferenceKind.LOST, directory, message)

    def _table(self, topic: str, state: TopicState, kind: FileKind) -> TableState:
        define_table = quarantine_table if kind is FileKind.QUARANTINE else data_table
        return define_table(topic, state, self.settings, f"{state.commit_number}-{self.new_run_id()}")

    def _with_complete_until(self, topic: str, current: TableState | None, wanted: TableState) -> TableState:
        """Returns the table definition `wanted`, with `headrace.complete_until` added if the table does not exist
        (`current` is None) and must be created again. Existing tables get the property from loads."""
        if current is not None:
            return wanted
        completeness = read_completeness(self.log.storage).topics.get(topic)
        if completeness is None or not completeness.property_ms:
            return wanted
        properties = {**wanted.properties, COMPLETE_UNTIL: instant_text(completeness.property_ms)}
        return dataclasses.replace(wanted, properties=MappingProxyType(properties))


def _refused_view(topic: str, current: TableState, wanted: TableState) -> Difference:
    """Returns the difference that the view of a table could not be created. The repair makes the next load try again.

    Args:
        current: the table as it is in the metastore.
        wanted: the table's definition, with a new revision.
    """
    revision = ((REVISION, wanted.properties[REVISION]),)
    op = SetProperties(current.database, current.name, current.revision, revision, (VIEW_REFUSED,))
    message = "its view could not be created; the next load with new rows of the topic tries again"
    return Difference(topic, DifferenceKind.TABLE, current.full_name, message, (op,))


def _is_own(current: TableState | None, wanted: TableState) -> bool:
    """Whether the table `current` has the partitions of the topic of `wanted`, with the same partition columns."""
    return (
        current is not None and current.topic == wanted.topic and current.partition_columns == wanted.partition_columns
    )


def _is_equal(current: TableState, wanted: TableState) -> bool:
    try:
        return not plan_table(current, wanted)
    except ForeignTable:
        return False


def _has_old_partitioning(current: TableState, wanted: TableState) -> bool:
    """Whether a topic's table has other partition columns than its definition `wanted`, and nothing else makes it
    foreign."""
    if current.partition_columns == wanted.partition_columns:
        return False
    try:
        plan_table(current, dataclasses.replace(wanted, partition_columns=current.partition_columns))
    except ForeignTable:
        return False
    return True


def _suffix(kind: FileKind) -> str:
    return QUARANTINE_DATABASE_SUFFIX if kind is FileKind.QUARANTINE else ""


def _has_table(state: TopicState, kind: FileKind) -> bool:
    return kind is FileKind.DATA or bool(state.quarantine.files)


def _numbered_names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}.{number}" for number in itertools.count(1))


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    return str(error)


def _foreign_message(target: str) -> str:
    return f"no commit contains this file, and queries read it; moved to {target}"


def _table_message(ops: tuple[Op, ...]) -> str:
    changes = next((op for op in ops if isinstance(op, SetProperties)), None)
    if changes is None or any(isinstance(op, CreateTable) for op in ops):
        return "the table does not exist"
    names = sorted({key for key, _ in changes.properties if key != REVISION} | set(changes.removed))
    return f"the table was altered: {', '.join(names)}"


def _partitions_message(op: Op) -> str:
    match op:
        case AddPartitions(partitions=partitions):
            names = _partition_names([partition.values for partition in partitions])
            return f"{_partition_count_text(len(partitions))} missing: {names}"
        case SetPartitionLocation(partition=partition):
            return (
                f"the partition {_partition_names([partition.values])} has another location than {partition.location}"
            )
        case DropPartitions(values=values):
            count = _partition_count_text(len(values))
            return f"no commit contains {_partition_names(values)}: {count} dropped; the files stay"
    raise AssertionError(f"expected an operation on partitions, found {op!r}")


def _partition_count_text(number: int) -> str:
    return "1 partition is" if number == 1 else f"{number:,} partitions are"


def _partition_names(values: list[PartitionValues] | tuple[PartitionValues, ...]) -> str:
    names = ["/".join(one) for one in values[:TIME_PARTITIONS_NAMED_MAX]]
    return ", ".join(names) + (", …" if len(values) > len(names) else "")
