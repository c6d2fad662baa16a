"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.clients.kafka_client import broker_options
from headrace.gateway import (
    first_results,
    rest_v2,
    rest_v2_consumers,
    rest_v2_metadata,
    rest_v3,
    rest_v3_cluster,
    rest_v3_groups,
)
from headrace.gateway.access import GatewayAccess, caller_of
from headrace.gateway.audit import GatewayAudit
from headrace.gateway.cluster_admin import ClusterAdmin, admin_client, no_partition
from headrace.gateway.consumer_instances import Instances
from headrace.gateway.consumer_polling import ConsumerPoller
from headrace.gateway.decoding import MessageDecoder
from headrace.gateway.encoding import Format
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.front import GatewayFront
from headrace.gateway.kafka_problems import admin_problem_of, problem_of
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.openapi.document import openapi
from headrace.gateway.peers import Peers
from headrace.gateway.record_stream import RecordStream
from headrace.gateway.request_body import BodyBudget, ByteRate, body_of, json_of
from headrace.gateway.responses import (
    JSON,
    json_bytes,
    json_response,
    on_defect,
    on_disconnect,
    on_gateway_error,
    on_http_error,
)
from headrace.gateway.schemas import Schemas
from headrace.gateway.sender import RecordSender
from headrace.gateway.sessions.routes import routes as session_routes
from headrace.gateway.sessions.service import sessions_of
from headrace.gateway.transactions.routes import routes as transaction_routes
from headrace.gateway.transactions.service import running_transactions
from headrace.gateway.webhooks.tasks import running_webhooks
from headrace.gateway.webhooks.webhook import webhooks_of
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.client.of_settings import registry_client
from headrace.registry.operation.access_log import AccessLog
from headrace.settings import Settings


def create_app(settings: Settings, users: RegistryUsersFile | None = None) -> GatewayFront:
    """Creates the application. It connects to the brokers and the registry when it is used.

    Args:
        settings: all settings.
        users: the content of `registry.users`; None permits every request.

    Raises:
        SettingsError: the settings of the brokers or of the registry contradict each other, or a webhook or
            `gateway.peers` is invalid.
        OSError: the access log cannot be opened.
    """
    own, options, registry = settings.gateway, broker_options(settings), registry_client(settings)
    metrics = GatewayMetrics()
    access = GatewayAccess(users, settings.loader)
    webhooks = webhooks_of(own.webhooks)
    peers = Peers(own, settings.registry.client_ca)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state = app.state
        state.settings = settings
        state.metrics = metrics
        rate = ByteRate(own.client_bytes_per_second_max)
        state.budget = BodyBudget(own.request_bytes_max, own.memory_bytes_max, own.client_bytes_max, rate)
        state.audit = GatewayAudit(settings, options, registry)
        state.sender = RecordSender(options, own, asyncio.get_running_loop(), metrics, state.audit)
        state.schemas = Schemas(registry)
        state.first_results = first_results.FirstResults()
        state.sessions = sessions_of(settings, options, state.audit)
        client = admin_client(options)
        state.admin, state.cluster = ClusterAdmin(client, admin_problem_of), ClusterAdmin(client, problem_of)
        metrics.watch("lanes", "Lanes of sessions that this gateway serves.", lambda: state.sessions.serving_count)
        metrics.watch("body_bytes", "Bytes in memory of the bodies of requests.", lambda: state.budget.in_use)
        state.decoder = MessageDecoder(registry)
        state.poller = ConsumerPoller(options)
        state.peers = peers
        front.waits = (state.poller.end_reads, peers.end_waits)
        state.instances = Instances(state.poller, own, peers)
        state.readers = rest_v2_metadata.PartitionReaders(state.poller)
        metrics.watch("consumer_instances", "Consumer instances of version 2.", lambda: len(state.instances))
        try:
            async with (
                running_webhooks(webhooks, options, state.decoder, state.sender, metrics),
                running_transactions(settings, options, state.audit) as state.transactions,
            ):
                transactions = state.transactions
                metrics.watch("ledger_lanes", "Lanes of transactions.", lambda: transactions.serving_count)
                metrics.watch("spool_bytes", "Bytes on disk of chunks.", lambda: transactions.spool.bytes_in_use)
                yield
        finally:
            state.instances.stop()
            await peers.close()
            await state.poller.stop()
            state.decoder.close()
            await asyncio.to_thread(state.sessions.close)
            await asyncio.to_thread(state.sender.close)
            await asyncio.to_thread(state.audit.close)
            state.schemas.close()

    application = Starlette(
        routes=[*session_routes(), *transaction_routes(), *ROUTES],
        lifespan=lifespan,
        exception_handlers={
            GatewayError: on_gateway_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_disconnect,
            Exception: on_defect,
        },
    )
    application.router.redirect_slashes = False  # GatewayFront removes slashes
    front = GatewayFront(application, access, metrics, AccessLog(own.access_log) if own.access_log else None)
    return front


