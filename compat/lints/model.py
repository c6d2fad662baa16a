"""What a lint is: a row of a name, a purpose and a function that looks at one schema, and at its earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.avro_schema import Position, Schema
from headrace.compat.finding import Severity, VersionedSchema


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One thing a lint has to say. `path` is the way to it in the data, as `compat.describe.describe_field` takes it.

    `new` and `old` are the fragments of the candidate and of the earlier version that it is about.
    """

    sentence: str
    fix: str
    position: Position
    path: tuple[str, ...] = ()
    new: str = ""
    old: str = ""
    earlier: VersionedSchema | None = None


@dataclass(frozen=True, slots=True)
class LintInput:
    """What lints look at: the candidate, and the versions it is compared with, newest first."""

    candidate: Schema
    earlier: Sequence[VersionedSchema] = ()
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Lint:
    """`severity` is what it has unless asked otherwise; only errors make a schema fail."""

    id: str
    purpose: str
    why: str
    severity: Severity
    check: Callable[[LintInput], Iterator[LintFinding]]


@dataclass(frozen=True, slots=True)
class EnabledLint:
    """A lint at the severity that is wanted; `is_explicit` is false of one that is looked at by default."""

    lint: Lint
    severity: Severity
    is_explicit: bool = True
