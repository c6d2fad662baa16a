"""Request bodies: inflated, parsed as strict JSON, validated by marshmallow and converted to the values of
`registry.domain`."""

from __future__ import annotations

import codecs
import encodings
import json
import pkgutil
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from encodings.aliases import aliases
from functools import cache
from typing import Any, NoReturn, TypeVar

from flask import request
from marshmallow import EXCLUDE, Schema, ValidationError, fields, post_load, pre_load, validate
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from headrace.registry.api.access import require_permissions_in
from headrace.registry.api.problems import BadRequest
from headrace.registry.api.responses import PRODUCED
from headrace.registry.api.services import services
from headrace.registry.domain import (
    SCHEMA_TYPE,
    VERSION_MAX,
    ConfigChange,
    ConfigEntry,
    Metadata,
    SchemaReference,
    SchemaRequest,
    TagChange,
)
from headrace.registry.names import is_storable
from headrace.registry.replication.feed import ReplicationRequest
from headrace.registry.rules import RuleKind, RuleMode, RuleSet
from headrace.registry.tags import EntityKind, TaggedEntity

CONSUMED = frozenset({name for name, _ in PRODUCED} | {"application/octet-stream", ""})
"""Content types of requests. JAX-RS assumes octet-stream if the header is missing."""

NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
"""Text codecs of Python that are not charsets. Some take quadratic time."""

CHARSETS = frozenset({*aliases, *(module.name for module in pkgutil.iter_modules(encodings.__path__))})
"""Names of existing codecs, as `encodings` spells them. It would cache failed lookups of other names forever."""

GZIP = frozenset({"gzip", "x-gzip"})
"""Accepted compressions of bodies."""

_LIMIT = "the limit registry.request_bytes_max"

VALUES_MAX = 20_000
"""Limit of the JSON values in a body, counted by their opening brackets and commas. marshmallow may take 40
microseconds for each value; 1,000 references have 4,001."""
_TOO_MANY_VALUES = re.compile(
    r"""(?:(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^",\[{]++)*+[,\[{])""" + f"{{{VALUES_MAX + 1}}}", re.DOTALL
)
"""Matches more than `VALUES_MAX` opening brackets and commas outside of texts. The quantifiers are possessive, so one
pass suffices for any body."""

_INT32 = validate.Range(-(2**31), VERSION_MAX, error="Expected a 32-bit number.")
_STORABLE = validate.And(lambda text: _require_storable(text))


def _require_storable(text: str) -> bool:
    if not is_storable(text):
        raise ValidationError(r"Expected text without control characters and unpaired surrogates (\ud800 to \udfff).")
    return True


class _Integer(fields.Integer):
    """A whole number, also as text: `1`, `1.0` or `"1"`. Fractions are errors."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **more: Any) -> int:
        if isinstance(value, float) and not value.is_integer():
            raise self.make_error("invalid", input=value)
        number = super()._deserialize(value, attr, data, **more)
        assert isinstance(number, int)
        return number


class _Flag(fields.Boolean):
    """A boolean, also as text or number: `true`, `"true"` or `1`."""

    def __init__(self, **more: Any) -> None:
        # In Python 1 equals True.
        super().__init__(truthy={"true", "True", "TRUE", 1}, falsy={"false", "False", "FALSE", 0}, **more)


class _Payload(Schema):
    class Meta:
        unknown = EXCLUDE  # clients of newer releases send additional keys


@dataclass(frozen=True, slots=True)
class IncompleteReference:
    """A reference to a schema that lacks a key. It makes the schema invalid (42201), as in the Confluent registry."""

    name: str | None = None
    subject: str | None = None
    version: int | None = None

    def __str__(self) -> str:
        name, subject = ("null" if value is None else f"'{value}'" for value in (self.name, self.subject))
        return f"{{name={name}, subject={subject}, version={'null' if self.version is None else self.version}}}"


class ReferencePayload(_Payload):
    name = fields.String(required=True, validate=_STORABLE)
    subject = fields.String(required=True, validate=_STORABLE)
    version = _Integer(required=True, validate=_INT32)

    @pre_load
    def drop_nulls(self, data: Any, **_: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> SchemaReference | IncompleteReference:
        return SchemaReference(**data) if len(data) == len(self.fields) else IncompleteReference(**data)


class _Text(fields.String):
    """A text. Numbers and booleans are converted, as in other implementations of the API."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **more: Any) -> str:
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, int | float):
            value = json.dumps(value)
        text: str = super()._deserialize(value, attr, data, **more)
        return text


