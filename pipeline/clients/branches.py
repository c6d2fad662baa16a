"""Which branch of a union a value is for, where fastavro would take one that it does not survive.

fastavro takes the first branch that a value passes for: a float for a whole number, so that 2**53 + 1 arrives as 2**53,
and a date for a time, since Python's times are dates. There the branch is said beforehand, as the pair of its name and
the value that fastavro knows. What is no such value is handed on as it is.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.avro_schema import Array, Map, Name, Primitive, PrimitiveType, Record, Schema, Type, Union
from headrace.pipeline.clients.datum import INT_RANGES

Choice = Callable[[Any], Any]
"""The value, with pairs in the place of what is in such unions."""

_FRACTIONS: Final = frozenset({PrimitiveType.FLOAT, PrimitiveType.DOUBLE})


def compile_choice(schema: Schema) -> Choice | None:
    """The choice of a schema, or None where it has no such union."""
    compiler = _Compiler(schema)
    choice = compiler.choice(schema.root)
    return choice if compiler.has_found else None


def _same(value: Any) -> Any:
    return value


class _Compiler:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._records: dict[Name, Choice] = {}
        self.has_found = False

    def choice(self, node: Type) -> Choice:
        node = self._schema.resolve(node)
        if isinstance(node, Record):
            return self._record(node)
        if isinstance(node, Array):
            return _array(self.choice(node.items))
        if isinstance(node, Map):
            return _map(self.choice(node.values))
        if isinstance(node, Union):
            return self._union(node)
        return _same

    def _record(self, node: Record) -> Choice:
        if node.name in self._records:
            return lambda value: self._records[node.name](value)
        self._records[node.name] = _same  # of one inside itself, until it is made
        fields = [(field.name, self.choice(field.type)) for field in node.fields]

        def choose(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            chosen = dict(value)
            for name, inner in fields:
                if name in chosen:
                    chosen[name] = inner(chosen[name])
            return chosen

        self._records[node.name] = choose
        return choose

    def _union(self, node: Union) -> Choice:
        branches = [self._schema.resolve(branch) for branch in node.branches]
        plain = [branch for branch in branches if isinstance(branch, Primitive)]
        whole = [branch.type for branch in plain if branch.type in INT_RANGES]
        is_lossy = bool(whole) and any(branch.type in _FRACTIONS for branch in plain)
        times = {branch.type for branch in plain if branch.logical and "timestamp" in branch.logical.name}
        hides_times = bool(times) and any(branch.logical and branch.logical.name == "date" for branch in plain)
        self.has_found |= is_lossy or hides_times
        of_records = [self.choice(branch) for branch in branches if isinstance(branch, (Record, Map))]
        of_lists = [self.choice(branch) for branch in branches if isinstance(branch, Array)]

        def choose(value: Any) -> Any:
            if is_lossy and value.__class__ is int:
                for kind in whole:
                    least, most = INT_RANGES[kind]
                    if least <= value <= most:
                        return kind.value, value
            if hides_times and isinstance(value, datetime.datetime):
                return PrimitiveType.LONG.value, value
            # Of several that it may be, fastavro takes the one with most of its fields.
            if isinstance(value, Mapping) and len(of_records) == 1:
                return of_records[0](value)
            if isinstance(value, list) and of_lists:
                return of_lists[0](value)
            return value

        return choose


def _array(item: Choice) -> Choice:
    if item is _same:
        return _same
    return lambda value: [item(each) for each in value] if isinstance(value, Sequence) else value


def _map(item: Choice) -> Choice:
    if item is _same:
        return _same
    return lambda value: {key: item(each) for key, each in value.items()} if isinstance(value, Mapping) else value
