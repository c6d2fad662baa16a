"""Generated requests to a real gateway always get a response that its OpenAPI document has, and never a status 500.

`HEADRACE_TEST_PROFILE` decides how many. They are the same in each run, except in the profile "full".
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from headrace.gateway.openapi.components import PATH_PARAMETERS
from headrace.gateway.openapi.operations import OPERATIONS, GatewayOperation
from support.cases import all_cases
from support.examples import examples
from support.gateway import JSON_V2, V2, GatewayClient
from support.simulation.extent import IS_FULL

pytestmark = pytest.mark.servers

CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
)
BOUNDED = settings(
    max_examples=examples(0.1),
    derandomize=not IS_FULL,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
NUMBERS = itertools.count()
PARTITIONS_MAX = 4
READ_MS = 20
CHUNK = b"a\n"


class Existing:
    """Names of resources that exist, for the parameters of paths."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self._create: dict[str, Callable[[], str]] = {
            "topic": self._topic,
            "instance": self._instance,
            "session": self._session,
            "transaction": self._transaction,
        }
        self.values = {
            "group": "g",
            "consumer": "x",
            "cluster": "c",
            "broker": "1",
            "partition": "0",
            "config": "retention.ms",
        }
        for name, create in self._create.items():
            self.values[name] = create()

    def refresh(self, operation: GatewayOperation) -> None:
        """Creates a resource again that an operation may have deleted."""
        if operation.method == "DELETE":
            name = operation.path.rpartition("{")[2].rstrip("}")
            if name in self._create:
                self.values[name] = self._create[name]()

    def _topic(self) -> str:
        name = f"fuzz{next(NUMBERS)}"
        body = {"records": [{"value": 1, "partition": 0}, {"value": "a", "partition": 0}]}
        assert self._gateway.post(f"/topics/{name}", body, JSON_V2).status == 200
        return name

    def _instance(self) -> str:
        name = f"fuzz{next(NUMBERS)}"
        body = {"name": name, "format": "json", "auto.offset.reset": "earliest"}
        assert self._gateway.post("/consumers/g", body, V2).status == 200
        return name

    def _session(self) -> str:
        body = {"topic": self.values["topic"], "source_id": f"fuzz{next(NUMBERS)}", "format": "binary"}
        while (opened := self._gateway.post("/v1/sessions", body)).status == 503:
            pass
        return str(opened.json["session"])

    def _transaction(self) -> str:
        path = f"/v1/store?topic={self.values['topic']}"
        while (stored := self._gateway.post(path, CHUNK, "text/plain")).status == 503:
            pass
        return str(stored.json["transaction_id"])

    def put_into(self, call: Any) -> None:
        """Replaces the names in a generated request."""
        call.path_parameters = {name: self.values[name] for name in call.path_parameters or {}}
        if isinstance(call.body, dict) and "transaction_id" in call.body:
            call.body["transaction_id"] = self.values["transaction"]
        if isinstance(call.query, dict) and isinstance(call.query.get("topic"), str):
            call.query["topic"] = self.values["topic"]


@pytest.fixture(scope="module")
def existing(gateway: GatewayClient) -> Existing:
    return Existing(gateway)


@pytest.fixture(scope="module")
def api(gateway: GatewayClient) -> Any:
    return schemathesis.openapi.from_url(f"http://{gateway.host}:{gateway.port}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_generated_requests_conform_to_the_document(
    gateway: GatewayClient, api: Any, existing: Existing, mode: GenerationMode
) -> None:
    """Valid requests, and requests with a mistake. Half of both name resources that exist."""
    with all_cases() as case:
        for operation in OPERATIONS:
            with case(operation.name):
                try:
                    check_operation(gateway, api, existing, operation, mode)
                    existing.refresh(operation)
                except Unsatisfiable:
                    assert mode is GenerationMode.NEGATIVE, "nothing can be wrong with a request without parameters"
    assert gateway.request("GET", "/healthz").json["server_errors"] == 0


