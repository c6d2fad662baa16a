"""/openapi.json: builds and serves the OpenAPI document of the API."""

from __future__ import annotations

import http
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from flask import Blueprint, Response

from headrace.registry.access.required_permissions import ResourceKind, required_permission
from headrace.registry.api.openapi.components import EXAMPLES, PARAMETER_KINDS, PATH_PARAMETERS, SCHEMAS, Json, ref
from headrace.registry.api.openapi.operations import OPERATIONS, QUERY, Operation
from headrace.registry.api.payloads import CONSUMED
from headrace.registry.api.responses import PRODUCED, to_json
from headrace.registry.api.services import services

blueprint = Blueprint("openapi", __name__)

OPENAPI: Final = "3.1.0"
DESCRIPTION: Final = (
    "Schemas of Avro messages by id and by subject, with compatibility checks of new versions. The API is that of the "
    "Confluent Schema Registry. Every request for a subject, a schema, a configuration or a mode also exists below "
    "`/contexts/{context}`, where it applies to that context."
)
ERROR_TEXTS: Final[Mapping[int, str]] = {
    400: "the request is malformed",
    40401: "subject not found",
    40402: "version not found",
    40403: "schema not found",
    40404: "the subject is already soft-deleted",
    40405: "the subject must be soft-deleted first",
    40406: "the version is already soft-deleted",
    40407: "the version must be soft-deleted first",
    40408: "no configuration is set for the subject",
    40409: "no mode is set for the subject",
    40901: "the schema is incompatible with an earlier one",
    42201: "the schema is invalid",
    42202: "the version is invalid",
    42203: "the compatibility level is invalid",
    42204: "the mode is invalid",
    42205: "the mode does not permit this",
    42206: "other schemas refer to the version",
    42207: "the schema is already registered with another id",
    42208: "the subject is invalid",
    42209: "the schema is too large",
    42210: "the rules are invalid",
    42211: "the context is not empty",
    50001: "the database failed",
}
"""Descriptions of the error codes that only some operations return."""

ALWAYS: Final = {
    401: "40101: credentials are missing or wrong",
    403: "40301: the user lacks the required permission",
    404: "the path does not exist",
    406: "the server produces none of the accepted content types",
    429: "too many password checks at once",
    431: "the headers that the response depends on are too long",
    500: "the registry failed",
    503: "too many requests at once",
}
"""Errors of every operation, by status."""

WITH_BODY: Final = {
    400: "the body is malformed",
    408: "the body did not arrive in time",
    409: "concurrent changes conflicted repeatedly",
    413: "the body is too large",
    415: "the content type or the compression is not supported",
    422: "the body is empty",
}
"""Additional errors of operations with a request body."""

ERROR_HEADERS: Final = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}
PROMETHEUS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PATH_PARAMETER: Final = re.compile(r"{(\w+)}")


@blueprint.get("/openapi.json")
def openapi() -> Response:
    # Not cached: clients rarely request the document twice.
    return Response(to_json(document(services().version)), headers={"Content-Type": "application/json"})


def document(version: str) -> Json:
    """The OpenAPI document of a registry with this version of Headrace."""
    paths: dict[str, Json] = defaultdict(dict)
    for operation in OPERATIONS:
        paths[operation.path][operation.method.lower()] = _operation(operation)
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "Headrace schema registry",
            "version": version,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [
            {"url": "/"},
            {"url": "/contexts/{context}", "variables": {"context": {"default": "."}}},
        ],
        # A registry without a users file requires no credentials.
        "security": [{}, {"basic": []}],
        "paths": dict(paths),
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "parameters": {name: _query_parameter(name) for name in QUERY},
            "responses": _shared_responses(),
        },
    }


def _operation(operation: Operation) -> Json:
    required = required_permission(operation.method, operation.path)
    found: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *(_path_parameter(name) for name in _PATH_PARAMETER.findall(operation.path)),
            *({"$ref": f"#/components/parameters/{name}"} for name in operation.query),
        ],
        "responses": _responses(operation),
    }
    if required.resource is ResourceKind.PUBLIC_INFO:
        found["security"] = [{}]
    else:
        more = f", or `admin` with `{required.admin_parameter}`" if required.admin_parameter else ""
        found["description"] = f"Requires the permission `{required.permission}`{more}."
    if operation.body:
        content = {
            "schema": ref(operation.body),
            "examples": {str(number): {"value": value} for number, value in enumerate(EXAMPLES[operation.body], 1)},
        }
        found["requestBody"] = {
            "description": "May be compressed with gzip; the header `Content-Encoding` is then `gzip`.",
            "required": True,
            "content": dict.fromkeys(sorted(CONSUMED - {""}), content),
        }
    return found


def _responses(operation: Operation) -> Json:
    own: dict[int, list[str]] = defaultdict(list)
    for code in operation.errors:
        own[int(str(code)[:3])].append(f"{code}: {ERROR_TEXTS[code]}")
    shared = {**ALWAYS, **(WITH_BODY if operation.body else {})}
    errors: Json = {}
    for status in sorted({*own, *shared}):
        if status in own:
            texts = [*own[status], *([shared[status]] if status in shared else [])]
            errors[str(status)] = _error("; ".join(texts))
        else:
            errors[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return {**_success(operation), **errors}


def _shared_responses() -> Json:
    found = {str(status): _error(text) for status, text in {**ALWAYS, **WITH_BODY}.items()}
    for status, header in ERROR_HEADERS.items():
        found[str(status)]["headers"] = {header: {"schema": {"type": "string"}}}
    return found


def _error(text: str) -> Json:
    return {"description": text, "content": _json(ref("Error"))}


def _success(operation: Operation) -> Json:
    if operation.result == "Nothing":
        return {"204": {"description": http.HTTPStatus.NO_CONTENT.phrase}}
    if operation.result == "Metrics":
        return {"200": {"description": operation.summary, "content": {PROMETHEUS_TYPE: {"schema": {"type": "string"}}}}}
    content = {"application/json": {"schema": ref("Document")}} if operation.result == "Document" else None
    return {"200": {"description": operation.summary, "content": content or _json(ref(operation.result))}}


def _json(schema: Json) -> Json:
    return {name: {"schema": schema} for name, _ in PRODUCED}


def _query_parameter(name: str) -> Json:
    parameter = QUERY[name]
    return {
        "name": name,
        "in": "query",
        "description": parameter.text,
        "schema": PARAMETER_KINDS[parameter.kind],
    }


def _path_parameter(name: str) -> dict[str, Any]:
    schema, text = PATH_PARAMETERS[name]
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}
