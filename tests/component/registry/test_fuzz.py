"""Random requests always get a response in the API's format, and never status 500.

It takes a few seconds of `make test`. `make fuzz` runs for minutes, with `HEADRACE_FUZZ_EXAMPLES` examples per test.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from headrace.registry.api.app import create_app
from headrace.registry.api.openapi.operations import OPERATIONS, QUERY
from headrace.registry.storage.database import Database
from support.cases import all_cases
from support.examples import examples
from support.registry.registry_calls import STRING, USER_1, RegistryInProcess, RestResponse
from support.schemas.strategies import schema_values

EXAMPLES = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", examples(0.1)))
IS_LONG = "HEADRACE_FUZZ_EXAMPLES" in os.environ
# Generating calls that the document forbids is slow; the tests below make invalid calls themselves.
MODES = list(GenerationMode) if IS_LONG else [GenerationMode.POSITIVE]
CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
)
BOUNDED = settings(
    max_examples=EXAMPLES,
    derandomize=not IS_LONG,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


@pytest.fixture(scope="module")
def app(registry_database_url: str) -> Iterator[Flask]:
    database = Database(registry_database_url, lease_s=0)
    app = create_app(database)
    registry = RegistryInProcess(app.test_client())
    registry.registered("a", STRING)
    registry.registered("a", '{"type":"string","p":1}')
    registry.registered("0", USER_1)
    yield app
    database.close()


@pytest.fixture(scope="module")
def registry(app: Flask) -> RegistryInProcess:
    return RegistryInProcess(app.test_client())


@pytest.fixture(scope="module")
def api(app: Flask) -> Any:
    return schemathesis.openapi.from_wsgi("/openapi.json", app)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_generated_calls_conform_to_the_document(api: Any, mode: GenerationMode) -> None:
    """Valid calls, and calls with a mistake."""
    with all_cases() as case:
        for operation in OPERATIONS:

            @BOUNDED
            @given(api[operation.path][operation.method].as_strategy(generation_mode=mode))
            def check(call: Any) -> None:
                call.call_and_validate(checks=CHECKS)

            with case(operation.name):
                try:
                    check()
                except Unsatisfiable:
                    assert mode is GenerationMode.NEGATIVE, "nothing can be wrong with a call without parameters"


MORE = settings(BOUNDED, max_examples=(10 if IS_LONG else 5) * EXAMPLES)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from([2**31, -(2**63), 10**400, 1e308, "", "\0", "\ud800", "record", "int", "é", "a.b", ".", "null"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=5), st.sampled_from(["type", "name", "fields"])), inner, max_size=4),
    ),
    max_leaves=8,
)
ERROR_STATUSES = {400, 404, 405, 406, 409, 413, 414, 415, 422}


def require_api_response(response: RestResponse) -> RestResponse:
    """Checks for a response of the API: JSON, and for errors a known status and the two keys."""
    if response.status != 200:
        assert response.status in ERROR_STATUSES, response
        status, code, message = response.error
        assert message
        assert str(code).startswith(str(status))
    elif response.text:
        assert response.json is not ...
    return response


def post_to_all_routes(registry: RegistryInProcess, body: bytes, headers: dict[str, str] | None = None) -> None:
    for path in (
        "/subjects/fuzz/versions",
        "/subjects/fuzz/versions?normalize=true",
        "/subjects/fuzz",
        "/compatibility/subjects/fuzz/versions?verbose=true",
        "/compatibility/subjects/a/versions/1",
    ):
        require_api_response(registry.call("POST", path, body, headers))


def as_body(value: Any) -> bytes:
    """JSON of any Python value, including NaN and lone surrogates."""
    return json.dumps(value).encode()


@st.composite
def damaged_schemas(draw: st.DrawFn) -> str:
    """A schema in which one value is replaced, removed or duplicated."""
    schema = draw(schema_values())
    damaged = copy.deepcopy(schema)
    places = list(_locations(damaged))
    if not places:
        return json.dumps(draw(VALUES))
    holder, key = draw(st.sampled_from(places))
    kind = draw(st.sampled_from(["replace", "remove", "twice"]))
    if kind == "replace":
        holder[key] = draw(VALUES)
    elif kind == "remove":
        del holder[key]
    text = json.dumps(damaged)
    return text.replace('"type"', '"type": "int", "type"', 1) if kind == "twice" else text


def _locations(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _locations(inner)


@MORE
@given(schema_values().map(json.dumps))
def test_random_schemas_get_a_response(registry: RegistryInProcess, text: str) -> None:
    post_to_all_routes(registry, as_body({"schema": text}))


@MORE
@given(damaged_schemas())
def test_damaged_schemas_get_a_response(registry: RegistryInProcess, text: str) -> None:
    post_to_all_routes(registry, as_body({"schema": text}))


@MORE
@given(st.text(max_size=60))
def test_texts_that_resemble_schemas_get_a_response(registry: RegistryInProcess, text: str) -> None:
    post_to_all_routes(registry, as_body({"schema": text}))


KEYS = (
    *("schema", "schemaType", "references", "metadata", "ruleSet", "version", "id"),
    *("schemaTagsToAdd", "schemaTagsToRemove", "propagateSchemaTags", "unknown"),
)


@MORE
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_values_of_wrong_types_get_a_response(registry: RegistryInProcess, more: dict[str, Any]) -> None:
    post_to_all_routes(registry, as_body({"schema": STRING, **more}))
    change = {
        "newVersion": more.get("version"),
        "tagsToAdd": more.get("schemaTagsToAdd"),
        "ruleSet": more.get("ruleSet"),
    }
    require_api_response(registry.call("POST", "/subjects/a/versions/1/tags", as_body({**more, **change})))


CONFIG_KEYS = (
    *("compatibility", "compatibilityGroup", "compatibilityPolicy", "normalize", "validateFields", "alias"),
    *("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet", "validateNewSchemas"),
)


@MORE
@given(st.dictionaries(st.sampled_from(CONFIG_KEYS), VALUES, max_size=3), VALUES)
def test_random_configurations_get_a_response(registry: RegistryInProcess, change: dict[str, Any], mode: Any) -> None:
    require_api_response(registry.call("PUT", "/config/fuzz", as_body(change)))
    # An accepted value must not break later requests.
    for path in (
        "/config/fuzz",
        "/config/fuzz?defaultToGlobal=true",
        "/subjects/fuzz/versions",
        "/schemas?aliases=true",
    ):
        require_api_response(registry.get(path))
    post_to_all_routes(registry, as_body({"schema": STRING}))
    require_api_response(registry.delete("/config/fuzz"))
    require_api_response(registry.call("PUT", "/mode/fuzz2", as_body({"mode": mode})))


CONTENT_TYPES = st.sampled_from(
    [
        *("application/json", "application/vnd.schemaregistry.v1+json", "application/octet-stream", "text/plain", ""),
        *("application/json; charset=utf-16", 'application/json; charset="', "application/json; charset=idna"),
        *("application/json; charset=utf-7", "application/json; charset=\0", ";", "multipart/form-data; boundary=x"),
        *(
            "application/json; charset=punycode",
            "application/json; charset=unicode_escape",
            "application/x-www-form-urlencoded",
        ),
    ]
)


@MORE
@given(
    st.one_of(st.binary(max_size=200), VALUES.map(as_body)),
    CONTENT_TYPES,
    st.sampled_from(["*/*", "x", "application/json;q=a", ""]),
)
def test_random_bodies_and_headers_get_a_response(
    registry: RegistryInProcess, body: bytes, content_type: str, accept: str
) -> None:
    post_to_all_routes(registry, body, {"Content-Type": content_type, "Accept": accept})


TRICKS = st.sampled_from(
    [
        *(
            "'; DROP TABLE subjects; --",
            "a' OR '1'='1",
            "%",
            "_",
            "a%",
            'a"b',
            "a`b",
            "\\",
            "a\\'",
            "${x}",
            "{{x}}",
            "*",
            "a*",
        ),
        *(
            "../../etc/passwd",
            "..",
            ".",
            "a/b",
            "a//b",
            "/",
            "?x=1",
            "#x",
            "a;b",
            "a b",
            " ",
            "%2F",
            "%00",
            "a\tb",
            "\n",
        ),
        *(
            ":.c:a",
            ":.c:",
            ":.:a",
            ":.:",
            ":.__GLOBAL:",
            "__GLOBAL",
            "__EMPTY",
            ":*:",
            ":",
            "::",
            ":.::.:",
            "NULL",
            "-1",
        ),
        *("é", "e\u0301", "\u202e", "\ufeff", "\U0001f600", "\uffff", "a" * 1300, "a" * 5000, "versions", "latest"),
    ]
)


@MORE
@given(st.one_of(TRICKS, st.text(max_size=8), st.builds(str.__add__, TRICKS, st.text(max_size=3))))
def test_random_subjects_are_stored_unchanged_or_rejected(registry: RegistryInProcess, subject: str) -> None:
    """A subject is stored as it is or rejected, and requests for it affect no other subject."""
    assume(subject)  # the empty subject is valid, but its path is that of the list
    before = set(registry.get("/subjects?deleted=true").json)
    path = "/subjects/" + quote(subject.encode("utf-8", "surrogatepass"), safe="")
    assume(
        registry.get(f"{path}/versions?deleted=true").status != 200
    )  # excludes another spelling of an existing subject
    response = require_api_response(registry.post(f"{path}/versions", {"schema": STRING}))
    if response.status == 200:
        (name,) = set(registry.get("/subjects?deleted=true").json) - before
        assert registry.get(f"{path}/versions/latest").json.get("subject", "") == name
        for query in ("", "?permanent=true"):
            assert require_api_response(registry.delete(path + query)).json == [1]
    for method in ("GET", "DELETE"):
        for rest in ("", "/versions/1", "/versions/latest/schema", "/metadata"):
            require_api_response(registry.call(method, path + rest))
        require_api_response(registry.call(method, "/config/" + path.removeprefix("/subjects/")))
    assert set(registry.get("/subjects?deleted=true").json) == before


@MORE
@given(
    st.lists(st.tuples(st.sampled_from(sorted(QUERY)), st.one_of(TRICKS, st.text(max_size=5), st.integers().map(str))))
)
def test_random_queries_get_a_response(registry: RegistryInProcess, pairs: list[tuple[str, str]]) -> None:
    query = "&".join(f"{name}={quote(value.encode('utf-8', 'surrogatepass'), safe='')}" for name, value in pairs)
    for path in (
        "/subjects",
        "/schemas",
        "/contexts",
        "/schemas/ids/1",
        "/schemas/ids/1/versions",
        "/subjects/a/metadata",
    ):
        require_api_response(registry.get(f"{path}?{query}"))
    require_api_response(registry.get(f"/subjects/a/versions/1?{query}"))
