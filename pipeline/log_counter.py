"""Counts the messages in the brokers' log for the audit, independently of loads: the counting of `headrace audit run`.

The counter reads the raw record batches of every topic that loads read, checks their checksums, and counts by the
loader's rule for the message time. It has positions of its own: a load that skips, repeats or loses messages does not
affect them. Position and counts of a partition change in one transaction, and only if no other process has moved the
position meanwhile. So nothing is counted twice, whenever the process ends and however many of them run.

Memory is bounded by `OFFSETS_MAX` offsets and the size of a fetch, the load on the brokers by `BYTES_PER_S_MAX`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from headrace.audit.latency import WindowTimes, late_count
from headrace.audit.row import AUDITOR, AuditOutcome, AuditRow, Tier, range_row_id
from headrace.audit.stored import UncountedBatch
from headrace.audit.window import known_window
from headrace.avro_schema import AvroSchemaError, parse_schema, self_contained_text
from headrace.avro_schema.message_time import TIME_PROPERTY
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.from_settings import kafka_security
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.build import current_build
from headrace.loader.inspect.preview import NO_COLUMNS
from headrace.loader.load_schema import EMPTY, fold
from headrace.loader.plan.discover import DiscoveredTopic, discover
from headrace.loader.plan.schemas import UNUSABLE_SCHEMA
from headrace.loader.policy import TopicPolicy
from headrace.loader.task import run_work_unit
from headrace.loader.work_unit import OffsetRange, RangeResult, TaskSettings, TopicPlan, WorkUnit
from headrace.pipeline.load import topic_policy
from headrace.registry.client import RegistryClient
from headrace.registry.errors import RegistryError, SchemaNotFound
from headrace.settings import Settings
from headrace.settings.addresses import resolve_bootstrap_servers

if TYPE_CHECKING:
    from headrace.audit.storage.store import AuditStore

logger = logging.getLogger(__name__)

OFFSETS_MAX: Final = 200_000
"""Offsets that are read between two transactions."""
FETCH_BYTES: Final = 1024 * 1024
BYTES_PER_S_MAX: Final = 32 * 1024 * 1024
SCHEMA_REFRESH_S: Final = 60.0
"""Interval at which the newest version of a topic's subject is requested again: it determines the time field."""


@dataclass(frozen=True, slots=True)
class LogCounts:
    """The result of a pass over all topics: counted messages, whether more remain to be counted, and by topic the
    reasons why it could not be counted to its end."""

    messages: int = 0
    has_more: bool = False
    problems: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(slots=True)
class _TopicSchemas:
    """The schemas of a topic's messages by id, `absent` ids that the registry does not have, and what determines the
    time field."""

    time_property: str
    newest_id: int
    requested_at: float
    texts: dict[int, str]
    absent: set[int]
    load_schema: str = NO_COLUMNS

    def add(self, schema_id: int, text: str) -> None:
        """Adds a schema, and makes the load schema of all of them."""
        self.texts[schema_id] = text
        state = EMPTY
        for number, one in enumerate(sorted(self.texts), 1):
            with contextlib.suppress(*UNUSABLE_SCHEMA):  # its messages count as errors
                state = fold(state, number, parse_schema(self.texts[one], strict=False))
        self.load_schema = NO_COLUMNS if state is EMPTY else state.text


