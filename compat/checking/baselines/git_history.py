"""Schema files of commits, and the earlier versions of a schema in the first-parent history of a commit.

A schema has another version when its file changes, or a file whose types it uses, directly or indirectly. Each version
is parsed with the types of its own commit.
"""

from __future__ import annotations

import glob
import itertools
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path

from headrace.avro_schema import Schema, SchemaParseError, parse_schema
from headrace.compat.check_result import Failure
from headrace.compat.checking.baselines.base import EarlierVersion
from headrace.compat.checking.git import FileChange, GitRepository
from headrace.compat.checking.inputs import JSON_SUFFIX, SUFFIX, decode, is_json_name, is_schema_name, is_schema_text
from headrace.compat.checking.scope import FileScope
from headrace.compat.checking.type_sets import TypeSet, parse_type_names

COMMIT_CHARS = 10  # of a commit's hash, in the labels of earlier versions
COMMITS_MAX = 200  # whose lists of files are cached; thousands of schemas are often changed by the same commits


@dataclass(frozen=True, slots=True)
class NamedPaths:
    """Decides which files of a commit the command line would name, if they were in the working tree.

    Args:
        repository: the repository of the working directory.
        schemas: the checked files.
        types: the files with types that these may use.
    """

    repository: GitRepository
    schemas: FileScope
    types: FileScope

    def of(self, paths: Iterable[str]) -> tuple[list[str], list[str]]:
        """Returns the paths of checked schemas, and the paths of sources of types."""
        prefix = Path(os.path.relpath(self.repository.top, os.path.realpath("."))).as_posix()
        relative = {path: posixpath.normpath(posixpath.join(prefix, path)) for path in paths}
        return (
            [path for path, name in relative.items() if self.schemas.selects(name)],
            [path for path, name in relative.items() if self.types.selects(name)],
        )


@dataclass(frozen=True, slots=True)
class GitFileOptions:
    """How the files of commits are read: whether comments in them are ignored, and which of them the command line
    names. `texts_by_blob` is the cache of texts, because most files are equal in all commits."""

    comments: bool
    named: NamedPaths
    texts_by_blob: dict[str, str] = field(default_factory=dict)


class GitFiles:
    """The schema files of a commit; implements `type_sets.TypeSource` for the commit's types.

    Args:
        name: shown before a path in messages.
    """

    def __init__(self, repository: GitRepository, commit: str, name: str, options: GitFileOptions) -> None:
        self._repository = repository
        self._name = name
        self._options = options
        self.tree = repository.tree(commit)
        self.paths = self.tree.files
        self.texts: dict[str, str] = {}
        self.failures: dict[str, Failure] = {}
        self._types: TypeSet | None = None

    @property
    def types(self) -> TypeSet:
        """The types of the commit. As in the working tree, the files that the command line names take precedence."""
        if self._types is None:
            schemas, types = (self._read_named(paths) for paths in self._options.named.of(self.paths))
            named = {path: self.texts[path] for path in (*types, *schemas)}
            self._types = TypeSet(
                named, strict=False, prefix=f"{self._name}:", given_types=frozenset(types), type_source=self
            )
            self._types.texts.update(self.texts)
        return self._types

    def fetch(self, paths: Iterable[str | None]) -> None:
        """Reads the files at these paths from the commit in one git call and stores their texts in this object."""
        missing = [path for path in paths if path is not None and path not in self.texts]
        cached = self._options.texts_by_blob
        blobs = self._repository.blobs([self.paths[path] for path in missing if self.paths[path] not in cached])
        for path in missing:
            blob = self.paths[path]
            text = cached.get(blob) or decode(blobs[blob], f"{self._name}:{path}", comments=self._options.comments)
            if isinstance(text, Failure):
                self.failures[path] = text
            else:
                self.texts[path] = cached[blob] = text
                if self._types is not None:
                    self._types.texts[path] = text

    def schemas_among(self, paths: Iterable[str]) -> list[str]:
        """Returns the members of `paths` that end in `.avsc`, or end in `.json` and contain a schema; files that cannot
        be decoded are omitted. Also reads these files from the commit and stores their texts."""
        candidates = [path for path in paths if is_schema_name(path) or is_json_name(path)]
        # Read separately, so that JSON files that are not schemas are not searched for types.
        blobs = self._repository.blobs([self.paths[path] for path in candidates if is_json_name(path)])
        found = [path for path in candidates if is_schema_name(path) or _holds_schema(blobs[self.paths[path]])]
        self.fetch(found)
        return [path for path in found if path in self.texts]

    def _read_named(self, paths: Sequence[str]) -> list[str]:
        """Reads files that the command line names, which may have any suffix. Returns the paths of readable ones."""
        others = [path for path in paths if not is_schema_name(path) and not is_json_name(path)]
        self.fetch(others)
        return [*self.schemas_among(paths), *(path for path in others if path in self.texts)]

    def siblings(self, path: str) -> Sequence[str]:
        directory = path.rpartition("/")[0]
        return [other for other in self._schemas if other.rpartition("/")[0] == directory]

    def descendants(self, path: str, directory: str) -> Sequence[str]:
        schemas = self._schemas_and_json if is_json_name(path) else self._schemas
        return [other for other in schemas if directory == "." or other.startswith(f"{directory}/")]

    def read(self, paths: Sequence[str]) -> Mapping[str, str]:
        self.fetch(paths)
        return {path: self.texts[path] for path in paths if path in self.texts}

    def used_files(self, path: str) -> frozenset[str]:
        """Returns the path of a fetched file, and the paths of all files whose types it uses, directly or
        indirectly."""
        found, waiting = {path}, [path]
        while waiting:
            user = waiting.pop()
            others = self.types.possible_dependencies(user) if user in self.texts else ()
            waiting += [other for other in others if other not in found]
            found.update(others)
        return frozenset(found)

    @cached_property
    def _schemas(self) -> Sequence[str]:
        return [path for path in self.paths if is_schema_name(path)]

    @cached_property
    def _schemas_and_json(self) -> Sequence[str]:
        return self.schemas_among(self.paths)


