"""Converts a writer's type to a load type, and widens a load type so that it also holds a further writer's type.

`create_type` creates a load type; `merge` widens one, or returns None if the existing column cannot hold the new type.
Both also return the route for values of the writer's type. `loader.load_schema.columns` handles the columns of a
record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
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
    NamedType,
    Primitive,
    PrimitiveType,
    Props,
    Record,
    Schema,
    Type,
    Union,
)
from headrace.loader.load_schema.stored_route import IDENTITY_ROUTE, FoldedType, RouteEntry, StoredRoute, stored_route
from headrace.loader.load_schema.types import (
    COLUMN_DEPTH_MAX,
    COLUMN_NODES_MAX,
    DECIMAL,
    EXACT,
    FOLD_TYPES_MAX,
    HIVE_PRECISION_MAX,
    IGNORED_LOGICAL_TYPES,
    JSON,
    KIND,
    MEMBERS,
    NAMES,
    NARROWER,
    NULL,
    UNSCALED,
    WIDENED,
    WIDENINGS,
    ColumnNames,
    accepted_names,
    alias_names,
    branch_name,
    hive_logical,
    kind_of,
    load_name,
    logical_props,
    member_branches,
    member_text,
    nullable,
    prop,
    props_if_same_type,
    rejoin,
    split,
    unscaled_props,
    with_branches,
    with_prop,
)


class UnsupportedColumnType(Exception):
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
    writer, `path` the dotted path of the column, and `enclosing_records` the names of the writer's enclosing records.

    Args:
        writer: the writer schema, which resolves references to its named types.
        type_names: full names of types in the load schema; created types are added.
        may_change: False only checks whether the existing types can hold the writer's types, and changes nothing.

    Attributes:
        by_full_name: whether named types match only by full name or alias, not by equal names in other namespaces.
    """

    def __init__(self, writer: Schema, type_names: set[str], *, may_change: bool = True) -> None:
        self.writer = writer
        self.type_names = type_names
        self.may_change = may_change
        self.notes: list[Note] = []
        self.by_full_name = False
        self.column_nodes = 0
        self.types_created = 0
        self._last_numbers: dict[str, int] = {}

    def note(self, column: str, rule: str, detail: str = "") -> None:
        self.notes.append(Note(column, rule, detail))

    def branches(self, node: Type) -> tuple[list[Type], bool]:
        """Returns the non-null branches of the writer's type `node`, and whether it allows null. A type that is no
        union is its only branch."""
        node = self.writer.resolve(node)
        branches = [self.writer.resolve(b) for b in node.branches] if isinstance(node, Union) else [node]
        non_null = [b for b in branches if not (isinstance(b, Primitive) and b.type is PrimitiveType.NULL)]
        return non_null, len(non_null) < len(branches)

    def create_type(self, node: Type, path: str, enclosing_records: frozenset[Name]) -> FoldedType:
        """Returns a new load type for the writer's type `node`, and the route for its values.

        Args:
            path: the dotted path of the column.
            enclosing_records: names of the writer's records that enclose the type.

        Raises:
            UnsupportedColumnType: the type contains itself (it is in `enclosing_records`), or it is too large or nested
                too deeply.
            LoadSchemaTooLarge: this type and those created before exceed the limit of a version.
        """
        branches, is_nullable = self.branches(node)
        if not branches:
            return FoldedType(NULL, IDENTITY_ROUTE)
        if len(branches) == 1:
            inner, route = self.create_branch_type(branches[0], path, enclosing_records)
        else:
            inner, route = self.create_members_type(branches, path, enclosing_records)
        return FoldedType(rejoin(inner, is_nullable), route)

    def create_branch_type(self, node: Type, path: str, enclosing_records: frozenset[Name]) -> FoldedType:
        self.types_created += 1
        if self.types_created > FOLD_TYPES_MAX:
            raise LoadSchemaTooLarge(
                f"the schema has more than {FOLD_TYPES_MAX:,} types, counting each use of a named type"
            )
        self.column_nodes += 1
        if self.column_nodes > COLUMN_NODES_MAX:
            raise UnsupportedColumnType("too-large")
        if sum(map(path.count, ".[{")) > COLUMN_DEPTH_MAX:
            raise UnsupportedColumnType("too-deep")
        if isinstance(node, Primitive):
            return FoldedType(self.create_primitive_type(node, path), IDENTITY_ROUTE)
        if isinstance(node, Enum):
            name, props = self.create_type_name(node)
            return FoldedType(Enum(name, node.symbols, props=props), IDENTITY_ROUTE)
        if isinstance(node, Fixed):
            name, props = self.create_type_name(node)
            logical = hive_logical(node)
            fixed = Fixed(name, node.size, logical, props=(*logical_props(logical), *props))
            return FoldedType(fixed, IDENTITY_ROUTE)
        if isinstance(node, Array):
            items, route = self.create_type(node.items, f"{path}[]", enclosing_records)
            return FoldedType(Array(items), route)
        if isinstance(node, Map):
            values, route = self.create_type(node.values, f"{path}{{}}", enclosing_records)
            return FoldedType(Map(values), route)
        assert isinstance(node, Record)
        if node.name in enclosing_records:
            raise UnsupportedColumnType("recursive")
        name, props = self.create_type_name(node)
        return FoldedType(*self.fold_record(Record(name, (), props=props), node, path, enclosing_records, is_new=True))

    def create_primitive_type(self, node: Primitive, path: str) -> Primitive:
        logical = node.logical
        if logical is None or logical.name in IGNORED_LOGICAL_TYPES:
            return Primitive(node.type)
        if logical.name == "decimal":
            assert logical.precision is not None
            if logical.precision > HIVE_PRECISION_MAX:
                self.note(path, "decimal-too-wide", f"precision {logical.precision}")
                return Primitive(node.type, props=unscaled_props(logical))
        return Primitive(node.type, logical, logical_props(logical))

    def create_members_type(
        self, branches: Sequence[Type], path: str, enclosing_records: frozenset[Name]
    ) -> FoldedType:
        name = self.free_type_name(Name(f"{path.rpartition('.')[2].rstrip('[]{}')}_union", "headrace.load"))
        empty = Record(name, (), props=((KIND, MEMBERS),))
        merged, route = self.merge_members(empty, branches, path, enclosing_records)
        self.note(path, "union", ", ".join(map(member_text, merged.fields)))
        return FoldedType(merged, route)

    def create_type_name(self, node: Record | Enum | Fixed) -> tuple[Name, Props]:
        """Returns a name for the load type of `node`, a named type of the writer. No other type of the load schema has
        this name. If it differs from the writer's name, also returns the property `headrace.names` with the writer's
        name, otherwise no property."""
        name = self.free_type_name(node.name)
        return name, () if name == node.name else ((NAMES, [node.name.full]),)

    def free_type_name(self, preferred_name: Name) -> Name:
        name = preferred_name = load_name(preferred_name)
        # Continues after the last number used, without testing the smaller ones: a type may have many thousand uses.
        n = self._last_numbers.get(preferred_name.full, 1)
        while name.full in self.type_names:
            n += 1
            name = Name(f"{preferred_name.name}_{n}", preferred_name.namespace)
        self._last_numbers[preferred_name.full] = n
        self.type_names.add(name.full)
        return name

    def merge(
        self, load: Type, node: Type, path: str, enclosing_records: frozenset[Name], default: JsonValue = NO_DEFAULT
    ) -> FoldedType | None:
        """Returns the load type, widened so that it also holds values of the writer's type, and the route for these
        values. Returns None if the writer's type needs a separate column.

        Args:
            load: the present load type.
            node: the writer's type.
            path: the dotted path of the column.
            enclosing_records: names of the writer's records that enclose `node`.
            default: the column's default, `NO_DEFAULT` if it has none. It decides the place of null in a nullable type.

        Raises:
            UnsupportedColumnType: no Hive column can hold the writer's type.
            LoadSchemaTooLarge: the version has too many types.
        """
        note_count = len(self.notes)
        inner, was_nullable = split(load)
        branches, is_nullable = self.branches(node)
        merged: FoldedType | None
        if kind_of(inner) == JSON:
            merged = FoldedType(inner, IDENTITY_ROUTE) if self.is_text(node, path, enclosing_records) else None
        elif not branches:
            merged = FoldedType(inner, IDENTITY_ROUTE)
            is_nullable = True
        elif kind_of(inner) == MEMBERS:
            assert isinstance(inner, Record)
            merged = FoldedType(*self.merge_members(inner, branches, path, enclosing_records))
        elif len(branches) > 1:
            merged = None
        elif inner == NULL:
            merged = self.create_branch_type(branches[0], path, enclosing_records)
            is_nullable = True
        else:
            merged = self.merge_branch(inner, branches[0], path, enclosing_records)
        if merged is None:
            del self.notes[note_count:]
            return None
        if is_nullable and not was_nullable:
            self.note(path, "nullable")
        if was_nullable and merged.type == inner:
            return FoldedType(load, merged.route)
        return FoldedType(rejoin(merged.type, was_nullable or is_nullable, default), merged.route)

    def is_text(self, node: Type, path: str, enclosing_records: frozenset[Name]) -> bool:
        """Whether values of the writer's type `node` are stored in a column as Avro-JSON text, because no Hive type
        fits.

        Args:
            path: the dotted path of the column.
            enclosing_records: names of the writer's records that enclose the type.
        """
        trial = type(self)(self.writer, set())
        trial.types_created = self.types_created
        try:
            trial.create_type(node, path, enclosing_records)
        except UnsupportedColumnType:
            return True
        finally:
            self.types_created = trial.types_created
        return False

    def merge_branch(self, inner: Type, node: Type, path: str, enclosing_records: frozenset[Name]) -> FoldedType | None:
        if isinstance(node, Primitive | Fixed | Enum):
            merged = self.merge_leaf(inner, node, path)
            return None if merged is None else FoldedType(merged, IDENTITY_ROUTE)
        if isinstance(node, Array):
            if not isinstance(inner, Array):
                return None
            items = self.merge(inner.items, node.items, f"{path}[]", enclosing_records)
            return None if items is None else FoldedType(Array(items.type), items.route)
        if isinstance(node, Map):
            if not isinstance(inner, Map):
                return None
            values = self.merge(inner.values, node.values, f"{path}{{}}", enclosing_records)
            return None if values is None else FoldedType(Map(values.type), values.route)
        assert isinstance(node, Record)
        if node.name in enclosing_records:
            raise UnsupportedColumnType("recursive")
        if not isinstance(inner, Record) or kind_of(inner) is not None:
            return None
        props = self.props_if_same_type(inner, node)
        if props is None:
            return None
        return FoldedType(*self.fold_record(replace(inner, props=props), node, path, enclosing_records))

    def props_if_same_type(self, inner: NamedType, node: NamedType) -> Props | None:
        """Returns the properties of the load type `inner` if it stands for the writer's type `node`, else None. Without
        `may_change`, the properties do not change, so only a type that matches by its own name is the same."""
        props = props_if_same_type(inner, node, by_full_name=self.by_full_name)
        if self.may_change or props is None or props == inner.props:
            return props
        has_name = any(name.rpartition(".")[2] == node.name.name for name in accepted_names(inner))
        return inner.props if has_name and not self.by_full_name else None

    def merge_leaf(self, inner: Type, node: Primitive | Fixed | Enum, path: str) -> Type | None:
        match inner, node:
            case Primitive(), Primitive():
                return self.merge_primitive(inner, node, path)
            case Fixed(), Fixed():
                return self.merge_fixed(inner, node)
            case Enum(), Enum():
                return self.merge_enum(inner, node, path)
        return None

    def merge_primitive(self, inner: Primitive, node: Primitive, path: str) -> Primitive | None:
        column_logical, writer_logical = inner.logical, node.logical
        if writer_logical is not None and writer_logical.name in IGNORED_LOGICAL_TYPES:
            writer_logical = None
        if kind_of(inner) == UNSCALED or (writer_logical is not None and writer_logical.name == "decimal"):
            return self.merge_decimal(inner, node, path)
        if column_logical != writer_logical:
            return None
        column, writer = inner.type.value, node.type.value
        if column == writer or (writer, column) in EXACT or writer in (prop(inner.props, WIDENED) or ()):
            if column != writer:
                self.note(path, "held", f"{writer} in {column}")
            return inner
        if (column, writer) not in WIDENINGS or column_logical is not None:
            return None
        self.note(path, "widened", f"{column} to {writer}")
        widened_from: list[str] = list(prop(inner.props, WIDENED) or ())
        widened_from += NARROWER[column]
        rounding = [kind for kind in dict.fromkeys(widened_from) if (kind, writer) not in EXACT]
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
        writer_logical = node.logical
        if node.type is not inner.type or writer_logical is None or writer_logical.name != "decimal":
            return None
        column_logical = inner.logical
        if kind_of(inner) == UNSCALED:
            digits, scale = (int(part) for part in prop(inner.props, DECIMAL).split(","))
            column_logical = LogicalType("decimal", digits, scale)
        if column_logical is None or column_logical.name != "decimal" or column_logical.scale != writer_logical.scale:
            return None
        assert column_logical.precision is not None and writer_logical.precision is not None
        if writer_logical.precision <= column_logical.precision:
            return inner
        wider = replace(column_logical, precision=writer_logical.precision)
        if kind_of(inner) == UNSCALED:
            return replace(inner, props=unscaled_props(wider))
        if writer_logical.precision > HIVE_PRECISION_MAX:
            return None
        self.note(path, "widened", f"precision {column_logical.precision} to {writer_logical.precision}")
        return Primitive(inner.type, wider, logical_props(wider))

    def merge_fixed(self, inner: Fixed, node: Fixed) -> Fixed | None:
        # Columns that were created before decimals had a size limit are not changed.
        is_same = inner.size == node.size and inner.logical in (node.logical, hive_logical(node))
        props = self.props_if_same_type(inner, node) if is_same else None
        if is_same and props is None and not self.by_full_name:
            # The bytes of a fixed type with another name are the same, so the column can hold them.
            names = [*accepted_names(inner), node.name.full]
            props = with_prop(inner.props, NAMES, names) if self.may_change else inner.props
        return None if props is None else replace(inner, props=props)

    def merge_enum(self, inner: Enum, node: Enum, path: str) -> Enum | None:
        props = self.props_if_same_type(inner, node)
        if props is None:
            return None
        known_symbols = set(inner.symbols)
        new = [symbol for symbol in node.symbols if symbol not in known_symbols]
        if new:
            self.note(path, "enum-grown", ", ".join(new))
        return replace(inner, symbols=(*inner.symbols, *new), props=props)

    def merge_members(
        self, load: Record, branches: Sequence[Type], path: str, enclosing_records: frozenset[Name]
    ) -> tuple[Record, StoredRoute]:
        """Returns a record of members that holds every branch of a union, and the route from the branches to the
        members. A branch without a member that can hold it gets a new member.

        A member holds the values of one full name permanently; the order and the presence of other branches do not
        matter. Equal names in different namespaces are different types here, although Avro's readers accept either as
        the other: if a version replaced `orders.Created` by `users.Created`, their values would be mixed in one member.

        Args:
            load: the present record of members.
            branches: the union's branches without null.
            path: the dotted path of the column.
            enclosing_records: names of the writer's records that enclose the union.
        """
        members = list(load.fields)
        routes = self.match_members(members, branches, path, enclosing_records)
        names = ColumnNames(members)
        created: set[str] = set()
        for branch in branches:
            name = branch_name(branch)
            if name not in routes:
                column = names.free_name(name.rpartition(".")[2])
                inner, route = self.create_branch_type(branch, f"{path}.{column}", enclosing_records)
                if load.fields:
                    self.note(f"{path}.{column}", "member-added", name)
                routes[name] = RouteEntry(len(members), route)
                members.append(with_branches(Field(column, nullable(inner), None), [name]))
                names.add(members[-1])
                created.add(name)
        for i in {entry.column for entry in routes.values() if entry.column < len(load.fields)}:
            # The type that keeps this member has been renamed, and its former name now belongs to another type.
            listed = member_branches(members[i])
            members[i] = with_branches(members[i], [name for name in listed if name not in created])
        return replace(load, fields=tuple(members)), stored_route(routes[branch_name(branch)] for branch in branches)

    def match_members(
        self, members: list[Field], branches: Sequence[Type], path: str, enclosing_records: frozenset[Name]
    ) -> dict[str, RouteEntry]:
        """Finds the members that hold the branches of a writer's union, and changes them as necessary. Returns the
        routes of these branches by the branch's name.

        A branch matches by its name or, if the type has been renamed, by an alias that is not the name of another
        branch.

        Args:
            members: the fields of the record of members; changed.
            branches: the union's branches without null.
            path: the dotted path of the column.
            enclosing_records: names of the writer's records that enclose the union.
        """
        by_name = {branch_name(branch): branch for branch in branches}
        routes: dict[str, RouteEntry] = {}
        self.route_to_members(members, by_name, routes, path, enclosing_records)
        by_alias: dict[str, Type] = {}
        for name, branch in by_name.items():
            if self.may_change and name not in routes and isinstance(branch, Record | Enum | Fixed):
                for alias in alias_names(branch):
                    if alias not in by_name:
                        by_alias.setdefault(alias, branch)
        self.route_to_members(members, by_alias, routes, path, enclosing_records)
        return routes

    def route_to_members(
        self,
        members: list[Field],
        branches: Mapping[str, Type],
        routes: dict[str, RouteEntry],
        path: str,
        enclosing_records: frozenset[Name],
    ) -> None:
        """Adds to `routes`, by the branch's name, the routes of those branches that a member without a route can hold.

        Args:
            members: the fields of the record of members; changed.
            branches: branches of the writer's union, by the name that the member must list.
            routes: the routes found so far; extended.
            path: the dotted path of the column.
            enclosing_records: names of the writer's records that enclose the union.
        """
        routed = {entry.column for entry in routes.values()}
        for i, member in enumerate(members):
            if i in routed:
                continue
            listed, (inner, _) = member_branches(member), split(member.type)
            for branch in (branches[name] for name in listed if name in branches):
                name = branch_name(branch)
                if name in routes:
                    continue
                merged = self.merge_branch(inner, branch, f"{path}.{member.name}", enclosing_records)
                if merged is not None:
                    routes[name] = RouteEntry(i, merged.route)
                    changed = replace(member, type=nullable(merged.type))
                    members[i] = with_branches(changed, listed if name in listed else (name, *listed))
                    break

    @abstractmethod
    def fold_record(
        self,
        load: Record,
        node: Record,
        path: str,
        enclosing_records: frozenset[Name],
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
            enclosing_records: names of the writer's records that enclose `node`.
            is_new: whether the load record is created now, so that it has no columns yet.
            reserved: names in lower case that no column may have.
        """