class MetadataPayload(_Payload):
    properties = fields.Dict(keys=fields.String(), values=_Text(), allow_none=True)
    tags = fields.Dict(keys=fields.String(), values=fields.List(fields.String()), allow_none=True)
    sensitive = fields.List(fields.String(), allow_none=True)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> Metadata:
        return Metadata.of(**data)


def _optional_text(**more: Any) -> fields.String:
    return fields.String(load_default=None, allow_none=True, **more)


class RulePayload(_Payload):
    """The JSON object of one rule in a rule set. `RuleSet.of` converts it to a `registry.rules.Rule`."""

    name = _optional_text()
    doc = _optional_text()
    kind = _optional_text(validate=validate.OneOf(tuple(RuleKind)))
    mode = _optional_text(validate=validate.OneOf(tuple(RuleMode)))
    type = _optional_text()
    tags = fields.List(fields.String(), allow_none=True)
    params = fields.Dict(keys=fields.String(), values=_Text(), allow_none=True)
    expr = _optional_text()
    onSuccess = _optional_text()  # noqa: N815
    onFailure = _optional_text()  # noqa: N815
    disabled = _Flag(allow_none=True)


def _rules() -> fields.List[Any]:
    return fields.List(fields.Nested(RulePayload), allow_none=True)


class RuleSetPayload(_Payload):
    migrationRules = _rules()  # noqa: N815
    domainRules = _rules()  # noqa: N815
    encodingRules = _rules()  # noqa: N815
    enableAt = _optional_text()  # noqa: N815

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> RuleSet:
        return RuleSet.of(data)


class EntityPayload(_Payload):
    path = fields.String(required=True, data_key="entityPath")
    kind = fields.String(required=True, data_key="entityType", validate=validate.OneOf(tuple(EntityKind)))


class TagsPayload(_Payload):
    """Confluent's SchemaTags: the tags of one record or field."""

    entity = fields.Nested(EntityPayload, required=True, data_key="schemaEntity")
    tags = fields.List(fields.String(validate=_STORABLE), required=True)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> TaggedEntity:
        entity = data["entity"]
        return TaggedEntity(entity["path"], EntityKind(entity["kind"]), tuple(data["tags"]))


def _tags(key: str) -> fields.List[TaggedEntity]:
    return fields.List(fields.Nested(TagsPayload), data_key=key, load_default=None, allow_none=True)


class SchemaPayload(_Payload):
    """The body of register, lookup and compatibility requests."""

    text = fields.String(data_key="schema", load_default=None, allow_none=True)
    schema_type = fields.String(data_key="schemaType", load_default=None, allow_none=True)
    references = fields.List(fields.Nested(ReferencePayload(partial=True)), load_default=None, allow_none=True)
    metadata = fields.Nested(MetadataPayload, load_default=None, allow_none=True)
    version = _Integer(load_default=None, allow_none=True, validate=_INT32)
    schema_id = _Integer(data_key="id", load_default=None, allow_none=True, validate=_INT32)
    rule_set = fields.Nested(RuleSetPayload, data_key="ruleSet", load_default=None, allow_none=True)
    tags_to_add = _tags("schemaTagsToAdd")
    tags_to_remove = _tags("schemaTagsToRemove")
    propagates_tags = _Flag(data_key="propagateSchemaTags", load_default=None, allow_none=True)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> SchemaRequest:
        data["schema_type"] = data["schema_type"] or SCHEMA_TYPE
        for key in ("references", "tags_to_add", "tags_to_remove"):
            data[key] = tuple(data[key] or ())
        incomplete = [item for item in data["references"] if isinstance(item, IncompleteReference)]
        if incomplete:
            data["references"] = tuple(item for item in data["references"] if isinstance(item, SchemaReference))
            data["invalid_reference"] = str(incomplete[0])
        data["propagates_tags"] = bool(data["propagates_tags"])
        # Clients that do not impose an id may send -1.
        if (data["schema_id"] or 0) < 0:
            data["schema_id"] = None
        return SchemaRequest(**data)


