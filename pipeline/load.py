"""Wires a load: connects the interfaces that the loader uses to brokers, registry, storage and Hive, as the settings
require. Used by the command and by processes that run several loads."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.executors.printing import PrintingExecutor
from headrace.hive_ddl.metastore_names import table_names
from headrace.hive_ddl.ops import ReplaceView
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.from_settings import kafka_security
from headrace.loader.apply.audit import AuditApplier, positions_in
from headrace.loader.apply.base import AppliedCommit
from headrace.loader.apply.catalog import Catalog
from headrace.loader.apply.chain import chain_of
from headrace.loader.apply.complete import CompleteUntil
from headrace.loader.apply.group_offsets import GROUP
from headrace.loader.apply.other_warehouse import TablesOfOtherWarehouse
from headrace.loader.apply.quiet_tables import QuietTables
from headrace.loader.apply.repair import Repair
from headrace.loader.apply.schema import TableSettings
from headrace.loader.apply.tables_to_compare import (
    HIVE_SERVER_LIMITS,
    METASTORE_LIMITS,
    CompareLimits,
    TablesToCompare,
)
from headrace.loader.build import current_build
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.state import TopicState
from headrace.loader.errors import EarlierWarehouse
from headrace.loader.inspect.latest_view import latest_view, newest_id
from headrace.loader.inspect.recount_file import FileRows, RecountUnit, count_file
from headrace.loader.inspect.rolling_check import REMOTE_BUDGET, CheckBudget, RollingCheck
from headrace.loader.load_schema import commented_table_schema, table_comment, table_schema
from headrace.loader.plan.discover import is_wanted
from headrace.loader.plan.load_plan import PlanSettings
from headrace.loader.plan.schema_cache import SchemaCache
from headrace.loader.plan.schemas import WriterSchemas
from headrace.loader.policy import TopicPolicy
from headrace.loader.project.quarantine import SCHEMA as QUARANTINE_SCHEMA
from headrace.loader.rewrite.backlog import DelayOf
from headrace.loader.rewrite.merge import MergeResult, MergeUnit, merge
from headrace.loader.rewrite.retire import Retirement
from headrace.loader.rewrite.run import CompactSettings, RewritePorts
from headrace.loader.run import RunDependencies, RunSettings
from headrace.loader.storage.hadoop.staging import HadoopStaging
from headrace.loader.storage.protocols import Storage
from headrace.loader.work_unit import BLOCK_BYTES, TaskSettings, UnitResult, WorkUnit
from headrace.pipeline.audit_store import has_audit_store, open_audit_store, update_stored_verdicts
from headrace.pipeline.load_session import LoadSession
from headrace.pipeline.storage import check_warehouse_and_log, warehouse_storage
from headrace.registry.client.of_settings import registry_client
from headrace.settings import LoaderSettings, Settings
from headrace.settings.addresses import resolve_bootstrap_servers, resolve_metastore, warehouse_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.hive_ddl.executors.hiveserver import HiveServerAddress

logger = logging.getLogger(__name__)

KAFKA_TIMEOUT_S = 30.0
SPARK = "spark"
PRINT = "print"
"""Value of `hive.executor` for the executor that only prints statements."""


NO_RUN_LOG = "off"


class SparkConnection:
    """The Spark session of one load, and the executor that runs its table changes. If the metastore is not available,
    the load still reads messages, but does not change tables.

    Args:
        output: stream for the statements of an executor that only prints.
        session: shared by consecutive loads; by default each load has its own.
    """

    def __init__(
        self, settings: Settings, storage: Storage, output: TextIO, session: LoadSession | None = None
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._executor: Executor | None = PrintingExecutor(output) if settings.hive.executor == PRINT else None
        self._server = _hive_server(settings)
        self._session = session or LoadSession()
        self._session_in_use: SparkSession | None = None
        self._metastore_error: MetastoreUnavailable | None = None

    @property
    def tables_are_open(self) -> bool:
        """Whether a load compares tables: a Spark session with the metastore is open, or a HiveServer2 is used."""
        if self._server is not None:
            return self._metastore_error is None
        return self._session_in_use is not None and self._needs_session

    @property
    def is_open_without_wait(self) -> bool:
        """Whether tables can be compared without waiting for a JVM: through a HiveServer2, or in a session that this
        load or an earlier one opened."""
        return self._server is not None or (self._needs_session and self._session.is_open)

    def open_tables(self) -> bool:
        """Opens the executor for a load that only compares tables. Returns False if statements are only printed.

        Raises:
            MetastoreUnavailable, SessionFailed, JavaNotFoundError: the tables cannot be compared.
        """
        if self._server is not None:
            self.executor()
        elif self._needs_session:
            self._metastore_session(is_use=False)
        return self._server is not None or self._needs_session

    def table_names(self, database: str) -> frozenset[str] | None:
        """Returns the names of the tables and views in a database without Spark; None if that is not possible."""
        metastore = resolve_metastore(self._settings)
        return None if metastore is None else table_names(metastore, database)

    @property
    def compare_limits(self) -> CompareLimits:
        return METASTORE_LIMITS if self._server is None else HIVE_SERVER_LIMITS

    def executor(self) -> Executor:
        """Returns the `hive_ddl` executor of the settings. It creates and alters Hive tables through Spark or
        HiveServer2, or only prints the statements.

        Raises:
            MetastoreUnavailable: the metastore is not available, or an earlier call in this run found it unavailable.
        """
        if self._executor is None:
            if self._metastore_error is not None:
                raise self._metastore_error  # a wrong password is tried once per run, not once per topic
            try:
                self._executor = self._open_executor()
            except MetastoreUnavailable as error:
                self._metastore_error = error
                raise
        return self._executor

    @property
    def _needs_session(self) -> bool:
        """Whether Spark changes the tables. Otherwise HiveServer2 does, or the statements are only printed."""
        return self._settings.hive.executor == SPARK

    def _open_executor(self) -> Executor:
        if self._server is not None:
            from headrace.hive_ddl.executors.hiveserver import HiveServerExecutor

            return HiveServerExecutor(self._server)
        from headrace.hive_ddl.executors.spark import SparkExecutor

        return SparkExecutor(self._metastore_session())

    def run_units(self, units: Sequence[WorkUnit]) -> list[UnitResult]:
        from headrace.loader.job import run_units, write_units

        staging = self._storage.staging
        if isinstance(staging, HadoopStaging):
            return write_units(self._task_session(), units, staging.written_files)
        return run_units(self._task_session().sparkContext, units)

    def run_merges(self, units: Sequence[MergeUnit]) -> list[MergeResult]:
        from headrace.loader.job import run_merges

        staging = self._storage.staging
        if isinstance(staging, HadoopStaging):
            # Python tasks cannot read from HDFS and S3, and Spark could give them only whole files.
            return [merge(unit, self._storage.files, staging.sink(unit.run_id)) for unit in units]
        return run_merges(self._task_session().sparkContext, units)

    def run_recounts(self, units: Sequence[RecountUnit], show: Callable[[int], object]) -> Iterator[FileRows]:
        """Yields the rows of files: of a local file system counted in Spark tasks, else in the driver, because tasks
        cannot read from HDFS and S3. Needs no metastore.

        Args:
            show: called with the number of files that are done.
        """
        from headrace.loader.job import run_recounts

        if isinstance(self._storage.staging, HadoopStaging):
            for done, unit in enumerate(units):
                show(done)
                yield count_file(unit, self._storage.files)
        elif units:
            yield from run_recounts(self._session.any_session(self._settings).sparkContext, units, show)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        if not self._session.outlives_load:
            self._session.close()

    def _task_session(self) -> SparkSession:
        if self._needs_session:
            try:
                return self._metastore_session()
            except MetastoreUnavailable as error:
                logger.warning("metastore_unavailable error=%s", error)
        return self._session.any_session(self._settings)

    def _metastore_session(self, *, is_use: bool = True) -> SparkSession:
        if self._metastore_error is not None:
            raise self._metastore_error
        if self._session_in_use is None:
            try:
                self._session_in_use = self._session.with_metastore(self._settings, is_use=is_use)
            except MetastoreUnavailable as error:
                self._metastore_error = error
                raise
        return self._session_in_use


def _hive_server(settings: Settings) -> HiveServerAddress | None:
    """Returns the address of the HiveServer2 that changes tables; None if Spark changes them or statements are only
    printed."""
    if settings.hive.executor in (SPARK, PRINT):
        return None
    from headrace.pipeline.hive_server import hive_server_address

    return hive_server_address(settings)


@dataclass(frozen=True, slots=True)
class Load:
    """Everything that a load or a rewrite uses, connected to the configured brokers, registry, storage and Hive.

    Attributes:
        ports: the interfaces that `run_load` calls.
        settings: the settings of the load.
        rewrites: the interfaces of the commands that rewrite time partitions.
    """

    ports: RunDependencies
    settings: RunSettings
    rewrites: RewritePorts


def commit_log(settings: Settings, *, read_only: bool = False) -> CommitLog:
    """Returns the commit log of the warehouse, not yet opened.

    Args:
        read_only: whether the log must not be written or fsynced, for commands that may lack write permission.

    Raises:
        StorageError: the warehouse and the commit log do not belong together.
    """
    storage = warehouse_storage(settings)
    check_warehouse_and_log(settings, storage, is_dry=True)
    return CommitLog(storage.commits, read_only=read_only)


def kafka_cluster(settings: Settings, timeout_s: float = KAFKA_TIMEOUT_S) -> KafkaCluster:
    return KafkaCluster(resolve_bootstrap_servers(settings), timeout_s, security=kafka_security(settings))


def run_log_path(settings: Settings) -> Path | None:
    """Returns the path of the log of runs, a file with one line per load that `headrace load status` shows; None if
    `loader.run_log` disables it."""
    configured = settings.loader.run_log
    if configured == NO_RUN_LOG:
        return None
    return Path(configured) if configured else settings.data_dir / "logs" / "runs.jsonl"


def reject_second_warehouse(settings: Settings, log: CommitLog) -> None:
    """Rejects a load into an empty warehouse if the brokers record an earlier load.

    Otherwise a command that is started in another directory, or without its settings, would load all messages again
    into a second warehouse.

    Raises:
        EarlierWarehouse: the log is empty, and the loader's consumer group has offsets of topics that this load would
            load.
        KafkaError: the brokers cannot be reached.
    """
    try:
        log.check_format(writing=False)
        if log.read_state().commit_number:
            return
    except OSError:
        return  # the warehouse is not an accessible directory; opening the log reports the remedy
    with kafka_cluster(settings) as cluster:
        topics = {
            topic_partition.topic for topic_partition, offset in cluster.group_offsets(GROUP).items() if offset > 0
        }
    filters = settings.loader.topics_include, settings.loader.topics_exclude
    # Another loader may load other topics of the same brokers.
    loaded = sorted(topic for topic in topics - {settings.audit.topic} if is_wanted(topic, *filters))
    if loaded:
        others = f" and {len(loaded) - 1} more" if len(loaded) > 1 else ""
        raise EarlierWarehouse(
            str(warehouse_location(settings)),
            loaded,
            evidence=f"the consumer group {GROUP} shows that {loaded[0]}{others} went into another warehouse",
            alternative="load all messages again into a second one: headrace load --new-warehouse",
        )


def audit_positions(settings: Settings) -> Mapping[str, AppliedCommit]:
    """Returns the position of each topic in the audit store: number and checksum of the newest commit with message
    counts in the store. Without a store there are no positions.

    Raises:
        StoreUnavailable: the audit store cannot be read.
    """
    if not has_audit_store(settings):
        return {}
    with open_audit_store(settings) as store:
        return positions_in(store)


@contextmanager
def open_load(
    settings: Settings,
    log: CommitLog,
    output: TextIO,
    *,
    is_dry: bool = False,
    only: Sequence[str] = (),
    allow_new_warehouse: bool = False,
    session: LoadSession | None = None,
) -> Iterator[Load]:
    """Yields everything that a load or a rewrite uses, as a `Load`. At the end, closes the connections to brokers and
    registry, and Spark unless `session` outlives the load.

    Args:
        log: the commit log. The caller has opened it, unless `is_dry`.
        output: stream for the statements of an executor that only prints.
        is_dry: whether the load will only be planned.
        only: names or patterns of the topics to load; empty for all.
        allow_new_warehouse: whether the load may start an empty warehouse although the tables have files in another
            one.
        session: a Spark session that consecutive loads share; None if this load opens its own.
    """
    with ExitStack() as stack:
        storage = warehouse_storage(settings)
        check_warehouse_and_log(settings, storage, is_dry=is_dry)
        spark = SparkConnection(settings, storage, output, session)
        stack.callback(spark.close)
        cluster = stack.enter_context(kafka_cluster(settings))
        registry = stack.enter_context(registry_client(settings))
        tables = table_settings(settings, storage)
        audit = AuditApplier(
            lambda: open_audit_store(settings),
            log.sha256,
            frozenset({settings.audit.topic}),
            socket.gethostname(),
            datacenter=settings.audit.datacenter,
            late_after_ms=settings.audit.grace.ms,
            update_verdicts=lambda store: update_stored_verdicts(store, settings),
        )
        chain = chain_of(log, storage, spark.executor, tables, audit, cluster)
        tables_to_compare = TablesToCompare(spark.executor, settings.hive.database, spark.compare_limits)
        yield Load(
            RunDependencies(
                cluster=cluster,
                schemas=WriterSchemas(registry, log.storage, settings.loader.subject_of, writable=not is_dry),
                log=log,
                staging=storage.staging,
                engine=chain.engine,
                run_units=spark.run_units,
                tables_are_open=lambda: spark.tables_are_open,
                tables_to_compare=tables_to_compare,
                now_ms=now_ms,
                new_run_id=new_run_id,
                complete_until=CompleteUntil(
                    spark.executor,
                    log.storage,
                    settings.hive.database,
                    log.head,
                    is_open=lambda: spark.is_open_without_wait or settings.hive.executor == PRINT,
                ),
                catalog=Catalog(log, chain.index, storage.files, tables, spark.executor),
                retirement=Retirement(log, chain.index, storage.files, chain.partitions),
                tables_of_other_warehouse=TablesOfOtherWarehouse(spark.executor, storage.files, settings.hive.database),
                file_check=RollingCheck(log, storage.files, check_budget(storage)),
                quiet_tables=QuietTables(tables_to_compare, lambda: spark.is_open_without_wait, spark.table_names),
                open_tables=spark.open_tables,
                partitions=chain.partitions,
            ),
            dataclasses.replace(
                run_settings(settings), topics_only=tuple(only), allow_new_warehouse=allow_new_warehouse
            ),
            RewritePorts(
                log=log,
                staging=storage.staging,
                files=storage.files,
                index=chain.index,
                engine=chain.engine,
                run_merges=spark.run_merges,
                now_ms=now_ms,
                new_run_id=new_run_id,
                build=current_build(),
            ),
        )


def check_budget(storage: Storage) -> CheckBudget:
    """Returns the limits of a load's share in comparing files with the commits."""
    return CheckBudget() if storage.files.listings_at_once == 1 else REMOTE_BUDGET


