"""Schema files of a command: the named files or, with `--since`, only files that a branch changed and files that use
them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from headrace.compat.check_result import Failure, FailureKind
from headrace.compat.checking.baselines.base import BaselineFailed
from headrace.compat.checking.git import GitFailed, GitRepository, GitTree
from headrace.compat.checking.inputs import (
    SchemaFile,
    WorkingDirectoryFiles,
    decode,
    find_files,
    is_json_name,
    is_schema_name,
    read_text,
    read_texts,
)
from headrace.compat.checking.scope import FileScope, deleted_in_git
from headrace.compat.checking.type_sets import TypeNames, TypeSet, parse_type_names

BLOBS_PER_READ = 100  # files of a commit that are in memory at the same time; they may be large JSON files


@dataclass(frozen=True, slots=True)
class Sources:
    """The schemas to check: `files` with their `texts` and `types`, and `failures` of unreadable files.

    `scope` is the command line's selection; `texts` has all files in it. `deleted_files` are path and text of the files
    deleted since the revision of `--since`, None without `--since`.
    """

    files: tuple[SchemaFile, ...]
    texts: Mapping[str, str]
    types: TypeSet
    failures: tuple[Failure, ...]
    scope: FileScope
    deleted_files: tuple[tuple[str, str], ...] | None = None


def read_sources(
    arguments: Sequence[str], *, stdin_name: str = "", type_files: Sequence[str] = (), comments: bool = False
) -> Sources:
    """Reads the schemas that the arguments select.

    Args:
        arguments: files, patterns and directories, or `-` for standard input.
        stdin_name: file name that stands for `-`.
        type_files: files and directories with types that the schemas may use; these files are not checked.
        comments: ignore comments in the files.
    """
    found = find_files(arguments, stdin_name=stdin_name)
    texts, failures = read_texts(found.files, comments=comments)
    extra = find_files(type_files)
    more, more_failures = read_texts(extra.files, comments=comments)
    types = TypeSet({**more, **texts}, given_types=frozenset(more), type_source=WorkingDirectoryFiles(comments))
    files = tuple(file for file in found.files if file.path in texts)
    # A file may be selected both as a schema and for its types.
    failed = dict.fromkeys((*found.failures, *failures, *extra.failures, *more_failures))
    return Sources(files, texts, types, tuple(failed), FileScope.of(arguments))


def only_changed(sources: Sources, revision: str, *, comments: bool = False) -> Sources:
    """Returns `sources` limited to the files that differ from a git revision (from its merge base with HEAD) or that
    use types of such files. The result also has the files deleted since the revision.

    Args:
        comments: ignore comments in the files of the revision.

    Raises:
        BaselineFailed: git failed.
    """
    try:
        changed = changed_since(sources.files, revision, sources.types, sources.scope, comments=comments)
    except GitFailed as error:
        raise BaselineFailed.from_reason(FailureKind.UNREADABLE, f"--since {revision}", str(error)) from None
    return replace(sources, files=changed.files, deleted_files=changed.deleted_files)


@dataclass(frozen=True, slots=True)
class Changed:
    """The files of the working tree that a branch changed, with the files that use their types; and path and text of
    the files that the branch deleted."""

    files: tuple[SchemaFile, ...]
    deleted_files: tuple[tuple[str, str], ...]


def changed_since(
    files: Sequence[SchemaFile], revision: str, types: TypeSet, scope: FileScope, *, comments: bool
) -> Changed:
    """Returns those of `files` that count as changed since the merge base of HEAD and a revision, and the deleted
    files. Standard input counts as changed, and a file that `GitChanges.may_include`. So does a file whose types,
    directly or indirectly, come from a changed file, whether or not the command line selects that file, or may have
    come from a file that no longer defines them.

    Args:
        files: the files that the command line selects.
        types: the texts of these files and of files with types that they use.
        scope: the command line's selection; deleted files outside of it are omitted.
        comments: ignore comments in the files of the revision.

    Raises:
        GitFailed: there is no such revision or no repository.
    """
    repository = GitRepository(Path())
    base = repository.merge_base(revision)
    changes = GitChanges(repository, repository.tree(base), repository.changed_files(base))
    users = _users_of_types([file.path for file in files], types)
    lost_types = changes.lost_types(comments=comments)
    changed_paths = {file.path for file in files if file.is_stdin} | {
        path for path in users if changes.may_include(path) or _uses_any(types.names(path), lost_types)
    }
    selected = _with_users(changed_paths, users)
    missing = deleted_in_git(repository, changes.base.files, scope, comments=comments)
    return Changed(tuple(file for file in files if file.path in selected), missing)


@dataclass(frozen=True, slots=True)
class GitChanges:
    """Differences between the working tree and a commit. `changed` are the paths that differ, relative to the top of
    the repository."""

    repository: GitRepository
    base: GitTree
    changed: Set[str]

    def may_include(self, path: str) -> bool:
        """Whether a file differs from the commit, or git cannot tell: git ignores the file, or the file is outside of
        the repository. A file also differs if a symbolic link in its path, the target of its own link, or the submodule
        or nested repository that contains it differs."""
        if any(self._differs(self.repository.path_of(name)) for name in {path, os.path.realpath(path)}):
            return True
        links = (parent for parent in Path(path).parents if parent.is_symlink())
        return any(self.repository.path_of(str(link)) in self.changed for link in links)

    def _differs(self, path: str | None) -> bool:
        if path is None or (path not in self.base.files and self.base.submodule_of(path) is None):
            return True
        parents = {str(directory) for directory in PurePosixPath(path).parents}
        return not self.changed.isdisjoint({path, *parents, *(f"{directory}/" for directory in parents)})

    def lost_types(self, *, comments: bool) -> Set[str] | None:
        """Returns the full names of the types that schema files of the commit define and that the files of the same
        paths no longer define. Returns None for any type: a submodule or a link to a directory has changed.

        Args:
            comments: ignore comments in the files.
        """
        if not self.changed.isdisjoint((*self.base.submodules, *self.base.other_links)):
            return None
        paths = [path for path in self.changed & self.base.files.keys() if is_schema_name(path) or is_json_name(path)]
        found: set[str] = set()
        for start in range(0, len(paths), BLOBS_PER_READ):
            batch = paths[start : start + BLOBS_PER_READ]
            blobs = self.repository.blobs([self.base.files[path] for path in batch])
            for path in batch:
                before = _defined_types(decode(blobs[self.base.files[path]], path, comments=comments))
                found |= before - _defined_types(read_text(str(self.repository.top / path), comments=comments))
        return found


def _defined_types(text: str | Failure) -> Set[str]:
    return parse_type_names(text).defined.keys() if isinstance(text, str) else frozenset()


def _uses_any(names: TypeNames, lost_types: Set[str] | None) -> bool:
    """Whether a text may use one of the types that are no longer defined, or, for None, any type of another text."""
    return any(lost_types is None or not lost_types.isdisjoint(denoted) for denoted in names.missing())


def _users_of_types(paths: Sequence[str], types: TypeSet) -> Mapping[str, Sequence[str]]:
    """Returns `paths` and all files whose types these use, directly or indirectly, each with the files among them that
    use its types directly."""
    users: dict[str, list[str]] = {path: [] for path in paths}
    waiting = list(users)
    while waiting:
        path = waiting.pop()
        for other in types.possible_dependencies(path):
            if other not in users:
                users[other] = []
                waiting.append(other)
            users[other].append(path)
    return users


def _with_users(changed_paths: Collection[str], users: Mapping[str, Sequence[str]]) -> Collection[str]:
    """Returns the files in `changed_paths`, and all files that use their types, directly or indirectly."""
    found = set(changed_paths)
    waiting = list(changed_paths)
    while waiting:
        new = [user for user in users.get(waiting.pop(), ()) if user not in found]
        found.update(new)
        waiting += new
    return found
