"""The OpenAPI document describes exactly the existing routes and errors."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from headrace.gateway import rest_v2, rest_v2_consumers, rest_v3
from headrace.gateway.app import ROUTES
from headrace.gateway.errors import Kind
from headrace.gateway.kafka_problems import _KINDS, _OF_ADMIN
from headrace.gateway.openapi.components import HEADERS, PATH_PARAMETERS, QUERY, SCHEMAS
from headrace.gateway.openapi.document import ALWAYS, document
from headrace.gateway.openapi.operations import ADMIN, ERROR_TEXTS, KAFKA, OPERATIONS
from headrace.gateway.sessions.routes import OpenRequest
from headrace.gateway.sessions.routes import routes as session_routes
from headrace.gateway.transactions.routes import routes as transaction_routes

DOCUMENT: Any = json.loads(json.dumps(document("1")))


def test_document_is_valid() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_document_has_exactly_the_routes_and_methods() -> None:
    routes = {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in (*ROUTES, *session_routes(), *transaction_routes())
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {(operation.method, operation.path) for operation in OPERATIONS} == routes


def test_names_are_unique_and_used() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names))
    text = json.dumps(DOCUMENT)
    assert {name for name in SCHEMAS if f'"#/components/schemas/{name}"' not in text} == set()
    assert {name.rstrip("!") for operation in OPERATIONS for name in operation.query} == set(QUERY)
    assert {name for operation in OPERATIONS for name in operation.headers} == set(HEADERS)
    assert {name for one in OPERATIONS for name in re.findall(r"{(\w+)}", one.path)} == set(PATH_PARAMETERS)


def test_every_error_has_a_description_and_an_operation() -> None:
    used = {kind for operation in OPERATIONS for kind in operation.errors} | {*ALWAYS, Kind.DEFECT}
    # A method that no route has is no operation. An undecodable record is no error of its response.
    assert set(ERROR_TEXTS) == used == set(Kind) - {Kind.METHOD_NOT_ALLOWED, Kind.UNDECODABLE}


@pytest.mark.parametrize(("kinds", "documented"), [(_KINDS, KAFKA), (_OF_ADMIN, ADMIN)])
def test_every_kafka_error_is_documented(kinds: Any, documented: Any) -> None:
    assert set(kinds.values()) - set(documented) == {Kind.NOT_AUTHORIZED}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ProduceRecord", rest_v2.RECORD_FIELDS),
        ("InstanceRequest", rest_v2_consumers._INSTANCE_FIELDS),
        ("Record", rest_v3.RECORD_FIELDS),
        ("BatchEntry", rest_v3.RECORD_FIELDS | {"id"}),
        ("DataOfRegisteredSchema", rest_v3.DATA_FIELDS),
        ("SessionRequest", {field.name for field in dataclasses.fields(OpenRequest)}),
    ],
)
def test_requests_have_the_fields_that_the_gateway_reads(name: str, fields: set[str]) -> None:
    assert set(SCHEMAS[name]["properties"]) == fields
