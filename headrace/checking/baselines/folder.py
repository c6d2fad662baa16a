"""A folder of released schemas, laid out like the new ones.

The earlier version of `schemas/shop/order.avsc`, given as `schemas`, is `shop/order.avsc` in the folder; else the file
called after its subject, as `schema download` writes it; else the only file there of that name; else the only one whose
record has that name. A folder `shop/order/`, or one called after the subject, holds several versions: its files in the
order of the numbers in their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import quote

from compat.outcome import Failure
from headrace.checking.baselines.base import BaselineFailed, Earlier, History, LevelChoice, Wanted
from headrace.checking.inputs import SUFFIX, find_files, read_text
from headrace.checking.type_sets import TypeSet, root_name

SUBJECT_CHARS = " !#$&'()+,;=@[]^_`{}~-."
"""What stands as it is in a file that is called after its subject; the rest is percent-encoded."""


class FolderBaseline:
    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/") or folder

    @property
    def name(self) -> str:
        return f"{self._folder}/"

    def histories(self, wanted: Sequence[Wanted], choice: LevelChoice) -> Sequence[History]:
        texts = self._texts()
        layout = Layout({path[len(self._folder) :].lstrip("/"): path for path in texts}, texts)
        types = TypeSet(texts)
        found = []
        for item in wanted:
            paths = layout.versions_of(item)
            used = paths if choice.is_transitive() else paths[-1:]
            versions = tuple(
                Earlier(
                    number, paths[number - 1], texts[paths[number - 1]], partial(types.schema_once, paths[number - 1])
                )
                for number in _numbers(paths, used)
            )
            found.append(History(versions, len(paths)))
        return found

    def _texts(self) -> dict[str, str]:
        found = find_files([self._folder])
        texts, failures = {}, list(found.failures)
        for file in found.files:
            text = read_text(file.path)
            if isinstance(text, Failure):
                failures.append(text)
            else:
                texts[file.path] = text
        if failures:
            raise BaselineFailed(failures)
        return texts


def _numbers(paths: Sequence[str], used: Sequence[str]) -> range:
    return range(len(paths) - len(used) + 1, len(paths) + 1)


class Layout:
    """Where in a folder, or in a revision, the earlier versions of a schema lie.

    Args:
        paths: key (the path below the folder) to whatever names the file.
        texts: by that name.
    """

    def __init__(self, paths: Mapping[str, str], texts: Mapping[str, str]) -> None:
        self._paths = paths
        self._texts = texts
        self._folders: dict[str, list[str]] | None = None
        self._by_name: dict[str, list[str]] = {}
        self._by_record: dict[str, list[str]] | None = None

    def versions_of(self, wanted: Wanted) -> list[str]:
        """The names of the earlier versions, oldest first."""
        key = wanted.file.key
        if key in self._paths:
            return [self._paths[key]]
        self._sort_folders()
        assert self._folders is not None
        subject = quote(wanted.subject, safe=SUBJECT_CHARS, errors="replace")
        if f"{subject}{SUFFIX}" in self._paths:
            return [self._paths[f"{subject}{SUFFIX}"]]
        inside = self._folders.get(key.removesuffix(SUFFIX)) or self._folders.get(subject)
        if inside:
            return [self._paths[key] for key in sorted(inside, key=_natural)]
        same_name = self._by_name.get(os.path.basename(key), [])  # noqa: PTH119
        if len(same_name) == 1:
            return [self._paths[same_name[0]]]
        same_record = self._of_record(wanted.record)
        return [self._paths[same_record[0]]] if len(same_record) == 1 else []

    def _sort_folders(self) -> None:
        if self._folders is not None:
            return
        self._folders = {}
        for key in self._paths:
            folder, _, name = key.rpartition("/")
            self._folders.setdefault(folder, []).append(key)
            self._by_name.setdefault(name, []).append(key)

    def _of_record(self, record: str) -> Sequence[str]:
        if self._by_record is None:
            self._by_record = {}
            for key, path in self._paths.items():
                self._by_record.setdefault(root_name(self._texts[path]), []).append(key)
        return self._by_record.get(record, []) if record else []


def _natural(text: str) -> list[tuple[int, str]]:
    """v2 before v10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d{1,18})", text)]
