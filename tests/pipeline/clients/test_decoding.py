"""Bytes that are no value of their schema are refused, whatever decoder reads them afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headrace.avro_schema import Schema, frame, parse_schema
from headrace.loader.native.encode import encode_long
from headrace.pipeline.clients import decoding
from headrace.pipeline.clients.decoding import Decoder, Record
from headrace.pipeline.clients.errors import UndecodableMessage
from headrace.registry.errors import SubjectNotFound
from headrace.settings import LoaderSettings
from support.schemas.body_edges import EDGES

NODE = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'


class Registry:
    """Has one schema."""

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


def message(body: bytes) -> Record:
    return Record("t", 3, 7, 99, b"key", frame(1, body), ())


@pytest.fixture(params=[True, False], ids=["core", "no core"])
def _with_and_without_the_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(decoding, "the_core", lambda: None)


@pytest.mark.usefixtures("_with_and_without_the_core")
@pytest.mark.parametrize("edge", EDGES)
def test_what_lies_just_beyond_an_edge_is_refused(edge: str) -> None:
    kind, within, beyond = EDGES[edge]
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})
    for its_decoder in (decoder(text), decoder(text, '{"type": "record", "name": "R", "fields": []}')):
        its_decoder.decode(message(within))
        for wrong in (beyond, within + b"\x00", within[:-1]):
            with pytest.raises(UndecodableMessage, match="it does not match schema 1"):
                its_decoder.decode(message(wrong))


@pytest.mark.usefixtures("_with_and_without_the_core")
@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ('"int"', b"\x02garbage", "7 bytes follow the value"),
        ('["null", "int"]', b"\x01\x02", "a union has the index -1 of 2 branches"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "B"]}', b"\x01", "an enum has the index -1 of 2 symbols"),
        ('"boolean"', b"\x07", "a boolean is the byte 7"),
        ('"int"', b"\xff\xff\xff\xff\xff\xff\x01", "an int is beyond 32 bits"),
        ('{"type": "array", "items": "null"}', encode_long(200_000_000) + b"\0", "65536 items that take no bytes"),
        (NODE, b"\x02" * 97 + b"\0", "values are nested deeper than 96 levels"),
    ],
)
def test_the_error_says_where_and_why(kind: str, body: bytes, said: str) -> None:
    with pytest.raises(UndecodableMessage, match=f"^topic t partition 3 offset 7: .* schema 1: .*{said}") as caught:
        decoder(kind).decode(message(body))
    assert (caught.value.key, caught.value.value, caught.value.offset) == (b"key", frame(1, body), 7)


def test_a_body_that_nests_without_end_does_not_end_the_process() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_decoding import NODE, UndecodableMessage, decoder, message\n"
        "for reader in (None, NODE):\n"
        "    for levels in (8_000, 1_000_000):\n"
        "        try: decoder(NODE, reader).decode(message(b'\\2' * levels + b'\\0'))\n"
        "        except UndecodableMessage: print('refused')\n"
    )
    folders = [path for path in sys.path if path.endswith("tests")]
    command = [sys.executable, "-c", program, __file__.rpartition("/")[0], *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n" * 4), done.stderr


def test_nested_values_are_decoded_as_deep_as_loads_take_them() -> None:
    _, value, _ = decoder(NODE).decode(message(b"\x02" * 96 + b"\0"))
    for _ in range(96):
        value = value["next"]
    assert value == {"next": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"no type"', "the registry's schema 1 is none"),
        ('{"type": "record", "name": "R"}', "the registry's schema 1 is none"),
    ],
)
def test_a_schema_that_cannot_be_used_is_said_of_its_messages(text: str, said: str) -> None:
    its_decoder = decoder(text)
    for _ in range(2):
        with pytest.raises(UndecodableMessage, match=said):
            its_decoder.decode(message(b"\0"))


def test_the_time_is_the_writer_s_number_whatever_is_read() -> None:
    kind = {"type": "long", "logicalType": "timestamp-millis"}
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "timestamp", "type": kind}]})
    body = encode_long(1_356_998_400_000)
    assert decoder(text).decode(message(body))[2] == 1_356_998_400_000
    without = '{"type": "record", "name": "R", "fields": []}'
    assert decoder(text, without).decode(message(body)) == (1, {}, 1_356_998_400_000)


@pytest.mark.parametrize("schema", [{"type": "string"}, b'"string"', 7])
def test_what_is_no_reader_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="expected reader_schema to be JSON text or None, found"):
        Decoder(Registry('"string"'), schema, LoaderSettings())  # type: ignore[arg-type]
