"""What every baseline is: subjects in, histories out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.avro_schema import Schema
from headrace.compat import LEVELS, CompatibilityLevel
from headrace.compat.check_result import Failure, FailureKind
from headrace.compat.checking.inputs import SchemaFile
from headrace.compat.checking.scope import FileScope
from headrace.compat.checking.type_sets import root_type_name
from headrace.compat.subject_policy import NO_POLICY, SubjectPolicy

DEFAULT_LEVEL = CompatibilityLevel.BACKWARD


class BaselineFailed(Exception):
    """Nothing can be compared; `failures` say why, each in one line."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__("; ".join(failure.text() for failure in failures))
        self.failures = tuple(failures)

    @classmethod
    def from_reason(cls, kind: FailureKind, name: str, message: str) -> BaselineFailed:
        return cls([Failure(kind, name, message)])


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """`level` is what the user asked for, None to leave it to the baseline. `all_versions` makes any level
    transitive."""

    level: CompatibilityLevel | None = None
    all_versions: bool = False

    def effective(self, own: CompatibilityLevel | None) -> CompatibilityLevel:
        """The level that holds where the baseline's own is `own`."""
        level = self.level or own or DEFAULT_LEVEL
        if self.all_versions and level is not CompatibilityLevel.NONE and not LEVELS[level].transitive:
            return CompatibilityLevel(f"{level.value}_TRANSITIVE")
        return level

    def is_transitive(self, own: CompatibilityLevel | None = None) -> bool:
        return LEVELS[self.effective(own)].transitive


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schema whose earlier versions are wanted."""

    file: SchemaFile
    subject: str
    text: str

    @property
    def record(self) -> str:
        return root_type_name(self.text)


@dataclass(frozen=True, slots=True)
class EarlierVersion:
    """One earlier version. `parse` gives its schema or raises SchemaParseError."""

    version: int
    label: str
    text: str
    parse: Callable[[], Schema] = field(compare=False)


@dataclass(frozen=True, slots=True)
class VersionHistory:
    """The earlier versions of one schema, ascending; none when it is new.

    `known` is the number of versions that there are, of which those that no level asks for may have been left out.
    `level` is the baseline's own for this schema, chosen by `level_origin`, `terms` what it asks for besides.
    """

    versions: tuple[EarlierVersion, ...] = ()
    version_count: int = 0
    level: CompatibilityLevel | None = None
    level_origin: str = ""
    notes: tuple[str, ...] = ()
    terms: SubjectPolicy = NO_POLICY


class Baseline(Protocol):
    @property
    def name(self) -> str:
        """What the schemas are compared with, in a few words."""
        ...

    def histories(self, candidates: Sequence[Candidate], choice: LevelChoice) -> Sequence[VersionHistory]:
        """The history of each, in the same order.

        Raises:
            BaselineFailed: it cannot be told.
        """
        ...

    def deleted_files(self, scope: FileScope) -> Sequence[tuple[str, str]]:
        """Path and text of what it has and the working tree has not, though the command line means it; none where it
        does not know files by their place.

        Raises:
            BaselineFailed: it cannot be told.
        """
        ...

    def find_equal_version(self, candidate: Candidate, text: str) -> str:
        """The version that a schema is already, by what people call it; "" for none. Only a registry is asked: it
        takes what it has for that version, whatever the ones after it say.

        Args:
            text: the schema with all types of other files written out.

        Raises:
            BaselineFailed: it cannot be told.
        """
        ...
