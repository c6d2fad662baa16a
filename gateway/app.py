"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.clients.kafka_client import reach_brokers
from headrace.gateway import rest_v2, rest_v3
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.json_stream import MalformedJson, parse_json
from headrace.gateway.record_stream import RecordStream
from headrace.gateway.request_body import BodyBudget, body_of
from headrace.gateway.schemas import Schemas
from headrace.gateway.sender import RecordSender
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings

logger = logging.getLogger(__name__)

BROKERS_S: Final = 15.0


def create_app(settings: Settings) -> Starlette:
    """Creates the application. It connects to the brokers and the registry when it starts."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        options = await asyncio.to_thread(reach_brokers, settings, BROKERS_S)
        app.state.sender = RecordSender(options, asyncio.get_running_loop())
        app.state.schemas = Schemas(registry_client(settings))
        app.state.budget = BodyBudget(16 * 2**20, 256 * 2**20)
        try:
            yield
        finally:
            await asyncio.to_thread(app.state.sender.close)
            app.state.schemas.close()

    return Starlette(
        routes=[
            Route("/topics/{topic}", _produce_v2, methods=["POST"]),
            Route("/topics/{topic}/partitions/{partition:int}", _produce_v2, methods=["POST"]),
            Route("/v3/clusters/{cluster}/topics/{topic}/records", _produce_v3, methods=["POST"]),
            Route("/v3/clusters/{cluster}/topics/{topic}/records:batch", _produce_batch_v3, methods=["POST"]),
        ],
        lifespan=lifespan,
        exception_handlers={GatewayError: _on_gateway_error, HTTPException: _on_http_error, Exception: _on_defect},
    )


async def _produce_v2(request: Request) -> Response:
    state, topic = request.app.state, request.path_params["topic"]
    form = rest_v2.format_of(request.headers.get("content-type", ""))
    async with body_of(request, state.budget) as reader:
        try:
            body = parse_json(await reader.read())
        except MalformedJson as error:
            raise GatewayError(Kind.BAD_REQUEST, str(error)) from None
        partition = request.path_params.get("partition")
        found = await rest_v2.produce(topic, partition, body, form, state.schemas, state.sender)
    return _json(found, media_type=rest_v2.MEDIA_TYPE)


async def _produce_v3(request: Request) -> Response:
    _check_json(request)
    return RecordStream(request)


async def _produce_batch_v3(request: Request) -> Response:
    _check_json(request)
    state, path = request.app.state, request.path_params
    async with body_of(request, state.budget) as reader:
        try:
            body = parse_json(await reader.read())
        except MalformedJson as error:
            raise GatewayError(Kind.BAD_REQUEST, str(error)) from None
        found = await rest_v3.produce_batch(path["cluster"], path["topic"], body, state.schemas, state.sender)
    return _json(found, 207)


def _check_json(request: Request) -> None:
    name = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if name != "application/json":
        raise GatewayError(Kind.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type application/json, found {name!r:.80}")


def _json(content: Any, status: int = 200, media_type: str = "application/json", **headers: str) -> Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text, status, headers, media_type)


async def _on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return _json(error.body, error.status, **headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(
        {"error_code": error.status_code, "message": f"HTTP {error.status_code} {error.detail}"}, error.status_code
    )


async def _on_defect(request: Request, error: Exception) -> Response:
    logger.exception("request_failed method=%s path=%s", request.method, request.url.path)
    return _json({"error_code": 500, "message": "the gateway has a defect; its log has the details"}, 500)
