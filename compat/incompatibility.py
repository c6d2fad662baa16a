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
class Trail:
    """Steps from the root to a place, shared with the places around it: a comparison has very many of them."""

    step: str
    outer: Trail | None = None

    def steps(self) -> tuple[str, ...]:
        """The steps, outermost first."""
        found = []
        trail: Trail | None = self
        while trail is not None:
            found.append(trail.step)
            trail = trail.outer
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Side:
    """Where the walk stands in one of the two schemas.

    `position` is in the schema's own text: inside a type that comes from a referenced schema (`foreign`) it is the
    place that names that type.
    """

    trail: Trail | None
    position: Position
    foreign: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Field names, "[]" for items of an array and "{}" for values of a map."""
        return self.trail.steps() if self.trail is not None else ()


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why the reader cannot read what the writer wrote.

    `location` and `message` are Avro Java's. `reader` and `writer` are the nodes compared, references followed.
    `field` is the reader's field when the writer has none for it, or several. `causes` says what is wrong inside the
    branch of a union that was meant, which Avro Java does not tell; of unions inside unions the innermost problems,
    so that a cause has no causes.
    """

    type: IncompatibilityType
    location_trail: Trail
    message: str
    reader: Type
    writer: Type
    reader_side: Side
    writer_side: Side
    field: Field | None = None
    causes: tuple[Incompatibility, ...] = ()

    @property
    def location(self) -> str:
        """A JSON pointer into the reader; in a writer's union the index is that of the writer's branch."""
        steps = self.location_trail.steps()[1:]
        return "/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)
