"""Findings of a check, and the report that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from headrace.avro_schema import Position, Schema
from headrace.compat.describe import schema_fragment
from headrace.compat.errors import InvalidLevel
from headrace.compat.incompatibility import Incompatibility, IncompatibilityType


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


SCHEMA_DELETED = "SCHEMA_DELETED"
"""Rule about a schema file that was deleted; it belongs to a run, not to a pair of schemas."""


LOGICAL_POLICY = "LOGICAL_POLICY"
RESERVED_FIELD = "RESERVED_FIELD"
"""`LOGICAL_POLICY` and `RESERVED_FIELD` are rules that apply if the subject's configuration enables them, see
`compat.subject_policy`."""


class Direction(StrEnum):
    """Which schema is the reader: the candidate reads old data (backward), or an old version reads the candidate's
    (forward).
    """

    BACKWARD = "backward"
    FORWARD = "forward"


class CompatibilityLevel(StrEnum):
    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class LevelRule:
    """Directions that a level compares, in reporting order, and whether it compares all versions or only the latest."""

    directions: tuple[Direction, ...]
    transitive: bool


LEVELS: Mapping[CompatibilityLevel, LevelRule] = MappingProxyType(
    {
        CompatibilityLevel.NONE: LevelRule((), False),
        CompatibilityLevel.BACKWARD: LevelRule((Direction.BACKWARD,), False),
        CompatibilityLevel.BACKWARD_TRANSITIVE: LevelRule((Direction.BACKWARD,), True),
        CompatibilityLevel.FORWARD: LevelRule((Direction.FORWARD,), False),
        CompatibilityLevel.FORWARD_TRANSITIVE: LevelRule((Direction.FORWARD,), True),
        CompatibilityLevel.FULL: LevelRule((Direction.FORWARD, Direction.BACKWARD), False),
        CompatibilityLevel.FULL_TRANSITIVE: LevelRule((Direction.FORWARD, Direction.BACKWARD), True),
    }
)


def parse_level(text: str) -> CompatibilityLevel:
    """Returns the level of a name in any case.

    Raises:
        InvalidLevel: the text is not a level.
    """
    try:
        return CompatibilityLevel(text.upper())
    except ValueError:
        raise InvalidLevel(text, tuple(CompatibilityLevel)) from None


@dataclass(frozen=True, slots=True)
class VersionedSchema:
    """One earlier version of a subject. `label`, such as a file name, is shown instead of the version number."""

    version: int
    schema: Schema
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or f"version {self.version}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of the candidate with one version.

    `pointer` and `position` are in the candidate's text. `sentence` describes the problem, `fix` the remedy. For a
    finding about a union branch, `causes` are the problems inside that branch.
    """

    rule: IncompatibilityType
    severity: Severity
    direction: Direction
    version: int
    version_name: str
    position: Position
    sentence: str
    fix: str
    incompatibility: Incompatibility
    causes: tuple[Finding, ...] = ()

    @property
    def pointer(self) -> str:
        return self.position.pointer

    @property
    def reader_fragment(self) -> str:
        problem = self.incompatibility
        return schema_fragment(problem.field or problem.reader)

    @property
    def writer_fragment(self) -> str:
        return schema_fragment(self.incompatibility.writer)


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one check: all findings, the level, and the compared versions (newest first)."""

    candidate: Schema
    level: CompatibilityLevel
    compared: tuple[VersionedSchema, ...]
    findings: tuple[Finding, ...]

    @property
    def is_compatible(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)
