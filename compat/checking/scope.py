"""The files that a command line selects, including files that no longer exist."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from headrace.compat.checking.git import GitRepository
from headrace.compat.checking.inputs import (
    STANDARD_INPUT,
    decode,
    directories_below,
    is_json_name,
    is_pattern,
    is_schema_name,
    is_schema_text,
    is_searched,
    normalize_path,
)


@dataclass(frozen=True)
class FileScope:
    """Decides which paths the arguments of a command line select, whether or not the files exist."""

    arguments: tuple[str, ...]

    @classmethod
    def of(cls, arguments: Sequence[str]) -> FileScope:
        return cls(tuple(map(normalize_path, arguments)))

    def lost_arguments(self, failed: Iterable[str], missing: Iterable[str]) -> frozenset[str]:
        """Returns the directories and patterns in `failed`, which select no file now, that selected one of the files
        `missing`, which the baseline has."""
        scopes = {
            argument: FileScope.of([argument]) for argument in failed if normalize_path(argument) in self.arguments
        }
        paths = list(missing)
        return frozenset(argument for argument, scope in scopes.items() if any(map(scope.covers, paths)))

    @property
    def directory(self) -> str | None:
        """The directory that the command line names, if it names exactly one directory and nothing else; otherwise
        None."""
        return self.arguments[0] if len(self.arguments) == 1 and Path(self.arguments[0]).is_dir() else None

    def covers(self, path: str) -> bool:
        """Whether a directory or pattern of the arguments selects a path. A file that is itself an argument does not
        count; if it is missing, reading it fails."""
        return any(pattern.fullmatch(path) for pattern in self._patterns) or any(
            _is_below(self._real_directory(os.path.dirname(path)), Path(path).name, directory)  # noqa: PTH120
            for directory in self._directories
        )

    def _real_directory(self, directory: str) -> str:
        if directory not in self._real_directories:
            self._real_directories[directory] = os.path.realpath(directory or ".")
        return self._real_directories[directory]

    @cached_property
    def _real_directories(self) -> dict[str, str]:
        """Cache of real paths of directories; thousands of files are in the same ones."""
        return {}

    def selects(self, path: str) -> bool:
        """Whether an argument names a path or `covers` it."""
        return path in self.arguments or self.covers(path)

    def key(self, path: str) -> str:
        """Returns a file's path relative to the directory of the command line that contains it; only its name if there
        is no such directory."""
        location = PurePosixPath(path)
        named = (directory for directory in self.arguments if PurePosixPath(directory) in location.parents)
        return next((location.relative_to(directory).as_posix() for directory in named), location.name)

    @cached_property
    def _directories(self) -> Sequence[str]:
        """Real paths of the directories that the command line names, and of the directories that links below them lead
        to."""
        named = [argument for argument in self.arguments if Path(argument).is_dir() or _may_be_lost(argument)]
        links = (
            descendants
            for directory in named
            for descendants in directories_below(directory)
            if Path(descendants).is_symlink()
        )
        return [os.path.realpath(directory) for directory in (*named, *links)]

    @cached_property
    def _patterns(self) -> Sequence[re.Pattern[str]]:
        patterns = [text for text in self.arguments if is_pattern(text) and not Path(text).exists()]
        return [re.compile(_expression(text)) for text in patterns]


def _may_be_lost(argument: str) -> bool:
    """Whether an argument may name a directory that git has removed with its last file."""
    is_file = is_schema_name(argument) or is_json_name(argument) or argument == STANDARD_INPUT or is_pattern(argument)
    return not is_file and not os.path.lexists(argument)


def _is_below(parent: str, name: str, directory: str) -> bool:
    location = Path(parent, name)
    return location.is_relative_to(directory) and all(map(is_searched, location.relative_to(directory).parts[:-1]))


def _expression(pattern: str) -> str:
    """Returns the regular expression of a glob pattern. `**` matches any number of directories; neither it nor `*`
    matches a hidden name."""
    *directories, name = PurePosixPath(pattern).parts
    if name == "**":
        directories, name = [*directories, name], "*"
    words = [r"(?:[^/.][^/]*/)*" if part == "**" else f"{_part(part)}/" for part in directories]
    return "".join((*words, _part(name)))


def _part(part: str) -> str:
    hidden = "" if part.startswith(".") else r"(?!\.)"
    return hidden + "".join(
        {"*": "[^/]*", "?": "[^/]"}.get(piece)
        or (f"[{piece[1:-1].replace('!', '^', 1) if piece[1] == '!' else piece[1:-1]}]" if len(piece) > 1 else "")
        or re.escape(piece)
        for piece in re.findall(r"\[[^]/]+\]|.", part, re.DOTALL)
    )


def deleted_in_git(
    repository: GitRepository, files: Mapping[str, str], scope: FileScope, *, comments: bool
) -> tuple[tuple[str, str], ...]:
    """Returns path and text of the schemas that the command line selects, a commit has and the working tree lacks.

    Args:
        files: path and blob of each file of the commit.
        scope: the paths that the command line selects.
        comments: replace comments in the texts with blanks.

    Raises:
        GitFailed: the commit cannot be read.
    """
    missing: dict[str, str] = {}
    for path, blob in files.items():
        if (is_schema_name(path) or is_json_name(path)) and not os.path.lexists(repository.top / path):
            relative = Path(os.path.relpath(repository.top / path, os.path.realpath("."))).as_posix()
            if scope.covers(relative):
                missing[relative] = blob
    blobs = repository.blobs(list(missing.values()))
    texts = {path: decode(blobs[blob], path, comments=comments) for path, blob in missing.items()}
    # Skips files that were not schemas.
    return tuple(
        (path, text)
        for path, text in texts.items()
        if isinstance(text, str) and (is_schema_name(path) or is_schema_text(text))
    )
