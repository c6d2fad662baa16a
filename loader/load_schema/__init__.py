"""The load schema: what a topic's files are written in and its Hive table declares.

It is a fold over the versions of the topic's subject, `fold(state, version, schema) -> state`, so that a column never
changes its meaning, and every file written before stays readable (by Avro resolution and by Hive's deserializer,
which also looks fields up in the file's own schema). A row is written by the text of the load schema and the route by
which the message's version was folded in (`kept_route`). Versions may call two things by one name and one thing by two,
so the text alone cannot say where a version's fields went; and where they went once they go for ever.

**What is fed by what.** When a version is folded in, its record is laid over a load record field by field, in the load
record's order, top level and nested alike. A column takes the first of its sources that the writer's record has, that
no earlier column of this record took, and whose type the column holds. For a writer schema that is not one of the
versions `route_fields` computes the same from the text as it is now.

    field property        meaning
    headrace.source       list of writer field names that feed the column, newest name first; when absent, the
                          column's own name alone. [""] is a message that is not a record, as a whole (column `value`).
    headrace.former       list of further such names, which feed the column only in schemas that are no versions, and
                          where no other column of the record takes the field (the name was given to another field).
    headrace.absent       "null": a row that nothing feeds is null; when absent, it is the column's default
                          (which is null for most columns that can be without a value).
    headrace.branch       in a record of members: the writer's union branch that the member holds (`int`, `array`,
                          or the name of the named type, without namespace).

    type property         meaning
    headrace.kind         "members" on a record: a union of several branches, at most one member is not null. A
                          writer type that is no union counts as its only branch.
                          "json" on a string: the value's Avro-JSON text (recursive types).
                          "unscaled" on bytes: the unscaled value of a decimal that Hive cannot hold, copied.
    headrace.decimal      beside "unscaled": "precision,scale" of the writer.
    headrace.widened      list of primitive types that the column was widened from and still holds by promotion
                          although that may round (`long` in a column that became `double`).
    headrace.names        on a record or enum: list of further type names (without namespace) that mean this type.

**What keeps a column.** A value goes on in its old column wherever that column can hold it exactly by Avro promotion
and means the same: an int writer in a long column (a narrowing), a nullable writer, an enum or record whose alias
says it is the old one, a uuid annotation, a decimal with more digits and the same scale. Only what is left opens a
sibling `<name>__<kind>`; the old column then stays and is null in new rows. The reasons are the rows of `RULES`.

Load types are plain: no references (a named type that stands in two places is two types), no doc (what versions say of
their fields is kept beside the text, and stands in the table's schema alone), no union but `["null", T]` or
`[T, "null"]`, no one-branch union. Nullability follows the column, never the writer: a writer's null goes to null, and
a writer's value into a nullable column is the value.
"""

from __future__ import annotations

from headrace.loader.load_schema.changes import column_changes
from headrace.loader.load_schema.fold import EMPTY, RULES, AppliedRule, ExplainedRule, LoadState, explain, fold
from headrace.loader.load_schema.kafka_record import load_schema_with_kafka, wider_column
from headrace.loader.load_schema.kept_route import KeptRoute, Place, keep, member_of, places
from headrace.loader.load_schema.merge import LoadSchemaTooLarge
from headrace.loader.load_schema.route import (
    NOTHING_AROUND,
    Around,
    Route,
    Routed,
    route_branch,
    route_by_kept,
    route_fields,
)
from headrace.loader.load_schema.table_schema import commented_table_schema, table_schema
from headrace.loader.load_schema.text import load_record, root_record
from headrace.loader.load_schema.types import (
    ABSENT,
    BRANCH,
    DECIMAL,
    FORMER,
    JSON,
    KIND,
    MEMBERS,
    NAMES,
    SOURCE,
    UNSCALED,
    WIDENED,
    kind_of,
    sources,
    split,
)

__all__ = [
    "ABSENT",
    "BRANCH",
    "DECIMAL",
    "EMPTY",
    "FORMER",
    "JSON",
    "KIND",
    "MEMBERS",
    "NAMES",
    "NOTHING_AROUND",
    "RULES",
    "SOURCE",
    "UNSCALED",
    "WIDENED",
    "AppliedRule",
    "Around",
    "ExplainedRule",
    "KeptRoute",
    "LoadSchemaTooLarge",
    "LoadState",
    "Place",
    "Route",
    "Routed",
    "column_changes",
    "commented_table_schema",
    "explain",
    "fold",
    "keep",
    "kind_of",
    "load_record",
    "load_schema_with_kafka",
    "member_of",
    "places",
    "root_record",
    "route_branch",
    "route_by_kept",
    "route_fields",
    "sources",
    "split",
    "table_schema",
    "wider_column",
]
