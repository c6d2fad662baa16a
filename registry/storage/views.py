"""What is stored under a subject, without the schemas."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.registry.domain import LATEST


@dataclass(frozen=True, slots=True)
class SubjectState:
    """A subject's row: every change of its versions makes `revision` greater."""

    subject_id: int
    revision: int


@dataclass(frozen=True, slots=True)
class VersionMark:
    """A stored version without its schema."""

    version: int
    deleted: bool
    created_ms: int
    schema_key: int
    lookup_key: bytes


@dataclass(frozen=True, slots=True)
class SubjectView:
    """All versions of a subject, ascending, without their schemas. `state` is None when nothing is stored."""

    state: SubjectState | None = None
    marks: tuple[VersionMark, ...] = ()

    @property
    def next_version(self) -> int:
        return 1 + (self.marks[-1].version if self.marks else 0)

    @property
    def is_deleted(self) -> bool:
        """Whether there are versions and all are deleted softly."""
        return bool(self.marks) and self.mark(LATEST, deleted=False) is None

    def mark(self, version: int, *, deleted: bool) -> VersionMark | None:
        """The version of that number, or the newest for `LATEST`."""
        seen = (mark for mark in reversed(self.marks) if deleted or not mark.deleted)
        return next((mark for mark in seen if version in (LATEST, mark.version)), None)