def check_operation(
    gateway: GatewayClient, api: Any, existing: Existing, operation: GatewayOperation, mode: GenerationMode
) -> None:
    # Requests with a mistake are slow to generate.
    @settings(BOUNDED, max_examples=examples(0.1 if mode is GenerationMode.POSITIVE else 0.03))
    @given(api[operation.path][operation.method].as_strategy(generation_mode=mode), st.booleans())
    def check(call: Any, names_existing: bool) -> None:
        existing.refresh(operation)
        if names_existing:
            existing.put_into(call)
        bound(call)
        try:
            response = call.call_and_validate(checks=CHECKS)
        except BaseExceptionGroup as failures:  # `all_cases` collects only subclasses of Exception
            raise AssertionError(str(failures)) from failures
        if operation.name == "createInstance" and response.status_code == 200:
            delete_instance(gateway, response.json()["base_uri"])

    check()


def delete_instance(gateway: GatewayClient, base_uri: str) -> None:
    assert gateway.request("DELETE", urlsplit(base_uri).path).status == 204


def bound(call: Any) -> None:
    """Limits what a request costs: the time of reads, and the number of partitions."""
    if call.path.endswith("/records") and call.method == "GET":
        call.query = {**(call.query or {}), "timeout": READ_MS}
    body = call.body
    if isinstance(body, dict) and type(body.get("partitions_count")) is int:
        body["partitions_count"] = min(body["partitions_count"], PARTITIONS_MAX)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from(
            [2**31, -(2**63), 2**63, 10**400, 1e308, "", "\0", "\ud800", "é", "%", "a" * 40_000, "^(", "json"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "value", "topic", "partition", "type", "\ud800", "data"]), inner, max_size=4
        ),
    ),
    max_leaves=8,
)
"""Values that are wrong in most places, among them texts and numbers that C libraries do not take."""


@settings(BOUNDED, max_examples=examples(2))
@given(st.data())
def test_wrong_values_in_any_field_get_a_response(
    gateway: GatewayClient, existing: Existing, data: st.DataObject
) -> None:
    operation = data.draw(st.sampled_from([one for one in OPERATIONS if one.body and one.body != "Chunk"]))
    body = data.draw(damaged_bodies(valid_bodies(existing.values)[operation.body]))
    existing.refresh(operation)
    path = operation.path.format(**existing.values)
    content_type = JSON_V2 if operation.body.endswith("ProduceRequest") else operation.consumes[0]
    response = gateway.request(operation.method, path, json.dumps(body).encode(), content_type)
    assert response.status not in (500, 501), response
    if operation.name == "createInstance" and response.status == 200:
        delete_instance(gateway, response.json["base_uri"])


def valid_bodies(values: dict[str, str]) -> dict[str, Any]:
    """A request body of each kind."""
    topic, transaction = values["topic"], {"transaction_id": values["transaction"]}
    place = {"topic": topic, "partition": 0}
    headers = [{"name": "h", "value": "YQ=="}]
    record = {
        "partition_id": 0,
        "headers": headers,
        "key": {"type": "STRING", "data": "k"},
        "value": {"type": "AVRO", "schema": '"string"', "subject": topic, "subject_name_strategy": None, "data": "v"},
        "timestamp": 1,
    }
    produced = {"key": "a", "value": 1, "headers": headers, "timestamp": 1}
    formats = {"key_format": "avro", "key_schema": '"string"'}
    return {
        "ProduceRequest": {"records": [{**produced, "partition": 0}], **formats},
        "PartitionProduceRequest": {"records": [produced], **formats},
        "InstanceRequest": {
            "name": None,
            "format": "json",
            "key_format": "json",
            "auto.offset.reset": "earliest",
            "auto.commit.enable": "false",
            "fetch.min.bytes": 1,
            "consumer.request.timeout.ms": 1,
        },
        "SubscriptionRequest": {"topics": [topic]},
        "Partitions": {"partitions": [place]},
        "PositionsRequest": {"offsets": [{**place, "offset": 0}], "timestamps": [{**place, "timestamp": 1}]},
        "CommitRequest": {"offsets": [{**place, "offset": 0, "metadata": "m"}]},
        "Record": record,
        "BatchRequest": {"entries": [{"id": "1", **record}]},
        "TopicRequest": {
            "topic_name": "fuzz-created",
            "partitions_count": 1,
            "replication_factor": 1,
            "configs": [{"name": "retention.ms", "value": "1000000"}],
            "validate_only": True,
        },
        "PartitionsCount": {"partitions_count": 2},
        "ConfigValue": {"value": "1000000"},
        "ConfigChanges": {
            "data": [{"name": "retention.ms", "value": "1000000", "operation": "SET"}],
            "validate_only": True,
        },
        "TransactionRequest": {**transaction, "length": len(CHUNK), "checksum": f"crc32={zlib.crc32(CHUNK):08x}"},
        "TransactionCommit": transaction,
        "SessionRequest": {
            "topic": topic,
            "source_id": "s",
            "log_type": "l",
            "host": "h",
            "file": "f",
            "format": "binary",
        },
    }


