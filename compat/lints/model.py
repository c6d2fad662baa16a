"""Values of a lint: its description, its input and its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.avro_schema import Position, Schema
from headrace.compat.finding import Severity, VersionedSchema


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding of a lint. `path` leads to the affected type: field names, "[]" for items of an array and "{}" for
    values of a map.

    `new` and `old` are the schema texts, or the names, of the affected type or field in the candidate (the new schema)
    and in the earlier version; "" if the lint gives none.
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
    """Input of a lint: the candidate (the new schema) and the versions it is compared with, newest first."""

    candidate: Schema
    earlier: Sequence[VersionedSchema] = ()
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Lint:
    """A rule beyond compatibility: `purpose` states its requirement, `rationale` the reason. `severity` is its severity
    unless configured otherwise; only errors fail a check."""

    id: str
    purpose: str
    rationale: str
    severity: Severity
    check: Callable[[LintInput], Iterator[LintFinding]]


@dataclass(frozen=True, slots=True)
class EnabledLint:
    """A lint with the configured severity; `is_explicit` is false for a lint of `DEFAULT_LINTS` that was not enabled by
    name.
    """

    lint: Lint
    severity: Severity
    is_explicit: bool = True
