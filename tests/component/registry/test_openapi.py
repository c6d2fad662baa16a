"""The OpenAPI document describes exactly the existing routes, parameters and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, Request
from openapi_spec_validator import OpenAPIV31SpecValidator
from werkzeug.datastructures import ImmutableMultiDict

from headrace.registry.access.required_permissions import route_label
from headrace.registry.api.app import create_app
from headrace.registry.api.openapi.components import SCHEMAS
from headrace.registry.api.openapi.document import ERROR_TEXTS, document
from headrace.registry.api.openapi.operations import OPERATIONS, QUERY
from headrace.registry.api.problems import ERROR_CODES
from headrace.registry.storage.database import Database, sqlite_url
from headrace.version import VERSION
from support.cases import all_cases
from support.registry.registry_calls import STRING, RegistryInProcess

read_parameters: set[str] = set()


class RecordingArguments(ImmutableMultiDict[str, str]):
    """Query parameters that record which of them were read."""

    def get(self, key: Any, *more: Any, **named: Any) -> Any:
        read_parameters.add(key)
        return super().get(key, *more, **named)

    def getlist(self, key: Any, *more: Any, **named: Any) -> Any:
        read_parameters.add(key)
        return super().getlist(key, *more, **named)

    def __getitem__(self, key: Any) -> Any:
        read_parameters.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        read_parameters.add(str(key))
        return super().__contains__(key)


class RecordingRequest(Request):
    parameter_storage_class = RecordingArguments


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    database = Database(sqlite_url(tmp_path_factory.mktemp("openapi") / "registry.db"))
    database.upgrade()
    app = create_app(database, version=VERSION)
    app.request_class = RecordingRequest
    yield app
    database.close()


@pytest.fixture(scope="module")
def registry(app: Flask) -> RegistryInProcess:
    found = RegistryInProcess(app.test_client())
    found.registered("a", STRING, metadata={"properties": {"k": "v"}})
    return found


def test_document_is_served_and_valid(registry: RegistryInProcess) -> None:
    response = registry.get("/openapi.json")
    assert response.headers["Content-Type"] == "application/json"
    assert response.json == document(VERSION)
    OpenAPIV31SpecValidator(response.json).validate()


def test_document_has_exactly_the_routes_and_methods(app: Flask) -> None:
    routes = {
        (method, route_label(rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    documented = {(operation.method, operation.path) for operation in OPERATIONS}
    # The remaining routes reject calls in contexts; calls in a valid context are the document's other server.
    assert {route for route in routes - documented if route[1] != "/contexts/{context}/{_rest}"} == set()
    assert documented - routes == set()


def test_names_are_unique_and_used() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names))
    assert {name for operation in OPERATIONS for name in operation.query} == set(QUERY)
    text = str(document("1"))
    used = {name for name in SCHEMAS if f"#/components/schemas/{name}'" in text}
    assert set(SCHEMAS) - used == set()


def test_every_error_code_has_a_description() -> None:
    codes = {code for status, code in ERROR_CODES.values() if status != 403}
    assert {code for code in ERROR_TEXTS if code > 1000} == codes
    assert {code for operation in OPERATIONS for code in operation.errors} == set(ERROR_TEXTS)


BODIES: dict[str, Any] = {
    "SchemaRequest": {"schema": STRING},
    "TagChange": {"metadata": {"properties": {"k": "w"}}},
    "ConfigChange": {"compatibility": "FULL"},
    "ModeChange": {"mode": "READWRITE"},
    "ReplicationRequest": {"subjects": ["a"], "ids": {".": [1]}},
}
VALUES = {"subject": "a", "version": "1", "id": "1", "context": ".none"}


def test_document_has_exactly_the_query_parameters(registry: RegistryInProcess) -> None:
    with all_cases() as case:
        for operation in OPERATIONS:
            with case(f"{operation.method} {operation.path}"):
                if operation.method == "DELETE" and operation.path.startswith("/subjects"):
                    registry.registered("b", STRING)
                values = dict(VALUES)
                if operation.method == "DELETE":
                    values |= {"subject": "b", "version": "latest"}
                    registry.put("/config/b", {"compatibility": "FULL"})
                    registry.put("/mode/b", {"mode": "READWRITE"})
                    registry.put("/mode", {"mode": "READWRITE"})
                if "{guid}" in operation.path:
                    values["guid"] = registry.get("/schemas/ids/1").json["guid"]
                registry.put("/config/a", {"compatibility": "NONE"})
                registry.put("/mode/a", {"mode": "READWRITE"})
                path = operation.path.format(**values)
                query = "?key=k&value=v" if operation.path.endswith("/metadata") else ""
                read_parameters.clear()
                response = registry.call(operation.method, path + query, BODIES.get(operation.body))
                assert response.status in (200, 204), response.text
                # Permissions are required by `registry.api.access`, which is not installed here.
                assert read_parameters == set(operation.query)
