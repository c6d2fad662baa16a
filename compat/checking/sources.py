"""Schema files of a command: the named files or, with `--since`, only files that a branch changed and files that use
them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from headrace.compat.check_result import Failure, FailureKind
from headrace.compat.checking.baselines.base import BaselineFailed
from headrace.compat.checking.git import GitFailed, GitRepository
from headrace.compat.checking.inputs import (
    SchemaFile,
    WorkingDirectoryFiles,
    find_files,
    is_json_name,
    is_schema_name,
    normalize_path,
    read_texts,
)
from headrace.compat.checking.scope import FileScope, deleted_in_git
from headrace.compat.checking.type_sets import AmbiguousType, TypeSet


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
    return Sources(files, texts, types, tuple(failed), FileScope(tuple(map(normalize_path, arguments))))


def only_changed(sources: Sources, revision: str, *, comments: bool = False) -> Sources:
    """Returns `sources` limited to the files that differ from a git revision (from its merge base with HEAD) or that
    use types of such files. The result also has the files deleted since the revision.

    Args:
        comments: ignore comments in the deleted files.

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
    """Returns the files that differ from the merge base of HEAD and a revision, the files that use types of such files,
    and the deleted files. Standard input always counts as changed. If the branch deleted files that may be schemas, the
    files that use types of other files count as changed too.

    Args:
        files: the files that the command line selects.
        types: the texts of these files and of files with types that they use.
        scope: the command line's selection; deleted files outside of it are omitted.
        comments: ignore comments in the deleted files.

    Raises:
        GitFailed: there is no such revision or no repository.
    """
    repository = GitRepository(Path())
    base = repository.merge_base(revision)
    changed = repository.changed_files(base)
    changed_paths = {file.path for file in files if file.is_stdin or _is_among(changed, file.path, repository)}
    deleted_paths = (path for path in changed if not os.path.lexists(repository.top / path))
    if any(is_schema_name(path) or is_json_name(path) for path in deleted_paths):
        # A deleted file may have defined a type that an existing file uses.
        changed_paths.update(file.path for file in files if any(types.names(file.path).missing()))
    selected = _with_users(changed_paths, types)
    missing = deleted_in_git(repository, base, scope, comments=comments)
    return Changed(tuple(file for file in files if file.path in selected), missing)


def _is_among(changed: Set[str], path: str, repository: GitRepository) -> bool:
    """Whether `changed` contains the file `path`, the target of its symbolic link, or the submodule or nested
    repository that contains it.

    Args:
        changed: paths relative to the top of the repository.
    """
    paths = {repository.path_of(name) for name in (path, os.path.realpath(path))} - {None}
    parents = {str(directory) for path in paths if path for directory in PurePosixPath(path).parents}
    return not changed.isdisjoint({*paths, *parents, *(f"{directory}/" for directory in parents)})


def _with_users(changed_paths: Collection[str], types: TypeSet) -> Collection[str]:
    """Returns the files in `changed_paths`, and all files that use their types, directly or indirectly."""
    if not changed_paths:
        return changed_paths
    users: dict[str, list[str]] = {}
    for path in list(types.texts):
        try:
            dependencies = types.dependencies(path)
        except AmbiguousType:  # reported when the file is checked
            dependencies = ()
        for other in dependencies:
            users.setdefault(other, []).append(path)
    found = set(changed_paths)
    waiting = list(changed_paths)
    while waiting:
        new = [user for user in users.get(waiting.pop(), ()) if user not in found]
        found.update(new)
        waiting += new
    return found
