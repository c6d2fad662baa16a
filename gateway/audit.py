"""Counts the records that the gateway writes, for the audit: the gateway is the producer of its clients' records.

The window of a record depends on its message time, which is read from the encoded value by the rule of loads and of all
other counters.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from headrace.audit.open_row import Ticket
from headrace.audit.producer_counter import ProducerCounter, RowSelection, wall_clock_ms
from headrace.audit.row import AuditRow
from headrace.audit.spool import LeftoverSpools
from headrace.avro_codec import core_library
from headrace.avro_schema import AvroSchemaError, find_time_fields
from headrace.avro_schema.message_time import TIME_PROPERTY
from headrace.avro_schema.wire import MAGIC_ID, PREFIX_BYTES
from headrace.clients.audit_publisher import AuditPublisher, spool_directories
from headrace.clients.core_tallies import row_type
from headrace.clients.encoding import BodyTime
from headrace.clients.kafka_client import create_client, error_text
from headrace.registry.client import RegistryClient
from headrace.registry.errors import RegistryError, SchemaNotFound, SubjectNotFound
from headrace.settings import LoaderSettings, Settings

logger = logging.getLogger(__name__)

APPLICATION: Final = "headrace-gateway"
"""The name of the application in the audit."""
READERS_MAX: Final = 10_000
READER_S: Final = 60.0
"""How long a reader stays cached: a new version of the subject may name another time field."""
UNAVAILABLE_S: Final = 5.0
REGISTRY_THREADS: Final = 4
POLL_S: Final = 0.5
CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the time of the bodies of one schema. `body_time` is None if the schema has no time field."""

    body_time: BodyTime | None
    expires: float


class MessageTimes:
    """Reads the message times of encoded values. Thread-safe.

    Args:
        registry: has the schemas; `close` does not close it.
        loader: names subjects and time fields.
    """

    def __init__(self, registry: RegistryClient, loader: LoaderSettings) -> None:
        self._registry = registry
        self._loader = loader
        self._readers: OrderedDict[tuple[str, int], _Reader] = OrderedDict()
        self._loading: dict[tuple[str, int], Future[None]] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(REGISTRY_THREADS, "headrace-gateway-times")

    async def prepare(self, topic: str, values: Iterable[bytes | None]) -> None:
        """Requests the schemas of framed values that are not known yet. If the registry does not respond, the values
        count by their record timestamps."""
        for schema_id in {found for value in values if (found := _schema_id(value)) is not None}:
            if (topic, schema_id) not in self._readers:
                await asyncio.shield(asyncio.wrap_future(self._load((topic, schema_id))))

    def time_of(self, topic: str, value: bytes) -> tuple[int | None, bool]:
        """Returns the message time of a value in milliseconds, None for its record timestamp; and whether it has the
        time that its schema promises. Expired readers are used until they are replaced."""
        schema_id = _schema_id(value)
        if schema_id is None:
            return None, True
        key = topic, schema_id
        reader = self._readers.get(key)
        if reader is None or time.monotonic() >= reader.expires:
            self._load(key)
        if reader is None or reader.body_time is None:
            return None, True
        try:
            found = reader.body_time.read(value[PREFIX_BYTES:])
        except Exception:  # fastavro raises errors of many types for bytes that are no Avro
            return None, True
        return found, found is not None

    def _load(self, key: tuple[str, int]) -> Future[None]:
        with self._lock:
            loading = self._loading.get(key)
            if loading is None:
                loading = self._loading[key] = self._threads.submit(self._fetch, key)
            return loading

    def _fetch(self, key: tuple[str, int]) -> None:
        topic, schema_id = key
        known = self._readers.get(key)
        try:
            reader = _Reader(self._body_time(topic, schema_id), time.monotonic() + READER_S)
        except (SchemaNotFound, AvroSchemaError):
            reader = _Reader(None, time.monotonic() + READER_S)
        except RegistryError as error:
            logger.warning("audit_time_unknown topic=%s schema_id=%d cause=%s", topic, schema_id, error)
            reader = _Reader(None if known is None else known.body_time, time.monotonic() + UNAVAILABLE_S)
        with self._lock:
            self._readers[key] = reader
            while len(self._readers) > READERS_MAX:
                self._readers.popitem(last=False)
            del self._loading[key]

    def _body_time(self, topic: str, schema_id: int) -> BodyTime | None:
        schema = self._registry.parsed(self._registry.schema_by_id(schema_id))
        try:
            newest = self._registry.version(self._loader.subject_of(topic), "latest")
        except SubjectNotFound:
            newest = None
        time_property = "" if newest is None else newest.metadata.get(TIME_PROPERTY, "")
        newest_schema = None if newest is None or newest.schema_id == schema_id else self._registry.parsed(newest)
        fields = find_time_fields(schema, time_property, self._loader.of_topic(topic).time_fields, newest_schema)
        return BodyTime(schema, fields) if fields else None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _schema_id(value: bytes | None) -> int | None:
    """Returns the schema id of a framed value, like `avro_schema.unframe` but in a fifth of the time; None for other
    values."""
    if not value or value[0] != MAGIC_ID or len(value) < PREFIX_BYTES:
        return None
    schema_id = int.from_bytes(value[1:PREFIX_BYTES], "big", signed=True)
    return schema_id if schema_id >= 0 else None


