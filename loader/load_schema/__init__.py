"""The load schema: the schema of a topic's files, which its Hive table declares.

It is computed from the versions of the topic's subject, one after the other: `fold(state, version, schema) -> state`.
"To fold in a version" means such a step; "the fold" is the whole computation. A column never changes its meaning, and
every earlier file stays readable, by Avro resolution and by Hive's deserializer, which also finds fields in the file's
own schema. A row is written with the text of the load schema and the route of its message's version (`stored_route`),
which states the column of each writer field. Versions may use one name for two things and two names for one thing, so
the text alone does not determine the columns of a version's fields; a stored route never changes.

In this package, the writer's types and fields belong to a version, or to another schema with which messages were
written. Their counterparts in the load schema are load types, load records and columns; a field of a nested load
record is a column too.

**Sources of columns.** When a version is folded in, each of its records is matched with the load record for it, column
by column, in the order of the load record. Of its sources, a column considers the first one that the writer's record
has and that no earlier column of this record took. It takes it if the column can hold its type. For a writer schema
that is not a version of the subject, `route_fields` computes the same from the present text.

    field property        meaning
    headrace.source       list of names of writer fields that feed the column (it gets their values), newest
                          first; if absent, the column's own name. [""] is the source of the column `value`,
                          which gets whole messages that are not records.
    headrace.former       list of further such names, used only for schemas that are not versions of the subject, if no
                          other column of the record takes the field (the name now belongs to another field).
    headrace.absent       "null": null in rows without a source; if absent, such rows have the column's default
                          (which is null for most nullable columns).
    headrace.branch       in a record of members: list of the writer's union branches that the member holds, newest
                          first: `int`, `array`, or the full name of a named type. Several are names of one type that
                          was renamed with aliases.

    type property         meaning
    headrace.kind         "members" on a record: a union of several branches, at most one member is not null. A
                          writer type that is no union counts as its only branch.
                          "json" on a string: the value's Avro-JSON text (recursive, too large or too deep types).
                          "unscaled" on bytes: the unscaled value of a decimal that Hive cannot hold, copied.
    headrace.decimal      with "unscaled": "precision,scale" of the writer.
    headrace.widened      list of primitive types that the column was widened from and still holds by promotion
                          although that may round (`long` in a column that became `double`).
    headrace.names        on a record, enum or fixed: list of the full names of the writer's types for which it
                          stands; if absent, only its own name.

**When a column is reused.** A value stays in its column if the column can hold it by Avro promotion and the meaning is
the same. The promotion is exact, except when a column is widened to float or double, and for types that it was widened
from. Examples: an int writer in a long column (a narrowing), a nullable writer, an enum or record with an alias to the
old one, a uuid annotation, a decimal with more digits and the same scale. Otherwise a sibling column `<name>__<kind>`
is added; the old column stays and is null in new rows. The reasons are the rows of `RULES`.

Load types are plain: no references (a named type used twice becomes two types), no doc (docs of fields are stored next
to the text and appear only in the table's schema), no union except `["null", T]` or `[T, "null"]`, no one-branch union.
Nullability follows the column, not the writer: a writer's null becomes null, and a writer's value in a nullable column
is the value.
"""

from __future__ import annotations

from headrace.loader.load_schema.changes import column_changes
from headrace.loader.load_schema.columns import SIBLING_RULES, WHOLE_MESSAGE_COLUMN
from headrace.loader.load_schema.fold import (
    EMPTY,
    RULES,
    AppliedRule,
    ExplainedRule,
    LoadState,
    column_versions,
    explain,
    fold,
    with_owner,
)
from headrace.loader.load_schema.kafka_record import load_schema_with_kafka, wider_column
from headrace.loader.load_schema.merge import LoadSchemaTooLarge
from headrace.loader.load_schema.route import Route, RoutedColumn, route_by_stored, route_fields
from headrace.loader.load_schema.stored_route import (
    IDENTITY_ROUTE,
    RouteEntry,
    StoredRoute,
    member_of,
    route_entries,
    stored_route,
)
from headrace.loader.load_schema.table_schema import commented_table_schema, table_comment, table_owner, table_schema
from headrace.loader.load_schema.text import load_record, root_record
from headrace.loader.load_schema.types import (
    ABSENT,
    BRANCH,
    COLUMN_NAME_CHARS_MAX,
    DECIMAL,
    FORMER,
    JSON,
    KIND,
    MEMBERS,
    NAMES,
    RESERVED_COLUMNS,
    SOURCE,
    UNSCALED,
    WIDENED,
    accepted_names,
    kind_of,
    prop,
    sources,
    split,
)

__all__ = [
    "ABSENT",
    "BRANCH",
    "COLUMN_NAME_CHARS_MAX",
    "DECIMAL",
    "EMPTY",
    "FORMER",
    "IDENTITY_ROUTE",
    "JSON",
    "KIND",
    "MEMBERS",
    "NAMES",
    "RESERVED_COLUMNS",
    "RULES",
    "SIBLING_RULES",
    "SOURCE",
    "UNSCALED",
    "WHOLE_MESSAGE_COLUMN",
    "WIDENED",
    "AppliedRule",
    "ExplainedRule",
    "LoadSchemaTooLarge",
    "LoadState",
    "Route",
    "RouteEntry",
    "RoutedColumn",
    "StoredRoute",
    "accepted_names",
    "column_changes",
    "column_versions",
    "commented_table_schema",
    "explain",
    "fold",
    "kind_of",
    "load_record",
    "load_schema_with_kafka",
    "member_of",
    "prop",
    "root_record",
    "route_by_stored",
    "route_entries",
    "route_fields",
    "sources",
    "split",
    "stored_route",
    "table_comment",
    "table_owner",
    "table_schema",
    "wider_column",
    "with_owner",
]
