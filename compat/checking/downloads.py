"""Schemas of a registry as files: `<subject>.avsc`, or `<subject>/<version>.avsc` with every version.

Both are layouts that `--against DIRECTORY` reads. What a schema refers to is downloaded too. Subjects are other
people's
names: none leads out of the directory, and two that differ in capital letters only are two files on every system.
"""

from __future__ import annotations

import errno
import fnmatch
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.compat.checking.baselines.directory import subject_file_name
from headrace.compat.checking.inputs import SUFFIX
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.errors import SubjectNotFound, VersionNotFound


@dataclass(frozen=True, slots=True)
class Download:
    """A file to be. `state` is new, updated or unchanged."""

    path: Path
    text: str
    subject: str
    version: int
    state: str


def match_subjects(client: RegistryClient, patterns: Sequence[str]) -> list[str]:
    """The subjects that names and patterns mean, all of the default context without any.

    Raises:
        SubjectNotFound: a pattern means none.
    """
    subjects = client.subjects("" if not any(pattern.startswith(":") for pattern in patterns) else None)
    if not patterns:
        return subjects
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [name for name in subjects if name == pattern or fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            raise SubjectNotFound(subject=pattern)
        found.update(dict.fromkeys(matching))
    return list(found)


def plan_downloads(
    client: RegistryClient, subjects: Sequence[str], directory: Path, *, all_versions: bool
) -> Iterator[Download]:
    """The files of subjects and of those they refer to.

    Raises:
        RegistryError: the registry cannot be asked.
        OSError: a file that is there cannot be read.
    """
    waiting, seen = list(subjects), set(subjects)
    names = _Names(directory, "" if all_versions else SUFFIX)
    while waiting:
        subject = waiting.pop(0)
        name = names.of(subject)
        for item in _versions(client, subject, all_versions):
            for reference in item.references:
                named = reference.subject
                target = named if named.startswith(":.") else _context(subject) + named
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
            version = item.version or 1
            path = directory / name / f"{version}{SUFFIX}" if all_versions else directory / name
            yield _download(item, subject, version, path)


class _Names:
    """What files or directories below a directory are called. `taken` are those that are there or were given, in small
    letters, as some file systems compare them."""

    def __init__(self, directory: Path, suffix: str) -> None:
        self._directory = directory
        self._suffix = suffix
        there = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
        self._taken = {name.lower(): name for name in there}

    def of(self, subject: str) -> str:
        for spelled_out in (False, True):
            name = subject_file_name(subject, spelled_out=spelled_out) + self._suffix
            if self._taken.setdefault(name.lower(), name) == name:
                return name
        raise FileExistsError(
            errno.EEXIST, "a file of that name is there in other letters", str(self._directory / name)
        )


def _context(subject: str) -> str:
    """The prefix of a subject's context, which references mean that name none."""
    context, colon, _ = subject[1:].partition(":") if subject.startswith(":.") else ("", "", "")
    return f":{context}:" if colon else ""


def _versions(client: RegistryClient, subject: str, all_versions: bool) -> Iterator[RegisteredSchema]:
    if not all_versions:
        yield client.version(subject, "latest")
        return
    for number in client.versions(subject):
        try:
            yield client.version(subject, number)
        except VersionNotFound:  # deleted for good since the list was made
            continue


def _download(item: RegisteredSchema, subject: str, version: int, path: Path) -> Download:
    text = _indented(item.text)
    state = "new"
    if path.exists():
        state = "unchanged" if path.read_text(encoding="utf-8", errors="replace") == text else "updated"
    return Download(path, text, subject, version, state)


def _indented(text: str) -> str:
    """A registry keeps schemas in one line; people and line numbers want many."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    except (ValueError, RecursionError):
        return text