def table_settings(settings: Settings, storage: Storage) -> TableSettings:
    hive = settings.hive

    def schema_of_table(topic: str, state: TopicState) -> str:
        load, kafka_column = state.load_schema, state.kafka_column or settings.loader.of_topic(topic).kafka_column
        if not hive.column_comments:
            return table_schema(load.text, kafka_column)
        return commented_table_schema(load.text, kafka_column, load.fold, hive.literal_chars_max)

    def view_of(topic: str, state: TopicState) -> ReplaceView | None:
        schema_id = newest_id(state) if hive.latest_views else None
        text = None if schema_id is None else SchemaCache(storage.commits, writable=False).text(schema_id)
        if schema_id is None or text is None:
            return None
        return latest_view(topic, state, settings.loader.of_topic(topic).kafka_column, hive.database, schema_id, text)

    return TableSettings(
        files=storage.files,
        database=settings.hive.database,
        literal_chars_max=settings.hive.literal_chars_max,
        table_schema=schema_of_table,
        quarantine_schema=QUARANTINE_SCHEMA,
        table_comment=lambda state: table_comment(state.load_schema.fold) if hive.column_comments else "",
        latest_view=view_of,
    )


@contextmanager
def open_repair(
    settings: Settings, log: CommitLog, output: TextIO, *, deep: bool, compares_partitions: bool = True
) -> Iterator[Repair]:
    """Yields the object that compares Hive tables with the commit log and repairs them. Closes Spark at the end.

    Args:
        log: the commit log. The caller has opened it, or only read it if nothing will be changed.
        output: stream for the statements of an executor that only prints.
        deep: whether to list the directories too, in search of files and partitions that no commit added.
        compares_partitions: whether to compare the partitions of existing tables.
    """
    storage = warehouse_storage(settings)
    spark = SparkConnection(settings, storage, output)
    try:
        yield Repair(log, spark.executor, table_settings(settings, storage), new_run_id, deep, compares_partitions)
    finally:
        spark.close()


