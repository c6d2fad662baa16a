"""Schemas in a git revision, with renames followed; uses no registry. git itself uses the network only in a partial
clone, to fetch missing objects.

A branch name or commit means the merge base with the working tree's branch, because later commits on the named branch
are not changes of the working tree's branch. The tip of a branch is used only on request; a tag means its own commit.

The earlier version of a file is the file at the same path; else one of the files that the working tree no longer has:
the only one with the same subject, the one that git detects as renamed, or the only one with the same record name. At a
transitive level the history is the content of that path in the first-parent history of the revision, with renames
followed.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

from headrace.avro_schema import Schema, SchemaParseError, parse_schema
from headrace.compat.check_result import Failure, FailureKind
from headrace.compat.checking.baselines.base import (
    BaselineFailed,
    CandidateSchema,
    EarlierVersion,
    LevelChoice,
    VersionHistory,
)
from headrace.compat.checking.baselines.directory import DirectoryLayout
from headrace.compat.checking.git import FileChange, GitFailed, GitRepository
from headrace.compat.checking.inputs import JSON_SUFFIX, SUFFIX, decode, is_json_name, is_schema_name, is_schema_text
from headrace.compat.checking.scope import FileScope, deleted_in_git
from headrace.compat.checking.type_sets import TypeSet, root_type_name
from headrace.compat.errors import NoSubject
from headrace.compat.subjects import SubjectNaming, SubjectSource

COMMIT_CHARS = 10  # of a commit's hash, in the labels of earlier versions


class GitBaseline:
    """The schemas of a git revision, as the baseline to which the checked files are compared.

    Args:
        revision: a branch, tag or commit.
        location: a file or directory in the revision, "" for the same paths as in the working tree.
        tip: use the newest commit of a branch instead of its merge base with HEAD.
    """

    def __init__(
        self, revision: str, location: str = "", *, naming: SubjectNaming, tip: bool = False, comments: bool = False
    ) -> None:
        self._revision = revision
        self._naming = naming
        self._tip = tip
        self._location = location.strip("/")
        self._comments = comments

    @property
    def name(self) -> str:
        return f"{'git-tip' if self._tip else 'git'}:{self._revision}{':' if self._location else ''}{self._location}"

    def histories(self, candidates: Sequence[CandidateSchema], choice: LevelChoice) -> Sequence[VersionHistory]:
        try:
            found = _Revision(GitRepository(Path()), self._revision, self._naming, self._tip, self._comments)
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
            found = _Revision(GitRepository(Path()), self._revision, self._naming, self._tip, self._comments)
            return found.deleted_files(scope, self._location)
        except GitFailed as error:
            raise BaselineFailed.from_reason(FailureKind.UNREADABLE, self.name, str(error)) from None

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
        if choice.is_transitive() and found.repository.is_shallow():
            notes.append("this clone is shallow, so older versions may be missing; run git fetch --unshallow")
        return VersionHistory(numbered, len(numbered), notes=tuple(notes))


class _Revision:
    """The schema files of one git revision. Finds the earlier versions of checked files in the revision and its
    history."""

    def __init__(
        self, repository: GitRepository, revision: str, naming: SubjectNaming, tip: bool, comments: bool
    ) -> None:
        self.repository = repository
        self._naming = naming
        self._revision = revision
        self._comments = comments
        newest = repository.commit(revision)
        self._commit = newest if tip else repository.starting_point(revision)
        # Shown in messages; users can pass it to git.
        self.name = revision if self._commit == newest else self._commit[:COMMIT_CHARS]
        self._all = repository.tree(self._commit)
        self._tree = self._all.files
        self._texts: dict[str, str] = {}
        self._failures: dict[str, Failure] = {}
        self._found: dict[str, str | None] = {}
        self._layouts: dict[str, DirectoryLayout] = {}
        self._histories: dict[str, Sequence[FileChange]] = {}
        self._types = TypeSet({}, strict=False, prefix=f"{self.name}:", type_source=self)

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
        schemas = self._schemas_among(path for path in self._tree if path.startswith(f"{location}/"))
        return DirectoryLayout({path[len(location) + 1 :]: path for path in schemas}, self._texts, self._naming)

    def _schemas_among(self, paths: Iterable[str]) -> list[str]:
        """Returns the members of `paths` that end in `.avsc`, or end in `.json` and contain a schema; files that cannot
        be decoded are omitted. Also reads these files from the revision and stores their texts."""
        candidates = [path for path in paths if is_schema_name(path) or is_json_name(path)]
        # Read separately, so that JSON files that are not schemas are not searched for types.
        blobs = self.repository.blobs([self._tree[path] for path in candidates if is_json_name(path)])
        found = [path for path in candidates if is_schema_name(path) or _holds_schema(blobs[self._tree[path]])]
        self.fetch(found)
        return [path for path in found if path in self._texts]

    def _same_or_renamed(self, candidate: CandidateSchema) -> str | None:
        path = self.path_of(candidate)
        if path is None:
            raise GitFailed(
                f"{candidate.file.path} is outside the git repository {self.repository.top}; "
                "run the command in the repository of the file"
            )
        if path in self._tree:
            return path
        submodule = self._all.submodule_of(path)
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
        for path in self._schemas_among(path for path in self._tree if not os.path.lexists(top / path)):
            record = root_type_name(self._texts[path])
            of_record.setdefault(record, []).append(path)
            with suppress(NoSubject):
                source = SubjectSource(Path(os.path.relpath(top / path)).as_posix(), record)
                of_subject.setdefault(self._naming.derive_subject(source), []).append(path)
        return of_subject, of_record

    def fetch(self, paths: Iterable[str | None]) -> None:
        """Reads the files at these paths from the revision in one git call and stores their texts in this object."""
        missing = [path for path in paths if path is not None and path not in self._texts]
        blobs = self.repository.blobs([self._tree[path] for path in missing])
        for path in missing:
            text = decode(blobs[self._tree[path]], f"{self.name}:{path}", comments=self._comments)
            if isinstance(text, Failure):
                self._failures[path] = text
            else:
                self._texts[path] = text
                self._types.texts[path] = text

    def siblings(self, path: str) -> Sequence[str]:
        directory = path.rpartition("/")[0]
        return [other for other in self._schemas if other.rpartition("/")[0] == directory]

    def descendants(self, path: str, directory: str) -> Sequence[str]:
        schemas = self._schemas_and_json if is_json_name(path) else self._schemas
        return [other for other in schemas if directory == "." or other.startswith(f"{directory}/")]

    def read(self, paths: Sequence[str]) -> Mapping[str, str]:
        self.fetch(paths)
        return {path: self._texts[path] for path in paths if path in self._texts}

    @cached_property
    def _schemas(self) -> Sequence[str]:
        return [path for path in self._tree if is_schema_name(path)]

    @cached_property
    def _schemas_and_json(self) -> Sequence[str]:
        return self._schemas_among(self._tree)

    def latest(self, path: str) -> EarlierVersion:
        label = f"{self.name}:{path}"
        if path in self._failures:
            return _unreadable(label, self._failures[path])
        return EarlierVersion(0, label, self._texts[path], partial(self._types.schema_once, path))

    def before(self, path: str) -> list[EarlierVersion]:
        """Returns the earlier contents of the file at `path` in the revision's history, oldest first; equal consecutive
        texts are returned once."""
        blob = self._tree[path]
        found: list[FileChange] = []
        for change in self._changes(Path(path).suffix):
            if change.path == path:
                if change.blob not in ("", blob):
                    found.append(change)
                    blob = change.blob
                path = change.before
        blobs = self.repository.blobs([change.blob for change in found])
        return [self._old(item, blobs[item.blob]) for item in reversed(found)]

    def _old(self, change: FileChange, data: bytes) -> EarlierVersion:
        commit = f"{change.commit[:COMMIT_CHARS]}:"
        label = f"{commit}{change.path}"
        text = decode(data, label, comments=self._comments)
        if isinstance(text, Failure):
            return _unreadable(label, text)
        return EarlierVersion(0, label, text, partial(self._parse_old, commit, change.path, text))

    def _parse_old(self, commit: str, path: str, text: str) -> Schema:
        """Parses a version of a file from an old commit. Types of other files are taken from the revision instead of
        the old commit; their difference rarely matters.

        Args:
            commit: the old commit, shown in messages before the path.
            path: the path of the file in that commit.
            text: the content of the file in that commit.
        """
        return TypeSet({path: text}, strict=False, prefix=commit, type_source=self).schema(path)

    def _changes(self, suffix: str) -> Sequence[FileChange]:
        """Returns the changes that the commits up to this git revision made to files that may be schemas (`.avsc`,
        `.json`) or have the given suffix."""
        if suffix not in self._histories:
            suffixes = dict.fromkeys((SUFFIX, JSON_SUFFIX, suffix.lower()))
            patterns = [f":(glob,icase)**/*{glob.escape(each)}" for each in suffixes]
            self._histories[suffix] = list(self.repository.history(self._commit, patterns))
        return self._histories[suffix]


def _holds_schema(blob: bytes) -> bool:
    text = decode(blob, "", comments=True)
    return isinstance(text, str) and is_schema_text(text)


def _unreadable(label: str, failure: Failure) -> EarlierVersion:
    def parse() -> Schema:
        position = failure.position
        if position is None:
            return parse_schema("", source=label)
        raise SchemaParseError(failure.message, position, label)

    return EarlierVersion(0, label, "", parse)