class LogCounter:
    """Counts the log of all topics that loads read.

    Args:
        settings: the settings of loads: topics, time fields, brokers.
        store: receives the counts, and has the positions.
        cluster: the brokers.
        registry: has the schemas.
        sleep: waits a number of seconds, to limit the rate.
    """

    def __init__(
        self,
        settings: Settings,
        store: AuditStore,
        cluster: KafkaCluster,
        registry: RegistryClient,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._settings = settings
        self._store = store
        self._cluster = cluster
        self._registry = registry
        self._sleep = sleep
        self._host = socket.gethostname()
        self._instance = secrets.token_hex(8)
        self._schemas: dict[str, _TopicSchemas] = {}
        self._task = TaskSettings(
            bootstrap_servers=resolve_bootstrap_servers(settings),
            staging="memory",
            file_bytes_target=1 << 40,
            security=kafka_security(settings),
            fetch_bytes=FETCH_BYTES,
        )

    def count(self) -> LogCounts:
        """Counts the messages that the log has beyond the positions, at most `OFFSETS_MAX` offsets of each topic.

        Raises:
            KafkaError: the brokers cannot be reached.
            StoreUnavailable: the counts cannot be stored.
        """
        loader = self._settings.loader
        found = discover(self._cluster, loader.topics_include, loader.topics_exclude)
        problems, messages, has_more = dict(found.unusable), 0, False
        with_corrupt = {one.topic for one in self._store.corrupt_batches()}
        for topic in found.topics.values():
            if topic.topic == self._settings.audit.topic:
                continue
            if topic.topic in with_corrupt:
                log_starts = {one.partition: one.start for one in topic.partitions}
                self._store.forget_corrupt_batches(_log_id(topic), topic.topic, log_starts)
            try:
                counted, is_behind = self._count_topic(topic)
            except _Uncountable as error:
                problems[topic.topic] = str(error)
                continue
            messages += counted
            has_more = has_more or is_behind
        return LogCounts(messages, has_more, problems)

    def _count_topic(self, topic: DiscoveredTopic) -> tuple[int, bool]:
        """Returns the number of messages counted, and whether more remain.

        Raises:
            _Uncountable: nothing, or not all, could be counted; the message is the reason.
        """
        log_id = _log_id(topic)
        positions = self._store.next_offsets(log_id)
        ranges = _ranges(topic, positions)
        if not ranges:
            return 0, False
        started, results = time.monotonic(), self._read(topic.topic, ranges)
        now_ms = time.time_ns() // 1_000_000
        rows = [row for one in results for row in self._rows(one, log_id, now_ms)]
        before = {
            one.done.topic_partition.partition: positions.get(one.done.topic_partition.partition) for one in results
        }
        after = {one.done.topic_partition.partition: one.done.end for one in results}
        corrupt = [batch for one in results for batch in _corrupt_batches(one, now_ms)]
        if not self._store.add_log_counts(log_id, before, after, rows, corrupt):
            return 0, True  # another process has counted these messages
        self._limit_rate(sum(one.bytes_read for one in results), time.monotonic() - started)
        for batch in corrupt:
            logger.warning(
                "corrupt batch not counted topic=%s partition=%d start=%d end=%d reason=%s",
                batch.topic,
                batch.partition,
                batch.start,
                batch.end,
                batch.reason,
            )
        errors = [one.error for one in results if one.error]
        if errors:
            raise _Uncountable(errors[0])
        ends = {one.partition: one.end for one in topic.partitions}
        return sum(row.count for row in rows), any(after[number] < ends[number] for number in after)

    def _read(self, topic: str, ranges: Sequence[OffsetRange]) -> list[RangeResult]:
        """Reads ranges of a topic, and requests schemas that it does not know yet from the registry."""
        schemas = self._topic_schemas(topic)
        loader = self._settings.loader
        policy = _counting_policy(topic_policy(loader.of_topic(topic)))
        results: list[RangeResult] = []
        waiting = list(ranges)
        while waiting:
            plan = TopicPlan(
                topic,
                schemas.load_schema,
                dict(schemas.texts),
                policy,
                absent_ids=frozenset(schemas.absent),
                time_property=schemas.time_property,
                newest_id=schemas.newest_id,
            )
            unit = WorkUnit("audit", 0, tuple(waiting), {topic: plan}, self._task, current_build())
            outcome = run_work_unit(unit, lambda location, task: _NoFiles())
            if outcome.error or outcome.disk_error:
                raise _Uncountable(outcome.error or outcome.disk_error)
            unknown = sorted({schema_id for one in outcome.ranges for schema_id in one.unknown_ids})
            self._add_schemas(schemas, unknown)
            ends = {one.topic_partition: one.end for one in waiting}
            results += [one for one in outcome.ranges if one.done.end > one.done.start or one.error]
            waiting = [
                dataclasses.replace(one.done, start=one.done.end, end=ends[one.done.topic_partition])
                for one in outcome.ranges
                if one.unknown_ids
            ]
        return results

    def _topic_schemas(self, topic: str) -> _TopicSchemas:
        """Returns the known schemas of a topic. Requests the newest version of its subject if that was last done more
        than `SCHEMA_REFRESH_S` ago."""
        known = self._schemas.get(topic)
        if known is not None and time.monotonic() - known.requested_at < SCHEMA_REFRESH_S:
            return known
        subject = self._settings.loader.subject_of(topic)
        try:
            newest = self._registry.version(subject, "latest")
            text = self_contained_text(self._registry.parsed(newest))
        except (RegistryError, AvroSchemaError) as error:
            # Loads wait, too: the subject determines the time field.
            raise _Uncountable(f"subject {subject}: {error}") from error
        found = _TopicSchemas(
            newest.metadata.get(TIME_PROPERTY, ""),
            newest.schema_id,
            time.monotonic(),
            dict(known.texts) if known else {},
            set(),
        )
        found.add(newest.schema_id, text)
        self._schemas[topic] = found
        return found

    def _add_schemas(self, schemas: _TopicSchemas, schema_ids: Sequence[int]) -> None:
        for schema_id in schema_ids:
            try:
                parsed = self._registry.parsed(self._registry.schema_by_id(schema_id))
                schemas.add(schema_id, self_contained_text(parsed))
            except (SchemaNotFound, AvroSchemaError):
                schemas.absent.add(schema_id)
            except RegistryError as error:
                raise _Uncountable(f"schema {schema_id}: {error}") from error

    def _rows(self, result: RangeResult, log_id: str, now_ms: int) -> Iterator[AuditRow]:
        """Yields the audit rows of a range that was read, counted at `now_ms`."""
        done, settings = result.done, self._settings.audit
        topic, partition = done.topic_partition.topic, done.topic_partition.partition
        undecodable = {one.window_start_ms: one.count for one in result.audit if one.outcome == "quarantined"}
        for counted in result.audit:
            if counted.tier != Tier.BROKER:
                continue
            start_ms = known_window(counted.window_start_ms)
            where = WindowTimes.of(counted.no_time, counted.total_ms, counted.first_ms, counted.slices)
            latency = where.latency(start_ms, now_ms)
            tier, outcome = Tier.BROKER, AuditOutcome.STORED
            yield AuditRow(
                id=range_row_id(
                    tier,
                    outcome,
                    topic,
                    partition,
                    done.start,
                    done.end,
                    counted.window_start_ms,
                    topic_id=log_id,
                    application=AUDITOR,
                ),
                tier=tier,
                outcome=outcome,
                topic=topic,
                window_start_ms=start_ms,
                count=counted.count,
                bytes=counted.bytes,
                fingerprint=counted.fingerprint,
                application=AUDITOR,
                host=self._host,
                instance=self._instance,
                emitted_at_ms=now_ms,
                partition=partition,
                start=done.start,
                end=done.end,
                datacenter=settings.datacenter,
                late=late_count(start_ms, now_ms, settings.grace.ms, counted.count),
                no_time=counted.no_time,
                errors=undecodable.get(counted.window_start_ms, 0),
                latency_mean_ms=latency.mean_ms,
                latency_p95_ms=latency.p95_ms,
                latency_p99_ms=latency.p99_ms,
                latency_max_ms=latency.max_ms,
            )

    def _limit_rate(self, read_bytes: int, took_s: float) -> None:
        self._sleep(max(0.0, read_bytes / BYTES_PER_S_MAX - took_s))


class _Uncountable(Exception):
    """A topic cannot be counted now; the message is the reason."""


class _NoFiles:
    """A `BlockSink` that drops the rows: only their number matters."""

    directory = "memory"

    def append(self, file: str, data: bytes) -> None:
        pass

    def finish(self, files: Sequence[str]) -> None:
        pass

    def abandon(self) -> None:
        pass

    def scratch(self) -> IO[bytes]:
        return tempfile.SpooledTemporaryFile(max_size=io.DEFAULT_BUFFER_SIZE * 128)


def _corrupt_batches(result: RangeResult, now_ms: int) -> Iterator[UncountedBatch]:
    where = result.done.topic_partition
    for skipped in result.skipped:
        yield UncountedBatch(where.topic, where.partition, skipped.start, skipped.end, skipped.reason, now_ms)


def _counting_policy(policy: TopicPolicy) -> TopicPolicy:
    """Returns the policy of a topic for reading without loading: nothing stops the reading."""
    return dataclasses.replace(
        policy,
        codec="null",
        partition_by="day",
        kafka_column="position",
        corrupt_batches="skip",
        quarantine_ratio_max=1.0,
    )


def _log_id(topic: DiscoveredTopic) -> str:
    """Returns the name of a topic's log among the positions. A topic that was deleted and created again has another
    one. Names of topics have no slash."""
    return f"{topic.topic}/{topic.topic_id}"


def _ranges(topic: DiscoveredTopic, positions: Mapping[int, int]) -> list[OffsetRange]:
    """Returns the offsets to read next, at most `OFFSETS_MAX`, shared evenly by the partitions."""
    share = max(1, OFFSETS_MAX // max(1, len(topic.partitions)))
    found = []
    for partition in topic.partitions:
        position = positions.get(partition.partition, partition.start)
        if not partition.start <= position <= partition.end:
            logger.warning(
                "log position does not exist topic=%s partition=%d position=%d start=%d end=%d",
                topic.topic,
                partition.partition,
                position,
                partition.start,
                partition.end,
            )
            position = partition.start if position < partition.start else partition.end
        end = min(partition.end, position + share)
        if position < end:
            where = TopicPartition(topic.topic, partition.partition)
            found.append(OffsetRange(where, position, end, topic.topic_id, partition.leader_epoch))
    return found