async def healthz(request: Request) -> Response:
    """Responds to a liveness probe. It depends on no other part: restarting the gateway would not repair it."""
    metrics: GatewayMetrics = request.app.state.metrics
    return json_response({"status": "ok", "responses": metrics.responses, "server_errors": metrics.server_errors})


async def readyz(request: Request) -> Response:
    """Responds to a readiness probe: whether a broker responds."""
    problem = await request.app.state.sender.broker_problem()
    if problem:
        raise GatewayError(Kind.KAFKA_UNAVAILABLE, problem, retry_after_s=RETRY_AFTER_S)
    return json_response({"status": "ready"})


async def metrics_page(request: Request) -> Response:
    caller_of(request).require_any()
    content, content_type = request.app.state.metrics.page(request.headers.get("accept", ""))
    return Response(content, media_type=content_type)


async def produce_v2(request: Request) -> Response:
    state, topic = request.app.state, request.path_params["topic"]
    caller = caller_of(request)
    caller.require_produce(topic)
    json_records = Format(state.settings.gateway.json_records)
    form = rest_v2.format_of(request.headers.get("content-type", ""), json_records)
    await state.sender.require_topic(topic)
    partition = request.path_params.get("partition")

    if partition is not None and partition > rest_v2.PARTITION_MAX:
        raise no_partition(topic, partition)

    async def produce(body: Any) -> bytes:
        return await rest_v2.produce(topic, partition, body, form, state.schemas, state.sender, caller)

    return await _respond_once(request, produce, 200, rest_v2.MEDIA_TYPE)


async def produce_v3(request: Request) -> Response:
    caller_of(request).require_produce(request.path_params["topic"])
    rest_v3.check_media_type(request.headers.get("content-type", ""))
    if first_results.key_of(request) is not None:
        raise GatewayError(Kind.BAD_REQUEST, "Idempotency-Key: a stream cannot be repeated; send it to records:batch")
    request.app.state.budget.rate.check(caller_of(request).key)
    await request.app.state.sender.require_topic(request.path_params["topic"])
    return RecordStream(request)


async def produce_batch_v3(request: Request) -> Response:
    state, path = request.app.state, request.path_params
    caller = caller_of(request)
    caller.require_produce(path["topic"])
    rest_v3.check_media_type(request.headers.get("content-type", ""))
    await state.sender.require_topic(path["topic"])

    async def produce(body: Any) -> bytes:
        found = await rest_v3.produce_batch(path["cluster"], path["topic"], body, state.schemas, state.sender, caller)
        return json_bytes(found)

    return await _respond_once(request, produce, 207, JSON)


async def _respond_once(
    request: Request, produce: Callable[[Any], Awaitable[bytes]], status: int, media_type: str
) -> Response:
    """Responds with the result of a body's records. A repeated request with a key gets that of the first one."""
    state, key = request.app.state, first_results.key_of(request)

    async def process(body: bytes) -> bytes:
        return await produce(await json_of(body) if body.strip() else None)

    async with body_of(request, state.budget, has_records=True) as reader:
        body = await reader.read()
        if key is None:
            return Response(await process(body), status, media_type=media_type)
        if state.peers.may_pass_on(request):
            passed: Response | None = await state.peers.first(request, *key[1:], body)
            if passed is not None:
                return passed

        content, is_repeated = await state.first_results.first(key, body, partial(process, body))
        headers = {"Idempotent-Replayed": "true"} if is_repeated else {}
        return Response(content, status, headers, media_type)


RETRY_AFTER_S: Final = 1
ROUTES: Final = (
    *rest_v2_metadata.routes(),
    *rest_v2_consumers.routes(),
    Route("/healthz", healthz),
    Route("/readyz", readyz),
    Route("/metrics", metrics_page),
    Route("/openapi.json", openapi),
    Route("/topics/{topic}", produce_v2, methods=["POST"]),
    Route("/topics/{topic}/partitions/{partition:int}", produce_v2, methods=["POST"]),
    Route("/v3/clusters/{cluster}/topics/{topic}/records", produce_v3, methods=["POST"]),
    Route("/v3/clusters/{cluster}/topics/{topic}/records:batch", produce_batch_v3, methods=["POST"]),
    *rest_v3_cluster.ROUTES,
    *rest_v3_groups.ROUTES,
)
