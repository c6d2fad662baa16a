"""Frozen dataclasses to canonical JSON and back, strictly.

A value is read only if it says exactly what its type says: a missing key, an unknown key or a value of another type
is a `ValueError`. Canonical means one spelling per value (sorted keys, no spaces, ASCII), so that equal values are
equal bytes and a checksum over them means something.

Supported: bool, int, str, StrEnum, dataclasses, `X | None`, `tuple[X, ...]`, `tuple[X, Y]`, `frozenset[X]`,
`Mapping[str, X]` and `Mapping[int, X]`. Floats are left out on purpose: they have several spellings.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")

CHECKSUM_KEY = "sha256"
BODY_KEY = "body"


def canonical(value: Any) -> bytes:
    """The one spelling of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def checksummed(value: Any) -> bytes:
    """A dataclass as a JSON document that carries the SHA-256 of its own body."""
    body = to_json(value)
    return canonical({BODY_KEY: body, CHECKSUM_KEY: hashlib.sha256(canonical(body)).hexdigest()}) + b"\n"


def from_checksummed(content: bytes, wanted: type[T]) -> T:
    """Reads what `checksummed` wrote.

    Raises:
        ValueError: it is not that, or its checksum is wrong; the message says which.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ValueError(f"not JSON ({len(content)} bytes)") from error
    if not isinstance(document, dict) or set(document) != {BODY_KEY, CHECKSUM_KEY}:
        raise ValueError("not a document with a body and a checksum")
    if hashlib.sha256(canonical(document[BODY_KEY])).hexdigest() != document[CHECKSUM_KEY]:
        raise ValueError("its checksum is wrong")
    return from_json(document[BODY_KEY], wanted)


def to_json(value: Any) -> Any:
    """A dataclass (or any value of the supported types) as a JSON value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return [to_json(item) for item in sorted(value)]
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical JSON")


def from_json(value: Any, wanted: type[T], where: str = "") -> T:
    """Reads a JSON value as the type it should have.

    Raises:
        ValueError: it does not fit; the message says where.
    """
    return typing.cast(T, _read(value, wanted, where))


def _read(value: Any, wanted: Any, where: str) -> Any:
    origin = typing.get_origin(wanted)
    if origin in (typing.Union, types.UnionType):
        inner = [choice for choice in typing.get_args(wanted) if choice is not type(None)]
        return None if value is None else _read(value, inner[0], where)
    if origin is tuple:
        return _read_tuple(value, typing.get_args(wanted), where)
    if origin is frozenset:
        return frozenset(_read_tuple(value, (typing.get_args(wanted)[0], ...), where))
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(value, typing.get_args(wanted), where)
    if dataclasses.is_dataclass(wanted):
        return _read_dataclass(value, wanted, where)
    if isinstance(wanted, type) and issubclass(wanted, StrEnum):
        return wanted(_plain(value, str, where))
    return _plain(value, wanted, where)


def _read_tuple(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    items = _plain(value, list, where)
    if len(arguments) == 2 and arguments[1] is ...:
        return tuple(_read(item, arguments[0], f"{where}/{i}") for i, item in enumerate(items))
    if len(items) != len(arguments):
        raise ValueError(f"{where or '/'}: expected {len(arguments)} items, found {len(items)}")
    return tuple(_read(item, kind, f"{where}/{i}") for i, (item, kind) in enumerate(zip(items, arguments, strict=True)))


def _read_mapping(value: Any, arguments: tuple[Any, ...], where: str) -> dict[Any, Any]:
    key_type, item_type = arguments
    return {
        (int(key) if key_type is int else key): _read(item, item_type, f"{where}/{key}")
        for key, item in _plain(value, dict, where).items()
    }


def _read_dataclass(value: Any, wanted: Any, where: str) -> Any:
    document = _plain(value, dict, where)
    kinds = _field_types(wanted)
    if set(document) != set(kinds):
        odd = sorted(set(document) ^ set(kinds))
        raise ValueError(f"{where or '/'}: missing or unknown {', '.join(odd)}")
    return wanted(**{name: _read(document[name], kind, f"{where}/{name}") for name, kind in kinds.items()})


def _plain(value: Any, wanted: type, where: str) -> Any:
    if type(value) is not wanted:
        raise ValueError(f"{where or '/'}: expected {wanted.__name__}, found {type(value).__name__}")
    return value


@functools.cache
def _field_types(wanted: type) -> Mapping[str, Any]:
    return typing.get_type_hints(wanted)
