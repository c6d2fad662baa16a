"""Converts frozen dataclasses to canonical JSON and back, strictly.

Reading raises `ValueError` for a value of the wrong type, and for a missing key unless the field has a default (later
releases add such fields). Unknown keys are ignored here; `document` refuses unknown keys that matter. Canonical JSON
has one spelling per value (sorted keys, no spaces, ASCII), so equal values are equal bytes and can be compared by
checksum.

Supported: bool, int, str, StrEnum, dataclasses, NamedTuples (as lists), `X | None`, `tuple[X, ...]`, `tuple[X, Y]`,
`frozenset[X]`, `Mapping[str, X]` and `Mapping[int, X]`. Floats are excluded, because they have several spellings.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


def canonical(value: Any) -> bytes:
    """Returns a JSON value as canonical bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def to_json(value: Any) -> Any:
    """Converts a dataclass, or any value of the types that the module's docstring lists, to a JSON value."""
    kind = type(value)
    if kind is int or kind is str or kind is bool or value is None:
        return value
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if dataclasses.is_dataclass(kind):
        return {name: to_json(getattr(value, name)) for name in _field_types(kind)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return [to_json(item) for item in sorted(value)]
    if isinstance(value, StrEnum):
        return value.value
    raise TypeError(f"{kind.__name__} has no canonical JSON")


def from_json(value: Any, wanted: type[T], where: str = "") -> T:
    """Converts a JSON value to the type `wanted`.

    Args:
        where: the JSON pointer of the value in its document, for the error message.

    Raises:
        ValueError: the value does not have this type; the message begins with the JSON pointer of the part that does
            not fit.
    """
    try:
        return typing.cast(T, _reader(typing.cast(Any, wanted))(value))
    except _TypeMismatch as mismatch:
        pointer = where + "".join(f"/{step}" for step in reversed(mismatch.path))
        raise ValueError(f"{pointer or '/'}: {mismatch}") from mismatch


Reader = Callable[[Any], Any]


class _TypeMismatch(ValueError):
    """Raised for a value that does not fit its type. `path` is its JSON pointer, collected while the error passes the
    readers of the enclosing values."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


@functools.cache
def _reader(wanted: Any) -> Reader:
    """Returns the function that converts JSON values to the type `wanted`. Cached per type, because a commit may hold
    thousands of values."""
    origin = typing.get_origin(wanted)
    arguments = typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return _optional_reader(next(choice for choice in arguments if choice is not type(None)))
    if origin is tuple:
        return _items_reader(arguments[0], tuple) if arguments[1:] == (...,) else _fixed_reader(arguments, tuple)
    if origin is frozenset:
        return _items_reader(arguments[0], frozenset)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(*arguments)
    if dataclasses.is_dataclass(wanted):
        return _dataclass_reader(wanted)
    if isinstance(wanted, type) and issubclass(wanted, tuple):  # a NamedTuple: a list in the order of its fields
        return _fixed_reader(tuple(_field_types(wanted).values()), lambda items: wanted(*items))
    if isinstance(wanted, type) and issubclass(wanted, StrEnum):
        return lambda value: _in_enum(_of_type(value, str), wanted)
    return lambda value: _of_type(value, wanted)


def _optional_reader(inner: Any) -> Reader:
    read = _reader(inner)
    return lambda value: None if value is None else read(value)


def _items_reader(kind: Any, build: Callable[[Any], Any]) -> Reader:
    read = _reader(kind)

    def items(value: Any) -> Any:
        found = []
        for item in _of_type(value, list):
            try:
                found.append(read(item))
            except _TypeMismatch as mismatch:
                mismatch.path.append(str(len(found)))
                raise
        return build(found)

    return items


def _fixed_reader(kinds: Sequence[Any], build: Callable[[Any], Any]) -> Reader:
    reads = tuple(_reader(kind) for kind in kinds)
    scalar_types = tuple(kinds) if all(kind in (int, str, bool) for kind in kinds) else None

    def fixed(value: Any) -> Any:
        if scalar_types is not None and type(value) is list and tuple(map(type, value)) == scalar_types:
            return build(value)
        items = _of_type(value, list)
        if len(items) != len(reads):
            raise _TypeMismatch(f"expected {len(reads)} items, found {len(items)}")
        return build([_at(str(index), read, item) for index, (read, item) in enumerate(zip(reads, items, strict=True))])

    return fixed


def _mapping_reader(key_type: Any, item_type: Any) -> Reader:
    read_key = _integer if key_type is int else str
    read = _reader(item_type)

    def mapping(value: Any) -> Any:
        items, found, key = _of_type(value, dict).items(), {}, ""
        try:
            for key, item in items:
                found[read_key(key)] = read(item)
        except _TypeMismatch as mismatch:
            mismatch.path.append(key)
            raise
        return found

    return mapping


def _dataclass_reader(wanted: Any) -> Reader:
    reads = [(name, kind, _reader(kind)) for name, kind in _field_types(wanted).items()]
    required = {
        field.name
        for field in dataclasses.fields(wanted)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def record(value: Any) -> Any:
        document = _of_type(value, dict)
        if not required <= document.keys():
            raise _TypeMismatch(f"missing {', '.join(sorted(required - document.keys()))}")
        fields, name = {}, ""
        try:
            for name, kind, read in reads:
                if name in document:
                    item = document[name]
                    fields[name] = item if type(item) is kind else read(item)  # without a call for texts and numbers
        except _TypeMismatch as mismatch:
            mismatch.path.append(name)
            raise
        return wanted(**fields)

    return record


def _at(step: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except _TypeMismatch as mismatch:
        mismatch.path.append(step)
        raise


def _in_enum(value: str, wanted: Any) -> Any:
    try:
        return wanted(value)
    except ValueError as error:
        raise _TypeMismatch(str(error)) from error


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise _TypeMismatch(f"expected an integer as the key, found {text!r}") from error


def _of_type(value: Any, wanted: type) -> Any:
    if type(value) is not wanted:
        raise _TypeMismatch(f"expected {wanted.__name__}, found {type(value).__name__}")
    return value


@functools.cache
def _field_types(wanted: type) -> Mapping[str, Any]:
    return typing.get_type_hints(wanted)


@functools.cache
def dataclasses_in(wanted: Any) -> frozenset[type]:
    """Returns the dataclasses that values of the type `wanted` may contain at any depth, and `wanted` if it is a
    dataclass."""
    is_dataclass: bool = dataclasses.is_dataclass(wanted)
    inner = _field_types(wanted).values() if is_dataclass else typing.get_args(wanted)
    found = {kind for argument in inner if argument is not ... for kind in dataclasses_in(argument)}
    return frozenset({*found, wanted} if is_dataclass else found)
