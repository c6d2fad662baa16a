"""The values that a check gives: findings, and the report that holds all of them."""

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
"""The rule that is about a schema which is no longer there, and not about a pair."""


LOGICAL_POLICY = "LOGICAL_POLICY"
RESERVED_FIELD = "RESERVED_FIELD"
"""Rules that a registered subject asks for in its configuration: see `compat.subject_policy`."""


class Direction(StrEnum):
    """Which of the two schemas reads: the candidate old data (backward), or an old version the candidate's."""

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
    """What a level asks for: in which directions, in the order they are reported, and of all versions or the latest."""

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
    """The level a word means, in any case.

    Raises:
        InvalidLevel: it means none.
    """
    try:
        return CompatibilityLevel(text.upper())
    except ValueError:
        raise InvalidLevel(text, tuple(CompatibilityLevel)) from None


@dataclass(frozen=True, slots=True)
class VersionedSchema:
    """One version of a history. `label` is what people call it, such as its file; else it is called by its number."""

    version: int
    schema: Schema
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or f"version {self.version}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of the candidate against one version.

    `pointer` and `position` are in the candidate's own text. `sentence` says what is wrong, `fix` what to do.
    `causes` are the problems inside, where the finding is about a branch of a union.
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
    """The answer of one check: every finding, against which versions (newest first), at which level."""

    candidate: Schema
    level: CompatibilityLevel
    compared: tuple[VersionedSchema, ...]
    findings: tuple[Finding, ...]

    @property
    def is_compatible(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)
