"""Produce, versions 3 to 12: appends one record batch per partition.

With acks 0 there is no response; as in Kafka the connection is closed if a partition is refused, so that the client
refreshes its metadata. acks 1 and all are the same on a single node: the response is sent when the batch is in the log
and, with fsync `always` or the topic's `flush.messages` or `flush.ms`, on disk. Version 8 adds error messages and
record errors (KIP-467), version 9 compact encoding, version 11 TRANSACTION_ABORTABLE.

Versions 0 to 2 carry messages of format 0 and 1, which are not stored; they are advertised (see `api_versions`) and
refused. A transactional batch is accepted only while its producer has an open transaction that includes the partition,
so a late batch never opens a transaction that no client ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

from kafka.protocol.producer import ProduceResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.coordinator.transaction import ProducerIdAndEpoch
from headrace.broker.errors import RecordsRefused, RefusalWithoutResponse, RequestRefused
from headrace.broker.handlers.context import RequestContext, ResultWithFrame
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.produce_validation import validate_batch, validate_keys, validate_timestamps
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
)
from headrace.broker.topic_config import (
    TIMESTAMP_AFTER_MS,
    TIMESTAMP_BEFORE_MS,
    effective_int,
    fsyncs_before_response,
    is_compacted,
    uses_append_time,
)
from headrace.broker.topics import Topic
from headrace.kafka_wire.record_batch import TRANSACTIONAL, BatchHeader, stamp_batch

ABORTABLE_FROM = 11
SYNC_WORK_S = 0.01
"""A request that takes longer than this lets other connections proceed."""
CODES_WITHOUT_LOG_START = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.STORAGE_ERROR})
"""With these errors the response has the log start offset -1, as in Kafka."""

ProduceResult = tuple[ProducedTopic, ...]
Appended = list[tuple[PartitionLog, ProducedPartition]]
"""The batches that must be on disk before the response is sent, each as its log and its result in the response. A batch
that an earlier request has appended is included. The result gets an error if the batch cannot be written to disk."""


def handle(context: RequestContext, request: ProduceRequest) -> ProduceResult | Awaitable[ProduceResult | None] | None:
    appended: Appended = []
    topics: list[ProducedTopic] = []
    steps = _append_partitions(context, request, topics, appended)
    began_s = time.monotonic()
    for _ in steps:
        if time.monotonic() - began_s > SYNC_WORK_S:
            return ResultWithFrame(_append_rest(context, request, steps, topics, appended))
    return _respond(context, request, tuple(topics), appended)


async def _append_rest(
    context: RequestContext,
    request: ProduceRequest,
    steps: Iterator[None],
    topics: Sequence[ProducedTopic],
    appended: Appended,
) -> ProduceResult | None:
    """Performs the remaining `steps` of `_append_partitions` and returns the response. Lets other connections proceed
    in between: a request of 100 MB may take seconds, mostly to decode batches for compacted topics."""
    yielder = LoopYielder()
    await asyncio.sleep(0)
    for _ in steps:
        await yielder.yield_if_due()
    result = _respond(context, request, tuple(topics), appended)
    return await result if isinstance(result, Awaitable) else result


def _respond(
    context: RequestContext, request: ProduceRequest, response: ProduceResult, appended: Appended
) -> ProduceResult | Awaitable[ProduceResult] | None:
    if request.acks == 0:
        _check_acks_zero(response)
        return None
    return _wait_until_durable(context, response, appended) if appended else response


def _check_acks_zero(response: ProduceResult) -> None:
    """Refuses a request with acks 0 if one of its partitions was refused: its client gets no response with the error.

    Raises:
        RefusalWithoutResponse: a partition was refused.
    """
    for topic in response:
        for partition in topic.partitions:
            if partition.error:
                raise RefusalWithoutResponse(str(partition.error_message), response)


def _append_partitions(
    context: RequestContext, request: ProduceRequest, topics: list[ProducedTopic], appended: Appended
) -> Iterator[None]:
    """Appends the batches of a request to their logs and adds the results to `topics`; yields between partitions."""
    for requested in request.topics:
        if topics:
            yield
        try:
            topic = _checked_topic(context, request, requested.name)
        except RequestRefused as refused:
            refusals = tuple([_refused_partition(partition.partition, refused) for partition in requested.partitions])
            topics.append(ProducedTopic(requested.name, refusals))
            continue
        partitions: list[ProducedPartition] = []
        for partition in requested.partitions:
            if partitions:
                yield
            partitions.append(_append(context, topic, partition, request.transactional_id, appended))
        topics.append(ProducedTopic(requested.name, tuple(partitions)))


def _checked_topic(context: RequestContext, request: ProduceRequest, name: str) -> Topic:
    if request.acks not in (-1, 0, 1):
        raise RequestRefused(
            ErrorCode.INVALID_REQUIRED_ACKS, f"the request has acks {request.acks}; expected -1, 0 or 1"
        )
    context.check_topic(name, BrokerPermission.WRITE)
    topic = context.node.topic(name)
    if topic.is_internal:
        raise RequestRefused(ErrorCode.INVALID_TOPIC, f"{name} is an internal topic; clients cannot write to it")
    return topic


def _refused_partition(partition: int, refused: RequestRefused, log: PartitionLog | None = None) -> ProducedPartition:
    has_log_start = log is not None and refused.code not in CODES_WITHOUT_LOG_START
    return ProducedPartition(
        partition,
        refused.code,
        log_start_offset=log.log_start_offset if log is not None and has_log_start else -1,
        error_message=refused.message,
        record_errors=refused.record_errors if isinstance(refused, RecordsRefused) else (),
    )


def _append(
    context: RequestContext,
    topic: Topic,
    requested: ProducePartition,
    transactional_id: str | None,
    appended: Appended,
) -> ProducedPartition:
    node, log = context.node, None
    try:
        log = node.log(topic.name, requested.partition)
        result = _store(context, topic, log, requested, transactional_id)
        node.flusher.mark_dirty(log)
    except RequestRefused as refused:
        result = _refused_partition(requested.partition, refused, log)
        # Clients treat this error as an acknowledgement, so it must wait for the disk too.
        if log is None or refused.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return result
    if fsyncs_before_response(topic.configs, node.config):
        appended.append((log, result))
    return result


def _store(
    context: RequestContext,
    topic: Topic,
    log: PartitionLog,
    requested: ProducePartition,
    transactional_id: str | None,
) -> ProducedPartition:
    records, configs = requested.records, topic.configs
    if records is None:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "no records")
    header = validate_batch(records, context.node.message_bytes_max(topic))
    if header.attributes & TRANSACTIONAL:
        _check_transactional_write(context, transactional_id, header, (topic.name, requested.partition))
    if is_compacted(configs):
        validate_keys(records, header)
    now_ms, end = context.node.now_ms(), log.log_end_offset
    batch: memoryview | bytes = records
    append_time_ms = -1
    if uses_append_time(configs):
        batch, header = stamp_batch(records, header, now_ms)
        append_time_ms = now_ms
    else:
        after_ms_max, before_ms_max = (
            effective_int(configs, name, context.node.config) for name in (TIMESTAMP_AFTER_MS, TIMESTAMP_BEFORE_MS)
        )
        validate_timestamps(records, header, now_ms, after_ms_max=after_ms_max, before_ms_max=before_ms_max)
    base_offset = log.append(batch, header, now_ms)
    if base_offset < end:
        # For a batch that was stored before, the timestamp would be that of the first append, which is not known here.
        append_time_ms = -1
    return ProducedPartition(
        requested.partition, ErrorCode.NONE, base_offset, log.log_start_offset, append_time_ms=append_time_ms
    )


def _check_transactional_write(
    context: RequestContext, transactional_id: str | None, header: BatchHeader, partition: tuple[str, int]
) -> None:
    """Checks that a transactional batch belongs to an open transaction of its producer.

    Args:
        transactional_id: the id in the request; None if it has none.
        header: the header of the batch, which names the producer.
        partition: topic and number of the partition to which the batch is to be appended.

    Raises:
        RequestRefused: the client may not use the transactional id, or the batch is not part of its transaction.
    """
    context.check_transaction(transactional_id or "", BrokerPermission.WRITE)
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    try:
        context.node.transactions.check_transactional_write(transactional_id, producer, partition)
    except RequestRefused as refused:
        if refused.code is ErrorCode.INVALID_TXN_STATE and context.version >= ABORTABLE_FROM:
            raise RequestRefused(ErrorCode.TRANSACTION_ABORTABLE, refused.message) from refused
        raise


async def _wait_until_durable(context: RequestContext, response: ProduceResult, appended: Appended) -> ProduceResult:
    """Waits until every batch in `appended` is on disk, then returns `response`, in which the result of a batch that
    could not be written has an error."""
    waits = [context.node.flusher.flush(log) for log, _ in appended]
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    for (_, result), outcome in zip(appended, outcomes, strict=True):
        if isinstance(outcome, RequestRefused):
            result.error, result.error_message, result.base_offset = outcome.code, outcome.message, -1
        elif isinstance(outcome, BaseException):
            raise outcome
    return response


def unsupported_version_response(request: ProduceRequest, version: int) -> Any:
    """Returns the response to a Produce request of versions 0 to 2: their message format is not supported."""
    topic_class = ProduceResponse.TopicProduceResponse
    return ProduceResponse(
        version=version,
        responses=[
            topic_class(
                version=version,
                name=topic.name,
                partition_responses=[
                    topic_class.PartitionProduceResponse(
                        version=version,
                        index=partition.partition,
                        error_code=ErrorCode.UNSUPPORTED_VERSION,
                        base_offset=-1,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
