"""What first bytes say of a producer that makes a mistake."""

from __future__ import annotations

import io
import json

import fastavro
import pytest

from headrace.loader.inspect.guess import BYTES_LOOKED_AT, looks_like

ORDER = fastavro.parse_schema({"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]})


def container_file() -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, ORDER, [{"id": 1}])
    return out.getvalue()


@pytest.mark.parametrize(
    ("value", "code", "start"),
    [
        (json.dumps({"id": 1}).encode(), "framing", "JSON: this producer has no Avro serializer"),
        (b' \n{ "id": 1 }', "framing", "JSON: "),
        (b"{}", "framing", "JSON: "),
        (b"[1, 2]", "framing", "JSON: "),
        (b"[]", "framing", "JSON: "),
        (b"{id}", "framing", "text: "),
        (b"<order/>", "framing", "XML: this producer has no Avro serializer"),
        ("grün".encode() * BYTES_LOOKED_AT, "framing", "text: this producer has no Avro serializer"),
        (b"x" + "ü".encode() * BYTES_LOOKED_AT, "framing", "text: "),
        (b"42", "framing", "text: "),
        (b"\x02\x06abc", "framing", ""),
        (b"\xff\xfe", "framing", ""),
        (b"", "framing", "an empty value, which is no tombstone"),
        (None, "framing", ""),
        (container_file(), "framing", "an Avro container file: "),
        (b"\xc3\x01" + b"8" * 8, "framing", "Avro's single-object encoding: "),
        (b"\xac\xed\x00\x05sr", "framing", "Java serialization: "),
        (b"\x1f\x8b\x08\x00", "framing", "gzip: "),
        (b"\x00\x00\x00\x00\x07\x02", "absent_schema", "a message of another registry"),
        (b"\x00\x00\x00\x00\x07\x02", "malformed", ""),
        (b'\x00\x00\x00\x00\x07{"id": 1}', "malformed", "JSON behind a schema id: "),
        (b'\x00\x00\x00\x00\x07{"id": 1}', "absent_schema", "JSON behind a schema id: "),
        (b"\x00\x00", "framing", ""),
        (b"{}", "corrupt_batch", ""),
    ],
)
def test_what_a_value_looks_like(value: bytes | None, code: str, start: str) -> None:
    guess = looks_like(value, code)
    assert guess.startswith(start)
    assert bool(guess) == bool(start)
