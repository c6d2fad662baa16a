"""Produce, versions 3 to 12: appends one record batch per partition.

acks 0 gets no answer, and the connection closed where a partition is refused, as by Kafka: so the client learns to ask
where its partitions are now. 1 and all are the same on a single node: answered when the batch is in the log and, with
fsync `always`, on disk. 8: error messages; 9: compact encoding; 11: TRANSACTION_ABORTABLE. Versions 0 to 2 carry
messages of versions 0 and 1, which are not stored; they are advertised (see api_versions) and refused. A batch of a
transaction is taken only while its producer has one that the partition was added to, so that one which comes late is in
none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from kafka.protocol.producer import ProduceResponse

from headrace.broker.access.rights import Right
from headrace.broker.config import FsyncMode
from headrace.broker.coordinator.transaction import Identity
from headrace.broker.errors import RequestRefused, UnansweredRefusal
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.produced import check_keys, check_produced, check_times
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from headrace.broker.topic_config import (
    TIMESTAMP_AFTER_MS,
    TIMESTAMP_BEFORE_MS,
    effective_number,
    has_append_time,
    is_compacted,
)
from headrace.broker.topics import Topic
from headrace.kafka_wire.record_batch import TRANSACTIONAL, BatchHeader, stamped_batch

ABORTABLE_FROM = 11

Answer = tuple[ProducedTopic, ...]
Appended = list[tuple[PartitionLog, ProducedPartition]]
"""What has to be on disk before the answer may go, and where it is said if it could not be forced."""


def handle(context: RequestContext, request: ProduceRequest) -> Answer | Awaitable[Answer | None] | None:
    appended: Appended = []
    answer = tuple([_append_topic(context, request, topic, appended) for topic in request.topics])
    if request.acks == 0:
        _check_unanswered(answer)
        return None
    if appended and context.node.config.fsync is FsyncMode.ALWAYS:
        return _forced(context, answer, appended)
    return answer


def _check_unanswered(answer: Answer) -> None:
    """
    Raises:
        UnansweredRefusal: a partition was refused.
    """
    for topic in answer:
        for one in topic.partitions:
            if one.error:
                raise UnansweredRefusal(str(one.error_message), answer)


def _append_topic(
    context: RequestContext, request: ProduceRequest, wanted: ProduceTopic, appended: Appended
) -> ProducedTopic:
    try:
        topic = _checked_topic(context, request, wanted.name)
    except RequestRefused as refused:
        return ProducedTopic(wanted.name, tuple([_refused(one.partition, refused) for one in wanted.partitions]))
    partitions = [_append(context, topic, one, request.transactional_id, appended) for one in wanted.partitions]
    return ProducedTopic(wanted.name, tuple(partitions))


def _checked_topic(context: RequestContext, request: ProduceRequest, name: str) -> Topic:
    if request.acks not in (-1, 0, 1):
        raise RequestRefused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks}; expected -1, 0 or 1")
    context.check_topic(name, Right.WRITE)
    topic = context.node.topic(name)
    if topic.is_internal:
        raise RequestRefused(ErrorCode.INVALID_TOPIC, f"{name} is the broker's own")
    return topic


def _refused(partition: int, refused: RequestRefused) -> ProducedPartition:
    return ProducedPartition(partition, refused.code, error_message=refused.message)


def _append(
    context: RequestContext,
    topic: Topic,
    wanted: ProducePartition,
    transactional_id: str | None,
    appended: Appended,
) -> ProducedPartition:
    node = context.node
    try:
        log = node.log(topic.name, wanted.partition)
        result = _store(context, topic, log, wanted, transactional_id)
        node.flusher.note(log)
    except RequestRefused as refused:
        result = _refused(wanted.partition, refused)
        if refused.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return result
        # Clients take it for an acknowledgement, so it waits for the disk as one.
        log = node.log(topic.name, wanted.partition)
    appended.append((log, result))
    return result


def _store(
    context: RequestContext,
    topic: Topic,
    log: PartitionLog,
    wanted: ProducePartition,
    transactional_id: str | None,
) -> ProducedPartition:
    records, configs = wanted.records, topic.configs
    if records is None:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "no records")
    header = check_produced(records, context.node.message_bytes_max(topic))
    if header.attributes & TRANSACTIONAL:
        _check_part(context, transactional_id, header, (topic.name, wanted.partition))
    if is_compacted(configs):
        check_keys(records)
    now_ms, end = context.node.now_ms(), log.log_end_offset
    batch: memoryview | bytes = records
    append_time_ms = -1
    if has_append_time(configs):
        batch, header = stamped_batch(records, header, now_ms)
        append_time_ms = now_ms
    else:
        after_ms_max, before_ms_max = (
            effective_number(configs, name, context.node.config) for name in (TIMESTAMP_AFTER_MS, TIMESTAMP_BEFORE_MS)
        )
        check_times(header, now_ms, after_ms_max=after_ms_max, before_ms_max=before_ms_max)
    base_offset = log.append(batch, header, now_ms)
    if base_offset < end:
        # Of a repetition the time is that of its first coming, which is not known here.
        append_time_ms = -1
    return ProducedPartition(
        wanted.partition, ErrorCode.NONE, base_offset, log.log_start_offset, append_time_ms=append_time_ms
    )


def _check_part(
    context: RequestContext, transactional_id: str | None, header: BatchHeader, partition: tuple[str, int]
) -> None:
    """
    Raises:
        RequestRefused: the client may not use the id, or the batch is no part of its transaction.
    """
    context.check_transaction(transactional_id or "", Right.WRITE)
    user = Identity(header.producer_id, header.producer_epoch)
    try:
        context.node.transactions.check_part(transactional_id, user, partition)
    except RequestRefused as refused:
        if refused.code is ErrorCode.INVALID_TXN_STATE and context.version >= ABORTABLE_FROM:
            raise RequestRefused(ErrorCode.TRANSACTION_ABORTABLE, refused.message) from refused
        raise


async def _forced(context: RequestContext, answer: Answer, appended: Appended) -> Answer:
    """Waits until every appended batch is on disk; what could not be forced is answered with its error."""
    waits = [context.node.flusher.force(log) for log, _ in appended]
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    for (_, result), outcome in zip(appended, outcomes, strict=True):
        if isinstance(outcome, RequestRefused):
            result.error, result.error_message, result.base_offset = outcome.code, outcome.message, -1
        elif isinstance(outcome, BaseException):
            raise outcome
    return answer


def old_version_refusal(request: ProduceRequest, version: int) -> Any:
    """The answer to versions 0 to 2, whose messages are of a format that is not stored."""
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
