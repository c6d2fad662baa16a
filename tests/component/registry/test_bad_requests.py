"""Malformed requests get an error response of the API, never a server error or HTML."""

from __future__ import annotations

import itertools
import json
import re
import socket

import pytest

from support.cases import all_cases
from support.registry.registry_calls import CONTENT_TYPE, STRING, Registry

MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module")
def registry(registry_url: str) -> Registry:
    return Registry(registry_url)


def with_schema(**more: object) -> bytes:
    return json.dumps({"schema": STRING, **more}).encode()


def as_schema(text: str) -> bytes:
    return json.dumps({"schema": text}).encode()


BODIES = {
    "empty": (b"", 422),
    "null": (b"null", 422),
    "array": (b"[]", 400),
    "text": (b'"x"', 400),
    "cut off": (b'{"schema":', 400),
    "NUL byte": (b'{"schema":"\x00"}', 400),
    "invalid UTF-8": (b'{"schema":"\xff\xfe"}', 400),
    "byte order mark and no schema": (b"\xef\xbb\xbf{}", 422),
    "two byte order marks": (b"\xef\xbb\xbf\xef\xbb\xbf{}", 400),
    "lone surrogate": (b'{"schema":"\\ud800"}', 400),
    "deep array": (b"[" * 15_000, 400),
    "deep object": (b'{"a":' * 15_000, 400),
    "deeper array": (b"[" * 200_000, 422),
    "a quotation without end": (b'{"schema":"' + b'\\"' * MEGABYTE, 400),
    "a million empty references": (b'{"references":[' + b"{}," * 1_000_000 + b"{}]}", 422),
    "a million properties": (b'{"metadata":{"properties":{' + b'"a":"",' * 500_000 + b'"a":""}}}', 422),
    "long number": (b'{"version":' + b"9" * 5000 + b"}", 400),
    "NaN": (b'{"version":NaN}', 400),
    "schema is an object": (b'{"schema":{"type":"string"}}', 400),
    "schema is a number": (b'{"schema":5}', 400),
    "references are an object": (with_schema(references={}), 400),
    "reference is null": (with_schema(references=[None]), 400),
    "reference is empty": (with_schema(references=[{}]), 422),
    "reference has a huge version": (with_schema(references=[{"name": "a", "subject": "b", "version": 10**20}]), 400),
    "reference has a NUL": (with_schema(references=[{"name": "a\0", "subject": "b", "version": 1}]), 400),
    "reference to nothing": (with_schema(references=[{"name": "a", "subject": "b", "version": 1}]), 422),
    "metadata is a number": (with_schema(metadata=5), 400),
    "property is a list": (with_schema(metadata={"properties": {"a": []}}), 400),
    "type is a number": (with_schema(schemaType=5), 400),
    "version is text": (with_schema(version="x"), 400),
    "id is a list": (with_schema(id=[]), 400),
    "schema is NUL": (as_schema("\0"), 422),
    "schema nests deeply": (as_schema("[" * 100_000), 422),
    "types nest deeply": (as_schema('{"type":"array","items":' * 5000 + '"int"' + "}" * 5000), 422),
    "property nests deeply": (as_schema('{"type":"string","p":' + "[" * 900 + "]" * 900 + "}"), 422),
    "property is a huge number": (as_schema('{"type":"string","p":' + "9" * 6000 + "}"), 422),
    "property is infinite": (as_schema('{"type":"string","p":1e999}'), 422),
    "byte order mark in the schema": (as_schema('\ufeff"string"'), 422),
    "a comment without end": (as_schema('"string" /*'), 422),
    "a megabyte of open comments": (as_schema("/*" * (MEGABYTE // 2)), 422),
    "a megabyte with a mistake at its end": (as_schema('{"type":"string","p":"' + "x" * MEGABYTE + '"'), 422),
    "5,000 references": (with_schema(references=[{"name": "a", "subject": "b", "version": 1}] * 5_000), 422),
    "90,000 references": (with_schema(references=[{"name": "a", "subject": "b", "version": 1}] * 90_000), 422),
    "text where a list of references is": (with_schema(references="x" * MEGABYTE), 400),
    "many union branches of one name": (as_schema("[" + '"int",' * 100_000 + '"int"]'), 422),
    "too large": (as_schema("x" * (5 * MEGABYTE)), 422),
}


def test_malformed_bodies_are_rejected(registry: Registry) -> None:
    with all_cases() as case:
        for name in BODIES:
            with case(name):
                body, status = BODIES[name]
                assert registry.call("POST", "/subjects/bad/versions", body).error[0] == status
                for path in ("/subjects/bad", "/compatibility/subjects/bad/versions"):
                    assert 400 <= registry.call("POST", path, body).error[0] < 500
                assert registry.get("/subjects/bad/versions?deleted=true").error[1] == 40401


def test_body_errors_name_the_path_of_the_value(registry: Registry) -> None:
    response = registry.call("POST", "/subjects/bad/versions", with_schema(references=[{"name": "a", "subject": 5}]))
    assert response.error[:2] == (400, 400)
    assert response.error[2].startswith("references.0.subject: ")
    cut_off = registry.call("POST", "/subjects/bad/versions", b'{"schema":\n }')
    assert cut_off.error[2].endswith("line 2, column 2")


def test_oversized_schema_has_its_own_error_code_and_names_the_limit(registry: Registry) -> None:
    for bound, body in (
        ("4194304 bytes", as_schema("x" * (5 * MEGABYTE))),
        ("2097152", as_schema("x" * (3 * MEGABYTE))),
        ("20000", with_schema(references=[{}] * 20_000)),
    ):
        status, code, message = registry.call("POST", "/subjects/bad/versions", body).error
        assert (status, code) == (422, 42209)
        assert message.startswith("Register operation failed because schema is too large: ") and bound in message
        for path in ("/subjects/bad", "/compatibility/subjects/bad/versions"):
            status, code, message = registry.call("POST", path, body).error
            assert (status, code) == (413, 413)
            assert message.startswith("HTTP 413 Request Entity Too Large: ") and bound in message


def test_malformed_configurations_are_rejected(registry: Registry) -> None:
    with all_cases() as case:
        for body in [
            b'{"compatibility":5}',
            b'{"compatibility":"x\\u0000"}',
            b'{"normalize":"maybe"}',
            b'{"normalize":{}}',
            b"[]",
        ]:
            with case(body):
                assert 400 <= registry.call("PUT", "/config/bad", body).error[0] < 500


PATHS = [
    "/subjects/'%3B%20DROP%20TABLE%20subjects%3B--/versions",
    "/subjects/a'%20OR%20'1'='1/versions/1",
    "/subjects/%25/versions",
    "/subjects/" + "x" * 5_000 + "/versions/1",
    "/schemas/ids/-2147483649",
    "/schemas/ids/2147483648/versions",
    "/schemas/guids/%00",
    "/schemas/guids/" + "f" * 5_000,
    "/subjects/../../etc/passwd",
    "/subjects/%2e%2e/versions",
    "/subjects/..%2f..%2fetc/versions",
    "/subjects/%zz/versions",
    "/subjects/%ff%fe/versions",
    "/subjects/a%00b/versions/1",
    "/config/%00",
    "/config/%ff",
    "/mode/%00",
    "/schemas/ids/" + "9" * 6000,
    "/schemas/ids/99999?subject=%00&format=%ff",
    "/schemas/ids/%C2%B2",
    "/subjects/x/versions/%C2%B2",
    "/subjects/" + "x" * 50_000 + "/versions",
    "/contexts/.x/subject",
    "/%2e%2e",
    "/subjects" + "/" * 1000,
]


def test_malformed_paths_are_rejected(registry: Registry) -> None:
    with all_cases() as case:
        for method, path in itertools.product(["GET", "DELETE", "FOO"], PATHS):
            with case((method, path)):
                assert 400 <= registry.call(method, path).error[0] < 500


def test_malformed_queries_are_ignored_or_rejected(registry: Registry) -> None:
    with all_cases() as case:
        for query in ["offset=-1&limit=" + "9" * 30, "offset=x&limit=%00", "subjectPrefix=%00%ff", "=&&=?"]:
            with case(query):
                assert registry.get(f"/subjects?{query}").status == 200
                assert registry.get(f"/schemas?{query}").status == 200


def send_raw(registry: Registry, request: bytes) -> tuple[int, str]:
    """Sends raw bytes and returns the status and body of the response."""
    with socket.create_connection((registry.host, registry.port), timeout=60) as connection:
        connection.sendall(request)
        response = b""
        while part := connection.recv(65536):
            response += part
            head, _, body = response.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            if length and len(body) >= int(length[1]):
                break
    assert not body or f"content-type: {CONTENT_TYPE}".encode() in head.lower()
    return int(head.split()[1]), body.decode()


def test_malformed_http_gets_a_4xx_status(registry: Registry) -> None:
    with all_cases() as case:
        for request_bytes, status in [
            (b"\x00\x01\x02\r\n\r\n", 400),
            (b"GET / HTTP/9.9\r\n\r\n", 400),
            (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"y" * 1_000_000 + b"\r\n\r\n", 431),
            (b"POST /subjects/bad HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
            (b"POST /subjects/bad HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
            (
                b"POST /subjects/bad HTTP/1.1\r\nHost: x\r\nContent-Type: a/b;c=\xff\r\nContent-Length: 0\r\n\r\n",
                415,
            ),
        ]:
            with case(request_bytes):
                # The server itself rejects these requests, so the response is not in the API's format.
                found, body = send_raw(registry, request_bytes)
                assert found == status
                assert not body or json.loads(body)["error_code"] == status


def test_body_is_decoded_by_its_charset(registry: Registry) -> None:
    with all_cases() as case:
        for charset in ["nope", "hex", "zlib", "rot13", "undefined", "utf-16", "a\tb"]:
            with case(charset):
                headers = {"Content-Type": f"application/json; charset={charset}"}
                assert registry.call("POST", "/subjects/bad/versions", b"{}x", headers).error[0] == 400


@pytest.mark.timeout(60)
def test_python_specific_codecs_are_rejected_as_charsets(registry: Registry) -> None:
    with all_cases() as case:
        for charset in ["punycode", "idna", "unicode_escape"]:
            with case(charset):
                headers = {"Content-Type": f"application/json; charset={charset}"}
                # The first codec would take an hour for this body.
                body = b"a" * MEGABYTE + b"-" + b"a9" * MEGABYTE
                assert registry.call("POST", "/subjects/bad/versions", body, headers).error[0] == 400
                assert registry.call("POST", "/subjects/bad/versions", b"{}", headers).error[0] == 400


def test_large_schemas_are_accepted(registry: Registry) -> None:
    names = ",".join(f'{{"name":"f{number}","type":"int"}}' for number in range(5_000))
    for number, text in enumerate(
        (
            json.dumps({"type": "record", "name": "R", "doc": "x" * MEGABYTE, "fields": []}),
            f'{{"type":"record","name":"R","fields":[{names}]}}',
            json.dumps({"type": "enum", "name": "E", "symbols": [f"s{number}" for number in range(10_000)]}),
        )
    ):
        schema_id = registry.registered(f"large-{number}", text)
        assert json.loads(registry.get(f"/schemas/ids/{schema_id}").json["schema"]) == json.loads(text)


def test_last_of_duplicate_keys_counts(registry: Registry) -> None:
    body = b'{"schema":"\\"nothing\\"","schema":"\\"string\\""}'
    assert registry.call("POST", "/subjects/twice/versions", body).status == 200


def test_commas_and_brackets_in_texts_do_not_count_as_values(registry: Registry) -> None:
    text = json.dumps({"type": "fixed", "name": "F", "size": 1, "doc": '[{,"\\' * 20_000})
    assert registry.registered("commas", text)


def test_registry_works_after_malformed_requests(registry: Registry) -> None:
    assert registry.registered("good", STRING) > 0