@st.composite
def damaged_bodies(draw: st.DrawFn, valid: Any) -> Any:
    """A body in which one value is replaced."""
    body = {"body": valid}
    holder, key = draw(st.sampled_from(list(places(body))))
    if key != "partitions_count":
        holder[key] = draw(VALUES)
    return body["body"]


def places(value: Any) -> Any:
    """Yields the containers in a JSON value, each with a key of it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


RAW_BODIES = st.one_of(
    st.binary(max_size=100),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.lists(VALUES, max_size=4).map(lambda values: b" ".join(json.dumps(value).encode() for value in values)),
    st.binary(max_size=50).map(gzip.compress),
    st.sampled_from(
        [b"[" * 100_000, b'{"a":' * 2000, b"1 2 a\nb\n", b"\n", b"0 0\n\n", b"9" * 5000, b"{}{}", b"\xff\xfe{\0}\0"]
    ),
)
CONTENT_TYPES = st.sampled_from(
    [
        *(one for operation in OPERATIONS for one in operation.consumes),
        "",
        ";",
        "text/html",
        "application/json; charset=utf-16",
    ]
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "accept": st.sampled_from(["*/*", "", "x", "application/json;q=a", ",", "text/html", V2, JSON_V2]),
        "content_encoding": st.sampled_from(["gzip", "deflate", "zstd", "identity", "", "br", "gzip, gzip"]),
        "headrace_checksum": st.sampled_from(["crc32=0", "crc32=", "md5=1", "=", "crc32=00000000000", "\u00e9"]),
        "authorization": st.sampled_from(["", "Basic", "Basic %", "Bearer x", "Basic OjpfOg=="]),
        "x_forwarded_for": st.just("::1%"),
    },
)
WORDS = st.one_of(
    st.sampled_from(
        ["", "-1", "0", "1", "9" * 19, "9" * 30, "x", "%00", "%ff", "%ed%a0%80", "1e3", "%D9%A3", "null", "a%20"]
    ),
    st.text(max_size=5).map(lambda text: quote(text, safe="")),
)
NAMES_OF_QUERIES = st.sampled_from(["timeout", "max_bytes", "offset", "topic", "partition", "begin", "x", "%00"])


@settings(BOUNDED, max_examples=examples(2))
@given(
    st.sampled_from(OPERATIONS),
    st.dictionaries(st.sampled_from(sorted(PATH_PARAMETERS)), WORDS, max_size=2),
    st.lists(st.tuples(NAMES_OF_QUERIES, WORDS), max_size=3),
    RAW_BODIES,
    CONTENT_TYPES,
    HEADERS,
)
def test_random_requests_get_a_response(
    gateway: GatewayClient,
    existing: Existing,
    operation: GatewayOperation,
    names: dict[str, str],
    query: list[tuple[str, str]],
    body: bytes,
    content_type: str,
    headers: dict[str, str],
) -> None:
    existing.refresh(operation)
    path = operation.path.format(**existing.values | names)
    target = f"{path}?" + "&".join(f"{name}={value}" for name, value in [*query, ("timeout", str(READ_MS))])
    response = gateway.request(operation.method, target, body, content_type, **headers)
    assert response.status not in (500, 501), (target, response)
