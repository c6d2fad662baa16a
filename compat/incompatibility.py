"""Reasons why a reader cannot read the data of a writer: the values that a comparison returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.avro_schema import Field, Position, Type


class IncompatibilityType(StrEnum):
    """The six types of Avro Java, and the case in which Avro Java throws an exception."""

    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"
    AMBIGUOUS_FIELD_ALIAS = "AMBIGUOUS_FIELD_ALIAS"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinkedPath:
    """Path from the root of a schema as a linked list. A comparison has many paths, which share their beginnings."""

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
        """Field names, "[]" for items of an array and "{}" for values of a map."""
        return self.linked_path.steps() if self.linked_path is not None else ()


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why the reader cannot read the writer's data.

    `location` and `message` are Avro Java's. `reader` and `writer` are the compared nodes with references resolved.
    `field` is the reader's field if the writer has no or several fields for it. `causes` are the problems inside the
    union branch that was intended, which Avro Java does not report. For unions inside unions they are the innermost
    problems, so that a cause has no causes.
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
        """JSON pointer into the reader; the index inside a writer's union is that of the writer's branch."""
        steps = self.location_path.steps()[1:]
        return "/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)
