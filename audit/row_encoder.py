"""Encodes audit rows as messages of the audit topic: 5-byte prefix (magic byte, schema id), then Avro binary."""

from __future__ import annotations

import json
import struct
from io import BytesIO
from typing import Any, Final

import fastavro

from headrace.audit.row import AuditRow
from headrace.audit.schema import AUDIT_SCHEMA, to_message

_PREFIX: Final = struct.Struct(">bi")


def plain_schema(text: str) -> Any:
    """Parses the text of a schema for fastavro, without its logical types, so that times are read and written as
    integers. Returns the schema in the form of fastavro."""
    return fastavro.parse_schema(json.loads(text, object_hook=_without_logical_type))


def _without_logical_type(node: dict[str, Any]) -> dict[str, Any]:
    node.pop("logicalType", None)
    return node


class RowEncoder:
    """Encodes audit rows as messages of the audit topic; `schema_id` is the id under which `AUDIT_SCHEMA` is
    registered."""

    def __init__(self, schema_id: int) -> None:
        self._prefix = _PREFIX.pack(0, schema_id)
        self._schema = plain_schema(AUDIT_SCHEMA)

    def encode(self, row: AuditRow) -> bytes:
        body = BytesIO()
        body.write(self._prefix)
        fastavro.schemaless_writer(body, self._schema, to_message(row))
        return body.getvalue()
