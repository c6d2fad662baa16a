"""Matches the fields of a writer's record with load columns: finds the column of each field, and changes the columns
where necessary.

A field "feeds" the column in which its values are stored. When a version of the subject is folded in
(`may_change=True`), columns are changed and added, and the route found here is stored. The same code matches writer
schemas that are not versions of the subject, without changing columns (`may_change=False`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.avro_schema import (
    NO_DEFAULT,
    Array,
    Field,
    Fixed,
    JsonValue,
    Map,
    Name,
    Primitive,
    PrimitiveType,
    Record,
    Type,
)
from headrace.loader.load_schema.merge import TypeFolding, UnsupportedColumnType
from headrace.loader.load_schema.stored_route import IDENTITY_ROUTE, FoldedType, RouteEntry, StoredRoute, stored_route
from headrace.loader.load_schema.types import (
    ABSENT,
    FORMER,
    JSON,
    KIND,
    NULL,
    ColumnNames,
    former_sources,
    is_hive_resolvable,
    is_safe_default,
    may_default_when_nullable,
    nullable,
    prop,
    rejoin,
    sources,
    split,
    type_word,
    typed_default,
    with_prop,
    with_sources,
)

WHOLE_MESSAGE_COLUMN = "value"
"""The name of the column for messages that are not records."""

RENAMED_FROM = "from "
"""Detail of the rule `renamed`, before the earlier name."""


class FeedingField(NamedTuple):
    """The writer field that feeds a column, and the route from the parts of the field to the parts of the column."""

    field: Field
    route: StoredRoute


class Folding(TypeFolding):
    """Folds one writer schema into a load schema, including its records (`TypeFolding` handles other types).

    In its methods, `node` is a type of the writer, `path` the dotted path of a column or of a record in a column (""
    for the top level), and `enclosing_records` the names of the writer's records that enclose `node`.
    """

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
        """Folds a writer's record into a load record. Each field of the writer feeds an existing column, which may be
        widened, or a new column. Columns that no field feeds become nullable. Returns the changed load record, and the
        route from the fields to its columns.

        Args:
            load: the record of the load schema that has the columns.
            node: the writer's record.
            path: the dotted path of the load record, "" at the top level.
            enclosing_records: names of the writer's records that enclose `node`.
            is_new: whether the load record is created now, so that it has no columns yet.
            reserved: names in lower case that no column may have.
        """
        enclosing_records = enclosing_records | {node.name}
        columns = load.fields
        if self.may_change and not is_new:
            columns = tuple(self.rename_columns(columns, node, path, enclosing_records, reserved))
        feeding_fields, folded = self.match_columns(columns, node, path, enclosing_records)
        entries = {
            feeding.field.name: RouteEntry(i, feeding.route)
            for i, feeding in enumerate(feeding_fields)
            if feeding is not None
        }
        holders = holders_by_source(folded)
        names = ColumnNames(folded, reserved)
        for field in node.fields:
            if field.name not in entries:
                siblings = self.retire_source(folded, feeding_fields, holders.get(field.name, ()), field.name, path)
                column, route = self.new_column(
                    field, siblings, names, path, enclosing_records, is_new=is_new, reserved=reserved
                )
                entries[field.name] = RouteEntry(len(folded), route)
                names.add(column)
                folded.append(column)
        return replace(load, fields=tuple(folded)), stored_route(entries[field.name] for field in node.fields)

    def match_columns(
        self, columns: Sequence[Field], node: Record, path: str, enclosing_records: frozenset[Name]
    ) -> tuple[list[FeedingField | None], list[Field]]:
        """Finds the field of a writer's record that feeds each existing column, and changes the columns as necessary.

        Args:
            columns: the columns of the load record for the writer's record.
            node: the writer's record.
            path: the dotted path of the load record, "" at the top level.
            enclosing_records: names of the writer's enclosing records, including `node`; a type with one of them is
                recursive.

        Returns:
            For each column, the field that feeds it, or None; and the columns after their changes.
        """
        unmatched = {field.name: field for field in node.fields}
        feeding_fields: list[FeedingField | None] = [None] * len(columns)
        folded = list(columns)
        for names_of, positions, by_full_name in self.passes(columns):
            for i in positions:
                column = columns[i]
                name = next((source for source in names_of(column) if source in unmatched), None)
                if feeding_fields[i] is not None or name is None:
                    continue
                merged = self.try_merge(column, unmatched[name], path, enclosing_records, by_full_name=by_full_name)
                # With may_change=False, a column that would have to change is not fed: the name may have meant another
                # column.
                if merged is not None and (self.may_change or merged.type == column.type):
                    feeding_fields[i] = FeedingField(unmatched.pop(name), merged.route)
                    folded[i] = column if merged.type == column.type else self.with_type(column, merged.type, path)
        names = {field.name for field in node.fields}
        for i, column in enumerate(columns):
            if feeding_fields[i] is None:
                folded[i] = self.make_optional(column, path, is_removed=names.isdisjoint(sources(column)))
        return feeding_fields, folded

    def passes(
        self, columns: Sequence[Field]
    ) -> Iterator[tuple[Callable[[Field], tuple[str, ...]], Sequence[int], bool]]:
        """Yields the passes over the columns of a load record in which fields for the columns are sought: the names of
        fields that may feed a column, the positions of the columns to consider, and whether named types match only by
        their full names.

        Of several columns for one field, a column that has held a type of the same full name takes precedence over one
        that has held a type of this name in another namespace.
        """
        shared = {i for holders in holders_by_source(columns).values() if len(holders) > 1 for i in holders}
        if shared and not self.by_full_name:
            yield sources, sorted(shared), True
        yield sources, range(len(columns)), self.by_full_name
        # A former name means this column only in versions before the name was reused, so never in the version being
        # folded.
        if not self.may_change:
            yield former_sources, range(len(columns)), self.by_full_name

    def try_merge(
        self, column: Field, field: Field, path: str, enclosing_records: frozenset[Name], *, by_full_name: bool
    ) -> FoldedType | None:
        """Returns the type of `column` after the field is merged into it, and the route for the field's values; None if
        the column cannot hold them. With `by_full_name`, named types match only by their full names."""
        if not path:
            self.column_nodes = 0
        note_count = len(self.notes)
        outer_by_full_name, self.by_full_name = self.by_full_name, by_full_name
        try:
            return self.merge(column.type, field.type, joined(path, column.name), enclosing_records, column.default)
        except UnsupportedColumnType:
            del self.notes[note_count:]
            return None
        finally:
            self.by_full_name = outer_by_full_name

    def make_optional(self, column: Field, path: str, *, is_removed: bool) -> Field:
        """Makes a column nullable, because no field of the version that is folded in feeds it: it is null in rows of
        this version. Returns the changed column. Without `may_change`, a column that is nullable or has a default does
        not change.

        Args:
            path: the dotted path of the record that has the column, "" at the top level.
            is_removed: True if the version has none of the fields that are sources of the column; False if it has one
                that feeds another column or that this column cannot hold.
        """
        inner, is_nullable = split(column.type)
        has_value = column.has_default and column.default is not None
        if not self.may_change and (is_nullable or column.has_default):
            return column
        if is_removed and (not is_nullable or (has_value and prop(column.props, ABSENT) is None)):
            self.note(joined(path, column.name), "removed")
        if not has_value:
            return replace(column, type=nullable(inner), default=None)
        column = self.with_type(column, nullable(inner, last=True), path)
        return column if column.default is None else replace(column, props=with_prop(column.props, ABSENT, "null"))

    def with_type(self, column: Field, node: Type, path: str) -> Field:
        """Returns the column with its type changed to `node`. If that type is nullable and cannot have the column's
        default, the column loses the default.

        Args:
            path: the dotted path of the record that has the column, "" at the top level.
        """
        inner, is_nullable = split(node)
        if column.default is None or not column.has_default:
            return replace(column, type=node)
        if not is_nullable or may_default_when_nullable(inner):
            return replace(column, type=node, default=typed_default(inner, column.default))
        self.note(joined(path, column.name), "default-dropped")
        return replace(column, type=nullable(inner), default=None)

    def rename_columns(
        self,
        columns: Sequence[Field],
        node: Record,
        path: str,
        enclosing_records: frozenset[Name],
        reserved: Container[str],
    ) -> Sequence[Field]:
        """Returns the columns of a load record after the renames of this version. A field has been renamed if it is not
        a source of a column yet, and one of its aliases is a source of a column and not the name of a field of `node`.
        The column gets the field's name, with a suffix if the name is taken, if `rename_column` permits it.

        Args:
            columns: the columns before the renames.
            node: the writer's record, whose fields have the new names and the aliases.
            path: the dotted path of the load record, "" at the top level.
            enclosing_records: names of the writer's enclosing records, including `node`.
            reserved: names in lower case that no column may have.
        """
        field_names = {field.name for field in node.fields}
        columns = list(columns)
        # Not updated by renames: they add names of present fields, which later renames do not look up.
        holders = holders_by_source(columns)
        names = ColumnNames(columns, reserved)
        for field in node.fields:
            old = next((alias for alias in field.aliases if alias in holders and alias not in field_names), None)
            if old is not None and field.name not in holders:
                self.rename_column(columns, holders[old], names, field, path, enclosing_records)
        return columns

    def rename_column(
        self,
        columns: list[Field],
        holders_of_old_name: Sequence[int],
        names: ColumnNames,
        field: Field,
        path: str,
        enclosing_records: frozenset[Name],
    ) -> None:
        """Carries out one rename in `columns`, the columns of a load record. The field becomes a source of all columns
        in `holders_of_old_name`. The first of them that can hold the field's values gets the field's name. Changes
        nothing if no column can hold them, or if Hive could not find that column under an alias.

        Args:
            holders_of_old_name: positions of the columns that the field's old name fed.
            names: names that the columns of this record have or had; updated.
            field: the writer's field with its new name.
            path: the dotted path of the load record, "" at the top level.
            enclosing_records: names of the writer's records that enclose the field.
        """
        note_count = len(self.notes)
        has_choice = len(holders_of_old_name) > 1 and not self.by_full_name
        first = next(
            (
                i
                for by_full_name in ((True, False) if has_choice else (self.by_full_name,))
                for i in holders_of_old_name
                if self.try_merge(columns[i], field, path, enclosing_records, by_full_name=by_full_name) is not None
            ),
            None,
        )
        del self.notes[note_count:]
        if first is None:
            return
        if not is_hive_resolvable(columns[first].type):
            self.note(joined(path, field.name), "renamed-beside", f"beside {columns[first].name}")
            return
        for i in holders_of_old_name:
            source_names = (field.name, *sources(columns[i]))
            column = columns[i]
            if i == first:
                names.remove(column)
                name = names.free_name(field.name)
                column = replace(column, name=name, aliases=(column.name, *column.aliases))
                names.add(column)
                self.note(joined(path, name), "renamed", f"{RENAMED_FROM}{columns[i].name}")
            columns[i] = with_sources(column, source_names)

    def retire_source(
        self,
        columns: list[Field],
        feeding_fields: Sequence[FeedingField | None],
        holders: Sequence[int],
        name: str,
        path: str,
    ) -> Sequence[Field]:
        """Prepares the addition of a column for the field `name`, which feeds none of the existing columns.

        If an earlier version had this name for a column that another field feeds now, the name becomes a former source
        of that column. Returns the other columns with the source `name`: the new column becomes their sibling.

        Args:
            columns: all columns of the load record; changed.
            feeding_fields: for each column, the field of this version that feeds it.
            holders: positions of the columns with the source `name`.
            path: the dotted path of the load record, "" at the top level.
        """
        siblings: list[Field] = []
        for i in holders:
            column, feeding = columns[i], feeding_fields[i]
            if self.may_change and feeding is not None and feeding.field.name != name:
                former = [*former_sources(column), name]
                column = with_sources(column, [source for source in sources(column) if source != name])
                columns[i] = replace(column, props=with_prop(column.props, FORMER, former))
                self.note(joined(path, column.name), "name-reused", name)
            else:
                siblings.append(column)
        return siblings

    def new_column(
        self,
        field: Field,
        siblings: Sequence[Field],
        names: ColumnNames,
        path: str,
        enclosing_records: frozenset[Name],
        *,
        is_new: bool,
        reserved: Container[str],
    ) -> tuple[Field, StoredRoute]:
        """Returns a new column for a writer field that no existing column can hold, and the route for the field's
        values.

        Args:
            siblings: existing columns with this field as source; the new column becomes their sibling.
            names: names that the columns of this record have or had; the new column gets another one.
            path: the dotted path of the load record, "" at the top level.
            enclosing_records: names of the writer's records that enclose the field.
            is_new: whether the load record is created now; only then may a column be required.
            reserved: names in lower case that no column may have; used here only to record why a name was changed.
        """
        if not path:
            self.column_nodes = 0
        base = field.name or WHOLE_MESSAGE_COLUMN
        node, route = self.create_type_or_text(field.type, joined(path, base), enclosing_records)
        preferred_name = f"{base}__{type_word(node)}" if siblings else base
        name = names.free_name(preferred_name)
        column_path = joined(path, name)
        if name != preferred_name:
            self.note(
                column_path, "reserved-name" if preferred_name.lower() in reserved else "name-taken", preferred_name
            )
        inner, is_nullable = split(node)
        if siblings:
            self.note(column_path, self.sibling_rule(siblings[0], field), f"beside {siblings[0].name}")
            default: JsonValue = NO_DEFAULT
        else:
            default = self.column_default(field, inner, is_nullable)
            if not is_new:
                self.note(column_path, "added")
        if default is NO_DEFAULT and not is_new:
            if field.has_default and not siblings:
                self.note(column_path, "default-dropped")
            default, is_nullable = None, True
        return with_sources(Field(name, rejoin(inner, is_nullable, default), default), (field.name,)), route

    @staticmethod
    def column_default(field: Field, inner: Type, is_nullable: bool) -> JsonValue:
        """Returns the default for a new column: the writer's default if every reader, including Hive's, can fill it
        into rows of older files, else `NO_DEFAULT`.

        Args:
            field: the writer's field, with its default.
            inner: the column's type without null.
            is_nullable: whether the column's type includes null.
        """
        if field.default is None:
            return None if is_nullable or inner == NULL else NO_DEFAULT
        is_safe = field.has_default and is_safe_default(inner, field.default)
        if not is_safe or (is_nullable and not may_default_when_nullable(inner)):
            return NO_DEFAULT
        return typed_default(inner, field.default)

    def create_type_or_text(self, node: Type, path: str, enclosing_records: frozenset[Name]) -> FoldedType:
        """Returns a new load type for the writer's type `node`, and the route for its values. If no column can hold the
        type, the load type is a string with the value as Avro-JSON text.

        Args:
            path: the dotted path of the new column.
            enclosing_records: names of the writer's records that enclose the type.

        Raises:
            UnsupportedColumnType: the new column is nested and too large, so that the top-level column around it must
                be text.
            LoadSchemaTooLarge: the version has too many types.
        """
        try:
            return self.create_type(node, path, enclosing_records)
        except UnsupportedColumnType as refused:
            if refused.rule == "too-large" and "." in path:
                raise
            self.note(path, refused.rule)
            text = Primitive(PrimitiveType.STRING, props=((KIND, JSON),))
            return FoldedType(rejoin(text, self.branches(node)[1]), IDENTITY_ROUTE)

    def sibling_rule(self, column: Field, field: Field) -> str:
        """Returns the reason, a key of `RULES`, why a field needs a sibling column.

        Args:
            column: the field's present column.
            field: the writer's field. The column cannot hold its values.
        """
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


SIBLING_RULES = frozenset({"branches-gained", "element-changed", "decimal-changed", "logical-changed", "type-changed"})
"""The rules that `sibling_rule` returns."""


def holders_by_source(columns: Sequence[Field]) -> dict[str, list[int]]:
    """Returns, by the name of a writer field, the positions of those columns that have the name as source."""
    holders: dict[str, list[int]] = {}
    for i, column in enumerate(columns):
        for source in sources(column):
            holders.setdefault(source, []).append(i)
    return holders


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
