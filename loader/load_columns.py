"""Laying a writer's schema over load columns: which column takes which field, and how it grows.

`Folding.shape` makes a load type of a writer's type. `Folding.merge` grows one, or answers None where the new type
cannot be said in the old column, which then stays while the value takes a column of its own. The same code decides
where a writer's fields go when a projection is made (`growing=False`), so that the two never differ.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from avro_schema import (
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
from loader.load_types import (
    ABSENT,
    BRANCH,
    COLUMN_NODES_MAX,
    DECIMAL,
    EXACT,
    FORMER,
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
    branch_names,
    branch_word,
    former_sources,
    free_name,
    hive_logical,
    is_plain,
    kind_of,
    known_as,
    logical_props,
    nullable,
    prop,
    rejoin,
    safe_default,
    sources,
    split,
    type_word,
    unscaled_props,
    with_prop,
    with_sources,
)

WHOLE_MESSAGE_COLUMN = "value"
"""The column of messages that are not records."""


class NotAColumn(Exception):
    """A type that no Hive column holds; `rule` says why. It becomes its Avro-JSON text."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Note:
    """A rule that was applied: to which column (a dotted path), and what is particular to this case."""

    column: str
    rule: str
    detail: str


class Folding:
    """One writer schema being laid over load types.

    Args:
        writer: resolves the writer's references.
        taken: full names of types that the load schema already has; grows as types are made.
        growing: False asks only whether types hold the writer's: columns that nothing feeds then stay as they are.
    """

    def __init__(self, writer: Schema, taken: set[str], *, growing: bool = True) -> None:
        self.writer = writer
        self.taken = taken
        self.growing = growing
        self.notes: list[Note] = []
        self.nodes = 0

    def note(self, column: str, rule: str, detail: str = "") -> None:
        self.notes.append(Note(column, rule, detail))

    def branches(self, node: Type) -> tuple[list[Type], bool]:
        """The writer's branches that are not null, and whether null is one."""
        node = self.writer.resolve(node)
        every = [self.writer.resolve(b) for b in node.branches] if isinstance(node, Union) else [node]
        rest = [b for b in every if not (isinstance(b, Primitive) and b.type is PrimitiveType.NULL)]
        return rest, len(rest) < len(every)

    def shape(self, node: Type, path: str, within: frozenset[Name]) -> Type:
        """The load type of a writer's type.

        Raises:
            NotAColumn: the type is one of those in `within` (recursive), or too large.
        """
        branches, is_nullable = self.branches(node)
        if not branches:
            return NULL
        if len(branches) == 1:
            inner = self.shape_branch(branches[0], path, within)
        else:
            inner = self.shape_members(branches, path, within)
        return rejoin(inner, is_nullable)

    def shape_branch(self, node: Type, path: str, within: frozenset[Name]) -> Type:
        self.nodes += 1
        if self.nodes > COLUMN_NODES_MAX:
            raise NotAColumn("too-large")
        if isinstance(node, Primitive):
            return self.shape_primitive(node, path)
        if isinstance(node, Enum):
            name, props = self.named(node)
            return Enum(name, node.symbols, props=props)
        if isinstance(node, Fixed):
            logical = hive_logical(node.logical)
            return Fixed(self.free_type_name(node.name), node.size, logical, props=logical_props(logical))
        if isinstance(node, Array):
            return Array(self.shape(node.items, f"{path}[]", within))
        if isinstance(node, Map):
            return Map(self.shape(node.values, f"{path}{{}}", within))
        assert isinstance(node, Record)
        if node.name in within:
            raise NotAColumn("recursive")
        name, props = self.named(node)
        return self.fold_record(Record(name, (), props=props), node, path, within, is_new=True)

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

    def shape_members(self, branches: Sequence[Type], path: str, within: frozenset[Name]) -> Record:
        name = self.free_type_name(Name(f"{path.rpartition('.')[2].rstrip('[]{}')}_union", "headrace.load"))
        empty = Record(name, (), props=((KIND, MEMBERS),))
        merged = self.merge_members(empty, branches, path, within)
        self.note(path, "union", ", ".join(field.name for field in merged.fields))
        return merged

    def named(self, node: Record | Enum | Fixed) -> tuple[Name, Props]:
        """A name for a load type, and what remembers the writer's name where another type already has it."""
        name = self.free_type_name(node.name)
        return name, () if name.name == node.name.name else ((NAMES, [node.name.name]),)

    def free_type_name(self, wanted: Name) -> Name:
        name, n = wanted, 1
        while name.full in self.taken:
            n += 1
            name = Name(f"{wanted.name}_{n}", wanted.namespace)
        self.taken.add(name.full)
        return name

    def merge(
        self, load: Type, node: Type, path: str, within: frozenset[Name], default: JsonValue = NO_DEFAULT
    ) -> Type | None:
        """The load type that also holds the writer's type, or None where it takes a column of its own."""
        mark = len(self.notes)
        inner, was_nullable = split(load)
        branches, is_nullable = self.branches(node)
        merged: Type | None
        if kind_of(inner) == JSON:
            merged = inner if self.is_text(node, path, within) else None
        elif not branches:
            merged = inner
            is_nullable = True
        elif kind_of(inner) == MEMBERS:
            assert isinstance(inner, Record)
            merged = self.merge_members(inner, branches, path, within)
        elif len(branches) > 1:
            merged = None
        elif inner == NULL:
            merged = self.shape_branch(branches[0], path, within)
            is_nullable = True
        else:
            merged = self.merge_branch(inner, branches[0], path, within)
        if merged is None:
            del self.notes[mark:]
            return None
        if is_nullable and not was_nullable:
            self.note(path, "nullable")
        if was_nullable and merged == inner:
            return load
        return rejoin(merged, was_nullable or is_nullable, default)

    def is_text(self, node: Type, path: str, within: frozenset[Name]) -> bool:
        """Whether a writer's type can only be a column as its Avro-JSON text."""
        trial = Folding(self.writer, set(self.taken))
        try:
            trial.shape(node, path, within)
        except NotAColumn:
            return True
        return False

    def merge_branch(self, inner: Type, node: Type, path: str, within: frozenset[Name]) -> Type | None:
        if isinstance(node, Primitive):
            return self.merge_primitive(inner, node, path) if isinstance(inner, Primitive) else None
        if isinstance(node, Fixed):
            return self.merge_fixed(inner, node, path) if isinstance(inner, Fixed) else None
        if isinstance(node, Array):
            if not isinstance(inner, Array):
                return None
            items = self.merge(inner.items, node.items, f"{path}[]", within)
            return None if items is None else Array(items)
        if isinstance(node, Map):
            if not isinstance(inner, Map):
                return None
            values = self.merge(inner.values, node.values, f"{path}{{}}", within)
            return None if values is None else Map(values)
        if isinstance(node, Enum):
            return self.merge_enum(inner, node, path) if isinstance(inner, Enum) else None
        assert isinstance(node, Record)
        if node.name in within:
            raise NotAColumn("recursive")
        if not isinstance(inner, Record) or kind_of(inner) is not None:
            return None
        props = known_as(inner, node)
        return None if props is None else self.fold_record(replace(inner, props=props), node, path, within)

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
        """Decimals of one scale share their bytes, so more digits are only a wider column."""
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

    def merge_fixed(self, inner: Fixed, node: Fixed, path: str) -> Fixed | None:
        same = inner.size == node.size and inner.logical == hive_logical(node.logical)
        return inner if same else None

    def merge_enum(self, inner: Enum, node: Enum, path: str) -> Enum | None:
        props = known_as(inner, node)
        if props is None:
            return None
        new = [symbol for symbol in node.symbols if symbol not in inner.symbols]
        if new:
            self.note(path, "enum-grown", ", ".join(new))
        return replace(inner, symbols=(*inner.symbols, *new), props=props)

    def merge_members(self, load: Record, branches: Sequence[Type], path: str, within: frozenset[Name]) -> Record:
        """A record of members with every branch in the first member of its name that holds it, else in a new one."""
        fields = list(load.fields)
        used: set[int] = set()
        for branch in branches:
            word = branch_word(branch)
            for i, field in enumerate(fields):
                if i in used or prop(field.props, BRANCH) not in branch_names(branch):
                    continue
                merged = self.merge_branch(split(field.type)[0], branch, f"{path}.{field.name}", within)
                if merged is not None:
                    fields[i] = replace(field, type=nullable(merged))
                    used.add(i)
                    break
            else:
                name = free_name(word, fields, reserved=())
                inner = self.shape_branch(branch, f"{path}.{name}", within)
                if load.fields:
                    self.note(f"{path}.{name}", "member-added", word)
                used.add(len(fields))
                fields.append(Field(name, nullable(inner), None, props=((BRANCH, word),)))
        return replace(load, fields=tuple(fields))

    def fold_record(
        self,
        load: Record,
        node: Record,
        path: str,
        within: frozenset[Name],
        *,
        is_new: bool = False,
        reserved: Container[str] = (),
    ) -> Record:
        """Lays a writer's record over a load record: its columns fed, grown, left or added."""
        within = within | {node.name}
        columns = load.fields
        if self.growing and not is_new:
            columns = tuple(self.renamed(columns, node, path, within, reserved))
        fed, folded = self.feed(columns, node, path, within)
        used = {field.name for field in fed if field is not None}
        for field in node.fields:
            if field.name not in used:
                folded = self.retired(folded, fed, field.name, path)
                folded.append(self.new_column(field, folded, path, within, is_new=is_new, reserved=reserved))
        return replace(load, fields=tuple(folded))

    def feed(
        self, columns: Sequence[Field], node: Record, path: str, within: frozenset[Name]
    ) -> tuple[list[Field | None], list[Field]]:
        """Which writer field feeds each column, if any, and the columns as they are then."""
        present = {field.name: field for field in node.fields}
        fed: list[Field | None] = [None] * len(columns)
        folded = list(columns)
        # Former names come last: they mean this column only in versions from before their name was used again.
        for names_of in (sources, former_sources):
            for i, column in enumerate(columns):
                name = next((source for source in names_of(column) if source in present), None)
                if fed[i] is not None or name is None:
                    continue
                merged = self.try_merge(column, present[name], path, within)
                if merged is not None:
                    fed[i] = present.pop(name)
                    folded[i] = column if merged == column.type else replace(column, type=merged)
        names = {field.name for field in node.fields}
        for i, column in enumerate(columns):
            if fed[i] is None:
                folded[i] = self.unfed(column, path, is_lacking=names.isdisjoint(sources(column)))
        return fed, folded

    def try_merge(self, column: Field, field: Field, path: str, within: frozenset[Name]) -> Type | None:
        if not path:
            self.nodes = 0
        mark = len(self.notes)
        try:
            return self.merge(column.type, field.type, joined(path, column.name), within, column.default)
        except NotAColumn:
            del self.notes[mark:]
            return None

    def unfed(self, column: Field, path: str, *, is_lacking: bool) -> Field:
        """A column of which this version has nothing: null in its rows, so nullable from now on."""
        inner, is_nullable = split(column.type)
        has_value = column.has_default and column.default is not None
        if not self.growing and (is_nullable or column.has_default):
            return column
        if is_lacking and (not is_nullable or (has_value and prop(column.props, ABSENT) is None)):
            self.note(joined(path, column.name), "removed")
        if has_value:
            return replace(column, type=nullable(inner, last=True), props=with_prop(column.props, ABSENT, "null"))
        return replace(column, type=nullable(inner), default=None)

    def renamed(
        self, columns: Sequence[Field], node: Record, path: str, within: frozenset[Name], reserved: Container[str]
    ) -> Sequence[Field]:
        """The columns after the renames by alias that this version makes."""
        present = {field.name for field in node.fields}
        for field in node.fields:
            known = {source for column in columns for source in sources(column)}
            old = next((alias for alias in field.aliases if alias in known and alias not in present), None)
            if old is not None and field.name not in known:
                columns = self.rename(list(columns), field, old, path, within, reserved)
        return columns

    def rename(
        self,
        columns: list[Field],
        field: Field,
        old: str,
        path: str,
        within: frozenset[Name],
        reserved: Container[str],
    ) -> Sequence[Field]:
        group = [i for i, column in enumerate(columns) if old in sources(column)]
        mark = len(self.notes)
        first = next((i for i in group if self.try_merge(columns[i], field, path, within) is not None), None)
        del self.notes[mark:]
        if first is None:
            return columns
        if not is_plain(columns[first].type):
            self.note(joined(path, field.name), "renamed-beside", f"beside {columns[first].name}")
            return columns
        for i in group:
            feeding = (field.name, *sources(columns[i]))
            column = columns[i]
            if i == first:
                others = columns[:i] + columns[i + 1 :]
                name = free_name(field.name, others, reserved)
                column = replace(column, name=name, aliases=(column.name, *column.aliases))
                self.note(joined(path, name), "renamed", f"from {columns[i].name}")
            columns[i] = with_sources(column, feeding)
        return columns

    def retired(self, columns: list[Field], fed: Sequence[Field | None], name: str, path: str) -> list[Field]:
        """The columns with `name` only as a former source of one that this version feeds from its newer name."""
        if not self.growing:
            return columns
        for i, field in enumerate(fed):
            column = columns[i]
            if field is not None and field.name != name and name in sources(column):
                former = [*former_sources(column), name]
                column = with_sources(column, [source for source in sources(column) if source != name])
                columns[i] = replace(column, props=with_prop(column.props, FORMER, former))
                self.note(joined(path, column.name), "name-reused", name)
        return columns

    def new_column(
        self,
        field: Field,
        columns: Sequence[Field],
        path: str,
        within: frozenset[Name],
        *,
        is_new: bool,
        reserved: Container[str],
    ) -> Field:
        """A column for a writer field that no column holds."""
        if not path:
            self.nodes = 0
        base = field.name or WHOLE_MESSAGE_COLUMN
        beside = [column for column in columns if field.name in sources(column)]
        node = self.shape_or_text(field.type, joined(path, base), within)
        wanted = f"{base}__{type_word(node)}" if beside else base
        name = free_name(wanted, columns, reserved)
        where = joined(path, name)
        if name != wanted:
            self.note(where, "reserved-name" if wanted.lower() in reserved else "name-taken", wanted)
        inner, is_nullable = split(node)
        default: JsonValue = NO_DEFAULT
        if beside:
            self.note(where, self.why_beside(beside[0], field), f"beside {beside[0].name}")
        elif field.default is None and (is_nullable or inner == NULL):
            default = None
        elif field.has_default and safe_default(inner, field.default):
            default = field.default
        if default is NO_DEFAULT and not is_new:
            if field.has_default and field.default is not None and not beside:
                self.note(where, "default-dropped")
            default, is_nullable = None, True
        if not is_new and not beside:
            self.note(where, "added")
        made = Field(name, rejoin(inner, is_nullable, default), default)
        return with_sources(made, (field.name,))

    def shape_or_text(self, node: Type, path: str, within: frozenset[Name]) -> Type:
        """A load type, or text where no column can hold the writer's type."""
        try:
            return self.shape(node, path, within)
        except NotAColumn as refused:
            if refused.rule == "too-large" and "." in path:
                raise
            self.note(path, refused.rule)
            text = Primitive(PrimitiveType.STRING, props=((KIND, JSON),))
            return rejoin(text, self.branches(node)[1])

    def why_beside(self, column: Field, field: Field) -> str:
        """The rule by which a writer's type takes a column of its own."""
        inner, _ = split(column.type)
        branches, _ = self.branches(field.type)
        if len(branches) != 1:
            return "branches-gained"
        branch = branches[0]
        if isinstance(inner, Array | Map) and isinstance(branch, type(inner)):
            return "element-changed"
        if isinstance(inner, Primitive | Fixed) and isinstance(branch, Primitive | Fixed):
            logicals = [node.logical.name for node in (inner, branch) if node.logical is not None]
            if "decimal" in logicals:
                return "decimal-changed"
            if logicals:
                return "logical-changed"
        return "type-changed"


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
