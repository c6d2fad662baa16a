"""Parsing Canonical Form and fingerprints (Avro 1.12, Transforming into Parsing Canonical Form; Schema Fingerprints).

The form contains only the attributes of a writer schema that matter for reading its data, but no logical types.
Defaults and aliases, which a reader schema also uses, are not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache

from headrace.avro_schema.model import (
    Array,
    Enum,
    Fixed,
    Map,
    Name,
    Primitive,
    Record,
    Schema,
    Type,
    Union,
)

_EMPTY_CRC = 0xC15D213AA4D7A795


def parsing_canonical_form(schema: Schema) -> str:
    parts: list[str] = []
    _form(schema, schema.root, set(), parts)
    return "".join(parts)


def fingerprint_crc64(schema: Schema) -> int:
    """Returns the CRC-64-AVRO of the schema's Parsing Canonical Form as an unsigned number (little-endian in
    single-object encoding)."""
    return crc64_avro(parsing_canonical_form(schema).encode())


def fingerprint_md5(schema: Schema) -> str:
    """Returns the MD5 of the schema's Parsing Canonical Form, in hex."""
    return hashlib.md5(parsing_canonical_form(schema).encode(), usedforsecurity=False).hexdigest()


def fingerprint_sha256(schema: Schema) -> str:
    """Returns the SHA-256 of the schema's Parsing Canonical Form, in hex."""
    return hashlib.sha256(parsing_canonical_form(schema).encode()).hexdigest()


def crc64_avro(data: bytes) -> int:
    table = _crc_table()
    crc = _EMPTY_CRC
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc


@cache
def _crc_table() -> Sequence[int]:
    table = []
    for i in range(256):
        crc = i
        for _ in range(8):
            crc = (crc >> 1) ^ (_EMPTY_CRC & -(crc & 1))
        table.append(crc)
    return table


def _form(schema: Schema, node: Type, written: set[Name], parts: list[str]) -> None:
    if isinstance(node, Primitive):
        parts.append(f'"{node.type.value}"')
    elif isinstance(node, Union):
        parts.append("[")
        for i, branch in enumerate(node.branches):
            parts.append("," if i else "")
            _form(schema, branch, written, parts)
        parts.append("]")
    elif isinstance(node, Array | Map):
        array = isinstance(node, Array)
        parts.append('{"type":"array","items":' if array else '{"type":"map","values":')
        _form(schema, node.items if isinstance(node, Array) else node.values, written, parts)
        parts.append("}")
    elif node.name in written:
        parts.append(f'"{node.name.full}"')
    else:
        written.add(node.name)
        _named_form(schema, schema.resolve(node), written, parts)


def _named_form(schema: Schema, node: Type, written: set[Name], parts: list[str]) -> None:
    if isinstance(node, Fixed):
        parts.append(f'{{"name":"{node.name.full}","type":"fixed","size":{node.size}}}')
    elif isinstance(node, Enum):
        symbols = json.dumps(list(node.symbols), separators=(",", ":"))
        parts.append(f'{{"name":"{node.name.full}","type":"enum","symbols":{symbols}}}')
    else:
        assert isinstance(node, Record)
        parts.append(f'{{"name":"{node.name.full}","type":"record","fields":[')
        for i, field in enumerate(node.fields):
            parts.append(f'{"," if i else ""}{{"name":"{field.name}","type":')
            _form(schema, field.type, written, parts)
            parts.append("}")
        parts.append("]}")