def run_settings(settings: Settings) -> RunSettings:
    """Converts the user's settings into `RunSettings` of the loader."""
    loader = settings.loader
    return RunSettings(
        topics_include=loader.topics_include,
        topics_exclude=loader.topics_exclude,
        staging_age_ms=loader.staging_age.ms,
        plan=PlanSettings(
            tasks=loader.tasks or os.cpu_count() or 1,
            range_bytes_max=loader.range_bytes_max,
            file_bytes_target=loader.file_bytes_target,
            policy_of=lambda topic: topic_policy(loader.of_topic(topic)),
            build=current_build(),
        ),
        task=TaskSettings(
            bootstrap_servers=resolve_bootstrap_servers(settings),
            security=kafka_security(settings).without_secrets(),
            staging="",
            file_bytes_target=loader.file_bytes_target,
        ),
    )


def with_any_quarantine(settings: RunSettings) -> RunSettings:
    """Returns the settings for a load that may quarantine any share of the messages of a topic."""

    def policy_of(topic: str) -> TopicPolicy:
        return dataclasses.replace(settings.plan.policy_of(topic), quarantine_ratio_max=1.0)

    return dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, policy_of=policy_of))


def compaction_delay_ms(settings: Settings) -> DelayOf:
    """Returns a function that returns how long after its end a time partition of a topic is compacted, in ms; None for
    a topic that is not compacted.

    HiveServer2 cannot move a partition to a path with a blank (docs/hive.md), so a compaction would stop the topic.
    """
    can_move = settings.hive.executor in (SPARK, PRINT) or " " not in str(warehouse_location(settings))

    def delay_ms_of(topic: str) -> int | None:
        loader = settings.loader.of_topic(topic)
        return loader.compact_after.ms if loader.compact and can_move else None

    return functools.cache(delay_ms_of)


