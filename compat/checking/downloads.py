"""Downloads schemas of a registry to files: `<subject>.avsc`, or `<subject>/<version>.avsc` for every version.

`--against DIRECTORY` reads both layouts. Referenced schemas are downloaded too. Subject names are untrusted: no file
name leaves the directory, and two subjects that differ only in case get two files on every system.
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
    """A file to write. `state` is `new`, `updated` or `unchanged`, compared with the file that exists at `path`."""

    path: Path
    text: str
    subject: str
    version: int
    state: str


def match_subjects(client: RegistryClient, patterns: Sequence[str]) -> list[str]:
    """Returns the registry's subjects that match the patterns; without patterns, all subjects of the default context.

    Args:
        patterns: subjects, or glob patterns such as `orders-*`.

    Raises:
        SubjectNotFound: a pattern matches no subject.
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
    """Yields the files to write for the given subjects and all subjects that their schemas refer to, directly or
    indirectly.

    Args:
        directory: the directory of the files.
        all_versions: download every version of a subject instead of the latest one.

    Raises:
        RegistryError: a request to the registry failed.
        OSError: an existing file cannot be read, or has a name that differs from the file's only in case.
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
    """Assigns each subject the name of a file or directory below one directory. Existing and assigned names are
    compared in lower case, as case-insensitive file systems compare them."""

    def __init__(self, directory: Path, suffix: str) -> None:
        self._directory = directory
        self._suffix = suffix
        existing = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
        self._names = {name.lower(): name for name in existing}

    def of(self, subject: str) -> str:
        for encodes_letters in (False, True):
            name = subject_file_name(subject, encodes_letters=encodes_letters) + self._suffix
            if self._names.setdefault(name.lower(), name) == name:
                return name
        raise FileExistsError(
            errno.EEXIST,
            "its directory has an entry whose name differs only in upper and lower case",
            str(self._directory / name),
        )


def _context(subject: str) -> str:
    """Returns the prefix that names the context of a subject, such as `:.eu:`; "" for the default context. If a
    schema's reference has no such prefix, it refers to a subject of the schema's own context."""
    context, colon, _ = subject[1:].partition(":") if subject.startswith(":.") else ("", "", "")
    return f":{context}:" if colon else ""


def _versions(client: RegistryClient, subject: str, all_versions: bool) -> Iterator[RegisteredSchema]:
    if not all_versions:
        yield client.version(subject, "latest")
        return
    for number in client.versions(subject):
        try:
            yield client.version(subject, number)
        except VersionNotFound:  # permanently deleted after the list was read
            continue


def _download(item: RegisteredSchema, subject: str, version: int, path: Path) -> Download:
    text = _indented(item.text)
    state = "new"
    if path.exists():
        state = "unchanged" if path.read_text(encoding="utf-8", errors="replace") == text else "updated"
    return Download(path, text, subject, version, state)


def _indented(text: str) -> str:
    """Returns the text of a schema with indented lines, because the registry stores it as one line, and diffs and line
    numbers need several."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    except (ValueError, RecursionError):
        return text
