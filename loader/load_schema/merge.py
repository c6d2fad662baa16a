"""Converts a writer's type to a load type, and widens a load type so that it also holds a further writer's type.

`shape` creates a load type; `merge` widens one, or returns None if the existing column cannot hold the new type. Both
also return the route for values of the writer's type. `loader.load_schema.columns` handles the columns of a record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from headrace.avro_schema import (
    NO_DEFAULT,
    Array,
    Enum,
    Field,
    Fixed,
    JsonValue,
    LogicalType,
    Map,
    Name,
    Primitive,
    PrimitiveType,
    Props,
    Record,
    Schema,
    Type,
    Union,
)
from headrace.loader.load_schema.stored_route import STRAIGHT, FoldedType, RoutePlace, StoredRoute, stored_route
from headrace.loader.load_schema.types import (
    BRANCH,
    COLUMN_DEPTH_MAX,
    COLUMN_NODES_MAX,
    DECIMAL,
    EXACT,
    FOLD_TYPES_MAX,
    HIVE_PRECISION_MAX,
    JSON,
    KIND,
    MEMBERS,
    NAMES,
    NARROWER,
    NULL,
    SAME_AS_PLAIN,
    UNSCALED,
    WIDENED,
    WIDENINGS,
    ColumnNames,
    branch_names,
    branch_word,
    hive_logical,
    kind_of,
    known_as,
    load_name,
    logical_props,
    nullable,
    prop,
    rejoin,
    split,
    unscaled_props,
    with_prop,
)


class NotAColumn(Exception):
    """Raised for a type that no Hive column can hold; its values become Avro-JSON text. `rule` names the reason."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


class LoadSchemaTooLarge(ValueError):
    """A version cannot be added to the load schema: the version or the result would exceed a limit, which the message
    names."""


@dataclass(frozen=True, slots=True)
class Note:
    """A rule that was applied to a column when a version was folded in: the dotted path of the column, the name of the
    rule, and details."""

    column: str
    rule: str
    detail: str


