"""The format that the first bytes of a quarantined value suggest, as a hint for producers."""

from __future__ import annotations

import io
import json

import fastavro

from headrace.loader.inspect.producer_hint import HEAD_BYTES, producer_hint
from support.golden import case_lines, golden

ORDER = fastavro.parse_schema({"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]})


def container_file() -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, ORDER, [{"id": 1}])
    return out.getvalue()


VALUES = [
    (json.dumps({"id": 1}).encode(), "framing", "JSON"),
    (b' \n{ "id": 1 }', "framing", "JSON"),
    (b"{}", "framing", "JSON"),
    (b"[1, 2]", "framing", "JSON"),
    (b"[]", "framing", "JSON"),
    (b"{id}", "framing", "text"),
    (b"<order/>", "framing", "XML"),
    ("grün".encode() * HEAD_BYTES, "framing", "text"),
    (b"x" + "ü".encode() * HEAD_BYTES, "framing", "text"),
    (b"42", "framing", "text"),
    (b"\x02\x06abc", "framing", ""),
    (b"\xff\xfe", "framing", ""),
    (b"", "framing", "an empty value"),
    (None, "framing", ""),
    (container_file(), "framing", "an Avro container file"),
    (b"\xc3\x01" + b"8" * 8, "framing", "Avro's single-object encoding"),
    (b"\xac\xed\x00\x05sr", "framing", "Java serialization"),
    (b"\x1f\x8b\x08\x00", "framing", "gzip"),
    (b"\x00\x00\x00\x00\x07\x02", "schema_not_found", "a schema id of another registry"),
    (b"\x00\x00\x00\x00\x07\x02", "malformed", ""),
    (b'\x00\x00\x00\x00\x07{"id": 1}', "malformed", "JSON behind a schema id"),
    (b'\x00\x00\x00\x00\x07{"id": 1}', "schema_not_found", "JSON behind a schema id"),
    (b"\x00\x00", "framing", ""),
    (b"{}", "corrupt_batch", ""),
]
"""The first bytes of a value, the code it is quarantined with, and the suggested format ("" for no suggestion)."""


def test_guess_names_the_format_of_the_first_bytes() -> None:
    guesses = [(value, code, producer_hint(value, code)) for value, code, _ in VALUES]
    wrong = [(*row, guess) for row, (*_, guess) in zip(VALUES, guesses, strict=True) if not is_of(guess, row[2])]
    assert wrong == []
    lines = case_lines((f"{code} {value[:20] if value else value!r}", guess) for value, code, guess in guesses)
    assert lines == golden("loader/guesses.txt", lines)


def is_of(guess: str, form: str) -> bool:
    return guess.startswith(form) and bool(guess) == bool(form)
