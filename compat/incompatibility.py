"""Why a reader cannot read what a writer wrote: the values that a comparison gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.avro_schema import Field, Position, Type


class IncompatibilityType(StrEnum):
    """The six types of Avro Java, and the case in which it gives up with an exception."""

    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"
    AMBIGUOUS_FIELD_ALIAS = "AMBIGUOUS_FIELD_ALIAS"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinkedPath:
    """Steps from the root to a place, shared with the places around it: a comparison has very many of them."""

    step: str
    outer: LinkedPath | None = None

    def steps(self) -> tuple[str, ...]:
        """The steps, outermost first."""
        found = []
        linked_path: LinkedPath | None = self
        while linked_path is not None:
            found.append(linked_path.step)
            linked_path = linked_path.outer
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class ComparedNode:
    """Where the walk stands in one of the two schemas.

    `position` is in the schema's own text: inside a type that comes from a referenced schema (`is_external`) it is the
    place that names that type.
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
    """One reason why the reader cannot read what the writer wrote.

    `location` and `message` are Avro Java's. `reader` and `writer` are the nodes compared, references followed.
    `field` is the reader's field when the writer has none for it, or several. `causes` says what is wrong inside the
    branch of a union that was meant, which Avro Java does not tell; of unions inside unions the innermost problems,
    so that a cause has no causes.
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
        """A JSON pointer into the reader; in a writer's union the index is that of the writer's branch."""
        steps = self.location_path.steps()[1:]
        return "/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)