def compact_settings(settings: Settings) -> CompactSettings:
    loader = settings.loader
    return CompactSettings(
        closed_ms_of=functools.cache(lambda topic: loader.of_topic(topic).compact_after.ms),
        bytes_target=loader.file_bytes_target,
        block_bytes=BLOCK_BYTES,
        codec_of=lambda topic: loader.of_topic(topic).codec,
    )


def topic_policy(loader: LoaderSettings) -> TopicPolicy:
    """Converts the settings that apply to one topic into a `TopicPolicy` of the loader.

    Args:
        loader: section `[loader]` of the settings, with the keys that `[[loader.topic]]` sets for the topic.
    """
    return TopicPolicy(
        partition_by=loader.partition_by,
        kafka_column=loader.kafka_column,
        codec=loader.codec,
        time_fields=loader.time_fields,
        on_data_loss=loader.on_data_loss,
        quarantine_ratio_max=loader.quarantine_ratio_max,
        record_bytes_max=loader.record_bytes_max,
        corrupt_batches=loader.corrupt_batches,
        future_ms_max=loader.future_max.ms if loader.future_records == "clamp" else None,
        are_time_fields_set=loader.time_fields != LoaderSettings().time_fields,
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_run_id() -> str:
    """Returns a new run id: the time, for sorting, and a random part, for uniqueness."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(8)}"
