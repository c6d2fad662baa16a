"""The values that a comparison of two schemas returns: reasons why a reader cannot read the data of a writer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.avro_schema import Field, Position, Type


class IncompatibilityType(StrEnum):
    """Kinds of incompatibility: the six of Avro Java's `SchemaCompatibility`, and `AMBIGUOUS_FIELD_ALIAS`, for which
    Avro Java throws an exception."""

    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"
    AMBIGUOUS_FIELD_ALIAS = "AMBIGUOUS_FIELD_ALIAS"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinkedPath:
    """Path from the root of a schema as a linked list. A comparison has many paths; paths with the same beginning share
    it."""

    step: str
    outer: LinkedPath | None = None

    def steps(self) -> tuple[str, ...]:
        """Returns the elements of the path, outermost first."""
        found = []
        linked_path: LinkedPath | None = self
        while linked_path is not None:
            found.append(linked_path.step)
            linked_path = linked_path.outer
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class ComparedNode:
    """The place of a compared type in one of the two schemas.

    `position` is in the schema's own text. Inside a type of a referenced schema (`is_external`) it is the position of
    the reference.
    """

    linked_path: LinkedPath | None
    position: Position
    is_external: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Path of the compared type from the root of its schema: field names, "[]" for items of an array and "{}" for
        values of a map."""
        return self.linked_path.steps() if self.linked_path is not None else ()


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why the reader cannot read the writer's data.

    `location` and `message` have Avro Java's values. `reader` and `writer` are the compared types with references
    resolved, `reader_side` and `writer_side` their places in the two schemas. `field` is set only if a reader's field
    matches no field of the writer, or several.

    `causes` are the problems inside the union branch that was probably intended, which Avro Java does not report. If
    that branch contains unions, the problems inside the innermost union are listed; a cause therefore has no causes
    itself.
    """

    type: IncompatibilityType
    location_path: LinkedPath
    message: str
    reader: Type
    writer: Type
    reader_side: ComparedNode
    writer_side: ComparedNode
    field: Field | None = None
    causes: tuple[Incompatibility, ...] = ()

    @property
    def location(self) -> str:
        """JSON pointer into the reader schema, as Avro Java reports it. At a union of the writer it contains the index
        of the writer's branch."""
        steps = self.location_path.steps()[1:]
        return "/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)
