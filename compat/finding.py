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
"""Rule that a deleted schema file must have a replacement. It is about the files of a run, not about a pair of schemas.
"""


LOGICAL_POLICY = "LOGICAL_POLICY"
RESERVED_FIELD = "RESERVED_FIELD"
"""`LOGICAL_POLICY` (a field keeps its logical type) and `RESERVED_FIELD` (no field has a reserved name) are rules that
apply only if the subject's configuration enables them, see `compat.subject_policy`."""


class Direction(StrEnum):
    """The direction of a comparison. Backward: the candidate (the new schema) is the reader, an earlier version the
    writer. Forward: the earlier version is the reader, the candidate the writer."""

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
    """The comparisons that a level requires: its directions, in reporting order, and whether all versions are compared
    or only the latest."""

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
    """Returns the level with this name; case does not matter.

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
    """One problem between the candidate (the new schema) and one earlier version.

    `version` and `version_name` identify the earlier version. `position` and `pointer` (a JSON pointer) are in the
    candidate's text. `sentence` describes the problem, `fix` the remedy. `causes` are the problems inside a union
    branch, if the finding is about one.
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
    """Result of the check of one candidate (a new schema): all findings, the level, and the compared versions (newest
    first)."""

    candidate: Schema
    level: CompatibilityLevel
    compared: tuple[VersionedSchema, ...]
    findings: tuple[Finding, ...]

    @property
    def is_compatible(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)
