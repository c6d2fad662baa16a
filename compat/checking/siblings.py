"""Where a type that a file uses and does not define is looked for, when it is in none of the files that were named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.compat.checking.inputs import find_files, is_file, is_json_name, is_schema_name, read_texts

FILES_MAX = 20_000
"""Most files that are read in search of a type."""


@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    """The schema files of the disk around a path; see `type_sets.Surroundings`. With `comments` these are read past.

    Around a file called .avsc these are files called so, since .json beside it may be copies that something made of it.
    """

    comments: bool = False

    def beside(self, path: str) -> Sequence[str]:
        directory = path.rpartition("/")[0]
        try:
            names = sorted(entry.name for entry in Path(path).parent.iterdir() if is_schema_name(entry.name))
        except OSError:
            return ()
        paths = [f"{directory}/{name}" if directory else name for name in names]
        return [other for other in paths if is_file(other)]

    def below(self, path: str, directory: str) -> Sequence[str]:
        """Nothing outside the working directory, which may be the whole disk."""
        if Path(path).is_absolute() or ".." in Path(path).parts:
            return ()
        found = [file.path for file in find_files([directory]).files]
        return found if is_json_name(path) else [other for other in found if is_schema_name(other)]

    def read(self, paths: Sequence[str]) -> Mapping[str, str]:
        return read_texts(paths[:FILES_MAX], comments=self.comments)[0]
