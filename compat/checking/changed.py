"""Only what a branch changed: schemas that differ from a revision, those that use types of these, and those gone."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.compat.checking.git import Repository
from headrace.compat.checking.inputs import SchemaFile, is_json_name, is_schema_name
from headrace.compat.checking.scope import Scope, gone_from_git
from headrace.compat.checking.type_sets import AmbiguousType, TypeSet


@dataclass(frozen=True, slots=True)
class Changed:
    """`gone` are path and text of those that are no longer there."""

    files: tuple[SchemaFile, ...]
    gone: tuple[tuple[str, str], ...]


def changed_since(
    files: Sequence[SchemaFile], revision: str, types: TypeSet, scope: Scope, *, comments: bool
) -> Changed:
    """The files that differ from where this branch left a revision, or need a file that does; standard input always.

    Args:
        scope: which files that are gone would be among them.

    Raises:
        GitFailed: there is no such revision or no repository.
    """
    repository = Repository(Path())
    base = repository.merge_base(revision)
    changed = repository.changed_files(base)
    touched = {file.path for file in files if file.is_stdin or _is_among(changed, file.path, repository)}
    gone = (path for path in changed if not os.path.lexists(repository.top / path))
    if any(is_schema_name(path) or is_json_name(path) for path in gone):
        # A file that is gone may have held a type of any that does not stand alone.
        touched.update(file.path for file in files if any(types.names(file.path).missing()))
    wanted = _with_users(touched, types)
    missing = gone_from_git(repository, base, scope, comments=comments)
    return Changed(tuple(file for file in files if file.path in wanted), missing)


def _is_among(changed: Set[str], path: str, repository: Repository) -> bool:
    """Whether a file, what it is a link to, or the submodule or other repository that it lies in, has changed."""
    places = {repository.path_of(name) for name in (path, os.path.realpath(path))} - {None}
    above = {str(directory) for place in places if place for directory in PurePosixPath(place).parents}
    return not changed.isdisjoint({*places, *above, *(f"{directory}/" for directory in above)})


def _with_users(touched: Collection[str], types: TypeSet) -> Collection[str]:
    """The same files and all that need one of them, directly or not."""
    if not touched:
        return touched
    users: dict[str, list[str]] = {}
    for path in list(types.texts):
        try:
            needs = types.needs(path)
        except AmbiguousType:  # told when the file is checked
            needs = ()
        for other in needs:
            users.setdefault(other, []).append(path)
    found = set(touched)
    waiting = list(touched)
    while waiting:
        new = [user for user in users.get(waiting.pop(), ()) if user not in found]
        found.update(new)
        waiting += new
    return found