class GatewayAudit:
    """The counts of one gateway. Thread-safe.

    Args:
        options: librdkafka's options: addresses and security.
        registry: for the schemas of messages and of audit rows; `close` does not close it.
    """

    def __init__(self, settings: Settings, options: dict[str, Any], registry: RegistryClient) -> None:
        directory = spool_directories(settings)[0]
        self.times = MessageTimes(registry, settings.loader)
        self._own_topic = settings.audit.topic
        self._counter = ProducerCounter(
            APPLICATION,
            spool_dir=directory,
            datacenter=settings.audit.datacenter,
            late_after_ms=settings.audit.grace.ms,
            row_type=row_type(core_library()),
        )
        self._leftovers = LeftoverSpools(directory)
        # Without idempotence: its fatal errors would end the producer, and a row that is sent twice counts once.
        self._producer = create_client(Producer, {"client.id": "headrace-gateway-audit", "acks": "all", **options})
        self._publisher = AuditPublisher(
            self._producer,
            self._producer.poll,
            registry,
            self._own_topic,
            settings.loader.subject_of(self._own_topic),
            self._published,
            lambda: self._rows(RowSelection.UNCHANGED),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="headrace-gateway-audit", daemon=True)
        self._thread.start()

    def count_sent(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        record_ms: int,
        found: tuple[int | None, bool] | None = None,
    ) -> Ticket | None:
        """Counts a record before it is sent. Returns its ticket for `acknowledge`; None if it does not count.

        Args:
            record_ms: the record timestamp.
            found: the result of `MessageTimes.time_of`, if it is known.
        """
        if value is None or topic == self._own_topic:
            return None
        time_ms, has_time = self.times.time_of(topic, value) if found is None else found
        return self._counter.count_sent(topic, record_ms if time_ms is None else time_ms, key, value, has_time=has_time)

    def count_sent_together(
        self,
        topic: str,
        count: int,
        size_bytes: int,
        fingerprint: int,
        record_ms: int,
        found: tuple[int | None, bool],
    ) -> Ticket | None:
        """Counts records with the same message time like `count_sent`, from the sums of the sizes and of the hashes of
        their values."""
        if topic == self._own_topic:
            return None
        time_ms, has_time = found
        return self._counter.count_sent_together(
            topic, record_ms if time_ms is None else time_ms, count, size_bytes, fingerprint, has_time=has_time
        )

    def acknowledge(self, tickets: Sequence[Ticket | None], latency_s: float) -> None:
        """Counts records that the brokers acknowledged."""
        self._counter.acknowledge(tickets, repeat(latency_s))

    def count_failed(self, tickets: Iterable[Ticket | None]) -> None:
        """Counts records that the brokers refused, or did not acknowledge."""
        for ticket in tickets:
            self._counter.count_failed(ticket)

    def _rows(self, selection: RowSelection) -> list[AuditRow]:
        return [*self._leftovers.rows(), *self._counter.take_rows(wall_clock_ms(), selection)]

    def _published(self, row_id: str) -> None:
        self._counter.mark_published(row_id)
        self._leftovers.mark_published(row_id)

    def _poll(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                logger.error("kafka_client_failed error=%s", error_text(error))

    def close(self) -> None:
        """Publishes all counts, at most for `CLOSE_S`. Counts that are not published stay in the spool."""
        self._publisher.add_rows(self._rows(RowSelection.ALL))
        self._publisher.wait(CLOSE_S)
        self._publisher.stop(CLOSE_S)
        self._stop.set()
        self._thread.join(CLOSE_S)
        self._leftovers.close()
        self._counter.close()
        self.times.close()
