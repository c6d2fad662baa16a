"""Puts the document together."""

from __future__ import annotations

import http
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from headrace.registry.access.needs import About, need_of
from headrace.registry.api.answers import PRODUCED
from headrace.registry.api.openapi.components import EXAMPLES, PARAMETER_KINDS, PATH_PARAMETERS, SCHEMAS, Json, ref
from headrace.registry.api.openapi.operations import OPERATIONS, QUERY, Operation
from headrace.registry.api.payloads import CONSUMED

OPENAPI: Final = "3.1.0"
DESCRIPTION: Final = (
    "Schemas of Avro messages by id and by subject, with checks that new ones fit the old. The API is that of the "
    "Confluent Schema Registry. Every call of a subject, a schema, a configuration or a mode can also be made below "
    "`/contexts/{context}`, and then is meant in that context."
)
ERROR_TEXTS: Final[Mapping[int, str]] = {
    400: "the request is malformed",
    40401: "subject not found",
    40402: "version not found",
    40403: "schema not found",
    40404: "the subject is deleted softly already",
    40405: "the subject was not deleted softly first",
    40406: "the version is deleted softly already",
    40407: "the version was not deleted softly first",
    40408: "the subject has no configuration of its own",
    40409: "the subject has no mode of its own",
    40901: "the schema is incompatible with an earlier one",
    42201: "the schema is invalid",
    42202: "the version is invalid",
    42203: "the compatibility level is invalid",
    42204: "the mode is invalid",
    42205: "the mode does not permit this",
    42206: "other schemas refer to it",
    42207: "the schema has another id",
    42208: "the subject is invalid",
    42209: "the schema is too large",
    42210: "the rules are invalid",
    42211: "the context is not empty",
    50001: "the database failed",
}
"""Error codes that are certain calls' own, in words."""

ALWAYS: Final = {
    401: "40101: credentials are missing or wrong",
    403: "40301: the user has no right to this",
    404: "there is no such path",
    406: "no content type that is accepted can be answered",
    429: "too many passwords to check at once",
    431: "the headers that say which content types are wanted are too long",
    500: "the registry failed",
    503: "too many requests at once",
}
"""What every call may be answered with, by status."""

WITH_BODY: Final = {
    400: "the body is malformed",
    408: "the body did not arrive in time",
    409: "others changed the same again and again",
    413: "the body is too large",
    415: "the body is of no content type that is read",
    422: "the body is empty",
}
"""And those with a body besides."""

ERROR_HEADERS: Final = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}
PROMETHEUS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PATH_PARAMETER: Final = re.compile(r"{(\w+)}")


def document(version: str) -> Json:
    """The document of a registry of this version."""
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
        # Where there are no users, nobody needs credentials.
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
    need = need_of(operation.method, operation.path)
    found: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *(_path_parameter(name) for name in _PATH_PARAMETER.findall(operation.path)),
            *({"$ref": f"#/components/parameters/{name}"} for name in operation.query),
        ],
        "responses": _responses(operation),
    }
    if need.about is About.NOTHING:
        found["security"] = [{}]
    else:
        more = f", `admin` with `{need.raised_by}`" if need.raised_by else ""
        found["description"] = f"Users need the right `{need.right}`{more}."
    if operation.body:
        content = {
            "schema": ref(operation.body),
            "examples": {str(number): {"value": value} for number, value in enumerate(EXAMPLES[operation.body], 1)},
        }
        found["requestBody"] = {"required": True, "content": dict.fromkeys(sorted(CONSUMED - {""}), content)}
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
    if operation.answers == "Nothing":
        return {"204": {"description": http.HTTPStatus.NO_CONTENT.phrase}}
    if operation.answers == "Metrics":
        return {"200": {"description": operation.summary, "content": {PROMETHEUS_TYPE: {"schema": {"type": "string"}}}}}
    content = {"application/json": {"schema": ref("Document")}} if operation.answers == "Document" else None
    return {"200": {"description": operation.summary, "content": content or _json(ref(operation.answers))}}


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
