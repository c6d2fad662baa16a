"""Reads new messages of the audit topic into the store."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import fastavro
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from headrace.audit.errors import BadAuditMessage, IngestFailed
from headrace.audit.row import AuditRow
from headrace.audit.row_encoder import plain_schema
from headrace.audit.schema import AUDIT_SCHEMA, from_message

if TYPE_CHECKING:
    from headrace.audit.storage.store import AuditStore

logger = logging.getLogger(__name__)

_PREFIX: Final = struct.Struct(">bi")
BOOTSTRAP_TIMEOUT_S: Final = 5.0
"""Timeout for reaching the first broker."""

BROKER_TIMEOUT_S: Final = 15.0
"""Timeout for each response, once the first broker was reached."""

_BATCH_RECORDS: Final = 20_000
"""Records per transaction: other writers then wait for less than a second."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Numbers of messages with a value: `read`, `added` as new rows, and `bad` (skipped, because they are not audit
    rows)."""

    read: int = 0
    added: int = 0
    bad: int = 0


class RowDecoder:
    """Decodes messages of the audit topic. `schema_text` returns the text of a schema id; its errors are not caught."""

    def __init__(self, schema_text: Callable[[int], str]) -> None:
        self._schema_text = schema_text
        self._reader_schema = plain_schema(AUDIT_SCHEMA)
        self._writer_schemas: dict[int, Any] = {}

    def decode(self, value: bytes) -> AuditRow:
        """Returns the audit row in a message of the audit topic; `value` is the value of the message.

        Raises:
            BadAuditMessage: the value is not an audit row.
        """
        if len(value) < _PREFIX.size or value[0] != 0:
            raise BadAuditMessage("an audit message does not begin with the magic byte 0 and a schema id")
        schema_id = _PREFIX.unpack_from(value)[1]
        if schema_id not in self._writer_schemas:
            self._writer_schemas[schema_id] = plain_schema(self._schema_text(schema_id))
        try:
            message = fastavro.schemaless_reader(
                BytesIO(value[_PREFIX.size :]), self._writer_schemas[schema_id], self._reader_schema
            )
        except Exception as error:  # fastavro raises errors of many types for corrupt bytes
            raise BadAuditMessage(f"an audit message does not match its schema {schema_id}: {error}") from error
        if not isinstance(message, dict):
            raise BadAuditMessage(f"an audit message has the schema {schema_id}, which is not a record")
        return from_message(message)


def ingest(
    store: AuditStore,
    *,
    client_options: Mapping[str, Any],
    topic: str,
    schema_text: Callable[[int], str],
    timeout_s: float | None = None,
) -> IngestResult:
    """Adds the rows that were published to the audit topic since the last call. Does nothing if the topic does not
    exist.

    Args:
        client_options: options of kafka-python's consumer: `bootstrap_servers` and security.
        schema_text: returns the text of a schema id; its errors are not caught.
        timeout_s: timeout for reaching a broker and for each response; None means `BOOTSTRAP_TIMEOUT_S` and
            `BROKER_TIMEOUT_S`.

    Raises:
        IngestFailed: the brokers cannot be reached, do not respond or refuse the request.
        StoreUnavailable: the database cannot be read or written.
    """
    bootstrap_timeout_s = BOOTSTRAP_TIMEOUT_S if timeout_s is None else timeout_s
    timeout_s = BROKER_TIMEOUT_S if timeout_s is None else timeout_s
    bootstrap_servers = str(client_options["bootstrap_servers"])
    try:
        consumer = KafkaConsumer(
            **client_options,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=int(bootstrap_timeout_s * 1000),
            request_timeout_ms=int(timeout_s * 1000),
            max_poll_records=_BATCH_RECORDS,
        )
    except KafkaError as error:
        raise IngestFailed(topic, bootstrap_servers, str(error) or type(error).__name__) from error
    try:
        return _ingest_from(consumer, store, topic, RowDecoder(schema_text), timeout_s)
    except KafkaError as error:
        raise IngestFailed(topic, bootstrap_servers, str(error) or type(error).__name__) from error
    finally:
        consumer.close()


def _ingest_from(consumer: Any, store: AuditStore, topic: str, decoder: RowDecoder, timeout_s: float) -> IngestResult:
    if topic not in consumer.topics():
        return IngestResult()
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    consumer.assign(partitions)
    first, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    stored_offsets = store.next_offsets(topic)
    for partition in partitions:
        offset = stored_offsets.get(partition.partition, 0)
        # An offset beyond the end means that the topic was deleted and created again. Row ids prevent duplicates.
        consumer.seek(partition, offset if first[partition] <= offset <= end[partition] else first[partition])
    total = IngestResult()
    while any(consumer.position(partition) < end[partition] for partition in partitions):
        polled = consumer.poll(timeout_ms=int(timeout_s * 1000))
        if not polled:
            raise IngestFailed(
                topic, str(consumer.config["bootstrap_servers"]), f"no broker response within {timeout_s:g} s"
            )
        rows, bad = _decode_all(decoder, polled)
        next_offsets = {partition.partition: consumer.position(partition) for partition in polled}
        added = store.add_ingested(topic, next_offsets, rows)
        total = IngestResult(total.read + len(rows) + bad, total.added + added, total.bad + bad)
    return total


def _decode_all(decoder: RowDecoder, polled: Any) -> tuple[list[AuditRow], int]:
    rows: list[AuditRow] = []
    bad = 0
    for records in polled.values():
        for record in records:
            if record.value is None:
                continue
            try:
                rows.append(decoder.decode(record.value))
            except BadAuditMessage as error:
                bad += 1
                logger.warning(
                    "audit message skipped topic=%s partition=%d offset=%d reason=%s",
                    record.topic,
                    record.partition,
                    record.offset,
                    error,
                )
    return rows, bad
