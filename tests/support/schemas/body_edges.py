"""Encoded values at the limits of their types, and invalid ones just beyond them."""

from __future__ import annotations

from typing import Any

from headrace.avro_codec.encode import encode_long

LONG_MAX = encode_long((1 << 63) - 1)
EDGES: dict[str, tuple[Any, bytes, bytes]] = {
    "boolean": ("boolean", b"\x01", b"\x02"),
    "int": ("int", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x10"),
    "int of too many bytes": ("int", b"\x80\x80\x80\x80\x00", b"\x80\x80\x80\x80\x80\x00"),
    "long": ("long", LONG_MAX, LONG_MAX[:-1] + b"\x02"),
    "length": ("bytes", b"\x02x", b"\x01x"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x02", b"\x04"),
    "union": (["null", "int"], b"\x02\x00", b"\x04\x00"),
    "block size": ({"type": "array", "items": "int"}, b"\x01\x02\x00\x00", b"\x01\x01\x00\x00"),
    "block size beyond": ({"type": "array", "items": "int"}, b"\x01\x02\x00\x00", b"\x01\x08\x00\x00"),
    "items of no bytes": ({"type": "array", "items": "null"}, encode_long(65_536) + b"\0", encode_long(65_537) + b"\0"),
    "items of no bytes, in two blocks": (
        {"type": "array", "items": "null"},
        encode_long(65_535) + b"\x02\0",
        encode_long(65_536) + b"\x02\0",
    ),
    "UTF-8": ("string", b"\x08\xf4\x8f\xbf\xbf", b"\x08\xf4\x90\x80\x80"),
    "surrogates": ("string", b"\x06\xed\x9f\xbf", b"\x06\xed\xa0\x80"),
}
"""By tested property: a type, an encoded value at its limit, and an invalid one just beyond."""
