"""Fakes of the loader's interfaces, in memory: Kafka cluster, registry, pool of tasks and metastore."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.audit.row import AuditRow
from headrace.audit.storage.store import AuditStore
from headrace.avro_schema import Schema, parse_schema
from headrace.hive_ddl.errors import StaleRevision, StatementRefused
from headrace.hive_ddl.ops import (
    AddPartitions,
    CreateTable,
    DropPartitions,
    DropTable,
    Op,
    PartitionValues,
    RenameTable,
    ReplaceView,
    SetPartitionLocation,
    SetProperties,
)
from headrace.hive_ddl.render import view_revision
from headrace.hive_ddl.table import LITERAL_CHARS_MAX, VIEW_OF, VIEW_REVISION, Column, TableState
from headrace.kafka_wire.cluster import (
    ClusterMetadata,
    EpochEnd,
    EpochEndLookup,
    EpochQuery,
    OffsetLookup,
    PartitionMetadata,
    TopicMetadata,
)
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.apply.audit import AuditApplier
from headrace.loader.apply.catalog import Catalog
from headrace.loader.apply.chain import chain_of
from headrace.loader.apply.complete import CompleteUntil
from headrace.loader.apply.other_warehouse import TablesOfOtherWarehouse
from headrace.loader.apply.quiet_tables import QuietTables
from headrace.loader.apply.schema import TableSettings
from headrace.loader.apply.tables_to_compare import METASTORE_LIMITS, TablesToCompare
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.state import TopicState
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.inspect.latest_view import latest_view, newest_id
from headrace.loader.inspect.rolling_check import CheckBudget, RollingCheck
from headrace.loader.load_schema import commented_table_schema
from headrace.loader.plan.load_plan import PlanSettings
from headrace.loader.plan.schema_cache import SchemaCache
from headrace.loader.plan.schemas import WriterSchemas
from headrace.loader.policy import TopicPolicy
from headrace.loader.rewrite.merge import MergeResult, MergeUnit
from headrace.loader.rewrite.retire import Retirement
from headrace.loader.rewrite.run import RewritePorts
from headrace.loader.run import RunDependencies, RunSettings
from headrace.loader.storage.local import local_storage
from headrace.loader.work_unit import (
    AuditCount,
    FileKind,
    FileRange,
    OffsetRange,
    RangeCounts,
    RangeResult,
    StagedFile,
    TaskSettings,
    TopicPlan,
    UnitResult,
    WorkUnit,
)
from headrace.registry.errors import RegistryUnavailable, SchemaNotFound, SubjectNotFound
from support.loader.file_checksums import checksum_of
from support.loader.loader_samples import POLICY, value_subject

ORDER_V1 = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
ORDER_V2 = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},'
    '{"name":"note","type":"string","default":""}]}'
)


schema_of_table = functools.lru_cache(maxsize=4096)(commented_table_schema)
"""Cached, because simulations run thousands of loads of the same topics."""


@dataclass
class FakeTopic:
    """A topic in memory. Messages have only a schema id.

    Attributes:
        logs: for each partition the schema ids of its messages.
        first: offset of the first message, in all partitions.
        epochs: current leader epochs by partition, 0 by default.
        open_from: by partition: the first offset of an open transaction.
        starts: by partition: the leader epochs in its log as (epoch, first offset), by default epoch 0 only.
    """

    topic_id: str
    logs: list[list[int]]
    first: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    open_from: dict[int, int] = field(default_factory=dict)
    starts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def end(self, partition: int) -> int:
        return self.first + len(self.logs[partition])

    def cut_back(self, partition: int, to: int, *schema_ids: int) -> None:
        """Simulates an unclean election: truncates the log of a partition at the offset `to`, then appends messages
        with these schema ids under a new leader epoch."""
        starts = [one for one in self.starts.get(partition, [(0, 0)]) if one[1] < to]
        self.epochs[partition] = self.epochs.get(partition, 0) + 1
        self.starts[partition] = [*starts, (self.epochs[partition], to)]
        self.logs[partition] = [*self.logs[partition][: to - self.first], *schema_ids]

    def epoch_end(self, partition: int, epoch: int) -> EpochEnd:
        """Returns the end of a leader epoch in a partition's log, as a broker's response would
        (OffsetsForLeaderEpoch)."""
        starts = self.starts.get(partition, [(0, 0)])
        if epoch > max(starts[-1][0], self.epochs.get(partition, 0)):
            return EpochEnd(-1, -1)
        ends = [*(start for _, start in starts[1:]), self.end(partition)]
        found = [(one, end) for (one, _), end in zip(starts, ends, strict=True) if one <= epoch]
        return EpochEnd(*found[-1]) if found else EpochEnd(epoch, starts[0][1])

    def epochs_of(self, partition: int, start: int, end: int) -> ReadEpochs:
        """Returns the leader epochs of the messages with the offsets `[start, end)`, as if each message were a
        batch."""
        if start >= end:
            return NO_EPOCHS
        starts = self.starts.get(partition, [(0, 0)])
        inside = [(epoch, max(first, start)) for epoch, first in starts if first < end]
        before = max(at for at, (_, first) in enumerate(inside) if first <= start)
        return ReadEpochs(tuple(inside[before:]), end)


@dataclass
class FakeCluster:
    topics: dict[str, FakeTopic] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    epoch_requests: list[dict[TopicPartition, EpochQuery]] = field(default_factory=list)
    supports_epochs: bool = True

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        found = {
            name: TopicMetadata(
                topic.topic_id, False, {n: PartitionMetadata(0, topic.epochs.get(n, 0)) for n in range(len(topic.logs))}
            )
            for name, topic in self.topics.items()
            if topics is None or name in topics
        }
        return ClusterMetadata("cluster", {}, found)

    def lookup_offsets(
        self, topic_partitions: Iterable[TopicPartition], which: str, read_committed: bool = True
    ) -> OffsetLookup:
        answers = {}
        for tp in topic_partitions:
            topic = self.topics[tp.topic]
            end = topic.first + len(topic.logs[tp.partition])
            stable_end = topic.open_from.get(tp.partition, end) if read_committed else end
            answers[tp] = topic.first if which == "earliest" else stable_end
        return OffsetLookup(answers)

    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup:
        if queries:
            self.epoch_requests.append(dict(queries))
        if not self.supports_epochs:
            return EpochEndLookup(dict.fromkeys(queries))
        return EpochEndLookup(
            {tp: self.topics[tp.topic].epoch_end(tp.partition, one.epoch) for tp, one in queries.items()}
        )

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, str]:
        self.committed.update(offsets)
        return {}


class FakeRegistry:
    """A registry in memory, which can be made unavailable.

    Attributes:
        subjects: the schema ids of the versions, by subject.
        texts: the schemas, by id.
        is_down: whether requests fail as if the server were unreachable.
        failure: raised by every request, if set.
    """

    def __init__(self) -> None:
        self.subjects: dict[str, list[int]] = {}
        self.texts: dict[int, str] = {}
        self.name = "registry-1"
        self.is_down = False
        self.failure: Exception | None = None
        self.requests = 0

    def register(self, subject: str, schema_id: int, text: str) -> None:
        self.texts[schema_id] = text
        if subject:
            self.subjects.setdefault(subject, []).append(schema_id)

    def _count_request(self) -> None:
        self.requests += 1
        if self.is_down:
            raise RegistryUnavailable("http://registry", "connection refused")
        if self.failure is not None:
            raise self.failure

    def identity(self) -> str:
        self._count_request()
        return self.name

    def versions(self, subject: str) -> list[int]:
        self._count_request()
        if subject not in self.subjects:
            raise SubjectNotFound(subject=subject)
        return list(range(1, len(self.subjects[subject]) + 1))

    def version(self, subject: str, version: int) -> Any:
        self._count_request()
        return self.schema_by_id(self.subjects[subject][version - 1])

    def schema_by_id(self, schema_id: int) -> Any:
        self._count_request()
        if schema_id not in self.texts:
            raise SchemaNotFound(schema_id=schema_id)
        return SimpleNamespace(schema_id=schema_id, text=self.texts[schema_id], metadata={})

    def parsed(self, registered: Any) -> Schema:
        return parse_schema(registered.text)


@dataclass
class FakePool:
    """Runs work units in this process. Instead of an Avro file it writes a text file with one JSON line per row.

    Attributes:
        bad: schema ids of messages that are quarantined.
        broken: by topic partition: the offset at which reading fails.
    """

    cluster: FakeCluster
    bad: set[int] = field(default_factory=set)
    broken: dict[TopicPartition, int] = field(default_factory=dict)
    runs: int = 0
    unknown_ids_max: int = 1_000

    def __call__(self, units: Sequence[WorkUnit]) -> list[UnitResult]:
        self.runs += 1
        return [self._run(unit) for unit in units]

    def _run(self, unit: WorkUnit) -> UnitResult:
        results, files = [], []
        for offsets in unit.ranges:
            result, staged = self._range(unit, offsets)
            results.append(result)
            files += staged
        return UnitResult(unit.task, tuple(results), tuple(files), unit.build, 5)

    def _range(self, unit: WorkUnit, offsets: OffsetRange) -> tuple[RangeResult, list[StagedFile]]:
        tp, plan = offsets.topic_partition, unit.topics[offsets.topic_partition.topic]
        topic = self.cluster.topics[tp.topic]
        rows: dict[FileKind, list[int]] = {FileKind.DATA: [], FileKind.QUARANTINE: []}
        end, error, unknown = offsets.end, "", ()
        for offset in range(offsets.start, offsets.end):
            schema_id = topic.logs[tp.partition][offset - topic.first]
            if self.broken.get(tp) == offset:
                end, error = offset, "the leader has changed"
                break
            if schema_id in plan.absent_ids or schema_id in self.bad:
                rows[FileKind.QUARANTINE].append(offset)
            elif schema_id in plan.writer_schemas:
                rows[FileKind.DATA].append(offset)
            else:
                end, unknown = offset, self._unknown(plan, topic.logs[tp.partition][offset - topic.first : offsets.end])
                break
        files = [self._write(unit, tp, kind, found) for kind, found in rows.items() if found]
        number = len(rows[FileKind.DATA])
        audit = (AuditCount("loader", tp.topic, tp.partition, 0, number, number, number, "written"),) if number else ()
        counts = RangeCounts(records=number, quarantined=len(rows[FileKind.QUARANTINE]))
        done = OffsetRange(tp, offsets.start, end)
        epochs = topic.epochs_of(tp.partition, offsets.start, end)
        result = RangeResult(done, counts, (), audit, {"record": number}, 10 * number, error, unknown, epochs=epochs)
        return result, files

    def _unknown(self, plan: TopicPlan, schema_ids: Sequence[int]) -> tuple[int, ...]:
        known = {*plan.writer_schemas, *plan.absent_ids, *self.bad}
        return tuple(one for one in dict.fromkeys(schema_ids) if one not in known)[: self.unknown_ids_max]

    def _write(self, unit: WorkUnit, tp: TopicPartition, kind: FileKind, offsets: list[int]) -> StagedFile:
        path = f"{unit.task}-{kind.value}-{tp.topic}-{tp.partition}-{offsets[0]}"
        content = "".join(json.dumps([tp.partition, offset]) + "\n" for offset in offsets).encode()
        target = Path(unit.settings.staging) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        ranges = (FileRange(tp.partition, offsets[0], offsets[-1], len(offsets)),)
        checksum = checksum_of(content)
        return StagedFile(kind, tp.topic, "dt=2026-01-01/hr=00", path, len(content), checksum, len(offsets), ranges)


@dataclass
class FakeHive:
    """A metastore in memory, which rejects the change of a table that another process has changed meanwhile
    (compare-and-set).

    Attributes:
        failure: raised by every call, if set.
    """

    tables: dict[tuple[str, str], TableState] = field(default_factory=dict)
    parts: dict[tuple[str, str], dict[PartitionValues, str]] = field(default_factory=dict)
    databases: set[str] = field(default_factory=set)
    failure: Exception | None = None
    executed: list[Op] = field(default_factory=list)
    partition_requests: list[frozenset[PartitionValues] | None] = field(default_factory=list)
    """The partitions requested by each call of `partitions`; None for all."""
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    """Tables that cannot be read, with the error."""
    refused_views: dict[tuple[str, str], str] = field(default_factory=dict)
    """Views that cannot be created, with the reason."""
    has_compare_and_set: bool = True
    requests: int = 0

    def _check(self) -> None:
        self.requests += 1
        if self.failure is not None:
            raise self.failure

    def ensure_database(self, name: str) -> None:
        self._check()
        self.databases.add(name)

    def table(self, database: str, name: str) -> TableState | None:
        self._check()
        if (database, name) in self.refused:
            raise StatementRefused(f"reading table {database}.{name}", self.refused[database, name])
        return self.tables.get((database, name))

    def tables_by_name(self, database: str, names: Collection[str]) -> Mapping[str, TableState]:
        self._check()
        for name in names:
            if (database, name) in self.refused:
                raise StatementRefused(f"reading tables of {database}", self.refused[database, name])
        return {name: self.tables[database, name] for name in names if (database, name) in self.tables}

    def table_names(self, database: str) -> frozenset[str]:
        self._check()
        return frozenset(name for of_database, name in self.tables if of_database == database)

    def partitions(
        self, database: str, name: str, wanted: Collection[PartitionValues] | None = None
    ) -> Mapping[PartitionValues, str]:
        self._check()
        self.partition_requests.append(None if wanted is None else frozenset(wanted))
        return dict(self.parts.get((database, name), {}))

    def execute(self, op: Op) -> None:
        self._check()
        if isinstance(op, SetProperties):
            self._set(op)
        self.executed.append(op)
        if isinstance(op, CreateTable):
            self.tables[(op.table.database, op.table.name)] = op.table
        elif isinstance(op, ReplaceView):
            if (op.database, op.name) in self.refused_views:
                raise StatementRefused(f"the view {op.database}.{op.name}", self.refused_views[op.database, op.name])
            columns = tuple(Column(column.name, column.type, column.comment) for column in op.columns)
            properties = {VIEW_OF: op.topic, VIEW_REVISION: view_revision(op)}
            self.tables[(op.database, op.name)] = TableState(op.database, op.name, "", columns, (), properties)
        elif isinstance(op, DropTable):
            self.tables.pop((op.database, op.name), None)
            self.parts.pop((op.database, op.name), None)
        elif isinstance(op, RenameTable):
            self._rename(op)
        elif isinstance(op, AddPartitions):
            parts = self.parts.setdefault((op.database, op.name), {})
            for one in op.partitions:
                parts.setdefault(one.values, one.location)
        elif isinstance(op, SetPartitionLocation):
            self.parts[(op.database, op.name)][op.partition.values] = op.partition.location
        elif isinstance(op, DropPartitions):
            for values in op.values:
                self.parts.get((op.database, op.name), {}).pop(values, None)

    def close(self) -> None:
        pass

    def _rename(self, op: RenameTable) -> None:
        old, new = (op.database, op.name), (op.database, op.new_name)
        if old not in self.tables or new in self.tables:
            raise StatementRefused(f"a new name of table {op.database}.{op.name}", "no such table, or the name is used")
        self.tables[new] = dataclasses.replace(self.tables.pop(old), name=op.new_name)
        self.parts[new] = self.parts.pop(old, {})

    def _set(self, op: SetProperties) -> None:
        table = self.tables[(op.database, op.name)]
        if table.revision != op.expected_revision:
            raise StaleRevision(op.database, op.name, op.expected_revision or "", table.revision or "")
        properties = {key: value for key, value in table.properties.items() if key not in op.removed}
        self.tables[(op.database, op.name)] = TableState(
            table.database,
            table.name,
            table.location,
            table.columns,
            table.partition_columns,
            {**properties, **dict(op.properties)},
        )


class World:
    """A warehouse and the fake services around it. `ports` creates a new driver, as a new process would.

    Attributes:
        policy: the policy of all topics that are not in `policies`.
        is_session_open: whether loads without new messages find a session with the metastore of an earlier load.
        compare_limits: how many tables and partitions a load compares at once.
        knows_names: whether names of tables can be read without a session.
        sessions_opened: how often loads without new messages opened a session.
        check_budget: the share of a load in comparing files with the commits.
        monotonic_s: the clock that limits this share.
    """

    def __init__(self, root: Path) -> None:
        self.warehouse = root / "warehouse"
        self.cluster = FakeCluster()
        self.registry = FakeRegistry()
        self.pool = FakePool(self.cluster)
        self.hive = FakeHive()
        self.audit_path = root / "audit.db"
        self.clock_ms = 1_767_225_600_000
        self._works = 0
        self.settings = RunSettings(
            topics_include=(".*",),
            topics_exclude=(),
            staging_age_ms=7 * 86_400_000,
            plan=PlanSettings(2, 2**32, 2**28, lambda topic: self.policies.get(topic, self.policy), "test build"),
            task=TaskSettings("broker:1", "", 2**28),
        )
        self.policy = POLICY
        self.policies: dict[str, TopicPolicy] = {}
        self.subjects: dict[str, str] = {}
        self.latest_views = False
        self.is_session_open = False
        self.compare_limits = METASTORE_LIMITS
        self.knows_names = True
        self.sessions_opened = 0
        self.check_budget = CheckBudget()
        self.monotonic_s: Callable[[], float] = lambda: 0.0

    def subject_of(self, topic: str) -> str:
        """Returns the subject of a topic: the one in `subjects`, else the one derived from the topic's name."""
        return self.subjects.get(topic, value_subject(topic))

    def topic(self, name: str, *logs: Sequence[int], topic_id: str = "id-1") -> FakeTopic:
        self.cluster.topics[name] = FakeTopic(topic_id, [list(log) for log in logs])
        return self.cluster.topics[name]

    def log(self) -> CommitLog:
        return CommitLog(local_storage(self.warehouse).commits)

    def tables(self) -> TableSettings:
        def schema_of(topic: str, state: TopicState) -> str:
            loaded = state.load_schema
            return schema_of_table(loaded.text, state.kafka_column, loaded.fold, LITERAL_CHARS_MAX)

        def view_of(topic: str, state: TopicState) -> ReplaceView | None:
            number = newest_id(state) if self.latest_views else None
            text = None if number is None else SchemaCache(storage.commits, writable=False).text(number)
            return latest_view(topic, state, "position", "headrace", number, text) if number and text else None

        storage = local_storage(self.warehouse)
        return TableSettings(storage.files, "headrace", LITERAL_CHARS_MAX, schema_of, ORDER_V1, view_of)

    def ports(self) -> RunDependencies:
        return self._driver()[0]

    def rewrites(self) -> RewritePorts:
        """Creates a new driver for rewrites."""
        return self._driver()[1]

    def _driver(self) -> tuple[RunDependencies, RewritePorts]:
        log = self.log()
        log.open()
        storage = local_storage(self.warehouse)
        audit = AuditApplier(lambda: AuditStore(self.audit_path), log.sha256, frozenset({"headrace.audit"}), "host")
        chain = chain_of(log, storage, lambda: self.hive, self.tables(), audit, self.cluster)
        tables_to_compare = TablesToCompare(lambda: self.hive, "headrace", self.compare_limits)
        ports = RunDependencies(
            self.cluster,
            WriterSchemas(self.registry, log.storage, self.subject_of),
            log,
            storage.staging,
            chain.engine,
            self.pool,
            lambda: True,
            tables_to_compare,
            lambda: self.clock_ms,
            self._new_run_id,
            CompleteUntil(lambda: self.hive, log.storage, "headrace", log.head, lambda: True),
            Catalog(log, chain.index, storage.files, self.tables(), lambda: self.hive),
            Retirement(log, chain.index, storage.files, chain.partitions),
            TablesOfOtherWarehouse(lambda: self.hive, storage.files, "headrace"),
            RollingCheck(log, storage.files, self.check_budget, self.monotonic_s),
            QuietTables(tables_to_compare, lambda: self.is_session_open, self._table_names),
            self._open_tables,
            chain.partitions,
        )
        rewrites = RewritePorts(
            log,
            storage.staging,
            storage.files,
            chain.index,
            chain.engine,
            self._merge,
            lambda: self.clock_ms,
            self._new_run_id,
            "b",
        )
        return ports, rewrites

    def _merge(self, units: Sequence[MergeUnit]) -> list[MergeResult]:
        """Runs a unit of compaction: concatenates files that the pool wrote."""
        results = []
        for unit in units:
            content = b"".join((self.warehouse / source.name).read_bytes() for source in unit.sources)
            staged = Path(unit.staging) / f"{unit.task}-merged"
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(content)
            pieces = {piece.partition: piece for source in unit.sources for piece in source.ranges}
            file = StagedFile(
                unit.kind,
                unit.topic,
                unit.time_partition,
                staged.name,
                len(content),
                checksum_of(content),
                sum(source.records for source in unit.sources),
                tuple(pieces.values()),
            )
            results.append(MergeResult(unit.task, (file,), frozenset(range(len(unit.sources)))))
        return results

    def _table_names(self, database: str) -> frozenset[str] | None:
        if not self.knows_names:
            return None
        return frozenset(name for known, name in self.hive.tables if known == database)

    def _open_tables(self) -> bool:
        self.sessions_opened += 1
        self.hive._check()
        return True

    def audit(self, topic: str) -> list[AuditRow]:
        """Returns the rows of message counts of a topic in the audit store."""
        with AuditStore(self.audit_path) as store:
            return store.rows(topic)

    def _new_run_id(self) -> str:
        self._works += 1
        return f"work-{self._works}"

    def rows(self, topic: str) -> list[tuple[int, int]]:
        """Returns the (partition, offset) of every row in the published files of a topic; a duplicate row occurs
        twice."""
        return self._published(self.warehouse / topic)

    def quarantined(self, topic: str) -> list[tuple[int, int]]:
        """Returns the (partition, offset) of every message in the quarantine of a topic; a duplicate occurs twice."""
        return self._published(self.warehouse / "_quarantine" / topic)

    def _published(self, directory: Path) -> list[tuple[int, int]]:
        found = []
        for path in sorted(directory.rglob("*.avro")):
            found += [tuple(json.loads(line)) for line in path.read_text().splitlines()]
        return sorted(found)

    def produced(self, topic: str) -> list[tuple[int, int]]:
        logs = self.cluster.topics[topic].logs
        first = self.cluster.topics[topic].first
        return [(n, first + i) for n, log in enumerate(logs) for i in range(len(log))]
