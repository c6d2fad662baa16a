"""/openapi.json: builds and serves the OpenAPI document."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import groupby
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from headrace.gateway.errors import Kind
from headrace.gateway.front import PUBLIC
from headrace.gateway.openapi.components import HEADERS, PATH_PARAMETERS, QUERY, SCHEMAS, TEXT, Json, ref
from headrace.gateway.openapi.operations import ERROR_TEXTS, OPERATIONS, GatewayOperation
from headrace.gateway.responses import V2_JSON, json_bytes, media_type_of
from headrace.gateway.sessions.chunk_body import JSON as JSON_CHUNK
from headrace.version import VERSION

OPENAPI: Final = "3.1.0"
DESCRIPTION: Final = (
    "Produces and consumes records of Kafka by HTTP: the interface of Confluent's REST Proxy in versions 2 and 3, and "
    "below `/v1` sessions and transactions, which store each record exactly once."
)
ENCODINGS: Final = "May be compressed; `Content-Encoding` is then `gzip`, `deflate` or `zstd`."
OWN_ERRORS: Final = {
    Kind.SESSION_ENDED: "EndedSession",
    Kind.SESSION_CHANGED: "ChangedSession",
    Kind.RECORDS_REJECTED: "RejectedRecords",
}
"""Errors with more fields, and the names of their schemas."""
ALWAYS: Final = (Kind.NOT_AUTHENTICATED, Kind.NOT_AUTHORIZED, Kind.TOO_MANY_REQUESTS)
"""Errors of every operation that needs a user."""
ERROR_HEADERS: Final = {
    307: "Location",
    401: "WWW-Authenticate",
    429: "Retry-After",
    503: "Retry-After",
    507: "Retry-After",
}
_PATH_PARAMETER: Final = re.compile(r"{(\w+)}")


async def openapi(request: Request) -> Response:
    return Response(_text(), media_type="application/json")


@functools.cache
def _text() -> bytes:
    return json_bytes(document(VERSION))


def document(version: str) -> Json:
    """Returns the OpenAPI document of a gateway with this version of Headrace."""
    paths: dict[str, Json] = defaultdict(dict)
    for operation in OPERATIONS:
        paths[operation.path][operation.method.lower()] = _operation(operation)
    problems = {_problem_name(one): _problem(one) for operation in OPERATIONS for one in _problems(operation)}
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "Headrace gateway",
            "version": version,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        # A gateway without a users file requires no credentials.
        "security": [{}, {"basic": []}, {"token": []}],
        "paths": dict(paths),
        "components": {
            "schemas": dict(SCHEMAS),
            "responses": dict(sorted(problems.items())),
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(operation: GatewayOperation) -> Json:
    found: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *(_parameter(name, "path", *PATH_PARAMETERS[name]) for name in _PATH_PARAMETER.findall(operation.path)),
            *(_query_parameter(name) for name in operation.query),
            *(_parameter(name, "header", *HEADERS[name]) for name in operation.headers),
        ],
        "responses": _responses(operation),
    }
    if operation.path in PUBLIC:
        found["security"] = [{}]
    if operation.body:
        found["requestBody"] = {
            "description": ENCODINGS,
            "required": operation.is_body_required,
            "content": {name: {"schema": _body(operation.body, name)} for name in operation.consumes},
        }
    return found


def _body(name: str, media_type: str) -> Json:
    if name != "Chunk":
        return ref(name)
    return ref("JsonChunk") if media_type == JSON_CHUNK else TEXT


def _parameter(name: str, place: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": place, "required": place == "path", "description": text, "schema": schema}


def _query_parameter(name: str) -> Json:
    key = name.rstrip("!")
    return {**_parameter(key.rpartition(":")[2], "query", *QUERY[key]), "required": name != key}


def _responses(operation: GatewayOperation) -> Json:
    return {
        **{str(status): _success(operation, status) for status in operation.statuses},
        **{
            str(problem.status): {"$ref": f"#/components/responses/{_problem_name(problem)}"}
            for problem in _problems(operation)
        },
    }


def _success(operation: GatewayOperation, status: int) -> Json:
    if not operation.result:
        return {"description": HTTPStatus(status).phrase}
    schema = TEXT if operation.result == "Metrics" else ref(operation.result)
    return {"description": operation.summary, "content": {name: {"schema": schema} for name in operation.produces}}


@dataclass(frozen=True, slots=True)
class _Problem:
    """The errors that an operation may have with one status, ordered by their codes."""

    status: int
    kinds: tuple[Kind, ...]
    media_type: str


def _problems(operation: GatewayOperation) -> Iterator[_Problem]:
    """Yields the errors of an operation."""
    kinds = {Kind.DEFECT, *operation.errors}
    if operation.path not in PUBLIC:
        kinds |= set(ALWAYS)
    if "{" in operation.path:
        kinds.add(Kind.NOT_FOUND)
    for status, found in groupby(sorted(kinds, key=_order), lambda kind: kind.value.status):
        yield _Problem(status, tuple(found), media_type_of(operation.path))


def _order(kind: Kind) -> tuple[int, int]:
    return kind.value.status, kind.value.code


def _problem_name(problem: _Problem) -> str:
    version = ["v2"] if problem.media_type == V2_JSON else []
    return "_".join([*version, f"status_{problem.status}", *(str(kind.value.code) for kind in problem.kinds)])


def _problem(problem: _Problem) -> Json:
    kinds = problem.kinds
    codes = {"properties": {"error_code": {"enum": [kind.value.code for kind in kinds]}}}
    name = next((name for kind, name in OWN_ERRORS.items() if kind in kinds), "Error")
    content: Json = {problem.media_type: {"schema": {"allOf": [ref(name), codes]}}}
    if problem.status == 503:
        content["text/plain"] = {"schema": {"const": "Service Unavailable"}}  # too many connections
    found: Json = {
        "description": "; ".join(f"{kind.value.code}: {ERROR_TEXTS[kind]}" for kind in kinds),
        "content": content,
    }
    if problem.status in ERROR_HEADERS:
        found["headers"] = {ERROR_HEADERS[problem.status]: {"schema": TEXT}}
    return found
