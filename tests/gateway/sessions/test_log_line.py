from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_codec.from_json import compile_from_json
from headrace.avro_schema import parse_schema
from headrace.gateway.sessions.log_line import LOG_LINE, LineEncoder

encode_json = compile_from_json(parse_schema(LOG_LINE))
texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts, texts, texts, st.integers(0, 2**52))
def test_valid_line_is_encoded_as_its_schema_says(line: str, host: str, file: str, time_us: int) -> None:
    value = {"line": line, "host": host, "file": file, "time": time_us, "raw": None}
    assert LineEncoder(b"prefix", host, file, time_us)(line.encode()) == b"prefix" + encode_json(value)


@given(st.binary())
def test_raw_bytes_are_stored_of_lines_that_are_no_utf8(line: bytes) -> None:
    try:
        line.decode()
        raw = None
    except UnicodeDecodeError:
        raw = {"bytes": line.decode("latin-1")}
    value = {"line": line.decode(errors="replace"), "host": "h", "file": "f", "time": 1, "raw": raw}
    assert LineEncoder(b"", "h", "f", 1)(line) == encode_json(value)
