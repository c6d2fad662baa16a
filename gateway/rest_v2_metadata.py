"""Version 2 of the REST Proxy's interface: brokers, topics and partitions, and reads of a partition by offset.

A read by offset needs no consumer instance, so it works behind any load balancer. Redpanda has the same request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import TopicPartition
from confluent_kafka.admin._topic import TopicDescription
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.gateway.access import caller_of
from headrace.gateway.cluster_admin import no_partition
from headrace.gateway.consumer_polling import ConsumerPoller, PolledConsumer, ReadLimits
from headrace.gateway.decoding import Formats
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.rest_v2 import PARTITION_MAX
from headrace.gateway.rest_v2_consumers import (
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    accepted_format,
    query_number,
    respond,
    respond_records,
    with_accept_check,
)

READERS_MAX: Final = 64
READERS_IDLE_MAX: Final = 8


class PartitionReaders:
    """Consumers for reads by offset. A read has one for itself, and the next read uses it again."""

    def __init__(self, poller: ConsumerPoller) -> None:
        self._poller = poller
        self._idle: list[PolledConsumer] = []
        self._in_use = 0

    async def take(self) -> PolledConsumer:
        """Raises:
        GatewayError: too many reads are in progress.
        """
        if self._in_use >= READERS_MAX:
            raise GatewayError(
                Kind.TOO_MANY_REQUESTS, f"{self._in_use} reads by offset are in progress; try again", retry_after_s=1
            )
        self._in_use += 1
        try:
            if self._idle:
                return self._idle.pop()
            return await self._poller.create(
                {"group.id": "headrace-gateway", "enable.auto.commit": False, "auto.offset.reset": "error"}
            )
        except BaseException:
            self._in_use -= 1
            raise

    async def release(self, polled: PolledConsumer) -> None:
        self._in_use -= 1
        if len(self._idle) >= READERS_IDLE_MAX:
            await self._poller.close(polled)
        else:
            await polled.unsubscribe()
            self._idle.append(polled)


async def root(request: Request) -> Response:
    """Responds to clients that look for a REST Proxy."""
    return respond({})


async def brokers(request: Request) -> Response:
    caller_of(request).require_any()
    found = await request.app.state.cluster.cluster()
    return respond({"brokers": sorted(node.id for node in found.nodes)})


async def topics(request: Request) -> Response:
    caller = caller_of(request)
    caller.require_any()
    return respond([one for one in sorted(await request.app.state.cluster.topics()) if caller.may_describe(one)])


async def topic(request: Request) -> Response:
    cluster, name = request.app.state.cluster, _topic(request)
    try:
        described = await cluster.topic(name)
    except GatewayError as error:
        if error.kind is Kind.TOPIC_NOT_FOUND:  # the REST Proxy has Kafka's code here, and its own for partitions
            raise GatewayError(Kind.INSTANCE_OR_PARTITION_NOT_FOUND, error.message) from error
        raise
    configs = {key: entry.value for key, entry in (await cluster.configs(name)).items()}
    return respond({"name": name, "configs": configs, "partitions": _partitions(described)})


async def partitions(request: Request) -> Response:
    return respond(_partitions(await request.app.state.cluster.topic(_topic(request))))


async def partition(request: Request) -> Response:
    name, number = _partition(request)
    found = _partitions(await request.app.state.cluster.topic(name))
    one = next((one for one in found if one["partition"] == number), None)
    if one is None:
        raise no_partition(name, number)
    return respond(one)


def _partitions(described: TopicDescription) -> Sequence[dict[str, Any]]:
    return [
        {
            "partition": one.id,
            "leader": -1 if one.leader is None else one.leader.id,
            "replicas": [
                {
                    "broker": node.id,
                    "leader": one.leader is not None and node.id == one.leader.id,
                    "in_sync": any(node.id == other.id for other in one.isr),
                }
                for node in one.replicas
            ],
        }
        for one in sorted(described.partitions, key=lambda one: one.id)
    ]


async def offsets(request: Request) -> Response:
    name, number = _partition(request)
    await request.app.state.cluster.check_partition(name, number)
    first, end = await request.app.state.cluster.offsets(name, number)
    return respond({"beginning_offset": first, "end_offset": end})


def _topic(request: Request) -> str:
    """Returns the topic of a request.

    Raises:
        GatewayError: the client may not see the topic.
    """
    name: str = request.path_params["topic"]
    caller_of(request).require_describe(name)
    return name


def _partition(request: Request) -> tuple[str, int]:
    name, number = _topic(request), request.path_params["partition"]
    if number > PARTITION_MAX:
        raise no_partition(name, number)
    return name, number


async def records(request: Request) -> Response:
    """Returns records of a partition from an offset on. Waits for the first one if the offset is the end."""
    name, number, state = request.path_params["topic"], request.path_params["partition"], request.app.state
    caller_of(request).require_consume(name)
    form = accepted_format(request.headers.get("accept", ""))
    offset = query_number(request, "offset", None, 2**63 - 2)
    if offset is None:
        raise GatewayError(Kind.BAD_REQUEST, "offset: expected the offset of the first record to read")
    await state.cluster.check_partition(name, number)
    limits = ReadLimits(
        query_number(request, "max_bytes", None, state.budget.request_bytes_max) or state.budget.request_bytes_max,
        (query_number(request, "timeout", TIMEOUT_MS, TIMEOUT_MS_MAX) or 0) / 1000,
    )
    polled = await state.readers.take()
    try:
        await polled.assign([TopicPartition(name, number, offset)])
        return await respond_records(request, polled, limits, Formats(form, form))
    except GatewayError as error:
        if error.kind is Kind.KAFKA_REFUSED:
            first, end = await state.cluster.offsets(name, number)
            message = f"offset {offset} is outside of the partition, which has the offsets {first} to {end}"
            raise GatewayError(error.kind, message) from error
        raise
    finally:
        await asyncio.shield(state.readers.release(polled))


_ONE_PARTITION: Final = "/topics/{topic}/partitions/{partition:int}"

ENDPOINTS: Final = (
    ("/", root),
    ("/brokers", brokers),
    ("/topics", topics),
    ("/topics/{topic}", topic),
    ("/topics/{topic}/partitions", partitions),
    (_ONE_PARTITION, partition),
    (f"{_ONE_PARTITION}/offsets", offsets),
    (f"{_ONE_PARTITION}/records", records),
)


def routes() -> list[Route]:
    """Returns the routes of reads."""
    return [Route(path, with_accept_check(endpoint), methods=["GET"]) for path, endpoint in ENDPOINTS]
