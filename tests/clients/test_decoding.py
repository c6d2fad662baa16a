"""Decoding of messages: bytes that are not a value of their schema are rejected before decoding."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.avro_schema import Schema, frame, parse_schema
from headrace.clients import decoding
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.clients.errors import UndecodableMessage
from headrace.registry.errors import SubjectNotFound
from headrace.settings import LoaderSettings
from support.golden import case_lines, golden
from support.schemas.body_edges import EDGES

NODE = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'


class Registry:
    """A registry with one schema."""

    def __init__(self, text: str) -> None:
        self.text = text

    def schema_by_id(self, schema_id: int) -> str:
        return self.text

    def parsed(self, text: str) -> Schema:
        return parse_schema(text, strict=False)

    def version(self, subject: str, version: str) -> Any:
        raise SubjectNotFound(subject, subject=subject)


def decoder(text: str, reader: str | None = None) -> Decoder:
    reader_schema = None if reader is None else parse_schema(reader)
    return Decoder(Registry(text), reader_schema, LoaderSettings())  # type: ignore[arg-type]


def message(body: bytes) -> FetchedRecord:
    return FetchedRecord("t", 3, 7, 99, b"key", frame(1, body), ())


@pytest.fixture(params=[True, False], ids=["core", "no core"])
def _with_and_without_the_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(decoding, "core_library", lambda: None)


@pytest.mark.usefixtures("_with_and_without_the_core")
@pytest.mark.parametrize("edge", EDGES)
def test_body_just_beyond_a_limit_is_undecodable(edge: str) -> None:
    kind, within, beyond = EDGES[edge]
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})
    for record_decoder in (decoder(text), decoder(text, '{"type": "record", "name": "R", "fields": []}')):
        record_decoder.decode(message(within))
        for wrong in (beyond, within + b"\x00", within[:-1]):
            with pytest.raises(UndecodableMessage, match=r"\b1\b"):
                record_decoder.decode(message(wrong))


BAD_BODIES = [
    ('"int"', b"\x02garbage"),
    ('["null", "int"]', b"\x01\x02"),
    ('{"type": "enum", "name": "E", "symbols": ["A", "B"]}', b"\x01"),
    ('"boolean"', b"\x07"),
    ('"int"', b"\xff\xff\xff\xff\xff\xff\x01"),
    ('{"type": "array", "items": "null"}', encode_long(200_000_000) + b"\0"),
    (NODE, b"\x02" * 97 + b"\0"),
]
"""A schema, and a body that is not a value of it."""


@pytest.mark.usefixtures("_with_and_without_the_core")
def test_error_has_position_bytes_and_reason() -> None:
    errors = []
    for kind, body in BAD_BODIES:
        with pytest.raises(UndecodableMessage) as refused:
            decoder(kind).decode(message(body))
        error = refused.value
        assert (error.topic, error.partition, error.offset) == ("t", 3, 7)
        assert (error.key, error.value) == (b"key", frame(1, body))
        errors.append((f"{kind} {body[:20]!r}", error))
    lines = case_lines(errors)
    assert lines == golden("clients/undecodable_messages.txt", lines)


def test_deeply_nested_body_does_not_crash_the_process() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_decoding import NODE, UndecodableMessage, decoder, message\n"
        "for reader in (None, NODE):\n"
        "    for levels in (8_000, 1_000_000):\n"
        "        try: decoder(NODE, reader).decode(message(b'\\2' * levels + b'\\0'))\n"
        "        except UndecodableMessage: print('refused')\n"
    )
    directories = [path for path in sys.path if path.endswith("tests")]
    command = [sys.executable, "-c", program, __file__.rpartition("/")[0], *directories]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n" * 4), done.stderr


def test_nested_values_are_decoded_up_to_the_limit_of_loads() -> None:
    _, value, _ = decoder(NODE).decode(message(b"\x02" * 96 + b"\0"))
    for _ in range(96):
        value = value["next"]
    assert value == {"next": None}


@pytest.mark.parametrize("text", ['"no type"', '{"type": "record", "name": "R"}'])
def test_messages_of_an_invalid_schema_are_undecodable(text: str) -> None:
    record_decoder = decoder(text)
    for _ in range(2):
        with pytest.raises(UndecodableMessage, match=r"\b1\b"):
            record_decoder.decode(message(b"\0"))


TIME_MS = 1_356_998_400_000
TIME_TEXT = b"2013-01-01T00:00:00Z"


@pytest.mark.usefixtures("_with_and_without_the_core")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, encode_long(TIME_MS)),
        ({"type": "long", "logicalType": "timestamp-micros"}, encode_long(TIME_MS * 1000)),
        ({"type": "int", "logicalType": "date"}, encode_long(TIME_MS // 86_400_000)),
        ("string", encode_bytes(TIME_TEXT)),
        (["null", "long"], b"\x02" + encode_long(TIME_MS)),
        (["null", "long"], b"\x00"),
        ("string", encode_bytes(b"no time")),
    ],
)
@pytest.mark.parametrize("read_as", [None, "double", ["null", "bytes", "double"]])
def test_message_time_is_independent_of_the_reader_schema(kind: Any, body: bytes, read_as: Any) -> None:
    fields = [{"name": "n", "type": "int"}, {"name": "timestamp", "type": kind}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    read = [] if read_as is None else [{"name": "timestamp", "type": read_as}]
    reader = json.dumps({"type": "record", "name": "R", "fields": [*read, {"name": "n", "type": "long"}]})
    expected = decoder(text).decode(message(b"\x02" + body))[2]
    assert expected == (None if body in (b"\x00", encode_bytes(b"no time")) else TIME_MS)
    with suppress(UndecodableMessage):  # text as a double
        assert decoder(text, reader).decode(message(b"\x02" + body))[2] == expected


@pytest.mark.parametrize("schema", [{"type": "string"}, b'"string"', 7])
def test_invalid_reader_schema_is_an_error(schema: Any) -> None:
    with pytest.raises(ValueError, match="reader_schema"):
        Decoder(Registry('"string"'), schema, LoaderSettings())  # type: ignore[arg-type]


def test_reader_schema_with_an_invalid_default_is_an_error() -> None:
    text = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int", "default": "null"}]}'
    with pytest.raises(ValueError, match=r"reader_schema.*<null>"):
        Decoder(Registry('"string"'), parse_schema(text, strict=False), LoaderSettings())  # type: ignore[arg-type]