class TypeFolding(ABC):
    """Folds the types of one writer schema into load types. In its methods, `load` is a load type, `node` a type of the
    writer, `path` the dotted path of the column, and `within` the names of the writer's enclosing records.

    Args:
        writer: the writer schema, which resolves references to its named types.
        taken: full names of types in the load schema; created types are added.
        growing: False only checks whether the existing types can hold the writer's types, and changes nothing.
    """

    def __init__(self, writer: Schema, taken: set[str], *, growing: bool = True) -> None:
        self.writer = writer
        self.taken = taken
        self.growing = growing
        self.notes: list[Note] = []
        self.nodes = 0
        self.shaped = 0
        self._last_numbers: dict[str, int] = {}

    def note(self, column: str, rule: str, detail: str = "") -> None:
        self.notes.append(Note(column, rule, detail))

    def branches(self, node: Type) -> tuple[list[Type], bool]:
        """Returns the non-null branches of the writer's type `node`, and whether it allows null. A type that is no
        union is its only branch."""
        node = self.writer.resolve(node)
        every = [self.writer.resolve(b) for b in node.branches] if isinstance(node, Union) else [node]
        rest = [b for b in every if not (isinstance(b, Primitive) and b.type is PrimitiveType.NULL)]
        return rest, len(rest) < len(every)

    def shape(self, node: Type, path: str, within: frozenset[Name]) -> FoldedType:
        """Returns a new load type for the writer's type `node`, and the route for its values.

        Args:
            path: the dotted path of the column.
            within: names of the writer's records that enclose the type.

        Raises:
            NotAColumn: the type contains itself (it is in `within`), or it is too large or nested too deeply.
            LoadSchemaTooLarge: this type and those created before exceed the limit of a version.
        """
        branches, is_nullable = self.branches(node)
        if not branches:
            return FoldedType(NULL, STRAIGHT)
        if len(branches) == 1:
            inner, route = self.shape_branch(branches[0], path, within)
        else:
            inner, route = self.shape_members(branches, path, within)
        return FoldedType(rejoin(inner, is_nullable), route)

    def shape_branch(self, node: Type, path: str, within: frozenset[Name]) -> FoldedType:
        self.shaped += 1
        if self.shaped > FOLD_TYPES_MAX:
            raise LoadSchemaTooLarge(
                f"the schema has more than {FOLD_TYPES_MAX:,} types, counting each use of a named type"
            )
        self.nodes += 1
        if self.nodes > COLUMN_NODES_MAX:
            raise NotAColumn("too-large")
        if sum(map(path.count, ".[{")) > COLUMN_DEPTH_MAX:
            raise NotAColumn("too-deep")
        if isinstance(node, Primitive):
            return FoldedType(self.shape_primitive(node, path), STRAIGHT)
        if isinstance(node, Enum):
            name, props = self.named(node)
            return FoldedType(Enum(name, node.symbols, props=props), STRAIGHT)
        if isinstance(node, Fixed):
            logical = hive_logical(node)
            fixed = Fixed(self.free_type_name(node.name), node.size, logical, props=logical_props(logical))
            return FoldedType(fixed, STRAIGHT)
        if isinstance(node, Array):
            items, route = self.shape(node.items, f"{path}[]", within)
            return FoldedType(Array(items), route)
        if isinstance(node, Map):
            values, route = self.shape(node.values, f"{path}{{}}", within)
            return FoldedType(Map(values), route)
        assert isinstance(node, Record)
        if node.name in within:
            raise NotAColumn("recursive")
        name, props = self.named(node)
        return FoldedType(*self.fold_record(Record(name, (), props=props), node, path, within, is_new=True))

    def shape_primitive(self, node: Primitive, path: str) -> Primitive:
        logical = node.logical
        if logical is None or logical.name in SAME_AS_PLAIN:
            return Primitive(node.type)
        if logical.name == "decimal":
            assert logical.precision is not None
            if logical.precision > HIVE_PRECISION_MAX:
                self.note(path, "decimal-too-wide", f"precision {logical.precision}")
                return Primitive(node.type, props=unscaled_props(logical))
        return Primitive(node.type, logical, logical_props(logical))

    def shape_members(self, branches: Sequence[Type], path: str, within: frozenset[Name]) -> FoldedType:
        name = self.free_type_name(Name(f"{path.rpartition('.')[2].rstrip('[]{}')}_union", "headrace.load"))
        empty = Record(name, (), props=((KIND, MEMBERS),))
        merged, route = self.merge_members(empty, branches, path, within)
        self.note(path, "union", ", ".join(field.name for field in merged.fields))
        return FoldedType(merged, route)

    def named(self, node: Record | Enum | Fixed) -> tuple[Name, Props]:
        """Returns a name for the load type of `node`, a named type of the writer. No other type of the load schema has
        this name. If it differs from the writer's name, also returns the property `headrace.names` with the writer's
        name, otherwise no property."""
        name = self.free_type_name(node.name)
        return name, () if name.name == node.name.name else ((NAMES, [node.name.name]),)

    def free_type_name(self, wanted: Name) -> Name:
        name = wanted = load_name(wanted)
        # Continues after the last number used, without testing the smaller ones: a type may have many thousand uses.
        n = self._last_numbers.get(wanted.full, 1)
        while name.full in self.taken:
            n += 1
            name = Name(f"{wanted.name}_{n}", wanted.namespace)
        self._last_numbers[wanted.full] = n
        self.taken.add(name.full)
        return name

    def merge(
        self, load: Type, node: Type, path: str, within: frozenset[Name], default: JsonValue = NO_DEFAULT
    ) -> FoldedType | None:
        """Returns the load type, widened so that it also holds values of the writer's type, and the route for these
        values. Returns None if the writer's type needs a separate column.

        Args:
            load: the present load type.
            node: the writer's type.
            path: the dotted path of the column.
            within: names of the writer's records that enclose `node`.
            default: the column's default, `NO_DEFAULT` if it has none. It decides the place of null in a nullable type.

        Raises:
            NotAColumn: no Hive column can hold the writer's type.
            LoadSchemaTooLarge: the version has too many types.
        """
        mark = len(self.notes)
        inner, was_nullable = split(load)
        branches, is_nullable = self.branches(node)
        laid: FoldedType | None
        if kind_of(inner) == JSON:
            laid = FoldedType(inner, STRAIGHT) if self.is_text(node, path, within) else None
        elif not branches:
            laid = FoldedType(inner, STRAIGHT)
            is_nullable = True
        elif kind_of(inner) == MEMBERS:
            assert isinstance(inner, Record)
            laid = FoldedType(*self.merge_members(inner, branches, path, within))
        elif len(branches) > 1:
            laid = None
        elif inner == NULL:
            laid = self.shape_branch(branches[0], path, within)
            is_nullable = True
        else:
            laid = self.merge_branch(inner, branches[0], path, within)
        if laid is None:
            del self.notes[mark:]
            return None
        if is_nullable and not was_nullable:
            self.note(path, "nullable")
        if was_nullable and laid.type == inner:
            return FoldedType(load, laid.route)
        return FoldedType(rejoin(laid.type, was_nullable or is_nullable, default), laid.route)

    def is_text(self, node: Type, path: str, within: frozenset[Name]) -> bool:
        """Whether values of the writer's type `node` are stored in a column as Avro-JSON text, because no Hive type
        fits.

        Args:
            path: the dotted path of the column.
            within: names of the writer's records that enclose the type.
        """
        trial = type(self)(self.writer, set())
        trial.shaped = self.shaped
        try:
            trial.shape(node, path, within)
        except NotAColumn:
            return True
        finally:
            self.shaped = trial.shaped
        return False

    def merge_branch(self, inner: Type, node: Type, path: str, within: frozenset[Name]) -> FoldedType | None:
        if isinstance(node, Primitive | Fixed | Enum):
            merged = self.merge_partless(inner, node, path)
            return None if merged is None else FoldedType(merged, STRAIGHT)
        if isinstance(node, Array):
            if not isinstance(inner, Array):
                return None
            items = self.merge(inner.items, node.items, f"{path}[]", within)
            return None if items is None else FoldedType(Array(items.type), items.route)
        if isinstance(node, Map):
            if not isinstance(inner, Map):
                return None
            values = self.merge(inner.values, node.values, f"{path}{{}}", within)
            return None if values is None else FoldedType(Map(values.type), values.route)
        assert isinstance(node, Record)
        if node.name in within:
            raise NotAColumn("recursive")
        if not isinstance(inner, Record) or kind_of(inner) is not None:
            return None
        props = known_as(inner, node)
        if props is None:
            return None
        return FoldedType(*self.fold_record(replace(inner, props=props), node, path, within))

    def merge_partless(self, inner: Type, node: Primitive | Fixed | Enum, path: str) -> Type | None:
        match inner, node:
            case Primitive(), Primitive():
                return self.merge_primitive(inner, node, path)
            case Fixed(), Fixed():
                return self.merge_fixed(inner, node)
            case Enum(), Enum():
                return self.merge_enum(inner, node, path)
        return None

    def merge_primitive(self, inner: Primitive, node: Primitive, path: str) -> Primitive | None:
        mine, its = inner.logical, node.logical
        if its is not None and its.name in SAME_AS_PLAIN:
            its = None
        if kind_of(inner) == UNSCALED or (its is not None and its.name == "decimal"):
            return self.merge_decimal(inner, node, path)
        if mine != its:
            return None
        column, writer = inner.type.value, node.type.value
        if column == writer or (writer, column) in EXACT or writer in (prop(inner.props, WIDENED) or ()):
            if column != writer:
                self.note(path, "held", f"{writer} in {column}")
            return inner
        if (column, writer) not in WIDENINGS or mine is not None:
            return None
        self.note(path, "widened", f"{column} to {writer}")
        known: list[str] = list(prop(inner.props, WIDENED) or ())
        known += NARROWER[column]
        rounding = [kind for kind in dict.fromkeys(known) if (kind, writer) not in EXACT]
        return Primitive(node.type, props=with_prop((), WIDENED, rounding or None))

    def merge_decimal(self, inner: Primitive, node: Primitive, path: str) -> Primitive | None:
        """Returns the column's type with at least as many digits as the writer's decimal needs. Decimals of the same
        scale have the same bytes. Returns None if the two are not decimals of the same scale, or if Hive cannot hold
        that many digits.

        Args:
            inner: the column's type without null.
            node: the writer's type.
            path: the dotted path of the column, for the note about the change.
        """
        its = node.logical
        if node.type is not inner.type or its is None or its.name != "decimal":
            return None
        mine = inner.logical
        if kind_of(inner) == UNSCALED:
            digits, scale = (int(part) for part in prop(inner.props, DECIMAL).split(","))
            mine = LogicalType("decimal", digits, scale)
        if mine is None or mine.name != "decimal" or mine.scale != its.scale:
            return None
        assert mine.precision is not None and its.precision is not None
        if its.precision <= mine.precision:
            return inner
        wider = replace(mine, precision=its.precision)
        if kind_of(inner) == UNSCALED:
            return replace(inner, props=unscaled_props(wider))
        if its.precision > HIVE_PRECISION_MAX:
            return None
        self.note(path, "widened", f"precision {mine.precision} to {its.precision}")
        return Primitive(inner.type, wider, logical_props(wider))

    def merge_fixed(self, inner: Fixed, node: Fixed) -> Fixed | None:
        # Columns that were created before decimals had a size limit are not changed.
        same = inner.size == node.size and inner.logical in (node.logical, hive_logical(node))
        return inner if same else None

    def merge_enum(self, inner: Enum, node: Enum, path: str) -> Enum | None:
        props = known_as(inner, node)
        if props is None:
            return None
        known = set(inner.symbols)
        new = [symbol for symbol in node.symbols if symbol not in known]
        if new:
            self.note(path, "enum-grown", ", ".join(new))
        return replace(inner, symbols=(*inner.symbols, *new), props=props)

    def merge_members(
        self, load: Record, branches: Sequence[Type], path: str, within: frozenset[Name]
    ) -> tuple[Record, StoredRoute]:
        """Returns a record of members that holds every branch of a union, and the route from the branches to the
        members. A branch goes to the first member with the branch's name that can hold it, else to a new member.

        Args:
            load: the present record of members.
            branches: the union's branches without null.
            path: the dotted path of the column.
            within: names of the writer's records that enclose the union.
        """
        fields = list(load.fields)
        used: dict[int, StoredRoute] = {}  # in the order of the branches
        for branch in branches:
            word = branch_word(branch)
            for i, field in enumerate(fields):
                if i in used or prop(field.props, BRANCH) not in branch_names(branch):
                    continue
                laid = self.merge_branch(split(field.type)[0], branch, f"{path}.{field.name}", within)
                if laid is not None:
                    fields[i] = replace(field, type=nullable(laid.type))
                    used[i] = laid.route
                    break
            else:
                name = ColumnNames(fields).free(word)
                inner, route = self.shape_branch(branch, f"{path}.{name}", within)
                if load.fields:
                    self.note(f"{path}.{name}", "member-added", word)
                used[len(fields)] = route
                fields.append(Field(name, nullable(inner), None, props=((BRANCH, word),)))
        return replace(load, fields=tuple(fields)), stored_route(RoutePlace(*item) for item in used.items())

    @abstractmethod
    def fold_record(
        self,
        load: Record,
        node: Record,
        path: str,
        within: frozenset[Name],
        *,
        is_new: bool = False,
        reserved: Container[str] = (),
    ) -> tuple[Record, StoredRoute]:
        """Folds a writer's record into a load record. Returns the changed load record, and the route from the writer's
        fields to its columns. `Folding` in `columns` implements it.

        Args:
            load: the present load record.
            node: the writer's record.
            path: the dotted path of the load record, "" at the top level.
            within: names of the writer's records that enclose `node`.
            is_new: whether the load record is created now, so that it has no columns yet.
            reserved: names in lower case that no column may have.
        """
