"""Schemas in a git revision, with renames followed; uses no registry. git itself uses the network only in a partial
clone, to fetch missing objects.

A branch name or commit means the merge base with the working tree's branch, because later commits on the named branch
are not changes of the working tree's branch. The tip of a branch is used only on request; a tag means its own commit.

The earlier version of a file is the file at the same path; else one of the files that the working tree no longer has:
the only one with the same subject, the one that git detects as renamed, or the only one with the same record name. At a
transitive level the history is that of `git_history`, for that path of the revision.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

from headrace.compat.check_result import FailureKind
from headrace.compat.checking.baselines.base import (
    BaselineFailed,
    CandidateSchema,
    EarlierVersion,
    LevelChoice,
    VersionHistory,
)
from headrace.compat.checking.baselines.directory import DirectoryLayout
from headrace.compat.checking.baselines.git_history import (
    COMMIT_CHARS,
    GitFileOptions,
    GitFiles,
    GitHistory,
    NamedPaths,
    unreadable_version,
)
from headrace.compat.checking.git import GitFailed, GitRepository
from headrace.compat.checking.scope import FileScope, deleted_in_git
from headrace.compat.checking.type_sets import root_type_name
from headrace.compat.errors import NoSubject
from headrace.compat.subjects import SubjectNaming, SubjectSource


class GitBaseline:
    """The schemas of a git revision, as the baseline to which the checked files are compared.

    Args:
        revision: a branch, tag or commit.
        location: a file or directory in the revision, "" for the same paths as in the working tree.
        tip: use the newest commit of a branch instead of its merge base with HEAD.
        comments: ignore comments in the files.
        schemas: the checked files, as the command line names them.
        types: files and directories with types, as the command line names them.
    """

    def __init__(
        self,
        revision: str,
        location: str = "",
        *,
        naming: SubjectNaming,
        tip: bool = False,
        comments: bool = False,
        schemas: Sequence[str] = (),
        types: Sequence[str] = (),
    ) -> None:
        self._revision = revision
        self._naming = naming
        self._tip = tip
        self._location = location.strip("/")
        self._comments = comments
        self._schemas, self._types = FileScope.of(schemas), FileScope.of(types)

    @property
    def name(self) -> str:
        return f"{'git-tip' if self._tip else 'git'}:{self._revision}{':' if self._location else ''}{self._location}"

    def histories(self, candidates: Sequence[CandidateSchema], choice: LevelChoice) -> Sequence[VersionHistory]:
        try:
            found = self._open()
            found.fetch(found.earlier_path(item, self._location) for item in candidates)
            if self._location:
                found.require(self._location)
            return [self._history(found, item, choice) for item in candidates]
        except GitFailed as error:
            raise BaselineFailed.from_reason(FailureKind.UNREADABLE, self.name, str(error)) from None

    def find_equal_version(self, candidate: CandidateSchema, text: str) -> str:
        return ""

    def deleted_files(self, scope: FileScope) -> Sequence[tuple[str, str]]:
        try:
            found = self._open()
            return found.deleted_files(scope, self._location)
        except GitFailed as error:
            raise BaselineFailed.from_reason(FailureKind.UNREADABLE, self.name, str(error)) from None

    def _open(self) -> _Revision:
        repository = GitRepository(Path())
        options = GitFileOptions(self._comments, NamedPaths(repository, self._schemas, self._types))
        return _Revision(repository, self._revision, self._naming, self._tip, options)

    def _history(self, found: _Revision, candidate: CandidateSchema, choice: LevelChoice) -> VersionHistory:
        path = found.earlier_path(candidate, self._location)
        if path is None:
            return VersionHistory()
        notes = []
        if path != found.path_of(candidate) and not self._location:
            notes.append(f"earlier version: {path} in {found.name}")
        versions = [*(found.before(path) if choice.is_transitive() else ()), found.latest(path)]
        numbered = tuple(
            EarlierVersion(number, item.label, item.text, item.parse) for number, item in enumerate(versions, 1)
        )
        if choice.is_transitive() and found.is_shallow:
            notes.append("this clone is shallow, so older versions may be missing; run git fetch --unshallow")
        return VersionHistory(numbered, len(numbered), notes=tuple(notes))


class _Revision:
    """The schema files of one git revision. Finds the earlier versions of checked files in the revision and its
    history."""

    def __init__(
        self, repository: GitRepository, revision: str, naming: SubjectNaming, tip: bool, options: GitFileOptions
    ) -> None:
        self.repository = repository
        self._naming = naming
        self._revision = revision
        self._comments = options.comments
        newest = repository.commit(revision)
        self._commit = newest if tip else repository.starting_point(revision)
        # Shown in messages; users can pass it to git.
        self.name = revision if self._commit == newest else self._commit[:COMMIT_CHARS]
        self._files = GitFiles(repository, self._commit, self.name, options)
        self._tree = self._files.paths
        self._history = GitHistory(repository, self._commit, self._files, options)
        self._found: dict[str, str | None] = {}
        self._layouts: dict[str, DirectoryLayout] = {}

    @cached_property
    def is_shallow(self) -> bool:
        return self.repository.is_shallow()

    def require(self, location: str) -> None:
        if location not in self._tree and not any(path.startswith(f"{location}/") for path in self._tree):
            raise GitFailed(f"{self.name} has no file or directory {location!r}")

    def deleted_files(self, scope: FileScope, location: str) -> Sequence[tuple[str, str]]:
        """Returns path and text of the files that the revision has, the command line selects and the working tree
        lacks.

        Args:
            scope: the paths that the command line selects.
            location: the directory of the revision that is the baseline; "" for the same paths as in the working tree.
        """
        if not location:
            return deleted_in_git(self.repository, self._tree, scope, comments=self._comments)
        return () if location in self._tree else self._layout(location).deleted_files(scope)

    def path_of(self, candidate: CandidateSchema) -> str | None:
        """Returns the path of the candidate's file relative to the top of the repository; None if the file is outside
        of it."""
        return self.repository.path_of(candidate.file.path)

    def earlier_path(self, candidate: CandidateSchema, location: str) -> str | None:
        """Returns the path, in the revision, of the earlier version of a candidate's file; None if the file is new.

        Args:
            location: the file or directory of the revision that is the baseline; "" for the path in the working tree.
        """
        key = candidate.file.path
        if key not in self._found:
            self._found[key] = (
                self._versions_below(candidate, location) if location else self._same_or_renamed(candidate)
            )
        return self._found[key]

    def _versions_below(self, candidate: CandidateSchema, location: str) -> str | None:
        if location in self._tree:
            return location
        if location not in self._layouts:
            self._layouts[location] = self._layout(location)
        found = self._layouts[location].find_versions(candidate)
        return found[-1] if found else None

    def _layout(self, location: str) -> DirectoryLayout:
        schemas = self._files.schemas_among(path for path in self._tree if path.startswith(f"{location}/"))
        return DirectoryLayout({path[len(location) + 1 :]: path for path in schemas}, self._files.texts, self._naming)

    def _same_or_renamed(self, candidate: CandidateSchema) -> str | None:
        path = self.path_of(candidate)
        if path is None:
            raise GitFailed(
                f"{candidate.file.path} is outside the git repository {self.repository.top}; "
                "run the command in the repository of the file"
            )
        if path in self._tree:
            return path
        submodule = self._files.tree.submodule_of(path)
        if submodule is not None:
            raise GitFailed(
                f"{candidate.file.path} is in the git submodule {submodule}; run the command in that directory"
            )
        renamed = self._find_renamed(path, candidate)
        if len(renamed) > 1:
            paths = ", ".join(renamed[:3])
            raise GitFailed(
                f"{paths} could each be the earlier version of {path}; select one with git:{self._revision}:PATH"
            )
        return renamed[0] if renamed else None

    def _find_renamed(self, path: str, candidate: CandidateSchema) -> Sequence[str]:
        """Returns the paths of the files deleted since the revision that may be the earlier version of the candidate's
        file. A single file of the same subject takes precedence over git's rename detection.

        Args:
            path: path of the candidate's file, relative to the top of the repository.
        """
        of_subject, of_record = self._deleted_files
        of_same_subject = of_subject.get(candidate.subject, [])
        renamed_from = self._renames.get(path)
        if len(of_same_subject) != 1 and renamed_from is not None:
            return [renamed_from]
        of_same_record = of_record.get(candidate.record, []) if candidate.record else []
        return (
            [deleted for deleted in of_same_subject if deleted in of_same_record] or of_same_subject or of_same_record
        )

    @cached_property
    def _renames(self) -> Mapping[str, str]:
        return self.repository.renames(self._commit)

    @cached_property
    def _deleted_files(self) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
        """Returns the paths of the schema files that the revision has and the working tree lacks, as two mappings: by
        the subject, and by the full name of the schema."""
        top = self.repository.top
        of_subject: dict[str, list[str]] = {}
        of_record: dict[str, list[str]] = {}
        for path in self._files.schemas_among(path for path in self._tree if not os.path.lexists(top / path)):
            record = root_type_name(self._files.texts[path])
            of_record.setdefault(record, []).append(path)
            with suppress(NoSubject):
                source = SubjectSource(Path(os.path.relpath(top / path)).as_posix(), record)
                of_subject.setdefault(self._naming.derive_subject(source), []).append(path)
        return of_subject, of_record

    def fetch(self, paths: Iterable[str | None]) -> None:
        """Reads the files at these paths from the revision in one git call."""
        self._files.fetch(paths)

    def latest(self, path: str) -> EarlierVersion:
        label = f"{self.name}:{path}"
        if path in self._files.failures:
            return unreadable_version(label, self._files.failures[path])
        return EarlierVersion(0, label, self._files.texts[path], partial(self._files.types.schema_once, path))

    def before(self, path: str) -> list[EarlierVersion]:
        """Returns the versions of the schema at `path` in the history before the revision, oldest first."""
        return self._history.versions_before(path)
