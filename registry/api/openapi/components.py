"""JSON schemas of bodies: requests from the marshmallow payloads, responses from the tables of entities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from marshmallow import Schema, fields, validate

from headrace.registry.api import entities, payloads
from headrace.registry.domain import SCHEMA_ID_MAX, SCHEMA_TYPE, VERSION_MAX, Mode

Json = dict[str, Any]


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _object(required: tuple[str, ...] = (), /, **properties: Json) -> Json:
    found: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


TEXT: Final[Json] = {"type": "string"}
FLAG: Final[Json] = {"type": "boolean"}
INTEGER: Final[Json] = {"type": "integer", "format": "int32"}
VERSION_NUMBER: Final[Json] = {**INTEGER, "minimum": 1}
ID: Final[Json] = {**INTEGER, "minimum": 1, "maximum": SCHEMA_ID_MAX}

NAME: Final[Json] = {"type": "string", "minLength": 1, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}
SUBJECT: Final[Json] = {**NAME, "examples": ["orders-value", ":.eu:orders-value"]}

ENTITY_KEYS: Final[Mapping[str, Json]] = {
    "aliases": _list(TEXT),
    "deleted": FLAG,
    "guid": {"type": "string", "format": "uuid"},
    "id": ID,
    "maxId": {**INTEGER, "minimum": 0},
    "metadata": ref("Metadata"),
    "references": _list(ref("Reference")),
    "ruleSet": ref("RuleSet"),
    "schema": {"type": "string", "description": "the Avro schema as JSON text"},
    "schemaTags": _list(ref("Tags")),
    "schemaType": {"type": "string", "const": SCHEMA_TYPE},
    "subject": TEXT,
    "ts": {"type": "integer", "format": "int64", "description": "time of registration, milliseconds since 1970"},
    "version": VERSION_NUMBER,
}
"""JSON schema of each key that a body of `entities` for a schema or version may have."""


def _entity(keys: Mapping[str, Any], required: tuple[str, ...]) -> Json:
    return _object(required, **{key: ENTITY_KEYS[key] for key in keys})


BODIES: Final[Mapping[str, type[Schema]]] = {
    "Reference": payloads.ReferencePayload,
    "Metadata": payloads.MetadataPayload,
    "Rule": payloads.RulePayload,
    "RuleSet": payloads.RuleSetPayload,
    "TaggedEntity": payloads.EntityPayload,
    "Tags": payloads.TagsPayload,
    "SchemaRequest": payloads.SchemaPayload,
    "TagChange": payloads.TagChangePayload,
    "ConfigChange": payloads.ConfigPayload,
    "ModeChange": payloads.ModePayload,
    "ReplicationRequest": payloads.ReplicationPayload,
}
"""Request bodies and objects in them, and the payload class that parses each."""

_FIELD_TYPES: Final[tuple[tuple[type[fields.Field[Any]], Json], ...]] = (
    (fields.Boolean, FLAG),
    (fields.Integer, INTEGER),
    (fields.String, TEXT),
)


EXAMPLES: Final[Mapping[str, list[Any]]] = {
    "SchemaRequest": [
        {"schema": '"string"'},
        {
            "schema": '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"}]}',
            "metadata": {"properties": {"owner": "shop"}},
        },
    ],
    "TagChange": [
        {"tagsToAdd": [{"schemaEntity": {"entityPath": "shop.Order", "entityType": "sr_record"}, "tags": ["PII"]}]}
    ],
    "ConfigChange": [{"compatibility": "FULL_TRANSITIVE"}],
    "ModeChange": [{"mode": "READONLY"}],
    "ReplicationRequest": [{"seen": "", "subjects": ["orders-value"], "ids": {".": [1, 2]}}],
}
"""Example request bodies for the document."""


def _body(payload: type[Schema]) -> Json:
    """The JSON schema of the request body that the marshmallow class `payload` parses. It allows other keys, because
    the server ignores them."""
    found = payload()
    properties = {field.data_key or name: _field(field) for name, field in found.fields.items()}
    required = [field.data_key or name for name, field in found.fields.items() if field.required]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _field(field: Any) -> Json:
    if isinstance(field, fields.Nested):
        found = ref(next(name for name, payload in BODIES.items() if payload is type(field.schema)))
        return {"anyOf": [found, {"type": "null"}]} if field.allow_none else found
    if isinstance(field, fields.List):
        found = _list(_field(field.inner))
    elif isinstance(field, fields.Dict):
        found = {"type": "object", "additionalProperties": _field(field.value_field)}
    else:
        found = dict(next(schema for kind, schema in _FIELD_TYPES if isinstance(field, kind)))
    one_of = next((check for check in _checks(field) if isinstance(check, validate.OneOf)), None)
    if one_of is not None:
        found["enum"] = [str(choice) for choice in one_of.choices]
    if field.allow_none:
        found["type"] = [found["type"], "null"]
        if "enum" in found:
            found["enum"].append(None)
    return found


def _checks(field: Any) -> list[Any]:
    return list(field.validators)


CONFIG: Final = _body(payloads.ConfigPayload)["properties"]

SCHEMAS: Final[Mapping[str, Json]] = {
    "Error": _object(("error_code", "message"), error_code={"type": "integer"}, message=TEXT),
    "Empty": _object(),
    "Status": _object(("status",), status=TEXT, audit_lines_lost=INTEGER),
    "Document": {"type": "object"},
    "ReplicationResponse": {"type": "object", "description": "Releases that change it increase its `format`."},
    "ClusterId": {"type": "object"},
    "ServerVersion": _object(("version", "commitId"), version=TEXT, commitId=TEXT),
    "Deployment": {"type": "object"},
    "Names": _list(TEXT),
    "Ids": _list(ID),
    "Versions": _list(INTEGER),
    "VersionNumber": VERSION_NUMBER,
    "SchemaText": {"description": "the Avro schema as JSON"},
    "Version": _entity(entities.VERSION_KEYS, ("version", "id", "schema")),
    "ListedVersions": _list(ref("ListedVersion")),
    "ListedVersion": _entity(entities.LISTED_KEYS, ("version", "id", "schema")),
    "Schema": _entity(entities.SCHEMA_KEYS, ("schema",)),
    "Registered": _entity(entities.REGISTERED_KEYS, ("id",)),
    "SubjectVersion": _object(("subject", "version"), subject=TEXT, version=VERSION_NUMBER),
    "SubjectVersions": _list(ref("SubjectVersion")),
    "ContextId": _object(("context", "id"), context=TEXT, id=ID),
    "ContextIds": _list(ref("ContextId")),
    "Compatibility": _object(("is_compatible",), is_compatible=FLAG, messages=_list(TEXT)),
    "Config": _object(
        **{"compatibilityLevel" if key == "compatibility" else key: value for key, value in CONFIG.items()}
    ),
    "Mode": _object(mode={"type": "string", "enum": [mode.value for mode in Mode]}),
    **{name: _body(payload) for name, payload in BODIES.items()},
}
"""JSON schemas of responses and request bodies, by the names that `operations` uses."""

PARAMETER_KINDS: Final[Mapping[str, Json]] = {
    "flag": {"type": "boolean", "default": False},
    "integer": INTEGER,
    "text": TEXT,
    "texts": _list(TEXT),
}

PATH_PARAMETERS: Final[Mapping[str, tuple[Json, str]]] = {
    "subject": (SUBJECT, "a subject, percent-encoded; `:.context:name` outside of the default context"),
    "version": (
        {"anyOf": [{**INTEGER, "minimum": 1, "maximum": VERSION_MAX}, {"enum": ["latest", "-1"]}]},
        "a number, or `latest`",
    ),
    "id": (ID, "the id of a schema"),
    "guid": ({"type": "string", "format": "uuid"}, "the guid of a schema"),
    "context": (
        {**NAME, "pattern": r"^[^:\u0000-\u001f\u007f-\u009f]+$", "examples": [".eu"]},
        "a context, with or without its dot",
    ),
}
"""JSON schema and description of each path parameter."""