class TagChangePayload(_Payload):
    """The body of a request that registers a copy of a version with other tags, metadata or rules."""

    new_version = _Integer(data_key="newVersion", load_default=None, allow_none=True, validate=_INT32)
    tags_to_add = _tags("tagsToAdd")
    tags_to_remove = _tags("tagsToRemove")
    metadata = fields.Nested(MetadataPayload, load_default=None, allow_none=True)
    rule_set = fields.Nested(RuleSetPayload, data_key="ruleSet", load_default=None, allow_none=True)
    rules_to_merge = fields.Nested(RuleSetPayload, data_key="rulesToMerge", load_default=None, allow_none=True)
    rules_to_remove = fields.List(fields.String(), data_key="rulesToRemove", load_default=None, allow_none=True)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> TagChange:
        for key in ("tags_to_add", "tags_to_remove"):
            data[key] = tuple(data[key] or ())
        if data["rules_to_remove"] is not None:
            data["rules_to_remove"] = tuple(data["rules_to_remove"])
        return TagChange(**data)


class ConfigPayload(_Payload):
    """A change of configuration. Null clears a key; a missing key leaves its value unchanged."""

    compatibility = fields.String(allow_none=True)
    compatibility_policy = fields.String(data_key="compatibilityPolicy", allow_none=True)
    compatibility_group = fields.String(data_key="compatibilityGroup", allow_none=True, validate=_STORABLE)
    normalize = _Flag(allow_none=True)
    validate_fields = _Flag(data_key="validateFields", allow_none=True)
    validate_new_schemas = _Flag(data_key="validateNewSchemas", allow_none=True)
    validate_rules = _Flag(data_key="validateRules", allow_none=True)
    alias = fields.String(allow_none=True, validate=_STORABLE)
    alias_for_deks = fields.String(data_key="aliasForDeks", allow_none=True, validate=_STORABLE)
    default_metadata = fields.Nested(MetadataPayload, data_key="defaultMetadata", allow_none=True)
    override_metadata = fields.Nested(MetadataPayload, data_key="overrideMetadata", allow_none=True)
    default_rule_set = fields.Nested(RuleSetPayload, data_key="defaultRuleSet", allow_none=True)
    override_rule_set = fields.Nested(RuleSetPayload, data_key="overrideRuleSet", allow_none=True)

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> ConfigChange:
        return ConfigChange(ConfigEntry(**data), frozenset(data))


@dataclass(frozen=True, slots=True)
class ModeRequest:
    mode: str | None


class ModePayload(_Payload):
    mode = _optional_text()

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> ModeRequest:
        return ModeRequest(**data)


T = TypeVar("T")


class ReplicationPayload(_Payload):
    seen = fields.String(load_default="")
    subjects = fields.List(fields.String(validate=_STORABLE), load_default=list)
    ids = fields.Dict(
        keys=fields.String(validate=_STORABLE), values=fields.List(_Integer(validate=_INT32)), load_default=dict
    )

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> ReplicationRequest:
        ids = {context: tuple(ids) for context, ids in data["ids"].items()}
        return ReplicationRequest(data["seen"], tuple(data["subjects"]), ids)


def read_body(payload: type[_Payload], kind: type[T]) -> T:
    """Parses the body of the current request.

    Args:
        payload: the marshmallow class that validates the body.
        kind: the class of the result, to which `payload` converts the body.

    Raises:
        BadRequest: the content type, the compression, the JSON or a value in it is invalid.
        RequestEntityTooLarge: the body, its number of JSON values or its schema is too large.
        AccessDenied: the client lacks a permission on a subject that the body names.
        InvalidSubject: the body names an invalid subject.
    """
    if request.mimetype not in CONSUMED:
        raise BadRequest(415, "HTTP 415 Unsupported Media Type")
    value = _read_json(_decoded(_inflated(_body())))
    if value is None:
        raise BadRequest(422, "The request body is empty; expected a JSON object")
    if not isinstance(value, dict):
        raise BadRequest(400, f"The request body is {_json_type(value)}; expected a JSON object")
    try:
        loaded = _reader(payload).load(value)
    except ValidationError as error:
        raise BadRequest(400, _described(error.messages, value)) from error
    assert isinstance(loaded, kind)
    if isinstance(loaded, SchemaRequest):
        _require_readable_size(loaded.text or "")
    require_permissions_in(loaded, services().lookup.resolve_alias)
    return loaded if services().stores_rules else _without_rules(loaded)


def _require_readable_size(text: str) -> None:
    """Rejects a schema of more characters than half of the maximum size of a request body.

    A schema is sent as a JSON string, in which quotation marks and line breaks are escaped and take two bytes. An ASCII
    schema of this size therefore fits into a body. The size is limited because parsing takes seconds per megabyte of
    nested JSON.

    Raises:
        RequestEntityTooLarge: the schema is too long.
    """
    chars_max = (request.max_content_length or 0) // 2
    if len(text) > chars_max:
        raise RequestEntityTooLarge(
            f"the schema has {len(text)} characters; the limit is {chars_max}, half of registry.request_bytes_max"
        )


