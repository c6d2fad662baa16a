"""Interface of a baseline: it gets candidates (new schemas) and returns their earlier versions."""

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
    """The baseline or the revision of `--since` cannot be used, so that the check cannot be completed. `failures` hold
    the reasons, one line each."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__("; ".join(failure.text() for failure in failures))
        self.failures = tuple(failures)

    @classmethod
    def from_reason(cls, kind: FailureKind, name: str, message: str) -> BaselineFailed:
        return cls([Failure(kind, name, message)])


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """The level that the user requested. If `level` is None, the baseline's own level applies. With `all_versions`, all
    earlier versions are compared at any level except NONE."""

    level: CompatibilityLevel | None = None
    all_versions: bool = False

    def effective(self, own: CompatibilityLevel | None) -> CompatibilityLevel:
        """Returns the level at which to check: the requested one, else `own` (the baseline's), else the default. With
        `all_versions` it is the transitive form of that level; NONE stays NONE."""
        level = self.level or own or DEFAULT_LEVEL
        if self.all_versions and level is not CompatibilityLevel.NONE and not LEVELS[level].transitive:
            return CompatibilityLevel(f"{level.value}_TRANSITIVE")
        return level

    def is_transitive(self, own: CompatibilityLevel | None = None) -> bool:
        return LEVELS[self.effective(own)].transitive


@dataclass(frozen=True, slots=True)
class CandidateSchema:
    """A new schema to compare with its earlier versions."""

    file: SchemaFile
    subject: str
    text: str

    @property
    def record(self) -> str:
        return root_type_name(self.text)


@dataclass(frozen=True, slots=True)
class EarlierVersion:
    """One earlier version of a schema. `parse` returns its schema or raises SchemaParseError."""

    version: int
    label: str
    text: str
    parse: Callable[[], Schema] = field(compare=False)


@dataclass(frozen=True, slots=True)
class VersionHistory:
    """The earlier versions of one schema, ascending; empty if it is new.

    `version_count` is their number, including versions that were omitted because the level does not compare them. Where
    these were not read, it is an estimate: for a registry the number of the newest version, for git 1. `level` is the
    baseline's own level for this schema, `level_origin` a phrase for its source, and `policy` the subject's
    requirements other than the level.
    """

    versions: tuple[EarlierVersion, ...] = ()
    version_count: int = 0
    level: CompatibilityLevel | None = None
    level_origin: str = ""
    notes: tuple[str, ...] = ()
    policy: SubjectPolicy = NO_POLICY


class Baseline(Protocol):
    @property
    def name(self) -> str:
        """Short description of the baseline for messages."""
        ...

    def histories(self, candidates: Sequence[CandidateSchema], choice: LevelChoice) -> Sequence[VersionHistory]:
        """Returns the history (the earlier versions) of each candidate, in the same order.

        Args:
            choice: the level that the user requested. Versions that it does not compare may be omitted.

        Raises:
            BaselineFailed: the histories cannot be read.
        """
        ...

    def deleted_files(self, scope: FileScope) -> Sequence[tuple[str, str]]:
        """Returns path and text of the files that the baseline has, the command line selects and the working tree
        lacks; empty if the baseline does not identify files by path.

        Args:
            scope: the paths that the command line selects.

        Raises:
            BaselineFailed: the baseline cannot be read.
        """
        ...

    def find_equal_version(self, candidate: CandidateSchema, text: str) -> str:
        """Returns the label of the version that equals the candidate, such as `orders-value version 3`; "" if no
        version does.

        Only a registry and its database implement this: a registry accepts a schema that equals an existing version,
        even if later versions are incompatible with it.

        Args:
            text: the candidate's schema, with all types of other files included.

        Raises:
            BaselineFailed: the baseline cannot be read.
        """
        ...
