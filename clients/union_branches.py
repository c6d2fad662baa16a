"""Chooses the branch of a union for a value, where fastavro would choose one that changes the value.

fastavro chooses the first branch whose underlying type accepts the value: a float for an integer (2**53 + 1 is read as
2**53), a date for a datetime (a subclass of date in Python), a date for a number or text that is not a date, an array
for bytes, a record for a dict of another record with the same field names. For such unions the branch is named in
advance as a pair (branch name, value), which fastavro accepts. It is a branch in which `find_problem` finds no problem.
A value without such a branch is passed unchanged.

fastavro rejects some valid values: it reads every tuple as such a pair, even one that is meant as a list. They are
rare, so the branches are named for them only after fastavro has rejected them.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Name,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    Type,
    Union,
    branch_name,
)
from headrace.clients.datum import (
    INT_RANGES,
    branches_of_datetimes,
    fits,
    is_narrow,
    is_pair,
    range_of,
)

Choice = Callable[[Any], Any]
"""Function that returns a value in which the branches of unions are named: pairs (branch name, value) replace the
values of unions in which fastavro could choose the wrong branch."""

_FLOATS: Final = frozenset({PrimitiveType.FLOAT, PrimitiveType.DOUBLE})
_CLASSES: Final = (type(None), bool, int, float, str, bytes, datetime.datetime, decimal.Decimal)
"""Classes of values for which fastavro chooses the right branch of a union. `_misencoded_classes` returns the
exceptions for a union."""


class BranchChoice(NamedTuple):
    """How values of a schema are prepared for fastavro. `choose` is a function that returns the value with pairs
    (branch name, value) for its unions. If `is_required`, every value must be passed to it, else only values that
    fastavro has rejected."""

    choose: Choice
    is_required: bool


def compile_choice(schema: Schema) -> BranchChoice:
    compiler = _Compiler(schema)
    return BranchChoice(compiler.choice(schema.root), compiler.has_misencoded)


def _identity(value: Any) -> Any:
    return value


class _Compiler:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._records: dict[Name, Choice] = {}
        self.has_misencoded = False

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
        return _identity

    def _record(self, node: Record) -> Choice:
        if node.name in self._records:
            return lambda value: self._records[node.name](value)
        self._records[node.name] = _identity  # for a recursive record, until it is compiled
        choices = [(field.name, self.choice(field.type)) for field in node.fields]
        fields = [(name, choose_field) for name, choose_field in choices if choose_field is not _identity]

        def choose(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            chosen = dict(value)
            for name, choose_field in fields:
                if name in chosen:
                    chosen[name] = choose_field(chosen[name])
            return chosen

        self._records[node.name] = choose
        return choose

    def _union(self, node: Union) -> Choice:
        branches = [self._schema.resolve(branch) for branch in node.branches]
        choices = {branch_name(branch): self.choice(branch) for branch in branches}
        ranked = sorted(branches, key=_rank)
        of_datetimes = branches_of_datetimes(ranked)
        primitives = [branch for branch in branches if isinstance(branch, Primitive)]
        ranges = [(branch.type.value, range_of(branch)) for branch in primitives if branch.type in INT_RANGES]
        misencoded = _misencoded_classes(branches)
        dict_branches = [branch for branch in branches if isinstance(branch, (Record, Map))]
        if self._are_ambiguous(dict_branches):
            misencoded.add(dict)
        self.has_misencoded |= bool(misencoded)

        def choose_branch(value: Any) -> Any:
            if is_pair(value) and value[0] in choices:
                return value[0], choices[value[0]](value[1])
            ranked_here = of_datetimes if isinstance(value, datetime.datetime) else ranked
            found = next((branch for branch in ranked_here if fits(self._schema, branch, value)), None)
            if found is None:
                return value
            name = branch_name(found)
            return name, choices[name](value)

        def choose_int_branch(value: int) -> Any:
            for name, (least, most) in ranges:
                if least <= value <= most:
                    return name, value
            return choose_branch(value)

        by_class: dict[type, Choice] = {kind: _identity for kind in _CLASSES if kind not in misencoded}
        by_class.setdefault(int, choose_int_branch)
        # Named, because fastavro chooses these branches by their content and does not accept pairs of most types.
        if "array" in choices:
            by_class[list] = _named("array", choices["array"])
        if len(dict_branches) == 1:
            name = branch_name(dict_branches[0])
            by_class[dict] = _named(name, choices[name])
        return lambda value: by_class.get(value.__class__, choose_branch)(value)

    def _are_ambiguous(self, dict_branches: Sequence[Record | Map]) -> bool:
        """Returns whether a dict may fit several branches of a union that have different types for the same field name.

        Args:
            dict_branches: the records and maps among the branches.
        """
        types: dict[str, Type] = {}
        for branch in dict_branches:
            if isinstance(branch, Map):
                if len(dict_branches) > 1:  # a map has any names
                    return True
                continue
            for field in branch.fields:
                field_type = self._schema.resolve(field.type)
                if types.setdefault(field.name, field_type) != field_type:
                    return True
        return False


def _named(name: str, choice: Choice) -> Choice:
    return lambda value: (name, choice(value))


def _rank(branch: Type) -> int:
    """Sort key for the order in which branches are tried: integers first, float last, because a double represents more
    numbers exactly."""
    kind = branch.type if isinstance(branch, Primitive) else PrimitiveType.NULL
    return 0 if kind in INT_RANGES else 2 if kind is PrimitiveType.FLOAT else 1


def _misencoded_classes(branches: Sequence[Type]) -> set[type]:
    """Returns the classes of values for which fastavro may choose a wrong branch of a union, one that changes the
    value.

    Args:
        branches: the branches of the union.
    """
    primitives = [branch for branch in branches if isinstance(branch, Primitive)]
    narrow = {branch.type for branch in primitives if is_narrow(branch)}
    kinds = [branch.type for branch in primitives]
    integers = [kind for kind in kinds if kind in INT_RANGES]
    floats = [kind for kind in kinds if kind in _FLOATS]
    is_enum = any(isinstance(branch, Enum) for branch in branches)
    is_date = any(branch.logical is not None and branch.logical.name == "date" for branch in primitives)
    decimals = [
        branch
        for branch in branches
        if isinstance(branch, (Primitive, Fixed)) and branch.logical is not None and branch.logical.name == "decimal"
    ]
    found: set[type] = set()
    if (integers and floats) or (len(integers) > 1 and narrow):
        found.add(int)
    if (PrimitiveType.STRING in narrow and is_enum) or (is_date and (PrimitiveType.STRING in kinds or is_enum)):
        found.add(str)  # fastavro parses the ISO form of a date
    if len(branches_of_datetimes(branches)) < len(branches):
        found.add(datetime.datetime)
    if any(isinstance(branch, Array) for branch in branches) and (
        PrimitiveType.BYTES in kinds or any(isinstance(branch, Fixed) for branch in branches)
    ):
        found.add(bytes)
    if len(decimals) > 1:
        found.add(decimal.Decimal)
    return found


def _array(item: Choice) -> Choice:
    if item is _identity:
        return _identity
    return lambda value: [item(each) for each in value] if isinstance(value, Sequence) else value


def _map(item: Choice) -> Choice:
    if item is _identity:
        return _identity
    return lambda value: {key: item(each) for key, each in value.items()} if isinstance(value, Mapping) else value
