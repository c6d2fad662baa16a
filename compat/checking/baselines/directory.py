"""A directory of released schemas with the same layout as the new ones.

If the command line names `schemas`, the earlier version of `schemas/shop/order.avsc` is the first of these that exists:

1. `shop/order.avsc` in the directory;
2. the file named after its subject, as `schema download` writes it;
3. the only file of the same subject that the working tree no longer has at its path;
4. the only file with a record of the same name.

A file named individually is also found by the longest suffix of its path that exists, or as the only file of its name.
A directory named `shop/order/` or after the subject contains several versions: its files with a version number as name,
in numerical order. If several files match, the check fails, because a wrong choice would give a wrong result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath, PurePosixPath

from headrace.compat.check_result import Failure, FailureKind
from headrace.compat.checking.baselines.base import (
    BaselineFailed,
    CandidateSchema,
    EarlierVersion,
    LevelChoice,
    VersionHistory,
)
from headrace.compat.checking.inputs import SUFFIX, SchemaFile, find_files, read_texts
from headrace.compat.checking.scope import FileScope
from headrace.compat.checking.type_sets import TypeSet, root_type_name
from headrace.compat.errors import NoSubject
from headrace.compat.file_names import subject_file_name
from headrace.compat.subjects import SubjectNaming, SubjectSource, without_suffix

VERSION_NAME = re.compile(r"(?:.*[-_.])?v?\d+(?:[._]\d+)*", re.IGNORECASE)
"""Pattern of a file name, without suffix, that contains the number of a version: 1, v2, order-v3, 1.0.2."""


class DirectoryBaseline:
    def __init__(self, directory: str, naming: SubjectNaming, *, comments: bool = False) -> None:
        self._naming = naming
        self._comments = comments
        self._directory = str(PurePath(directory))

    @property
    def name(self) -> str:
        return f"{self._directory.rstrip('/')}/"

    def find_equal_version(self, candidate: CandidateSchema, text: str) -> str:
        return ""

    def deleted_files(self, scope: FileScope) -> Sequence[tuple[str, str]]:
        files, texts = self._read()
        return DirectoryLayout({file.key: file.path for file in files}, texts, self._naming).deleted_files(scope)

    def histories(self, candidates: Sequence[CandidateSchema], choice: LevelChoice) -> Sequence[VersionHistory]:
        files, texts = self._read()
        layout = DirectoryLayout({file.key: file.path for file in files}, texts, self._naming)
        types = TypeSet(texts)
        found = []
        for item in candidates:
            paths = layout.find_versions(item)
            used = paths if choice.is_transitive() else paths[-1:]
            versions = tuple(
                EarlierVersion(
                    number, paths[number - 1], texts[paths[number - 1]], partial(types.schema_once, paths[number - 1])
                )
                for number in _numbers(paths, used)
            )
            found.append(VersionHistory(versions, len(paths)))
        return found

    def _read(self) -> tuple[Sequence[SchemaFile], Mapping[str, str]]:
        found = find_files([self._directory])
        texts, failures = read_texts(found.files, comments=self._comments)
        if found.failures or failures:
            raise BaselineFailed([*found.failures, *failures])
        return found.files, texts


def _numbers(paths: Sequence[str], used: Sequence[str]) -> range:
    return range(len(paths) - len(used) + 1, len(paths) + 1)


class DirectoryLayout:
    """Finds the earlier versions of a schema in a directory or in a directory of a git revision.

    Args:
        paths: the files of the directory: path below the directory (key) to the file's name in `texts`.
        texts: the texts of the files, by that name.
    """

    def __init__(self, paths: Mapping[str, str], texts: Mapping[str, str], naming: SubjectNaming) -> None:
        self._paths = paths
        self._texts = texts
        self._naming = naming
        self._versions: dict[str, list[str]] = {}
        self._by_name: dict[str, list[str]] = {}
        self._by_record: dict[str, list[str]] | None = None
        self._by_subject: dict[str, dict[str, list[str]]] = {}

    def find_versions(self, candidate: CandidateSchema) -> list[str]:
        """Returns the names (in `texts`) of the earlier versions of a candidate, oldest first.

        Raises:
            BaselineFailed: several files match equally well.
        """
        key = candidate.file.key
        if key in self._paths:
            return [self._paths[key]]
        self._sort_directories()
        subjects = [
            subject_file_name(candidate.subject, encodes_letters=encodes_letters) for encodes_letters in (False, True)
        ]
        for subject in subjects:
            if f"{subject}{SUFFIX}" in self._paths:
                return [self._paths[f"{subject}{SUFFIX}"]]
        directories = (self._versions.get(directory) for directory in (without_suffix(key), *subjects))
        versions = next(filter(None, directories), None)
        if versions:
            return [self._paths[key] for key in sorted(versions, key=_natural)]
        renamed = self._find_renamed(candidate)
        if len(renamed) > 1:
            message = f"{', '.join(renamed[:3])} could each be its earlier version; select one with --against FILE"
            raise BaselineFailed([Failure(FailureKind.UNREADABLE, candidate.file.path, message)])
        return [self._paths[key] for key in renamed]

    def deleted_files(self, scope: FileScope) -> Sequence[tuple[str, str]]:
        """Returns path and text of the files that the baseline's directory has and the checked directory lacks. Returns
        nothing unless the command line names exactly one directory, and this directory has at least one file of the
        baseline, or no schema file at all. A missing directory may be a misspelled one.

        If the baseline has several versions of a schema (files such as `order/v1.avsc` and `order/v2.avsc`), and the
        checked directory has no `order`, they count as one file, `order.avsc`, with the text of the last version.

        Args:
            scope: the paths that the command line selects; its only directory is the checked one.
        """
        directory = scope.directory
        if directory is None:
            return ()
        if find_files([directory]).files and not any(os.path.lexists(f"{directory}/{key}") for key in self._paths):
            return ()
        found: dict[str, str] = {}
        for key in sorted(self._paths, key=_natural):
            parent, _, name = key.rpartition("/")
            is_version = parent and VERSION_NAME.fullmatch(without_suffix(name))
            location = f"{parent}{SUFFIX}" if is_version and not os.path.lexists(f"{directory}/{parent}") else key
            if not os.path.lexists(f"{directory}/{location}"):
                found[(PurePosixPath(directory) / location).as_posix()] = self._texts[self._paths[key]]
        return tuple(found.items())

    def _find_renamed(self, candidate: CandidateSchema) -> Sequence[str]:
        """Returns the keys (paths below the baseline's directory) of the files that may be the candidate's earlier
        version under another path or name.

        If the candidate's key is only a file name, the result is the file at the longest suffix of its path, or the
        only file of its name. Otherwise, or if there is no such file, the result is the files of the same subject that
        are missing at their path in the working tree, else the files whose record has the same name, else the several
        files of its name.
        """
        same_name: Sequence[str] = ()
        if "/" not in candidate.file.key:
            parts = candidate.file.path.split("/")
            for at in range(len(parts) - 1):
                if "/".join(parts[at:]) in self._paths:
                    return ["/".join(parts[at:])]
            same_name = self._by_name.get(parts[-1], [])
            if len(same_name) == 1:
                return same_name
        return self._find_deleted(candidate) or self._find_by_record(candidate.record) or same_name

    def _find_deleted(self, candidate: CandidateSchema) -> Sequence[str]:
        """Returns the keys (paths below the baseline's directory) of the files that have the candidate's subject and
        are missing at the same path of the working tree."""
        root = candidate.file.path.removesuffix(candidate.file.key)
        if root not in self._by_subject:
            self._by_subject[root] = {}
            for key, path in self._paths.items():
                source = SubjectSource(
                    f"{root}{key}", root_type_name(self._texts[path]) if self._naming.needs_record else ""
                )
                with suppress(NoSubject):
                    self._by_subject[root].setdefault(self._naming.derive_subject(source), []).append(key)
        paths = self._by_subject[root].get(candidate.subject, ())
        return [key for key in paths if not os.path.lexists(f"{root}{key}")]

    def _sort_directories(self) -> None:
        if self._by_name:
            return
        for key in self._paths:
            directory, _, name = key.rpartition("/")
            self._by_name.setdefault(name, []).append(key)
            if VERSION_NAME.fullmatch(without_suffix(name)):
                self._versions.setdefault(directory, []).append(key)

    def _find_by_record(self, record: str) -> Sequence[str]:
        if self._by_record is None:
            self._by_record = {}
            for key, path in self._paths.items():
                self._by_record.setdefault(root_type_name(self._texts[path]), []).append(key)
        return self._by_record.get(record, []) if record else []


def _natural(text: str) -> list[tuple[int, str]]:
    """Returns a key by which file names (`text`) are sorted with numbers compared by value, so that v2 precedes v10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d{1,18})", text)]