@dataclass(frozen=True, slots=True)
class _PastSchema:
    """A schema after some commit.

    `texts` are by path the texts of its own file and of all files whose types it uses, `blobs` the ids of their
    contents, its own first. `uses_other_files`: its own file does not define all its types. `failure` is the reason if
    its own file cannot be decoded.
    """

    path: str
    texts: Mapping[str, str]
    blobs: tuple[str, ...]
    uses_other_files: bool = False
    failure: Failure | None = None

    def may_differ_before(self, changes: Sequence[FileChange]) -> bool:
        """Whether changes of other files may have changed this schema. A deleted file may have defined one of its types
        before."""
        return self.uses_other_files and any(
            change.path in self.texts or not change.blob or change.before != change.path for change in changes
        )

    def version_of(self, commit: str) -> EarlierVersion:
        """Returns this schema as the version that a commit created."""
        prefix = f"{commit[:COMMIT_CHARS]}:"
        label = f"{prefix}{self.path}"
        if self.failure is not None:
            return unreadable_version(label, self.failure)
        return EarlierVersion(0, label, self.texts[self.path], partial(self._parse, prefix))

    def _parse(self, prefix: str) -> Schema:
        return TypeSet(self.texts, strict=False, prefix=prefix).schema(self.path)


class GitHistory:
    """The first-parent history of a commit.

    Args:
        files: the files of this commit.
    """

    def __init__(self, repository: GitRepository, commit: str, files: GitFiles, options: GitFileOptions) -> None:
        self._repository = repository
        self._commit = commit
        self._files = files
        self._options = options
        self._by_suffix: dict[str, Sequence[tuple[str, Sequence[FileChange]]]] = {}
        self._files_of = lru_cache(COMMITS_MAX)(self._read_files)

    def versions_before(self, path: str) -> list[EarlierVersion]:
        """Returns the versions of the schema at `path` before the newest commit, oldest first, with renames followed.
        Consecutive versions with equal content are returned once."""
        commits = self._commits(Path(path).suffix)
        own_texts = self._own_texts(path, commits)
        schema = _schema_of(self._files, path)
        newer_blobs = schema.blobs if schema is not None else ()
        found: list[EarlierVersion] = []
        for commit, changes in commits:
            own = next((change for change in changes if change.path == path), None)
            if own is None and (schema is None or not schema.may_differ_before(changes)):
                continue
            earlier = self._schema_before(changes[0].parent, schema, own, own_texts)
            has_changed = own is not None or earlier is None or schema is None or earlier.blobs != schema.blobs
            if schema is not None and has_changed and schema.blobs != newer_blobs:
                found.append(schema.version_of(commit))
                newer_blobs = schema.blobs
            schema, path = earlier, path if own is None else own.before
        return found[::-1]

    def _schema_before(
        self, parent: str, schema: _PastSchema | None, own: FileChange | None, own_texts: Mapping[str, str | Failure]
    ) -> _PastSchema | None:
        """Returns a schema as it was before a commit; None if its file did not exist.

        Args:
            parent: the commit's first parent.
            schema: the schema after the commit; None if its file does not exist there.
            own: the commit's change of the schema's own file; None if there is none.
            own_texts: the contents of the schema's own file, by blob.
        """
        path = own.before if own is not None else schema.path if schema is not None else ""
        blob = own.blob_before if own is not None else schema.blobs[0] if schema is not None else ""
        if not parent or not blob:
            return None
        text = own_texts.get(blob)
        if isinstance(text, Failure):
            return _PastSchema(path, {}, (blob,), failure=text)
        # Reads the files of the commit only if they are needed, because that takes longer.
        if text is not None and not any(parse_type_names(text).missing()):
            return _PastSchema(path, {path: text}, (blob,))
        return _schema_of(self._files_of(parent), path)

    def _own_texts(self, path: str, commits: Sequence[tuple[str, Sequence[FileChange]]]) -> Mapping[str, str | Failure]:
        """Returns the earlier contents of a file by blob, read in one git call. Symbolic links are omitted."""
        labels: dict[str, str] = {}
        for commit, changes in commits:
            own = next((change for change in changes if change.path == path), None)
            if own is not None:
                path = own.before
                if own.blob_before and not own.is_link:
                    labels.setdefault(own.blob_before, f"{commit[:COMMIT_CHARS]}^:{path}")
        blobs = self._repository.blobs(list(labels))
        return {blob: decode(blobs[blob], label, comments=self._options.comments) for blob, label in labels.items()}

    def _commits(self, suffix: str) -> Sequence[tuple[str, Sequence[FileChange]]]:
        """Returns the commits up to the newest one that changed files which may be schemas (`.avsc`, `.json`) or have
        the given suffix, newest first, each with these changes."""
        if suffix not in self._by_suffix:
            suffixes = dict.fromkeys((SUFFIX, JSON_SUFFIX, suffix.lower()))
            patterns = [f":(glob,icase)**/*{glob.escape(each)}" for each in suffixes]
            changes = self._repository.history(self._commit, patterns)
            groups = itertools.groupby(changes, lambda change: change.commit)
            self._by_suffix[suffix] = [(commit, tuple(group)) for commit, group in groups]
        return self._by_suffix[suffix]

    def _read_files(self, commit: str) -> GitFiles:
        return GitFiles(self._repository, commit, commit[:COMMIT_CHARS], self._options)


def _schema_of(files: GitFiles, path: str) -> _PastSchema | None:
    """Returns the schema at a path of a commit with all files whose types it uses; None if there is no such file."""
    if path not in files.paths:
        return None
    files.fetch([path])
    own_blob = files.paths[path]
    if path in files.failures:
        return _PastSchema(path, {}, (own_blob,), failure=files.failures[path])
    used = files.used_files(path)
    texts = {other: files.texts[other] for other in used if other in files.texts}
    blobs = (own_blob, *sorted(files.paths[other] for other in used if other != path))
    return _PastSchema(path, texts, blobs, any(files.types.names(path).missing()))


def _holds_schema(blob: bytes) -> bool:
    text = decode(blob, "", comments=True)
    return isinstance(text, str) and is_schema_text(text)


def unreadable_version(label: str, failure: Failure) -> EarlierVersion:
    """Returns an earlier version whose file cannot be decoded; parsing it raises the failure."""

    def parse() -> Schema:
        position = failure.position
        if position is None:
            return parse_schema("", source=label)
        raise SchemaParseError(failure.message, position, label)

    return EarlierVersion(0, label, "", parse)
