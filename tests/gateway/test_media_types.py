"""Content negotiation of version 2 of the REST Proxy's interface."""

from __future__ import annotations

import pytest

from headrace.gateway.encoding import Format
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.responses import JSON, V2_JSON, media_type_of
from headrace.gateway.rest_v2 import accepted_types
from headrace.gateway.rest_v2_consumers import accepted_format, media_type

BINARY_V2, JSON_V2, AVRO_V2 = (media_type(form) for form in (Format.BINARY, Format.JSON, Format.AVRO))


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", ["*/*"]),
        (" , text/html", ["*/*"]),
        ("text/html", []),
        ("application/json;q=0", []),
        ("*/*; q=0.000, application/json;q=0.001", [JSON]),
        ("Application/JSON ; Charset=utf-8 ; Q = 0.5", [JSON]),
        (f"*/*, {JSON_V2}", [JSON_V2, "*/*"]),
        (f"{JSON};q=0.2, {V2_JSON};q=0.3, {AVRO_V2};q=1", [AVRO_V2, V2_JSON, JSON]),
        (f"{JSON};q=high, {V2_JSON};q=0.9", [JSON, V2_JSON]),
    ],
)
def test_accepted_types_are_ordered_by_their_weight(accept: str, expected: list[str]) -> None:
    assert accepted_types(accept) == expected


@pytest.mark.parametrize(
    ("accept", "own", "expected"),
    [
        ("", None, Format.BINARY),
        ("", Format.AVRO, Format.AVRO),
        (V2_JSON, Format.JSON, Format.JSON),
        (f"{JSON_V2}, {BINARY_V2}", None, Format.JSON),
        (f"{JSON_V2};q=0.1, {AVRO_V2}", None, Format.AVRO),
        (f"{JSON_V2};q=0.1, {AVRO_V2}", Format.JSON, Format.JSON),
        ("application/vnd.kafka.protobuf.v2+json, */*", None, Format.BINARY),
        (BINARY_V2, Format.JSON, None),
        ("application/vnd.kafka.protobuf.v2+json", None, None),
    ],
)
def test_format_of_a_read_is_the_preferred_one_that_is_possible(
    accept: str, own: Format | None, expected: Format | None
) -> None:
    try:
        assert accepted_format(accept, own) is expected
    except GatewayError as error:
        assert (error.kind, expected) == (Kind.FORMAT_MISMATCH, None)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *((path, V2_JSON) for path in ("/", "/topics", "/topics/a\nb", "/consumers/g/instances/i", "/brokers")),
        *((path, JSON) for path in ("/topicsx", "/v1/sessions", "/v3/clusters/any/topics", "/healthz", "")),
    ],
)
def test_errors_have_the_media_type_of_the_version(path: str, expected: str) -> None:
    assert media_type_of(path) == expected
