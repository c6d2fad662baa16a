"""Request bodies: JSON read strictly, checked by marshmallow and turned into the values of `registry.domain`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from flask import request
from marshmallow import EXCLUDE, Schema, ValidationError, fields, post_load, validate
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from registry.api.answers import PRODUCED
from registry.api.problems import BadRequest
from registry.domain import (
    SCHEMA_TYPE,
    VERSION_MAX,
    ConfigChange,
    ConfigEntry,
    Metadata,
    SchemaReference,
    SchemaRequest,
    StoredSchema,
    StoredVersion,
    is_storable,
)

CONSUMED = frozenset({name for name, _ in PRODUCED} | {"application/octet-stream", ""})
"""Content types of requests; octet-stream is what JAX-RS takes a missing type for."""

_INT32 = validate.Range(-(2**31), VERSION_MAX, error="Expected a 32-bit number.")
_STORABLE = validate.And(lambda text: _require_storable(text))


def _require_storable(text: str) -> bool:
    if not is_storable(text):
        raise ValidationError("Expected text without control characters and lone surrogates.")
    return True


class _Payload(Schema):
    class Meta:
        unknown = EXCLUDE  # clients of newer releases send more than this one knows


class ReferencePayload(_Payload):
    name = fields.String(required=True, validate=_STORABLE)
    subject = fields.String(required=True, validate=_STORABLE)
    version = fields.Integer(required=True, validate=_INT32)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> SchemaReference:
        return SchemaReference(**data)


class MetadataPayload(_Payload):
    properties = fields.Dict(keys=fields.String(), values=fields.String(), allow_none=True)
    tags = fields.Dict(keys=fields.String(), values=fields.List(fields.String()), allow_none=True)
    sensitive = fields.List(fields.String(), allow_none=True)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> Metadata:
        return Metadata.of(**data)


class SchemaPayload(_Payload):
    """The body of register, lookup and compatibility requests."""

    text = fields.String(data_key="schema", load_default=None, allow_none=True)
    schema_type = fields.String(data_key="schemaType", load_default=None, allow_none=True)
    references = fields.List(fields.Nested(ReferencePayload), load_default=None, allow_none=True)
    metadata = fields.Nested(MetadataPayload, load_default=None, allow_none=True)
    version = fields.Integer(load_default=None, allow_none=True, validate=_INT32)
    schema_id = fields.Integer(data_key="id", load_default=None, allow_none=True, validate=_INT32)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> SchemaRequest:
        data["schema_type"] = data["schema_type"] or SCHEMA_TYPE
        data["references"] = tuple(data["references"] or ())
        # Clients that have no id to impose may send -1.
        if (data["schema_id"] or 0) < 0:
            data["schema_id"] = None
        return SchemaRequest(**data)


class ConfigPayload(_Payload):
    compatibility = fields.String(allow_none=True)
    normalize = fields.Boolean(allow_none=True)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> ConfigChange:
        return ConfigChange(ConfigEntry(**data), frozenset(data))


T = TypeVar("T")


def read_body(payload: type[_Payload], kind: type[T]) -> T:
    """The request's body as a `kind`.

    Raises:
        BadRequest: the content type, the JSON or a value in it is not what the API takes.
    """
    if request.mimetype not in CONSUMED:
        raise BadRequest(415, "HTTP 415 Unsupported Media Type")
    value = _read_json(_decoded(_body()))
    if value is None:
        raise BadRequest(422, "The request body is empty; expected a JSON object")
    if not isinstance(value, dict):
        raise BadRequest(400, f"The request body is {_json_type(value)}; expected a JSON object")
    try:
        loaded = payload().load(value)
    except ValidationError as error:
        raise BadRequest(400, _described(error.messages, value)) from error
    assert isinstance(loaded, kind)
    return loaded


def _body() -> bytes:
    try:
        body = request.get_data(cache=False)
    except HTTPException:
        raise
    except Exception as error:
        # Whatever the server's stream raises for a body that is cut off or badly chunked is the client's mistake.
        raise BadRequest(400, f"The request body cannot be read: {error}") from error
    # A body of unknown length is cut at the limit without an error.
    if request.content_length is None and len(body) >= (request.max_content_length or len(body) + 1):
        raise RequestEntityTooLarge
    return body


def _decoded(body: bytes) -> str:
    charset = request.mimetype_params.get("charset", "utf-8")
    try:
        return body.decode(charset)
    except (LookupError, ValueError):
        raise BadRequest(400, f"The request body is not {charset} text") from None


def _read_json(text: str) -> Any:
    if not text.strip():
        return None
    try:
        value = json.loads(text, parse_constant=_no_constant)
        # What cannot be written as UTF-8 (lone surrogates, from escapes) cannot be stored or answered either.
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise BadRequest(400, "The request body is not read: JSON nested too deeply") from None
    except UnicodeEncodeError:
        raise BadRequest(400, "The request body is not read: it has a lone surrogate") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        what = error.msg.removesuffix(" at")
        raise BadRequest(400, f"The request body is not JSON: {what} at {place}") from None
    except ValueError as error:
        raise BadRequest(400, f"The request body is not JSON: {error}") from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _described(messages: Any, value: Any) -> str:
    """The first of marshmallow's messages with the place it is about: `references.0.version: expected …`."""
    path: list[str] = []
    while isinstance(messages, Mapping):
        key, messages = next(iter(messages.items()))
        path.append(str(key))
        value = _child(value, key)
    sentence = str(messages[0]) if isinstance(messages, list) and messages else str(messages)
    found = "" if value is None else f" Found {_json_type(value)}."
    return f"{'.'.join(path)}: {sentence}{found}"


def _child(value: Any, key: Any) -> Any:
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return value[key]
    return value.get(key) if isinstance(value, dict) else None


def _json_type(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def metadata_entity(metadata: Metadata | None) -> dict[str, Any]:
    if metadata is None:
        return {}
    entity = {
        "tags": {path: list(names) for path, names in metadata.tags},
        "properties": dict(metadata.properties),
        "sensitive": list(metadata.sensitive),
    }
    return {key: value for key, value in entity.items() if value}


def content_entity(schema: StoredSchema) -> dict[str, Any]:
    """The keys that every view of a schema shares, in the order in which the Confluent registry writes them."""
    content = schema.content
    return {
        "guid": content.guid,
        "schemaType": SCHEMA_TYPE,
        "references": [
            {"name": item.name, "subject": item.subject, "version": item.version} for item in content.references
        ],
        "metadata": metadata_entity(content.metadata),
        "schema": content.text,
    }


def version_entity(stored: StoredVersion) -> dict[str, Any]:
    """Schema: a schema as a version of a subject."""
    return {
        "subject": stored.subject,
        "version": stored.version,
        "id": stored.schema.schema_id,
        **content_entity(stored.schema),
        "ts": stored.created_ms,
        "deleted": stored.deleted,
    }