@cache
def _reader(payload: type[_Payload]) -> _Payload:
    # Cached, because creating a payload takes several times as long as loading with it. Loading does not change it.
    return payload()


def _without_rules(value: T) -> T:
    """Returns a copy of a parsed request body (`SchemaRequest`, `TagChange` or `ConfigChange`) without its rule sets,
    for a registry that does not store rules. A value of any other class is returned unchanged."""
    reduced: Any = value
    if isinstance(value, SchemaRequest):
        reduced = replace(value, rule_set=None)
    elif isinstance(value, TagChange):
        reduced = replace(value, rule_set=None, rules_to_merge=None, rules_to_remove=None)
    elif isinstance(value, ConfigChange):
        values = replace(value.values, default_rule_set=None, override_rule_set=None)
        reduced = ConfigChange(values, value.changed_keys - {"default_rule_set", "override_rule_set"})
    assert isinstance(reduced, type(value))
    return reduced


def _body() -> bytes:
    try:
        body = request.get_data(cache=False)
    except RequestEntityTooLarge:
        raise RequestEntityTooLarge(_too_many_bytes()) from None
    except HTTPException:
        raise
    except Exception as error:
        # The server's stream raises various errors for truncated or badly chunked bodies.
        raise BadRequest(400, f"The request body cannot be read: {error}") from error
    # A body of unknown length is truncated at the limit without an error.
    if request.content_length is None and len(body) >= (request.max_content_length or len(body) + 1):
        raise RequestEntityTooLarge(_too_many_bytes())
    return body


def _too_many_bytes() -> str:
    return f"the body has more than {request.max_content_length} bytes, {_LIMIT}"


def _inflated(body: bytes) -> bytes:
    """Returns the body without its compression. Inflates no more than the maximum size of a request body, and no more
    bodies at once than the front has threads.

    Raises:
        BadRequest: the compression is not gzip (415), or the data is not valid gzip (400).
        RequestEntityTooLarge: the inflated body is too large.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in GZIP:
        raise BadRequest(
            415, f"The request body has the Content-Encoding {encoding!r}; send it as gzip or uncompressed"
        )
    bytes_max = request.max_content_length or 0
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        inflated = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise BadRequest(400, f"The request body is not valid gzip: {error}") from None
    if len(inflated) > bytes_max:
        raise RequestEntityTooLarge(f"the inflated body has more than {bytes_max} bytes, {_LIMIT}")
    if not inflater.eof or inflater.unused_data:
        raise BadRequest(400, "The request body is not valid gzip: it is cut off, or more data follows")
    return inflated


def _decoded(body: bytes) -> str:
    charset = request.mimetype_params.get("charset", "utf-8")
    # Normalized, because `codecs` caches each spelling separately.
    name = encodings.normalize_encoding(charset).lower()
    try:
        if name not in CHARSETS or codecs.lookup(name).name in NO_CHARSETS:
            raise LookupError
        return body.decode(name).removeprefix("\ufeff")
    except (LookupError, ValueError):
        raise BadRequest(400, f"The request body is not {charset} text") from None


def _read_json(text: str) -> Any:
    if not text.strip():
        return None
    if _TOO_MANY_VALUES.match(text):
        raise RequestEntityTooLarge(
            f"the body has more than {VALUES_MAX} JSON values outside of the schema; use fewer references and rules"
        )
    try:
        value = json.loads(text, parse_constant=_no_constant)
        # Lone surrogates, which JSON escapes can produce, cannot be encoded as UTF-8, so they cannot be stored.
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise BadRequest(400, "The request body cannot be read: the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise BadRequest(
            400, r"The request body has an unpaired surrogate (\ud800 to \udfff), which cannot be stored; remove it"
        ) from None
    except json.JSONDecodeError as error:
        location = f"line {error.lineno}, column {error.colno}"
        reason = error.msg.removesuffix(" at")
        raise BadRequest(400, f"The request body is not JSON: {reason} at {location}") from None
    except ValueError as error:
        raise BadRequest(400, f"The request body is not JSON: {error}") from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _described(messages: Any, value: Any) -> str:
    """Returns the first validation error of a body as one line, with the path and the type of the wrong value:
    `references.0.version: expected … Found a string.`

    Args:
        messages: the nested errors of marshmallow.
        value: the JSON value of the body.
    """
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
