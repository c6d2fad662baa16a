"""The file format of commits, checkpoints, cursors and index files. Such a file is called a document: a body, its
format, and a checksum.

    {"body": …, "format": 1, "required_fields": ["…"], "sha256": "…"}

A later release may add fields to a body. An older release ignores unknown fields. But if it would misread the rest
without a field, the writer lists that field in `required_fields`, and the older release refuses the document. A missing
field has its default; one without a default is an error. The checksum is the SHA-256 of the canonical document without
the checksum.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.loader.commit.json_values import canonical, dataclasses_in, from_json, to_json

T = TypeVar("T")

FORMAT = 1
"""The format that this release writes. This release reads every document that needs no unknown field."""

BODY, FORMAT_KEY, REQUIRED_FIELDS, CHECKSUM = "body", "format", "required_fields", "sha256"
END_BYTES = 128
"""Bytes at the end of a document that contain its checksum, the last key, and the line break after it."""

CRITICAL = {"critical": True}
"""Metadata of a dataclass field that is listed in `required_fields` if its value is not the default."""


class UnknownFields(ValueError):
    """A document (a commit, checkpoint, cursor or index file) needs a field that this release does not know."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"its fields {', '.join(names)} are unknown to this release")
        self.names = names


@dataclass(frozen=True, slots=True)
class Document(Generic[T]):
    """A document (a commit, checkpoint, cursor or index file) as it was read. `value` is its body. `sha256` is its
    checksum, which identifies it in other documents. `format` is the number of the file format. `length` is the size of
    the file in bytes."""

    value: T
    sha256: str
    format: int
    length: int


def write_document(value: Any) -> bytes:
    """Returns the bytes of a document (a commit, checkpoint, cursor or index file): the dataclass `value` as the body,
    with a format and a checksum."""
    required_fields = (
        sorted(set(_critical_fields(value))) if _may_have_critical_fields(typing.cast(Any, type(value))) else []
    )
    document = {BODY: to_json(value), FORMAT_KEY: FORMAT, REQUIRED_FIELDS: required_fields}
    return canonical({**document, CHECKSUM: _sha256(document)}) + b"\n"


def read_document(content: bytes, wanted: type[T]) -> Document[T]:
    """Reads a document (a commit, checkpoint, cursor or index file) that `write_document` of this or any other release
    wrote. Its body is of the dataclass `wanted`.

    Raises:
        UnknownFields: only a newer release can read it.
        ValueError: the content is no document with such a body, or its checksum is wrong; the message has the reason.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ValueError(f"not JSON ({len(content)} bytes)") from error
    if not isinstance(document, dict) or not {BODY, FORMAT_KEY, REQUIRED_FIELDS, CHECKSUM} <= document.keys():
        raise ValueError("not a document with a body, a format and a checksum")
    checksum = document.pop(CHECKSUM)
    if not has_stated_checksum(content) and checksum != _sha256(document):
        raise ValueError("the checksum does not match the content")
    required_fields = from_json(document[REQUIRED_FIELDS], tuple[str, ...], f"/{REQUIRED_FIELDS}")
    unknown = tuple(sorted(set(required_fields) - _field_names(typing.cast(Any, wanted))))
    if unknown:
        raise UnknownFields(unknown)
    number = from_json(document[FORMAT_KEY], int, f"/{FORMAT_KEY}")
    return Document(from_json(document[BODY], wanted), checksum, number, len(content))


def stated_sha256(content: bytes) -> str:
    """Returns the checksum stated at the end of `content`, the bytes of a document (a file written by
    `write_document`), without parsing or verifying the document."""
    return content[-END_BYTES:].rstrip()[-66:-2].decode("ascii", "replace")


def has_stated_checksum(content: bytes) -> bool:
    """Whether the bytes of a document have the checksum stated at their end, without parsing them: the checksum is the
    last key of a canonical document. False also for a document that is not in canonical form."""
    stated = stated_sha256(content)
    end = f',"{CHECKSUM}":"{stated}"}}'.encode()
    tail = content[-END_BYTES:]
    length = len(content) - len(tail) + len(tail.rstrip())
    if not content.endswith(end, 0, length):
        return False
    computed = hashlib.sha256(memoryview(content)[: length - len(end)])  # a copy of a commit would take megabytes
    computed.update(b"}")
    return computed.hexdigest() == stated


@functools.cache
def _field_names(kind: Any) -> frozenset[str]:
    return frozenset(field.name for inner in dataclasses_in(kind) for field in dataclasses.fields(inner))


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


@functools.cache
def _may_have_critical_fields(kind: Any) -> bool:
    """Whether values of the type `kind` may contain, at any depth, fields that an older release must not ignore (fields
    with the metadata `CRITICAL`)."""
    return any(field.metadata.get("critical") for inner in dataclasses_in(kind) for field in dataclasses.fields(inner))


@functools.cache
def _examined_fields(kind: Any) -> tuple[tuple[dataclasses.Field[Any], bool], ...]:
    """Returns the fields of the dataclass `kind` that `write_document` examines, each with a flag. It searches for
    fields with the metadata `CRITICAL`, which an older release must not ignore.

    A field is returned if it has this metadata itself, or if its values may contain dataclasses with such a field. The
    flag is True in the second case: the search then continues in the field's value.
    """
    hints = typing.get_type_hints(kind)
    fields = [(field, _may_have_critical_fields(hints[field.name])) for field in dataclasses.fields(kind)]
    return tuple((field, is_nested) for field, is_nested in fields if is_nested or field.metadata.get("critical"))


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _critical_fields(value: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        for field, is_nested in _examined_fields(typing.cast(Any, type(value))):
            item = getattr(value, field.name)
            if field.metadata.get("critical") and item != _default(field):
                yield field.name
            if is_nested:
                yield from _critical_fields(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _critical_fields(item)
    elif isinstance(value, tuple | frozenset):
        for item in value:
            yield from _critical_fields(item)
